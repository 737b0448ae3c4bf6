//! The document's own examples and interaction patterns.

use crate::fixture::{Api, is_terminal, start, states, within};
use crate::watch::{next, snapshot, watch};
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use serde_json::{Value, json};
use testkit::samples::{sample_machine, sample_plan};

/// A message from the document's JSON, and that JSON again from the message.
fn read<M: Message + Default>(name: &str, json: &Value) -> M {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    let descriptor = pool.get_message_by_name(&format!("baremetal.v1.{name}")).expect("a message");
    let message = DynamicMessage::deserialize(descriptor.clone(), json).expect("the document's JSON is accepted");
    let bytes = message.encode_to_vec();
    let again = DynamicMessage::decode(descriptor, bytes.as_slice()).expect("decodes");
    let options = SerializeOptions::new().use_proto_field_name(true);
    let shown = again.serialize_with_options(serde_json::value::Serializer, &options).expect("serializes");
    assert!(contains(json, &shown), "{name} does not round-trip:\n{json:#}\n{shown:#}");
    M::decode(bytes.as_slice()).expect("decodes")
}

/// Whether everything of `wanted` that is not proto's default stands in `found`.
fn contains(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted.iter().all(|(key, value)| {
            let is_default = [json!(""), json!(false), json!(null), json!(0)].contains(value);
            found.get(key).map_or(is_default, |f| contains(value, f))
        }),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(w, f)| contains(w, f))
        }
        (wanted, found) => wanted == found,
    }
}

fn machine_of_the_document() -> pb::Machine {
    read("Machine", &sample_machine())
}

fn plan_of_the_document() -> pb::Plan {
    read("Plan", &sample_plan())
}

// G-19-01; the conditions of the sample are derived by the server
#[tokio::test]
async fn the_sample_machine_is_accepted_and_round_trips() {
    let api = Api::new().await;
    let sample = machine_of_the_document();
    let registered = api.register(sample.clone()).await;
    assert_eq!(registered.status.as_ref().map(pb::MachineStatus::phase), Some(Phase::FactoryReady), "status is ours");
    api.set_phase("m-123", Phase::Ready).await;
    let read = api.machine("m-123").await;
    assert_eq!((read.machine_id, read.labels, read.spec), (sample.machine_id, sample.labels, sample.spec));
    let status = read.status.expect("a status");
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Ready, ""));
    assert_eq!(status.phase_set_by, "operator");
}

// G-19-02
#[tokio::test]
async fn the_sample_plan_validates_and_round_trips() {
    let api = Api::new().await;
    let sample = plan_of_the_document();
    assert_eq!(api.try_create_plan(sample.clone()).await.expect("is accepted"), sample);
    let request = pb::GetPlanRequest { plan_id: "plan-repave-ubuntu-2204-v1".into() };
    let plan = api.plans().get_plan(request).await.expect("is there").into_inner();
    assert_eq!(plan, sample);
    let numbers: Vec<_> = plan.steps.iter().map(|s| (s.timeout_seconds, s.max_retries)).collect();
    let expected = [(60, 2), (1800, 1), (300, 2), (600, 1), (300, 0)].map(|(t, r)| (Some(t), Some(r)));
    assert_eq!(numbers, expected);
}

