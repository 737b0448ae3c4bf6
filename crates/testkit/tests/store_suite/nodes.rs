//! Nodes: kept whole, moved once, found by name, machine and view, and those that a machine's identifiers belong to.

use crate::fixture::{TestStore, machine_id, on_every_store, register, tester};
use domain::lifecycle::State as _;
use domain::link::HardwareFacts;
use domain::machine::{Labels, MachineSpec};
use domain::node::{self as nodes, AgentMode, MaasRef, Node, NodeStatus, View};
use domain::{JobId, MacAddress, NodeId, Reason};
use store::{Ambient as _, Cause, node};

pub fn new_node(store: &TestStore, name: &str) -> Node {
    let now = store.clock.now();
    Node::new(NodeId::generate(store.clock.uuid()), name, NodeStatus::BootstrapIssued, "", "tester", now)
}

fn upstream(system_id: &str) -> MaasRef {
    MaasRef { site: "lab".to_owned(), system_id: system_id.to_owned() }
}

pub async fn insert(store: &TestStore, name: &str) -> Node {
    let row = new_node(store, name);
    store
        .put(row.id.clone().as_str(), move |tx| node::insert(tx, &row, &Cause::operator("tester", nodes::ISSUED, "")))
        .await
        .expect("inserts")
}

async fn moves(store: &TestStore, there: &Node, to: NodeStatus, cause: Cause) -> Result<Node, domain::Error> {
    let before = there.clone();
    store
        .put(there.id.as_str(), move |tx| {
            let after = Node { status: to, ..before.clone() };
            node::move_to(tx, &before, &after, &serde_json::json!({"why": "a test"}), &cause, |_| Ok(()))
        })
        .await
}

async fn get(store: &TestStore, id: &NodeId) -> Node {
    let id = id.clone();
    store.read(move |tx| tx.point(&node::by_id(&id))).await.expect("reads").expect("is there")
}

on_every_store!(what_is_saved_of_a_node_is_read_again, |store| async {
    let made = insert(&store, "alpha").await;
    store.register("m-1").await;
    let wished = Node {
        name: "beta".to_owned(),
        status_reason: "because".to_owned(),
        cordoned_by: "alice".to_owned(),
        cordon_reason: "a test".to_owned(),
        machine_id: Some(machine_id("m-1")),
        maas: Some(upstream("abc123")),
        active_job: Some(JobId::from_text("job_1")),
        agent_mode: AgentMode::Repair,
        agent_mode_by: "bob".to_owned(),
        ..made.clone()
    };
    let row = wished.clone();
    let saved = store.put(made.id.as_str(), move |tx| node::save(tx, &row)).await.expect("saves");
    assert_eq!(saved, Node { version: made.version + 1, ..wished });
    assert_eq!(get(&store, &made.id).await, saved);
    let found = store
        .read(|tx| {
            let upstream = tx.point(&node::by_maas(&upstream("abc123")))?;
            let of_site = node::of_site(tx, "lab", "", 9)?;
            Ok([
                tx.point(&node::by_name("beta"))?,
                tx.point(&node::by_machine(&machine_id("m-1")))?,
                upstream,
                of_site.first().cloned(),
            ])
        })
        .await
        .expect("reads");
    assert_eq!(found, [(); 4].map(|()| Some(saved.clone())));
    // who read it before that writes nothing
    let stale = made.clone();
    let lost = store.put(made.id.as_str(), move |tx| node::save(tx, &stale)).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(get(&store, &made.id).await, saved);
});

on_every_store!(a_machine_upstream_is_one_nodes_until_that_is_deleted, |store| async {
    let first = insert(&store, "alpha").await;
    let save = |row: Node| store.put("nodes", move |tx| node::save(tx, &row));
    let first = save(Node { maas: Some(upstream("abc123")), ..first }).await.expect("saves");
    let second = insert(&store, "beta").await;
    save(Node { maas: Some(upstream("abc123")), ..second.clone() }).await.expect_err("it is taken");
    save(Node { status: NodeStatus::Deleted, ..first }).await.expect("saves");
    let second = save(Node { maas: Some(upstream("abc123")), ..second }).await.expect("it is free again");
    let found = store.read(|tx| tx.point(&node::by_maas(&upstream("abc123")))).await.expect("reads");
    assert_eq!(found, Some(second));
});

on_every_store!(a_move_of_a_node_is_made_once_and_logged, |store| async {
    let made = insert(&store, "alpha").await;
    let begins = Cause::executor("tester", nodes::ONBOARD, "");
    let moved = moves(&store, &made, NodeStatus::Enrolling, begins.clone()).await.expect("moves");
    assert_eq!((moved.status, moved.version), (NodeStatus::Enrolling, made.version + 1));
    assert!(moves(&store, &made, NodeStatus::Enrolling, begins).await.is_err(), "from where it is no more");
    let illegal = moves(&store, &moved, NodeStatus::Retired, Cause::executor("tester", nodes::DRAINED, "")).await;
    assert_eq!(illegal.expect_err("no such move").reason, Reason::IllegalTransition);
    let log = store.log().await;
    let rows: Vec<_> =
        log.iter().filter(|r| r.entity_kind == "node").map(|r| (r.to_state.as_str(), r.version)).collect();
    assert_eq!(rows, [("bootstrap_issued", 1), ("enrolling", 2)]);
});

