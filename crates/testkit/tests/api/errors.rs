//! The error catalogue: each reason has one code, and CONTRACT's table has a call for each line.

use crate::fixture::{Api, ByHand, reboot, sim_machine, start, start_plan, step};
use crate::raw;
use crate::refusal::{Refusal, refused};
use domain::{Error, Reason};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use std::sync::Arc;
use testkit::ambient::VirtualAmbient;
use testkit::fleet::{eventually, quick};
use testkit::postgres::{Cluster, Durability};
use tonic::{Code, Status};

/// The code that CONTRACT gives a reason. No `_`: a new reason must be judged here.
fn documented(reason: Reason) -> Code {
    match reason {
        // "unknown machine, run or plan"
        Reason::MachineNotFound
        | Reason::RunNotFound
        | Reason::PlanNotFound
        | Reason::ExecutionNotFound
        | Reason::TokenNotFound
        | Reason::CredentialNotFound
        | Reason::NodeNotFound
        | Reason::JobNotFound
        | Reason::TaskNotFound
        | Reason::BootNodeNotFound
        | Reason::WorkflowNotFound
        | Reason::FindingNotFound
        | Reason::ImageNotFound
        | Reason::SiteNotFound
        | Reason::SiteMachineNotFound
        | Reason::IdNotFound
        | Reason::NoSuchPath => Code::NotFound,
        // "active run, illegal transition or hard invariant"
        Reason::ActiveRun
        | Reason::IllegalTransition
        | Reason::NotYourTransition
        | Reason::PhaseForbidsRun
        | Reason::MachineRetired
        | Reason::RunAlreadyEnded
        | Reason::ProviderUnknown
        | Reason::CapabilityMissing
        | Reason::ClusterMissing
        | Reason::Frozen
        | Reason::NotConfirmed
        | Reason::LastAdmin
        | Reason::CredentialInUse
        | Reason::CredentialMissing
        | Reason::WorkflowMissing
        | Reason::NodeHeld
        | Reason::ActiveTask
        | Reason::ActionNotAllowed
        | Reason::ModeUnavailable
        | Reason::AgentMissing
        | Reason::ForceNeeded
        | Reason::MachineInUse
        | Reason::ImageInUse
        | Reason::SiteInUse
        | Reason::SecretKeyUnavailable
        | Reason::LoginRefused
        | Reason::UntrustedCertificate
        | Reason::HostKeyChanged
        | Reason::WrongMachine
        | Reason::PermissionMissing
        | Reason::WrongState
        | Reason::ProviderRefused => Code::FailedPrecondition,
        // "missing or malformed field, unknown run type, bad filter, bad page token"
        Reason::InvalidField
        | Reason::InvalidFilter
        | Reason::InvalidPageToken
        | Reason::InvalidPlan
        | Reason::UnknownRunType => Code::InvalidArgument,
        // "reused request id with another body", "a MAC, serial or system UUID that another machine holds"
        Reason::RequestIdReused
        | Reason::IdempotencyKeyReused
        | Reason::PlanExists
        | Reason::NodeExists
        | Reason::WorkflowExists
        | Reason::SiteExists
        | Reason::IdentityTaken => Code::AlreadyExists,
        // "no or bad token"
        Reason::TokenMissing
        | Reason::TokenInvalid
        | Reason::TokenExpired
        | Reason::TokenRevoked
        | Reason::ReportTokenInvalid
        | Reason::BootstrapTokenInvalid
        | Reason::AgentCertificateRefused
        | Reason::AgentRevoked => Code::Unauthenticated,
        // "not allowed"
        Reason::RoleTooLow | Reason::OutOfScope => Code::PermissionDenied,
        // "database away"
        Reason::StoreUnavailable | Reason::OutcomeUnknown | Reason::ShuttingDown => Code::Unavailable,
        // hardware away
        Reason::Unreachable
        | Reason::ConnectionRefused
        | Reason::CircuitOpen
        | Reason::BadAnswer
        | Reason::ProviderSilent => Code::Unavailable,
        // "a limit reached"
        Reason::LimitReached | Reason::RateLimited | Reason::QueueFull | Reason::EndpointBusy | Reason::StorageFull => {
            Code::ResourceExhausted
        }
        // "a non-zero Machine.version that does not match"
        Reason::VersionMismatch | Reason::Contention | Reason::MachineHeld => Code::Aborted,
        // "a token before the kept range or beyond the head"
        Reason::SequenceOutOfRange => Code::OutOfRange,
        Reason::DeadlineExceeded => Code::DeadlineExceeded,
        Reason::MethodNotAllowed => Code::Unimplemented,
        Reason::Internal => Code::Internal,
    }
}