// G-19-03: as JSON, and as a run that really stands there
#[tokio::test]
async fn the_sample_run_is_representable_and_can_be_lived() {
    let sample = json!({
        "run_id": "run-789",
        "machine_id": "m-123",
        "request_id": "req-456",
        "type": "REPAVE",
        "plan_id": "plan-repave-ubuntu-2204-v1",
        "phase": "RUNNING",
        "current_step": "repave-os",
        "steps": [
            {"name": "set-netboot", "state": "SUCCEEDED", "retry_count": 0},
            {"name": "repave-os", "state": "RUNNING", "retry_count": 0}
        ],
        "created_at": "2026-01-29T15:10:00Z",
        "started_at": "2026-01-29T15:10:05Z",
        "finished_at": null
    });
    let sample: pb::Run = read("Run", &sample);
    let api = Api::new().await;
    let mut machine = machine_of_the_document();
    machine.spec.as_mut().expect("a spec").provider = "sim".into();
    machine.labels.insert("sim.fault.repave".into(), "hang".into());
    api.register(machine).await;
    api.try_create_plan(plan_of_the_document()).await.expect("is accepted");
    let request = pb::StartRunRequest { plan_id: sample.plan_id.clone(), ..start("m-123", "REPAVE", "req-456") };
    let run = api.start(request).await;
    let run = api.at_step(&run.run_id, "repave-os").await;
    assert_eq!(
        (&run.machine_id, &run.request_id, &run.r#type, &run.plan_id, run.phase(), &run.current_step),
        (&sample.machine_id, &sample.request_id, &sample.r#type, &sample.plan_id, sample.phase(), &sample.current_step)
    );
    assert_eq!(states(&run)[..2], states(&sample));
    assert_eq!(states(&run)[2..], [State::Waiting; 3]);
    assert!(run.created_at.is_some() && run.started_at.is_some() && run.finished_at.is_none());
}

// the sample plan on a simulated machine, to its end
#[tokio::test]
async fn the_sample_plan_runs() {
    let api = Api::new().await;
    let mut machine = machine_of_the_document();
    machine.spec.as_mut().expect("a spec").provider = "sim".into();
    machine.labels.insert("sim.latency_ms".into(), "0".into());
    api.register(machine).await;
    api.try_create_plan(plan_of_the_document()).await.expect("is accepted");
    let request =
        pb::StartRunRequest { plan_id: "plan-repave-ubuntu-2204-v1".into(), ..start("m-123", "REPAVE", "req-456") };
    assert_eq!(api.carry_out(request).await.phase(), RunPhase::Succeeded);
    assert_eq!(api.phase("m-123").await, Phase::InService);
}

// G-14-02: trigger and observe
#[tokio::test]
async fn trigger_and_observe() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.latency_ms", "20")]).await;
    let mut events = watch(&api, "machine_id=m-1", None).await;
    let run = api.start(start("m-1", "REPAVE", "req-1")).await;
    assert_eq!(run.phase(), RunPhase::Pending);
    let mut running = Vec::new();
    let last = loop {
        let event = next(&mut events).await;
        assert_eq!(snapshot(&event).run_id, run.run_id);
        match snapshot(&event).phase() {
            RunPhase::Running => running.push(event.message),
            RunPhase::Pending => assert!(running.is_empty()),
            _ => break event,
        }
    };
    assert_eq!(snapshot(&last).phase(), RunPhase::Succeeded);
    for step in ["set-netboot", "repave", "reboot"] {
        assert!(running.iter().any(|m| m.contains(&format!("step {step} succeeded"))), "{running:?}");
    }
}

// G-14-03: the answer was lost, and the client asks again
#[tokio::test]
async fn idempotent_retry() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let first = api.start(start("m-1", "REPAVE", "req-123")).await;
    api.until(&first.run_id, "running", |r| r.phase() == RunPhase::Running).await;
    let again = api.start(start("m-1", "REPAVE", "req-123")).await;
    assert_eq!((again.phase(), again.run_id), (RunPhase::Running, first.run_id));
}

// G-14-04: poll for completion
#[tokio::test]
async fn poll_for_completion() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.latency_ms", "30")]).await;
    let run = api.start(start("m-1", "REPAVE", "req-1")).await;
    let mut seen = vec![(run.phase(), run.current_step.clone())];
    let watching = async {
        loop {
            let now = api.run(&run.run_id).await;
            if is_terminal(&now) {
                return now;
            }
            seen.push((now.phase(), now.current_step));
            seen.dedup();
        }
    };
    let ended = within("the end", watching).await;
    let order =
        |p: &(RunPhase, String)| (p.0 as i32, ["", "set-netboot", "repave", "reboot"].iter().position(|s| *s == p.1));
    let running: Vec<_> = seen.iter().filter(|p| p.0 == RunPhase::Running).collect();
    assert!(running.iter().map(|p| order(p)).is_sorted(), "{seen:?}");
    assert_eq!(ended.phase(), RunPhase::Succeeded);
}
