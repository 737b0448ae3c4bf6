//! Node, boot node and machine beside each other: states that do not belong together are a finding once they have lasted,
//! and gone when they do again. Nothing is healed by guessing.

use crate::options::{PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use domain::finding::FindingKind;
use domain::layers::GRACE;
use domain::lifecycle::State as _;
use domain::{Error, FindingId};
use std::sync::Arc;
use store::node::{self, Linked};
use store::{Caller, finding, switch};

/// In whose name.
const BY: &str = "layers";

/// Compares all again and again, until told to stop.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let pause = match sweep(&core).await {
            Ok(()) => core.options.period,
            Err(e) => {
                tracing::warn!(error = %e, "comparing nodes with their machines");
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
                node::linked(tx, &from, PAGE)
            })
            .await?;
        let now = core.store.ambient().now();
        for linked in &page {
            let disagrees = linked.layers.situation().is_none();
            let lasting = now.since(linked.moved_at) >= GRACE;
            if (disagrees && lasting && !linked.found) || (!disagrees && linked.found) {
                tell(core, linked, disagrees).await?;
            }
        }
        match page.last() {
            Some(last) if page.len() >= PAGE => after = last.node_id.to_string(),
            Some(_) | None => return Ok(()),
        }
    }
}

async fn tell(core: &Core, linked: &Linked, disagrees: bool) -> Result<(), Error> {
    let fresh = FindingId::generate(core.store.ambient().uuid());
    let there = linked.clone();
    core.store
        .write(&Caller::engine(), linked.node_id.as_str(), move |tx| {
            let subject = there.node_id.as_str();
            if !disagrees {
                return finding::gone(tx, FindingKind::LayersDisagree, subject, "they belong together again", BY);
            }
            let boot = there.layers.boot_node.map_or("absent", |state| state.as_str());
            let message = format!(
                "node {} is {}, its machine {} is {} and its boot node is {boot}: these do not belong together",
                there.node_id,
                there.layers.node.map_or("absent", |status| status.as_str()),
                there.machine_id,
                there.layers.phase.map_or("absent", |phase| phase.as_str()),
            );
            finding::raise(tx, fresh.clone(), FindingKind::LayersDisagree, subject, &message, BY)
        })
        .await
}
