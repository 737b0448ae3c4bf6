//! What follows from a look, as tables.

use super::*;
use crate::id::RunId;
use crate::lifecycle::State as _;
use crate::machine::ActiveRun;
use crate::run::RunPhase;

const AT: Timestamp = Timestamp::from_micros(1_000_000);

fn machine(phase: Phase) -> Machine {
    let spec = MachineSpec { serial_number: "S1".into(), target_cluster_ref: "prod".into(), ..MachineSpec::default() };
    Machine { spec, ..crate::machine::tests::machine(phase) }
}

fn busy(mut m: Machine) -> Machine {
    m.active_run = Some(ActiveRun {
        id: RunId::from_text("run_1"),
        phase: RunPhase::Running,
        run_type: String::new(),
        current_step: String::new(),
    });
    m
}

fn healthy() -> Facts {
    Facts {
        serial_number: "s1".into(),
        system_uuid: String::new(),
        powered: true,
        reachable: true,
        host_asked: true,
        disk_read: true,
        installed: Some("ubuntu-24.04".into()),
        installing: None,
    }
}

fn look(hardware: Hardware, member: Member) -> Look {
    Look { at: AT, source: "sim".into(), hardware, member, workload: Workload::InUse("3 pods".into()) }
}

fn answered(change: impl FnOnce(&mut Facts)) -> Hardware {
    let mut facts = healthy();
    change(&mut facts);
    Hardware::Answered(facts)
}

fn silent() -> Hardware {
    Hardware::no_answer("no answer within 10 s")
}

/// `True Answers`, `False NoAnswer`, or `-` where the look does not tell.
fn says(machine: &Machine, look: &Look, kind: ConditionType) -> String {
    look.find(kind, machine).map_or("-".into(), |f| format!("{} {}", if f.status { "True" } else { "False" }, f.reason))
}

#[test]
fn every_condition_of_every_kind_of_look() {
    use ConditionType::{BmcReachable, Drained, InCustomerCluster, Provisioned, Reachable};
    let kinds = [BmcReachable, Reachable, Provisioned, InCustomerCluster, Drained];
    let other = |f: &mut Facts| f.serial_number = "S2".into();
    let off = |f: &mut Facts| (f.powered, f.reachable) = (false, false);
    let installing = |f: &mut Facts| f.installing = Some("i".into());
    let bare = |f: &mut Facts| f.installed = None;
    let asked = |why: &str| Member::NotAsked(why.into());
    let table: Vec<(Hardware, Member, &str)> = vec![
        (answered(|_| ()), Member::Joined, "True Answers, True HostAnswers, True Installed, True Joined, False InUse"),
        (
            answered(off),
            Member::NotReady("x".into()),
            "True Answers, False PoweredOff, True Installed, False NotReady, False InUse",
        ),
        (
            answered(|f| f.reachable = false),
            Member::NotJoined,
            "True Answers, False NoAnswer, True Installed, False NotJoined, False NotInCluster",
        ),
        (
            answered(installing),
            Member::NoClusterRef,
            "True Answers, True HostAnswers, False Installing, False NoClusterRef, False NotInCluster",
        ),
        (answered(bare), asked("away"), "True Answers, True HostAnswers, False NotInstalled, -, -"),
        // nobody could ask the system, nobody has read its disk
        (
            answered(|f| (f.reachable, f.host_asked, f.disk_read, f.installed) = (false, false, false, None)),
            Member::Joined,
            "True Answers, -, -, True Joined, False InUse",
        ),
        // another machine's word is nobody's word; the cluster speaks for itself
        (answered(other), Member::Joined, "False WrongMachine, -, -, True Joined, False InUse"),
        (silent(), Member::Joined, "False NoAnswer, -, -, True Joined, False InUse"),
        (silent(), asked("away"), "False NoAnswer, -, -, -, -"),
        (Hardware::blind("NoProvider", "none"), asked("none"), "-, -, -, -, -"),
    ];
    for (hardware, member, expected) in table {
        let look = look(hardware, member);
        let found: Vec<String> = kinds.iter().map(|kind| says(&machine(Phase::Ready), &look, *kind)).collect();
        assert_eq!(found.join(", "), expected, "{look:?}");
    }
}