// CONTRACT "Codes"; G-21
#[test]
fn every_reason_has_its_documented_code() {
    for reason in Reason::ALL.iter().copied() {
        let error = Error::new(reason, "what was done, to what").with("field", "f").allowing(["a", "b"]);
        let refusal = Refusal::of(&api::to_status(error));
        assert_eq!((refusal.code, refusal.reason.as_str()), (documented(reason), reason.as_str()));
        assert_eq!((refusal.message.as_str(), refusal.allowed()), ("what was done, to what", vec!["a", "b"]));
    }
}

// the reasons are contract: scripts hold on to them
#[test]
fn the_reasons_are_spelt_as_they_were() {
    let known = "INVALID_FIELD INVALID_FILTER INVALID_PAGE_TOKEN INVALID_PLAN UNKNOWN_RUN_TYPE TOKEN_MISSING \
        TOKEN_INVALID TOKEN_EXPIRED TOKEN_REVOKED ROLE_TOO_LOW OUT_OF_SCOPE MACHINE_NOT_FOUND RUN_NOT_FOUND \
        PLAN_NOT_FOUND EXECUTION_NOT_FOUND TOKEN_NOT_FOUND ID_NOT_FOUND IDENTITY_TAKEN PLAN_EXISTS REQUEST_ID_REUSED \
        IDEMPOTENCY_KEY_REUSED ACTIVE_RUN ILLEGAL_TRANSITION NOT_YOUR_TRANSITION PHASE_FORBIDS_RUN RUN_ALREADY_ENDED \
        PROVIDER_UNKNOWN CAPABILITY_MISSING CLUSTER_MISSING FROZEN NOT_CONFIRMED LAST_ADMIN VERSION_MISMATCH CONTENTION \
        SEQUENCE_OUT_OF_RANGE LIMIT_REACHED RATE_LIMITED QUEUE_FULL STORAGE_FULL STORE_UNAVAILABLE OUTCOME_UNKNOWN SHUTTING_DOWN \
        DEADLINE_EXCEEDED INTERNAL NO_SUCH_PATH METHOD_NOT_ALLOWED CREDENTIAL_NOT_FOUND CREDENTIAL_IN_USE \
        CREDENTIAL_MISSING SECRET_KEY_UNAVAILABLE LOGIN_REFUSED UNTRUSTED_CERTIFICATE HOST_KEY_CHANGED WRONG_MACHINE \
        PROVIDER_REFUSED ENDPOINT_BUSY UNREACHABLE CONNECTION_REFUSED CIRCUIT_OPEN BAD_ANSWER PROVIDER_SILENT \
        MACHINE_RETIRED MACHINE_HELD BOOT_NODE_NOT_FOUND WORKFLOW_NOT_FOUND FINDING_NOT_FOUND IMAGE_NOT_FOUND \
        WORKFLOW_EXISTS REPORT_TOKEN_INVALID WORKFLOW_MISSING FORCE_NEEDED MACHINE_IN_USE IMAGE_IN_USE \
        BOOTSTRAP_TOKEN_INVALID AGENT_CERTIFICATE_REFUSED REVOKED \
        NODE_NOT_FOUND JOB_NOT_FOUND TASK_NOT_FOUND NODE_EXISTS NODE_HELD ACTIVE_TASK ACTION_NOT_ALLOWED \
        MODE_UNAVAILABLE AGENT_MISSING SITE_NOT_FOUND SITE_MACHINE_NOT_FOUND SITE_EXISTS SITE_IN_USE PERMISSION_MISSING \
        WRONG_STATE";
    let now: Vec<&str> = Reason::ALL.iter().map(|r| r.as_str()).collect();
    for word in known.split_whitespace() {
        assert!(now.contains(&word), "{word} is gone or renamed");
    }
}

