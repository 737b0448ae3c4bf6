//! One room, two doors: every call of the descriptors is made through both, and must come to the same.
//! A call without an entry here fails the walk.

use crate::fixture::{start, within};
use crate::world::{Outcome, World};
use prost_reflect::MethodDescriptor;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// One call through both doors.
pub struct Case {
    pub rpc: &'static str,
    /// The message, as gRPC has it.
    pub message: Value,
    pub method: &'static str,
    pub path: String,
    pub body: Option<Value>,
    /// Fields that differ from call to call, wherever they stand.
    pub apart_from: &'static [&'static str],
}

pub fn case(rpc: &'static str, message: Value, method: &'static str, path: &str, body: Option<Value>) -> Case {
    Case { rpc, message, method, path: format!("/api/v1{path}"), body, apart_from: &[] }
}

impl Case {
    pub fn apart_from(self, fields: &'static [&'static str]) -> Self {
        Self { apart_from: fields, ..self }
    }
}

pub fn methods() -> Vec<MethodDescriptor> {
    let pool = api::json::pool().expect("descriptors");
    pool.services().flat_map(|s| s.methods().collect::<Vec<_>>()).collect()
}

pub fn method(name: &str) -> MethodDescriptor {
    methods().into_iter().find(|m| m.full_name() == name).unwrap_or_else(|| panic!("no call is named {name}"))
}

/// Takes out what differs from call to call.
fn without(value: &mut Value, fields: &[&str]) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !fields.contains(&key.as_str()));
            object.values_mut().for_each(|v| without(v, fields));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| without(v, fields)),
        _ => {}
    }
}

fn comparable(outcome: Outcome, case: &Case) -> Outcome {
    match outcome {
        Outcome::Done(mut values, _) if !case.apart_from.is_empty() => {
            values.iter_mut().for_each(|v| without(v, case.apart_from));
            Outcome::Done(values, Vec::new())
        }
        other => other,
    }
}

/// What both doors said, once it is the same.
pub async fn through_both(world: &World, case: &Case) -> Outcome {
    let token = &world.http.token;
    let grpc = within(case.rpc, world.by_grpc(&method(case.rpc), &case.message, token)).await;
    let rest = within(case.rpc, world.by_rest(case.method, &case.path, case.body.as_ref(), token)).await;
    let (grpc, rest) = (comparable(grpc, case), comparable(rest, case));
    assert_eq!(grpc, rest, "{} and {} {}", case.rpc, case.method, case.path);
    rest
}

fn machines_and_plans() -> Vec<Case> {
    let machine = json!({"machine_id": "m-2", "labels": {"sim.latency_ms": "0"}, "spec": {"provider": "sim"}});
    let plan = json!({"plan_id": "p-1", "display_name": "P", "steps": [{"name": "a", "reboot": {"mode": "bmc"}}]});
    let id = json!({"machine_id": "m-1"});
    vec![
        case(
            "baremetal.v1.MachineService.RegisterMachine",
            json!({"machine": machine}),
            "POST",
            "/machines",
            Some(machine.clone()),
        ),
        case("baremetal.v1.MachineService.GetMachine", id.clone(), "GET", "/machines/m-1", None),
        case("baremetal.v1.MachineService.ListMachines", json!({}), "GET", "/machines", None),
        case(
            "baremetal.v1.MachineService.ListMachines",
            json!({"filter": "labels.env=prod AND phase=READY", "page_size": 1}),
            "GET",
            "/machines?filter=labels.env%3Dprod+AND%20phase=READY&page_size=1&page_token=",
            None,
        ),
        case(
            "baremetal.v1.MachineService.UpdateMachine",
            json!({"machine": {"machine_id": "m-2", "labels": {"a": "1"}}, "update_mask": "labels.a"}),
            "PATCH",
            "/machines/m-2",
            Some(json!({"labels": {"a": "1"}})),
        )
        .apart_from(&["version"]),
        case(
            "baremetal.v1.MachineService.SetPhase",
            json!({"machine_id": "m-2", "phase": "READY", "reason": "a test"}),
            "POST",
            "/machines/m-2/phase",
            Some(json!({"phase": "READY", "reason": "a test"})),
        ),
        case("baremetal.v1.MachineService.ExplainMachine", id, "GET", "/machines/m-1/why", None),
        case(
            "baremetal.v1.PlanService.GetPlan",
            json!({"plan_id": "default-repave"}),
            "GET",
            "/plans/default-repave",
            None,
        ),
        case("baremetal.v1.PlanService.ListPlans", json!({}), "GET", "/plans", None),
        case("baremetal.v1.PlanService.CreatePlan", json!({"plan": plan}), "POST", "/plans", Some(plan)),
    ]
}