#[test]
fn a_machine_without_a_bmc_is_judged_by_its_system() {
    use ConditionType::{BmcReachable, Degraded, Reachable};
    let mut alone = machine(Phase::Ready);
    alone.spec.ssh_endpoint = "10.0.0.1".into();
    let refused = Hardware::refused(FailureClass::NeedsOperator, Reason::LoginRefused, "wrong key");
    for (hardware, expected) in [
        (answered(|_| ()), "False NoBMC, True HostAnswers, False NothingWrong"),
        (silent(), "False NoBMC, False NoAnswer, True HostUnreachable"),
        (refused, "False NoBMC, False LoginRefused, True HostUnreachable"),
        (Hardware::blind("NoProvider", "none"), "False NoBMC, -, -"),
    ] {
        let look = look(hardware, Member::NoClusterRef);
        let found: Vec<String> =
            [BmcReachable, Reachable, Degraded].iter().map(|kind| says(&alone, &look, *kind)).collect();
        assert_eq!(found.join(", "), expected, "{look:?}");
    }
    alone.observation = None;
    assert!(observe(&alone, &look(answered(|_| ()), Member::NoClusterRef)).facts.starts_with("no BMC, power on"));
}

#[test]
fn a_refusal_is_silence_or_blindness_by_its_class() {
    for class in FailureClass::ALL {
        let blind = matches!(Hardware::refused(class, Reason::ProviderRefused, "x"), Hardware::Blind(_));
        assert_eq!(blind, matches!(class, FailureClass::DependencyDown | FailureClass::InvalidInput), "{class}");
    }
}

#[test]
fn drained_is_asked_of_members_only() {
    let with = |member, workload| Look { workload, ..look(answered(|_| ()), member) };
    let says = |look: Look| says(&machine(Phase::InService), &look, ConditionType::Drained);
    assert_eq!(says(with(Member::Joined, Workload::Drained)), "True Drained");
    assert_eq!(says(with(Member::NotReady("x".into()), Workload::Drained)), "True Drained");
    assert_eq!(says(with(Member::Joined, Workload::NotAsked("x".into()))), "-");
    assert_eq!(says(with(Member::NotJoined, Workload::Drained)), "False NotInCluster");
}

/// For every phase, with and without a run.
#[test]
fn degraded_is_what_no_phase_and_no_run_excuses() {
    let off = answered(|f| (f.powered, f.reachable) = (false, false));
    let unreachable = answered(|f| f.reachable = false);
    let bare = answered(|f| (f.reachable, f.installed) = (false, None));
    let other = answered(|f| f.serial_number = "S2".into());
    let unasked = answered(|f| (f.reachable, f.host_asked) = (false, false));
    for phase in Phase::ALL.iter().copied() {
        let up = matches!(phase, Phase::Ready | Phase::InService);
        let serves = phase == Phase::InService;
        let table = [
            (look(answered(|_| ()), Member::Joined), None),
            (look(other.clone(), Member::Joined), Some("WrongMachine")),
            (look(silent(), Member::Joined), Some("BMCSilent")),
            (look(off.clone(), Member::Joined), up.then_some("PoweredOff")),
            (look(unreachable.clone(), Member::Joined), up.then_some("HostUnreachable")),
            (look(bare.clone(), Member::Joined), serves.then_some("HostUnreachable")),
            (look(unasked.clone(), Member::Joined), None),
            (look(answered(|_| ()), Member::NotJoined), serves.then_some("NotInCluster")),
            (look(answered(|_| ()), Member::NotReady("x".into())), serves.then_some("NotInCluster")),
            // what could not be asked, or was never asked for, accuses nobody
            (look(answered(|_| ()), Member::NotAsked("x".into())), None),
            (look(answered(|_| ()), Member::NoClusterRef), None),
        ];
        for (look, wrong) in table {
            let idle = says(&machine(phase), &look, ConditionType::Degraded);
            assert_eq!(idle, wrong.map_or("False NothingWrong".into(), |w| format!("True {w}")), "{phase} {look:?}");
            let busy = says(&busy(machine(phase)), &look, ConditionType::Degraded);
            let expected = match wrong {
                Some("WrongMachine") => "True WrongMachine",
                Some(_) => "False RunActive",
                None => "False NothingWrong",
            };
            assert_eq!(busy, expected, "{phase} {look:?}");
        }
        let blind = look(Hardware::blind("NoProvider", ""), Member::NoClusterRef);
        assert_eq!(says(&machine(phase), &blind, ConditionType::Degraded), "-");
    }
}

