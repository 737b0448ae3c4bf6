//! WatchEvents: the one stream of everything. Every transition in order, without a gap, resumable; a slow
//! reader lags and holds nobody up.

use crate::callers::{Caller, caller, caller_at, root};
use crate::fixture::{Api, map, on_both, start, within};
use crate::refusal::refused;
use crate::two_servers::Two;
use futures::future::join_all;
use proto::millwright::v1 as mw;
use proto::millwright::v1::event_service_client::EventServiceClient;
use std::collections::BTreeSet;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

async fn watch(
    who: &Caller,
    filter: &str,
    after: Option<u64>,
    no_follow: bool,
) -> Result<Streaming<mw::Event>, Status> {
    let request = mw::WatchEventsRequest { filter: filter.into(), after, no_follow };
    Ok(who.events().watch_events(request).await?.into_inner())
}

async fn next(stream: &mut Streaming<mw::Event>) -> mw::Event {
    within("one more event", stream.message()).await.expect("no error").expect("one more event")
}

async fn rest(mut stream: Streaming<mw::Event>) -> Vec<mw::Event> {
    let mut events = Vec::new();
    while let Some(event) = within("the end", stream.message()).await.expect("no error") {
        events.push(event);
    }
    events
}

/// Something of every kind.
async fn history(api: &Api) {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[("sim.fault.reboot", "fail:1")]).await;
    api.carry_out(start("m-1", "REPAVE", "r1")).await;
    api.carry_out(start("m-2", "REBOOT", "r1")).await;
    let short = caller(api, "short", "viewer", "").await;
    root(api).await.revoke(&short.token.token_id).await.expect("revokes");
}

// every transition in order without gap, as the log has them
on_both!(everything_from_the_beginning_is_the_log_itself, |api| async move {
    history(&api).await;
    let root = root(&api).await;
    let events = root.all_events("").await;
    let rows = api.server.fleet.store.read(|tx| store::log_after(tx, 0, 10_000)).await.expect("reads");
    let numbers: Vec<u64> = events.iter().map(|e| e.sequence).collect();
    assert_eq!(numbers, (1..=rows.len() as u64).collect::<Vec<_>>());
    for (event, row) in events.iter().zip(&rows) {
        assert_eq!(
            (&event.kind, &event.id, &event.subject, &event.from, &event.to),
            (&row.entity_kind, &row.entity_id, &row.subject, &row.from_state, &row.to_state)
        );
        assert_eq!(
            (&event.trigger, &event.owner, &event.actor, &event.comment),
            (&row.trigger, &row.owner, &row.actor, &row.comment)
        );
        assert!(event.at.is_some() && event.metadata.is_some(), "{event:?}");
    }
    let kinds: BTreeSet<&str> = events.iter().map(|e| e.kind.as_str()).collect();
    assert!(["machine", "run", "step", "token"].iter().all(|k| kinds.contains(k)), "{kinds:?}");
});

// it goes on from any sequence, and follows
on_both!(events_resume_after_any_sequence_and_follow, |api| async move {
    history(&api).await;
    let root = root(&api).await;
    let all = root.all_events("").await;
    for after in [0, 1, all.len() as u64 / 2, all.len() as u64] {
        let stream = watch(&root, "", Some(after), true).await.expect("begins");
        assert_eq!(rest(stream).await, all[usize::try_from(after).expect("small")..], "after {after}");
    }
    let mut from_now = watch(&root, "", None, false).await.expect("begins");
    let mut from_head = watch(&root, "", Some(all.len() as u64), false).await.expect("begins");
    api.sim("m-3", &[]).await;
    for stream in [&mut from_now, &mut from_head] {
        let event = next(stream).await;
        assert_eq!((event.id.as_str(), event.sequence), ("m-3", all.len() as u64 + 1));
    }
    let nothing = watch(&root, "", None, true).await.expect("begins");
    assert_eq!(rest(nothing).await, [], "from now on, and no further");
});

