//! Node, boot node and machine beside each other: states that do not belong together are a finding once they have lasted,
//! and gone when they do again. Nothing is healed by guessing.

use crate::every::{Page, settle_all};
use crate::options::PAGE;
use crate::reconciler::Core;
use domain::finding::FindingKind;
use domain::layers::GRACE;
use domain::lifecycle::State as _;
use domain::{Error, FindingId, NodeId, Timestamp};
use store::node::{self, Linked};
use store::{Ambient, Tx, TxResult, finding, switch};

/// In whose name.
const BY: &str = "layers";

/// What is to be said about one, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Raise,
    Gone,
}

fn due(linked: &Linked, now: Timestamp) -> Option<Due> {
    let disagree = linked.layers.situation().is_none();
    match (disagree, linked.found) {
        (true, false) => (now.since(linked.moved_at) >= GRACE).then_some(Due::Raise),
        (false, true) => Some(Due::Gone),
        (true, true) | (false, false) => None,
    }
}

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    let ambient = core.store.ambient().clone();
    let settle = move |tx: &mut Tx<'_>, id: &str| tell(tx, &NodeId::from_text(id), ambient.as_ref());
    settle_all(core, "comparing a node with its machine", page, settle).await
}

fn page(tx: &mut Tx<'_>, after: &str) -> TxResult<Page> {
    if switch::frozen(tx)?.is_some() {
        return Ok(Page::default());
    }
    let now = tx.now();
    let read = node::linked(tx, after, PAGE)?;
    let next = read.last().filter(|_| read.len() >= PAGE).map(|last| last.node_id.to_string());
    let due = read.into_iter().filter(|linked| due(linked, now).is_some()).map(|linked| linked.node_id.into_text());
    Ok(Page { due: due.collect(), next })
}

/// Judged again in the transaction that writes: one of the three may have moved meanwhile.
fn tell(tx: &mut Tx<'_>, id: &NodeId, ambient: &dyn Ambient) -> TxResult<()> {
    let Some(there) = tx.point(&node::linked_of(id))? else { return Ok(()) };
    let subject = id.as_str();
    match due(&there, tx.now()) {
        None => Ok(()),
        Some(Due::Gone) => finding::gone(tx, FindingKind::LayersDisagree, subject, "they belong together again", BY),
        Some(Due::Raise) => {
            let boot = there.layers.boot_node.map_or("absent", |state| state.as_str());
            let message = format!(
                "node {id} is {}, its machine {} is {} and its boot node is {boot}: these do not belong together",
                there.layers.node.map_or("absent", |status| status.as_str()),
                there.machine_id,
                there.layers.phase.map_or("absent", |phase| phase.as_str()),
            );
            let fresh = FindingId::generate(ambient.uuid());
            finding::raise(tx, fresh, FindingKind::LayersDisagree, subject, &message, BY)
        }
    }
}