#[test]
fn only_an_identity_that_fits_proves_manageability() {
    let proves = |hardware| look(hardware, Member::NoClusterRef).proves_manageable(&machine(Phase::FactoryReady).spec);
    assert!(proves(answered(|_| ())));
    assert!(proves(answered(|f| (f.serial_number, f.system_uuid) = (String::new(), "u".into()))));
    assert!(!proves(answered(|f| f.serial_number = "S2".into())));
    assert!(!proves(answered(|f| f.serial_number = String::new())), "it has not said who it is");
    assert!(!proves(silent()));
    assert!(!proves(Hardware::blind("NoProvider", "")));
}

#[test]
fn machines_that_do_not_answer_have_a_lane_of_their_own() {
    let lane = |look: &Look| observe(&machine(Phase::Ready), look).lane;
    assert_eq!(lane(&look(answered(|_| ()), Member::Joined)), Lane::Quick);
    assert_eq!(lane(&look(answered(|f| f.serial_number = "S2".into()), Member::NotJoined)), Lane::Quick);
    assert_eq!(lane(&look(silent(), Member::Joined)), Lane::Slow);
    assert_eq!(lane(&look(answered(|_| ()), Member::NotAsked("late".into()))), Lane::Slow);
    let hangs = Look { workload: Workload::NotAsked("late".into()), ..look(answered(|_| ()), Member::Joined) };
    assert_eq!(lane(&hangs), Lane::Slow);
}

#[test]
fn what_a_look_does_not_show_is_kept_and_no_longer_confirmed() {
    let mut m = machine(Phase::Ready);
    let first = observe(&m, &look(answered(|_| ()), Member::Joined));
    assert_eq!((first.version, first.last_seen, first.conditions.len()), (1, Some(AT), 6));
    assert!(first.conditions.iter().all(|o| o.confirmed && o.condition.observed_at == AT));
    let swept = AT.plus(std::time::Duration::from_secs(60));
    m.observation = Some(Observation { fresh: Freshness { swept_at: Some(swept), ..first.fresh }, ..first.clone() });
    let later = AT.plus(std::time::Duration::from_secs(90));
    let second = observe(&m, &Look { at: later, ..look(silent(), Member::Joined) });
    assert_eq!((second.version, second.last_seen), (2, Some(swept)), "the last sweep had still seen it");
    let reachable = second.get(ConditionType::Reachable).expect("kept");
    assert!(!reachable.confirmed && reachable.condition.status && reachable.condition.observed_at == swept);
    let bmc = &second.get(ConditionType::BmcReachable).expect("known").condition;
    assert_eq!((bmc.status, bmc.last_transition, bmc.observed_at), (false, later, later));
    let cluster = second.get(ConditionType::InCustomerCluster).expect("known");
    assert_eq!(
        (cluster.confirmed, cluster.condition.last_transition, cluster.condition.observed_at),
        (true, AT, later)
    );
    assert_eq!(second.facts, first.facts);
    assert_eq!(second.trouble.expect("told").reason, "NoAnswer");
}

#[test]
fn words_that_change_from_look_to_look_are_no_news() {
    let mut m = machine(Phase::InService);
    let first = observe(&m, &look(silent(), Member::NotReady("heartbeat 3 s ago".into())));
    m.observation = Some(first.clone());
    let again = |hardware, member| {
        first.same(&observe(&m, &Look { at: AT.plus(std::time::Duration::from_secs(9)), ..look(hardware, member) }))
    };
    assert!(again(Hardware::no_answer("no answer within 9 s"), Member::NotReady("heartbeat 33 s ago".into())));
    assert!(
        !again(
            Hardware::refused(FailureClass::Transient, Reason::ProviderRefused, "refused"),
            Member::NotReady("x".into())
        ),
        "another reason"
    );
    assert!(!again(silent(), Member::Joined), "a flip");
    assert!(!again(silent(), Member::NotAsked("x".into())), "no longer confirmed");
    assert!(!again(answered(|_| ()), Member::NotReady("x".into())));
}
