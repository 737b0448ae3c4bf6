//! Nodes, jobs and tasks through both doors: what can be asked twice with one answer, which previews can.

use crate::doors::{Case, case};
use crate::world::World;
use domain::agent::IdentityState;
use domain::node::NodeStatus;
use domain::{NodeId, TaskId};
use serde_json::{Value, json};
use service::{JobAct, JobsOf};
use testkit::fleet::{admin, eventually};
use testkit::nodes;

/// A node in that status, with an agent that is heard of.
pub async fn node(world: &World, name: &str, status: NodeStatus) -> String {
    let made = world.http.post("/api/v1/admin/nodes", &json!({ "name": name })).await.ok();
    let id = NodeId::from_text(made["node"]["id"].as_str().expect("an id"));
    let store = world.api.server.service.store();
    if status != NodeStatus::BootstrapIssued {
        nodes::enrol(store, &id, 9).await;
    }
    nodes::bring(store, &id, status).await;
    id.into_text()
}

/// What became of a job that somebody acted on, once it stands still.
pub async fn settled(world: &World, job: &str, action: &str) {
    let service = &world.api.server.service;
    let act = JobAct {
        id: job.to_owned(),
        action: action.to_owned(),
        reason: "a test".into(),
        dry_run: false,
        of: JobsOf::All,
    };
    eventually("the job to be taken up", || async {
        let view = service.get_job(job, JobsOf::All).await.expect("a job");
        (view.job.stage.is_some()
            && view.task.is_some() == view.stage().is_some_and(|s| s.task(view.job.kind).is_some()))
        .then_some(())
    })
    .await;
    service.act_on_job(&admin(), act).await.expect("is done");
    eventually("the job to stand still", || async {
        let view = service.get_job(job, JobsOf::All).await.expect("a job");
        (!view.job.status.is_under_way()).then_some(())
    })
    .await;
}

pub async fn cases(world: &World) -> Vec<Case> {
    let service = &world.api.server.service;
    let store = service.store();
    let active = node(world, "door-active", NodeStatus::Active).await;
    let retired = node(world, "door-retired", NodeStatus::Retired).await;
    let orphan = node(world, "door-orphan", NodeStatus::Draining).await;
    let well = node(world, "door-quarantined", NodeStatus::Quarantined).await;
    let deleted = node(world, "door-deleted", NodeStatus::Deleted).await;
    let stopped = node(world, "door-stopped", NodeStatus::Offline).await;
    nodes::set_identity(store, &NodeId::from_text(stopped.as_str()), IdentityState::Suspended).await;
    let onboarded = node(world, "door-issued", NodeStatus::BootstrapIssued).await;
    let id_of = |answer: Value| answer["id"].as_str().expect("an id").to_owned();
    let begin = |path: &'static str, body: Value| async move { id_of(world.http.post(path, &body).await.ok()) };
    let onboarding = begin("/api/v1/admin/onboardings", json!({ "node_id": onboarded })).await;
    let cleaned = node(world, "door-cleaned", NodeStatus::Active).await;
    let new = json!({ "node_id": cleaned, "mode": "soft_reset" });
    let decommission = begin("/api/v1/admin/decommissions", new).await;
    let over = node(world, "door-over", NodeStatus::BootstrapIssued).await;
    let ended = begin("/api/v1/admin/onboardings", json!({ "node_id": over })).await;
    for (job, action) in [
        (&onboarding, "mark_manual_intervention_required"),
        (&decommission, "mark_manual_intervention_required"),
        (&ended, "cancel"),
    ] {
        settled(world, job, action).await;
    }
    let order = json!({ "kind": "node.validate_clean", "reason": "a test" });
    let task = id_of(world.http.post(&format!("/api/v1/admin/nodes/{active}/tasks"), &order).await.ok());
    nodes::print(store, &NodeId::from_text(active.as_str()), &TaskId::from_text(task.as_str()), 0, "hello\n").await;

    let mut all = vec![
        case(
            "millwright.v1.NodeService.ListNodes",
            json!({ "filter": "name=\"door-issued\"", "view": "in_progress" }),
            "GET",
            "/admin/nodes?filter=name%3D%22door-issued%22&view=in_progress",
            None,
        ),
        case(
            "millwright.v1.NodeService.GetNode",
            json!({ "id": "door-active" }),
            "GET",
            "/admin/nodes/door-active",
            None,
        ),
        case(
            "millwright.v1.NodeService.CreateNode",
            json!({ "name": "door-active" }),
            "POST",
            "/admin/nodes",
            Some(json!({ "name": "door-active" })),
        ),
        case(
            "millwright.v1.NodeService.OnboardNode",
            json!({ "name": "door-new", "site": "nowhere", "system_id": "abc123" }),
            "POST",
            "/admin/nodes:onboard",
            Some(json!({ "name": "door-new", "site": "nowhere", "system_id": "abc123" })),
        ),
        case(
            "millwright.v1.NodeService.WatchNode",
            json!({ "id": deleted }),
            "GET",
            &format!("/admin/nodes/{deleted}/watch"),
            None,
        ),
        case(
            "millwright.v1.NodeService.GetNodeHistory",
            json!({ "id": deleted, "limit": 3 }),
            "GET",
            &format!("/admin/nodes/{deleted}/history?limit=3"),
            None,
        ),
    ];
    for (rpc, verb, node) in [
        ("millwright.v1.NodeService.DrainNode", "drain", &active),
        ("millwright.v1.NodeService.CordonNode", "cordon", &active),
        ("millwright.v1.NodeService.UncordonNode", "uncordon", &active),
        ("millwright.v1.NodeService.ReactivateNode", "reactivate", &retired),
        ("millwright.v1.NodeService.RemoveNode", "remove", &retired),
        ("millwright.v1.NodeService.QuarantineNode", "quarantine", &active),
        ("millwright.v1.NodeService.RecoverNode", "recover", &well),
        ("millwright.v1.NodeService.ResumeNode", "resume", &orphan),
        ("millwright.v1.NodeService.RebootstrapNode", "rebootstrap", &active),
        ("millwright.v1.NodeService.RepairNode", "repair", &stopped),
        ("millwright.v1.NodeService.RevokeNode", "revoke", &active),
    ] {
        let body = json!({ "reason": "a test", "dry_run": true });
        let mut message = body.clone();
        message["id"] = json!(node);
        all.push(case(rpc, message, "POST", &format!("/admin/nodes/{node}/{verb}"), Some(body)));
    }
    let many = json!({ "filter": format!("id={active}"), "action": "drain", "dry_run": true });
    all.push(
        case("millwright.v1.NodeService.ActOnNodes", many.clone(), "POST", "/admin/nodes:act", Some(many))
            .apart_from(&["request_id"]),
    );
    all.extend(of_jobs(&onboarding, &decommission, &ended, &active));
    all.extend(of_tasks(&task, &active));
    all
}

