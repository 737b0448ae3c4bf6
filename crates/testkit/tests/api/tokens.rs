//! Tokens: taken back at once, through any server and out of every stream; expired on time; never the
//! last one; and a secret that is shown once and written nowhere.

use crate::callers::{Caller, caller, caller_at, caller_for, keyed, root};
use crate::door::reflection_for;
use crate::fixture::{Api, map, on_both, start, start_plan, step, within};
use crate::refusal::{refused, refused_field};
use crate::two_servers::Two;
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

/// What ends a stream, after whatever it had to say before that.
async fn end_of<T>(mut stream: Streaming<T>) -> (usize, Status) {
    let mut said = 0;
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => said += 1,
                Ok(None) => return Status::ok("it ended by itself"),
                Err(status) => return status,
            }
        }
    };
    let status = within("a stream to end", end).await;
    (said, status)
}

/// One stream of every kind; resolves when all have ended, with how.
async fn streams(who: &Caller, run: &str) -> Vec<Status> {
    let watch = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(0) };
    let runs = who.runs().watch_runs(watch).await.expect("begins").into_inner();
    let one = pb::WatchRunsRequest { filter: format!("run_id={run}"), after_sequence: None };
    let one = who.runs().watch_runs(one).await.expect("begins").into_inner();
    let logs = pb::StreamRunLogsRequest { run_id: run.into(), ..Default::default() };
    let logs = who.runs().stream_run_logs(logs).await.expect("begins").into_inner();
    let all = mw::WatchEventsRequest { after: Some(0), ..Default::default() };
    let events = who.events().watch_events(all).await.expect("begins").into_inner();
    let (runs, one, logs, events) = tokio::join!(end_of(runs), end_of(one), end_of(logs), end_of(events));
    vec![runs.1, one.1, logs.1, events.1]
}

async fn hanging_run(api: &Api) -> String {
    api.sim("m-hang", &[("sim.fault.ssh", "hang")]).await;
    let command = step("hang", crate::fixture::ssh("sleep", &["1"]));
    api.create_plan("hang", vec![pb::Step { max_retries: Some(20), ..command }]).await;
    let run = api.start(start_plan("m-hang", "hang", "r1")).await.run_id;
    api.at_step(&run, "hang").await;
    run
}

// revocation takes effect at once, also for what was used a moment before
on_both!(a_revoked_token_is_refused_from_the_next_call_on, |api| async move {
    let root = root(&api).await;
    for _ in 0..5 {
        let who = caller(&api, "short", "operator", "").await;
        for _ in 0..3 {
            who.me().await.expect("is known, and remembered");
        }
        reflection_for(&api, &who.secret).await.expect("reflects");
        let revoked = root.revoke(&who.token.token_id).await.expect("revokes");
        assert_eq!((revoked.state.as_str(), revoked.revoked_by.as_str()), ("revoked", "tester"));
        refused(who.me().await, Code::Unauthenticated, "TOKEN_REVOKED");
        // this makes no call that would look at the token once more: the gate alone must know
        refused(reflection_for(&api, &who.secret).await, Code::Unauthenticated, "TOKEN_REVOKED");
        assert_eq!(root.revoke(&who.token.token_id).await.expect("again"), revoked, "again is no change");
    }
});

// and what it has open ends
on_both!(open_streams_end_with_their_token, |api| async move {
    let run = hanging_run(&api).await;
    let who = caller(&api, "short", "viewer", "").await;
    let mut watching = Vec::new();
    for filter in [String::new(), format!("run_id={run}")] {
        let request = pb::WatchRunsRequest { filter, after_sequence: None };
        watching.push(who.runs().watch_runs(request).await.expect("begins").into_inner());
    }
    let logs = pb::StreamRunLogsRequest { run_id: run.clone(), ..Default::default() };
    let logs = who.runs().stream_run_logs(logs).await.expect("begins").into_inner();
    let events = who.events().watch_events(mw::WatchEventsRequest::default()).await.expect("begins").into_inner();
    let other = caller(&api, "other", "admin", "").await;
    let viewer = caller(&api, "viewer", "viewer", "").await;
    let mut others = other.events().watch_events(mw::WatchEventsRequest::default()).await.expect("begins").into_inner();
    root(&api).await.revoke(&who.token.token_id).await.expect("revokes");
    for stream in watching {
        refused(Err::<(), _>(end_of(stream).await.1), Code::Unauthenticated, "TOKEN_REVOKED");
    }
    refused(Err::<(), _>(end_of(logs).await.1), Code::Unauthenticated, "TOKEN_REVOKED");
    refused(Err::<(), _>(end_of(events).await.1), Code::Unauthenticated, "TOKEN_REVOKED");
    // somebody else's go on, and tell of it
    let told = within("an event", others.message()).await.expect("no error").expect("an event");
    assert_eq!((told.kind.as_str(), told.to.as_str(), told.id), ("token", "revoked", who.token.token_id));
    // but only to those who may list tokens
    assert_eq!(viewer.all_events("kind=token").await, []);
});

