//! One action on many: bounded, several at a time, each with its result, the whole repeatable.

use crate::client::Http;
use crate::doors_nodes::node;
use crate::world::World;
use domain::node::NodeStatus;
use serde_json::{Value, json};

async fn keyed(http: &Http, path: &str, key: &str, body: &Value) -> Value {
    let authorization = format!("Bearer {}", http.token);
    let headers =
        [("Authorization", authorization.as_str()), ("X-Idempotency-Key", key), ("Content-Type", "application/json")];
    http.send("POST", path, &headers, body.to_string().as_bytes()).await.ok()
}

const NODES: &str = "/api/v1/admin/nodes:act";

fn counts(answer: &Value) -> [u64; 3] {
    ["done", "refused", "untried"].map(|name| answer[name].as_u64().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_action_goes_to_all_that_a_filter_finds_each_by_itself() {
    let world = World::new().await;
    for i in 0..6 {
        node(&world, &format!("n-{i}"), NodeStatus::Active).await;
    }
    let retired = node(&world, "old", NodeStatus::Retired).await;
    let wish = json!({ "filter": "status=active OR status=retired", "action": "quarantine", "reason": "row 3", "concurrency": 3 });
    let mut preview = wish.clone();
    preview["dry_run"] = json!(true);
    let told = world.http.post(NODES, &preview).await.ok();
    assert_eq!(counts(&told), [6, 1, 0]);
    let listed = async |filter: &str| {
        let listed = world.http.get(&format!("/api/v1/admin/nodes?view=all&filter={filter}")).await.ok();
        listed["nodes"].as_array().map(Vec::len).expect("a list")
    };
    assert_eq!(listed("status%3Dquarantined").await, 0, "a preview does nothing");
    let done = world.http.post(NODES, &wish).await.ok();
    assert_eq!(counts(&done), [6, 1, 0]);
    let refused: Vec<&Value> =
        done["results"].as_array().expect("results").iter().filter(|r| r["ok"] == false).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(
        (refused[0]["id"].as_str(), refused[0]["reason"].as_str(), refused[0]["tried"].as_bool()),
        (Some(retired.as_str()), Some("ACTION_NOT_ALLOWED"), Some(true))
    );
    assert_eq!(listed("status%3Dquarantined").await, 6);
    // one request id for the whole: each part is on record under it
    let request = done["request_id"].as_str().expect("an id");
    let filter = format!("request_id%3D%22{request}%22%20AND%20outcome%3Ddone");
    let audit = world.http.get(&format!("/api/v1/audit?filter={filter}")).await.ok();
    assert_eq!(audit["entries"].as_array().map(Vec::len), Some(6), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_no_other_is_begun_where_that_is_wished() {
    let world = World::new().await;
    for i in 0..8 {
        let status = if i == 2 { NodeStatus::Retired } else { NodeStatus::Active };
        node(&world, &format!("n-{i}"), status).await;
    }
    let wish = json!({ "filter": "NOT status=deleted", "action": "quarantine", "reason": "a test", "concurrency": 1, "stop_on_failure": true });
    let answer = world.http.post(NODES, &wish).await.ok();
    assert_eq!(counts(&answer), [2, 1, 5]);
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 8, "those that were not tried are listed, too");
    assert!(results[3..].iter().all(|r| r["tried"] == false && r["ok"] == false && r["message"] != ""), "{results:?}");
    for result in &results[3..] {
        let id = result["id"].as_str().expect("an id");
        assert_eq!(world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok()["status"], "active");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_again_is_about_the_same_ones() {
    let world = World::new().await;
    for i in 0..3 {
        node(&world, &format!("n-{i}"), NodeStatus::Active).await;
    }
    // what was quarantined is found by this filter no longer
    let wish = json!({ "filter": "status=active", "action": "quarantine", "reason": "a test" });
    let first = keyed(&world.http, NODES, "k-1", &wish).await;
    assert_eq!(counts(&first), [3, 0, 0]);
    node(&world, "later", NodeStatus::Active).await;
    let again = keyed(&world.http, NODES, "k-1", &wish).await;
    assert_eq!(again["results"], first["results"]);
    assert_eq!(world.http.get("/api/v1/admin/nodes/later").await.ok()["status"], "active");
    let other = keyed(&world.http, NODES, "k-2", &wish).await;
    assert_eq!(counts(&other), [1, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_meant_must_be_said_and_is_bounded() {
    let world = World::new().await;
    for (field, bad) in [
        ("filter", json!({ "action": "cordon" })),
        ("filter", json!({ "filter": "  ", "action": "cordon" })),
        ("action", json!({ "filter": "status=active", "action": "dance" })),
        // a bundle is a secret, and an identity one node's
        ("action", json!({ "filter": "status=active", "action": "rebootstrap" })),
        ("action", json!({ "filter": "status=active", "action": "revoke", "reason": "x" })),
        ("reason", json!({ "filter": "status=active", "action": "quarantine" })),
        ("concurrency", json!({ "filter": "status=active", "action": "cordon", "concurrency": 17 })),
    ] {
        let refused = world.http.post(NODES, &bad).await.refused(400, "INVALID_FIELD");
        assert_eq!(refused["details"]["field"], field, "{bad}");
    }
    world.http.post(NODES, &json!({ "filter": "colour=red", "action": "cordon" })).await.refused(400, "INVALID_FILTER");
    let none = world.http.post(NODES, &json!({ "filter": "status=active", "action": "cordon" })).await.ok();
    assert_eq!(counts(&none), [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_acted_on_in_bulk_as_well() {
    let world = World::new().await;
    for i in 0..3 {
        node(&world, &format!("n-{i}"), NodeStatus::BootstrapIssued).await;
        world.http.post("/api/v1/admin/onboardings", &json!({ "node_id": format!("n-{i}") })).await.ok();
    }
    let wish = json!({ "filter": "kind=onboarding", "action": "cancel" });
    let done = world.http.post("/api/v1/admin/jobs:act", &wish).await.ok();
    assert_eq!(counts(&done), [3, 0, 0]);
    testkit::fleet::eventually("all to be cancelled", || async {
        let left = world.http.get("/api/v1/admin/jobs?filter=NOT%20status%3Dcancelled").await.ok();
        left["jobs"].as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
    let again = world.http.post("/api/v1/admin/jobs:act", &wish).await.ok();
    assert_eq!(counts(&again), [0, 3, 0], "what has ended is refused, each by itself");
}
