//! Whom a call is about, and on whose behalf.

use domain::machine::{Labels, MachineSpec};
use domain::{ExecutionId, MachineId};
use std::fmt;

/// The machine as we know it. Adapters check what they find against it before they change anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub machine_id: MachineId,
    pub labels: Labels,
    pub spec: MachineSpec,
}

/// One act of one attempt of one stage. Where an upstream knows idempotency keys this is the key; its
/// text is short, stable and safe in a file name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub execution: ExecutionId,
    pub stage: String,
    pub attempt: u32,
    /// The fence of the caller, for upstreams that can refuse an old one.
    pub fence: String,
}

impl Operation {
    /// The same for every repetition of the same attempt.
    pub fn key(&self) -> String {
        format!("{}.{}.{}", self.execution, self.stage, self.attempt)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}