fn of_jobs(onboarding: &str, decommission: &str, ended: &str, active: &str) -> Vec<Case> {
    let get = |rpc, list: &str, id: &str, rest: &str| {
        case(rpc, json!({ "id": id }), "GET", &format!("/admin/{list}/{id}{rest}"), None)
    };
    let list = |rpc, list: &str, id: &str| {
        let path = format!("/admin/{list}?filter=id%3D{id}");
        case(rpc, json!({ "filter": format!("id={id}") }), "GET", &path, None)
    };
    let act = |rpc, list: &str, id: &str| {
        let message = json!({ "id": id, "action": "resume", "dry_run": true });
        let path = format!("/admin/{list}/{id}/actions/resume");
        case(rpc, message, "POST", &path, Some(json!({ "dry_run": true })))
    };
    let many = json!({ "filter": format!("id={onboarding}"), "action": "resume", "dry_run": true });
    let preview = json!({ "node_id": active, "mode": "full_decommission", "dry_run": true });
    let begin = json!({ "node_id": active });
    vec![
        list("millwright.v1.JobService.ListJobs", "jobs", ended),
        get("millwright.v1.JobService.GetJob", "jobs", ended, ""),
        get("millwright.v1.JobService.WatchJob", "jobs", ended, "/watch"),
        act("millwright.v1.JobService.ActOnJob", "jobs", onboarding),
        case("millwright.v1.JobService.ActOnJobs", many.clone(), "POST", "/admin/jobs:act", Some(many))
            .apart_from(&["request_id"]),
        list("millwright.v1.JobService.ListOnboardings", "onboardings", onboarding),
        get("millwright.v1.JobService.GetOnboarding", "onboardings", onboarding, ""),
        act("millwright.v1.JobService.ActOnOnboarding", "onboardings", onboarding),
        case("millwright.v1.JobService.StartOnboarding", begin.clone(), "POST", "/admin/onboardings", Some(begin)),
        list("millwright.v1.JobService.ListDecommissions", "decommissions", decommission),
        get("millwright.v1.JobService.GetDecommission", "decommissions", decommission, ""),
        act("millwright.v1.JobService.ActOnDecommission", "decommissions", decommission),
        case(
            "millwright.v1.JobService.StartDecommission",
            preview.clone(),
            "POST",
            "/admin/decommissions",
            Some(preview),
        ),
    ]
}

fn of_tasks(task: &str, active: &str) -> Vec<Case> {
    let at = |rest: &str| format!("/admin/tasks/{task}{rest}");
    let order = json!({ "kind": "host.reboot" });
    let mut ordered = order.clone();
    ordered["node_id"] = json!(active);
    vec![
        case(
            "millwright.v1.TaskService.ListTasks",
            json!({ "filter": format!("id={task}") }),
            "GET",
            &format!("/admin/tasks?filter=id%3D{task}"),
            None,
        ),
        case("millwright.v1.TaskService.GetTask", json!({ "id": task }), "GET", &at(""), None),
        case(
            "millwright.v1.TaskService.StreamTaskOutput",
            json!({ "id": task, "no_follow": true }),
            "GET",
            &at("/output?no_follow=true"),
            None,
        ),
        case(
            "millwright.v1.TaskService.OrderTask",
            ordered,
            "POST",
            &format!("/admin/nodes/{active}/tasks"),
            Some(order),
        ),
        case(
            "millwright.v1.TaskService.CancelTask",
            json!({ "id": task, "reason": "a test" }),
            "POST",
            &at("/cancel"),
            Some(json!({ "reason": "a test" })),
        ),
    ]
}
