//! Whom a call is about, and on whose behalf.

use domain::machine::{Labels, Machine, MachineSpec};
use domain::{ExecutionId, MachineId, RunId};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The machine as we know it. Adapters check what they find against it before they change anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub machine_id: MachineId,
    pub labels: Labels,
    pub spec: MachineSpec,
    /// What happened on the way that a person should read, such as a means that had to be changed.
    pub notes: Notes,
    pub by: By,
}

/// On whose behalf something is done. Where it leaves a trace, this is who is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// The server, of its own accord.
    #[default]
    System,
    /// By name.
    Person(String),
    Run(RunId),
}

/// Lines for the log of the step that is at work. Bounded: what nobody takes is dropped from the front.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<VecDeque<String>>>);

const NOTES_MAX: usize = 32;

impl Notes {
    pub fn add(&self, line: impl Into<String>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == NOTES_MAX {
            lines.pop_front();
        }
        lines.push_back(line.into());
    }

    pub fn take(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

/// They are no part of who it is.
impl PartialEq for Notes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Target {
    pub fn of(machine: &Machine) -> Self {
        Self {
            machine_id: machine.id.clone(),
            labels: machine.labels.clone(),
            spec: machine.spec.clone(),
            notes: Notes::default(),
            by: By::System,
        }
    }

    #[must_use]
    pub fn on_behalf_of(self, by: By) -> Self {
        Self { by, ..self }
    }
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
