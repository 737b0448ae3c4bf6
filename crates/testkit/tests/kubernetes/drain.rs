//! What counts as drained, and evictions against the real server: its budgets, its idea of a pod that ends.

use crate::fixture::{Machine, Workload, cluster, owned, server};
use kube::{DrainPass, Evict, Kept, NodeOf};
use provider::{Ack, Drain};
use serde_json::{Value, json};
use std::time::Duration;

fn kept(pass: &DrainPass) -> Vec<(String, Kept)> {
    pass.left.iter().map(|left| (left.pod.clone(), left.kept)).collect()
}

#[tokio::test]
async fn drained_is_cordoned_with_nothing_left_but_what_belongs_to_the_node() {
    let cluster = cluster();
    let machine = Machine::registered();
    let not_cordoned = Drain::InUse(format!("node {} is not cordoned", machine.node));
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(not_cordoned.clone()));
    assert_eq!(cluster.watch_drain(&machine.who()).await, Ok(not_cordoned));
    assert_eq!(cluster.cordon(&machine.who(), true).await, Ok(Ack::Done));
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(Drain::Drained));

    let workload = Workload::on(&machine);
    workload.pod("daemon", &owned("DaemonSet"), &json!({}));
    workload.pod("static", &json!({ "annotations": { "kubernetes.io/config.mirror": "x" } }), &json!({}));
    workload.pod("finished", &owned("Job"), &json!({}));
    workload.phase("finished", "Succeeded");
    workload.pod("crashed", &json!({}), &json!({}));
    workload.phase("crashed", "Failed");
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(Drain::Drained));

    workload.pod("web", &owned("ReplicaSet"), &json!({}));
    workload.pod("bare", &json!({}), &json!({}));
    let names = format!("cordoned, 2 pods: {}, {}", workload.name("bare"), workload.name("web"));
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(Drain::InUse(names)));
    // elsewhere is not here
    let other = Machine::registered();
    assert_eq!(cluster.cordon(&other.who(), true).await, Ok(Ack::Done));
    assert_eq!(cluster.drain_state(&other.who()).await, Ok(Drain::Drained));
}

#[tokio::test]
async fn a_machine_that_cannot_be_found_for_sure_is_not_called_drained() {
    let cluster = cluster();
    assert_eq!(cluster.drain_state(&Machine::new().who()).await, Ok(Drain::Drained), "no node has its UUID");
    let by_name = NodeOf { system_uuid: String::new(), names: vec!["nobody".to_owned()] };
    let unsure = cluster.drain_state(&by_name).await.expect_err("it may have another name");
    assert!(unsure.to_string().contains("no system UUID"), "{unsure}");
}

#[tokio::test]
async fn a_pass_evicts_what_may_go_and_says_why_the_rest_stays() {
    let cluster = cluster();
    let machine = Machine::registered();
    let over = cluster.evict_pass(&machine.who(), &Evict::default()).await.expect("a pass");
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(Drain::Drained), "it was cordoned first");
    assert_eq!(over, DrainPass::default(), "nothing was there that had to go");

    let workload = Workload::on(&machine);
    workload.pod("bare", &json!({}), &json!({}));
    workload.pod("daemon", &owned("DaemonSet"), &json!({}));
    let scratch = json!({ "volumes": [{ "name": "scratch", "emptyDir": {} }] });
    workload.pod("data", &owned("ReplicaSet"), &scratch);
    workload.pod("static", &json!({ "annotations": { "kubernetes.io/config.mirror": "x" } }), &json!({}));
    workload.pod("web", &owned("ReplicaSet"), &json!({}));
    let name = |pod: &str| workload.name(pod);

    let pass = cluster.evict_pass(&machine.who(), &Evict::default()).await.expect("a pass");
    assert_eq!((pass.evicted.clone(), pass.ending.len()), (vec![name("web")], 0));
    assert_eq!(kept(&pass), [(name("bare"), Kept::Unmanaged), (name("data"), Kept::EmptyDir)]);
    assert_eq!(workload.is_ending("web"), Some(true));
    for stays in ["bare", "daemon", "data", "static"] {
        assert_eq!(workload.is_ending(stays), Some(false), "{stays}");
    }

    // again: what is going is not asked twice
    let again = cluster.evict_pass(&machine.who(), &Evict::default()).await.expect("a pass");
    assert_eq!((again.evicted.len(), again.ending.clone()), (0, vec![name("web")]));
    workload.ended("web");

    let grace = Some(Duration::from_secs(7));
    let all = Evict { force: true, lose_empty_dir: true, grace };
    let pass = cluster.evict_pass(&machine.who(), &all).await.expect("a pass");
    assert_eq!(pass, DrainPass { evicted: vec![name("bare"), name("data")], ..DrainPass::default() });
    let bare = server().admin().must("GET", &workload.path("bare"), None);
    assert_eq!(bare["metadata"]["deletionGracePeriodSeconds"], 7);
    workload.ended("bare");
    workload.ended("data");
    assert_eq!(cluster.evict_pass(&machine.who(), &all).await, Ok(DrainPass::default()));
    assert_eq!(cluster.drain_state(&machine.who()).await, Ok(Drain::Drained));
}

/// There is no controller that counts healthy pods: the test says what one would have counted.
fn counted(namespace: &str, allowed: usize) {
    let path = format!("/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets/web");
    let budget = server().admin().must("GET", &path, None);
    let status: Value = json!({
        "observedGeneration": budget["metadata"]["generation"], "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 2,
    });
    server().admin().must("PATCH", &format!("{path}/status"), Some(&json!({ "status": status })));
}

#[tokio::test]
async fn a_budget_is_kept_and_named_and_the_next_pass_goes_on() {
    let cluster = cluster();
    let machine = Machine::registered();
    assert_eq!(cluster.cordon(&machine.who(), true).await, Ok(Ack::Done));
    let workload = Workload::on(&machine);
    workload.pod("web-1", &owned("ReplicaSet"), &json!({}));
    workload.pod("web-2", &owned("ReplicaSet"), &json!({}));
    let budget = json!({ "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } } });
    let path = format!("/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets", workload.namespace);
    server().admin().must("POST", &path, Some(&budget));

    let pass = async || cluster.evict_pass(&machine.who(), &Evict::default()).await.expect("a pass");
    // nobody has counted yet, then none is allowed, then one
    let first = pass().await;
    assert_eq!((first.evicted.len(), first.left.len()), (0, 2), "{first:?}");
    counted(&workload.namespace, 0);
    let none = pass().await;
    assert_eq!(kept(&none), [(workload.name("web-1"), Kept::Budget), (workload.name("web-2"), Kept::Budget)]);
    assert!(none.left[0].why.contains("disruption budget web needs 1 healthy pods"), "{none:?}");
    assert_eq!((workload.is_ending("web-1"), workload.is_ending("web-2")), (Some(false), Some(false)));

    counted(&workload.namespace, 1);
    let one = pass().await;
    assert_eq!(
        (one.evicted.clone(), kept(&one)),
        (vec![workload.name("web-1")], vec![(workload.name("web-2"), Kept::Budget)])
    );
    workload.ended("web-1");
    counted(&workload.namespace, 1);
    assert_eq!(pass().await.evicted, [workload.name("web-2")]);
}