fn runs(run: &str) -> Vec<Case> {
    let start = json!({"request_id": "req-1", "machine_id": "m-1", "type": "REBOOT"});
    let id = json!({"run_id": run});
    vec![
        case("baremetal.v1.RunService.StartRun", start.clone(), "POST", "/runs", Some(start)),
        case("baremetal.v1.RunService.GetRun", id.clone(), "GET", &format!("/runs/{run}"), None),
        case("baremetal.v1.RunService.ListRuns", json!({}), "GET", "/runs", None),
        case("baremetal.v1.RunService.CancelRun", id.clone(), "POST", &format!("/runs/{run}/cancel"), None),
        case(
            "baremetal.v1.RunService.WatchRuns",
            json!({"filter": format!("run_id={run}"), "after_sequence": 0}),
            "GET",
            &format!("/runs:watch?filter=run_id%3D{run}&after_sequence=0"),
            None,
        ),
        case("baremetal.v1.RunService.StreamRunLogs", id.clone(), "GET", &format!("/runs/{run}/logs"), None),
        case("baremetal.v1.RunService.ExplainRun", id, "GET", &format!("/runs/{run}/why"), None),
    ]
}

fn operations(run: &str) -> Vec<Case> {
    let id = json!({"execution_id": run});
    let why = json!({"reason": "a test"});
    let both = json!({"execution_id": run, "reason": "a test"});
    let one = |verb: &str| format!("/admin/executions/{run}{verb}");
    vec![
        case("millwright.v1.EngineService.ListExecutions", json!({}), "GET", "/admin/executions", None),
        case("millwright.v1.EngineService.DescribeExecution", id, "GET", &one(""), None),
        case("millwright.v1.EngineService.CancelExecution", both.clone(), "POST", &one("/cancel"), Some(why.clone())),
        case("millwright.v1.EngineService.TerminateExecution", both, "POST", &one("/terminate"), Some(why.clone())),
        case("millwright.v1.EngineService.GetFreeze", json!({}), "GET", "/admin/freeze", None),
        case("millwright.v1.EngineService.Freeze", why.clone(), "POST", "/admin/freeze", Some(why))
            .apart_from(&["since"]),
        case("millwright.v1.EngineService.Unfreeze", json!({}), "POST", "/admin/unfreeze", None),
    ]
}

fn access_and_sight() -> Vec<Case> {
    let token = json!({"name": "ci", "role": "viewer"});
    vec![
        case("millwright.v1.TokenService.GetMe", json!({}), "GET", "/me", None),
        case("millwright.v1.TokenService.ListTokens", json!({}), "GET", "/tokens", None),
        case("millwright.v1.TokenService.CreateToken", token.clone(), "POST", "/tokens", Some(token)).apart_from(&[
            "token_id",
            "prefix",
            "created_at",
            "secret",
        ]),
        case("millwright.v1.TokenService.RevokeToken", json!({"token_id": "tok_1"}), "DELETE", "/tokens/tok_1", None),
        case(
            "millwright.v1.CredentialService.SetCredential",
            json!({"name": "rack-1", "kind": "bmc", "username": "admin", "password": "hunter2"}),
            "PUT",
            "/credentials/rack-1",
            Some(json!({"kind": "bmc", "username": "admin", "password": "hunter2"})),
        ),
        case("millwright.v1.CredentialService.ListCredentials", json!({}), "GET", "/credentials", None),
        case("millwright.v1.CredentialService.RotateSecretKey", json!({}), "POST", "/admin/rotate-secret-key", None),
        case(
            "millwright.v1.CredentialService.DeleteCredential",
            json!({"name": "rack-1", "force": true}),
            "DELETE",
            "/credentials/rack-1?force=true",
            None,
        ),
        case(
            "millwright.v1.EventService.WatchEvents",
            json!({"after": 0, "no_follow": true}),
            "GET",
            "/events?after=0&no_follow=true",
            None,
        ),
        case(
            "millwright.v1.AuditService.ListAudit",
            json!({"filter": "call=none"}),
            "GET",
            "/audit?filter=call%3Dnone",
            None,
        ),
        case("millwright.v1.ExplainService.Explain", json!({"id": "m-1"}), "GET", "/why/m-1", None),
    ]
}

