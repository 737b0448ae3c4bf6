//! Every fault rule, on the clock of the test.

mod common;

use common::{Yes as _, clock, command, count, fleet, is_unknown, kinds, machine, op, pass, the_one};
use domain::hardware::BootOverride;
use domain::plan::{BootMode, RebootMode};
use domain::stage::FailureClass;
use millwright_sim::SimFleet;
use provider::{
    Ack, BootControl, ClusterControl, Drain, Exec, ExecState, ImageControl, Inspect, Membership, NetworkControl,
    PowerControl, PowerState, ProviderError, RmaControl,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, timeout};

fn class<T>(result: Result<T, ProviderError>) -> Option<FailureClass> {
    match result {
        Err(ProviderError::Refused { class, .. }) => Some(class),
        Err(ProviderError::Unknown { .. }) | Ok(_) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn fail_n_fails_n_times_also_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.jsonl");
    let m1 = machine(&[("sim.fault.netboot", "fail:2")]);
    let fleet = SimFleet::open(&path, 1, clock()).unwrap();
    let refused = fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await;
    assert_eq!(class(refused), Some(FailureClass::Transient));
    drop(fleet);
    let fleet = SimFleet::open(&path, 1, clock()).unwrap();
    assert!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 2)).await.is_err());
    assert_eq!(count(&fleet, "netboot"), 0);
    assert_eq!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 3)).await, Ok(Ack::Done));
    assert_eq!(kinds(&fleet), ["created", "fault", "fault", "deferred", "netboot"], "taken on, then done");
    let other = machine(&[("sim.fault.netboot", "fail:1")]);
    assert!(fleet.set_boot(&other, BootMode::Pxe, false, &op("netboot", 4)).await.is_err(), "counted per rule");
}

#[tokio::test(start_paused = true)]
async fn fail_always_fails() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.repave", "fail"), ("sim.fault.net", "fail")]));
    for attempt in 1..=5 {
        assert!(fleet.install(&m1, "img", "", &op("repave", attempt)).await.is_err());
        assert!(fleet.apply(&m1, &BTreeMap::new(), &op("net", attempt)).await.is_err());
    }
    assert_eq!((count(&fleet, "repave_started"), count(&fleet, "net_applied")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failing_command_runs_and_exits_1() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.ssh", "fail:1")]));
    for (attempt, code, last) in [(1, 1, "error: simulated failure of true\n"), (2, 0, "ok\n")] {
        let op = op("ssh", attempt);
        assert_eq!(fleet.start(&m1, &command("true", &[]), &op).await, Ok(Ack::Accepted));
        let progress = fleet.poll(&m1, &op, 0).await.unwrap();
        assert_eq!(progress.state, ExecState::Exited(code));
        assert_eq!(progress.output.last().unwrap().data, last.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn hang_never_answers_and_does_nothing() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.reboot", "hang"), ("sim.fault.verify", "hang:1")]));
    let hour = Duration::from_secs(3600);
    assert!(timeout(hour, fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1))).await.is_err());
    assert!(timeout(hour, fleet.membership(&m1, "c")).await.is_err());
    assert_eq!(fleet.membership(&m1, "c").await, Ok(Membership::NotFound));
    assert_eq!(count(&fleet, "reset"), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_adds_to_the_latency() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.netboot", "slow:2000"), ("sim.fault.repave", "slow:2000")]));
    let start = Instant::now();
    assert_eq!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await, Ok(Ack::Done));
    assert_eq!(start.elapsed(), Duration::from_millis(2010));
    fleet.install(&m1, "img", "", &op("repave", 1)).await.yes();
    pass(2009).await;
    assert!(fleet.inspect(&m1).await.unwrap().installing.is_some());
    pass(1).await;
    assert!(fleet.inspect(&m1).await.unwrap().installed.is_some());
}

#[tokio::test(start_paused = true)]
async fn forget_says_yes_and_does_nothing() {
    let labels = ["ssh", "reboot", "netboot", "repave", "join", "net", "rma"].map(|k| format!("sim.fault.{k}"));
    let m1 = machine(&labels.each_ref().map(|label| (label.as_str(), "forget")));
    let fleet = fleet();
    assert_eq!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await, Ok(Ack::Done));
    assert_eq!(fleet.clear_boot(&m1, &op("netboot", 1)).await, Ok(Ack::Done));
    assert_eq!(fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await, Ok(Ack::Accepted));
    assert_eq!(fleet.install(&m1, "img", "", &op("repave", 1)).await, Ok(Ack::Accepted));
    assert_eq!(fleet.start(&m1, &command("true", &[]), &op("ssh", 1)).await, Ok(Ack::Accepted));
    assert_eq!(fleet.join(&m1, "c", &op("join", 1)).await, Ok(Ack::Accepted));
    assert_eq!(fleet.apply(&m1, &BTreeMap::new(), &op("net", 1)).await, Ok(Ack::Done));
    assert_eq!(fleet.open_return(&m1, "x", &op("rma", 1)).await, Ok(Ack::Done));
    assert_eq!(fleet.power_off(&m1, &op("off", 1)).await, Ok(Ack::Done));
    pass(60_000).await;
    assert!(kinds(&fleet).iter().all(|kind| kind == "created" || kind == "fault"));
    assert_eq!(fleet.poll(&m1, &op("ssh", 1), 0).await.unwrap().state, ExecState::NeverStarted);
}

