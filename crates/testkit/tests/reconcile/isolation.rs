//! A slow, dead or broken machine never delays the others. Counted in looks on virtual time.

use crate::fixture::{Lab, Manner, PERIOD, Probe, pass, probed};
use domain::condition::ConditionType::{BmcReachable, Degraded, InCustomerCluster, Reachable, Reconciled};
use domain::machine::Phase;
use domain::observation::Lane;
use reconcile::ReconcilerOptions;
use std::sync::Arc;
use std::time::Duration;

fn few_at_a_time(concurrency: usize) -> ReconcilerOptions {
    ReconcilerOptions { concurrency, ..ReconcilerOptions::new("test") }
}

async fn two_hundred(lab: &Lab) -> Vec<String> {
    let ids: Vec<String> = (0..200).map(|n| format!("m-{n:03}")).collect();
    for id in &ids {
        lab.register(probed(id)).await;
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_costs_one_slot_once_and_then_none() {
    let lab = Lab::new().await;
    let ids = two_hundred(&lab).await;
    let probe = Arc::new(Probe::default());
    ids.iter().for_each(|id| probe.set(id, Manner::Takes(Duration::from_millis(100))));
    probe.set("m-000", Manner::Hangs);
    let reconciler = lab.observe_with(&probe, few_at_a_time(4));
    // three slots for 199 looks of 100 ms
    pass(Duration::from_secs(7)).await;
    for id in &ids[1..] {
        assert_eq!((probe.looks(id), lab.machine(id).await.phase), (1, Phase::Ready), "{id}");
    }
    assert_eq!(lab.machine("m-000").await.observation, None, "its own deadline has not come");
    pass(Duration::from_secs(4)).await;
    assert_eq!(lab.says("m-000", BmcReachable).await, "False NoAnswer");
    let before: Vec<usize> = ids.iter().map(|id| probe.looks(id)).collect();
    pass(10 * PERIOD).await;
    for (id, before) in ids.iter().zip(before).skip(1) {
        // each pause may be a tenth longer
        assert!((before + 9..=before + 10).contains(&probe.looks(id)), "{id}: {} after {before}", probe.looks(id));
    }
    assert!(probe.looks("m-000") >= 10, "nor is it forgotten");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_dead_ones_do_not_delay_a_hundred_others() {
    let lab = Lab::new().await;
    let ids = two_hundred(&lab).await;
    let (dead, alive) = ids.split_at(100);
    let probe = Arc::new(Probe::default());
    let reconciler = lab.observe_with(&probe, few_at_a_time(4));
    pass(PERIOD / 2).await;
    dead.iter().for_each(|id| probe.set(id, Manner::Hangs));
    // the sweep that finds them dead waits a second for each of them once, four at a time: the others, which come
    // behind them, are looked at within the next period all the same, and nothing of theirs turns stale
    let first: Vec<usize> = alive.iter().map(|id| probe.looks(id)).collect();
    pass(2 * PERIOD).await;
    for (id, first) in alive.iter().zip(first) {
        assert!(probe.looks(id) > first, "{id} was not looked at");
        assert!(lab.machine(id).await.shown_conditions().iter().all(|c| !c.stale), "{id}");
    }
    pass(8 * PERIOD).await;
    let before: Vec<usize> = alive.iter().map(|id| probe.looks(id)).collect();
    pass(10 * PERIOD).await;
    for (id, before) in alive.iter().zip(before) {
        assert_eq!(probe.looks(id), before + 10, "{id}");
        assert!(lab.machine(id).await.shown_conditions().iter().all(|c| !c.stale), "{id}");
    }
    // those who do not answer get one look after another, and are stale where nobody could see
    for id in dead {
        assert!(probe.looks(id) >= 3, "{id}");
        assert_eq!(lab.says(id, Reachable).await, "True HostAnswers?");
    }
    let slow = lab.sweep(Lane::Slow).await.expect("swept");
    assert!(slow.swept_at.is_some(), "the slow ones are swept, too");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_costs_only_that_look() {
    let lab = Lab::new().await;
    for id in ["m-1", "m-2", "m-3"] {
        lab.register(probed(id)).await;
    }
    let probe = Arc::new(Probe::default());
    probe.set("m-2", Manner::Panics);
    let reconciler = lab.observe_with(&probe, few_at_a_time(2));
    pass(3 * PERIOD).await;
    for id in ["m-1", "m-3"] {
        assert_eq!(lab.machine(id).await.phase, Phase::Ready);
        assert_eq!(lab.says(id, Reconciled).await, "True AsObserved");
    }
    assert_eq!(lab.says("m-2", BmcReachable).await, "False NeverObserved?");
    assert!(lab.machine("m-2").await.observed_words().contains("ProviderFailed"));
    probe.set("m-2", Manner::Answers);
    pass(PERIOD).await;
    assert_eq!(
        (lab.machine("m-2").await.phase, lab.says("m-2", BmcReachable).await.as_str()),
        (Phase::Ready, "True Answers")
    );
    reconciler.stop().await;
}

/// An upstream that is away says nothing about its machines; nothing flips, and what is shown grows old.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_away_accuses_no_machine() {
    let lab = Lab::new().await;
    lab.register(probed("m-1")).await;
    let probe = Arc::new(Probe::default());
    let reconciler = lab.observe_with(&probe, few_at_a_time(2));
    pass(PERIOD).await;
    probe.set("m-1", Manner::Away);
    pass(10 * PERIOD).await;
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers?");
    assert_eq!(lab.says("m-1", Degraded).await, "False NothingWrong?");
    assert_eq!(lab.flips("m-1", BmcReachable).await, ["True"]);
    assert!(lab.shown("m-1", Reconciled).await.message.contains("the upstream is away"));
    reconciler.stop().await;
}

/// The BMC's word stands although the cluster never answers, and the other way round.
#[tokio::test(start_paused = true)]
async fn each_source_is_believed_for_itself() {
    let lab = Lab::new().await;
    for id in ["m-1", "m-2"] {
        let mut member = probed(id);
        "prod".clone_into(&mut member.spec.target_cluster_ref);
        lab.register(member).await;
    }
    let probe = Arc::new(Probe::default());
    let reconciler = lab.observe_with(&probe, few_at_a_time(2));
    pass(PERIOD).await;
    probe.set("m-1", Manner::ClusterHangs);
    probe.set("m-2", Manner::Hangs);
    pass(10 * PERIOD).await;
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers");
    assert_eq!(lab.says("m-1", InCustomerCluster).await, "False NotReady?");
    assert_eq!(lab.says("m-2", BmcReachable).await, "False NoAnswer");
    assert_eq!(lab.says("m-2", InCustomerCluster).await, "False NotReady");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_nobody() {
    let lab = Lab::new().await;
    let ids = two_hundred(&lab).await;
    let probe = Arc::new(Probe::default());
    ids.iter().for_each(|id| probe.set(id, Manner::Hangs));
    let reconciler = lab.observe_with(&probe, few_at_a_time(8));
    pass(Duration::from_secs(1)).await;
    let before = tokio::time::Instant::now();
    reconciler.stop().await;
    assert_eq!(before.elapsed(), Duration::ZERO, "not even for the looks in the air");
    let cut = lab.sweep(Lane::Quick).await.expect("begun");
    assert_eq!((cut.finished_at.is_some(), cut.swept_at), (true, None), "ended, and nothing confirmed");
    let looks: usize = ids.iter().map(|id| probe.looks(id)).sum();
    pass(10 * PERIOD).await;
    assert_eq!(ids.iter().map(|id| probe.looks(id)).sum::<usize>(), looks);
}