/// Much to say: runs whose every event carries seven kilobytes.
async fn long_log(api: &Api) -> usize {
    api.sim("m-long", &[]).await;
    for i in 0..12 {
        let mut request = start("m-long", "NET_RECONFIG", &format!("r{i}"));
        request.parameters = map(&[("text", &"x".repeat(7_000))]);
        api.carry_out(request).await;
    }
    let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(0) };
    let mut stream = api.runs().watch_runs(request).await.expect("begins").into_inner();
    let (mut events, mut ended) = (0, 0);
    while ended < 12 {
        let event = within("an event", stream.message()).await.expect("no error").expect("an event");
        ended += usize::from(event.snapshot.as_ref().is_some_and(crate::fixture::is_terminal));
        events += 1;
    }
    events
}

/// A client that takes no more than 64 KiB before it has read them.
async fn small_window(api: &Api, who: &Caller) -> RunServiceClient<testkit::server::Door> {
    let endpoint = Channel::from_shared(api.server.url.clone()).expect("a URL");
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let channel = endpoint.connect().await.expect("connects");
    RunServiceClient::new(testkit::server::door(channel, Some(&who.secret)))
}

// a stream that always has more to say never waits: it must learn of it all the same
on_both!(a_busy_stream_ends_in_the_middle, |api| async move {
    let events = long_log(&api).await;
    let who = caller(&api, "slow", "viewer", "").await;
    let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(0) };
    let mut stream = small_window(&api, &who).await.watch_runs(request).await.expect("begins").into_inner();
    stream.message().await.expect("no error").expect("an event");
    root(&api).await.revoke(&who.token.token_id).await.expect("revokes");
    let (said, status) = end_of(stream).await;
    refused(Err::<(), _>(status), Code::Unauthenticated, "TOKEN_REVOKED");
    assert!(said + 1 < events, "all {events} events were told after the token was revoked");
});

// no stream slips in while its token is being revoked, to go on for ever
on_both!(a_stream_opened_while_its_token_is_revoked_ends_too, |api| async move {
    let root = root(&api).await;
    for _ in 0..12 {
        let who = caller(&api, "racing", "viewer", "").await;
        let openings = (0..8).map(|_| {
            let mut events = who.events();
            async move { events.watch_events(mw::WatchEventsRequest::default()).await }
        });
        let (opened, revoked) = tokio::join!(join_all(openings), root.revoke(&who.token.token_id));
        revoked.expect("revokes");
        for stream in opened {
            let end = match stream {
                Ok(stream) => end_of(stream.into_inner()).await.1,
                Err(status) => status,
            };
            refused(Err::<(), _>(end), Code::Unauthenticated, "TOKEN_REVOKED");
        }
    }
});

// expiry ends streams on time
on_both!(an_expired_token_is_refused_and_its_streams_end, |api| async move {
    let run = hanging_run(&api).await;
    let who = caller_for(&api, "brief", "viewer", "", 2).await;
    let expires = who.token.expires_at.expect("a time");
    let me = who.me().await.expect("is known");
    assert_eq!(me.expires_at, Some(expires));
    for end in streams(&who, &run).await {
        refused(Err::<(), _>(end), Code::Unauthenticated, "TOKEN_EXPIRED");
    }
    let now = api.server.service.now().micros();
    assert!(now >= expires.seconds * 1_000_000 + i64::from(expires.nanos) / 1000, "and not before");
    refused(who.me().await, Code::Unauthenticated, "TOKEN_EXPIRED").says("expired at");
    let listed = root(&api).await.tokens().list_tokens(mw::ListTokensRequest::default()).await.expect("lists");
    let state = listed.into_inner().tokens.into_iter().find(|t| t.token_id == who.token.token_id).map(|t| t.state);
    assert_eq!(state.as_deref(), Some("expired"));
});

