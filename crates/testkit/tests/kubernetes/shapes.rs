//! What is asked of newer servers than the one at hand is the same that this one was seen to take: the requests to
//! both are compared. What newer servers answer is as the published API has it.

use crate::faults::{as_server, forward, pod, who};
use crate::fixture::{Machine, NAME, Workload, owned};
use crate::responder::{Asked, Reply, Responder};
use kube::{Evict, Kept};
use provider::Ack;
use serde_json::{Value, json};
use std::time::Duration;

fn evictions(asked: Vec<Asked>) -> Vec<Asked> {
    asked.into_iter().filter(|asked| asked.path.ends_with("/eviction")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_of_a_newer_server_differs_from_the_proven_one_by_its_version_alone() {
    let machine = Machine::registered();
    let workload = Workload::on(&machine);
    workload.pod("web", &owned("ReplicaSet"), &json!({}));
    let real = Responder::start(|_, asked| {
        let (status, body) = tokio::task::block_in_place(|| forward(asked));
        Reply::Is(status, "", body)
    })
    .await;
    let leave = Evict { grace: Some(Duration::from_secs(9)), ..Evict::default() };
    let cluster = crate::fixture::cluster_of(NAME, &real.kubeconfig("t0ken")).expect("a kubeconfig");
    assert_eq!(cluster.cordon(&machine.who(), true).await, Ok(Ack::Done));
    let pass = cluster.evict_pass(&machine.who(), &leave).await.expect("a pass");
    assert_eq!(pass.evicted, [workload.name("web")], "the real server took it");
    assert_eq!(workload.is_ending("web"), Some(true));
    let proven = evictions(real.asked()).pop().expect("an eviction");
    assert_eq!(proven.body["apiVersion"], "policy/v1beta1");

    let (namespace, uid) = (workload.namespace.clone(), proven.body["deleteOptions"]["preconditions"]["uid"].clone());
    let newer = Responder::start(move |_, asked| {
        if asked.path.ends_with("/eviction") {
            return Reply::Is(201, "", json!({ "kind": "Status", "status": "Success", "code": 201 }));
        }
        let mut same = pod("web");
        same["metadata"]["namespace"] = namespace.clone().into();
        same["metadata"]["uid"] = uid.clone();
        as_server(&asked.path, &[same], "v1")
    })
    .await;
    let cluster = crate::fixture::cluster_of(NAME, &newer.kubeconfig("t0ken")).expect("a kubeconfig");
    assert_eq!(cluster.evict_pass(&who(), &leave).await.expect("a pass").evicted, [workload.name("web")]);
    let mut new = evictions(newer.asked()).pop().expect("an eviction");
    assert_eq!(new.body["apiVersion"], "policy/v1");
    new.body["apiVersion"] = "policy/v1beta1".into();
    assert_eq!((new.method, new.path, new.body), (proven.method, proven.path, proven.body));
    let kind = |headers: &str| headers.lines().find(|line| line.starts_with("content-type")).map(str::to_owned);
    assert_eq!(kind(&new.headers), kind(&proven.headers));
}

#[tokio::test]
async fn what_newer_servers_say_about_a_pod_that_stays_is_passed_on() {
    let refusals: [(u16, Value, Kept, &str); 4] = [
        (
            429,
            json!({ "message": "Cannot evict pod as it would violate the pod's disruption budget.", "details": { "causes": [
                { "reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently" }] } }),
            Kept::Budget,
            "The disruption budget web needs 2",
        ),
        (
            500,
            json!({ "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support." }),
            Kept::Failed,
            "more than one PodDisruptionBudget",
        ),
        (409, json!({ "message": "the UID in the precondition does not match" }), Kept::Failed, "does not match"),
        (422, json!({ "message": "spec is invalid" }), Kept::Failed, "spec is invalid"),
    ];
    let pods: Vec<Value> = (0..6).map(|i| pod(&format!("p{i}"))).collect();
    let said: Vec<(u16, Value)> = refusals.iter().map(|(code, body, ..)| (*code, body.clone())).collect();
    let responder = Responder::start(move |_, asked| {
        let refused = said.iter().enumerate().find(|(i, _)| asked.path.ends_with(&format!("/p{i}/eviction")));
        match refused {
            Some((_, (code, body))) => Reply::Is(*code, "", body.clone()),
            None if asked.path.ends_with("/p4/eviction") => Reply::Is(404, "", json!({ "message": "not found" })),
            None if asked.path.ends_with("/eviction") => Reply::Is(201, "", json!({ "status": "Success" })),
            None => as_server(&asked.path, &pods, "v1"),
        }
    })
    .await;
    let cluster = crate::fixture::cluster_of(NAME, &responder.kubeconfig("t0ken")).expect("a kubeconfig");
    let pass = cluster.evict_pass(&who(), &Evict::default()).await.expect("a pass");
    assert_eq!(pass.evicted, ["shop/p4", "shop/p5"], "gone is as good as evicted");
    assert_eq!(pass.left.len(), refusals.len());
    for (left, (_, _, kept, why)) in pass.left.iter().zip(&refusals) {
        assert!(left.kept == *kept && left.why.contains(why), "{left:?}");
    }
    assert_eq!(evictions(responder.asked()).len(), 6, "each was asked once");
}

#[tokio::test]
async fn a_server_without_evictions_is_said_to_lack_them() {
    let pods = [pod("p0")];
    let responder = Responder::start(move |_, asked| match asked.path.as_str() {
        "/api/v1" => Reply::Is(200, "", json!({ "resources": [{ "name": "pods" }] })),
        path => as_server(path, &pods, "v1"),
    })
    .await;
    let cluster = crate::fixture::cluster_of(NAME, &responder.kubeconfig("t0ken")).expect("a kubeconfig");
    let e = cluster.evict_pass(&who(), &Evict::default()).await.expect_err("it has none");
    assert_eq!(e.reason().as_str(), "CAPABILITY_MISSING");
}
