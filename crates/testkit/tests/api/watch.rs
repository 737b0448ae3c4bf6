//! WatchRuns: every change in order, with the run as it was; resumable, and nobody misses anything.

use crate::fixture::{Api, is_terminal, on_both, start, within};
use crate::refusal::refused;
use futures::StreamExt as _;
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use std::collections::BTreeMap;
use tonic::{Code, Status, Streaming};

pub async fn try_watch(api: &Api, filter: &str, after: Option<u64>) -> Result<Streaming<pb::RunEvent>, Status> {
    let request = pb::WatchRunsRequest { filter: filter.into(), after_sequence: after };
    Ok(api.runs().watch_runs(request).await?.into_inner())
}

pub async fn watch(api: &Api, filter: &str, after: Option<u64>) -> Streaming<pb::RunEvent> {
    try_watch(api, filter, after).await.expect("the watch begins")
}

pub async fn next(stream: &mut Streaming<pb::RunEvent>) -> pb::RunEvent {
    within("one more event", stream.message()).await.expect("no error").expect("one more event")
}

pub fn snapshot(event: &pb::RunEvent) -> &pb::Run {
    event.snapshot.as_ref().expect("every event has a snapshot")
}

/// To the end of a stream that ends by itself.
async fn all(stream: Streaming<pb::RunEvent>) -> Vec<pb::RunEvent> {
    within("the end of a watch", stream.map(|e| e.expect("no error")).collect()).await
}

/// Until this many runs have ended.
async fn until_ended(stream: &mut Streaming<pb::RunEvent>, runs: usize) -> Vec<pb::RunEvent> {
    let (mut events, mut ended) = (Vec::new(), 0);
    while ended < runs {
        let event = next(stream).await;
        ended += usize::from(is_terminal(snapshot(&event)));
        events.push(event);
    }
    events
}

fn sequences(events: &[pb::RunEvent]) -> Vec<u64> {
    events.iter().map(|e| e.sequence).collect()
}

// CONTRACT: replays every event since, each with the snapshot as it was; G-14-02, G-12-06
on_both!(a_replay_shows_every_event_with_the_run_as_it_was, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "fail:1")]).await;
    let run = api.carry_out(start("m-1", "REPAVE", "r1")).await;
    let events = all(watch(&api, &format!("run_id={}", run.run_id), Some(0)).await).await;
    assert!(sequences(&events).windows(2).all(|w| w[0] < w[1]), "{:?}", sequences(&events));
    let versions: Vec<u64> = events.iter().map(|e| snapshot(e).version).collect();
    assert_eq!(versions, (1..=run.version).collect::<Vec<_>>(), "no change is left out");
    assert!(events.iter().all(|e| e.ts.is_some() && !e.message.is_empty()));
    let phases: Vec<RunPhase> = events.iter().map(|e| snapshot(e).phase()).collect();
    assert_eq!((phases[0], phases[1]), (RunPhase::Pending, RunPhase::Running));
    assert!(phases[1..phases.len() - 1].iter().all(|p| *p == RunPhase::Running));
    // as it was: at the first event nothing had begun, and at each step's start the next ones had not
    let state = |e: &pb::RunEvent, i: usize| snapshot(e).steps[i].state();
    assert!((0..3).all(|i| state(&events[0], i) == State::Waiting));
    let first_repave = events.iter().find(|e| state(e, 1) == State::Running).expect("the second step started");
    assert_eq!((state(first_repave, 0), state(first_repave, 2)), (State::Succeeded, State::Waiting));
    assert!(events.iter().any(|e| state(e, 1) == State::Running && snapshot(e).steps[1].retry_count == 1));
    assert_eq!(events.last().map(snapshot), Some(&run), "the last one is the run as it is");
});

// CONTRACT: without after_sequence, the present snapshots of the runs that are not terminal, then it follows
on_both!(without_a_sequence_present_snapshots_come_first, |api| async move {
    for id in ["m-1", "m-2", "m-3", "m-4"] {
        api.sim(id, &[]).await;
    }
    api.carry_out(start("m-1", "REBOOT", "ended-before")).await;
    api.freeze().await;
    let two = api.start(start("m-2", "REBOOT", "r1")).await;
    let three = api.start(start("m-3", "REBOOT", "r1")).await;
    let mut stream = watch(&api, "", None).await;
    let present = [next(&mut stream).await, next(&mut stream).await];
    let ids: Vec<&str> = present.iter().map(|e| snapshot(e).run_id.as_str()).collect();
    assert_eq!(ids, [two.run_id.as_str(), three.run_id.as_str()]);
    assert!(present.iter().all(|e| snapshot(e).phase() == RunPhase::Pending && e.sequence == present[0].sequence));
    let four = api.start(start("m-4", "REBOOT", "r1")).await;
    let event = next(&mut stream).await;
    assert_eq!((snapshot(&event).run_id.as_str(), snapshot(&event).phase()), (four.run_id.as_str(), RunPhase::Pending));
    assert!(event.sequence > present[0].sequence);
    api.unfreeze().await;
    let rest = until_ended(&mut stream, 3).await;
    // exactly what a replay from the snapshots' sequence shows
    let mut replay = watch(&api, "", Some(present[0].sequence)).await;
    assert_eq!(until_ended(&mut replay, 3).await[1..], rest);
});