// a file with somebody else's token, or with one that is good no longer, leaves the fleet no administrator
#[tokio::test]
async fn only_what_administers_the_fleet_is_an_administrators_token() {
    let api = Api::new().await;
    let access = api.server.service.access();
    let mut others = Vec::new();
    for (role, customer) in [("viewer", ""), ("operator", ""), ("admin", "acme")] {
        others.push(caller(&api, "other", role, customer).await.secret);
    }
    let revoked = caller(&api, "revoked", "admin", "").await;
    root(&api).await.revoke(&revoked.token.token_id).await.expect("revokes");
    others.push(revoked.secret);
    for secret in others {
        assert!(access.add_admin(&secret, "admin").await.is_ok_and(|there| there.is_some()), "it stays what it is");
    }
    let there = access.add_admin(&api.server.token, "admin").await.expect("looks");
    assert!(there.is_some_and(|t| t.valid(api.server.service.now()).is_ok()));
}

// the last administrator cannot be revoked
on_both!(the_last_administrator_stays, |api| async move {
    let root = root(&api).await;
    let brief = caller_for(&api, "brief", "admin", "", 1).await;
    caller(&api, "of-a-customer", "admin", "acme").await;
    testkit::fleet::eventually("a token to expire", || async { brief.me().await.err() }).await;
    refused(root.revoke(&root.token.token_id).await, Code::FailedPrecondition, "LAST_ADMIN").says("create another");
    root.revoke(&brief.token.token_id).await.expect("an expired one may go");
    let second = caller(&api, "second", "admin", "").await;
    second.revoke(&root.token.token_id).await.expect("not the last any more");
    refused(root.me().await, Code::Unauthenticated, "TOKEN_REVOKED");
    refused(second.revoke(&second.token.token_id).await, Code::FailedPrecondition, "LAST_ADMIN");
    refused(second.revoke("tok_404").await, Code::NotFound, "TOKEN_NOT_FOUND");
});

// and not by two at the same moment, each of whom finds the other still there
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_do_not_revoke_the_last_two_administrators() {
    let two = Two::start().await;
    let [one, other] = [0, 1].map(|i: usize| (two.servers[i].url.clone(), two.servers[i].token.clone()));
    let (mut one, mut other) = (caller_at(&one.0, &one.1).await, caller_at(&other.0, &other.1).await);
    for round in 0..15 {
        let (a, b) = tokio::join!(one.revoke(&one.token.token_id), other.revoke(&other.token.token_id));
        let (won, lost) = if a.is_ok() { (a, b) } else { (b, a) };
        let gone = won.expect("one of them may go").token_id;
        refused(lost, Code::FailedPrecondition, "LAST_ADMIN");
        // the one that is left makes another, so that there are two again
        let left = if gone == one.token.token_id { &other } else { &one };
        let (_, secret) = left.make(&format!("again-{round}"), "admin", "", 0).await;
        if gone == one.token.token_id {
            one = caller_at(&two.servers[0].url, &secret).await;
        } else {
            other = caller_at(&two.servers[1].url, &secret).await;
        }
    }
}

// revocation through the other of two servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_through_one_server_is_refused_by_the_other_at_once() {
    let two = Two::start().await;
    two.register("m-1", &[("sim.fault.reboot", "hang")]).await;
    let admin = caller_at(&two.servers[0].url, &two.servers[0].token).await;
    let run = admin.start(start("m-1", "REBOOT", "r1")).await.expect("starts").run_id;
    for round in 0..5 {
        let (token, secret) = admin.make(&format!("short-{round}"), "viewer", "", 0).await;
        let who = caller_at(&two.servers[1].url, &secret).await;
        let all = mw::WatchEventsRequest { after: Some(0), ..Default::default() };
        let events = who.events().watch_events(all).await.expect("begins").into_inner();
        let logs = pb::StreamRunLogsRequest { run_id: run.clone(), ..Default::default() };
        let logs = who.runs().stream_run_logs(logs).await.expect("begins").into_inner();
        let watch = pb::WatchRunsRequest { filter: String::new(), after_sequence: None };
        let runs = who.runs().watch_runs(watch).await.expect("begins").into_inner();
        admin.revoke(&token.token_id).await.expect("revokes");
        refused(who.me().await, Code::Unauthenticated, "TOKEN_REVOKED");
        let (events, logs, runs) = tokio::join!(end_of(events), end_of(logs), end_of(runs));
        for end in [events.1, logs.1, runs.1] {
            refused(Err::<(), _>(end), Code::Unauthenticated, "TOKEN_REVOKED");
        }
    }
}

