//! The job: a kind's stages in order, on one node. How jobs begin, how operators act on them, and how nodes follow.

mod act;
mod begin;

pub use act::{Act, Acted, act};
pub use begin::{NewJob, begin};

use domain::{ExecutionId, FindingId, JobId};
use serde::{Deserialize, Serialize};

pub const JOB_WORKFLOW: &str = "job";
pub const JOB_WORKFLOW_VERSION: u32 = 1;

/// Ids for what may come to be in a transaction: made outside of it, since it may be run again.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub job: JobId,
    pub execution: ExecutionId,
    pub finding: FindingId,
}

impl Fresh {
    pub fn make(ambient: &dyn store::Ambient) -> Self {
        Self {
            job: JobId::generate(ambient.uuid()),
            execution: ExecutionId::generate(ambient.uuid()),
            finding: FindingId::generate(ambient.uuid()),
        }
    }
}

/// What a job's stages are told; kept with it as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// For what runs on the node, before a drain fails or ends it.
    pub grace_seconds: u32,
    /// End what still runs after that.
    pub force: bool,
    /// Emptied, beside those of the configuration.
    pub scratch_paths: Vec<String>,
}