// CONTRACT: on one run it ends after the terminal event
on_both!(a_watch_of_one_run_follows_it_and_ends_with_it, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    let mut stream = watch(&api, &format!("run_id={}", run.run_id), None).await;
    assert_eq!(snapshot(&next(&mut stream).await).phase(), RunPhase::Pending);
    api.unfreeze().await;
    let rest = all(stream).await;
    assert!(rest[..rest.len() - 1].iter().all(|e| !is_terminal(snapshot(e))));
    assert_eq!(rest.last().map(snapshot), Some(&api.run(&run.run_id).await));
});

// CONTRACT: "or of the one run named": an ended run is shown once
#[tokio::test]
async fn a_watch_of_an_ended_run_shows_it_and_ends() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REBOOT", "r1")).await;
    let events = all(watch(&api, &format!("run_id={}", run.run_id), None).await).await;
    assert_eq!(events.iter().map(snapshot).collect::<Vec<_>>(), [&run]);
}

// CONTRACT: the sequence is a resume token, wherever one stopped
on_both!(resuming_at_any_sequence_gives_exactly_the_rest, |api| async move {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[]).await;
    let (one, two) =
        tokio::join!(api.carry_out(start("m-1", "REPAVE", "r1")), api.carry_out(start("m-2", "REBOOT", "r1")));
    let everything = until_ended(&mut watch(&api, "", Some(0)).await, 2).await;
    let head = everything.last().expect("events").sequence;
    for after in 0..=head {
        let rest: Vec<pb::RunEvent> = everything.iter().filter(|e| e.sequence > after).cloned().collect();
        let mut stream = watch(&api, "", Some(after)).await;
        for expected in &rest {
            assert_eq!(next(&mut stream).await, *expected, "after {after}");
        }
        for run in [&one, &two] {
            let of_run: Vec<pb::RunEvent> = rest.iter().filter(|e| snapshot(e).run_id == run.run_id).cloned().collect();
            let filter = format!("run_id={}", run.run_id);
            assert_eq!(all(watch(&api, &filter, Some(after)).await).await, of_run, "{filter} after {after}");
        }
    }
});

// CONTRACT: a token beyond the head is OUT_OF_RANGE naming both ends
on_both!(a_sequence_beyond_the_head_is_out_of_range, |api| async move {
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REBOOT", "r1")).await;
    let head = until_ended(&mut watch(&api, "", Some(0)).await, 1).await.last().expect("events").sequence;
    let filter = format!("run_id={}", run.run_id);
    for filter in ["", filter.as_str()] {
        for after in [head + 1000, u64::MAX / 2, u64::MAX] {
            let refusal = try_watch(&api, filter, Some(after)).await.map(drop);
            let refusal = refused(refusal, Code::OutOfRange, "SEQUENCE_OUT_OF_RANGE");
            let (first, last) = (&refusal.details["first"], &refusal.details["head"]);
            assert_eq!(first, "1", "after {after}");
            assert!(last.parse::<u64>().expect("a number") >= head);
            assert!(refusal.message.contains(first.as_str()) && refusal.message.contains(last.as_str()));
        }
    }
});

// T-47, CONTRACT: a slow reader lags, it never loses
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_for_long_gets_everything() {
    let api = Api::new().await;
    let mut slow = watch(&api, "", Some(0)).await;
    let machines = 24;
    let (api_ref, runs_each) = (&api, 6);
    join_all((0..machines).map(|i| async move {
        let id = format!("m-{i}");
        api_ref.sim(&id, &[]).await;
        for r in 0..runs_each {
            api_ref.carry_out(start(&id, "REPAVE", &format!("r{r}"))).await;
        }
    }))
    .await;
    // far more than any window on the way can hold
    let seen = until_ended(&mut slow, machines * runs_each).await;
    let bytes: usize = seen.iter().map(prost_reflect::prost::Message::encoded_len).sum();
    assert!(bytes > 300_000, "{bytes} bytes might have been buffered on the way");
    let mut fresh = watch(&api, "", Some(0)).await;
    assert_eq!(until_ended(&mut fresh, machines * runs_each).await, seen);
    let mut versions: BTreeMap<String, u64> = BTreeMap::new();
    for event in &seen {
        let (run, last) = (snapshot(event), versions.entry(snapshot(event).run_id.clone()).or_default());
        assert_eq!(run.version, *last + 1, "each run's events follow without a hole");
        *last = run.version;
    }
    assert!(sequences(&seen).windows(2).all(|w| w[0] < w[1]));
}

// many watchers see the same, in the same order
on_both!(watchers_agree, |api| async move {
    let api = &api;
    let watchers = join_all((0..5).map(|_| watch(api, "", Some(0)))).await;
    join_all((0..6).map(|i| async move {
        let id = format!("m-{i}");
        api.sim(&id, &[]).await;
        api.carry_out(start(&id, "REPAVE", "r1")).await;
    }))
    .await;
    let seen = join_all(watchers.into_iter().map(|mut w| async move { until_ended(&mut w, 6).await })).await;
    assert!(seen.iter().all(|s| *s == seen[0]));
});

// a server that stops says so, and the client knows where to go on
#[tokio::test]
async fn a_stopping_server_ends_watches_as_unavailable() {
    let api = Api::new().await;
    let mut stream = watch(&api, "", Some(0)).await;
    api.server.service.close();
    let status = within("the end of a watch", stream.message()).await.expect_err("the stream ends with an error");
    refused(Err::<(), _>(status), Code::Unavailable, "SHUTTING_DOWN").says("last sequence");
}
