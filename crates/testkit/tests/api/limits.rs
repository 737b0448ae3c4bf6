//! What one caller may use: calls a second, streams at once, time for a call. Each bound is said in plain
//! words, and the others do not feel it.

use crate::callers::{Caller, caller_at};
use crate::fixture::{Api, ByHand, brisk, sim_machine, within};
use crate::raw;
use crate::refusal::{Refusal, refused};
use prost_reflect::prost::Message as _;
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use service::{CallerLimits, Service};
use testkit::fleet::{Database, Fleet, eventually};
use tonic::{Code, Status, Streaming};

/// A server with these limits, its administrator, and somebody else.
async fn limited(limits: CallerLimits) -> (Fleet, ByHand, Caller, Caller) {
    let fleet = tokio::task::spawn_blocking(|| Fleet::new(Database::Sqlite, 1)).await.expect("a fleet");
    let engine = fleet.engine(brisk(), None);
    let service = Service::new(fleet.store.clone(), engine, fleet.providers(), limits).await.expect("a service");
    for secret in ["mwt_loud", "mwt_quiet"] {
        service.access().add_admin(secret, &secret[4..]).await.expect("a token");
    }
    let server = ByHand::serve(service).await;
    let (loud, quiet) = (caller_at(&server.url, "mwt_loud").await, caller_at(&server.url, "mwt_quiet").await);
    (fleet, server, loud, quiet)
}

// DESIGN "limits"; calls per caller, with a message in plain words, others unaffected
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_share_are_refused_to_that_caller_only() {
    let (_fleet, _server, loud, quiet) = limited(CallerLimits { calls_per_second: 2, burst: 10, streams: 10 }).await;
    let mut served = 0;
    let refusal = loop {
        match loud.me().await {
            Ok(_) => served += 1,
            Err(status) => break Refusal::of(&status),
        }
        assert!(served < 1_000, "was never refused");
    };
    assert_eq!((refusal.code, refusal.reason.as_str()), (Code::ResourceExhausted, "RATE_LIMITED"));
    let refusal = refusal.says("more than 2 calls a second").says("try again in");
    assert!(!refusal.message.contains("mwt_"));
    quiet.me().await.expect("somebody else is served");
    eventually("the share to fill again", || async { loud.me().await.ok() }).await;
    // what counts is the token, not the connection
    let status = async {
        loop {
            let again = caller_call(&loud).await;
            if let Err(status) = again {
                return status;
            }
        }
    };
    refused(Err::<(), _>(within("a refusal", status).await), Code::ResourceExhausted, "RATE_LIMITED");
    quiet.me().await.expect("somebody else is served");
}

async fn caller_call(who: &Caller) -> Result<mw::Me, Status> {
    who.me().await
}

// the smallest limits that can be configured do not lock anybody out
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_nothing_is_a_share_of_little() {
    let fleet = tokio::task::spawn_blocking(|| Fleet::new(Database::Sqlite, 1)).await.expect("a fleet");
    let limits = CallerLimits { calls_per_second: 0, burst: 0, streams: 0 };
    let engine = fleet.engine(brisk(), None);
    let service = Service::new(fleet.store.clone(), engine, fleet.providers(), limits).await.expect("a service");
    let server = ByHand::serve(service).await;
    let door = testkit::server::door(raw::channel(&server.url).await, Some(&server.token));
    let tokens = mw::token_service_client::TokenServiceClient::new(door);
    let me = || {
        let mut tokens = tokens.clone();
        async move { tokens.get_me(mw::GetMeRequest {}).await.ok() }
    };
    eventually("a first call", me).await;
    eventually("a second call", me).await;
}

async fn follow(who: &Caller) -> Result<Streaming<mw::Event>, Status> {
    Ok(who.events().watch_events(mw::WatchEventsRequest::default()).await?.into_inner())
}

