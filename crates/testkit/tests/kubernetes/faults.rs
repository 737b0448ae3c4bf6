//! A server that is busy, breaks off, lies or says nothing: what is then said of a read and of a change, and that no
//! token is in it.

use crate::fixture::{Machine, NAME, impatient, server};
use crate::responder::{Asked, Reply, Responder};
use domain::stage::FailureClass;
use kube::{Cluster, Evict, NodeOf};
use provider::{Ack, Membership, ProviderError};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const UUID: &str = "4d570000-0000-4000-8000-000000000001";

pub fn who() -> NodeOf {
    NodeOf { system_uuid: UUID.to_owned(), names: Vec::new() }
}

pub fn node(cordoned: bool) -> Value {
    json!({
        "metadata": { "name": "n1", "uid": "uid-n1" }, "spec": { "unschedulable": cordoned },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }], "nodeInfo": { "systemUUID": UUID } },
    })
}

pub fn list(items: &[Value]) -> Value {
    json!({ "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items })
}

fn status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "message": message })
}

async fn ask(script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> (Responder, Cluster) {
    let responder = Responder::start(script).await;
    let cluster = crate::fixture::cluster_of(NAME, &responder.kubeconfig("t0ken")).expect("a kubeconfig");
    (responder, cluster)
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so() {
    for (code, method) in [(429, "GET"), (503, "GET"), (429, "PATCH"), (503, "PATCH")] {
        let busy = Mutex::new(2);
        let (responder, cluster) = ask(move |_, asked| {
            let mut left = busy.lock().expect("a count");
            if asked.method == method && *left > 0 {
                *left -= 1;
                return Reply::Is(code, "Retry-After: 0\r\n", status(code, "too many requests"));
            }
            if asked.method == "GET" {
                Reply::Is(200, "", list(&[node(false)]))
            } else {
                Reply::Is(200, "", node(true))
            }
        })
        .await;
        assert_eq!(cluster.cordon(&who(), true).await, Ok(Ack::Done), "{code} to {method}");
        assert_eq!(responder.asked().iter().filter(|asked| asked.method == method).count(), 3);
    }
}

#[tokio::test]
async fn a_server_that_puts_us_off_too_long_or_too_often_is_left() {
    let (responder, cluster) = ask(|_, _| Reply::Is(503, "Retry-After: 3600\r\n", status(503, "later"))).await;
    let e = cluster.membership(&who()).await.expect_err("later");
    assert!(e.to_string().contains("come back in 3600 s"), "{e}");
    assert!(matches!(e, ProviderError::Refused { class: FailureClass::Transient, .. }));
    assert_eq!(responder.asked().len(), 1);

    let (responder, cluster) = ask(|_, _| Reply::Is(429, "Retry-After: 0\r\n", status(429, "later"))).await;
    let e = cluster.membership(&who()).await.expect_err("later");
    assert!(e.to_string().contains("put us off 5 times"), "{e}");
    assert_eq!(responder.asked().len(), 5);
}

/// Each way to break an answer.
fn broken(how: usize) -> Option<Reply> {
    Some(match how {
        0 => Reply::Truncated,
        1 => Reply::Garbage,
        2 => Reply::Reset,
        3 => Reply::Silent,
        4 => Reply::Text("{\"metadata\": {\"name\": \"n1\"}, "),
        5 => Reply::Is(500, "", status(500, "etcdserver: request timed out")),
        6 => Reply::Is(504, "", Value::Null),
        _ => return None,
    })
}

#[tokio::test]
async fn a_read_that_breaks_off_is_said_to_be_what_it_is() {
    let reasons = [
        "BAD_ANSWER",
        "BAD_ANSWER",
        "UNREACHABLE",
        "UNREACHABLE",
        "BAD_ANSWER",
        "PROVIDER_REFUSED",
        "PROVIDER_REFUSED",
    ];
    for (how, reason) in reasons.into_iter().enumerate() {
        let responder = Responder::start(move |_, _| broken(how).expect("a way")).await;
        let e = impatient(&responder.kubeconfig("t0ken")).membership(&who()).await.expect_err("broken");
        assert_eq!(e.reason().as_str(), reason, "{how}: {e}");
        assert!(matches!(e, ProviderError::Refused { class: FailureClass::Transient, .. }), "{how}: {e}");
    }
}

#[tokio::test]
async fn a_change_whose_answer_breaks_off_is_unknown_and_is_not_sent_twice() {
    for how in 0.. {
        let Some(_) = broken(how) else { break };
        let responder = Responder::start(move |_, asked| match asked.method.as_str() {
            "GET" => Reply::Is(200, "", list(&[node(false)])),
            _ => broken(how).expect("a way"),
        })
        .await;
        let e = impatient(&responder.kubeconfig("t0ken")).cordon(&who(), true).await.expect_err("broken");
        assert!(matches!(e, ProviderError::Unknown { .. }), "{how}: {e}");
        assert_eq!(responder.asked().iter().filter(|asked| asked.method == "PATCH").count(), 1, "{how}");
    }
}

#[tokio::test]
async fn a_yes_that_did_nothing_is_no_yes() {
    let (_responder, cluster) = ask(|_, asked| match asked.method.as_str() {
        "GET" => Reply::Is(200, "", list(&[node(false)])),
        _ => Reply::Is(200, "", node(false)),
    })
    .await;
    let e = cluster.cordon(&who(), true).await.expect_err("it did nothing");
    assert_eq!(e.reason().as_str(), "BAD_ANSWER");
    assert!(e.to_string().contains("it said yes, and node n1 is as it was"), "{e}");
}

/// Passes on to the real server, as somebody who is let in.
pub fn forward(asked: &Asked) -> (u16, Value) {
    let body = (asked.body != Value::Null).then_some(&asked.body);
    server().by_token(&server().millwright_token).call(&asked.method, &asked.path, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_the_real_server_was_done_and_the_second_call_finds_it() {
    let machine = Machine::registered();
    let responder = Responder::start(|_, asked| {
        let (status, body) = tokio::task::block_in_place(|| forward(asked));
        if asked.method == "GET" { Reply::Is(status, "", body) } else { Reply::Reset }
    })
    .await;
    let cluster = crate::fixture::cluster_of(NAME, &responder.kubeconfig("t0ken")).expect("a kubeconfig");
    let lost = cluster.cordon(&machine.who(), true).await;
    assert!(matches!(lost, Err(ProviderError::Unknown { .. })), "{lost:?}");
    assert!(machine.is_cordoned(), "it was done");
    assert_eq!(cluster.cordon(&machine.who(), true).await, Ok(Ack::Done));
    let lost = cluster.delete_node(&machine.who()).await;
    assert!(matches!(lost, Err(ProviderError::Unknown { .. })), "{lost:?}");
    assert_eq!(cluster.delete_node(&machine.who()).await, Ok(Ack::Done));
    assert_eq!(server().admin().call("GET", &machine.path(), None).0, 404);
}

#[tokio::test]
async fn a_login_that_ends_in_mid_use_is_told_and_what_was_done_before_too() {
    let pods: Vec<Value> = (0..3).map(|i| pod(&format!("p{i}"))).collect();
    for evictions_before in [0, 1] {
        let (pods, done) = (pods.clone(), Mutex::new(0));
        let (_responder, cluster) = ask(move |_, asked| match asked.path.as_str() {
            path if path.ends_with("/eviction") => {
                let mut done = done.lock().expect("a count");
                *done += 1;
                if *done <= evictions_before {
                    Reply::Is(201, "", json!({ "kind": "Status", "status": "Success" }))
                } else {
                    Reply::Is(401, "", status(401, "Unauthorized"))
                }
            }
            path => as_server(path, &pods, "v1"),
        })
        .await;
        let pass = cluster.evict_pass(&who(), &Evict::default()).await;
        if evictions_before == 0 {
            assert_eq!(pass.expect_err("not let in").reason().as_str(), "LOGIN_REFUSED");
        } else {
            let pass = pass.expect("a pass");
            assert_eq!((pass.evicted, pass.left.len()), (vec!["shop/p0".to_owned()], 2));
            assert!(pass.left.iter().all(|left| left.why.contains("does not take the login")));
        }
    }
}

pub fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": "shop", "uid": format!("uid-{name}"),
        "ownerReferences": [{ "kind": "ReplicaSet", "controller": true }] }, "status": { "phase": "Running" } })
}

