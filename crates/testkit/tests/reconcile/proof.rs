//! The first proof of manageability: once, and not where it is no proof.

use crate::fixture::{Lab, PERIOD, pass, probed};
use domain::condition::ConditionType::{BmcReachable, Degraded, Reachable, Reconciled};
use domain::lifecycle::Owner;
use domain::machine::Phase;
use reconcile::ReconcilerOptions;
use std::time::Duration;
use store::{Caller, switch};
use testkit::fleet::{admin, eventually, labelled, machine, start};

async fn proofs(lab: &Lab) -> usize {
    lab.log().await.iter().filter(|r| r.trigger == "inspected").count()
}

#[tokio::test(start_paused = true)]
async fn a_look_that_proves_it_moves_the_machine_to_ready_once() {
    let lab = Lab::new().await;
    let before = lab.register(machine("m-1")).await;
    let reconciler = lab.observe();
    pass(Duration::from_secs(1)).await;
    let m = lab.machine("m-1").await;
    assert_eq!((m.phase, m.phase_set_by, m.version), (Phase::Ready, Owner::Reconciler, before.version + 1));
    pass(10 * PERIOD).await;
    assert_eq!((proofs(&lab).await, lab.machine("m-1").await.version), (1, m.version));
    assert_eq!(lab.says("m-1", Reconciled).await, "True AsObserved");
    // an operator's word after that is not undone
    lab.service.set_phase(&admin(), "m-1", Phase::Maintenance, "").await.expect("moves");
    pass(3 * PERIOD).await;
    assert_eq!(lab.machine("m-1").await.phase, Phase::Maintenance);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_registered_is_looked_at_at_once() {
    let lab = Lab::new().await;
    let hour = Duration::from_secs(3600);
    let reconciler = lab.fleet.reconciler(ReconcilerOptions { period: hour, ..ReconcilerOptions::new("test") });
    pass(Duration::from_secs(10)).await;
    for n in 0..300 {
        lab.register(machine(&format!("m-{n}"))).await;
    }
    pass(Duration::from_secs(1)).await;
    for n in 0..300 {
        assert_eq!(lab.machine(&format!("m-{n}")).await.phase, Phase::Ready);
    }
    // and so is one that is described anew
    lab.label("m-7", "sim.fault.inspect", Some("fail")).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(lab.says("m-7", BmcReachable).await, "False Unreachable");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_freeze_stops_the_move_and_not_the_look() {
    let lab = Lab::new().await;
    let caller = Caller::new("test");
    lab.fleet.store.write(&caller, "f", |tx| switch::freeze(tx, "tester", "")).await.expect("freezes");
    lab.register(machine("m-1")).await;
    let reconciler = lab.observe();
    pass(3 * PERIOD).await;
    assert_eq!(lab.machine("m-1").await.phase, Phase::FactoryReady);
    assert_eq!(lab.says("m-1", Reachable).await, "True HostAnswers");
    assert_eq!(lab.says("m-1", Reconciled).await, "False NotYetReady");
    lab.fleet.store.write(&caller, "f", switch::unfreeze).await.expect("unfreezes");
    pass(PERIOD).await;
    assert_eq!((lab.machine("m-1").await.phase, proofs(&lab).await), (Phase::Ready, 1));
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_machine_proves_nothing() {
    let lab = Lab::new().await;
    let mut wrong = labelled("m-1", &[("sim.fault.inspect", "wrong-machine")]);
    "SN-1".clone_into(&mut wrong.spec.serial_number);
    lab.register(wrong).await;
    let reconciler = lab.observe();
    pass(3 * PERIOD).await;
    let m = lab.machine("m-1").await;
    assert_eq!((m.phase, m.last_seen()), (Phase::FactoryReady, None));
    assert_eq!(lab.says("m-1", BmcReachable).await, "False WrongMachine");
    assert_eq!(lab.says("m-1", Degraded).await, "True WrongMachine");
    assert_eq!(lab.says("m-1", Reachable).await, "False NeverObserved?", "what answers there is not believed");
    assert_eq!(lab.says("m-1", Reconciled).await, "False WrongMachine");
    assert!(m.observed_words().contains("not SN-1"), "{}", m.observed_words());
    lab.label("m-1", "sim.fault.inspect", None).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(
        (lab.machine("m-1").await.phase, lab.says("m-1", Degraded).await.as_str()),
        (Phase::Ready, "False NothingWrong")
    );
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_moved_while_a_run_has_the_machine_and_afterwards_it_is() {
    let lab = Lab::new().await;
    lab.register(machine("m-1")).await;
    // nobody works on it yet
    let run = lab.service.start_run(&admin(), start("m-1", "REBOOT", "r")).await.expect("starts").run;
    let reconciler = lab.observe();
    pass(3 * PERIOD).await;
    assert_eq!((lab.machine("m-1").await.phase, proofs(&lab).await), (Phase::FactoryReady, 0));
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers");
    lab.engine.start().await.expect("starts");
    eventually("the run ends", || async {
        lab.service.get_run(&admin(), run.id.as_str()).await.expect("reads").run.phase.is_terminal().then_some(())
    })
    .await;
    eventually("it becomes READY", || async { (lab.machine("m-1").await.phase == Phase::Ready).then_some(()) }).await;
    let log = lab.log().await;
    let ended = log.iter().position(|r| r.trigger == "run_ended").expect("ended");
    let proof = log.iter().position(|r| r.trigger == "inspected").expect("proven");
    assert!(ended < proof && log[ended].to_state == "FACTORY_READY" && proofs(&lab).await == 1);
    assert!(log[proof].at.since(log[ended].at) < PERIOD, "at once, not at the next sweep");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_looked_at_says_so() {
    let lab = Lab::new().await;
    lab.register(probed("nobody-knows-its-provider")).await;
    let reconciler = lab.observe();
    pass(3 * PERIOD).await;
    let m = lab.machine("nobody-knows-its-provider").await;
    assert_eq!(m.phase, Phase::FactoryReady);
    let reconciled = lab.shown(m.id.as_str(), Reconciled).await;
    assert_eq!((reconciled.status, reconciled.reason.as_str()), (false, "NeverObserved"));
    assert!(reconciled.message.contains("no provider is configured"), "{}", reconciled.message);
    assert_eq!(
        lab.says(m.id.as_str(), Degraded).await,
        "False NeverObserved?",
        "it is not the machine that is at fault"
    );
    reconciler.stop().await;
}