#[tokio::test(start_paused = true)]
async fn lie_says_done_and_does_it_later() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.netboot", "lie"), ("sim.fault.repave", "lie")]));
    let start = Instant::now();
    assert_eq!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await, Ok(Ack::Done));
    assert_eq!(fleet.install(&m1, "img", "", &op("repave", 1)).await, Ok(Ack::Done));
    assert_eq!(start.elapsed(), Duration::ZERO);
    pass(1009).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.boot_override, seen.installing, seen.installed), (None, None, None));
    pass(1).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    let once = BootOverride { mode: BootMode::Pxe, persistent: false };
    assert_eq!((seen.boot_override, seen.installed.unwrap().image.as_str()), (Some(once), "img"));
    assert_eq!((count(&fleet, "netboot"), count(&fleet, "repave_started"), count(&fleet, "repaved")), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lie_keeps_its_key_and_can_be_called_off() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.ssh", "lie"), ("sim.fault.repave", "lie")]));
    let ssh = op("ssh", 1);
    fleet.start(&m1, &command("true", &[]), &ssh).await.yes();
    assert_eq!(fleet.poll(&m1, &ssh, 0).await.unwrap().state, ExecState::NeverStarted);
    assert_eq!(fleet.start(&m1, &command("true", &[]), &ssh).await, Ok(Ack::Accepted));
    fleet.start(&m1, &command("true", &[]), &op("ssh", 2)).await.yes();
    fleet.install(&m1, "img", "", &op("repave", 1)).await.yes();
    fleet.kill(&m1, &op("ssh", 2)).await.yes();
    fleet.abort_install(&m1, &op("repave", 1)).await.yes();
    pass(5000).await;
    assert_eq!(fleet.poll(&m1, &ssh, 0).await.unwrap().state, ExecState::Exited(0));
    assert_eq!((count(&fleet, "exec_started"), count(&fleet, "repave_started")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn drop_does_it_and_loses_the_answer() {
    let m1 = machine(&[("sim.fault.reboot", "drop:1"), ("sim.fault.ssh", "drop"), ("sim.fault.verify", "drop:1")]);
    let fleet = fleet();
    assert!(is_unknown(fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await));
    assert_eq!(count(&fleet, "reset"), 1);
    assert_eq!(fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 2)).await, Ok(Ack::Accepted));
    pass(10).await;
    assert!(is_unknown(fleet.start(&m1, &command("true", &[]), &op("ssh", 1)).await));
    assert_eq!(fleet.start(&m1, &command("true", &[]), &op("ssh", 1)).await, Ok(Ack::Accepted));
    assert_eq!(count(&fleet, "exec_started"), 1);
    assert!(is_unknown(fleet.membership(&m1, "c").await));
    assert_eq!(fleet.membership(&m1, "c").await, Ok(Membership::NotFound));
}

#[tokio::test(start_paused = true)]
async fn power_loss_leaves_half_of_it() {
    let m1 = machine(&[("sim.fault.repave", "power-loss:1"), ("sim.fault.ssh", "power-loss:1")]);
    let fleet = fleet();
    fleet.install(&machine(&[]), "old", "", &op("repave", 1)).await.yes();
    pass(10).await;
    assert!(is_unknown(fleet.install(&m1, "new", "", &op("repave", 2)).await));
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.power, seen.reachable), (PowerState::Off, false));
    assert_eq!((seen.installed, seen.installing), (None, None));
    assert_eq!(the_one(&fleet, "power_lost").operation, op("repave", 2).key());

    // The next attempt powers the machine on and gets through.
    assert_eq!(fleet.install(&m1, "new", "", &op("repave", 3)).await, Ok(Ack::Accepted));
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.power, seen.reachable), (PowerState::On, false));
    pass(10).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.reachable, seen.boot_id.as_str()), (true, "2"));

    assert!(is_unknown(fleet.start(&m1, &command("true", &[]), &op("ssh", 1)).await));
    assert_eq!(class(fleet.poll(&m1, &op("ssh", 1), 0).await), Some(FailureClass::Transient));
    assert_eq!(class(fleet.start(&m1, &command("true", &[]), &op("ssh", 2)).await), Some(FailureClass::Transient));
    fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await.yes();
    pass(10).await;
    assert_eq!(fleet.poll(&m1, &op("ssh", 1), 0).await.unwrap().state, ExecState::Exited(137));
}

