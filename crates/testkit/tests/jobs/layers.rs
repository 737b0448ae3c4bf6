//! Node, boot node and machine that do not belong together, against the real store and reconciler: a finding once it has
//! lasted, once, and gone as soon as they do again.

use crate::world::World;
use domain::finding::{Finding, FindingKind, FindingState};
use domain::layers::GRACE;
use domain::machine::{Labels, MachineSpec, Phase, REGISTERED, SET_PHASE};
use domain::node::{Node, NodeStatus};
use domain::{MachineId, NodeId};
use std::time::Duration;
use store::machine::PhaseChange;
use store::{Cause, finding, machine, node, switch};
use testkit::fleet::Database;

const SECOND: Duration = Duration::from_secs(1);

/// A node whose bundle is out, on a machine of its own: neither heartbeats nor jobs move it.
async fn linked(world: &World) -> (NodeId, MachineId) {
    let (id, of) = (world.node(NodeStatus::BootstrapIssued).await, MachineId::from_text("m-1"));
    let (row, on) = (id.clone(), of.clone());
    world
        .write("m-1", move |tx| {
            let cause = Cause::operator("tester", REGISTERED, "");
            machine::insert(tx, &on, &MachineSpec::default(), &Labels::new(), &cause)?;
            let there = node::get_for_update(tx, &row)?.expect("a node");
            node::save(tx, &Node { machine_id: Some(on.clone()), ..there }).map(drop)
        })
        .await
        .expect("links");
    (id, of)
}

async fn moved(world: &World, machine: &MachineId, to: Phase) {
    let id = machine.clone();
    world
        .write(machine.as_str(), move |tx| {
            let there = machine::get_for_update(tx, &id)?.expect("a machine");
            let conditions = there.conditions.clone();
            let change = PhaseChange { to, active_run: None, previous_phase: None, conditions };
            let cause = Cause::operator("tester", SET_PHASE, "the test wants it");
            machine::set_phase(tx, &there, &change, &cause, |_| Ok(())).map(drop)
        })
        .await
        .expect("moves");
}

/// Of the node, whatever has become of them, after so long and a sweep.
async fn found(world: &World, node: &NodeId, after: Duration) -> Vec<Finding> {
    world.fleet.pass(after);
    world.sweep().await;
    let (filter, id) = (format!("subject={node}"), node.clone());
    let all = world.read(move |tx| finding::list(tx, &finding::FILTER.parse(&filter)?, "", 100)).await;
    assert!(all.iter().all(|f| f.kind == FindingKind::LayersDisagree && f.subject == id.as_str()), "{all:#?}");
    all
}

async fn a_disagreement_is_found_once_it_has_lasted(database: Database) {
    let world = World::new(database);
    // where the clock is real it goes on meanwhile
    let short = if database == Database::Memory { SECOND } else { GRACE / 2 };
    let (node, machine) = linked(&world).await;
    assert_eq!(found(&world, &node, GRACE * 2).await, [], "they belong together");
    // sent back to its maker, with a bundle for its agent out
    moved(&world, &machine, Phase::Rma).await;
    assert_eq!(found(&world, &node, GRACE - short).await, [], "a move takes its time");
    let raised = found(&world, &node, short).await;
    assert_eq!(raised.iter().map(|f| f.state).collect::<Vec<_>>(), [FindingState::Open]);
    let message = &raised[0].message;
    assert!(
        [node.as_str(), "bootstrap_issued", "m-1", "RMA", "absent"].iter().all(|part| message.contains(part)),
        "{message}"
    );
    assert_eq!(found(&world, &node, GRACE).await, raised, "said once, and not written again");
    // held back like everything else
    moved(&world, &machine, Phase::Ready).await;
    world.write("switch", |tx| switch::freeze(tx, "alice", "because")).await.expect("freezes");
    assert_eq!(found(&world, &node, SECOND).await, raised, "nothing is settled under the brake");
    world.write("switch", switch::unfreeze).await.expect("thaws");
    let gone = found(&world, &node, Duration::ZERO).await;
    assert_eq!(gone.iter().map(|f| f.state).collect::<Vec<_>>(), [FindingState::Resolved], "at once");
    // and again from the beginning
    moved(&world, &machine, Phase::Rma).await;
    assert_eq!(found(&world, &node, GRACE - short).await, gone, "it has not lasted again");
    let again = found(&world, &node, short).await;
    assert_eq!(again.iter().map(|f| f.state).collect::<Vec<_>>(), [FindingState::Open]);
    world.store().close();
}

#[tokio::test(start_paused = true)]
async fn a_disagreement_of_the_layers_is_found_once_it_has_lasted() {
    a_disagreement_is_found_once_it_has_lasted(Database::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disagreement_of_the_layers_is_found_on_postgres() {
    a_disagreement_is_found_once_it_has_lasted(Database::Postgres).await;
}

/// More than a sweep reads at a time, with those that disagree at both ends of it.
#[tokio::test(start_paused = true)]
async fn no_page_of_nodes_is_left_out() {
    let world = World::new(Database::Memory);
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(world.node(NodeStatus::BootstrapIssued).await);
    }
    ids.sort();
    let all = ids.clone();
    world
        .write("machines", move |tx| {
            for (n, id) in all.iter().enumerate() {
                let on = MachineId::from_text(format!("m-{n}"));
                let cause = Cause::operator("tester", REGISTERED, "");
                machine::insert(tx, &on, &MachineSpec::default(), &Labels::new(), &cause)?;
                let there = node::get_for_update(tx, id)?.expect("a node");
                node::save(tx, &Node { machine_id: Some(on), ..there })?;
            }
            Ok(())
        })
        .await
        .expect("links");
    for n in [0, 299] {
        moved(&world, &MachineId::from_text(format!("m-{n}")), Phase::Rma).await;
    }
    for (n, id) in [(0, &ids[0]), (150, &ids[150]), (299, &ids[299])] {
        assert_eq!(found(&world, id, GRACE).await.len(), usize::from(n != 150), "{n}");
    }
}
