//! Nodes as operators have them over REST: made with a bundle that is shown once, listed by view, acted on by status.

use crate::doors_nodes::node;
use crate::world::World;
use domain::NodeId;
use domain::agent::IdentityState;
use domain::lifecycle::State as _;
use domain::node::NodeStatus;
use serde_json::{Value, json};
use testkit::fleet::eventually;
use testkit::nodes;

async fn act(world: &World, id: &str, verb: &str, body: Value) -> crate::client::Answer {
    world.http.post(&format!("/api/v1/admin/nodes/{id}/{verb}"), &body).await
}

fn because() -> Value {
    json!({ "reason": "a test" })
}

async fn status(world: &World, id: &str) -> String {
    world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok()["status"].as_str().expect("a status").to_owned()
}

// DESIGN: secrets are shown once; an idempotent replay returns the resource without it
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_shown_once_and_is_enough_to_enrol_with() {
    let world = World::new().await;
    let key = [("X-Idempotency-Key", "k-1"), ("Content-Type", "application/json")];
    let authorization = format!("Bearer {}", world.http.token);
    let headers = [("Authorization", authorization.as_str()), key[0], key[1]];
    let body = json!({ "name": "gpu-1", "bundle_seconds": 3600 }).to_string();
    let first = world.http.send("POST", "/api/v1/admin/nodes", &headers, body.as_bytes()).await.ok();
    let bundle: Value = serde_json::from_str(first["secret_bundle"].as_str().expect("a bundle")).expect("JSON");
    assert_eq!(bundle["node_id"], first["node"]["id"]);
    for field in ["server", "token", "authority_pem", "expires_at"] {
        assert!(bundle[field].is_string(), "{bundle}");
    }
    assert_eq!((first["reason"].as_str(), first["done"].as_bool()), (Some(""), Some(true)));
    assert_eq!(first["node"]["status"], "bootstrap_issued");
    let again = world.http.send("POST", "/api/v1/admin/nodes", &headers, body.as_bytes()).await.ok();
    assert_eq!(again["node"]["id"], first["node"]["id"]);
    assert_eq!((again["secret_bundle"].as_str(), again["reason"].as_str()), (Some(""), Some("SECRET_ALREADY_SHOWN")));
    // its token is nowhere but in that answer
    let token = bundle["token"].as_str().expect("a token");
    let shown = world.http.get("/api/v1/admin/nodes/gpu-1").await.text();
    let told = world.http.get("/api/v1/audit").await.text();
    assert!(!shown.contains(token) && !told.contains(token));
    // the name is taken until the node is deleted
    let taken = world.http.post("/api/v1/admin/nodes", &json!({ "name": "gpu-1" })).await.refused(409, "NODE_EXISTS");
    assert_eq!(taken["details"]["node_id"], first["node"]["id"]);
    let id = NodeId::from_text(first["node"]["id"].as_str().expect("an id"));
    nodes::bring(world.api.server.service.store(), &id, NodeStatus::Deleted).await;
    let anew = world.http.post("/api/v1/admin/nodes", &json!({ "name": "gpu-1" })).await.ok();
    assert_ne!(anew["node"]["id"], first["node"]["id"], "a deleted identity never comes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_one_machine_at_most_and_a_machine_one_node() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let new = |name: &str, machine: &str| json!({ "name": name, "machine_id": machine });
    let made = world.http.post("/api/v1/admin/nodes", &new("gpu-1", "m-1")).await.ok();
    assert_eq!(made["node"]["machine_id"], "m-1");
    let second = world.http.post("/api/v1/admin/nodes", &new("gpu-2", "m-1")).await.refused(409, "IDENTITY_TAKEN");
    assert_eq!(second["details"]["node_id"], made["node"]["id"]);
    world.http.post("/api/v1/admin/nodes", &new("gpu-2", "m-9")).await.refused(404, "MACHINE_NOT_FOUND");
    for (field, bad) in [
        ("name", json!({ "name": "" })),
        ("name", json!({ "name": "a b" })),
        ("name", json!({ "name": "nod_1" })),
        ("bundle_seconds", json!({ "name": "x", "bundle_seconds": 1 })),
        ("bundle_seconds", json!({ "name": "x", "bundle_seconds": -5 })),
    ] {
        let refused = world.http.post("/api/v1/admin/nodes", &bad).await.refused(400, "INVALID_FIELD");
        assert_eq!(refused["details"]["field"], field, "{bad}");
    }
    // after its removal the machine may be enrolled again, as another node
    let id = NodeId::from_text(made["node"]["id"].as_str().expect("an id"));
    nodes::bring(world.api.server.service.store(), &id, NodeStatus::Deleted).await;
    let anew = world.http.post("/api/v1/admin/nodes", &new("gpu-1", "m-1")).await.ok();
    assert_ne!(anew["node"]["id"], made["node"]["id"]);
}

// T-12: expiry is an attribute, and re-issue stays in bootstrap_issued
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_has_expired_is_issued_again_and_the_node_stays_where_it_is() {
    let world = World::new().await;
    let made = world.http.post("/api/v1/admin/nodes", &json!({ "name": "gpu-1", "bundle_seconds": 60 })).await.ok();
    assert_eq!(made["node"]["lifecycle"]["recommended_next_action"], "wait");
    world.api.server.fleet.pass(std::time::Duration::from_secs(61));
    let expired = world.http.get("/api/v1/admin/nodes/gpu-1").await.ok();
    assert_eq!(expired["lifecycle"]["recommended_next_action"], "rebootstrap");
    let preview = act(&world, "gpu-1", "rebootstrap", json!({ "dry_run": true })).await.ok();
    assert_eq!((preview["done"].as_bool(), preview["reason"].as_str()), (Some(false), Some("DRY_RUN")));
    assert_eq!(preview["secret_bundle"], "");
    let again = act(&world, "gpu-1", "rebootstrap", json!({})).await.ok();
    assert_ne!(again["secret_bundle"], made["secret_bundle"]);
    let node = &again["node"];
    assert_eq!((node["status"].as_str(), node["agent_mode"].as_str()), (Some("bootstrap_issued"), Some("keep")));
    assert_ne!(node["bundle_expires_at"], made["node"]["bundle_expires_at"]);
    // of one that has an agent, another key is wished for
    let active = node_with(&world, "gpu-2", NodeStatus::Active).await;
    let node = act(&world, &active, "rebootstrap", json!({})).await.ok()["node"].clone();
    assert_eq!((node["status"].as_str(), node["agent_mode"].as_str()), (Some("active"), Some("rebootstrap")));
}

async fn node_with(world: &World, name: &str, status: NodeStatus) -> String {
    node(world, name, status).await
}

// T-10: the inventory shows coarse states only
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_shows_the_view_that_was_asked_for() {
    let world = World::new().await;
    for status in NodeStatus::ALL.iter().copied() {
        node(&world, &format!("n-{}", status.as_str().replace('_', "-")), status).await;
    }
    let statuses = async |query: &str| {
        let listed = world.http.get(&format!("/api/v1/admin/nodes{query}")).await.ok();
        let mut all: Vec<String> = listed["nodes"]
            .as_array()
            .expect("nodes")
            .iter()
            .map(|n| {
                assert_eq!(n["lifecycle"], Value::Null, "an inventory has no micro-states");
                n["status"].as_str().expect("a status").to_owned()
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(statuses("").await, ["active", "offline", "quarantined", "removing", "retired"]);
    assert_eq!(statuses("?view=inventory").await, statuses("").await);
    assert_eq!(statuses("?view=in_progress").await, ["bootstrap_issued", "draining", "enrolling"]);
    assert_eq!(statuses("?view=archive").await, ["deleted"]);
    assert_eq!(statuses("?view=all").await.len(), 9);
    assert_eq!(statuses("?filter=status%3Ddraining").await, ["draining"], "a filter by status looks at all");
    assert!(statuses("?filter=status%3Ddraining&view=inventory").await.is_empty());
    world.http.get("/api/v1/admin/nodes?view=sideways").await.refused(400, "INVALID_FIELD");
    // page by page it is the same
    let first = world.http.get("/api/v1/admin/nodes?page_size=3").await.ok();
    let token = first["next_page_token"].as_str().expect("a token");
    let second = world.http.get(&format!("/api/v1/admin/nodes?page_size=3&page_token={token}")).await.ok();
    assert_eq!(second["nodes"].as_array().map(Vec::len), Some(2));
    world
        .http
        .get(&format!("/api/v1/admin/nodes?view=all&page_token={token}"))
        .await
        .refused(400, "INVALID_PAGE_TOKEN");
}

// N-9.2: the six fields, of a node with and without a job
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_has_the_six_fields_of_its_lifecycle_always() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for status in NodeStatus::ALL.iter().copied() {
        ids.push(node(&world, &format!("n-{}", status.as_str().replace('_', "-")), status).await);
    }
    let drained = node(&world, "drained", NodeStatus::Active).await;
    act(&world, &drained, "drain", json!({})).await.ok();
    ids.push(drained);
    for id in ids {
        let shown = world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok();
        let lifecycle = &shown["lifecycle"];
        for field in [
            "workflow_state",
            "current_stage",
            "failure_class",
            "last_observed_state",
            "recommended_next_action",
            "message",
        ] {
            assert!(lifecycle[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {shown}");
        }
        assert!(lifecycle["attempt_count"].is_u64(), "{shown}");
    }
}

/// What every action comes to, by the status of a node with a good agent and no job.
fn expected(action: &str, status: NodeStatus) -> Result<&'static str, &'static str> {
    use NodeStatus::{Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired};
    let refused = Err("ACTION_NOT_ALLOWED");
    let stays = Ok(status.as_str());
    match (action, status) {
        (_, Deleted) => refused,
        ("cordon" | "uncordon" | "revoke", _) => stays,
        ("rebootstrap", Removing) => refused,
        ("rebootstrap", _) => stays,
        ("drain", Active | Offline | Quarantined | Draining) => Ok("draining"),
        ("drain", Retired) => stays,
        ("remove", Retired | Removing) => Ok("removing"),
        ("quarantine", Active | Offline | Enrolling | Quarantined) => Ok("quarantined"),
        ("recover", Quarantined | Active) => Ok("active"),
        ("reactivate", Retired) => Ok("offline"),
        ("reactivate", Offline | Active) => stays,
        ("resume", Enrolling | Draining | Removing) => stays,
        (_, _) => refused,
    }
}

// every action in every status: done or refused with what is allowed instead; a preview judges alike and does nothing
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_action_in_every_status_is_done_or_refused_with_the_alternatives() {
    let world = World::new().await;
    let mut number = 0;
    for action in domain::node_action::NodeAction::ALL {
        let verb = action.as_str();
        for before in NodeStatus::ALL.iter().copied() {
            number += 1;
            let id = node(&world, &format!("n-{number}"), before).await;
            let before_it = world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok();
            let preview = act(&world, &id, verb, json!({ "reason": "a test", "dry_run": true })).await;
            assert_eq!(
                world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok(),
                before_it,
                "a preview did {verb}"
            );
            let done = act(&world, &id, verb, because()).await;
            // this one has no agent: what concerns its identity is another matter
            let nobody = before == NodeStatus::BootstrapIssued && matches!(verb, "repair" | "revoke");
            match expected(verb, before) {
                Ok(after) => {
                    let (preview, done) = (preview.ok(), done.ok());
                    assert_eq!(preview["done"], false);
                    assert_eq!(preview["effect"], done["effect"], "{verb} of {before}");
                    assert!(done["effect"].as_str().is_some_and(|text| !text.is_empty()));
                    // its job may be further on by now
                    let gone_on = matches!(verb, "drain" | "remove" | "resume");
                    assert!(done["node"]["status"] == after || gone_on, "{verb} of {before}: {done}");
                }
                Err(reason) => {
                    let (preview, refused) = (preview.refused(409, reason), done.refused(409, reason));
                    assert_eq!(preview, refused, "{verb} of {before}");
                    let allowed = refused["allowed"].as_array().expect("a list");
                    assert_eq!(allowed.is_empty(), before == NodeStatus::Deleted, "{refused}");
                    assert!(!allowed.contains(&json!(verb)) || nobody, "{refused}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_grave_needs_a_reason() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    for verb in ["quarantine", "recover", "repair", "revoke"] {
        let refused = act(&world, &id, verb, json!({ "reason": "  " })).await.refused(400, "INVALID_FIELD");
        assert_eq!(refused["details"]["field"], "reason", "{verb}");
    }
    for verb in ["cordon", "uncordon", "drain"] {
        act(&world, &id, verb, json!({})).await.ok();
    }
}

// T-33: a cordon changes no status; schedulable says why not
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_keeps_work_off_and_changes_no_status() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let free = world.http.get("/api/v1/admin/nodes/gpu-1").await.ok();
    assert_eq!((free["schedulable"].as_bool(), free["unschedulable_because"].as_str()), (Some(true), Some("")));
    let cordoned = act(&world, &id, "cordon", json!({ "reason": "fan noise" })).await.ok()["node"].clone();
    assert_eq!((cordoned["status"].as_str(), cordoned["schedulable"].as_bool()), (Some("active"), Some(false)));
    assert_eq!(
        (cordoned["cordoned_by"].as_str(), cordoned["cordon_reason"].as_str()),
        (Some("tester"), Some("fan noise"))
    );
    assert!(cordoned["unschedulable_because"].as_str().is_some_and(|text| text.contains("fan noise")));
    let again = act(&world, &id, "cordon", json!({ "reason": "other" })).await.ok()["node"].clone();
    assert_eq!(again["cordon_reason"], "fan noise", "again: no change");
    let free = act(&world, &id, "uncordon", json!({})).await.ok()["node"].clone();
    assert_eq!((free["cordoned"].as_bool(), free["schedulable"].as_bool()), (Some(false), Some(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_given_again_goes_by_the_sites_heartbeats_too() {
    let world = World::new().await;
    // nobody is ever heard of recently enough
    let heartbeat = domain::agent::HeartbeatPolicy { lost_after: std::time::Duration::ZERO, ..Default::default() };
    world.api.server.service.serves_agents(service::agents::AgentSetup { heartbeat, ..Default::default() });
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let path = format!("/api/v1/admin/nodes/{id}/cordon");
    let headers = [("X-Idempotency-Key", "k-1"), ("Content-Type", "application/json")];
    for time in ["at first", "again"] {
        let answer = world.http.send("POST", &path, &headers, br#"{"reason":"fan noise"}"#).await.ok();
        assert_eq!(answer["node"]["cordon_reason"], "fan noise", "{time}");
        assert_eq!(answer["node"]["agent"]["connected"], false, "{time}: {answer}");
    }
}

// T-44: quarantine sets the machine's condition, by the reconciler's edge with the operator as its actor; recover clears it
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_is_said_by_the_machine_too_and_ends_with_it() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let made = world.http.post("/api/v1/admin/nodes", &json!({ "name": "gpu-1", "machine_id": "m-1" })).await.ok();
    let id = NodeId::from_text(made["node"]["id"].as_str().expect("an id"));
    let store = world.api.server.service.store();
    nodes::enrol(store, &id, 1).await;
    nodes::bring(store, &id, NodeStatus::Active).await;
    act(&world, "gpu-1", "quarantine", json!({ "reason": "ECC errors" })).await.ok();
    let condition = world.api.condition("m-1", "NeedsIntervention").await.expect("a condition");
    assert!(condition.status && condition.message.contains("ECC errors"), "{condition:?}");
    let history = world.http.get("/api/v1/admin/nodes/gpu-1/history?limit=1").await.ok();
    let row = &history["data"][0];
    assert_eq!(
        (row["to"].as_str(), row["owner"].as_str(), row["actor"].as_str(), row["comment"].as_str()),
        (Some("quarantined"), Some("reconciler"), Some("tester"), Some("ECC errors"))
    );
    // one beat is not several
    let refused = act(&world, "gpu-1", "recover", because()).await.refused(409, "ACTION_NOT_ALLOWED");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("heartbeat is not steady")), "{refused}");
    nodes::enrol(store, &id, 3).await;
    let back = act(&world, "gpu-1", "recover", because()).await.ok()["node"].clone();
    assert_eq!(back["status"], "active");
    assert!(!world.api.needs_intervention("m-1").await);
    // by itself the condition quarantines nobody
    assert_eq!(status(&world, "gpu-1").await, "active");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_taken_back_repaired_and_never_reactivated_without() {
    let world = World::new().await;
    let store = world.api.server.service.store();
    let retired = node(&world, "gpu-1", NodeStatus::Retired).await;
    let id = NodeId::from_text(retired.as_str());
    nodes::set_identity(store, &id, IdentityState::Suspended).await;
    let node = act(&world, &retired, "repair", because()).await.ok()["node"].clone();
    assert_eq!(node["agent_mode"], "repair");
    act(&world, &retired, "revoke", because()).await.ok();
    let identity = nodes::identity(store, &id).await.expect("an identity");
    assert_eq!(identity.state, IdentityState::Revoked);
    assert!(identity.state_reason.contains("a test"), "{}", identity.state_reason);
    let refused = act(&world, &retired, "reactivate", json!({})).await.refused(409, "ACTION_NOT_ALLOWED");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("rebootstrap")), "{refused}");
    act(&world, &retired, "repair", because()).await.refused(409, "ACTION_NOT_ALLOWED");
    assert_eq!(act(&world, &retired, "revoke", because()).await.ok()["node"]["status"], "retired", "again: no change");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_followed_change_by_change() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let mut events = world.http.events(&format!("/api/v1/admin/nodes/{id}/watch"), &[]).await;
    assert_eq!(events.next().await.expect("as it is").data["status"], "active");
    // to be heard of is no news
    nodes::enrol(world.api.server.service.store(), &NodeId::from_text(id.as_str()), 10).await;
    act(&world, &id, "cordon", json!({ "reason": "a look" })).await.ok();
    let mut last = Value::Null;
    while last["cordoned"] != true {
        last = events.next().await.expect("each change").data;
    }
    assert_eq!(last["cordon_reason"], "a look");
}

// T-25, T-37: what serves as a node is neither retired past it nor met by a run
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_serves_as_a_node_is_in_use() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let made = world.http.post("/api/v1/admin/nodes", &json!({ "name": "gpu-1", "machine_id": "m-1" })).await.ok();
    let id = NodeId::from_text(made["node"]["id"].as_str().expect("an id"));
    let store = world.api.server.service.store();
    nodes::enrol(store, &id, 9).await;
    let card = json!({ "mac_address": "52:54:00:4d:59:07", "machine_id": "m-1" });
    let boot = world.http.post("/api/v1/nodes", &card).await.ok()["id"].as_str().expect("an id").to_owned();
    let shown = world.http.get("/api/v1/admin/nodes/gpu-1").await.ok();
    assert_eq!(shown["boot_node_id"], boot.as_str());
    let gone = format!("/api/v1/nodes/{boot}");
    let retire = || world.http.send("DELETE", &gone, &[], b"");
    nodes::bring(store, &id, NodeStatus::Active).await;
    let refused = retire().await.refused(409, "MACHINE_IN_USE");
    assert_eq!(refused["details"]["node_id"], id.as_str(), "{refused}");
    // a run beside it is allowed until a job holds it
    let drained = act(&world, "gpu-1", "drain", json!({})).await.ok();
    let job = drained["job"]["id"].as_str().expect("a job").to_owned();
    let run = json!({ "request_id": "r-1", "machine_id": "m-1", "type": "REBOOT" });
    let held = world.http.post("/api/v1/runs", &run).await.refused(409, "MACHINE_HELD");
    assert_eq!(held["details"]["job_id"], job.as_str());
    assert!(held["message"].as_str().is_some_and(|text| text.contains(&job)), "{held}");
    crate::node_jobs::as_its_agent(&world, id.as_str(), true).await;
    eventually("the node to be retired", || async { (status(&world, "gpu-1").await == "retired").then_some(()) }).await;
    retire().await.ok();
}
