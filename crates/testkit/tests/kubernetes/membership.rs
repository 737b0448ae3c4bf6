//! Membership, cordon and deletion, as a kubelet and an administrator see them from the other side.

use crate::fixture::{Machine, Workload, cluster, server};
use kube::{Cluster, NodeOf};
use provider::{Ack, Drain, Membership};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_machine_is_not_found_then_not_ready_then_ready_as_its_kubelet_says() {
    let cluster = cluster();
    let machine = Machine::new();
    assert_eq!(cluster.membership(&machine.who()).await, Ok(Membership::NotFound));

    let machine = Machine::registered();
    let unreported = "it has not reported whether it is ready".to_owned();
    assert_eq!(cluster.membership(&machine.who()).await, Ok(Membership::NotReady(unreported)));
    machine.reports("False", "KubeletNotReady", "network plugin is not ready");
    let why = "KubeletNotReady: network plugin is not ready".to_owned();
    assert_eq!(cluster.membership(&machine.who()).await, Ok(Membership::NotReady(why)));
    machine.reports("True", "KubeletReady", "ok");
    assert_eq!(cluster.membership(&machine.who()).await, Ok(Membership::Ready));
    machine.reports("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.");
    let gone = cluster.membership(&machine.who()).await.expect("an answer");
    assert!(matches!(gone, Membership::NotReady(why) if why.contains("stopped posting")));
}

#[tokio::test]
async fn the_machine_is_found_by_its_uuid_in_either_byte_order_else_by_name() {
    let cluster = cluster();
    let machine = Machine::registered();
    machine.reports("True", "KubeletReady", "ok");
    let by = |uuid: &str, name: &str| NodeOf { system_uuid: uuid.to_owned(), names: vec![name.to_owned()] };
    let parts: Vec<&str> = machine.uuid.splitn(4, '-').collect();
    assert_eq!(parts[..3], ["4d570000", "1234", "4abc"]);
    let swapped = format!("0000574D-3412-BC4A-{}", parts[3].to_uppercase());
    assert_eq!(cluster.membership(&by(&swapped, "x")).await, Ok(Membership::Ready));
    assert_eq!(cluster.membership(&by("", &machine.node)).await, Ok(Membership::Ready));
    assert_eq!(cluster.membership(&by("", "x")).await, Ok(Membership::NotFound));

    let other = "ffffffff-0000-4000-8000-000000000001";
    let wrong = cluster.membership(&by(other, &machine.node)).await.expect_err("another machine");
    assert_eq!(wrong.reason().as_str(), "WRONG_MACHINE");
    assert!(wrong.to_string().contains(other) && wrong.to_string().contains(&machine.uuid), "{wrong}");
    // and nothing is done to it
    assert!(cluster.cordon(&by(other, &machine.node), true).await.is_err());
    assert!(cluster.delete_node(&by(other, &machine.node)).await.is_err());
    assert!(!machine.is_cordoned());
}

#[tokio::test]
async fn two_nodes_with_one_uuid_stop_every_change() {
    let cluster = cluster();
    let first = Machine::registered();
    let second = Machine::new();
    let status = json!({ "nodeInfo": { "systemUUID": first.uuid.to_uppercase() } });
    let node = json!({ "metadata": { "name": second.node }, "status": status });
    second.kubelet.must("POST", "/api/v1/nodes", Some(&node));
    for refused in [
        cluster.membership(&first.who()).await.map(drop),
        cluster.cordon(&first.who(), true).await.map(drop),
        cluster.delete_node(&first.who()).await.map(drop),
        cluster.drain_state(&first.who()).await.map(drop),
    ] {
        let refused = refused.expect_err("nobody knows which");
        assert_eq!(refused.reason().as_str(), "WRONG_MACHINE");
        assert!(refused.to_string().contains(&first.node) && refused.to_string().contains(&second.node), "{refused}");
    }
    assert!(!first.is_cordoned() && !second.is_cordoned());
}