#[tokio::test(start_paused = true)]
async fn power_loss_during_a_reset_or_a_look() {
    let (fleet, m1) = (fleet(), machine(&[("sim.fault.reboot", "power-loss:1"), ("sim.fault.verify", "power-loss")]));
    assert!(is_unknown(fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await));
    pass(1000).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.power, seen.boot_id.as_str()), (PowerState::Off, "1"));
    fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 2)).await.yes();
    assert!(is_unknown(fleet.membership(&m1, "c").await));
    assert!(is_unknown(fleet.membership(&m1, "c").await));
    assert_eq!(count(&fleet, "power_lost"), 2, "there is no power left to lose");
}

#[tokio::test(start_paused = true)]
async fn the_wrong_machine_shows_and_refuses() {
    let (fleet, right) = (fleet(), machine(&[]));
    let wrong = machine(&[("sim.fault.repave", "wrong-machine"), ("sim.fault.verify", "wrong-machine")]);
    let (expected, found) = (fleet.inspect(&right).await.unwrap(), fleet.inspect(&wrong).await.unwrap());
    assert_ne!(expected.serial_number, found.serial_number);
    assert_ne!(expected.system_uuid, found.system_uuid);
    let refused = fleet.install(&wrong, "img", "", &op("repave", 1)).await;
    assert_eq!(class(refused), Some(FailureClass::Conflict));
    assert_eq!(class(fleet.membership(&wrong, "c").await), Some(FailureClass::Conflict));
    assert_eq!(count(&fleet, "repave_started"), 0);
    // A rule for a kind of step that does not look first spoils that step alone.
    let ssh = machine(&[("sim.fault.ssh", "wrong-machine")]);
    assert_eq!(fleet.inspect(&ssh).await.unwrap().serial_number, expected.serial_number);
    assert_eq!(class(fleet.start(&ssh, &command("true", &[]), &op("ssh", 1)).await), Some(FailureClass::Conflict));
}

