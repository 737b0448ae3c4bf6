//! Input that no honest client sends: answered with an error that says what is wrong, never with a
//! crash, and never stored.

use crate::fixture::{Api, map, on_both, sim_machine, start, step};
use crate::raw;
use prost_reflect::prost::Message as _;
use prost_reflect::prost::bytes::Bytes;
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

const REGISTER: &str = "/baremetal.v1.MachineService/RegisterMachine";

async fn send(api: &Api, path: &str, body: impl Into<Bytes>) -> Result<Option<Bytes>, Status> {
    let channel = raw::channel(&api.server.url).await;
    raw::call_once(channel, path, raw::with_token(&api.server.token, body)).await
}

// bad protobuf says which field and why, and stores nothing
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
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
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
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
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
    let with_spec = |spec: pb::MachineSpec| pb::Machine { spec: Some(spec), ..Default::default() };
    let mac = with_spec(pb::MachineSpec { mac_addresses: vec![id()], ..Default::default() });
    let uuid = with_spec(pb::MachineSpec { system_uuid: id(), ..Default::default() });
    let mask = pb::UpdateMachineRequest {
        machine: Some(sim_machine("m-1", &[])),
        update_mask: Some(prost_reflect::prost_types::FieldMask { paths: vec![id()] }),
    };
    let mode = pb::step::Kind::Reboot(pb::Reboot { mode: id() });
    let mode = pb::Plan { plan_id: "p-1".into(), steps: vec![step("a", mode)], ..Default::default() };
    let variable = pb::SshCommand { command: "true".into(), args: vec![], environment: map(&[(text, "")]) };
    let variable = vec![step("a", pb::step::Kind::Ssh(variable))];
    let variable = pb::Plan { plan_id: "p-2".into(), steps: variable, ..Default::default() };
    let name = pb::StartRunRequest { parameters: map(&[(text, "x")]), ..start("m-1", "REPAVE", "r1") };
    let parameters = pb::StartRunRequest { parameters: map(&[("image", text)]), ..start("m-404", "REPAVE", "r1") };
    vec![
        ("GetMachine", api.try_machine(text).await.map(drop)),
        ("UpdateMachine", api.machines().update_machine(update).await.map(drop)),
        ("SetPhase", api.try_set_phase(text, pb::machine_status::Phase::Ready).await.map(drop)),
        ("ListMachines", api.machines().list_machines(page(quoted(), String::new())).await.map(drop)),
        ("ListMachines token", api.machines().list_machines(page(String::new(), id())).await.map(drop)),
        (
            "RegisterMachine id",
            api.try_register(pb::Machine { machine_id: id(), ..Default::default() }).await.map(drop),
        ),
        ("RegisterMachine mac", api.try_register(mac).await.map(drop)),
        ("RegisterMachine uuid", api.try_register(uuid).await.map(drop)),
        ("UpdateMachine mask", api.machines().update_machine(mask).await.map(drop)),
        ("CreatePlan mode", api.try_create_plan(mode).await.map(drop)),
        ("CreatePlan variable", api.try_create_plan(variable).await.map(drop)),
        ("StartRun parameter name", api.try_start(name).await.map(drop)),
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

/// What is wrong with an answer to a hostile text, if anything: it must be the caller's fault, with a
/// reason and a sentence that fits on a screen.
fn complaint(call: &str, answer: Result<(), Status>) -> Option<String> {
    // an empty list is an answer, too
    let Err(status) = answer else { return (call != "ListMachines").then(|| format!("{call}: is accepted")) };
    let has_reason = status.get_error_details().error_info().is_some_and(|i| !i.reason.is_empty());
    let is_fault = matches!(status.code(), Code::InvalidArgument | Code::NotFound);
    let size = status.message().len();
    let fine = is_fault && has_reason && (1..4000).contains(&size);
    (!fine).then(|| format!("{call}: {:?}, {size} bytes: {:.200}", status.code(), status.message()))
}

// CONTRACT: a malformed field is INVALID_ARGUMENT, on either database: PostgreSQL stores no NUL
on_both!(control_characters_in_any_text_are_the_callers_fault, |api| async move {
    api.sim("m-1", &[]).await;
    let mut complaints = Vec::new();
    for text in ["a\0b", "\u{1}", "a\r\nb", "\u{202e}gnp.exe", "💥", "'; DROP TABLE runs; --"] {
        let answers = lookups(&api, text).await;
        let found = answers.into_iter().filter_map(|(call, answer)| complaint(call, answer));
        complaints.extend(found.map(|c| format!("{text:?}: {c}")));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(api.machine_ids("").await, ["m-1"]);
});

// DESIGN section 6: every error has a stable code and a sentence, also when the input is absurdly long
#[tokio::test]
async fn absurdly_long_texts_are_refused_with_a_readable_error() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let answers = lookups(&api, &"x".repeat(100_000)).await;
    let complaints: Vec<String> = answers.into_iter().filter_map(|(call, answer)| complaint(call, answer)).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(api.machine_ids("").await, ["m-1"]);
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
