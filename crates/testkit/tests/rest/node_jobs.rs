//! Jobs as operators have them over REST: begun, followed, stopped, gone on with; with a test that speaks as the agent.

use crate::doors_nodes::node;
use crate::world::World;
use domain::NodeId;
use domain::job_action::JobAction;
use domain::node::NodeStatus;
use serde_json::{Value, json};
use testkit::fleet::eventually;
use testkit::nodes;

/// Takes the task that comes for a node, and says how it ended.
pub async fn as_its_agent(world: &World, node: &str, ok: bool) -> String {
    let (store, node) = (world.api.server.service.store(), NodeId::from_text(node));
    let task = eventually("a task for the agent", || nodes::take_task(store, &node)).await;
    nodes::end_task(store, &task, ok).await;
    task.kind.as_str().to_owned()
}

async fn job(world: &World, id: &str) -> Value {
    world.http.get(&format!("/api/v1/admin/jobs/{id}")).await.ok()
}

async fn until(world: &World, id: &str, status: &str) -> Value {
    eventually("the job's status", || async {
        let job = job(world, id).await;
        (job["status"] == status).then_some(job)
    })
    .await
}

async fn act(world: &World, id: &str, action: &str, body: Value) -> crate::client::Answer {
    world.http.post(&format!("/api/v1/admin/jobs/{id}/actions/{action}"), &body).await
}

fn id_of(answer: &Value) -> String {
    answer["id"].as_str().expect("an id").to_owned()
}