fn hardware() -> Vec<Case> {
    let id = || json!({"machine_id": "m-2"});
    let on = |tail: &str| format!("/machines/m-2/hardware{tail}");
    let told = |rpc: &'static str, tail: &str, body: Value| {
        let mut message = body.clone();
        message["machine_id"] = json!("m-2");
        case(rpc, message, "POST", &on(tail), Some(body))
    };
    let endpoint = json!({"bmc_endpoint": "10.0.0.9"});
    let image = json!({"image_url": "https://images.example/bios.bin"});
    let task = json!({"machine_id": "m-2", "task": "update-1"});
    vec![
        case("millwright.v1.HardwareService.InspectMachine", id(), "GET", &on(""), None).apart_from(&["read_at"]),
        case("millwright.v1.HardwareService.GetConsoleInfo", id(), "GET", &on("/console"), None),
        case("millwright.v1.HardwareService.ListSensors", id(), "GET", &on("/sensors"), None),
        told("millwright.v1.HardwareService.SetPower", "/power", json!({"action": "force-off", "reason": "a test"})),
        case(
            "millwright.v1.HardwareService.ListHardwareEvents",
            json!({"machine_id": "m-2", "limit": 3}),
            "GET",
            &on("/events?limit=3"),
            None,
        ),
        told("millwright.v1.HardwareService.SetBoot", "/boot", json!({"mode": "PXE"})),
        told("millwright.v1.HardwareService.IdentifyMachine", "/identify", json!({"on": true})),
        told("millwright.v1.HardwareService.InsertMedia", "/media", json!({"url": "https://images.example/a.iso"})),
        case("millwright.v1.HardwareService.GetMedia", id(), "GET", &on("/media"), None),
        case("millwright.v1.HardwareService.EjectMedia", id(), "DELETE", &on("/media"), None),
        told("millwright.v1.HardwareService.SetBios", "/bios", json!({"attributes": {"SecureBoot": "Enabled"}})),
        case("millwright.v1.HardwareService.GetBios", id(), "GET", &on("/bios"), None),
        told("millwright.v1.HardwareService.UpdateFirmware", "/firmware", image).apart_from(&["task"]),
        case("millwright.v1.HardwareService.GetHardwareTask", task, "GET", &on("/tasks/update-1"), None),
        told("millwright.v1.HardwareService.RotateBmcPassword", "/rotate-password", json!({})),
        told("millwright.v1.HardwareService.RepinMachine", "/repin", json!({})),
        case(
            "millwright.v1.HardwareService.DiscoverHardware",
            endpoint.clone(),
            "POST",
            "/hardware/discover",
            Some(endpoint),
        )
        .apart_from(&["read_at"]),
        case(
            "millwright.v1.ClusterService.CheckCluster",
            json!({"cluster_ref": "c1", "provider": "sim"}),
            "GET",
            "/clusters/c1/check?provider=sim",
            None,
        ),
        case(
            "millwright.v1.ClusterService.CordonMachine",
            json!({"machine_id": "m-2", "on": true}),
            "POST",
            "/machines/m-2/cordon",
            Some(json!({"on": true})),
        ),
        case("millwright.v1.ClusterService.DrainMachine", id(), "POST", "/machines/m-2/drain", None),
        case("millwright.v1.ClusterService.DeleteClusterNode", id(), "DELETE", "/machines/m-2/node", None),
    ]
}

