//! Orders to install or to erase that nothing is heard of: an attempt that has said nothing for too long has failed, and
//! a node that was never seen to boot is a finding. Nobody else would notice: a machine that is off says nothing.

use crate::every::{Page, settle_all};
use crate::options::PAGE;
use crate::reconciler::Core;
use domain::boot_node::{BOOTS_WITHIN, BootNode, BootState, SILENT};
use domain::finding::FindingKind;
use domain::install_order::InstallOrder;
use domain::{BootNodeId, Error, FindingId, Timestamp};
use std::time::Duration;
use store::{Ambient, Cause, Tx, TxResult, boot_node, finding, install_order, switch};
use workflow::install::fail_attempt;

/// In whose name.
const BY: &str = "boot";

/// What time has made of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Overdue {
    /// An attempt said that it began, and nothing since.
    Silent(Duration),
    /// Its node was handed the installer, and has never said that it began: nothing was written, and nothing has failed.
    NotBegun(Duration),
    /// Its node has not asked for it.
    NotBooted(Duration),
}

fn overdue(node: &BootNode, order: &InstallOrder, now: Timestamp, silent_after: Duration) -> Option<Overdue> {
    if let Some(heard) = order.heard_at() {
        let silence = now.since(heard);
        return (silence >= silent_after).then_some(Overdue::Silent(silence));
    }
    if let Some(offered) = order.offered_at {
        let waited = now.since(offered);
        let what = match node.state {
            BootState::Pending => Overdue::NotBegun(waited),
            // of an attempt after the first
            BootState::Installing
            | BootState::Deprovisioning
            | BootState::Discovered
            | BootState::InstallFailed
            | BootState::Installed
            | BootState::Active
            | BootState::Reprovision
            | BootState::Migrating
            | BootState::Retired => Overdue::Silent(waited),
        };
        return (waited >= silent_after).then_some(what);
    }
    // since it was ordered, or since the attempt before this one has ended
    let waited = now.since(order.last_report_at.unwrap_or(order.opened_at));
    (waited >= BOOTS_WITHIN).then_some(Overdue::NotBooted(waited))
}

/// Whether a freeze excuses it: nobody was served while it lasted, so that its time counts from the end of that.
fn held_up(tx: &mut Tx<'_>, node: &BootNode, now: Timestamp, silent_after: Duration) -> TxResult<bool> {
    if switch::frozen(tx)?.is_some() {
        return Ok(true);
    }
    let Some(thawed) = switch::thawed(tx)? else { return Ok(false) };
    Ok(node.open_order().is_some_and(|order| order.due(silent_after, Some(thawed)) > now))
}

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    let (silent_after, ambient) = (core.options.silent_after, core.store.ambient().clone());
    let page = move |tx: &mut Tx<'_>, after: &str| page(tx, after, silent_after);
    let settle =
        move |tx: &mut Tx<'_>, id: &str| settle(tx, &BootNodeId::from_text(id), silent_after, ambient.as_ref());
    settle_all(core, "settling an installation that nothing is heard of", page, settle).await
}

fn page(tx: &mut Tx<'_>, after: &str, silent_after: Duration) -> TxResult<Page> {
    if switch::frozen(tx)?.is_some() {
        return Ok(Page::default());
    }
    let (now, ids) = (tx.now(), install_order::open_nodes(tx, after, PAGE)?);
    let mut page = Page::default();
    for id in &ids {
        let Some(node) = tx.point(&boot_node::by_id(id))? else { continue };
        let Some(order) = node.open_order() else { continue };
        // pages go by orders, what is settled is their nodes
        page.next = Some(order.id.to_string()).filter(|_| ids.len() >= PAGE);
        if overdue(&node, order, now, silent_after).is_some() {
            page.due.push(id.to_string());
        }
    }
    Ok(page)
}

/// Judged again in the transaction that writes: a report may have come meanwhile.
fn settle(tx: &mut Tx<'_>, id: &BootNodeId, silent_after: Duration, ambient: &dyn Ambient) -> TxResult<()> {
    let Some(there) = boot_node::get_for_update(tx, id)? else { return Ok(()) };
    let now = tx.now();
    if held_up(tx, &there, now, silent_after)? {
        return Ok(());
    }
    let fresh = FindingId::generate(ambient.uuid());
    let (name, mac) = (&there.id, &there.mac);
    let message = match there.open_order().and_then(|order| overdue(&there, order, now, silent_after)) {
        None => return Ok(()),
        Some(Overdue::Silent(silence)) => {
            let error = format!("nothing was heard of its installer for {} s", silence.as_secs());
            let cause = Cause::reconciler(BY, SILENT, &error);
            return fail_attempt(tx, &there, &error, &fresh, &cause).map(drop);
        }
        Some(Overdue::NotBegun(waited)) => format!(
            "boot node {name} ({mac}) was handed its installer {} min ago, which has not said that it began; look at the machine's console",
            waited.as_secs() / 60
        ),
        Some(Overdue::NotBooted(waited)) => format!(
            "boot node {name} ({mac}) has had an open order for {} min, and has not booted from the network since",
            waited.as_secs() / 60
        ),
    };
    finding::raise(tx, fresh, FindingKind::NotBooted, id.as_str(), &message, BY)
}
