//! Input that no honest client sends: answered with an error that says what is wrong, never with a
//! crash, and never stored.

use crate::fixture::{Api, map, on_both, sim_machine, start};
use crate::raw;
use prost_reflect::prost::Message as _;
use prost_reflect::prost::bytes::Bytes;
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use tonic::{Code, Request, Status};

const REGISTER: &str = "/baremetal.v1.MachineService/RegisterMachine";

async fn send(api: &Api, path: &str, body: impl Into<Bytes>) -> Result<Option<Bytes>, Status> {
    let channel = raw::channel(&api.server.url).await;
    raw::call_once(channel, path, raw::with_token(&api.server.token, body)).await
}

// issue 2: bad protobuf says which field and why, and stores nothing
#[tokio::test]
async fn bytes_that_are_no_protobuf_are_refused() {
    let api = Api::new().await;
    let whole = pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[("a", "b")])) }.encode_to_vec();
    for (body, says) in [
        (whole[..whole.len() - 3].to_vec(), "machine"),
        (vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], "machine"),
        // field 1 as a varint, and as text that is no UTF-8
        (vec![0x08, 0x01], "machine"),
        (vec![0x0a, 0x04, 0x0a, 0x02, 0xc3, 0x28], "machine_id"),
        (vec![0xff; 64], ""),
        (b"{\"machine\": {}}".to_vec(), ""),
    ] {
        let status = send(&api, REGISTER, body.clone()).await.expect_err("is refused");
        assert!(matches!(status.code(), Code::InvalidArgument | Code::Internal), "{status:?}");
        assert!(!status.message().is_empty() && status.message().contains(says), "{body:?}: {status:?}");
    }
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
}

// unknown fields are for newer clients, and are passed over
#[tokio::test]
async fn unknown_fields_are_passed_over() {
    let api = Api::new().await;
    let mut body = pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) }.encode_to_vec();
    body.extend([0xfa, 0x3f, 0x03, b'n', b'e', b'w']);
    send(&api, REGISTER, body).await.expect("registers");
    assert_eq!(api.machine_ids("").await, ["m-1"]);
}

// DESIGN "limits": a body has a bound
#[tokio::test]
async fn a_message_that_is_too_large_is_refused() {
    let api = Api::new().await;
    let mut machine = sim_machine("m-1", &[]);
    machine.labels.insert("big".into(), "x".repeat(5 * 1024 * 1024));
    let status = api.try_register(machine).await.expect_err("is refused");
    assert!(matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange), "{status:?}");
    assert!(!status.message().is_empty());
    api.sim("m-2", &[]).await;
    assert_eq!(api.machine_ids("").await, ["m-2"], "and the connection still serves");
}

// a call that is not there
#[tokio::test]
async fn an_unknown_rpc_is_unimplemented() {
    let api = Api::new().await;
    for path in ["/baremetal.v1.MachineService/Explode", "/no.such.Service/Call", "/"] {
        let status = send(&api, path, Bytes::new()).await.expect_err("is refused");
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
    }
}

// a compressed message, where none was agreed on
#[tokio::test]
async fn an_encoding_that_was_not_agreed_on_is_refused() {
    let api = Api::new().await;
    let mut request = raw::with_token(&api.server.token, Bytes::from_static(b"\x0a\x00"));
    request.metadata_mut().insert("grpc-encoding", "gzip".parse().expect("a header"));
    let channel = raw::channel(&api.server.url).await;
    let answer = raw::call_once(channel, REGISTER, request).await;
    let status = answer.expect_err("is refused");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
}

