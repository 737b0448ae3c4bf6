//! What time does to nodes and their tasks: heartbeats that are lost or back, probes that fail or pass, leases that ran
//! out, jobs and busy nodes that have lost each other. One sweep, in short steps, each judged again where it is written.

use crate::reconciler::Core;
use crate::{heartbeats, node_jobs, task_leases};
use domain::Error;
use store::switch;

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    if core.store.read(switch::frozen).await?.is_some() {
        return Ok(());
    }
    heartbeats::sweep(core).await?;
    task_leases::sweep(core).await?;
    node_jobs::sweep(core).await
}
