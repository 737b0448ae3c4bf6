//! Paths, methods, queries and headers.

use crate::world::World;
use serde_json::json;
use tonic::client::GrpcService as _;

// CONTRACT "One port": authentication everywhere, also where nothing is
#[tokio::test]
async fn strangers_learn_nothing_about_paths() {
    let world = World::new().await;
    for path in ["/api/v1/machines", "/api/v1/nonsense", "/api/v1", "/api/v1/", "/api/v1/openapi.json", "/api/v1/%"] {
        for (header, reason) in
            [("-", "TOKEN_MISSING"), ("Basic eDp5", "TOKEN_INVALID"), ("Bearer mwt_x", "TOKEN_INVALID")]
        {
            let answer = world.http.send("GET", path, &[("Authorization", header)], b"").await;
            assert_eq!(answer.refused(401, reason)["code"], "UNAUTHENTICATED", "{path}");
            assert_eq!(answer.head.header("www-authenticate"), Some("Bearer"), "{path}");
        }
    }
    let answer = world.http.send("DELETE", "/api/v1/machines", &[("Authorization", "-")], b"").await;
    answer.refused(401, "TOKEN_MISSING");
}

#[tokio::test]
async fn where_nothing_stands_is_not_found() {
    let world = World::new().await;
    for path in [
        "/api/v1",
        "/api/v1/",
        "/api/v1/nonsense",
        "/api/v1/machines/",
        "/api/v1/machines//phase",
        "/api/v1//machines",
        "/api/v1/Machines",
        "/api/v1/runs:unwatch",
        "/api/v1/machines/m-1/phase/x",
    ] {
        for method in ["GET", "POST", "OPTIONS", "BREW"] {
            let error = world.http.send(method, path, &[], b"").await.refused(404, "NO_SUCH_PATH");
            assert_eq!(error["code"], "NOT_FOUND", "{path}");
        }
    }
}

#[tokio::test]
async fn another_method_is_told_which_there_are() {
    let world = World::new().await;
    for (method, path, allowed) in [
        ("DELETE", "/api/v1/machines", "GET, POST"),
        ("PUT", "/api/v1/machines/m-1", "GET, PATCH"),
        ("GET", "/api/v1/runs/r-1/cancel", "POST"),
        ("POST", "/api/v1/openapi.json", "GET"),
        ("BREW", "/api/v1/runs:watch", "GET"),
    ] {
        let answer = world.http.send(method, path, &[], b"").await;
        assert_eq!(answer.status(), 501, "{method} {path}");
        assert_eq!(answer.head.header("allow"), Some(allowed), "{method} {path}");
        let error = answer.refused(501, "METHOD_NOT_ALLOWED");
        assert_eq!(error["code"], "UNIMPLEMENTED");
        assert_eq!(error["allowed"], json!(allowed.split(", ").collect::<Vec<_>>()));
    }
    let options = world.http.send("OPTIONS", "/api/v1/machines", &[], b"").await;
    assert_eq!(options.head.header("allow"), Some("GET, POST"));
    assert_eq!(options.ok(), json!({"allowed": ["GET", "POST"]}));
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let mut wire = world.http.wire().await;
    for _ in 0..2 {
        wire.send(format!("{}\r\n", world.http.opening("HEAD", "/api/v1/machines/m-1", &[])).as_bytes()).await;
        let head = wire.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("application/json")));
        let length: usize = head.header("content-length").expect("a length").parse().expect("a number");
        assert_eq!(length, world.http.get("/api/v1/machines/m-1").await.body.len());
    }
    for (path, status, allow) in [
        ("/api/v1/runs:watch", 501, Some("GET")), // what has no end has no length
        ("/api/v1/machines/m-1/phase", 501, Some("POST")),
        ("/api/v1/machines/nope", 404, None),
        ("/api/v1/openapi.json", 200, None),
    ] {
        wire.send(format!("{}\r\n", world.http.opening("HEAD", path, &[])).as_bytes()).await;
        let head = wire.head().await;
        assert_eq!((head.status, head.header("allow")), (status, allow), "{path}");
    }
}

