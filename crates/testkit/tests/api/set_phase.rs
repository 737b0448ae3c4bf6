//! Moving a machine by an operator's decision: the edges of DESIGN section 7, and nothing else.

use crate::fixture::{Api, cluster_machine, on_both, sim_machine, start};
use crate::refusal::{refused, refused_field};
use domain::lifecycle::{Owner, State as _, Verdict, judge};
use domain::machine::SET_PHASE;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use tonic::Code;

const ALL: [Phase; 7] = [
    Phase::FactoryReady,
    Phase::Ready,
    Phase::Provisioning,
    Phase::InService,
    Phase::Maintenance,
    Phase::Rma,
    Phase::Retired,
];

/// DESIGN section 7, "phase by an operator", word for word.
fn design_allows(from: Phase, to: Phase) -> bool {
    use Phase::{FactoryReady, InService, Maintenance, Provisioning, Ready, Retired, Rma, Unspecified};
    match to {
        Ready => matches!(from, FactoryReady | Maintenance | Rma),
        Maintenance => matches!(from, Ready | InService),
        InService => from == Maintenance,
        Rma => !matches!(from, Retired | Rma),
        Retired => matches!(from, Rma | Maintenance | Ready | FactoryReady),
        FactoryReady | Provisioning | Unspecified => false,
    }
}

fn in_domain(phase: Phase) -> domain::machine::Phase {
    domain::machine::Phase::parse(phase.as_str_name()).expect("the same words on both sides")
}

/// Registers a machine and brings it to a phase. PROVISIONING is held by a run that hangs.
async fn bring(api: &Api, id: &str, to: Phase) {
    match to {
        Phase::Unspecified => panic!("no phase"),
        Phase::FactoryReady => drop(api.register(cluster_machine(id, &[])).await),
        Phase::Provisioning => {
            api.register(sim_machine(id, &[("sim.fault.repave", "hang")])).await;
            let run = api.start(start(id, "REPAVE", "r")).await;
            api.at_step(&run.run_id, "repave").await;
        }
        Phase::InService | Phase::Maintenance => {
            // a member of its cluster, so that every edge's guard holds
            api.register(cluster_machine(id, &[])).await;
            api.carry_out(start(id, "REPAVE", "r")).await;
            if to == Phase::Maintenance {
                api.set_phase(id, to).await;
            }
        }
        Phase::Ready | Phase::Rma | Phase::Retired => {
            api.register(cluster_machine(id, &[])).await;
            api.set_phase(id, to).await;
        }
    }
    assert_eq!(api.phase(id).await, to);
}

// the table itself is DESIGN's
#[test]
fn the_domains_table_is_the_designs() {
    for from in ALL {
        for to in ALL {
            let verdict = judge(Some(in_domain(from)), in_domain(to), SET_PHASE, Owner::Operator);
            let allowed = matches!(verdict, Verdict::Allowed(_));
            assert_eq!(allowed, design_allows(from, to), "{from:?} to {to:?}: {verdict:?}");
        }
    }
}

// DESIGN section 7, G-20-02: all 49 pairs through the door
#[tokio::test]
async fn every_pair_of_phases_has_its_verdict() {
    let api = Api::new().await;
    let api = &api;
    let pairs = ALL.iter().flat_map(|from| ALL.iter().map(move |to| (*from, *to)));
    futures::future::join_all(pairs.map(|(from, to)| pair(api, from, to))).await;
}

async fn pair(api: &Api, from: Phase, to: Phase) {
    let id = format!("{}-{}", from.as_str_name(), to.as_str_name());
    bring(api, &id, from).await;
    let before = api.machine(&id).await;
    let result = api.try_set_phase(&id, to).await;
    let held = from == Phase::Provisioning;
    if from == to {
        assert_eq!(result.expect("repeating it is no change"), before, "{id}");
    } else if design_allows(from, to) && !held {
        let status = result.unwrap_or_else(|e| panic!("{id}: {e}")).status.expect("a status");
        assert_eq!((status.phase(), status.phase_set_by.as_str()), (to, "operator"), "{id}");
        return;
    } else {
        let reason = if held { "ACTIVE_RUN" } else { "ILLEGAL_TRANSITION" };
        let refusal = refused(result, Code::FailedPrecondition, reason);
        if reason == "ILLEGAL_TRANSITION" {
            // refusals name the legal next states
            let legal: Vec<&str> =
                ALL.iter().filter(|p| design_allows(from, **p)).map(pb::machine_status::Phase::as_str_name).collect();
            let mut named = refusal.allowed();
            named.sort_by_key(|name| legal.iter().position(|l| l == name));
            assert_eq!(named, legal, "{id}");
        }
    }
    let after = api.machine(&id).await;
    assert_eq!((after.status, after.labels, after.spec), (before.status, before.labels, before.spec), "{id}");
}

// G-6-07: RETIRED has no exit
#[tokio::test]
async fn a_retired_machine_stays_retired() {
    let api = Api::new().await;
    bring(&api, "m-1", Phase::Retired).await;
    for to in ALL.into_iter().filter(|p| *p != Phase::Retired) {
        let refusal = refused(api.try_set_phase("m-1", to).await, Code::FailedPrecondition, "ILLEGAL_TRANSITION");
        assert_eq!(refusal.allowed(), Vec::<&str>::new(), "{to:?}");
    }
    api.sim("m-1", &[]).await;
    assert_eq!(api.phase("m-1").await, Phase::Retired, "registering again does not bring it back");
}