/// Every call that looks something up by a text of the caller's.
async fn lookups(api: &Api, text: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let id = || text.to_owned();
    let quoted = || format!("machine_id=\"{text}\"");
    let page = |filter: String, token: String| pb::ListMachinesRequest { filter, page_size: 0, page_token: token };
    let mut runs = api.runs();
    let mut engines = api.engines();
    let update = pb::UpdateMachineRequest {
        machine: Some(pb::Machine { machine_id: id(), ..Default::default() }),
        update_mask: None,
    };
    let describe = mw::DescribeExecutionRequest { execution_id: id() };
    let logs = pb::StreamRunLogsRequest { run_id: id(), ..Default::default() };
    let watch = pb::WatchRunsRequest { filter: format!("run_id=\"{text}\""), after_sequence: None };
    let terminate = mw::TerminateExecutionRequest { execution_id: id(), reason: "x".into() };
    let plan = pb::StartRunRequest { plan_id: id(), ..start("m-1", "", "r1") };
    let parameters = pb::StartRunRequest { parameters: map(&[("image", text)]), ..start("m-404", "REPAVE", "r1") };
    vec![
        ("GetMachine", api.try_machine(text).await.map(drop)),
        ("UpdateMachine", api.machines().update_machine(update).await.map(drop)),
        ("SetPhase", api.try_set_phase(text, pb::machine_status::Phase::Ready).await.map(drop)),
        ("ListMachines", api.machines().list_machines(page(quoted(), String::new())).await.map(drop)),
        ("ListMachines token", api.machines().list_machines(page(String::new(), id())).await.map(drop)),
        ("GetPlan", api.plans().get_plan(pb::GetPlanRequest { plan_id: id() }).await.map(drop)),
        ("StartRun machine", api.try_start(start(text, "REPAVE", "r1")).await.map(drop)),
        ("StartRun type", api.try_start(start("m-1", text, "r1")).await.map(drop)),
        ("StartRun plan", api.try_start(plan).await.map(drop)),
        ("StartRun request", api.try_start(start("m-404", "REPAVE", text)).await.map(drop)),
        ("StartRun parameter", api.try_start(parameters).await.map(drop)),
        ("GetRun", runs.get_run(pb::GetRunRequest { run_id: id() }).await.map(drop)),
        ("CancelRun", api.try_cancel(text).await.map(drop)),
        ("WatchRuns", runs.watch_runs(watch).await.map(drop)),
        ("StreamRunLogs", runs.stream_run_logs(logs).await.map(drop)),
        ("DescribeExecution", engines.describe_execution(describe).await.map(drop)),
        ("TerminateExecution", engines.terminate_execution(terminate).await.map(drop)),
    ]
}

fn is_the_callers_fault(call: &str, answer: &Result<(), Status>) {
    // an empty list is an answer, too
    let Err(status) = answer else {
        assert_eq!(call, "ListMachines");
        return;
    };
    assert!(matches!(status.code(), Code::InvalidArgument | Code::NotFound), "{call}: {status:?}");
    crate::refusal::Refusal::of(status);
}

// CONTRACT: a malformed field is INVALID_ARGUMENT, on either database: PostgreSQL stores no NUL
on_both!(control_characters_in_any_text_are_the_callers_fault, |api| async move {
    api.sim("m-1", &[]).await;
    for text in ["a\0b", "\u{1}", "a\r\nb", "\u{202e}gnp.exe", "💥", "'; DROP TABLE runs; --"] {
        for (call, answer) in lookups(&api, text).await {
            is_the_callers_fault(call, &answer);
        }
    }
    assert_eq!(api.machine_ids("").await, ["m-1"]);
});

// DESIGN section 6: every error has a stable code and a sentence, also when the input is absurdly long
#[tokio::test]
async fn absurdly_long_texts_are_refused_with_a_readable_error() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let long = "x".repeat(100_000);
    for (call, answer) in lookups(&api, &long).await {
        is_the_callers_fault(call, &answer);
        let size = answer.as_ref().err().map_or(0, |s| s.message().len());
        assert!(size < 8_000, "{call}: a sentence of {size} bytes");
    }
}

// a token on one call says nothing about the next
#[tokio::test]
async fn every_call_brings_its_own_token() {
    let api = Api::new().await;
    let channel = raw::channel(&api.server.url).await;
    let path = "/baremetal.v1.PlanService/ListPlans";
    raw::call_once(channel.clone(), path, raw::with_token(&api.server.token, Bytes::new())).await.expect("answers");
    let status = raw::call_once(channel, path, Request::new(Bytes::new())).await.expect_err("no token, no answer");
    assert_eq!(status.code(), Code::Unauthenticated);
}

// a client that goes away in the middle of a stream leaves nothing behind that hurts the others
#[tokio::test]
async fn clients_that_leave_in_the_middle_of_a_stream_are_forgotten() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    for _ in 0..50 {
        let mut client = api.server.runs().await;
        let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(0) };
        drop(client.watch_runs(request).await.expect("begins"));
    }
    let run = api.carry_out(start("m-1", "REPAVE", "r1")).await;
    assert_eq!(run.phase(), pb::run::Phase::Succeeded);
}