/// Of a node that waits, and of one that is retired.
fn boot(node: &str, retired: &str) -> Vec<Case> {
    let id = |id: &str| json!({ "id": id });
    let at = |id: &str, rest: &str| format!("/nodes/{id}{rest}");
    let workflow = json!({ "id": "w-1", "kernel": "vmlinuz" });
    let card = json!({ "mac_address": CARD });
    let (name, many) = (json!({ "name": "nobody" }), json!({ "ids": [node], "state": "active" }));
    let handled = json!({ "id": "fnd_nobody", "comment": "a test" });
    let finding = "/admin/findings/fnd_nobody";
    vec![
        case("millwright.v1.BootService.ListBootNodes", json!({}), "GET", "/nodes", None),
        case("millwright.v1.BootService.CreateBootNode", card.clone(), "POST", "/nodes", Some(card)),
        case("millwright.v1.BootService.GetBootNode", id(CARD), "GET", &at(CARD, ""), None),
        case("millwright.v1.BootService.WatchBootNode", id(retired), "GET", &at(retired, "/watch"), None),
        case(
            "millwright.v1.BootService.UpdateBootNode",
            json!({ "id": node, "group": "a" }),
            "PATCH",
            &at(node, ""),
            Some(json!({ "group": "a" })),
        ),
        case("millwright.v1.BootService.RetireBootNode", id(retired), "DELETE", &at(retired, ""), None),
        case(
            "millwright.v1.BootService.SetBootNodeState",
            json!({ "id": node, "state": "active" }),
            "PATCH",
            &at(node, "/state"),
            Some(json!({ "state": "active" })),
        ),
        case("millwright.v1.BootService.SetBootNodeStates", many.clone(), "POST", "/nodes:setStates", Some(many)),
        case(
            "millwright.v1.BootService.GetBootNodeHistory",
            json!({ "id": node, "limit": 1 }),
            "GET",
            &at(node, "/history?limit=1"),
            None,
        ),
        case("millwright.v1.BootService.ListWorkflows", json!({}), "GET", "/workflows", None),
        case("millwright.v1.BootService.GetWorkflow", id("w-1"), "GET", "/workflows/w-1", None),
        case("millwright.v1.BootService.CreateWorkflow", workflow.clone(), "POST", "/workflows", Some(workflow)),
        case("millwright.v1.ImageService.ListImages", json!({}), "GET", "/images", None),
        case("millwright.v1.ImageService.GetImage", name.clone(), "GET", "/images/nobody", None),
        case("millwright.v1.ImageService.RemoveImage", name, "DELETE", "/images/nobody", None),
        case("millwright.v1.FindingService.ListFindings", json!({}), "GET", "/admin/findings", None),
        case("millwright.v1.FindingService.GetFinding", id("fnd_nobody"), "GET", finding, None),
        case(
            "millwright.v1.FindingService.AcknowledgeFinding",
            handled.clone(),
            "POST",
            &format!("{finding}/acknowledge"),
            Some(json!({ "comment": "a test" })),
        ),
        case(
            "millwright.v1.FindingService.ResolveFinding",
            handled,
            "POST",
            &format!("{finding}/resolve"),
            Some(json!({ "comment": "a test" })),
        ),
    ]
}

const CARD: &str = "52:54:00:4d:59:01";

/// A boot node with a workflow, and one that is retired.
async fn boot_nodes(world: &World) -> (String, String) {
    world.http.post("/api/v1/workflows", &json!({ "id": "w-1", "kernel": "vmlinuz" })).await.ok();
    let mut ids = Vec::new();
    for mac in [CARD, "52:54:00:4d:59:02"] {
        let new = json!({ "mac_address": mac, "workflow_id": "w-1" });
        let made = world.http.post("/api/v1/nodes", &new).await.ok();
        ids.push(made["id"].as_str().expect("an id").to_owned());
    }
    let retired = ids.pop().expect("two");
    world.http.send("DELETE", &format!("/api/v1/nodes/{retired}"), &[], b"").await.ok();
    (ids.remove(0), retired)
}

/// Calls that rightly end in a refusal here: what they are about has ended, or is not there.
const REFUSED_HERE: &[&str] = &[
    "millwright.v1.BootService.SetBootNodeState",
    "baremetal.v1.RunService.CancelRun",
    "millwright.v1.EngineService.CancelExecution",
    "millwright.v1.EngineService.TerminateExecution",
    "millwright.v1.TokenService.RevokeToken",
    // the card is taken, it is retired already, and there are none
    "millwright.v1.BootService.CreateBootNode",
    "millwright.v1.BootService.RetireBootNode",
    "millwright.v1.ImageService.GetImage",
    "millwright.v1.ImageService.RemoveImage",
    "millwright.v1.SiteService.RemoveSite",
    "millwright.v1.FindingService.GetFinding",
    "millwright.v1.FindingService.AcknowledgeFinding",
    "millwright.v1.FindingService.ResolveFinding",
    // the name is taken, and it is in service already
    "millwright.v1.NodeService.CreateNode",
    // there is no such site
    "millwright.v1.NodeService.OnboardNode",
    "millwright.v1.JobService.StartOnboarding",
    // its agent has one
    "millwright.v1.TaskService.OrderTask",
    // it names no cluster
    "millwright.v1.ClusterService.CordonMachine",
    "millwright.v1.ClusterService.DrainMachine",
    "millwright.v1.ClusterService.DeleteClusterNode",
];

// DESIGN section 8: the doors cannot drift apart
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_answers_alike_through_both_doors() {
    let (world, run) = World::lived_in().await;
    let (node, retired) = boot_nodes(&world).await;
    let calls = [
        machines_and_plans(),
        runs(&run),
        operations(&run),
        access_and_sight(),
        hardware(),
        boot(&node, &retired),
        crate::doors_nodes::cases(&world).await,
        crate::doors_sites::cases(&world).await,
    ];
    let cases: Vec<Case> = calls.into_iter().flatten().collect();
    let covered: BTreeSet<&str> = cases.iter().map(|c| c.rpc).collect();
    let missing: Vec<String> =
        methods().iter().map(|m| m.full_name().to_owned()).filter(|m| !covered.contains(m.as_str())).collect();
    assert!(missing.is_empty(), "give these an entry in this walk: {missing:?}");
    for case in &cases {
        let outcome = through_both(&world, case).await;
        match &outcome {
            Outcome::Done(answers, _) => {
                assert!(!answers.is_empty() || method(case.rpc).is_server_streaming(), "{}", case.rpc);
            }
            Outcome::Refused { .. } => assert!(REFUSED_HERE.contains(&case.rpc), "{}: {outcome:?}", case.rpc),
        }
    }
}

