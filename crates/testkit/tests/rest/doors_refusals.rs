//! What is refused is refused alike: code, reason, sentence, details and alternatives.

use crate::doors::{Case, case, through_both};
use crate::world::{Outcome, World};
use serde_json::{Value, json};

/// A refusal with the reason it must have.
type Refused = (Case, &'static str);

fn machines() -> Vec<Refused> {
    let register = |machine: Value, reason| {
        let message = json!({"machine": machine});
        (case("baremetal.v1.MachineService.RegisterMachine", message, "POST", "/machines", Some(machine)), reason)
    };
    let list = |message: Value, query: &str, reason| {
        (case("baremetal.v1.MachineService.ListMachines", message, "GET", &format!("/machines?{query}"), None), reason)
    };
    let phase = |id: &str, phase: Value, reason| {
        let (message, path) = (json!({"machine_id": id, "phase": phase}), format!("/machines/{id}/phase"));
        (case("baremetal.v1.MachineService.SetPhase", message, "POST", &path, Some(json!({"phase": phase}))), reason)
    };
    let get = |id: &str, path: &str, reason| {
        let message = json!({"machine_id": id});
        (case("baremetal.v1.MachineService.GetMachine", message, "GET", &format!("/machines/{path}"), None), reason)
    };
    let update = |machine: Value, mask: Value, path: &str, body: Value, reason| {
        let message = json!({"machine": machine, "update_mask": mask});
        (case("baremetal.v1.MachineService.UpdateMachine", message, "PATCH", path, Some(body)), reason)
    };
    vec![
        get("nope", "nope", "MACHINE_NOT_FOUND"),
        get("a b/ü", "a%20b%2F%C3%BC", "MACHINE_NOT_FOUND"),
        get("a\0b", "a%00b", "INVALID_FIELD"),
        register(json!({"machine_id": "not an id"}), "INVALID_FIELD"),
        register(json!({"spec": {"mac_addresses": ["zz"]}}), "INVALID_FIELD"),
        register(json!({"labels": {"": "x"}}), "INVALID_FIELD"),
        list(json!({"filter": "colour=red"}), "filter=colour%3Dred", "INVALID_FILTER"),
        list(json!({"filter": "phase=BLUE"}), "filter=phase%3DBLUE", "INVALID_FILTER"),
        list(json!({"page_size": -1}), "page_size=-1", "INVALID_FIELD"),
        list(json!({"page_token": "x"}), "page_token=x", "INVALID_PAGE_TOKEN"),
        phase("m-1", json!(0), "INVALID_FIELD"),
        phase("m-1", json!(99), "INVALID_FIELD"),
        phase("m-1", json!("PROVISIONING"), "ILLEGAL_TRANSITION"),
        phase("nope", json!("READY"), "MACHINE_NOT_FOUND"),
        update(json!({"machine_id": "nope"}), json!(""), "/machines/nope", json!({}), "MACHINE_NOT_FOUND"),
        update(
            json!({"machine_id": "m-1"}),
            json!("colour"),
            "/machines/m-1?update_mask=colour",
            json!({}),
            "INVALID_FIELD",
        ),
        update(
            json!({"machine_id": "m-1", "version": 999}),
            json!(""),
            "/machines/m-1",
            json!({"version": "999"}),
            "VERSION_MISMATCH",
        ),
    ]
}

fn plans() -> Vec<Refused> {
    let create = |plan: Value, reason| {
        (case("baremetal.v1.PlanService.CreatePlan", json!({"plan": plan}), "POST", "/plans", Some(plan)), reason)
    };
    let step = json!({"name": "a", "reboot": {"mode": "kick"}});
    vec![
        (case("baremetal.v1.PlanService.GetPlan", json!({"plan_id": "x"}), "GET", "/plans/x", None), "PLAN_NOT_FOUND"),
        (case("baremetal.v1.PlanService.CreatePlan", json!({}), "POST", "/plans", None), "INVALID_FIELD"),
        create(json!({"plan_id": "p", "steps": []}), "INVALID_PLAN"),
        create(json!({"plan_id": "p", "steps": [{"name": "a"}]}), "INVALID_PLAN"),
        create(json!({"plan_id": "p", "steps": [step]}), "INVALID_FIELD"),
        create(json!({"plan_id": "default-reboot", "steps": [{"name": "a", "reboot": {}}]}), "PLAN_EXISTS"),
    ]
}

fn runs() -> Vec<Refused> {
    let start = |message: Value, reason| {
        (case("baremetal.v1.RunService.StartRun", message.clone(), "POST", "/runs", Some(message)), reason)
    };
    let watch = |message: Value, query: &str, reason| {
        (case("baremetal.v1.RunService.WatchRuns", message, "GET", &format!("/runs:watch?{query}"), None), reason)
    };
    let on = |rpc: &'static str, method, path: &str, reason| {
        (case(rpc, json!({"run_id": "nope"}), method, &format!("/runs/nope{path}"), None), reason)
    };
    vec![
        start(json!({}), "INVALID_FIELD"),
        start(json!({"request_id": "r", "machine_id": "m-1", "type": "DANCE"}), "UNKNOWN_RUN_TYPE"),
        start(json!({"request_id": "r", "machine_id": "nope", "type": "REBOOT"}), "MACHINE_NOT_FOUND"),
        start(json!({"request_id": "req-1", "machine_id": "m-1", "type": "REPAVE"}), "REQUEST_ID_REUSED"),
        on("baremetal.v1.RunService.GetRun", "GET", "", "RUN_NOT_FOUND"),
        on("baremetal.v1.RunService.CancelRun", "POST", "/cancel", "RUN_NOT_FOUND"),
        on("baremetal.v1.RunService.StreamRunLogs", "GET", "/logs", "RUN_NOT_FOUND"),
        watch(json!({"filter": "phase=RUNNING"}), "filter=phase%3DRUNNING", "INVALID_FILTER"),
        watch(json!({"filter": "run_id=nope"}), "filter=run_id%3Dnope", "RUN_NOT_FOUND"),
        watch(
            json!({"after_sequence": "18446744073709551615"}),
            "after_sequence=18446744073709551615",
            "SEQUENCE_OUT_OF_RANGE",
        ),
        (
            case("baremetal.v1.RunService.ListRuns", json!({"filter": "x=1"}), "GET", "/runs?filter=x%3D1", None),
            "INVALID_FILTER",
        ),
    ]
}