/// What a server with one cordoned node and these pods answers, which takes evictions of that version.
pub fn as_server(path: &str, pods: &[Value], version: &str) -> Reply {
    let eviction = json!({ "name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": version });
    match path {
        "/api/v1" => {
            Reply::Is(200, "", json!({ "kind": "APIResourceList", "resources": [{ "name": "pods" }, eviction] }))
        }
        path if path.starts_with("/api/v1/nodes?") => Reply::Is(200, "", list(&[node(true)])),
        path if path.starts_with("/api/v1/pods?") => Reply::Is(200, "", list(pods)),
        path => Reply::Is(404, "", status(404, path)),
    }
}

#[tokio::test]
async fn lists_are_read_page_by_page_begun_anew_when_they_expire_and_bounded() {
    let page = |next: &str, name: &str| {
        let mut other = node(false);
        other["metadata"]["name"] = name.into();
        other["status"]["nodeInfo"]["systemUUID"] = json!("");
        json!({ "metadata": { "continue": next }, "items": [other] })
    };
    // the second page has expired, the first time
    let (responder, cluster) = ask(move |number, asked| match (number, asked.path.split("continue=").nth(1)) {
        (_, None) => Reply::Is(200, "", page("a/b=", "n0")),
        (2, Some("a%2Fb%3D")) => Reply::Is(410, "", status(410, "The provided continue parameter is too old")),
        (_, Some("a%2Fb%3D")) => Reply::Is(200, "", json!({ "metadata": { "continue": "" }, "items": [node(false)] })),
        (_, Some(other)) => panic!("{other}"),
    })
    .await;
    assert_eq!(cluster.membership(&who()).await, Ok(Membership::Ready));
    let paths: Vec<String> = responder.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(paths.len(), 4);
    assert_eq!((paths[0].as_str(), &paths[1]), ("/api/v1/nodes?limit=250", &paths[3]));

    let (responder, cluster) = ask(move |_, _| Reply::Is(200, "", page("more", "n0"))).await;
    let e = cluster.membership(&who()).await.expect_err("it never ends");
    assert_eq!(e.reason().as_str(), "BAD_ANSWER");
    assert!(responder.asked().len() <= 100);

    // as Go writes a list of nothing
    let (_responder, cluster) = ask(|_, _| Reply::Text("{\"metadata\": {}, \"items\": null}")).await;
    assert_eq!(cluster.membership(&who()).await, Ok(Membership::NotFound));
}

