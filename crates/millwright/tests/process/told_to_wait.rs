//! What a caller meets at a server that is stopping: a call in flight gets its true answer, a new one is told
//! when to come back through both doors, a watch ends with a word and goes on at the next start.

use crate::load;
use crate::process::until;
use crate::server::Home;
use crate::wire::{Wire, connect};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::run::Phase;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use testkit::server::door;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

fn is_told_to_come_back(status: &Status) -> bool {
    let reason = status.get_details_error_info().map(|info| info.reason);
    let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let hinted = hint.is_some_and(|delay| !delay.is_zero());
    status.code() == Code::Unavailable && reason.as_deref() == Some("SHUTTING_DOWN") && hinted
}

#[test]
fn a_caller_of_a_server_that_stops_is_answered_or_told_when_to_come_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
    let _inside = runtime.enter();
    let home = Home::new();
    let config = "[engine]\nlease_seconds = 12\ncall_timeout_seconds = 6\n";
    let mut launch = home.launch("data").with(&["--sim", "0"]).config(config);
    let server = launch.start_at_a_fixed_address();
    let (url, token) = (server.url.clone(), std::fs::read_to_string(&server.token_file).expect("a token"));
    let (url, token) = (url.as_str(), token.trim());
    let wire = Wire::to(&[url], token);
    let our_door = || door(connect(url), Some(token));

    // the first act takes long enough to ask a few questions meanwhile
    let labels = [("sim.latency_ms", "0".to_owned()), ("sim.fault.net", "slow:4000".to_owned())];
    let (stays, goes) = runtime.block_on(async {
        load::make_plan(&wire).await;
        load::register_simulated(&wire, "stays", &labels).await;
        load::register_simulated(&wire, "goes", &labels).await;
        (load::start_run(&wire, "stays", "stays").await, load::start_run(&wire, "goes", "goes").await)
    });
    let mut watch = runtime.block_on(async {
        let from = pb::WatchRunsRequest { after_sequence: Some(0), ..Default::default() };
        RunServiceClient::new(our_door()).watch_runs(from).await.expect("a watch").into_inner()
    });
    let mut health = runtime.block_on(async {
        let asked = HealthCheckRequest { service: String::new() };
        HealthClient::new(connect(url)).watch(asked).await.expect("a watch").into_inner()
    });
    let mut next_health = || runtime.block_on(health.message()).expect("no error").map(|told| told.status());
    assert_eq!(next_health(), Some(ServingStatus::Serving));
    let world = crate::audit::World::of(&launch.data);
    world.wait_for("deferred", 2);
    let in_flight = runtime.spawn({
        let (door, run_id) = (our_door(), goes.run_id.clone());
        async move { RunServiceClient::new(door).cancel_run(pb::CancelRunRequest { run_id }).await }
    });
    until("the cancel is under way", || {
        let engine = EngineServiceClient::new(our_door());
        let asked = mw::ListExecutionsRequest::default();
        let page = runtime.block_on(async { engine.clone().list_executions(asked).await }).expect("a page");
        page.into_inner().executions.iter().any(|e| !e.cancel_requested_by.is_empty()).then_some(())
    });
    server.process.signal("TERM");

    // a connection from before, a new one, and the other door
    let (old, bearer) = (our_door(), format!("Bearer {token}"));
    let ask = |door| async {
        let request = pb::GetMachineRequest { machine_id: "stays".into() };
        MachineServiceClient::new(door).get_machine(request).await
    };
    drop(runtime.block_on(ask(old.clone())));
    until("new calls are refused", || runtime.block_on(ask(old.clone())).is_err().then_some(()));
    for door in [old.clone(), our_door()] {
        let refused = runtime.block_on(ask(door)).expect_err("it stops");
        assert!(is_told_to_come_back(&refused), "{refused:?}");
    }
    let rest = |path: &str| runtime.block_on(testkit::web::get(url, path, &[("authorization", &bearer)]));
    let refused = rest("/api/v1/machines/stays");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.head);
    assert!(refused.body.contains("SHUTTING_DOWN"), "{}", refused.body);
    assert_eq!(rest("/readyz").status, 503, "and no balancer should send anybody here");
    assert_eq!(rest("/healthz").status, 200, "it lives");

    // calls in flight
    let answered = runtime.block_on(in_flight).expect("no panic").expect("the call in flight is answered").into_inner();
    assert_eq!((answered.run_id.as_str(), answered.phase()), (goes.run_id.as_str(), Phase::Canceled), "{answered:?}");
    let mut last = 0;
    let end = runtime.block_on(async {
        loop {
            match watch.message().await {
                Ok(Some(event)) => last = event.sequence,
                Ok(None) => panic!("a watch ended without a word"),
                Err(status) => break status,
            }
        }
    });
    assert!(is_told_to_come_back(&end), "{end:?}");
    assert_eq!((next_health(), next_health()), (Some(ServingStatus::NotServing), None));
    let stopped = server.process.end().with(0);
    assert!(!stopped.err.contains("still in flight"), "{}", stopped.err);

    let server = launch.start();
    let ended = |run_id: &str| server.ended(run_id)["phase"].clone();
    assert_eq!(ended(&stays.run_id), "SUCCEEDED", "what nobody canceled");
    assert_eq!(ended(&goes.run_id), "CANCELED", "what somebody did");
    assert_eq!(world.count("reset"), 1);
    runtime.block_on(async {
        let from = pb::WatchRunsRequest { after_sequence: Some(last), ..Default::default() };
        let mut watch = RunServiceClient::new(our_door()).watch_runs(from).await.expect("it goes on").into_inner();
        let next = watch.message().await.expect("goes on").expect("an event");
        assert!(next.sequence > last, "from where it ended");
    });
}