#[tokio::test]
async fn names_are_percent_decoded_once() {
    let world = World::new().await;
    world.api.sim("m-1", &[("env", "a+b c")]).await;
    assert_eq!(world.http.get("/api/v1/machines/m%2D1").await.ok()["machine_id"], "m-1");
    let message =
        world.http.get("/api/v1/machines/a%2Fb%2520c").await.refused(404, "MACHINE_NOT_FOUND")["message"].clone();
    assert!(message.as_str().is_some_and(|m| m.contains("a/b%20c")), "{message}");
    let found = world.http.get("/api/v1/machines?filter=labels.env%3D%22a%2Bb+c%22").await.ok();
    assert_eq!(found["machines"].as_array().map(Vec::len), Some(1), "{found}");
    for path in ["/api/v1/machines/%", "/api/v1/machines/%zz", "/api/v1/machines/%ff", "/api/v1/machines?filter=%c3%28"]
    {
        world.http.get(path).await.malformed();
    }
    // the verb is part of the literal, encoded or not
    assert_eq!(world.http.get("/api/v1/runs%3Awatch?filter=run_id%3Dx").await.status(), 404);
}

#[tokio::test]
async fn unknown_query_names_are_refused_with_the_known_ones() {
    let world = World::new().await;
    let error = world.http.get("/api/v1/machines?pagesize=5").await.refused(400, "INVALID_FIELD");
    assert_eq!(error["allowed"], json!(["filter", "page_size", "page_token"]));
    assert_eq!(error["details"]["field"], "pagesize");
    for (path, says) in [
        ("/api/v1/machines?page_size=1&page_size=2", "page_size: stands twice"),
        ("/api/v1/machines?page_size=lots", "page_size: expected a whole number"),
        ("/api/v1/machines/m-1?machine_id=m-2", "machine_id: unknown in the query"),
        ("/api/v1/plans?x", "x: unknown in the query"),
        ("/api/v1/runs/r/logs?no_follow=maybe", "no_follow: expected true or false"),
    ] {
        let told = world.http.get(path).await.malformed();
        assert!(told.starts_with(says), "{path}: {told}");
    }
    let told = world.http.post("/api/v1/runs?machine_id=m-1", &json!({})).await.malformed();
    assert!(told.starts_with("machine_id: unknown in the query; this call takes nothing there"), "{told}");
}

#[tokio::test]
async fn every_answer_is_plainly_what_it_is() {
    let world = World::new().await;
    for path in ["/api/v1/machines", "/api/v1/machines/nope", "/api/v1/nonsense", "/api/v1/openapi.json"] {
        for accept in ["*/*", "text/html", "application/xml;q=0.9", "nonsense"] {
            let answer = world.http.send("GET", path, &[("Accept", accept)], b"").await;
            assert_eq!(answer.head.header("content-type"), Some("application/json"), "{path}");
            assert_eq!(answer.head.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert_eq!(answer.head.header("cache-control"), Some("no-store"), "{path}");
        }
    }
}

// old clients and new ones
#[tokio::test]
async fn http_1_0_and_http_2_are_served_too() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let mut wire = world.http.wire().await;
    let request = world.http.opening("GET", "/api/v1/machines/m-1", &[]).replace("HTTP/1.1", "HTTP/1.0");
    wire.send(format!("{request}\r\n").as_bytes()).await;
    assert_eq!(wire.answer().await.ok()["machine_id"], "m-1");

    let mut channel = crate::raw::channel(&world.http.url).await;
    let request = tonic::codegen::http::Request::builder()
        .uri(format!("{}/api/v1/machines/m-1", world.http.url))
        .header("authorization", format!("Bearer {}", world.http.token))
        .body(tonic::body::Body::empty())
        .expect("a request");
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("ready");
    let answer = channel.call(request).await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
}

// many requests on one connection, refusals among them
#[tokio::test]
async fn a_connection_is_kept() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let mut wire = world.http.wire().await;
    for (method, path, body, status) in [
        ("GET", "/api/v1/machines/m-1", "", 200),
        ("GET", "/api/v1/machines/nope", "", 404),
        ("POST", "/api/v1/machines", "{", 400),
        ("GET", "/api/v1/machines/m-1", "{}", 400),
        ("PUT", "/api/v1/machines", "{}", 501),
        ("GET", "/api/v1/machines/m-1", "", 200),
    ] {
        let opening = world.http.opening(method, path, &[("Content-Type", "application/json")]);
        wire.send(format!("{opening}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
        assert_eq!(wire.answer().await.status(), status, "{method} {path}");
    }
}