// CONTRACT's table, line by line, by calls
#[tokio::test]
async fn every_line_of_the_contracts_table_has_its_code_and_reason() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    api.sim("m-2", &[]).await;
    let active = api.start(start("m-1", "REBOOT", "req-1")).await.run_id;
    let run = |r: Result<pb::Run, Status>| r.map(drop);
    let list = |filter: &str, token: &str| {
        let request = pb::ListRunsRequest { filter: filter.into(), page_size: 0, page_token: token.into() };
        async { api.runs().list_runs(request).await.map(drop) }
    };
    let watch = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(1 << 40) };
    let stale = pb::Machine { version: 99, ..sim_machine("m-2", &[]) };
    let cases = [
        (api.try_machine("m-404").await.map(drop), Code::NotFound, "MACHINE_NOT_FOUND"),
        (run(api.try_cancel("run_404").await), Code::NotFound, "RUN_NOT_FOUND"),
        (run(api.try_start(start_plan("m-2", "p-404", "r")).await), Code::NotFound, "PLAN_NOT_FOUND"),
        (run(api.try_start(start("m-1", "REBOOT", "req-2")).await), Code::FailedPrecondition, "ACTIVE_RUN"),
        (api.try_set_phase("m-2", Phase::InService).await.map(drop), Code::FailedPrecondition, "ILLEGAL_TRANSITION"),
        (run(api.try_start(start("m-2", "REBOOT", "")).await), Code::InvalidArgument, "INVALID_FIELD"),
        (run(api.try_start(start("m-2", "DANCE", "r")).await), Code::InvalidArgument, "UNKNOWN_RUN_TYPE"),
        (list("colour=red", "").await, Code::InvalidArgument, "INVALID_FILTER"),
        (list("", "nonsense").await, Code::InvalidArgument, "INVALID_PAGE_TOKEN"),
        (run(api.try_start(start("m-1", "REPAVE", "req-1")).await), Code::AlreadyExists, "REQUEST_ID_REUSED"),
        (api.try_register(stale).await.map(drop), Code::Aborted, "VERSION_MISMATCH"),
        (api.runs().watch_runs(watch).await.map(drop), Code::OutOfRange, "SEQUENCE_OUT_OF_RANGE"),
    ];
    for (answer, code, reason) in cases {
        refused(answer, code, reason);
    }
    assert_eq!(api.status("m-1").await.active_run_id, active);
}

// CONTRACT: bad page token; a token belongs to its list and its filter
#[tokio::test]
async fn a_page_token_is_good_for_its_list_and_filter_only() {
    let api = Api::new().await;
    for id in ["m-1", "m-2"] {
        api.sim(id, &[]).await;
        api.carry_out(start(id, "REBOOT", "r1")).await;
    }
    let machines = |filter: &str, size: i32, token: &str| {
        let request = pb::ListMachinesRequest { filter: filter.into(), page_size: size, page_token: token.into() };
        async { api.machines().list_machines(request).await.map(tonic::Response::into_inner) }
    };
    let runs = |filter: &str, size: i32, token: &str| {
        let request = pb::ListRunsRequest { filter: filter.into(), page_size: size, page_token: token.into() };
        async { api.runs().list_runs(request).await.map(tonic::Response::into_inner) }
    };
    let of_machines = machines("", 1, "").await.expect("a page").next_page_token;
    let of_runs = runs("", 1, "").await.expect("a page").next_page_token;
    let bad = |r: Result<(), Status>| {
        let refusal = refused(r, Code::InvalidArgument, "INVALID_PAGE_TOKEN");
        assert_eq!(refusal.field, "page_token");
    };
    bad(machines("", 1, &of_runs).await.map(drop));
    bad(runs("", 1, &of_machines).await.map(drop));
    bad(machines("phase=READY", 1, &of_machines).await.map(drop));
    bad(machines("", 1, &of_machines[1..]).await.map(drop));
    bad(machines("", 1, &format!("{of_machines}AAAA")).await.map(drop));
    for token in ["x", "%%%", "AAAAAAAAAAAAAAAA", &"A".repeat(100_000)] {
        bad(machines("", 1, token).await.map(drop));
        bad(runs("", 1, token).await.map(drop));
    }
    machines("", 100, &of_machines).await.expect("another page size is fine");
}

// DESIGN "limits": page sizes
#[tokio::test]
async fn a_page_size_out_of_bounds_is_refused_by_every_list() {
    let api = Api::new().await;
    for size in [-1, 1001, i32::MAX, i32::MIN] {
        let machines = pb::ListMachinesRequest { page_size: size, ..Default::default() };
        let runs = pb::ListRunsRequest { page_size: size, ..Default::default() };
        let executions = proto::millwright::v1::ListExecutionsRequest { page_size: size, ..Default::default() };
        let answers = [
            api.machines().list_machines(machines).await.map(drop),
            api.runs().list_runs(runs).await.map(drop),
            api.engines().list_executions(executions).await.map(drop),
        ];
        for answer in answers {
            crate::refusal::refused_field(answer, "page_size").says("1000");
        }
    }
}

// CONTRACT: database away UNAVAILABLE, and how it is when the server is closing its own
#[tokio::test]
async fn a_closed_database_is_unavailable() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let store = api.server.service.store().clone();
    tokio::task::spawn_blocking(move || store.close()).await.expect("closes");
    let answers = [
        api.try_machine("m-1").await.map(drop),
        api.try_register(sim_machine("m-2", &[])).await.map(drop),
        api.try_start(start("m-1", "REBOOT", "r1")).await.map(drop),
        api.runs().list_runs(pb::ListRunsRequest::default()).await.map(drop),
        api.runs().watch_runs(pb::WatchRunsRequest::default()).await.map(drop),
    ];
    for answer in answers {
        refused(answer, Code::Unavailable, "SHUTTING_DOWN");
    }
    assert_eq!(raw::http_get(&api.server.url, "/readyz").await.0, 503);
    assert_eq!(raw::http_get(&api.server.url, "/healthz").await.0, 200, "alive, but not ready");
}