fn operations() -> Vec<Refused> {
    let on = |rpc: &'static str, method, path: &str, reason| {
        (case(rpc, json!({"execution_id": "nope"}), method, &format!("/admin/executions/nope{path}"), None), reason)
    };
    vec![
        on("millwright.v1.EngineService.DescribeExecution", "GET", "", "EXECUTION_NOT_FOUND"),
        on("millwright.v1.EngineService.CancelExecution", "POST", "/cancel", "EXECUTION_NOT_FOUND"),
        on("millwright.v1.EngineService.TerminateExecution", "POST", "/terminate", "INVALID_FIELD"),
        (case("millwright.v1.EngineService.Freeze", json!({}), "POST", "/admin/freeze", None), "INVALID_FIELD"),
    ]
}

// CONTRACT "REST": the codes, `reason` the stable reason
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_is_the_same_through_both_doors() {
    let (world, _) = World::lived_in().await;
    for (case, expected) in [machines(), plans(), runs(), operations()].into_iter().flatten() {
        match through_both(&world, &case).await {
            Outcome::Refused { reason, .. } => assert_eq!(reason, expected, "{} {}", case.rpc, case.path),
            done @ Outcome::Done(..) => panic!("{} {}: {done:?}", case.rpc, case.path),
        }
    }
}

// CONTRACT: refusals name the legal alternatives, as a list
#[tokio::test]
async fn what_is_allowed_instead_is_a_list() {
    let (world, _) = World::lived_in().await;
    let answer = world.http.post("/api/v1/machines/m-1/phase", &json!({"phase": "PROVISIONING"})).await;
    let error = answer.refused(409, "ILLEGAL_TRANSITION");
    assert_eq!(error["code"], "FAILED_PRECONDITION");
    let allowed: Vec<&str> = error["allowed"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(allowed.contains(&"READY") && allowed.contains(&"RMA"), "{error}");
}