on_every_store!(views_have_their_statuses_and_deleted_names_are_free, |store| async {
    let mut all = Vec::new();
    for status in NodeStatus::ALL {
        let made = insert(&store, &format!("node of {status}")).await;
        // past the lifecycle: only the rows matter here
        let row = Node { status: *status, ..made };
        all.push(store.put(row.id.clone().as_str(), move |tx| node::save(tx, &row)).await.expect("saves"));
    }
    for view in View::ALL {
        let shown =
            store.read(move |tx| node::list(tx, &node::FILTER.parse("")?, Some(view), "", 100)).await.expect("lists");
        let wanted: Vec<_> = all.iter().filter(|n| n.status.view() == view).cloned().collect();
        assert_eq!(shown, wanted, "{view:?}");
    }
    let first = store.read(|tx| node::list(tx, &node::FILTER.parse("")?, None, "", 4)).await.expect("lists");
    let after = first.last().expect("four").id.to_string();
    let rest = store.read(move |tx| node::list(tx, &node::FILTER.parse("")?, None, &after, 100)).await.expect("lists");
    assert_eq!([first, rest].concat(), all, "page by page, in order");
    assert!(store.read(|tx| tx.point(&node::by_name("node of deleted"))).await.expect("reads").is_none());
    insert(&store, "node of deleted").await;
    let row = new_node(&store, "node of active");
    let twice = store
        .put(row.id.clone().as_str(), move |tx| node::insert(tx, &row, &Cause::operator("tester", nodes::ISSUED, "")))
        .await;
    assert!(twice.is_err(), "one name, one node: {twice:?}");
});

on_every_store!(busy_nodes_without_a_job_are_found, |store| async {
    let mut wanted = Vec::new();
    for status in NodeStatus::ALL {
        let made = insert(&store, &format!("node of {status}")).await;
        let row = Node { status: *status, ..made };
        if matches!(status, NodeStatus::Enrolling | NodeStatus::Draining | NodeStatus::Removing) {
            wanted.push(row.id.clone());
        }
        store.put(row.id.clone().as_str(), move |tx| node::save(tx, &row)).await.expect("saves");
    }
    wanted.sort();
    assert_eq!(store.read(|tx| node::orphans(tx, "", 10)).await.expect("reads"), wanted);
    let after = wanted[0].to_string();
    let rest = store.read(move |tx| node::orphans(tx, &after, 1)).await.expect("reads");
    assert_eq!(rest, wanted[1..2]);
});

on_every_store!(machines_are_found_by_what_their_hardware_says, |store| async {
    let specs = [
        ("m-serial", "SER1", "", ""),
        ("m-uuid", "", "4d570000-0001-4002-8000-5254004d5800", ""),
        ("m-mac", "", "", "52:54:00:4d:59:01"),
        ("m-other", "SER9", "", ""),
    ];
    for (id, serial, uuid, mac) in specs {
        let spec = MachineSpec {
            serial_number: serial.to_owned(),
            system_uuid: uuid.to_owned(),
            mac_addresses: if mac.is_empty() { vec![] } else { vec![mac.to_owned()] },
            ..MachineSpec::default()
        };
        store.put(id, move |tx| register(tx, &machine_id(id), &spec, &Labels::new())).await.expect("registers");
    }
    let facts = HardwareFacts {
        serial_number: "ser1".to_owned(),
        // in the other byte order, as some firmware tells it
        system_uuid: "0000574D-0100-0240-8000-5254004D5800".to_owned(),
        macs: vec![MacAddress::from_text("52:54:00:4d:59:01")],
    };
    let found = store.read(move |tx| node::holders(tx, &facts)).await.expect("reads");
    assert_eq!(found, ["m-mac", "m-serial", "m-uuid"].map(machine_id));
    let nobody = HardwareFacts { serial_number: "0".to_owned(), ..HardwareFacts::default() };
    assert_eq!(store.read(move |tx| node::holders(tx, &nobody)).await.expect("reads"), []);
});

on_every_store!(fences_of_a_node_rise_and_are_no_news, |store| async {
    let made = insert(&store, "alpha").await;
    let mut last = 0;
    for _ in 0..3 {
        let id = made.id.clone();
        let fence =
            store.write(&tester(), made.id.as_str(), move |tx| node::raise_fence(tx, &id)).await.expect("raises");
        assert!(fence > last);
        last = fence;
    }
    let there = get(&store, &made.id).await;
    assert_eq!((there.version, there.task_fence), (made.version, last));
});
