//! What an operator sees of the program: log lines that name their request and their run, traces where a
//! collector is configured, metrics, and an encrypted port.

use crate::process::until;
use crate::server::{Home, Server};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use serde_json::Value;
use testkit::otlp::{Collector, attribute};
use testkit::tls::Authority;
use testkit::web;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

/// Starts a run with an id for the request and a trace around it; answers with the run's id.
fn start_run(runtime: &Runtime, server: &Server) -> String {
    let token = std::fs::read_to_string(&server.token_file).expect("a token");
    let mut request = tonic::Request::new(pb::StartRunRequest {
        request_id: "r1".to_owned(),
        machine_id: "sim-0001".to_owned(),
        r#type: "REPAVE".to_owned(),
        ..pb::StartRunRequest::default()
    });
    let mut put = |name: &'static str, value: String| {
        request.metadata_mut().insert(name, value.parse().expect("a header"));
    };
    put("authorization", format!("Bearer {}", token.trim()));
    put("x-request-id", "ticket-9".to_owned());
    put("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    runtime.block_on(async {
        let channel = Channel::from_shared(server.url.clone()).expect("a URL").connect().await.expect("connects");
        RunServiceClient::new(channel).start_run(request).await.expect("started").into_inner().run_id
    })
}

/// Waits until the run has succeeded.
fn succeeded(server: &Server, run: &str) {
    until("the run succeeds", || (server.json(&["run", "show", run])["phase"] == "SUCCEEDED").then_some(()));
}

#[test]
fn a_line_names_its_request_and_its_run_and_no_secret() {
    let home = Home::new();
    // as talkative as it can be
    let launch = home.launch("data").config("[log]\njson = true\nlevel = 'trace'").with(&["--sim", "1"]);
    let server = launch.start();
    let run = start_run(&runtime(), &server);
    succeeded(&server, &run);
    let token = std::fs::read_to_string(&server.token_file).expect("a token").trim().to_owned();
    let ended = server.terminate().with(0);
    assert!(!ended.err.contains(&token) && !ended.err.contains(&token[8..30]), "the token is in the log");
    let lines: Vec<Value> =
        ended.err.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    let said = |fields: &[(&str, &str)]| lines.iter().any(|l| fields.iter().all(|(name, value)| l[name] == *value));
    let call = "RunService/StartRun";
    assert!(said(&[("request_id", "ticket-9"), ("call", call), ("door", "grpc"), ("code", "OK"), ("run_id", &run)]));
    let of_run = [("run_id", run.as_str()), ("machine_id", "sim-0001"), ("kind", "repave"), ("outcome", "done")];
    assert!(said(&of_run), "what the engine does for a run says so");
    let worker = lines.iter().find(|l| l["kind"] == "repave" && l["run_id"] == *run).expect("a line of a worker");
    assert!(worker["execution_id"].as_str().is_some_and(|id| id.starts_with("exe_")), "{worker}");
    assert!(lines.iter().all(|l| l["timestamp"].is_string() && l["level"].is_string() && l["target"].is_string()));
    let hidden = |l: &Value| l.as_object().is_some_and(|l| l.keys().any(|k| k.starts_with("otel.")));
    assert!(!lines.iter().any(hidden), "what is meant for a collector is not in the log");
}

