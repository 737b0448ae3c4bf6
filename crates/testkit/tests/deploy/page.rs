//! The metrics page of servers that have done some work shows what the catalogue lists: all of it, with its
//! help and labels, and nothing else.

use crate::scrape::{Scrape, names, promtool};
use api::{ServerOptions, Tls};
use domain::metric::{self, Kind};
use futures::StreamExt as _;
use proto::baremetal::v1 as pb;
use std::collections::BTreeSet;
use testkit::fleet::{Database, Fleet, admin, eventually, labelled, machine, quick, start};
use testkit::server::TestServer;
use testkit::tls::Authority;
use testkit::web;

const PHASES_THAT_END: [&str; 3] = ["SUCCEEDED", "FAILED", "CANCELED"];

async fn ended(server: &TestServer, run: &str) {
    eventually("the run ends", || async {
        let view = server.service.get_run(&admin(), run).await.expect("a run");
        PHASES_THAT_END.contains(&domain::lifecycle::State::as_str(view.run.phase)).then_some(())
    })
    .await;
}

/// There is one recorder in a process: who compares its numbers does so alone.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A server that measures.
async fn measured(options: ServerOptions) -> TestServer {
    let now = domain::Timestamp::from_micros(1_767_225_600_000_000);
    let render = api::collect_metrics(now).expect("metrics");
    let options = ServerOptions { metrics: Some(render), ..options };
    TestServer::start_serving(Fleet::new(Database::Sqlite, 1), quick("test"), options).await
}

async fn work(server: &TestServer) {
    let mut machines = server.machines().await;
    machines.list_machines(pb::ListMachinesRequest::default()).await.expect("listed");
    machines
        .get_machine(pb::GetMachineRequest { machine_id: "nobody".to_owned() })
        .await
        .expect_err("a call that is not OK");
    let good = server.service.register_machine(&admin(), machine("good")).await.expect("registered");
    let bad = labelled("bad", &[("sim.fault.reboot", "fail")]);
    server.service.register_machine(&admin(), bad).await.expect("registered");
    let mut watch =
        server.runs().await.watch_runs(pb::WatchRunsRequest::default()).await.expect("watched").into_inner();
    let started = server.service.start_run(&admin(), start(good.id.as_str(), "REPAVE", "r1")).await.expect("started");
    let mut once = start("bad", "", "r2");
    "once".clone_into(&mut once.plan_id);
    let plan = domain::plan::Plan {
        id: "once".to_owned(),
        display_name: String::new(),
        steps: vec![domain::plan::Step {
            name: "off-and-on".to_owned(),
            timeout_seconds: None,
            max_retries: Some(0),
            kind: domain::plan::StepKind::Reboot { mode: domain::plan::RebootMode::Bmc },
        }],
    };
    server.service.create_plan(&admin(), plan, "test").await.expect("a plan");
    let failing = server.service.start_run(&admin(), once).await.expect("started");
    watch.next().await.expect("an event").expect("an event");
    ended(server, started.run.id.as_str()).await;
    ended(server, failing.run.id.as_str()).await;
}

async fn page(server: &TestServer) -> String {
    let bearer = format!("Bearer {}", server.token);
    let answer = web::get(&server.url, "/metrics", &[("authorization", &bearer)]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.header("content-type").is_some_and(|t| t.starts_with("text/plain; version=0.0.4")));
    answer.body
}

