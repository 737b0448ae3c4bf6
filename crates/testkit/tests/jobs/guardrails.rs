//! The seventeen moves of a node, their owners, and what must never be: judged by the store itself, on both databases,
//! against lists that are written down here by hand.

use crate::world::{World, new_node};
use domain::agent::IdentityState;
use domain::lifecycle::{Owner, State as _, triggers};
use domain::node::{self as nodes, Node, NodeStatus};
use domain::{Error, NodeId, Reason};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Cause, agent, node};
use testkit::fleet::Database;

/// From the document: the move, and who makes it.
const MOVES: &[(&str, &str, &[Owner])] = &[
    ("bootstrap_issued", "enrolling", &[Owner::Operator, Owner::Executor]),
    ("enrolling", "active", &[Owner::Executor]),
    ("enrolling", "quarantined", &[Owner::Operator, Owner::Executor]),
    ("active", "offline", &[Owner::Reconciler]),
    ("offline", "active", &[Owner::Reconciler]),
    ("active", "quarantined", &[Owner::Executor, Owner::Reconciler]),
    ("offline", "quarantined", &[Owner::Executor, Owner::Reconciler]),
    ("quarantined", "active", &[Owner::Operator, Owner::Reconciler]),
    ("quarantined", "draining", &[Owner::Operator]),
    ("active", "draining", &[Owner::Operator]),
    ("offline", "draining", &[Owner::Operator]),
    ("draining", "retired", &[Owner::Executor]),
    ("draining", "offline", &[Owner::Executor]),
    ("retired", "offline", &[Owner::Operator]),
    ("retired", "removing", &[Owner::Executor]),
    ("removing", "retired", &[Owner::Executor]),
    ("removing", "deleted", &[Owner::Executor]),
];

fn cause(owner: Owner, trigger: &'static str) -> Cause {
    match owner {
        Owner::Operator => Cause::operator("tester", trigger, ""),
        Owner::Executor => Cause::executor("tester", trigger, ""),
        Owner::Reconciler => Cause::reconciler("tester", trigger, ""),
        Owner::Node => Cause::node("tester", trigger, ""),
    }
}