#[tokio::test]
async fn a_server_that_closes_behind_each_answer_is_asked_on_and_a_redirect_is_not_followed() {
    let (responder, cluster) = ask(|_, asked| {
        Reply::ThenClose(match asked.path.as_str() {
            "/version" => json!({ "gitVersion": "v1.31.2" }),
            path if path.contains("selfsubjectaccessreviews") => json!({ "status": { "allowed": true } }),
            _ => list(&[node(false)]),
        })
    })
    .await;
    let check = cluster.check().await.expect("an answer");
    assert_eq!((check.version.as_str(), check.nodes_ready, check.nodes_total), ("v1.31.2", 1, 1));
    assert!(responder.asked().iter().all(|asked| asked.headers.contains("authorization: bearer t0ken")));

    let elsewhere = Responder::start(|_, _| Reply::Is(200, "", list(&[]))).await;
    let (_responder, cluster) = ask(|_, _| Reply::Is(302, "Location: https://localhost/\r\n", Value::Null)).await;
    assert_eq!(cluster.membership(&who()).await.expect_err("a redirect").reason().as_str(), "BAD_ANSWER");
    assert_eq!(elsewhere.asked(), []);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_in_any_error_or_log_even_if_the_server_repeats_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let token = testkit::canary::plant("bearer");
    let mut said = String::new();
    for code in [400, 401, 403, 404, 409, 422, 429, 500] {
        let repeated = token.clone();
        let responder = Responder::start(move |_, asked| {
            let body = status(code, &format!("what is {repeated} {}?", asked.headers));
            Reply::Is(code, "Retry-After: 0\r\n", body)
        })
        .await;
        let cluster = crate::fixture::cluster_of(NAME, &responder.kubeconfig(&token)).expect("a kubeconfig");
        said.push_str(&format!("{:?}\n", cluster.membership(&who()).await));
        said.push_str(&format!("{:?}\n", cluster.mint_join(Duration::from_secs(60)).await));
        said.push_str(&format!("{:?}\n", cluster.check().await));
        said.push_str(&format!("{:?}\n", cluster.forget_join("abcdef").await));
        said.push_str(&format!("{cluster:?}\n"));
    }
    // and what is minted where all goes well
    let minted = crate::fixture::cluster().mint_join(Duration::from_secs(60)).await.expect("minted");
    said.push_str(&format!("{minted:?} {:?}", kube::join_script(&minted, None)));
    let log = String::from_utf8_lossy(&log.0.lock().expect("a log")).into_owned();
    assert!(log.contains("asked a cluster") && said.lines().count() > 30, "something was said");
    let secret = minted.token.reveal().split('.').nth(1).expect("a secret part").to_owned();
    for secret in [token, secret, server().millwright_token.clone()] {
        assert!(!said.contains(&secret), "in an error:\n{said}");
        assert!(!log.contains(&secret), "in the log:\n{log}");
    }
}

/// What the engine allows the provider is more than the provider allows a cluster: the call itself says how it ended.
#[tokio::test]
async fn a_call_to_a_cluster_ends_before_the_engine_gives_it_up() {
    let responder = Responder::start(|_, _| Reply::Silent).await;
    let kubeconfig = domain::credential::Credential::Kubeconfig(responder.kubeconfig("t0ken"));
    let keyring = testkit::keyring::MemoryKeyring::default().with("prod", kubeconfig);
    let options = datacenter::Options { call_timeout: Duration::from_secs(3), ..datacenter::Options::default() };
    let provider = datacenter::Datacenter::new(options, Arc::new(keyring));
    let target = provider::Target {
        machine_id: domain::MachineId::from_text("m-1".to_owned()),
        labels: Default::default(),
        spec: domain::machine::MachineSpec { system_uuid: UUID.to_owned(), ..Default::default() },
        notes: Default::default(),
        by: provider::By::System,
    };
    use provider::ClusterControl as _;
    let late = provider.membership(&target, "prod").await.expect_err("never answered");
    assert_eq!(late.reason(), domain::Reason::Unreachable, "{late}");
    assert!(late.to_string().contains("within 3 s"), "{late}");
}