/// Chunked bodies carry their lengths between the lines.
fn plain(body: &str) -> String {
    body.lines().filter(|l| l.starts_with('#') || l.starts_with("millwright_")).map(|l| format!("{l}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_catalogue_and_nothing_else() {
    let _alone = ALONE.lock().await;
    let server = measured(ServerOptions::default()).await;
    let (authority, folder) = (Authority::default(), tempfile::tempdir().expect("a folder"));
    let (cert, key) = authority.pair().write(folder.path());
    let tls = Tls::load(&cert, &key, server.fleet.ambient.now()).expect("a pair");
    let encrypted = measured(ServerOptions { tls: Some(tls), ..ServerOptions::default() }).await;
    let stream = authority.connect(encrypted.address(), &["http/1.1"]).await.expect("shakes hands");
    assert_eq!(web::get_over(stream, "/readyz", &[]).await.status, 200);
    work(&server).await;
    let text = plain(&page(&server).await);
    let scrape = Scrape::parse(&text);
    let shown: BTreeSet<&str> = scrape.samples.iter().map(|s| scrape.metric_of(&s.name)).collect();
    let listed: BTreeSet<&str> = metric::ALL.iter().map(|m| m.name).collect();
    assert_eq!(shown, listed, "left: shown, right: in the catalogue");
    for metric in metric::ALL {
        assert_eq!(scrape.help.get(metric.name).map(String::as_str), Some(metric.help), "{}", metric.name);
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        assert_eq!(scrape.kind.get(metric.name).map(String::as_str), Some(kind), "{}", metric.name);
        let expected: BTreeSet<&str> = metric.labels.iter().copied().collect();
        for sample in scrape.samples.iter().filter(|s| scrape.metric_of(&s.name) == metric.name) {
            let mut labels = names(&sample.labels);
            labels.remove("le");
            assert_eq!(labels, expected, "the labels of {}", sample.name);
        }
    }
    for name in [
        "machines",
        "transitions_total",
        "claim_latency_seconds_count",
        "stage_seconds_count",
        "stage_failures_total",
        "commit_batch_size_count",
        "commit_seconds_count",
        "requests_total",
        "request_seconds_count",
        "log_head",
        "connections_open",
        "workers_limit",
        "lease_remaining_seconds",
        "store_up",
        "build_info",
        "start_time_seconds",
        "tls_certificate_expiry_timestamp_seconds",
        "resident_memory_bytes",
        "open_files",
    ] {
        assert!(scrape.sum(&format!("millwright_{name}")) > 0.0, "{name} has moved");
    }
    promtool(&["check", "metrics"], &text);
    labels_are_what_they_say(&scrape);
}

fn labels_are_what_they_say(scrape: &Scrape) {
    let value = |name: &str, labels: &[(&str, &str)]| {
        let matches = |s: &&crate::scrape::Sample| {
            s.name == name && labels.iter().all(|(n, v)| s.labels.get(*n).is_some_and(|found| found == v))
        };
        scrape.samples.iter().filter(matches).map(|s| s.value).sum::<f64>()
    };
    let moved = |to| value("millwright_transitions_total", &[("lifecycle", "run"), ("from", "RUNNING"), ("to", to)]);
    assert!(moved("SUCCEEDED") >= 1.0 && moved("FAILED") >= 1.0);
    let attempts = |kind, outcome| value("millwright_stage_seconds_count", &[("kind", kind), ("outcome", outcome)]);
    assert!(attempts("repave", "done") >= 1.0 && attempts("reboot", "failed") >= 1.0);
    let calls = |call, code| value("millwright_requests_total", &[("call", call), ("code", code), ("door", "grpc")]);
    assert!(calls("MachineService/ListMachines", "OK") >= 1.0);
    assert!(calls("MachineService/GetMachine", "NOT_FOUND") >= 1.0);
    // the watch is given up by its client
    assert!(calls("RunService/WatchRuns", "CANCELLED") + value("millwright_streams_open", &[]) >= 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_wants_a_token_unless_it_is_public() {
    let _alone = ALONE.lock().await;
    let server = measured(ServerOptions::default()).await;
    for headers in [vec![], vec![("authorization", "Bearer mwt_wrong")], vec![("authorization", "Basic eA==")]] {
        let answer = web::get(&server.url, "/metrics", &headers).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")));
        assert!(!answer.body.contains("millwright_"), "{}", answer.body);
    }
    page(&server).await;
    let public = measured(ServerOptions { metrics_public: true, ..ServerOptions::default() }).await;
    assert_eq!(web::get(&public.url, "/metrics", &[]).await.status, 200);
    let none = TestServer::start(Database::Memory).await;
    let bearer = format!("Bearer {}", none.token);
    assert_eq!(web::get(&none.url, "/metrics", &[("authorization", &bearer)]).await.status, 404);
}

/// A client's own id comes back; one that cannot be logged is replaced; whatever is asked, there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_names_its_request() {
    let server = TestServer::start(Database::Memory).await;
    for path in ["/healthz", "/metrics", "/nowhere", "/baremetal.v1.RunService/GetRun"] {
        let own = web::get(&server.url, path, &[("x-request-id", "ticket-7")]).await;
        assert_eq!(own.header("x-request-id"), Some("ticket-7"), "{path}");
        let fresh = web::get(&server.url, path, &[("x-request-id", "not printable\t")]).await;
        assert_eq!(fresh.header("x-request-id").map(str::len), Some(32), "{path}");
    }
    let refused = server.runs().await.get_run(pb::GetRunRequest { run_id: "nobody".to_owned() }).await;
    let status = refused.expect_err("there is no such run");
    assert!(status.metadata().get("x-request-id").is_some());
}
