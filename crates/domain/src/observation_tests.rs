//! How observations are shown: beside what is stored, with their age.

use super::*;
use crate::id::MachineId;
use crate::lifecycle::{Owner, State as _};
use crate::look::{Facts, Hardware, Look, Member, Workload, observe};
use crate::machine::{ActiveRun, Labels, MachineSpec};
use crate::run::RunPhase;

fn at(seconds: u64) -> Timestamp {
    Timestamp::default().plus(Duration::from_secs(seconds))
}

fn machine(phase: Phase) -> Machine {
    Machine {
        id: MachineId::from_text("m-1"),
        labels: Labels::new(),
        spec: MachineSpec { target_cluster_ref: "prod".into(), ..MachineSpec::default() },
        phase,
        phase_set_by: Owner::Operator,
        phase_set_at: at(1),
        previous_phase: None,
        active_run: None,
        conditions: vec![],
        observation: None,
        version: 1,
        created_at: at(0),
        updated_at: at(1),
    }
}

fn look(member: Member) -> Look {
    let facts = Facts {
        serial_number: "S1".into(),
        system_uuid: String::new(),
        powered: true,
        reachable: true,
        host_asked: true,
        disk_read: true,
        installed: Some("ubuntu-24.04".into()),
        installing: None,
    };
    Look { at: at(100), source: "sim".into(), hardware: Hardware::Answered(facts), member, workload: Workload::Drained }
}

/// Read at a time, with the start of the last sweep.
fn read(mut m: Machine, look: &Look, swept_at: Option<u64>, as_of: u64) -> Machine {
    let fresh = Freshness { swept_at: swept_at.map(at), stale_after: Duration::from_secs(90), as_of: at(as_of) };
    m.observation = Some(Observation { fresh, ..observe(&m, look) });
    m
}

fn shown(m: &Machine, kind: ConditionType) -> Shown {
    m.shown_conditions().into_iter().find(|c| c.kind == kind).expect("every type is shown")
}

#[test]
fn every_type_is_shown_once_and_in_order_from_the_first_moment() {
    let fresh = machine(Phase::FactoryReady).shown_conditions();
    let kinds: Vec<_> = fresh.iter().map(|c| c.kind).collect();
    assert_eq!(kinds, ConditionType::ALL);
    for c in &fresh {
        let (reason, stale) = match c.kind {
            ConditionType::NeedsIntervention => ("NothingPending", false),
            ConditionType::Reconciled => ("NeverObserved", false),
            _ => ("NeverObserved", true),
        };
        assert_eq!((c.status, c.reason.as_str(), c.stale, c.observed_at), (false, reason, stale, None), "{:?}", c.kind);
    }
    let seen = read(machine(Phase::InService), &look(Member::Joined), None, 100);
    assert_eq!(seen.shown_conditions().iter().map(|c| c.kind).collect::<Vec<_>>(), ConditionType::ALL);
}

#[test]
fn what_sweeps_confirm_stays_fresh_and_the_rest_grows_old() {
    let seen = |swept, as_of| read(machine(Phase::InService), &look(Member::Joined), swept, as_of);
    let reachable = |m: &Machine| {
        let c = shown(m, ConditionType::Reachable);
        (c.stale, c.observed_at)
    };
    assert_eq!(reachable(&seen(None, 190)), (false, Some(at(100))));
    assert_eq!(reachable(&seen(None, 191)), (true, Some(at(100))), "nobody has looked since");
    assert_eq!(reachable(&seen(Some(180), 191)), (false, Some(at(180))));
    assert_eq!(reachable(&seen(Some(90), 120)), (false, Some(at(100))), "a sweep that began before the look");
    assert_eq!(seen(Some(180), 191).last_seen(), Some(at(180)));
    // silent ever since 200: what is no longer seen is as old as its last confirmation
    let mut m = seen(Some(180), 200);
    let silent = Look { at: at(200), hardware: Hardware::no_answer("x"), ..look(Member::Joined) };
    m = read(m, &silent, Some(500), 500);
    assert_eq!(reachable(&m), (true, Some(at(180))));
    assert_eq!(m.last_seen(), Some(at(180)));
    let bmc = shown(&m, ConditionType::BmcReachable);
    assert_eq!((bmc.status, bmc.stale, bmc.last_transition), (false, false, Some(at(200))));
    let reconciled = shown(&m, ConditionType::Reconciled);
    assert_eq!((reconciled.status, reconciled.reason.as_str()), (false, "Stale"));
    assert!(reconciled.message.contains("Reachable, Provisioned") && reconciled.message.contains("NoAnswer"));
    assert_eq!(reconciled.last_transition, Some(at(180 + 90)));
    // and a stale observation still counts
    let old = read(machine(Phase::InService), &look(Member::Joined), None, 9999);
    assert_eq!(old.effective_state(), Phase::InService);
}