#[tokio::test]
async fn cordon_and_uncordon_are_done_once_and_said_to_be_done_twice() {
    let cluster = cluster();
    let machine = Machine::registered();
    let version = || {
        let node = server().admin().must("GET", &machine.path(), None);
        node["metadata"]["resourceVersion"].as_str().expect("a version").to_owned()
    };
    for on in [true, false] {
        assert_eq!(cluster.cordon(&machine.who(), on).await, Ok(Ack::Done));
        assert_eq!(machine.is_cordoned(), on);
        let once = version();
        assert_eq!(cluster.cordon(&machine.who(), on).await, Ok(Ack::Done));
        assert_eq!((machine.is_cordoned(), version()), (on, once), "the second time nothing is written");
    }
    let nowhere = cluster.cordon(&Machine::new().who(), true).await.expect_err("no such node");
    assert!(nowhere.to_string().contains("may not have joined yet"), "{nowhere}");
}

#[tokio::test]
async fn a_node_is_deleted_once_and_gone_is_done() {
    let cluster = cluster();
    let machine = Machine::registered();
    assert_eq!(cluster.delete_node(&machine.who()).await, Ok(Ack::Done));
    assert_eq!(server().admin().call("GET", &machine.path(), None).0, 404);
    assert_eq!(cluster.delete_node(&machine.who()).await, Ok(Ack::Done));
    assert_eq!(cluster.membership(&machine.who()).await, Ok(Membership::NotFound));
}

#[tokio::test]
async fn a_thousand_watchers_cost_one_listing_and_the_news_are_young() {
    // a user of its own, so that the server's audit log counts nobody else
    let age = Duration::from_secs(600);
    let kubeconfig = server().kubeconfig_by_certificate();
    let cluster = Cluster::with_limits("counted", &kubeconfig, Duration::from_secs(60), age).expect("a kubeconfig");
    let machine = Machine::registered();
    machine.reports("True", "KubeletReady", "ok");
    cordon(&machine);
    let workload = Workload::on(&machine);
    workload.pod("a", &crate::fixture::owned("ReplicaSet"), &json!({}));
    let (nodes, pods) = counted();
    let who = machine.who();
    let ask = || async { tokio::join!(cluster.watch_membership(&who), cluster.watch_drain(&who)) };
    let in_use = Drain::InUse(format!("cordoned, 1 pod: {}", workload.name("a")));
    for answer in futures::future::join_all((0..1000).map(|_| ask())).await {
        assert_eq!(answer, (Ok(Membership::Ready), Ok(in_use.clone())));
    }
    assert_eq!(counted(), (nodes + 1, pods + 1));
    // who asks for fresh news gets them, and so do watchers from then on
    machine.reports("False", "KubeletNotReady", "x");
    assert_eq!(cluster.watch_membership(&who).await, Ok(Membership::Ready), "within its age");
    assert!(matches!(cluster.membership(&who).await, Ok(Membership::NotReady(_))));
    assert!(matches!(cluster.watch_membership(&who).await, Ok(Membership::NotReady(_))));
    assert_eq!(counted().0, nodes + 2);
}

/// By `curl`, so that the administrator's listings are the adapter's alone.
fn cordon(machine: &Machine) {
    server().admin().must("PATCH", &machine.path(), Some(&json!({ "spec": { "unschedulable": true } })));
}

fn counted() -> (usize, usize) {
    (server().audited("admin", "list", "nodes"), server().audited("admin", "list", "pods"))
}

#[tokio::test]
async fn a_check_tells_version_nodes_and_what_is_not_allowed() {
    let machine = Machine::registered();
    machine.reports("True", "KubeletReady", "ok");
    let check = cluster().check().await.expect("an answer");
    assert_eq!((check.version.as_str(), check.endpoint.as_str()), ("v1.20.2", server().url().as_str()));
    assert!(check.nodes_ready >= 1 && check.nodes_total >= check.nodes_ready);
    assert_eq!(check.missing, [""; 0], "what the documentation gives is enough");

    let limited = crate::fixture::with_token(&server().limited_token).check().await.expect("an answer");
    assert_eq!((limited.nodes_ready, limited.nodes_total), (0, 0));
    let all = "list nodes, patch nodes, delete nodes, list pods, create pods/eviction, create secrets in kube-system, \
               list secrets in kube-system, delete secrets in kube-system";
    // cluster-info is open to whoever is not logged in, and only to them
    assert_eq!(limited.missing.join(", "), format!("{all}, get configmaps in kube-public"));
}