#[test]
fn a_run_can_be_followed_in_its_traces() {
    let (home, runtime) = (Home::new(), runtime());
    let (collector, url) = runtime.block_on(Collector::start());
    let launch = home.launch("data").env("MILLWRIGHT_TELEMETRY__OTLP_ENDPOINT", &url).with(&["--sim", "1"]);
    let server = launch.start();
    let run = start_run(&runtime, &server);
    succeeded(&server, &run);
    // what was not sent yet is sent at the end
    server.terminate().with(0);
    let spans = collector.spans();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let of_run = |name: &str| {
        let found = spans.iter().find(|s| s.name == name && attribute(s, "run_id").as_deref() == Some(&run));
        found.unwrap_or_else(|| {
            panic!("no span {name} of {run} among {:?}", spans.iter().map(|s| &s.name).collect::<Vec<_>>())
        })
    };
    let call = of_run("RunService/StartRun");
    assert_eq!(hex(&call.trace_id), TRACE, "the caller's trace goes on");
    assert_eq!(attribute(call, "code").as_deref(), Some("OK"));
    let request = spans.iter().find(|s| s.span_id == call.parent_span_id).expect("the request around the call");
    assert_eq!(hex(&request.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(attribute(request, "request_id").as_deref(), Some("ticket-9"));
    // the work has a trace of its own, whose id is the execution's
    let execution = of_run("execution");
    let id = attribute(execution, "execution_id").expect("an id");
    assert_eq!(format!("exe_{}", hex(&execution.trace_id)), id);
    let stages: Vec<String> = spans
        .iter()
        .filter(|s| s.name == "stage" && s.trace_id == execution.trace_id)
        .filter_map(|s| attribute(s, "kind"))
        .collect();
    for kind in ["netboot", "repave", "reboot"] {
        assert!(stages.iter().any(|s| s == kind), "{kind} is not among {stages:?}");
    }
    assert!(spans.iter().all(|s| s.attributes.iter().all(|a| !format!("{a:?}").contains("mwt_"))), "no token is sent");
}

#[test]
fn traces_are_sent_encrypted_to_whom_the_host_trusts() {
    let (home, runtime, authority) = (Home::new(), runtime(), Authority::default());
    let (collector, url) = runtime.block_on(Collector::start_encrypted(&authority.pair()));
    let trusted = home.file("trusted.pem", &authority.pem());
    let launch = home.launch("data").env("MILLWRIGHT_TELEMETRY__OTLP_ENDPOINT", &url);
    let server = launch.env("SSL_CERT_FILE", trusted.to_str().expect("a plain path")).with(&["--sim", "1"]).start();
    start_run(&runtime, &server);
    server.terminate().with(0);
    assert!(collector.spans().iter().any(|s| s.name == "RunService/StartRun"));
}

/// Traces are a help, never a hindrance.
#[test]
fn a_collector_that_is_away_holds_nothing_up() {
    let home = Home::new();
    let launch = home.launch("data").env("MILLWRIGHT_TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:1");
    let server = launch.with(&["--sim", "1"]).start();
    let run = start_run(&runtime(), &server);
    succeeded(&server, &run);
    server.terminate().with(0);
}

#[test]
fn metrics_are_shown_to_those_with_a_token() {
    let home = Home::new();
    let server = home.launch("data").start();
    let token = std::fs::read_to_string(&server.token_file).expect("a token");
    let bearer = format!("Bearer {}", token.trim());
    let runtime = runtime();
    let get = |url: &str, headers: &[(&str, &str)]| runtime.block_on(web::get(url, "/metrics", headers));
    assert_eq!(get(&server.url, &[]).status, 401);
    let page = get(&server.url, &[("authorization", &bearer)]);
    let version = format!("millwright_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    assert!(page.body.contains(&version) && page.body.contains("\nmillwright_store_up 1"), "{}", page.body);
    let public = home.launch("public").env("MILLWRIGHT_METRICS__PUBLIC", "true").start();
    assert_eq!(get(&public.url, &[]).status, 200);
}

#[test]
fn an_encrypted_port_may_be_reached_by_others() {
    let (home, authority) = (Home::new(), Authority::default());
    authority.pair().write(&home.path(""));
    let config =
        format!("[tls]\ncert = '{}'\nkey = '{}'", home.path("tls.crt").display(), home.path("tls.key").display());
    let server = home.launch("data").config(&config).listen("0.0.0.0:0").start();
    let address = server.url.strip_prefix("https://0.0.0.0:").expect("says that it is encrypted");
    let answer = runtime().block_on(async {
        let stream = authority.connect(&format!("127.0.0.1:{address}"), &["http/1.1"]).await.expect("shakes hands");
        web::get_over(stream, "/readyz", &[]).await
    });
    assert_eq!(answer.status, 200);
    server.terminate().with(0);
    authority.expired().write(&home.path(""));
    let refused = home.launch("data").config(&config).refused();
    assert!(refused.err.contains("tls.crt") && refused.err.contains("expired"), "{}", refused.err);
    std::fs::remove_file(home.path("tls.key")).expect("removed");
    let refused = home.launch("data").config(&config).refused();
    assert!(refused.err.contains("tls.key"), "{}", refused.err);
    let half = home.launch("data").config("[tls]\ncert = 'a.pem'").refused();
    assert!(half.err.contains("tls.key"), "{}", half.err);
}