#[tokio::test(start_paused = true)]
async fn verify_and_rma_rules_spoil_looks() {
    let fleet = fleet();
    fleet.join(&machine(&[]), "c", &op("join", 1)).await.yes();
    pass(10).await;
    let m1 = machine(&[("sim.fault.verify", "fail:1"), ("sim.fault.rma", "fail:3")]);
    let not_ready = Membership::NotReady("simulated: kubelet not ready".into());
    assert_eq!(fleet.membership(&m1, "c").await, Ok(not_ready));
    assert_eq!(fleet.membership(&m1, "c").await, Ok(Membership::Ready));
    assert_eq!(class(fleet.drain_state(&m1, "c").await), Some(FailureClass::Transient));
    assert_eq!(class(fleet.power_off(&m1, &op("off", 1)).await), Some(FailureClass::Transient));
    assert_eq!(class(fleet.open_return(&m1, "x", &op("return", 1)).await), Some(FailureClass::Transient));
    assert_eq!(fleet.drain_state(&m1, "c").await, Ok(Drain::Drained));
    let lying = machine(&[("sim.fault.verify", "lie")]);
    assert_eq!(fleet.membership(&lying, "elsewhere").await, Ok(Membership::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_rule_is_named() {
    let fleet = fleet();
    for (label, value) in [("sim.fault.netboot", "fial:2"), ("sim.latency_ms", "fast")] {
        match fleet.set_boot(&machine(&[(label, value)]), BootMode::Pxe, false, &op("netboot", 1)).await {
            Err(ProviderError::Refused { class: FailureClass::InvalidInput, message, .. }) => {
                assert!(message.contains(label) && message.contains(value), "{message}");
            }
            other => panic!("{label}={value} gave {other:?}"),
        }
    }
    let bad = machine(&[("sim.fault.verify", "perhaps")]);
    assert_eq!(class(fleet.membership(&bad, "c").await), Some(FailureClass::InvalidInput));
    let bad = machine(&[("sim.output_bytes", "lots")]);
    let refused = fleet.start(&bad, &command("true", &[]), &op("ssh", 1)).await;
    assert_eq!(class(refused), Some(FailureClass::InvalidInput));
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_fails_hangs_or_is_slow() {
    let fleet = fleet();
    let refused = fleet.inspect(&machine(&[("sim.fault.inspect", "fail:1")])).await;
    assert_eq!(class(refused), Some(FailureClass::Transient));
    assert!(fleet.inspect(&machine(&[("sim.fault.inspect", "fail:1")])).await.is_ok(), "once");
    assert!(is_unknown(fleet.inspect(&machine(&[("sim.fault.inspect", "drop")])).await));
    let dead = machine(&[("sim.fault.inspect", "hang")]);
    assert!(timeout(Duration::from_secs(3600), fleet.inspect(&dead)).await.is_err());
    let before = Instant::now();
    assert!(fleet.inspect(&machine(&[("sim.fault.inspect", "slow:700")])).await.is_ok());
    assert_eq!(before.elapsed(), Duration::from_millis(700));
    let (honest, other) = (machine(&[]), machine(&[("sim.fault.inspect", "wrong-machine")]));
    let (honest, other) = (fleet.inspect(&honest).await.unwrap(), fleet.inspect(&other).await.unwrap());
    assert_ne!(honest.serial_number, other.serial_number);
    assert_eq!(
        class(fleet.inspect(&machine(&[("sim.fault.inspect", "fial")])).await),
        Some(FailureClass::InvalidInput)
    );
}

#[tokio::test(start_paused = true)]
async fn an_observers_look_uses_up_nothing() {
    let (fleet, counted) = (fleet(), machine(&[("sim.fault.verify", "fail:1"), ("sim.fault.rma", "power-loss")]));
    for _ in 0..3 {
        assert_eq!(fleet.watch_membership(&counted, "c").await, Ok(Membership::NotFound));
        assert_eq!(fleet.watch_drain(&counted, "c").await, Ok(Drain::Drained));
    }
    assert_eq!(kinds(&fleet), ["created"]);
    assert!(matches!(fleet.membership(&counted, "c").await, Ok(Membership::NotReady(_))), "the run's to meet");
    let lasting = machine(&[("sim.fault.verify", "fail")]);
    assert!(matches!(fleet.watch_membership(&lasting, "c").await, Ok(Membership::NotReady(_))), "seen by everybody");
}
