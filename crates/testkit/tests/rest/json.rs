//! CONTRACT's JSON rules, one by one, with the document's own samples.

use crate::fixture::start;
use crate::world::World;
use serde_json::{Value, json};
use testkit::samples::{sample_machine, sample_plan};

/// Whether everything of `wanted` stands in `found`.
fn contains(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.iter().all(|(key, value)| found.get(key).is_some_and(|f| contains(value, f)))
        }
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(w, f)| contains(w, f))
        }
        (wanted, found) => wanted == found,
    }
}

/// The names of an object's fields, as they stand.
fn names(text: &str) -> Vec<String> {
    // serde_json sorts the keys of a `Value`; here the order is the point
    let mut names = Vec::new();
    let (mut depth, mut in_text, mut escaped, mut word) = (0, false, false, String::new());
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => {
                in_text = !in_text;
                if in_text {
                    word.clear();
                }
            }
            _ if in_text => word.push(c),
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ':' if depth == 1 => names.push(word.clone()),
            _ => {}
        }
    }
    names
}

// G-19-01: accepted and round-trips; status is the server's
#[tokio::test]
async fn the_sample_machine_is_accepted_and_round_trips() {
    let world = World::new().await;
    let made = world.http.post("/api/v1/machines", &sample_machine()).await.ok();
    let read = world.http.get("/api/v1/machines/m-123").await.ok();
    assert_eq!(made, read);
    let mut wanted = sample_machine();
    wanted.as_object_mut().expect("an object").remove("status");
    assert!(contains(&wanted, &read), "{read:#}");
    assert_eq!(read["status"]["phase"], "FACTORY_READY");
    // what was read can be sent back
    let again = world.http.patch("/api/v1/machines/m-123", &read).await.ok();
    assert_eq!((&again["spec"], &again["labels"]), (&read["spec"], &read["labels"]));
}

// G-19-02
#[tokio::test]
async fn the_sample_plan_is_accepted_and_round_trips() {
    let world = World::new().await;
    let made = world.http.post("/api/v1/plans", &sample_plan()).await.ok();
    assert!(contains(&sample_plan(), &made), "{made:#}");
    assert_eq!(world.http.get("/api/v1/plans/plan-repave-ubuntu-2204-v1").await.ok(), made);
    let wrapped = world.http.post("/api/v1/plans", &json!({"plan": sample_plan()})).await.ok();
    assert_eq!(wrapped, made, "the same plan again, wrapped in its name");
}

// G-19-03, G-19-04: a run as the document shows it, times in RFC 3339, what is absent `null`
#[tokio::test]
async fn a_run_looks_like_the_sample() {
    let world = World::new().await;
    world.api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let started = json!({"request_id": "req-456", "machine_id": "m-1", "type": "REPAVE"});
    let id = world.http.post("/api/v1/runs", &started).await.ok()["run_id"].as_str().expect("an id").to_owned();
    world.api.until(&id, "in its second step", |r| r.current_step == r.steps[1].name).await;
    let run = world.http.get(&format!("/api/v1/runs/{id}")).await.ok();
    assert!(contains(&started, &run), "{run:#}");
    assert_eq!((&run["phase"], &run["steps"][0]["state"]), (&json!("RUNNING"), &json!("SUCCEEDED")));
    assert_eq!((&run["steps"][1]["state"], &run["steps"][1]["retry_count"]), (&json!("RUNNING"), &json!(0)));
    assert_eq!((&run["finished_at"], &run["error"]), (&Value::Null, &Value::Null));
    let at = run["created_at"].as_str().expect("a time");
    assert!(at.len() >= 20 && at.as_bytes()[10] == b'T' && at.ends_with('Z'), "{at}");
    world.http.post(&format!("/api/v1/runs/{id}/cancel"), &json!({})).await.ok();
}

// CONTRACT: the proto's field names, every field present, 64 bits as texts, in the order of numbers
#[tokio::test]
async fn every_field_is_present_under_its_proto_name() {
    let (world, run) = World::lived_in().await;
    let text = world.http.get("/api/v1/machines/m-2").await.text();
    assert_eq!(names(&text), ["machine_id", "labels", "spec", "status", "version"]);
    let text = world.http.get(&format!("/api/v1/runs/{run}")).await.text();
    let expected: Vec<String> =
        api::json::descriptor("baremetal.v1.Run").expect("known").fields().map(|f| f.name().into()).collect();
    assert_eq!(names(&text), expected);
    let machine = world.http.get("/api/v1/machines/m-2").await.ok();
    assert!(machine["version"].is_string() && machine["status"]["last_seen"].is_null(), "{machine:#}");
    assert_eq!(machine["spec"]["rack"], "", "a text that was not given is empty");
    let plan = world.http.get("/api/v1/plans/default-reboot").await.ok();
    let step = plan["steps"][0].as_object().expect("a step");
    let kinds = ["ssh", "reboot", "netboot", "repave", "join", "verify", "net", "rma"];
    assert_eq!(
        kinds.iter().filter(|k| step.contains_key(**k)).count(),
        1,
        "of a choice only what was chosen: {step:?}"
    );
    assert!(step.contains_key("timeout_seconds") && step.contains_key("max_retries"));
}

// proto JSON: names in camel case, numbers as texts, enums as numbers, null as absent
#[tokio::test]
async fn requests_may_be_spelt_as_proto_json_allows() {
    let world = World::new().await;
    let machine = json!({"machineId": "m-1", "spec": {"provider": "sim", "serialNumber": "S1", "rack": null},
        "labels": {"sim.latency_ms": "0"}, "status": null, "version": 0});
    let made = world.http.post("/api/v1/machines", &machine).await.ok();
    assert_eq!((&made["machine_id"], &made["spec"]["serial_number"]), (&json!("m-1"), &json!("S1")));
    let plan =
        json!({"plan_id": "p-1", "steps": [{"name": "a", "timeout_seconds": "60", "max_retries": 1.0, "reboot": {}}]});
    let made = world.http.post("/api/v1/plans", &plan).await.ok();
    assert_eq!((&made["steps"][0]["timeout_seconds"], &made["steps"][0]["max_retries"]), (&json!(60), &json!(1)));
    let set = world.http.post("/api/v1/machines/m-1/phase", &json!({"phase": 2})).await.ok();
    assert_eq!(set["status"]["phase"], "READY");
}

// CONTRACT: lists are `?filter=&page_size=&page_token=`
#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let world = World::new().await;
    for n in 0..5 {
        world.api.sim(&format!("m-{n}"), &[("half", if n % 2 == 0 { "even" } else { "odd" })]).await;
    }
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("/api/v1/machines?filter=labels.half%3Deven&page_size=2&page_token={token}");
        let page = world.http.get(&path).await.ok();
        found.extend(page["machines"].as_array().expect("a list").iter().map(|m| m["machine_id"].clone()));
        token = page["next_page_token"].as_str().expect("a token").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["m-0", "m-2", "m-4"]);
    let all = world.http.get("/api/v1/machines?filter=&page_size=&page_token=").await.ok();
    assert_eq!(all["machines"].as_array().map(Vec::len), Some(5));
}

// the safe repeat works through either door
#[tokio::test]
async fn a_run_started_at_one_door_is_known_at_the_other() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let run = world.api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    let body = json!({"request_id": "req-1", "machine_id": "m-1", "type": "REBOOT"});
    assert_eq!(world.http.post("/api/v1/runs", &body).await.ok()["run_id"], run.run_id);
}
