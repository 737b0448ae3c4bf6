//! One lifecycle at a time on one node: neither two jobs, nor a job beside a run of its machine; who is refused is told by
//! what, and the way out.

use crate::world::{BY_HAND, World, begins_at};
use domain::lifecycle::State as _;
use domain::node::{Node, NodeStatus};
use domain::{MachineId, NodeId, Reason};
use engine::EngineOptions;
use service::NewTaskOrder;
use store::node;
use testkit::fleet::{Database, admin, machine, start};

async fn on_machine(world: &World, id: &NodeId, of: &str) {
    let (id, of) = (id.clone(), MachineId::from_text(of));
    let link = move |tx: &mut store::Tx<'_>| {
        let there = node::get_for_update(tx, &id)?.expect("a node");
        node::save(tx, &Node { machine_id: Some(of.clone()), ..there })
    };
    world.write("link", link).await.expect("links");
}

#[tokio::test(start_paused = true)]
async fn no_job_begins_beside_a_run_of_its_machine() {
    let world = World::new(Database::Memory);
    let never_started = world.fleet.engine(EngineOptions::new("runs"), None);
    let service = world.fleet.service(&never_started).await;
    service.register_machine(&admin(), machine("m-1")).await.expect("registers");
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "request-1")).await.expect("starts").run;
    for kind in BY_HAND {
        let id = world.node(begins_at(kind)).await;
        on_machine(&world, &id, "m-1").await;
        let before = world.node_row(&id).await;
        let refused = world.begin(&id, kind).await.expect_err("a run is active");
        assert_eq!(refused.reason, Reason::ActiveRun, "{kind}");
        assert_eq!(refused.details.get("run_id").map(String::as_str), Some(run.id.as_str()), "{kind}");
        assert!(refused.message.contains("cancel"), "{kind}: names the way out: {}", refused.message);
        assert_eq!(world.node_row(&id).await, before, "{kind}: nothing has changed");
        // for the next one
        let of = id.clone();
        let unlink = move |tx: &mut store::Tx<'_>| {
            let there = node::get_for_update(tx, &of)?.expect("a node");
            node::save(tx, &Node { machine_id: None, ..there })
        };
        world.write("unlink", unlink).await.expect("unlinks");
        world.begin(&id, kind).await.unwrap_or_else(|e| panic!("{kind}: without it, it begins: {e:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn neither_a_task_by_hand_begins_beside_a_run_nor_a_run_beside_a_task() {
    let world = World::new(Database::Memory);
    let never_started = world.fleet.engine(EngineOptions::new("runs"), None);
    let service = world.fleet.service(&never_started).await;
    let mut nodes = Vec::new();
    for machine_id in ["m-1", "m-2"] {
        service.register_machine(&admin(), machine(machine_id)).await.expect("registers");
        let id = world.node(NodeStatus::Active).await;
        world.agent(&id).await;
        on_machine(&world, &id, machine_id).await;
        nodes.push(id);
    }
    let reboot =
        |id: &NodeId| NewTaskOrder { node: id.to_string(), kind: "host.reboot".to_owned(), ..NewTaskOrder::default() };
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "request-1")).await.expect("starts").run;
    let refused = service.order_task(&admin(), reboot(&nodes[0])).await.expect_err("a run is active");
    assert_eq!(refused.reason, Reason::ActiveRun);
    assert_eq!(refused.details.get("run_id").map(String::as_str), Some(run.id.as_str()));
    let task = service.order_task(&admin(), reboot(&nodes[1])).await.expect("nothing holds the other machine");
    let refused = service.start_run(&admin(), start("m-2", "REBOOT", "request-2")).await.expect_err("a task is live");
    assert_eq!(refused.reason, Reason::MachineHeld);
    assert_eq!(refused.details.get("task_id").map(String::as_str), Some(task.id.as_str()));
    assert!(refused.message.contains("task cancel"), "names the way out: {}", refused.message);
    service.cancel_task(&admin(), task.id.as_str(), "").await.expect("is taken back");
    service.start_run(&admin(), start("m-2", "REBOOT", "request-2")).await.expect("without it, it starts");
}

#[tokio::test(start_paused = true)]
async fn one_job_holds_its_node_until_it_has_ended() {
    let world = World::new(Database::Memory);
    for kind in BY_HAND {
        let id = world.node(begins_at(kind)).await;
        let first = world.begin(&id, kind).await.expect("begins");
        let before = world.node_row(&id).await;
        for other in BY_HAND {
            let refused = world.begin(&id, other).await.expect_err("held");
            assert_eq!(refused.reason, Reason::NodeHeld, "{other} beside {kind}");
            assert_eq!(refused.details.get("job_id").map(String::as_str), Some(first.id.as_str()));
            assert!(refused.message.contains("job cancel"), "names the way out: {}", refused.message);
        }
        assert_eq!(world.node_row(&id).await, before);
    }
}

/// From every status: exactly the kinds that the tables say, and the others are refused with where they begin from.
#[tokio::test(start_paused = true)]
async fn a_job_begins_only_where_its_kind_says() {
    let world = World::new(Database::Memory);
    for status in NodeStatus::ALL.iter().copied() {
        for kind in BY_HAND {
            let id = world.node(status).await;
            let busy = kind.stages().first().and_then(|stage| kind.busy_in(*stage));
            let may = kind.begins_from().contains(&status) || busy == Some(status);
            match world.begin(&id, kind).await {
                Ok(job) => {
                    assert!(may, "{kind} from {status}");
                    let node = world.node_row(&id).await;
                    assert_eq!(node.active_job, Some(job.id));
                    assert!(crate::table::meaning(kind, job.status, node.status).is_some(), "{kind}: {}", node.status);
                }
                Err(e) => {
                    assert!(!may, "{kind} from {status}: {e:?}");
                    assert_eq!(e.reason, Reason::ActionNotAllowed);
                    assert!(e.message.contains("begins from"), "{}", e.message);
                }
            }
        }
    }
}

/// A busy node that has lost its job, by whatever: one sweep gives it one, and says so.
#[tokio::test(start_paused = true)]
async fn a_busy_node_without_a_job_has_one_after_a_sweep() {
    use domain::finding::FindingKind;
    let world = World::new(Database::Memory);
    for status in [NodeStatus::Enrolling, NodeStatus::Draining, NodeStatus::Removing] {
        let id = world.node(status).await;
        world.sweep().await;
        let node = world.node_row(&id).await;
        assert_eq!(node.status, status);
        let job = world.job(node.active_job.as_ref().expect("a job")).await;
        assert!(job.status.is_under_way() && job.reason.contains("without a job"), "{job:?}");
        let of = id.to_string();
        let log = world.read(move |tx| store::log_of_subject(tx, &of, 0, u64::from(u32::MAX), 100)).await;
        let told = log.iter().filter(|row| row.entity_kind == "finding").count();
        let kind = FindingKind::NodeJobMismatch;
        assert!(told >= 2, "{kind:?} is on record, raised and settled: {log:#?}");
        let version = node.version;
        world.sweep().await;
        assert_eq!(world.node_row(&id).await.version, version, "once");
    }
}