// filters, each field of them
on_both!(events_are_filtered_by_what_they_are_about, |api| async move {
    history(&api).await;
    let root = root(&api).await;
    let all = root.all_events("").await;
    let run = all.iter().find(|e| e.kind == "run").expect("a run").id.clone();
    for (filter, wanted) in [
        ("kind=token".to_owned(), (|e| e.kind == "token") as fn(&mw::Event) -> bool),
        ("id=m-1".to_owned(), |e| e.id == "m-1"),
        (format!("subject={run}"), |e| ["run", "step"].contains(&e.kind.as_str())),
        ("to=SUCCEEDED AND kind=run".to_owned(), |e| e.to == "SUCCEEDED" && e.kind == "run"),
        ("trigger=registered".to_owned(), |e| e.trigger == "registered"),
        ("actor=tester".to_owned(), |e| e.actor == "tester"),
        ("kind=nonsense".to_owned(), |_| false),
    ] {
        let mut expected: Vec<mw::Event> = all.iter().filter(|e| wanted(e)).cloned().collect();
        if filter.starts_with("subject=") {
            expected.retain(|e| e.subject == run);
        }
        assert_eq!(root.all_events(&filter).await, expected, "{filter}");
        assert!(filter.contains("nonsense") || !expected.is_empty(), "{filter}");
    }
    for bad in ["colour=red", "kind", "kind=run AND"] {
        refused(watch(&root, bad, Some(0), true).await, Code::InvalidArgument, "INVALID_FILTER");
    }
});

// CONTRACT: beyond the head is OUT_OF_RANGE naming both ends
on_both!(a_sequence_that_is_not_there_is_refused_with_both_ends, |api| async move {
    history(&api).await;
    let root = root(&api).await;
    let head = root.all_events("").await.len() as u64;
    for after in [head + 1, head + 1_000_000, u64::MAX] {
        let refusal = refused(watch(&root, "", Some(after), false).await, Code::OutOfRange, "SEQUENCE_OUT_OF_RANGE");
        assert_eq!((refusal.details["first"].as_str(), &refusal.details["head"]), ("1", &head.to_string()));
        refusal.says(&format!("1 to {head}"));
    }
});

// several processes: whoever watches either sees what both do, in one order
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_of_two_servers_see_the_same_events() {
    let two = Two::start().await;
    let mut callers = Vec::new();
    for server in &two.servers {
        callers.push(caller_at(&server.url, &server.token).await);
    }
    let mut streams = Vec::new();
    for who in &callers {
        streams.push(watch(who, "", Some(0), false).await.expect("begins"));
    }
    let registrations = (0..30).map(|i| {
        let (mut machines, id) = (callers[i % 2].machines(), format!("m-{i}"));
        let machine = crate::fixture::sim_machine(&id, &[]);
        let request = proto::baremetal::v1::RegisterMachineRequest { machine: Some(machine) };
        async move { machines.register_machine(request).await.expect("registers") }
    });
    join_all(registrations).await;
    let runs = (0..6).map(|i| callers[i % 2].start(start(&format!("m-{i}"), "NET_RECONFIG", "r1")));
    join_all(runs).await.into_iter().for_each(|run| drop(run.expect("starts")));
    let seen = join_all(streams.into_iter().map(|mut stream| async move {
        let (mut events, mut ended) = (Vec::new(), 0);
        while ended < 6 {
            let event = next(&mut stream).await;
            ended += usize::from(event.kind == "run" && event.to == "SUCCEEDED");
            events.push(event);
        }
        events
    }))
    .await;
    assert_eq!(seen[0], seen[1]);
    let numbers: Vec<u64> = seen[0].iter().map(|e| e.sequence).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "no gap, no repeat, no reorder");
}

/// The memory of this process that is in use, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("reads");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

// a slow reader costs no memory and holds nobody up
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_hold_nobody_up_and_lose_nothing() {
    const SLOW: usize = 100;
    let api = Api::new().await;
    let root = root(&api).await;
    api.sim("m-1", &[]).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let endpoint = Channel::from_shared(api.server.url.clone()).expect("a URL");
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let door = testkit::server::door(endpoint.connect().await.expect("connects"), Some(&api.server.token));
        let request = mw::WatchEventsRequest { after: Some(0), ..Default::default() };
        slow.push(EventServiceClient::new(door).watch_events(request).await.expect("begins").into_inner());
    }
    let before = memory();
    // two megabytes of log, which none of them reads
    for i in 0..60 {
        let mut request = start("m-1", "NET_RECONFIG", &format!("r{i}"));
        request.parameters = map(&[("text", &"x".repeat(7_000))]);
        api.carry_out(request).await;
    }
    let all = root.all_events("").await;
    let bytes: usize = all.iter().map(prost_reflect::prost::Message::encoded_len).sum();
    let grown = memory().saturating_sub(before);
    assert!(bytes > 400_000, "{bytes} bytes of events");
    // a window's worth for each on either side, and not the whole log for each
    assert!(grown < SLOW * bytes / 2, "{grown} bytes for {SLOW} readers of {bytes} bytes");
    // and when they read at last, nothing is missing
    for mut stream in slow.drain(..).take(3) {
        let mut seen = Vec::new();
        while seen.len() < all.len() {
            seen.push(next(&mut stream).await);
        }
        assert_eq!(seen, all);
    }
}
