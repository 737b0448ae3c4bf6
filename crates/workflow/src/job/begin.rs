//! How a job begins: it takes its node, in the transaction that makes both.

use super::{Fresh, Parameters};
use domain::job::Job;
use domain::job_stage::JobKind;
use domain::node::Node;
use domain::{Error, Reason};
use store::{Cause, Tx, TxResult};

/// What is wished for.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub kind: JobKind,
    pub parameters: Parameters,
    pub reason: String,
}

/// Takes the node for a new job, moves it where the kind's first stage needs it to be, and has the engine begin.
/// `node` was locked by the caller; so was its machine, before it, where it has one. `cause` is an operator's, or the
/// executor's where an agent's enrolment begins its onboarding.
pub fn begin(_tx: &mut Tx<'_>, node: &Node, _new: &NewJob, _fresh: &Fresh, _cause: &Cause) -> TxResult<Job> {
    Err(Error::new(Reason::Internal, format!("node {}", node.id)).into())
}
