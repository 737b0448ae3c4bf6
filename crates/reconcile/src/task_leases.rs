//! Tasks whose time is up: a lease that ran out, an agent that never came. The job is told, and decides.

use crate::every::settle_all;
use crate::options::PAGE;
use crate::reconciler::Core;
use domain::task::{LEASE_EXPIRED, NOT_TAKEN, Task, TaskStatus};
use domain::{Error, TaskId};
use store::{Cause, Tx, TxResult, task};
use workflow::job::{lock_node, requeue_expired};

/// In whose name.
const BY: &str = "tasks";

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    let overdue = |tx: &mut Tx<'_>, after: &str| {
        Ok(task::overdue(tx, after, PAGE)?.into_iter().map(|task| task.id.into_text()).collect())
    };
    settle_all(core, "settling a task whose time is up", overdue, |tx, id| expire(tx, &TaskId::from_text(id))).await
}

/// Judged again in the transaction that writes: a word of its agent may have come meanwhile.
fn expire(tx: &mut Tx<'_>, id: &TaskId) -> TxResult<()> {
    let Some(seen) = tx.point(&task::by_id(id))? else { return Ok(()) };
    // its machine and its node before it, as everybody does: two that lock in another order wait for each other
    lock_node(tx, &seen.node_id)?;
    let Some(there) = task::get_for_update(tx, id)? else { return Ok(()) };
    let now = tx.now();
    let (trigger, why) = match there.status {
        TaskStatus::Queued if there.take_by <= now => {
            (NOT_TAKEN, format!("its agent has not come since {}", there.queued_at))
        }
        TaskStatus::Dispatched if there.lease_until.is_none_or(|until| until <= now) => {
            (LEASE_EXPIRED, format!("nothing was heard of it under fence {}", there.fence))
        }
        TaskStatus::Queued | TaskStatus::Dispatched | TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => {
            return Ok(());
        }
    };
    let after = Task { status: TaskStatus::Expired, lease_until: None, expired_because: why.clone(), ..there.clone() };
    let expired = task::move_to(tx, &there, &after, &Cause::reconciler(BY, trigger, &why))?;
    requeue_expired(tx, &expired)
}
