//! What is old is shown as old, and what is seen again is fresh again.

use crate::fixture::{Lab, PERIOD, pass};
use domain::condition::ConditionType::{BmcReachable, Degraded, Provisioned, Reachable, Reconciled};
use domain::machine::Phase;
use std::time::Duration;
use testkit::fleet::machine;

#[tokio::test(start_paused = true)]
async fn a_bmc_that_falls_silent_and_comes_back() {
    let lab = Lab::new().await;
    lab.register(machine("m-1")).await;
    let reconciler = lab.observe();
    pass(10 * PERIOD).await;
    lab.label("m-1", "sim.fault.inspect", Some("hang")).await;
    pass(Duration::from_secs(11)).await;
    let silent_since = lab.shown("m-1", BmcReachable).await.last_transition.expect("flipped");
    assert_eq!(lab.says("m-1", BmcReachable).await, "False NoAnswer");
    assert_eq!(lab.says("m-1", Degraded).await, "True BMCSilent");
    assert_eq!(lab.says("m-1", Reachable).await, "True HostAnswers", "not yet old");
    assert_eq!(lab.says("m-1", Reconciled).await, "True AsObserved");
    let seen = lab.machine("m-1").await.last_seen().expect("seen");
    assert!(seen <= silent_since && silent_since.since(seen) <= PERIOD);
    pass(4 * PERIOD).await;
    for kind in [Reachable, Provisioned] {
        let shown = lab.shown("m-1", kind).await;
        assert!(shown.stale && shown.observed_at == Some(seen), "{shown:?}");
    }
    assert_eq!(lab.says("m-1", BmcReachable).await, "False NoAnswer", "that is seen every time");
    assert_eq!(lab.says("m-1", Degraded).await, "True BMCSilent");
    let reconciled = lab.shown("m-1", Reconciled).await;
    assert_eq!((reconciled.status, reconciled.reason.as_str()), (false, "Stale"));
    assert!(reconciled.message.contains("Reachable, Provisioned: no answer within 10 s"), "{}", reconciled.message);
    let m = lab.machine("m-1").await;
    assert_eq!((m.last_seen(), m.effective_state()), (Some(seen), Phase::Ready), "a stale observation still counts");
    lab.label("m-1", "sim.fault.inspect", None).await;
    pass(Duration::from_secs(1)).await;
    assert!(lab.machine("m-1").await.shown_conditions().iter().all(|c| !c.stale));
    assert_eq!(lab.says("m-1", Reconciled).await, "True AsObserved");
    assert_eq!(lab.flips("m-1", BmcReachable).await, ["True", "False", "True"], "each flip once");
    assert_eq!(lab.flips("m-1", Degraded).await, ["True", "False"]);
    assert_eq!(lab.flips("m-1", Reachable).await, ["True"], "not to be seen is no flip");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn when_nobody_looks_everything_grows_old() {
    let lab = Lab::new().await;
    lab.register(machine("m-1")).await;
    let reconciler = lab.observe();
    pass(4 * PERIOD + PERIOD / 2).await;
    let fresh = lab.shown("m-1", BmcReachable).await;
    let age = lab.fleet.ambient.now().since(fresh.observed_at.expect("seen"));
    assert!(!fresh.stale && age <= PERIOD, "{age:?}");
    reconciler.stop().await;
    pass(3 * PERIOD).await;
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers?");
    assert_eq!(lab.says("m-1", Reconciled).await, "False Stale");
    let again = lab.observe();
    pass(Duration::from_secs(1)).await;
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers", "the first sweep begins with the start");
    assert_eq!(lab.shown("m-1", BmcReachable).await.last_transition, fresh.last_transition, "and is no flip");
    again.stop().await;
}
