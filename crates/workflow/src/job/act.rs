//! What operators do about a job.

use super::Fresh;
use domain::job::Job;
use domain::job_action::{Effect, JobAction};
use domain::node::Node;
use domain::{Error, JobId, Reason};
use engine::Engine;
use store::{Tx, TxResult};

/// One action, by whom and why.
#[derive(Clone, Debug)]
pub struct Act {
    pub job: JobId,
    pub action: JobAction,
    pub by: String,
    pub reason: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Acted {
    pub job: Job,
    pub node: Node,
    pub effect: Effect,
}

/// Carries an action out, or refuses it with the actions that are allowed. Locks machine, node, job and execution in that
/// order. Safe to repeat.
pub fn act(_tx: &mut Tx<'_>, _engine: &Engine, act: &Act, _fresh: &Fresh) -> TxResult<Acted> {
    Err(Error::new(Reason::Internal, format!("job {}", act.job)).into())
}
