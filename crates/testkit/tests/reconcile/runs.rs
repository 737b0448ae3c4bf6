//! Runs and observations on the same machines: neither disturbs the other.

use crate::fixture::{Lab, pass};
use domain::condition::ConditionType::{
    BmcReachable, Degraded, InCustomerCluster, NeedsIntervention, Provisioned, Reconciled,
};
use domain::machine::Phase;
use domain::run::{Run, RunPhase};
use reconcile::ReconcilerOptions;
use service::{MachineUpdate, NewMachine};
use std::time::Duration;
use testkit::fleet::{admin, eventually, labelled, start};

fn member(id: &str, labels: &[(&str, &str)]) -> NewMachine {
    let mut new = labelled(id, labels);
    "prod".clone_into(&mut new.spec.target_cluster_ref);
    new
}

/// Looks far more often than anybody would.
fn restless() -> ReconcilerOptions {
    ReconcilerOptions { period: Duration::from_millis(50), ..ReconcilerOptions::new("test") }
}

async fn ended(lab: &Lab, run: &Run) -> Run {
    eventually("the run ends", || async {
        let view = lab.service.get_run(&admin(), run.id.as_str()).await.expect("reads");
        view.run.phase.is_terminal().then_some(view.run)
    })
    .await
}

// G-8-04, G-8-11
#[tokio::test(start_paused = true)]
async fn twenty_installs_under_observation_end_in_service() {
    let lab = Lab::new().await;
    for n in 0..20 {
        lab.register(member(&format!("m-{n}"), &[("sim.latency_ms", "400")])).await;
    }
    let reconciler = lab.fleet.reconciler(restless());
    lab.engine.start().await.expect("starts");
    pass(Duration::from_secs(1)).await;
    let mut runs = Vec::new();
    for n in 0..20 {
        let request = start(&format!("m-{n}"), "REPAVE", &format!("r-{n}"));
        runs.push(lab.service.start_run(&admin(), request).await.expect("starts").run);
    }
    // meanwhile somebody updates with the version that was read
    for n in 0..200 {
        let m = lab.machine("m-0").await;
        let labels = [("n".to_owned(), n.to_string())].into_iter().collect();
        let mask = Some(vec!["labels.n".to_owned()]);
        let update = MachineUpdate { id: "m-0".into(), labels, version: m.version, mask, ..MachineUpdate::default() };
        lab.service.update_machine(&admin(), update).await.expect("no look has raised the version");
        pass(Duration::from_millis(7)).await;
    }
    for run in &runs {
        assert_eq!(ended(&lab, run).await.phase, RunPhase::Succeeded);
    }
    pass(Duration::from_secs(1)).await;
    for n in 0..20 {
        let id = format!("m-{n}");
        let m = lab.machine(&id).await;
        assert_eq!((m.phase, m.effective_state(), m.active_run.clone()), (Phase::InService, Phase::InService, None));
        assert_eq!(lab.says(&id, InCustomerCluster).await, "True Joined");
        assert_eq!(lab.says(&id, Provisioned).await, "True Installed");
        assert_eq!(lab.says(&id, Reconciled).await, "True AsObserved");
        assert_eq!(lab.flips(&id, Degraded).await, Vec::<String>::new(), "a reboot is not a fault");
    }
    for run in &runs {
        let id = run.id.clone();
        assert_eq!(lab.fleet.store.read(move |tx| store::run::check_fold(tx, &id)).await, Ok(Ok(())));
    }
    reconciler.stop().await;
    lab.engine.stop().await;
}

// G-8-08, G-8-09: what runs set and what is observed stand side by side
#[tokio::test(start_paused = true)]
async fn a_failed_run_needs_a_person_whatever_is_observed() {
    let lab = Lab::new().await;
    lab.register(member("m-1", &[("sim.fault.repave", "fail")])).await;
    let reconciler = lab.fleet.reconciler(restless());
    lab.engine.start().await.expect("starts");
    let run = lab.service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run;
    assert_eq!(ended(&lab, &run).await.phase, RunPhase::Failed);
    pass(Duration::from_secs(1)).await;
    assert_eq!(lab.says("m-1", NeedsIntervention).await, "True RunFailed");
    assert_eq!(lab.says("m-1", BmcReachable).await, "True Answers");
    let m = lab.machine("m-1").await;
    assert_eq!((m.phase, m.effective_state()), (Phase::Maintenance, Phase::Maintenance));
    reconciler.stop().await;
    lab.engine.stop().await;
}

/// A fault with a count is a run's to meet: observers do not use it up.
#[tokio::test(start_paused = true)]
async fn an_observer_uses_up_no_simulated_fault() {
    let lab = Lab::new().await;
    lab.register(member("m-1", &[("sim.fault.verify", "drop:1")])).await;
    let reconciler = lab.fleet.reconciler(restless());
    lab.engine.start().await.expect("starts");
    pass(Duration::from_secs(1)).await;
    let run = lab.service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run;
    let run = ended(&lab, &run).await;
    let retries: u32 = run.steps.iter().map(|s| s.retry_count).sum();
    assert_eq!((run.phase, retries), (RunPhase::Succeeded, 1));
    reconciler.stop().await;
    lab.engine.stop().await;
}

// G-8-11: the phase says IN_SERVICE, the cluster says no
#[tokio::test(start_paused = true)]
async fn truth_beats_the_stored_phase() {
    let lab = Lab::new().await;
    lab.register(member("m-1", &[])).await;
    let reconciler = lab.observe();
    lab.engine.start().await.expect("starts");
    let run = lab.service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run;
    assert_eq!(ended(&lab, &run).await.phase, RunPhase::Succeeded);
    pass(Duration::from_secs(1)).await;
    assert_eq!(lab.machine("m-1").await.effective_state(), Phase::InService);
    lab.label("m-1", "sim.fault.verify", Some("fail")).await;
    pass(Duration::from_secs(1)).await;
    let m = lab.machine("m-1").await;
    assert_eq!((m.phase, m.effective_state()), (Phase::InService, Phase::Ready));
    assert_eq!(lab.says("m-1", Degraded).await, "True NotInCluster");
    assert_eq!(lab.says("m-1", Reconciled).await, "False NotInCluster");
    reconciler.stop().await;
    lab.engine.stop().await;
}