// CONTRACT: database away UNAVAILABLE; and all is well when it is back
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_is_unavailable_until_it_is_back() {
    let (cluster, store) = tokio::task::spawn_blocking(|| {
        let cluster = Cluster::start(Durability::Fast);
        let options = store::Options::Postgres(Box::new(cluster.database()));
        let store = store::Store::open(&options, VirtualAmbient::new(1)).expect("opens");
        (Arc::new(cluster), store)
    })
    .await
    .expect("a database");
    let workflow = workflow::RunWorkflow::new(provider::Providers::default());
    let engine = engine::Engine::new(store.clone(), quick("test"), vec![Arc::new(workflow)], None);
    let service =
        service::Service::new(store, engine, provider::Providers::default(), service::CallerLimits::default())
            .await
            .expect("a service");
    let server = ByHand::serve(service).await;
    let mut machines = server.machines().await;
    let register = || pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) };
    machines.register_machine(register()).await.expect("registers");

    let away = cluster.clone();
    tokio::task::spawn_blocking(move || away.kill()).await.expect("is gone");
    let get = || pb::GetMachineRequest { machine_id: "m-1".into() };
    refused(machines.get_machine(get()).await, Code::Unavailable, "STORE_UNAVAILABLE").says("nothing was changed");
    refused(machines.register_machine(register()).await, Code::Unavailable, "STORE_UNAVAILABLE");
    assert_eq!(raw::http_get(&server.url, "/readyz").await.0, 503);

    let back = cluster.clone();
    tokio::task::spawn_blocking(move || back.start_again()).await.expect("is back");
    eventually("the machine to be read again", || {
        let mut machines = machines.clone();
        async move { machines.get_machine(get()).await.ok() }
    })
    .await;
    machines.register_machine(register()).await.expect("and written");
    assert_eq!(raw::http_get(&server.url, "/readyz").await.0, 200);
}

// CONTRACT: a limit reached RESOURCE_EXHAUSTED; one client cannot fill the writer's queue
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_too_much_waiting_is_told_to_slow_down() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    // the writer is held up by somebody else
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (held, holding) = tokio::sync::oneshot::channel();
    let (released, held) = (std::sync::Mutex::new(released), std::sync::Mutex::new(Some(held)));
    let store = api.server.service.store().clone();
    let holdup = tokio::spawn(async move {
        let hold = move |_: &mut store::Tx<'_>| {
            if let Some(held) = held.lock().expect("a lock").take() {
                held.send(()).expect("the test listens");
                released.lock().expect("a lock").recv().expect("the test lets go");
            }
            Ok(())
        };
        store.write(&store::Caller::new("another"), "hold", hold).await.expect("writes");
    });
    holding.await.expect("the writer is held up");
    // a connection has room for 1024 calls
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(api.server.machines().await);
    }
    let calls: Vec<_> = (0..2100)
        .map(|i| {
            let mut client = clients[i % clients.len()].clone();
            let machine = Some(sim_machine("m-1", &[("n", &i.to_string())]));
            tokio::spawn(async move { client.register_machine(pb::RegisterMachineRequest { machine }).await.map(drop) })
        })
        .collect();
    let (first, _, rest) = futures::future::select_all(calls).await;
    let refusal = refused(first.expect("no panic"), Code::ResourceExhausted, "QUEUE_FULL").says("slow down");
    assert!(refusal.message.contains("of your changes"), "{refusal:?}");
    release.send(()).expect("the writer waits");
    holdup.await.expect("no panic");
    let answers = futures::future::join_all(rest).await;
    let done = answers.into_iter().filter(|a| a.as_ref().is_ok_and(Result::is_ok)).count();
    assert!(done >= 2048, "what had found room was done: {done}");
}

// a refusal leaves the server as it was: the next call is served
#[tokio::test]
async fn refusals_tell_the_next_step_where_there_is_one() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    api.create_plan("p", vec![step("a", reboot())]).await;
    api.start(start("m-1", "REBOOT", "r1")).await;
    let refusal = refused(api.try_start(start_plan("m-1", "p", "r2")).await, Code::FailedPrecondition, "ACTIVE_RUN");
    assert_eq!(refusal.allowed(), ["wait", "cancel"]);
}