/// Tries a move in every name there is and takes all of it back; answers whose names worked.
async fn tried(world: &World, id: &NodeId, to: NodeStatus) -> Vec<Owner> {
    let (of, told) = (id.clone(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let heard = told.clone();
    let undone = world.write(id.as_str(), move |tx| {
        let mut worked = Vec::new();
        let there = node::get_for_update(tx, &of)?.expect("a node");
        'owners: for owner in Owner::ALL {
            for trigger in triggers::<NodeStatus>() {
                let now = node::get_for_update(tx, &of)?.expect("a node");
                let before = Node { version: now.version, ..there.clone() };
                let after = Node { status: to, ..before.clone() };
                match node::move_to(tx, &before, &after, &serde_json::json!({}), &cause(owner, trigger), |_| Ok(())) {
                    Ok(moved) if moved.version > before.version => {
                        worked.push(owner);
                        continue 'owners;
                    }
                    // it is there already, and nothing was written
                    Ok(_) => {}
                    Err(store::Failure::Refused(e)) => {
                        assert!(matches!(e.reason, Reason::IllegalTransition | Reason::NotYourTransition), "{e:?}");
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        *heard.lock().expect("no panic") = worked;
        Err::<(), _>(Error::new(Reason::NotConfirmed, "taken back").into())
    });
    assert_eq!(undone.await.expect_err("taken back").reason, Reason::NotConfirmed);
    told.lock().expect("no panic").clone()
}

async fn eighty_one_pairs(database: Database) {
    let world = World::new(database);
    let mut found = BTreeMap::new();
    for from in NodeStatus::ALL.iter().copied() {
        let id = world.node(from).await;
        for to in NodeStatus::ALL.iter().copied() {
            let worked = tried(&world, &id, to).await;
            if !worked.is_empty() {
                found.insert((from.as_str(), to.as_str()), worked);
            }
        }
        assert_eq!(world.node_row(&id).await.status, from, "everything was taken back");
    }
    let documented: BTreeMap<_, _> = MOVES.iter().map(|(from, to, owners)| ((*from, *to), owners.to_vec())).collect();
    assert_eq!(found, documented);
    assert_eq!(found.len(), 17);
    world.store().close();
}

#[tokio::test(start_paused = true)]
async fn of_eighty_one_pairs_seventeen_are_moves_in_memory() {
    eighty_one_pairs(Database::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eighty_one_pairs_seventeen_are_moves_on_postgres() {
    eighty_one_pairs(Database::Postgres).await;
}

/// A guard that does not hold keeps the node where it is.
#[tokio::test(start_paused = true)]
async fn a_guard_that_fails_moves_nothing() {
    let world = World::new(Database::Memory);
    for (from, to, owner, trigger) in [
        (NodeStatus::Active, NodeStatus::Draining, Owner::Operator, nodes::DRAIN),
        (NodeStatus::Retired, NodeStatus::Removing, Owner::Executor, nodes::REMOVE),
        (NodeStatus::Retired, NodeStatus::Offline, Owner::Operator, nodes::REACTIVATE),
        (NodeStatus::Enrolling, NodeStatus::Active, Owner::Executor, nodes::ONBOARDED),
        (NodeStatus::Quarantined, NodeStatus::Active, Owner::Operator, nodes::RECOVER),
    ] {
        let id = world.node(from).await;
        let of = id.clone();
        let refused = world.write(id.as_str(), move |tx| {
            let there = node::get_for_update(tx, &of)?.expect("a node");
            let after = Node { status: to, ..there.clone() };
            let no = |_| Err(Error::new(Reason::NotConfirmed, "the guard says no"));
            node::move_to(tx, &there, &after, &serde_json::json!({}), &cause(owner, trigger), no)
        });
        assert_eq!(refused.await.expect_err("refused").reason, Reason::NotConfirmed, "{from} to {to}");
        assert_eq!(world.node_row(&id).await.status, from);
    }
}

/// Reused: the same identity, not in service until its heartbeat says so.
#[tokio::test(start_paused = true)]
async fn a_retired_node_comes_back_as_itself_and_not_at_once() {
    let world = World::new(Database::Memory);
    let id = world.node(NodeStatus::Retired).await;
    let agent = world.agent(&id).await;
    let of = id.clone();
    let before = world.read(move |tx| tx.point(&agent::by_node(&of))).await.expect("an identity");
    let of = id.clone();
    let reactivate = move |tx: &mut store::Tx<'_>| {
        let there = node::get_for_update(tx, &of)?.expect("a node");
        let after = Node { status: NodeStatus::Offline, ..there.clone() };
        let cause = cause(Owner::Operator, nodes::REACTIVATE);
        node::move_to(tx, &there, &after, &serde_json::json!({}), &cause, |_| Ok(()))
    };
    let there = world.write(id.as_str(), reactivate).await.expect("moves");
    assert!(there.schedulable().is_err(), "its health must prove it first");
    let of = id.clone();
    let after = world.read(move |tx| tx.point(&agent::by_node(&of))).await.expect("an identity");
    assert_eq!((after.key_sha256, after.state), (before.key_sha256, IdentityState::Good), "the same identity");
    for _ in 0..4 {
        world.fleet.pass(Duration::from_secs(15));
        agent.beat().await;
        world.sweep().await;
    }
    let active = world.node_row(&id).await;
    assert_eq!((active.status, active.schedulable()), (NodeStatus::Active, Ok(())));
}

/// A deleted node's name is free again, and its row is history.
#[tokio::test(start_paused = true)]
async fn what_is_deleted_never_comes_back_and_its_name_is_free() {
    let world = World::new(Database::Memory);
    let gone = world.node(NodeStatus::Deleted).await;
    for to in NodeStatus::ALL.iter().copied() {
        assert_eq!(tried(&world, &gone, to).await, [], "deleted to {to}");
    }
    let new = NodeId::generate(world.fleet.ambient.uuid());
    let mut row = new_node(&new, world.fleet.ambient.now());
    row.name = world.node_row(&gone).await.name;
    let name = row.name.clone();
    let insert = move |tx: &mut store::Tx<'_>| node::insert(tx, &row, &cause(Owner::Operator, nodes::ISSUED));
    world.write(new.as_str(), insert).await.expect("another node of that name");
    let found = world.read(move |tx| tx.point(&node::by_name(&name))).await.expect("by its name");
    assert_eq!(found.id, new, "a name leads to the one that is there");
    assert_eq!(world.node_row(&gone).await.status, NodeStatus::Deleted, "and the old one stays readable");
}