/// The six fields, the stages and the offers: never empty.
fn is_whole(job: &Value) {
    for field in
        ["status", "stage", "failure_class", "last_observed_state", "recommended_action", "recommended_because"]
    {
        assert!(job[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {job}");
    }
    assert!(job["attempt"].as_u64().is_some_and(|n| n > 0), "{job}");
    for stage in job["stages"].as_array().expect("stages") {
        let state = stage["state"].as_str().expect("a state");
        assert!(["waiting", "running", "done", "adopted", "failed"].contains(&state), "{stage}");
    }
    let offers = job["actions"].as_array().expect("offers");
    assert_eq!(offers.len(), JobAction::ALL.len());
    for offer in offers {
        let (allowed, effect) = (offer["allowed"].as_bool(), offer["effect"].as_str().unwrap_or_default());
        assert_eq!(allowed, Some(!effect.is_empty()), "{offer}");
        assert_eq!(allowed, Some(offer["not_because"] == ""), "{offer}");
    }
}

// N-8-12..17: pressed twice, a drain is one job with one task; what failed is gone on with
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_is_pressed_twice_is_one_job_and_one_task() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let path = format!("/api/v1/admin/nodes/{id}/drain");
    let nothing = json!({});
    let (one, two) = tokio::join!(world.http.post(&path, &nothing), world.http.post(&path, &nothing));
    let (one, two) = (one.ok(), two.ok());
    let drained = id_of(&one["job"]);
    assert_eq!(two["job"]["id"], drained.as_str(), "both are about the one job");
    is_whole(&one["job"]);
    let store = world.api.server.service.store();
    let node_id = NodeId::from_text(id.as_str());
    let task = eventually("its task", || nodes::take_task(store, &node_id)).await;
    // a live lease is left alone
    let again = world.http.post(&path, &json!({})).await.ok();
    assert!(again["effect"].as_str().is_some_and(|text| text.contains("under way")), "{again}");
    let tasks = world.http.get(&format!("/api/v1/admin/tasks?filter=job_id%3D{drained}")).await.ok();
    assert_eq!(tasks["tasks"].as_array().map(Vec::len), Some(1), "{tasks}");
    let shown = job(&world, &drained).await;
    assert_eq!((shown["task"]["id"].as_str(), shown["stage"].as_str()), (Some(task.id.as_str()), Some("drain_node")));
    nodes::end_task(store, &task, true).await;
    let done = until(&world, &drained, "completed").await;
    is_whole(&done);
    assert_eq!(done["recommended_action"], "none");
    assert!(done["stages"].as_array().expect("stages").iter().all(|s| s["state"] == "done"), "{done}");
    let shown = world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok();
    assert_eq!((shown["status"].as_str(), shown["cordoned"].as_bool()), (Some("retired"), Some(false)));
    // and once more: it is so already
    let again = world.http.post(&path, &json!({})).await.ok();
    assert_eq!((again["node"]["status"].as_str(), &again["job"]), (Some("retired"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_followed_stage_by_stage_and_the_stream_ends_with_it() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Retired).await;
    let removal = world.http.post(&format!("/api/v1/admin/nodes/{id}/remove"), &json!({})).await.ok();
    let job = id_of(&removal["job"]);
    let mut events = world.http.events(&format!("/api/v1/admin/jobs/{job}/watch"), &[]).await;
    let first = events.next().await.expect("as it is").data;
    assert_eq!(first["id"], job.as_str());
    assert_eq!(as_its_agent(&world, &id, true).await, "node.uninstall");
    let mut last = first;
    let mut stages = Vec::new();
    while let Some(event) = events.next().await {
        if event.name == "end" {
            break;
        }
        last = event.data;
        stages.push(last["stage"].as_str().expect("a stage").to_owned());
    }
    assert_eq!(last["status"], "completed", "{last}");
    assert!(stages.contains(&"remove_gpuaas_node_record".to_owned()), "{stages:?}");
    let shown = world.http.get(&format!("/api/v1/admin/nodes/{id}")).await.ok();
    assert_eq!((shown["status"].as_str(), shown["agent"]["identity"].as_str()), (Some("deleted"), Some("revoked")));
}

// N-8, T-36: each action is judged alike by its preview, and refused with what is allowed
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_stands_still_goes_on_by_the_action_that_it_recommends() {
    let world = World::new().await;
    let id = node(&world, "gpu-1", NodeStatus::Active).await;
    let begun = json!({ "node_id": "gpu-1", "mode": "storage_cleanup", "scratch_paths": ["/scratch"], "reason": "tenant left" });
    let job_id = id_of(&world.http.post("/api/v1/admin/decommissions", &begun).await.ok());
    let store = world.api.server.service.store();
    eventually("its first task", || async { job(&world, &job_id).await["task"]["id"].as_str().map(str::to_owned) })
        .await;
    // the same wish again is the same job; another one is refused with the job's name
    let again = world.http.post("/api/v1/admin/decommissions", &begun).await.ok();
    assert_eq!(again["id"], job_id.as_str());
    let other = json!({ "node_id": id, "mode": "full_decommission" });
    let held = world.http.post("/api/v1/admin/decommissions", &other).await.refused(409, "NODE_HELD");
    assert_eq!(held["details"]["job_id"], job_id.as_str());
    let effect = act(&world, &job_id, "mark_manual_intervention_required", json!({ "reason": "wait for the tenant" }))
        .await
        .ok();
    assert_eq!(
        (effect["done"].as_bool(), effect["job"]["status"].as_str()),
        (Some(true), Some("failed_manual_intervention"))
    );
    is_whole(&effect["job"]);
    assert_eq!(effect["job"]["failure_class"], "needs_operator");
    let preview = act(&world, &job_id, "resume", json!({ "dry_run": true })).await.ok();
    assert_eq!(preview["done"], false);
    assert_eq!(job(&world, &job_id).await["status"], "failed_manual_intervention", "a preview does nothing");
    let recommended = effect["job"]["recommended_action"].as_str().expect("an action").to_owned();
    let gone_on = act(&world, &job_id, &recommended, json!({})).await.ok();
    assert_eq!(gone_on["job"]["attempt"], 2, "{gone_on}");
    // nobody's word proves a node clean that stays in service
    eventually("the stage that cleans", || async {
        (job(&world, &job_id).await["stage"] == "cleanup_storage").then_some(())
    })
    .await;
    let refused = act(&world, &job_id, "adopt_observed_state", json!({ "reason": "trust me" }))
        .await
        .refused(409, "ACTION_NOT_ALLOWED");
    assert!(refused["allowed"].as_array().is_some_and(|all| all.contains(&json!("cancel"))), "{refused}");
    let node_id = NodeId::from_text(id.as_str());
    for expected in ["node.cleanup_storage", "node.validate_clean"] {
        let task = eventually("a task for the agent", || nodes::take_task(store, &node_id)).await;
        assert_eq!(task.kind.as_str(), expected);
        nodes::end_task(store, &task, true).await;
    }
    let done = until(&world, &job_id, "completed").await;
    assert_eq!((done["kind"].as_str(), done["mode"].as_str()), (Some("decommission"), Some("storage_cleanup")));
    assert_eq!(done["parameters"]["scratch_paths"], json!(["/scratch"]));
    let refused = act(&world, &job_id, "resume", json!({})).await.refused(409, "ACTION_NOT_ALLOWED");
    assert_eq!(refused["allowed"], json!([]));
    // each step of it is in the node's history
    let history = world.http.get(&format!("/api/v1/admin/nodes/{id}/history?limit=200")).await.ok();
    let kinds: Vec<&str> =
        history["data"].as_array().expect("rows").iter().filter_map(|r| r["entity_kind"].as_str()).collect();
    assert!(["node", "job", "task"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    assert_eq!(history["total"].as_str(), Some(kinds.len().to_string().as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn onboardings_and_decommissions_are_jobs_of_their_kind_only() {
    let world = World::new().await;
    node(&world, "gpu-1", NodeStatus::BootstrapIssued).await;
    let onboarding = id_of(&world.http.post("/api/v1/admin/onboardings", &json!({ "node_id": "gpu-1" })).await.ok());
    let again = world.http.post("/api/v1/admin/onboardings", &json!({ "node_id": "gpu-1" })).await.ok();
    assert_eq!(again["id"], onboarding.as_str(), "again: the same one");
    assert_eq!(world.http.get("/api/v1/admin/nodes/gpu-1").await.ok()["status"], "enrolling");
    let ids = async |list: &str| {
        let listed = world.http.get(&format!("/api/v1/admin/{list}")).await.ok();
        let items = listed[list].as_array().expect("a list").clone();
        items.iter().map(id_of).collect::<Vec<_>>()
    };
    assert_eq!((ids("onboardings").await, ids("decommissions").await), (vec![onboarding.clone()], vec![]));
    world.http.get(&format!("/api/v1/admin/onboardings/{onboarding}")).await.ok();
    world.http.get(&format!("/api/v1/admin/decommissions/{onboarding}")).await.refused(404, "JOB_NOT_FOUND");
    let path = format!("/api/v1/admin/decommissions/{onboarding}/actions/cancel");
    world.http.post(&path, &json!({})).await.refused(404, "JOB_NOT_FOUND");
    let dance = world.http.post(&format!("/api/v1/admin/jobs/{onboarding}/actions/dance"), &json!({})).await;
    assert_eq!(dance.refused(400, "INVALID_FIELD")["allowed"].as_array().map(Vec::len), Some(9));
    // modes: what comes later says so, what is none lists those there are
    let with = |mode: &str| json!({ "node_id": "gpu-1", "mode": mode });
    let later = world.http.post("/api/v1/admin/decommissions", &with("reimage")).await.refused(409, "MODE_UNAVAILABLE");
    assert!(later["message"].as_str().is_some_and(|text| text.contains("MAAS")), "{later}");
    let unknown = world.http.post("/api/v1/admin/decommissions", &with("burn")).await.refused(400, "INVALID_FIELD");
    assert!(unknown["allowed"].as_array().is_some_and(|all| all.contains(&json!("soft_reset"))), "{unknown}");
    let cleanup = |paths: &[&str]| json!({ "node_id": "gpu-1", "mode": "soft_reset", "scratch_paths": paths });
    let plain = ["relative", "/", "/a/../etc", "//", "/a//b", "/a/", "/./a", ""];
    let system = [
        "/usr",
        "/etc",
        "/etc/ssh",
        "/var",
        "/var/lib/data",
        "/boot",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/lib32/a",
        "/root",
        "/home",
        "/home/tenant",
        "/proc/1",
        "/sys",
        "/dev/shm",
        "/run",
    ];
    for bad in plain.into_iter().chain(system) {
        world.http.post("/api/v1/admin/decommissions", &cleanup(&[bad])).await.refused(400, "INVALID_FIELD");
    }
    let many: Vec<String> = (0..17).map(|n| format!("/scratch/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.http.post("/api/v1/admin/decommissions", &cleanup(&many)).await.refused(400, "INVALID_FIELD");
    // what they say is emptied by root
    let token = world.http.post("/api/v1/tokens", &json!({ "name": "op", "role": "operator" })).await.ok();
    let token = token["secret"].as_str().expect("a secret").to_owned();
    let operator = crate::client::Http { url: world.http.url.clone(), token };
    operator.post("/api/v1/admin/decommissions", &cleanup(&["/scratch"])).await.refused(403, "ROLE_TOO_LOW");
    let dry = json!({ "node_id": "gpu-1", "mode": "soft_reset", "dry_run": true });
    operator.post("/api/v1/admin/decommissions", &dry).await.refused(409, "NODE_HELD");
    // T-12: a cancelled onboarding leaves its node in quarantine
    let cancelled =
        world.http.post(&format!("/api/v1/admin/onboardings/{onboarding}/actions/cancel"), &json!({})).await;
    cancelled.ok();
    until(&world, &onboarding, "cancelled").await;
    assert_eq!(world.http.get("/api/v1/admin/nodes/gpu-1").await.ok()["status"], "quarantined");
}
