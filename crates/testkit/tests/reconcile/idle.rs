//! An idle fleet writes nothing.

use crate::fixture::{Lab, Manner, PERIOD, Probe, pass, probed};
use domain::condition::ConditionType;
use domain::machine::Machine;
use domain::observation::{Lane, Observation};
use reconcile::ReconcilerOptions;
use std::sync::Arc;
use std::time::Duration;
use testkit::fleet::machine;

/// All that a write of any kind would have changed, except the sweep's own row.
async fn rows(lab: &Lab) -> (u64, Vec<(String, u64, u64, Vec<String>)>) {
    let head = lab.fleet.store.read(store::log_range).await.expect("reads").head;
    let filter = store::machine::FILTER.parse("").expect("parses");
    let all = lab.fleet.store.read(move |tx| store::machine::list(tx, &filter, "", 1000)).await.expect("lists");
    let row = |m: Machine| {
        let o = m.observation.expect("observed");
        let texts = o.conditions.iter().map(|o| format!("{:?}", o.condition)).collect();
        (m.id.to_string(), m.version, o.version, texts)
    };
    (head, all.into_iter().map(row).collect())
}

#[tokio::test(start_paused = true)]
async fn sweeps_that_find_nothing_new_leave_no_trace_but_their_own() {
    let lab = Lab::new().await;
    for n in 0..50 {
        lab.register(machine(&format!("m-{n}"))).await;
    }
    let reconciler = lab.observe();
    pass(Duration::from_secs(5)).await;
    let (before, round) = (rows(&lab).await, lab.sweep(Lane::Quick).await.expect("swept").round);
    pass(20 * PERIOD).await;
    assert_eq!(rows(&lab).await, before);
    let sweep = lab.sweep(Lane::Quick).await.expect("swept");
    // each pause may be a tenth longer
    assert!((round + 18..=round + 20).contains(&sweep.round), "{} after {round}", sweep.round);
    assert_eq!(sweep.beats, 0);
    assert_eq!(lab.sweep(Lane::Slow).await, None, "nobody is silent");
    // and everything is fresh all the same
    let m = lab.machine("m-7").await;
    assert!(m.shown_conditions().iter().all(|c| !c.stale));
    assert_eq!(m.last_seen(), sweep.swept_at);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn words_that_differ_each_time_are_no_news() {
    let lab = Lab::new().await;
    let mut member = probed("m-1");
    "prod".clone_into(&mut member.spec.target_cluster_ref);
    lab.register(member).await;
    let mut dead = probed("m-2");
    dead.labels.clear();
    lab.register(dead).await;
    let probe = Arc::new(Probe::default());
    probe.set("m-2", Manner::Hangs);
    let reconciler = lab.observe_with(&probe, ReconcilerOptions::new("test"));
    pass(Duration::from_secs(60)).await;
    let (before, looks) = (rows(&lab).await, probe.looks("m-1"));
    assert_eq!(lab.says("m-1", ConditionType::InCustomerCluster).await, "False NotReady");
    assert_eq!(lab.says("m-2", ConditionType::BmcReachable).await, "False NoAnswer");
    pass(20 * PERIOD).await;
    assert_eq!(rows(&lab).await, before, "a dead machine is no news either");
    assert_eq!(probe.looks("m-1"), looks + 20);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_fleet_is_not_even_swept() {
    let lab = Lab::new().await;
    let reconciler = lab.observe();
    pass(10 * PERIOD).await;
    assert_eq!((lab.sweep(Lane::Quick).await, lab.sweep(Lane::Slow).await), (None, None));
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_our_hands_is_written_once_and_not_looked_at() {
    use domain::machine::Phase;
    let lab = Lab::new().await;
    for id in ["m-1", "m-2"] {
        lab.register(probed(id)).await;
    }
    let probe = Arc::new(Probe::default());
    let reconciler = lab.observe_with(&probe, ReconcilerOptions::new("test"));
    pass(Duration::from_secs(1)).await;
    lab.service.set_phase(&testkit::fleet::admin(), "m-1", Phase::Rma, "").await.expect("moves");
    pass(Duration::from_secs(1)).await;
    let (looks, before) = (probe.looks("m-1"), rows(&lab).await);
    let version = |o: &Option<Observation>| o.as_ref().map(|o| o.version);
    assert_eq!(version(&lab.machine("m-1").await.observation), Some(2), "it is no longer confirmed");
    pass(10 * PERIOD).await;
    assert_eq!((probe.looks("m-1"), rows(&lab).await), (looks, before));
    assert_eq!(lab.says("m-1", ConditionType::Reachable).await, "True HostAnswers?");
    assert_eq!(lab.says("m-2", ConditionType::Reachable).await, "True HostAnswers");
    assert_eq!(lab.says("m-1", ConditionType::Reconciled).await, "True NotLookedAt");
    // repaired: it is looked at again, at once
    lab.service.set_phase(&testkit::fleet::admin(), "m-1", Phase::Ready, "").await.expect("moves");
    pass(Duration::from_secs(1)).await;
    assert_eq!(lab.says("m-1", ConditionType::Reachable).await, "True HostAnswers");
    assert_eq!(lab.flips("m-1", ConditionType::Reachable).await, ["True"], "it never was otherwise");
    reconciler.stop().await;
}