#[tokio::test]
async fn a_token_that_makes_no_sense_is_not_made() {
    let api = Api::new().await;
    let root = root(&api).await;
    let make = async |name: &str, role: &str, customer: &str, ttl_seconds| {
        let request =
            mw::CreateTokenRequest { name: name.into(), role: role.into(), customer_id: customer.into(), ttl_seconds };
        root.tokens().create_token(request).await
    };
    refused_field(make("", "viewer", "", 0).await, "name");
    refused_field(make("a b", "viewer", "", 0).await, "name");
    let refusal = refused_field(make("a", "root", "", 0).await, "role");
    assert_eq!(refusal.allowed(), ["viewer", "operator", "admin"]);
    refused_field(make("a", "viewer", "a\u{0}b", 0).await, "customer_id");
    refused_field(make("a", "viewer", "", -1).await, "ttl_seconds");
    refused_field(make("a", "viewer", "", i64::MAX).await, "ttl_seconds");
    let listed = root.tokens().list_tokens(mw::ListTokensRequest::default()).await.expect("lists").into_inner();
    assert_eq!(listed.tokens.len(), 1);
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

thread_local! {
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
}

/// Everything that is logged on this thread from now on. The subscriber is the whole process's, since what one
/// thread finds disabled is disabled for all; other threads are not listened to.
struct Captured(Sink);

impl Captured {
    fn start() -> Self {
        let sink = Sink::default();
        let writer = sink.clone();
        let here = dynamic_filter_fn(|_, _| CAPTURING.get());
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(here));
        tracing::subscriber::set_global_default(subscriber).expect("the only one of its kind");
        CAPTURING.set(true);
        Self(sink)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().expect("no panic")).into_owned()
    }
}

// secrets nowhere but in the one answer; a repeated request is answered without it. On one thread,
// so that whatever the server logs is caught
#[tokio::test]
async fn a_secret_is_in_its_one_answer_and_nowhere_else() {
    let captured = Captured::start();
    let api = Api::new().await;
    let root = root(&api).await;
    let request = || mw::CreateTokenRequest { name: "ci".into(), role: "operator".into(), ..Default::default() };
    let first = root.tokens().create_token(keyed(request(), "key-1")).await.expect("makes").into_inner();
    let (token, secret) = (first.token.expect("a token"), first.secret);
    assert!(secret.starts_with("mwt_") && secret.len() > 40 && first.reason.is_empty());
    assert!(secret.starts_with(&token.prefix) && token.prefix.len() == 8, "{}", token.prefix);
    let again = root.tokens().create_token(keyed(request(), "key-1")).await.expect("is answered").into_inner();
    assert_eq!(
        (again.token.as_ref(), again.secret.as_str(), again.reason.as_str()),
        (Some(&token), "", "SECRET_ALREADY_SHOWN")
    );
    // used well, wrongly, and after it is gone
    let ci = caller_at(&api.server.url, &secret).await;
    api.sim("m-1", &[]).await;
    let run = ci.start(start("m-1", "REBOOT", "r1")).await.expect("starts");
    let mut told = vec![format!("{:?}", ci.revoke(&token.token_id).await.expect_err("is refused"))];
    told.push(format!("{:?}", ci.start(start("m-404", "REBOOT", "r1")).await.expect_err("is refused")));
    api.ended(&run.run_id).await;
    root.revoke(&token.token_id).await.expect("revokes");
    told.push(format!("{:?}", ci.me().await.expect_err("is refused")));
    let listed = root.tokens().list_tokens(mw::ListTokensRequest::default()).await.expect("lists").into_inner();
    told.push(format!("{listed:?}"));
    told.push(format!("{:?}", root.entries("").await));
    told.push(format!("{:?}", root.all_events("").await));
    let explained = root.explain().explain(mw::ExplainRequest { id: token.token_id.clone() }).await.expect("explains");
    told.push(format!("{explained:?}"));
    told.push(captured.text());
    assert!(captured.text().len() > 1000, "what is logged was caught");
    let rest = &secret[token.prefix.len()..];
    for text in &told {
        assert!(!text.contains(rest), "the secret is told in {text}");
        assert!(!text.contains(&api.server.token[8..]), "the administrator's secret is told in {text}");
    }
    // nor on the disk, in any row of any table or in the write-ahead log
    let file = api.server.fleet.database_file().expect("a file");
    for end in ["", "-wal"] {
        let path = format!("{}{end}", file.display());
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let found = bytes.windows(rest.len()).any(|w| w == rest.as_bytes());
        assert!(!found, "the secret is in {path}");
        assert!(end.is_empty() || bytes.len() > 1000, "and there was something to look at");
    }
}
