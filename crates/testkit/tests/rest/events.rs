//! Streams as server-sent events: ids, resuming, the end, errors, signs of life.

use crate::client::{Event, Http};
use crate::fixture::{Api, start};
use crate::world::{World, serving};
use serde_json::json;
use std::time::Duration;

fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|e| e.id).collect()
}

fn watch(run: &str) -> String {
    format!("/api/v1/runs:watch?filter=run_id%3D{run}")
}

// CONTRACT: `id:` = sequence; on one run it ends after the terminal event
#[tokio::test]
async fn a_watch_is_one_event_for_each_message_and_then_the_end() {
    let (world, run) = World::lived_in().await;
    let mut events = world.http.events(&format!("{}&after_sequence=0", watch(&run)), &[]).await;
    assert_eq!(events.head.header("cache-control"), Some("no-store"));
    assert_eq!(events.head.header("x-accel-buffering"), Some("no"));
    assert_eq!(events.head.header("x-content-type-options"), Some("nosniff"));
    let mut all = events.rest().await;
    let end = all.pop().expect("an end");
    assert_eq!(end, Event { id: None, name: "end".into(), data: json!({}) });
    assert!(all.len() >= 4, "{all:?}");
    for event in &all {
        assert_eq!(event.name, "message");
        let sequence = event.id.expect("an id");
        assert_eq!(event.data["sequence"], sequence.to_string());
        assert_eq!(event.data["snapshot"]["run_id"], run);
    }
    assert!(ids(&all).is_sorted(), "{all:?}");
    assert_eq!(all.last().expect("an event").data["snapshot"]["phase"], "SUCCEEDED");
}

// CONTRACT: `Last-Event-ID` honoured; it wins over the query
#[tokio::test]
async fn a_watch_resumes_after_the_last_event() {
    let (world, run) = World::lived_in().await;
    let from_start = format!("{}&after_sequence=0", watch(&run));
    let all = world.http.events(&from_start, &[]).await.rest().await;
    for cut in 0..all.len() - 1 {
        let seen = all[cut].id.expect("an id").to_string();
        let rest = world.http.events(&from_start, &[("Last-Event-ID", &seen)]).await.rest().await;
        let expected: Vec<&Event> =
            all.iter().filter(|e| e.id.is_none_or(|id| id > all[cut].id.expect("an id"))).collect();
        assert_eq!(rest.iter().collect::<Vec<_>>(), expected, "after {seen}");
    }
    let answer = world.http.send("GET", &from_start, &[("Last-Event-ID", "yesterday")], b"").await;
    assert!(answer.malformed().starts_with("last-event-id: "));
    let answer = world.http.send("GET", &from_start, &[("Last-Event-ID", "999999")], b"").await;
    let error = answer.refused(400, "SEQUENCE_OUT_OF_RANGE");
    assert!(error["details"]["head"].is_string(), "{error}");
}

// a reader that lost its connection in the middle misses nothing
#[tokio::test]
async fn a_reader_that_comes_back_misses_nothing() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let mut events = world.http.events("/api/v1/runs:watch?after_sequence=0", &[]).await;
    let run = world.api.carry_out(start("m-1", "REPAVE", "r1")).await;
    let mut seen = Vec::new();
    loop {
        let event = events.next().await.expect("an event");
        let done = event.data["snapshot"]["phase"] == "SUCCEEDED";
        seen.push(event.id.expect("an id"));
        if done {
            break;
        }
        // each event by a connection of its own
        let last = seen.last().expect("an id").to_string();
        events = world.http.events("/api/v1/runs:watch", &[("Last-Event-ID", &last)]).await;
    }
    let at_once = world.http.events(&format!("{}&after_sequence=0", watch(&run.run_id)), &[]).await.rest().await;
    assert_eq!(seen, ids(&at_once));
}

// an error before the first message is a plain error
#[tokio::test]
async fn a_watch_that_cannot_begin_is_a_plain_error() {
    let world = World::new().await;
    world.http.get(&watch("nope")).await.refused(404, "RUN_NOT_FOUND");
    world.http.get("/api/v1/runs:watch?filter=colour%3Dred").await.refused(400, "INVALID_FILTER");
    world.http.get("/api/v1/runs/nope/logs").await.refused(404, "RUN_NOT_FOUND");
    let answer = world.http.send("GET", "/api/v1/runs/nope/logs", &[("Accept", "text/plain")], b"").await;
    answer.refused(404, "RUN_NOT_FOUND");
}

// an error in the middle is said, and then the stream ends
#[tokio::test]
async fn an_error_in_the_middle_is_an_event() {
    let Api { server, .. } = Api::new().await;
    let http = Http { url: server.url.clone(), token: server.token.clone() };
    let mut events = http.events("/api/v1/runs:watch?after_sequence=0", &[]).await;
    let reading = tokio::spawn(async move { events.rest().await });
    drop(server.stop().await);
    let all = reading.await.expect("reads");
    let last = all.last().expect("an event");
    assert_eq!((last.name.as_str(), last.id), ("error", None), "{all:?}");
    assert_eq!(last.data["error"]["code"], "UNAVAILABLE", "{last:?}");
    assert_eq!(last.data["error"]["reason"], "SHUTTING_DOWN", "{last:?}");
}

// a quiet stream gives signs of life
#[tokio::test]
async fn a_quiet_stream_is_alive() {
    let options = api::ServerOptions { heartbeat: Duration::from_millis(50), ..Default::default() };
    let (http, server) = serving(options).await;
    let mut events = http.events("/api/v1/runs:watch", &[]).await;
    for _ in 0..3 {
        assert_eq!(events.block().await.as_deref(), Some(": still here"));
    }
    drop(server.stop().await);
}

// readers that leave, or never read, cost nothing and hold nobody up
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_hold_nobody_up() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(world.http.events("/api/v1/runs:watch?after_sequence=0", &[]).await);
        drop(world.http.events("/api/v1/runs:watch?after_sequence=0", &[]).await);
    }
    for n in 0..3 {
        let run = world.api.carry_out(start("m-1", "REPAVE", &format!("r{n}"))).await;
        assert_eq!(run.phase(), proto::baremetal::v1::run::Phase::Succeeded);
    }
    // and those who read late find everything
    let mut late = idle.pop().expect("a reader");
    let mut ended = 0;
    while ended < 3 {
        let event = late.next().await.expect("an event");
        ended += usize::from(event.data["snapshot"]["phase"] == "SUCCEEDED");
    }
}
