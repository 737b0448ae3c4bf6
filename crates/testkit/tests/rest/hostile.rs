//! Bodies that no honest client sends: answered with a documented code, never stored, and nobody else
//! is held up.

use crate::client::{Answer, Http, Wire};
use crate::world::{World, serving};
use api::ServerOptions;
use serde_json::json;
use std::time::Duration;

const MACHINES: &str = "/api/v1/machines";
const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn post(world: &World, body: &[u8]) -> Answer {
    world.http.send("POST", MACHINES, &[JSON], body).await
}

/// Whoever else calls is served, and nothing was stored.
async fn is_unharmed(world: &World) {
    let list = world.http.get(MACHINES).await.ok();
    assert_eq!(list["machines"], json!([]));
}

#[tokio::test]
async fn what_is_no_json_is_malformed() {
    let world = World::new().await;
    let deep = format!("{}{}", r#"{"spec":"#.repeat(10_000), "}".repeat(10_000));
    let wide = format!("[{}]", "[],".repeat(100_000));
    for body in [
        b"{".as_slice(),
        b"}",
        b"{\"machine_id\": \"m\"} x",
        b"{\"machine_id\": \"m\",}",
        b"machine_id=m",
        b"\xef\xbb\xbf{}",
        b"{\"machine_id\": \"\xff\"}",
        b"{\"machine_id\": \"\\ud800\"}",
        b"{\"machine_id\": \"\\ud800\\u0041\"}",
        b"{\"machine_id\": \"a\nb\"}",
        b"{\"version\": 1e999}",
        b"{\"version\": 0x10}",
        b"{\"version\": NaN}",
        b"\0",
        deep.as_bytes(),
        wide.as_bytes(),
    ] {
        let told = post(&world, body).await.malformed();
        assert!(told.len() < 1100, "{told}");
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn values_of_the_wrong_kind_are_malformed() {
    let world = World::new().await;
    for (body, says) in [
        (r#"[]"#, "body: expected an object, found a list"),
        (r#""m-1""#, "body: expected an object"),
        (r#"5"#, "body: expected an object"),
        (r#"true"#, "body: expected an object"),
        (r#"{"machine_id": 5}"#, "machine_id: expected a text, found 5"),
        (r#"{"machine_id": {"a": 1}}"#, "machine_id: expected a text, found an object"),
        (r#"{"spec": {"mac_addresses": {"0": "a"}}}"#, "spec.mac_addresses: expected a list"),
        (r#"{"labels": {"a": ["b"]}}"#, "labels.a: expected a text, found a list"),
        (r#"{"version": 18446744073709551616}"#, "version: expected a whole number"),
        (r#"{"version": -1}"#, "version: expected a whole number"),
        (r#"{"version": 1.5}"#, "version: expected a whole number"),
        (r#"{"version": "9999999999999999999999999"}"#, "version: expected a whole number"),
        (r#"{"machine_id": "a", "machine_id": "b"}"#, "body: is not valid JSON: machine_id stands twice"),
        (r#"{"machine_id": "a", "machineId": "b"}"#, "machine"),
        (r#"{"__proto__": {}}"#, "__proto__: unknown field"),
        (
            r#"{"status": {"conditions": [{"last_transition": "soon"}]}}"#,
            "status.conditions[0].last_transition: expected a time",
        ),
        (r#"{"machine_id": "a\u0000b"}"#, "machine"),
    ] {
        let told = post(&world, body.as_bytes()).await.malformed();
        assert!(told.starts_with(says), "{body}: {told}");
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn what_is_not_said_to_be_json_in_utf_8_is_refused() {
    let world = World::new().await;
    for kind in ["text/plain", "multipart/form-data; boundary=x", "application/json; charset=latin1", "json", ""] {
        let answer = world.http.send("POST", MACHINES, &[("Content-Type", kind)], b"{}").await;
        assert!(answer.malformed().starts_with("content-type: "), "{kind}");
    }
    let answer = world.http.send("POST", MACHINES, &[JSON, ("Content-Encoding", "gzip")], b"\x1f\x8b").await;
    assert!(answer.malformed().starts_with("content-encoding: "));
    is_unharmed(&world).await;
    for kind in ["application/json", "application/json; charset=utf-8", "application/merge-patch+json"] {
        world.http.send("POST", MACHINES, &[("Content-Type", kind)], b"{\"machine_id\": \"m-1\"}").await.ok();
    }
    world.http.send("POST", MACHINES, &[], b"{\"machine_id\": \"m-2\"}").await.ok();
}

// DESIGN "limits": a body has a bound, and the connection outlives a refusal
#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let world = World::new().await;
    let large = format!(r#"{{"labels": {{"a": "{}"}}}}"#, "x".repeat(5 * 1024 * 1024));
    let mut wire = world.http.wire().await;
    for _ in 0..2 {
        let opening = world.http.opening("POST", MACHINES, &[JSON]);
        wire.send(format!("{opening}Content-Length: {}\r\n\r\n{large}", large.len()).as_bytes()).await;
        let error = wire.answer().await.refused(429, "LIMIT_REACHED");
        assert_eq!(error["code"], "RESOURCE_EXHAUSTED");
    }
    wire.send(format!("{}\r\n", world.http.opening("GET", MACHINES, &[])).as_bytes()).await;
    wire.answer().await.ok();
    // said beforehand, it need not be sent
    let opening = world.http.opening("POST", MACHINES, &[JSON, ("Expect", "100-continue")]);
    let mut wire = world.http.wire().await;
    wire.send(format!("{opening}Content-Length: 99999999999\r\n\r\n").as_bytes()).await;
    wire.answer().await.refused(429, "LIMIT_REACHED");
    is_unharmed(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_without_end_is_cut_off() {
    let world = World::new().await;
    let mut wire = world.http.wire().await;
    wire.send(
        format!("{}Transfer-Encoding: chunked\r\n\r\n", world.http.opening("POST", MACHINES, &[JSON])).as_bytes(),
    )
    .await;
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let mut sent = 0usize;
    while sent < 256 * 1024 * 1024 && wire.try_send(chunk.as_bytes()).await {
        sent += 0x10000;
    }
    assert!(sent < 256 * 1024 * 1024, "somebody took all of it");
    is_unharmed(&world).await;
}

// slow senders are not waited for
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let options = ServerOptions { body_within: Duration::from_millis(300), ..Default::default() };
    let (http, _server) = serving(options).await;
    let mut slow: Vec<Wire> = Vec::new();
    for _ in 0..10 {
        let mut wire = http.wire().await;
        wire.send(format!("{}Content-Length: 100\r\n\r\n{{", http.opening("POST", MACHINES, &[JSON])).as_bytes()).await;
        slow.push(wire);
    }
    http.get(MACHINES).await.ok();
    for wire in &mut slow {
        let error = wire.answer().await.refused(504, "DEADLINE_EXCEEDED");
        assert_eq!(error["code"], "DEADLINE_EXCEEDED");
    }
}

// nor is who connects and does not say what for: with every place taken, others are served in the end
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_keeps_no_place() {
    let options =
        ServerOptions { connections_max: 2, headers_within: Duration::from_millis(300), ..Default::default() };
    let (http, _server) = serving(options).await;
    for said in ["", "PRI * HTTP/2", "GET /api"] {
        let mut silent = [http.wire().await, http.wire().await];
        for wire in &mut silent {
            wire.send(said.as_bytes()).await;
        }
        http.get(MACHINES).await.ok();
    }
}

// a token that is taken back while its request arrives changes nothing any more
#[tokio::test]
async fn a_request_that_outlives_its_token_is_refused() {
    let world = World::new().await;
    let created = world.http.post("/api/v1/tokens", &json!({"name": "late", "role": "operator"})).await.ok();
    let late = Http { url: world.http.url.clone(), token: created["secret"].as_str().expect("a secret").to_owned() };
    let body = r#"{"machine_id": "m-1"}"#;
    let mut wire = late.wire().await;
    let opening = late.opening("POST", MACHINES, &[JSON, ("Expect", "100-continue")]);
    wire.send(format!("{opening}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).await;
    // its body is asked for: it has been let in
    assert_eq!(wire.head().await.status, 100);
    let id = created["token"]["token_id"].as_str().expect("an id");
    world.http.send("DELETE", &format!("/api/v1/tokens/{id}"), &[], b"").await.ok();
    wire.send(body.as_bytes()).await;
    wire.answer().await.refused(401, "TOKEN_REVOKED");
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_carried_out() {
    let world = World::new().await;
    for opening in
        ["Content-Length: 100\r\n\r\n{\"machine_id\": \"m-1\"}", "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"mac"]
    {
        let mut wire = world.http.wire().await;
        wire.send(format!("{}{opening}", world.http.opening("POST", MACHINES, &[JSON])).as_bytes()).await;
        wire.finish().await;
        if let Some(head) = wire.try_head().await {
            assert_eq!(head.status, 400);
        }
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_body_where_none_belongs_is_refused() {
    let world = World::new().await;
    let answer = world.http.send("GET", MACHINES, &[JSON], b"{\"filter\": \"phase=READY\"}").await;
    assert!(answer.malformed().starts_with("body: this call takes none"));
    let mut wire = world.http.wire().await;
    // nothing in chunks is nothing
    wire.send(
        format!("{}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", world.http.opening("GET", MACHINES, &[])).as_bytes(),
    )
    .await;
    wire.answer().await.ok();
}

// a stranger's body is not even read
#[tokio::test]
async fn strangers_do_not_get_to_send() {
    let world = World::new().await;
    let mut wire = world.http.wire().await;
    let opening = world.http.opening("POST", MACHINES, &[JSON, ("Authorization", "Bearer mwt_wrong")]);
    wire.send(format!("{opening}Content-Length: 4000000\r\n\r\n{{").as_bytes()).await;
    wire.answer().await.refused(401, "TOKEN_INVALID");
}

// each refusal is on record, also of what never became a call; and who may not is told so first
#[tokio::test]
async fn what_does_not_read_is_on_record() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let path = "/api/v1/machines/m-1/phase";
    world.http.post(path, &json!({"phase": "NOPE"})).await.malformed();
    let viewer = world.http.post("/api/v1/tokens", &json!({"name": "v", "role": "viewer"})).await.ok();
    let http = Http { url: world.http.url.clone(), token: viewer["secret"].as_str().expect("a secret").to_owned() };
    http.post(path, &json!({"phase": "NOPE"})).await.refused(403, "ROLE_TOO_LOW");
    let audit = world.http.get("/api/v1/audit?filter=outcome%3Drefused").await.ok();
    let reasons: Vec<&str> =
        audit["entries"].as_array().expect("entries").iter().filter_map(|e| e["reason"].as_str()).collect();
    assert_eq!(reasons, ["ROLE_TOO_LOW", "INVALID_FIELD"]);
}

// what waiting does not mend says nothing of waiting; a page that is not there is not an empty 200
#[tokio::test]
async fn refusals_promise_nothing() {
    let world = World::new().await;
    let large = world.http.send("POST", MACHINES, &[JSON], &vec![b' '; 5 << 20]).await;
    assert_eq!((large.head.status, large.head.header("retry-after")), (429, None));
    for path in ["/", "/health", "/healthz/", "/baremetal.v1.PlanService/ListPlans"] {
        let answer = world.http.get(path).await;
        assert_eq!(answer.head.status, 404, "{path}");
        assert!(answer.text().contains("NO_SUCH_PATH"), "{path}");
    }
}