// CONTRACT "One port": authentication everywhere
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_alike_at_both_doors() {
    let (world, run) = World::lived_in().await;
    let cases =
        [machines_and_plans(), runs(&run), operations(&run), access_and_sight(), hardware()].into_iter().flatten();
    for case in cases {
        let grpc = world.by_grpc(&method(case.rpc), &case.message, "mwt_wrong").await;
        let rest = world.by_rest(case.method, &case.path, case.body.as_ref(), "mwt_wrong").await;
        assert_eq!(grpc, rest, "{}", case.rpc);
        assert!(
            matches!(&rest, Outcome::Refused { code, reason, .. } if code == "UNAUTHENTICATED" && reason == "TOKEN_INVALID")
        );
    }
}

/// Fields that tell two of a kind apart, and when.
const TELLING: &[&str] = &[
    "run_id",
    "machine_id",
    "request_id",
    "created_at",
    "started_at",
    "finished_at",
    "observed",
    "execution",
    "execution_id",
    "subject",
    "fence",
    "updated_at",
    "version",
    "why",
    "desired",
    "token_id",
    "prefix",
    "revoked_at",
    "deadline",
    "wake_at",
    "holder",
    "waiting_for",
    "status",
    "name",
];

/// Done to two of a kind, to the first through gRPC and to the second through REST.
async fn done_alike(world: &World, rpc: &str, field: &str, ids: [&str; 2], method_and_path: (&str, &str), more: Value) {
    let token = &world.http.token;
    let mut message = more.clone();
    message[field] = json!(ids[0]);
    let grpc = within(rpc, world.by_grpc(&method(rpc), &message, token)).await;
    let (verb, path) = method_and_path;
    let path = format!("/api/v1{}", path.replace("{id}", ids[1]));
    let body = (verb != "DELETE").then_some(&more);
    let rest = within(rpc, world.by_rest(verb, &path, body, token)).await;
    let [grpc, rest] = [grpc, rest].map(|outcome| match outcome {
        Outcome::Done(mut values, _) => {
            values.iter_mut().for_each(|v| without(v, TELLING));
            values
        }
        refused @ Outcome::Refused { .. } => panic!("{rpc}: {refused:?}"),
    });
    assert_eq!(grpc, rest, "{rpc}");
}

// what can be done only once is done to two alike, one through each door
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_something_answers_alike_through_both_doors() {
    let world = World::new().await;
    let mut runs = Vec::new();
    for i in 0..6 {
        world.api.sim(&format!("m-{i}"), &[("sim.fault.reboot", "hang")]).await;
        let run = world.api.start(start(&format!("m-{i}"), "REBOOT", "r")).await.run_id;
        world.api.at_step(&run, "reboot").await;
        runs.push(run);
    }
    let pair = |i: usize| [runs[i].as_str(), runs[i + 1].as_str()];
    let why = json!({"reason": "a test"});
    done_alike(
        &world,
        "baremetal.v1.RunService.CancelRun",
        "run_id",
        pair(0),
        ("POST", "/runs/{id}/cancel"),
        json!({}),
    )
    .await;
    let engine = "/admin/executions/{id}";
    let (cancel, terminate) = (format!("{engine}/cancel"), format!("{engine}/terminate"));
    let rpc = "millwright.v1.EngineService.CancelExecution";
    done_alike(&world, rpc, "execution_id", pair(2), ("POST", &cancel), why.clone()).await;
    let rpc = "millwright.v1.EngineService.TerminateExecution";
    done_alike(&world, rpc, "execution_id", pair(4), ("POST", &terminate), why).await;
    let mut tokens = Vec::new();
    for name in ["a", "b"] {
        let made = world.http.post("/api/v1/tokens", &json!({"name": name, "role": "viewer"})).await.ok();
        tokens.push(made["token"]["token_id"].as_str().expect("an id").to_owned());
    }
    let ids = [tokens[0].as_str(), tokens[1].as_str()];
    done_alike(
        &world,
        "millwright.v1.TokenService.RevokeToken",
        "token_id",
        ids,
        ("DELETE", "/tokens/{id}"),
        json!({}),
    )
    .await;
}
