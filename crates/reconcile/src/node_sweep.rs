//! What time does to nodes and their tasks: heartbeats that are lost or back, probes that fail or pass, leases that ran
//! out, jobs and busy nodes that have lost each other. One sweep, in short steps, each judged again where it is written.

use crate::options::{PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use crate::{heartbeats, node_jobs, task_leases};
use std::sync::Arc;
use store::{Caller, Tx, TxResult, switch};

/// Looks again and again, until told to stop.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let pause = match sweep(&core).await {
            Ok(()) => core.options.node_period,
            Err(e) => {
                tracing::warn!(error = %e, "looking after nodes");
                TROUBLE_PAUSE
            }
        };
        tokio::select! {
            biased;
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn sweep(core: &Core) -> Result<(), domain::Error> {
    if core.store.read(switch::frozen).await?.is_some() {
        return Ok(());
    }
    heartbeats::sweep(core).await?;
    task_leases::sweep(core).await?;
    node_jobs::sweep(core).await
}

/// Settles what `page` finds after the last id, page by page, each in a transaction of its own that judges it again. One that
/// cannot be settled keeps nobody else waiting.
pub(crate) async fn settle_all<P, S>(core: &Core, what: &'static str, page: P, settle: S) -> Result<(), domain::Error>
where
    P: Fn(&mut Tx<'_>, &str) -> TxResult<Vec<String>> + Clone + Send + 'static,
    S: Fn(&mut Tx<'_>, &str) -> TxResult<()> + Clone + Send + 'static,
{
    let mut after = String::new();
    loop {
        let (from, read) = (after.clone(), page.clone());
        let ids = core.store.read(move |tx| read(tx, &from)).await?;
        for id in &ids {
            let (settle, name) = (settle.clone(), id.clone());
            if let Err(e) = core.store.write(&Caller::engine(), id, move |tx| settle(tx, &name)).await {
                tracing::warn!(id, error = %e, "{what}");
            }
        }
        match ids.last() {
            Some(last) if ids.len() >= PAGE => after.clone_from(last),
            Some(_) | None => return Ok(()),
        }
    }
}