// DESIGN section 7: MAINTENANCE → IN_SERVICE only if the cluster says so
#[tokio::test]
async fn in_service_needs_the_clusters_word() {
    let api = Api::new().await;
    let maintenance = |machine: pb::Machine| async {
        let id = api.register(machine).await.machine_id;
        api.set_phase(&id, Phase::Ready).await;
        api.set_phase(&id, Phase::Maintenance).await;
        api.try_set_phase(&id, Phase::InService).await
    };
    let refusal = |result| refused(result, Code::FailedPrecondition, "NOT_CONFIRMED");
    refusal(maintenance(sim_machine("no-cluster", &[])).await).says("target_cluster_ref");
    refusal(maintenance(cluster_machine("not-a-member", &[])).await).says("cluster-a");
    refusal(maintenance(cluster_machine("not-ready", &[("sim.fault.verify", "fail")])).await).says("not ready");
    let mut foreign = cluster_machine("no-provider", &[]);
    foreign.spec.as_mut().expect("a spec").provider = "dc-9".into();
    refusal(maintenance(foreign).await).says("dc-9");
    assert_eq!(api.phase("not-a-member").await, Phase::Maintenance);
    bring(&api, "member", Phase::Maintenance).await;
    assert_eq!(api.set_phase("member", Phase::InService).await.status.expect("a status").phase(), Phase::InService);
}

// DESIGN section 7: none while a run is active; PENDING and RUNNING both count
on_both!(no_phase_is_set_while_a_run_is_active, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    api.set_phase("m-1", Phase::Ready).await;
    api.freeze().await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    for to in [Phase::Maintenance, Phase::Rma, Phase::Retired] {
        let refusal = refused(api.try_set_phase("m-1", to).await, Code::FailedPrecondition, "ACTIVE_RUN");
        assert_eq!(refusal.says(&run.run_id).details["run_id"], run.run_id);
    }
    api.unfreeze().await;
    api.at_step(&run.run_id, "repave").await;
    for to in ALL.into_iter().filter(|p| *p != Phase::Provisioning) {
        let status = api.try_set_phase("m-1", to).await.expect_err("a run is active");
        assert_eq!(status.code(), Code::FailedPrecondition, "{to:?}");
    }
    assert_eq!(api.status("m-1").await.active_run_id, run.run_id);
    api.try_cancel(&run.run_id).await.expect("cancels");
    api.set_phase("m-1", Phase::Ready).await;
});

// T-14: who set the phase is on record
#[tokio::test]
async fn phase_set_by_tells_operator_from_executor() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    assert_eq!(api.set_phase("m-1", Phase::Ready).await.status.expect("a status").phase_set_by, "operator");
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.phase_set_by.as_str()), (Phase::Provisioning, "executor"));
    api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!(api.status("m-1").await.phase_set_by, "executor");
    assert_eq!(api.set_phase("m-1", Phase::Ready).await.status.expect("a status").phase_set_by, "operator");
}

// DESIGN section 7: leaving MAINTENANCE by SetPhase clears NeedsIntervention, on record
#[tokio::test]
async fn leaving_maintenance_clears_needs_intervention() {
    let api = Api::new().await;
    for (id, to) in [("a", Phase::Ready), ("b", Phase::Rma), ("c", Phase::Retired)] {
        api.sim(id, &[("sim.fault.reboot", "wrong-machine")]).await;
        api.carry_out(start(id, "REBOOT", "r1")).await;
        assert!(api.needs_intervention(id).await);
        let before = api.condition(id, "NeedsIntervention").await.expect("a condition");
        api.set_phase(id, to).await;
        let after = api.condition(id, "NeedsIntervention").await.expect("kept, with its end");
        assert!(!after.status && !after.reason.is_empty() && after.message.contains("tester"), "{after:?}");
        assert!(
            after.last_transition.map(|t| (t.seconds, t.nanos)) > before.last_transition.map(|t| (t.seconds, t.nanos))
        );
    }
}

// CONTRACT: missing or malformed fields
#[tokio::test]
async fn bad_phases_are_refused() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    refused_field(api.try_set_phase("m-1", Phase::Unspecified).await, "phase");
    let request = pb::SetPhaseRequest { machine_id: "m-1".into(), phase: 99, reason: String::new() };
    refused_field(api.machines().set_phase(request).await, "phase");
    refused_field(api.try_set_phase("", Phase::Ready).await, "machine_id");
    refused(api.try_set_phase("m-404", Phase::Ready).await, Code::NotFound, "MACHINE_NOT_FOUND");
    let long = "x".repeat(3000);
    let request = pb::SetPhaseRequest { machine_id: "m-1".into(), phase: Phase::Ready.into(), reason: long };
    refused_field(api.machines().set_phase(request).await, "reason");
    assert_eq!(api.phase("m-1").await, Phase::FactoryReady);
}
