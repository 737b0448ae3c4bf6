//! Orders to install or to erase that nothing is heard of: an attempt that has said nothing for too long has failed, and
//! a node that was never seen to boot is a finding. Nobody else would notice: a machine that is off says nothing.

use crate::options::{PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use domain::boot_node::{BOOTS_WITHIN, BootNode, SILENT};
use domain::finding::FindingKind;
use domain::install_order::InstallOrder;
use domain::{Error, FindingId, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, Cause, Tx, TxResult, boot_node, finding, install_order, switch};
use workflow::install::fail_attempt;

/// In whose name.
const BY: &str = "boot";

/// What time has made of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Overdue {
    /// An attempt said that it began, and nothing since.
    Silent(Duration),
    /// Its node has not asked for it.
    NotBooted(Duration),
}

fn overdue(order: &InstallOrder, now: Timestamp, silent_after: Duration) -> Option<Overdue> {
    match order.heard_at() {
        Some(heard) => {
            let silence = now.since(heard);
            (silence >= silent_after).then_some(Overdue::Silent(silence))
        }
        None => {
            // served, and then nothing: as silent as one that began
            let since = order.offered_at.unwrap_or(order.opened_at);
            let waited = now.since(since);
            match order.offered_at {
                Some(_) => (waited >= silent_after).then_some(Overdue::Silent(waited)),
                None => (waited >= BOOTS_WITHIN).then_some(Overdue::NotBooted(waited)),
            }
        }
    }
}

/// Whether a freeze excuses it: nobody was served while it lasted, so that its time counts from the end of that.
fn held_up(tx: &mut Tx<'_>, node: &BootNode, now: Timestamp, silent_after: Duration) -> TxResult<bool> {
    if switch::frozen(tx)?.is_some() {
        return Ok(true);
    }
    let Some(thawed) = switch::thawed(tx)? else { return Ok(false) };
    Ok(node.open_order().is_some_and(|order| order.due(silent_after, Some(thawed)) > now))
}

/// Looks at all open orders again and again, until told to stop.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let pause = match sweep(&core).await {
            Ok(()) => core.options.period,
            Err(e) => {
                tracing::warn!(error = %e, "looking for installations that nothing is heard of");
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

async fn sweep(core: &Core) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let from = after.clone();
        let page = core
            .store
            .read(move |tx| {
                if switch::frozen(tx)?.is_some() {
                    return Ok(Vec::new());
                }
                let mut nodes = Vec::new();
                for id in install_order::open_nodes(tx, &from, PAGE)? {
                    nodes.extend(tx.point(&boot_node::by_id(&id))?);
                }
                Ok(nodes)
            })
            .await?;
        let now = core.store.ambient().now();
        let Some(last) = page.iter().filter_map(BootNode::open_order).map(|o| o.id.to_string()).max() else {
            return Ok(());
        };
        for node in &page {
            let due = node.open_order().and_then(|order| overdue(order, now, core.options.silent_after));
            if due.is_some() {
                settle(core, node).await?;
            }
        }
        if page.len() < PAGE {
            return Ok(());
        }
        after = last;
    }
}

/// Judged again in the transaction that writes: a report may have come meanwhile.
async fn settle(core: &Core, node: &BootNode) -> Result<(), Error> {
    let id = node.id.clone();
    let fresh = FindingId::generate(core.store.ambient().uuid());
    let silent_after = core.options.silent_after;
    core.store
        .write(&Caller::engine(), id.clone().as_str(), move |tx| {
            let Some(there) = boot_node::get_for_update(tx, &id)? else { return Ok(()) };
            let now = tx.now();
            if held_up(tx, &there, now, silent_after)? {
                return Ok(());
            }
            match there.open_order().and_then(|order| overdue(order, now, silent_after)) {
                None => Ok(()),
                Some(Overdue::Silent(silence)) => {
                    let error = format!("nothing was heard of its installer for {} s", silence.as_secs());
                    let cause = Cause::reconciler(BY, SILENT, &error);
                    fail_attempt(tx, &there, &error, &fresh, &cause).map(drop)
                }
                Some(Overdue::NotBooted(waited)) => {
                    let message = format!(
                        "boot node {} ({}) was ordered {} min ago, and has not booted from the network since",
                        there.id,
                        there.mac,
                        waited.as_secs() / 60
                    );
                    finding::raise(tx, fresh.clone(), FindingKind::NotBooted, id.as_str(), &message, BY)
                }
            }
        })
        .await
}
