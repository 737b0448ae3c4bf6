//! What must hold of a job, its node and its tasks at any moment at which no transaction is open; from their rows, the
//! log, and the agent's own journal.

use crate::rows::rows_hold;
use crate::world::Play;
use domain::lifecycle::State as _;
use store::{log_of_subject, node};

pub async fn audit(play: &Play<'_>) {
    let name = &play.name;
    play.look().await;
    play.agent.nothing_twice().unwrap_or_else(|e| panic!("{name}: {e}"));
    rows_hold(name, play.world.store(), &play.job).await;
}

/// For tests that have no job: the node alone.
pub async fn node_folds(world: &crate::world::World, id: &domain::NodeId) {
    let of = id.clone();
    let (node, log) = world
        .read(move |tx| {
            Ok((tx.point(&node::by_id(&of))?, log_of_subject(tx, of.as_str(), 0, u64::from(u32::MAX), 1000)?))
        })
        .await;
    let mut state = String::new();
    for row in log.iter().filter(|row| row.entity_kind == "node") {
        assert_eq!(row.from_state, state, "{row:?}");
        state.clone_from(&row.to_state);
    }
    assert_eq!(state, node.expect("a node").status.as_str());
}