// streams per caller, of whatever kind, and their places come back
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_beyond_the_share_are_refused_to_that_caller_only() {
    let limits = CallerLimits { calls_per_second: 10_000, burst: 10_000, streams: 2 };
    let (_fleet, _server, loud, quiet) = limited(limits).await;
    let first = follow(&loud).await.expect("a place");
    let watch = pb::WatchRunsRequest::default();
    let second = loud.runs().watch_runs(watch.clone()).await.expect("a place");
    let refusal = refused(follow(&loud).await, Code::ResourceExhausted, "LIMIT_REACHED");
    refusal.says("2 streams are open with this token").says("end one first");
    refused(loud.runs().watch_runs(watch).await, Code::ResourceExhausted, "LIMIT_REACHED");
    loud.me().await.expect("calls are not streams");
    let others = (follow(&quiet).await.expect("a place"), follow(&quiet).await.expect("a place"));
    drop(first);
    let again = eventually("a place to come back", || async { follow(&loud).await.ok() }).await;
    refused(follow(&loud).await, Code::ResourceExhausted, "LIMIT_REACHED");
    // one that was refused for another reason took no place
    drop((again, second));
    for _ in 0..5 {
        let beyond = mw::WatchEventsRequest { after: Some(1 << 40), ..Default::default() };
        eventually("the refusal of a bad sequence", || async {
            let status = loud.events().watch_events(beyond.clone()).await.expect_err("is refused");
            (status.code() == Code::OutOfRange).then_some(())
        })
        .await;
    }
    eventually("a place", || async { follow(&loud).await.ok() }).await;
    drop(others);
}

// a caller's own time limit is honoured: a call held up by a writer that does not get on ends
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_when_its_time_is_up() {
    let api = Api::new().await;
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let (entered, inside) = tokio::sync::oneshot::channel();
    let entered = std::sync::Mutex::new(Some(entered));
    let store = api.server.fleet.store.clone();
    let blocking = tokio::spawn(async move {
        let hold = move |_: &mut store::Tx<'_>| {
            if let Some(entered) = entered.lock().expect("no panic").take() {
                entered.send(()).expect("is waited for");
            }
            // until the test lets go, or is gone
            let _ = held.lock().expect("no panic").recv();
            Ok(())
        };
        store.write(&store::Caller::new("a test"), "hold", hold).await
    });
    inside.await.expect("the writer is held up");
    let register = pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) }.encode_to_vec();
    let path = "/baremetal.v1.MachineService/RegisterMachine";
    let headers = |timeout: &str| format!("Authorization: Bearer {}\r\ngrpc-timeout: {timeout}\r\n", api.server.token);
    let head = within("an answer", raw::grpc_head(&api.server.url, path, &headers("150m"), &register)).await;
    assert!(head.contains("grpc-status: 4\r\n"), "{head}");
    assert!(head.contains("within%20150%20ms") || head.contains("within 150 ms"), "{head}");
    // reads do not wait for it
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
    let_go.send(()).expect("is waited for");
    blocking.await.expect("no panic").expect("writes");
    // what it began may still be done, which the answer has said
    eventually("the registration", || async { api.try_machine("m-1").await.ok() }).await;
}

// a time limit that does not read is refused, not passed over
#[tokio::test]
async fn a_time_limit_that_does_not_read_is_refused() {
    let api = Api::new().await;
    let register = pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) }.encode_to_vec();
    let path = "/baremetal.v1.MachineService/RegisterMachine";
    for bad in ["5x", "five", "123456789S", "-1S", "1.5S", "S"] {
        let headers = format!("Authorization: Bearer {}\r\ngrpc-timeout: {bad}\r\n", api.server.token);
        let head = raw::grpc_head(&api.server.url, path, &headers, &register).await;
        assert!(head.contains("grpc-status: 3\r\n"), "{bad}: {head}");
    }
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
    let headers = format!("Authorization: Bearer {}\r\ngrpc-timeout: 99999999H\r\n", api.server.token);
    let head = raw::grpc_head(&api.server.url, path, &headers, &register).await;
    assert!(!head.contains("grpc-status: 3"), "{head}");
    assert_eq!(api.machine_ids("").await, ["m-1"]);
}