/// Phase against membership, for every phase.
#[test]
fn reconciled_says_where_phase_and_truth_diverge() {
    for phase in Phase::ALL.iter().copied() {
        for (member, inside) in [(Member::Joined, true), (Member::NotJoined, false)] {
            let m = read(machine(phase), &look(member), None, 101);
            let (status, reason) = match (phase, inside) {
                (Phase::FactoryReady | Phase::Ready, true) => (false, "InCluster"),
                (Phase::FactoryReady, false) => (false, "NotYetReady"),
                (Phase::InService, false) => (false, "NotInCluster"),
                (Phase::Provisioning, _) => (false, "NoRun"),
                (Phase::Rma | Phase::Retired, _) => (true, "NotLookedAt"),
                (Phase::Ready, false) | (Phase::InService, true) | (Phase::Maintenance, _) => (true, "AsObserved"),
            };
            let c = shown(&m, ConditionType::Reconciled);
            assert_eq!((c.status, c.reason.as_str()), (status, reason), "{phase} {inside}");
            let run = |phase| {
                let id = crate::id::RunId::from_text("run_1");
                Some(ActiveRun { id, phase, run_type: String::new(), current_step: String::new() })
            };
            let busy = Machine { active_run: run(RunPhase::Running), ..m.clone() };
            if is_looked_at(phase) {
                assert_eq!(shown(&busy, ConditionType::Reconciled).reason, "RunActive");
            }
            let ended = Machine { active_run: run(RunPhase::Succeeded), ..m };
            assert_eq!(shown(&ended, ConditionType::Reconciled).reason, reason, "an ended run excuses nothing");
        }
    }
}

#[test]
fn what_could_not_be_seen_is_not_reconciled() {
    let mut m = machine(Phase::Ready);
    m.spec.serial_number = "S2".into();
    let wrong = read(m, &look(Member::NotJoined), None, 101);
    assert_eq!(shown(&wrong, ConditionType::Reconciled).reason, "WrongMachine");
    assert_eq!(shown(&wrong, ConditionType::Reachable).reason, "NeverObserved");
    let blind = Look { hardware: Hardware::blind("NoProvider", "names no provider"), ..look(Member::NotJoined) };
    let c = shown(&read(machine(Phase::Ready), &blind, None, 101), ConditionType::Reconciled);
    assert_eq!(c.reason, "NeverObserved");
    assert!(c.message.contains("BMCReachable") && c.message.contains("names no provider"), "{}", c.message);
}

#[test]
fn a_machine_at_rest_grows_old_from_the_last_look_on() {
    let seen = read(machine(Phase::Ready), &look(Member::NotJoined), Some(180), 200);
    let before = seen.observation.as_ref().expect("seen");
    let rest = before.at_rest(Phase::Rma, at(200));
    assert!(!before.same(&rest) && rest.same(&rest.at_rest(Phase::Rma, at(300))), "written once");
    let fresh = Freshness { swept_at: Some(at(5000)), stale_after: Duration::from_secs(90), as_of: at(5001) };
    let m = Machine { phase: Phase::Rma, observation: Some(Observation { fresh, ..rest }), ..seen };
    let c = shown(&m, ConditionType::Reachable);
    assert_eq!((c.status, c.stale, c.observed_at), (true, true, Some(at(180))));
    assert_eq!(m.last_seen(), Some(at(180)));
    assert!(m.observed_words().contains("not looked at") && m.observed_words().contains("00:03:00"));
}

#[test]
fn the_words_name_source_and_time() {
    assert_eq!(machine(Phase::Ready).observed_words(), "never observed");
    let seen = read(machine(Phase::Ready), &look(Member::NotJoined), Some(180), 200);
    assert_eq!(
        seen.observed_words(),
        "BMC answers, power on, host answers, ubuntu-24.04 installed; sim, 1970-01-01T00:03:00.000Z"
    );
    let silent =
        Look { at: at(200), hardware: Hardware::no_answer("no answer within 10 s"), ..look(Member::NotJoined) };
    assert_eq!(
        read(seen, &silent, None, 200).observed_words(),
        "no answer within 10 s (NoAnswer); last seen at 1970-01-01T00:03:00.000Z: BMC answers, power on, host answers, \
         ubuntu-24.04 installed; sim, 1970-01-01T00:03:20.000Z"
    );
}
