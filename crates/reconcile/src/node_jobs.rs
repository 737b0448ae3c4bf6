//! Nodes and jobs that have lost each other: a node that is busy by its status without a job at work, a job at work
//! without an execution. Neither can come to be by our own commits; what does all the same is put right and told.

use crate::every::settle_all;
use crate::options::PAGE;
use crate::reconciler::Core;
use domain::finding::FindingKind;
use domain::{Error, JobId, NodeId};
use store::{Ambient, Tx, TxResult, execution, finding, job, node};
use workflow::job::{Fresh, adopt_orphan, ended_outside};

/// In whose name.
const BY: &str = "jobs";

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    let left = |tx: &mut Tx<'_>, after: &str| {
        Ok(job::left_by_their_execution(tx, after, PAGE)?.into_iter().map(JobId::into_text).collect())
    };
    let follow = |tx: &mut Tx<'_>, id: &str| follow_execution(tx, &JobId::from_text(id));
    settle_all(core, "comparing a job with its execution", left, follow).await?;
    let orphans =
        |tx: &mut Tx<'_>, after: &str| Ok(node::orphans(tx, after, PAGE)?.into_iter().map(NodeId::into_text).collect());
    let ambient = core.store.ambient().clone();
    let own = move |tx: &mut Tx<'_>, id: &str| give_a_job(tx, &NodeId::from_text(id), ambient.as_ref());
    settle_all(core, "giving a busy node a job", orphans, own).await
}

/// A job whose execution has ended without its hearing of it.
fn follow_execution(tx: &mut Tx<'_>, id: &JobId) -> TxResult<()> {
    let Some(there) = tx.point(&job::by_id(id))?.filter(|job| job.status.is_under_way()) else { return Ok(()) };
    match execution::get(tx, &there.execution_id)? {
        Some(e) if e.status.is_terminal() => {
            ended_outside(tx, &e, "the engine", &format!("it is {}", e.status.as_str()))
        }
        Some(_) | None => Ok(()),
    }
}

/// A node that is busy by its status gets the job that its status is about; that it had none is on record.
fn give_a_job(tx: &mut Tx<'_>, id: &NodeId, ambient: &dyn Ambient) -> TxResult<()> {
    let Some(there) = tx.point(&node::by_id(id))? else { return Ok(()) };
    if tx.point(&job::open_of_node(id))?.is_some() {
        return Ok(());
    }
    let fresh = Fresh::make(ambient);
    let message = format!("node {id} was {} and no job worked on it", there.status);
    finding::raise(tx, fresh.finding.clone(), FindingKind::NodeJobMismatch, id.as_str(), &message, BY)?;
    adopt_orphan(tx, id, &fresh)?;
    finding::gone(tx, FindingKind::NodeJobMismatch, id.as_str(), "it has a job again", BY)
}
