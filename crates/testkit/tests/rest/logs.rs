//! The output of a run: events with base64, or the bytes alone.

use crate::client::Http;
use crate::fixture::{ssh, start_plan, step};
use crate::world::World;
use serde_json::json;

/// A run that printed something, and its id.
async fn printed(world: &World) -> String {
    world.api.sim("m-1", &[]).await;
    world.api.create_plan("p-1", vec![step("say", ssh("echo", &["one"])), step("again", ssh("echo", &["two"]))]).await;
    world.api.carry_out(start_plan("m-1", "p-1", "r1")).await.run_id
}

fn decoded(text: &str) -> Vec<u8> {
    let chunk = api::json::descriptor("baremetal.v1.LogChunk").expect("known");
    let read = api::json::read(&chunk, json!({"data": text})).expect("base64");
    match read.get_field_by_name("data").as_deref() {
        Some(prost_reflect::Value::Bytes(bytes)) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

async fn plain(http: &Http, path: &str) -> String {
    let answer = http.send("GET", path, &[("Accept", "text/plain")], b"").await;
    assert_eq!(answer.head.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.head.header("x-content-type-options"), Some("nosniff"));
    answer.text()
}

// CONTRACT: log data base64 (or plain text by `Accept: text/plain`)
#[tokio::test]
async fn logs_are_base64_in_events_or_plain_text() {
    let world = World::new().await;
    let run = printed(&world).await;
    let path = format!("/api/v1/runs/{run}/logs");
    let events = world.http.events(&path, &[]).await.rest().await;
    let (end, chunks) = events.split_last().expect("events");
    assert_eq!(end.name, "end");
    let mut bytes = Vec::new();
    for chunk in chunks {
        assert_eq!(chunk.id.map(|id| id.to_string()).as_deref(), chunk.data["sequence"].as_str());
        assert_eq!(chunk.data["run_id"], run);
        bytes.extend(decoded(chunk.data["data"].as_str().expect("a text")));
    }
    let text = plain(&world.http, &path).await;
    assert_eq!(String::from_utf8(bytes).expect("UTF-8"), text);
    assert!(text.contains("one") && text.contains("two"), "{text}");
}

#[tokio::test]
async fn logs_resume_after_the_last_chunk() {
    let world = World::new().await;
    let run = printed(&world).await;
    let path = format!("/api/v1/runs/{run}/logs");
    let all = world.http.events(&path, &[]).await.rest().await;
    let first = all[0].id.expect("an id").to_string();
    let rest = world.http.events(&path, &[("Last-Event-ID", &first)]).await.rest().await;
    assert_eq!(rest, all[1..]);
    let after = plain(&world.http, &format!("{path}?after_sequence={first}")).await;
    assert!(plain(&world.http, &path).await.ends_with(&after));
    world.http.get(&format!("{path}?after_sequence=99999")).await.refused(400, "SEQUENCE_OUT_OF_RANGE");
}

// a run that goes on: what is stored now, or everything as it comes
#[tokio::test]
async fn logs_are_followed_unless_told_otherwise() {
    let world = World::new().await;
    world.api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let reboot = crate::fixture::reboot();
    world.api.create_plan("p-1", vec![step("say", ssh("echo", &["one"])), step("hang", reboot)]).await;
    let run = world.api.start(start_plan("m-1", "p-1", "r1")).await.run_id;
    world.api.at_step(&run, "hang").await;
    let path = format!("/api/v1/runs/{run}/logs");
    let now = world.http.events(&format!("{path}?no_follow=true"), &[]).await.rest().await;
    assert_eq!(now.last().map(|e| e.name.as_str()), Some("end"), "although the run goes on");
    let mut following = world.http.events(&path, &[]).await;
    assert_eq!(following.next().await.as_ref(), now.first());
    world.http.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).await.ok();
    assert_eq!(following.rest().await.last().map(|e| e.name.clone()).as_deref(), Some("end"), "once the run has ended");
}
