//! Conditions and the four states, as a client sees them.

use crate::fixture::{Api, brisk, cluster_machine, on_both, sim_machine, start};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use reconcile::{Reconciler, ReconcilerOptions};
use std::time::Duration;
use testkit::fleet::eventually;

const TYPES: [&str; 8] = [
    "Reachable",
    "BMCReachable",
    "Provisioned",
    "InCustomerCluster",
    "Drained",
    "Degraded",
    "NeedsIntervention",
    "Reconciled",
];

fn observe(api: &Api) -> Reconciler {
    let period = Duration::from_millis(200);
    api.server.fleet.reconciler(ReconcilerOptions { period, ..ReconcilerOptions::new("test") })
}

async fn until(api: &Api, id: &str, what: &str, wanted: impl Fn(&pb::MachineStatus) -> bool) -> pb::MachineStatus {
    let wanted = &wanted;
    eventually(what, || async move { Some(api.status(id).await).filter(wanted) }).await
}

fn says(status: &pb::MachineStatus, kind: &str) -> (bool, String) {
    let c = status.conditions.iter().find(|c| c.r#type == kind).expect("every type is there");
    (c.status, c.reason.clone())
}

// G-7-01 to G-7-07, G-7-09, T-42: all there, once, before anybody has looked; and marked as such
#[tokio::test]
async fn a_machine_nobody_has_looked_at_says_so_in_every_condition() {
    let api = Api::new().await;
    let status = api.register(sim_machine("m-1", &[])).await.status.expect("a status");
    let types: Vec<&str> = status.conditions.iter().map(|c| c.r#type.as_str()).collect();
    assert_eq!(types, TYPES);
    for c in &status.conditions {
        let (reason, stale) = match c.r#type.as_str() {
            "NeedsIntervention" => ("NothingPending", false),
            "Reconciled" => ("NeverObserved", false),
            _ => ("NeverObserved", true),
        };
        assert_eq!((c.status, c.reason.as_str(), c.stale, &c.observed_at), (false, reason, stale, &None), "{c:?}");
    }
    assert_eq!((status.observed.as_str(), status.last_seen), ("never observed", None));
}

// I-2-01 to I-2-05, G-7, G-8, T-14
on_both!(a_machine_that_is_looked_at_shows_four_states_with_source_and_time, brisk(), |api| async move {
    api.register(cluster_machine("m-1", &[])).await;
    let reconciler = observe(&api);
    let status = until(&api, "m-1", "it becomes READY", |s| s.phase() == Phase::Ready).await;
    assert_eq!(status.phase_set_by, "reconciler");
    assert_eq!(status.conditions.iter().map(|c| c.r#type.as_str()).collect::<Vec<_>>(), TYPES);
    assert_eq!(says(&status, "BMCReachable"), (true, "Answers".to_owned()));
    assert_eq!(says(&status, "InCustomerCluster"), (false, "NotJoined".to_owned()));
    let seen = &status.observed;
    assert!(seen.starts_with("BMC answers, power on, host answers, nothing installed; sim, 20"), "{seen}");
    assert!(status.desired.starts_with("READY (set by reconciler at 20"), "{}", status.desired);
    assert!(status.last_seen.is_some() && status.execution.is_empty());
    let run = api.carry_out(start("m-1", "REPAVE", "r")).await;
    assert_eq!(run.phase(), RunPhase::Succeeded);
    let in_service = |s: &pb::MachineStatus| s.effective_state() == Phase::InService;
    let status = until(&api, "m-1", "its cluster has it", in_service).await;
    assert_eq!((says(&status, "Provisioned").0, says(&status, "Reconciled").0), (true, true));
    assert!(status.conditions.iter().all(|c| !c.stale && (c.observed_at.is_some() || c.r#type == "NeedsIntervention")));
    reconciler.stop().await;
});

// an observation is no change of the machine: its version is the client's
on_both!(an_update_with_the_version_read_is_never_lost_to_a_look, brisk(), |api| async move {
    api.register(sim_machine("m-1", &[])).await;
    let reconciler = observe(&api);
    until(&api, "m-1", "it becomes READY", |s| s.phase() == Phase::Ready).await;
    for n in 0..20 {
        let mut machine = api.machine("m-1").await;
        // each of these flips what is observed
        let rule = if n % 2 == 0 { "fail" } else { "slow:1" };
        machine.labels.insert("sim.fault.inspect".into(), rule.into());
        let request = pb::UpdateMachineRequest { machine: Some(machine), update_mask: None };
        api.machines().update_machine(request).await.expect("the version still fits");
        until(&api, "m-1", "it is seen", |s| says(s, "BMCReachable").0 == (n % 2 == 1)).await;
    }
    reconciler.stop().await;
});
