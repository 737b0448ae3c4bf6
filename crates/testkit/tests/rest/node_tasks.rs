//! Tasks as operators have them over REST: ordered by hand, read while they print, taken back.

use crate::doors_nodes::node;
use crate::world::World;
use base64::Engine as _;
use domain::node::NodeStatus;
use domain::{NodeId, TaskId};
use prost_reflect::prost::Message as _;
use proto::agent::v1::task::Kind;
use serde_json::{Value, json};
use testkit::fleet::eventually;
use testkit::nodes;

async fn order(world: &World, node: &str, body: Value) -> crate::client::Answer {
    world.http.post(&format!("/api/v1/admin/nodes/{node}/tasks"), &body).await
}

fn id_of(answer: &Value) -> String {
    answer["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_for_an_agent_that_is_there_and_free() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let reboot = json!({ "kind": "host.reboot", "reason": "new kernel" });
    let task = order(&world, "gpu-1", reboot.clone()).await.ok();
    assert_eq!(
        (task["status"].as_str(), task["job_id"].as_str(), task["ordered_by"].as_str()),
        (Some("queued"), Some(""), Some("tester"))
    );
    let busy = order(&world, &id, reboot.clone()).await.refused(409, "ACTIVE_TASK");
    assert_eq!(busy["details"]["task_id"], task["id"]);
    // what the agent is told is what the wire has: proven by another boot than this one
    let store = world.api.server.service.store();
    let taken = nodes::take_task(store, &NodeId::from_text(id.as_str())).await.expect("a task");
    let wire = proto::agent::v1::Task::decode(taken.order.as_slice()).expect("a task of the wire");
    assert!(matches!(wire.kind, Some(Kind::HostReboot(ref r)) if r.boot_id == "boot-1"), "{wire:?}");
    let path = format!("/api/v1/admin/tasks/{}/cancel", taken.id);
    let back = world.http.post(&path, &json!({ "reason": "not now" })).await.ok();
    assert_eq!(back["status"], "expired");
    assert!(back["expired_because"].as_str().is_some_and(|text| text.contains("not now")));
    assert_eq!(world.http.post(&path, &json!({})).await.ok()["status"], "expired", "again: no change");
    // nobody is there to take one
    node(&world, "gpu-2", NodeStatus::BootstrapIssued).await;
    order(&world, "gpu-2", reboot.clone()).await.refused(409, "ACTION_NOT_ALLOWED");
    let revoked = node(&world, "gpu-3", NodeStatus::Offline).await;
    nodes::set_identity(store, &NodeId::from_text(revoked.as_str()), domain::agent::IdentityState::Revoked).await;
    order(&world, "gpu-3", reboot.clone()).await.refused(409, "AGENT_MISSING");
    // a job has it
    let held = node(&world, "gpu-4", NodeStatus::Active).await;
    let drained = world.http.post(&format!("/api/v1/admin/nodes/{held}/drain"), &json!({})).await.ok();
    let refused = order(&world, "gpu-4", reboot).await.refused(409, "NODE_HELD");
    assert_eq!(refused["details"]["job_id"], drained["job"]["id"]);
    let held = NodeId::from_text(held.as_str());
    let of_job = eventually("its task", || nodes::take_task(store, &held)).await;
    let cancel = world.http.post(&format!("/api/v1/admin/tasks/{}/cancel", of_job.id), &json!({})).await;
    assert!(
        cancel.refused(409, "ACTION_NOT_ALLOWED")["message"].as_str().is_some_and(|text| text.contains("job cancel"))
    );
    for bad in ["node.drain", "node.uninstall", "dance", ""] {
        let refused = order(&world, "gpu-1", json!({ "kind": bad })).await.refused(400, "INVALID_FIELD");
        assert_eq!(refused["allowed"].as_array().map(Vec::len), Some(3), "{refused}");
    }
}

// it is root on the fleet
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_for_administrators_only_and_goes_with_its_digest() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let script = base64::engine::general_purpose::STANDARD.encode("#!/bin/sh\nuptime\n");
    let exec = json!({ "kind": "host.exec", "script": script, "args": ["-x"] });
    let operator = json!({ "name": "op", "role": "operator" });
    let token =
        world.http.post("/api/v1/tokens", &operator).await.ok()["secret"].as_str().expect("a secret").to_owned();
    let http = crate::client::Http { url: world.http.url.clone(), token };
    let path = "/api/v1/admin/nodes/gpu-1/tasks";
    http.post(path, &exec).await.refused(403, "ROLE_TOO_LOW");
    http.post(path, &json!({ "kind": "node.validate_clean" })).await.ok();
    let store = world.api.server.service.store();
    let waiting = nodes::take_task(store, &NodeId::from_text(id.as_str())).await.expect("a task");
    nodes::end_task(store, &waiting, true).await;
    world.http.post(path, &json!({ "kind": "host.exec" })).await.refused(400, "INVALID_FIELD");
    world.http.post(path, &json!({ "kind": "host.reboot", "script": script })).await.refused(400, "INVALID_FIELD");
    world.http.post(path, &exec).await.ok();
    let taken = nodes::take_task(store, &NodeId::from_text(id.as_str())).await.expect("a task");
    let wire = proto::agent::v1::Task::decode(taken.order.as_slice()).expect("a task of the wire");
    let Some(Kind::HostExec(sent)) = wire.kind else { panic!("{wire:?}") };
    // by sha256sum
    assert_eq!(sent.sha256, "f6f9964b54b36eca7802e3f8940913fc1a29ce98594aebe8c4a6dc8569ba3692");
    assert_eq!(
        (sent.script.as_slice(), sent.args.as_slice()),
        (b"#!/bin/sh\nuptime\n".as_slice(), ["-x".to_owned()].as_slice())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_task_prints_is_read_as_it_comes_and_gone_on_with_where_it_broke() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let task = id_of(&order(&world, "gpu-1", json!({ "kind": "node.validate_clean" })).await.ok());
    let (store, node_id, task_id) =
        (world.api.server.service.store(), NodeId::from_text(id.as_str()), TaskId::from_text(task.as_str()));
    let taken = nodes::take_task(store, &node_id).await.expect("a task");
    nodes::print(store, &node_id, &task_id, 0, "one ").await;
    let path = format!("/api/v1/admin/tasks/{task}/output");
    let text = |data: &Value| {
        let bytes =
            base64::engine::general_purpose::STANDARD.decode(data["data"].as_str().expect("data")).expect("base64");
        String::from_utf8(bytes).expect("text")
    };
    let mut events = world.http.events(&path, &[]).await;
    let first = events.next().await.expect("what is there");
    assert_eq!((text(&first.data).as_str(), first.id), ("one ", Some(4)));
    nodes::print(store, &node_id, &task_id, 4, "two ").await;
    let second = events.next().await.expect("what comes");
    assert_eq!((text(&second.data).as_str(), second.id), ("two ", Some(8)));
    // after a break: from the last piece that was heard, and also from the middle of one
    nodes::print(store, &node_id, &task_id, 8, "three").await;
    nodes::end_task(store, &taken, true).await;
    let rest = events.rest().await;
    assert_eq!(rest.iter().filter(|e| e.name != "end").map(|e| text(&e.data)).collect::<String>(), "three");
    let resumed = world.http.events(&path, &[("Last-Event-ID", "8")]).await.rest().await;
    assert_eq!(resumed.iter().filter(|e| e.name != "end").map(|e| text(&e.data)).collect::<String>(), "three");
    let middle = world.http.events(&format!("{path}?after_offset=6"), &[]).await.rest().await;
    assert_eq!(middle.iter().filter(|e| e.name != "end").map(|e| text(&e.data)).collect::<String>(), "o three");
    world.http.get(&format!("{path}?after_offset=99")).await.refused(400, "SEQUENCE_OUT_OF_RANGE");
    let authorization = format!("Bearer {}", world.http.token);
    let plain = [("Accept", "text/plain"), ("Authorization", authorization.as_str())];
    assert_eq!(world.http.send("GET", &path, &plain, b"").await.text(), "one two three");
    let shown = world.http.get(&format!("/api/v1/admin/tasks/{task}")).await.ok();
    assert_eq!((shown["status"].as_str(), shown["output_bytes"].as_str()), (Some("done"), Some("13")));
    assert_eq!(
        (shown["result"]["ok"].as_bool(), shown["result"]["failure_class"].as_str()),
        (Some(true), Some("none"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_identity_is_taken_back_has_no_task_and_its_node_takes_no_work() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let shown = async || world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok();
    assert_eq!(shown().await["schedulable"], true);
    let task = id_of(&order(&world, "gpu-1", json!({ "kind": "host.reboot" })).await.ok());
    let reason = json!({ "reason": "its key was seen elsewhere" });
    world.http.post(&format!("/api/v1/admin/nodes/{id}/revoke"), &reason).await.ok();
    let after = world.http.get(&format!("/api/v1/admin/tasks/{task}")).await.ok();
    assert_eq!(after["status"], "expired", "{after}");
    assert!(after["expired_because"].as_str().is_some_and(|why| why.contains("seen elsewhere")), "{after}");
    let after = shown().await;
    assert_eq!((after["status"].as_str(), after["schedulable"].as_bool()), (Some("active"), Some(false)));
    assert!(after["unschedulable_because"].as_str().is_some_and(|why| why.contains("revoked")), "{after}");
    // in lists, too
    let listed = world.http.get("/api/v1/admin/nodes").await.ok();
    assert_eq!(listed["nodes"][0]["schedulable"], false, "{listed}");
}
