//! How long things take, on a paused clock, and what the world shows meanwhile.
#![allow(clippy::unwrap_used, reason = "test code outside test functions")]

mod common;

use common::{EPOCH_MICROS, Yes as _, clock, count, fleet, kinds, machine, op, pass, the_one};
use domain::MachineId;
use domain::hardware::BootOverride;
use domain::plan::{BootMode, RebootMode};
use millwright_sim::SimFleet;
use provider::{
    Ack, BootControl, ClusterControl, Drain, ImageControl, Inspect, Membership, NetworkControl, PowerControl,
    PowerState, RmaControl,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_machine_exists_once_it_is_named() {
    let (fleet, mut m1) = (fleet(), machine(&[]));
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.power, seen.reachable, seen.boot_id.as_str()), (PowerState::On, true, "1"));
    assert_eq!((seen.boot_override, seen.installed, seen.installing), (None, None, None));
    assert!(seen.serial_number.starts_with("SIM") && seen.system_uuid.len() == 36);
    assert_eq!(fleet.inspect(&m1).await.unwrap().serial_number, seen.serial_number);
    assert_eq!(kinds(&fleet), ["created"]);

    m1.spec.serial_number = "S1".into();
    m1.spec.system_uuid = "11111111-1111-4111-8111-111111111111".into();
    let said = fleet.inspect(&m1).await.unwrap();
    assert_eq!((said.serial_number.as_str(), &said.system_uuid), ("S1", &m1.spec.system_uuid));
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_done_when_they_answer_take_the_latency() {
    let (fleet, m1, start) = (fleet(), machine(&[]), Instant::now());
    assert_eq!(fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await, Ok(Ack::Done));
    assert_eq!(start.elapsed(), Duration::from_millis(10));
    assert_eq!(the_one(&fleet, "netboot").at_micros, EPOCH_MICROS + 10_000);
    fleet.clear_boot(&m1, &op("netboot", 1)).await.yes();
    fleet.apply(&m1, &BTreeMap::from([("mtu".into(), "9000".into())]), &op("net", 1)).await.yes();
    fleet.open_return(&m1, "disk", &op("rma", 1)).await.yes();
    fleet.power_off(&m1, &op("off", 1)).await.yes();
    assert_eq!(start.elapsed(), Duration::from_millis(50));
    let done: Vec<String> = kinds(&fleet).into_iter().filter(|kind| kind != "deferred").collect();
    assert_eq!(done, ["created", "netboot", "clear_netboot", "net_applied", "return_opened", "power_off"]);
    assert_eq!(fleet.current(&m1).await.unwrap()["mtu"], "9000");
    assert_eq!(fleet.open_return_of(&m1).await.unwrap(), Some(op("rma", 1).key()));
    assert_eq!(fleet.inspect(&m1).await.unwrap().power, PowerState::Off);
    assert_eq!(start.elapsed(), Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn an_installation_is_accepted_and_ends_later() {
    let (fleet, m1, start) = (fleet(), machine(&[]), Instant::now());
    assert_eq!(fleet.install(&m1, "ubuntu", "ud", &op("repave", 1)).await, Ok(Ack::Accepted));
    assert_eq!(start.elapsed(), Duration::ZERO);
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.installing.unwrap().image.as_str(), seen.installed), ("ubuntu", None));
    pass(25).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    let installed = seen.installed.unwrap();
    assert_eq!((installed.image.as_str(), installed.operation), ("ubuntu", op("repave", 1).key()));
    assert_eq!(seen.installing, None);
    let repaved = the_one(&fleet, "repaved");
    assert_eq!((repaved.operation, repaved.fence.as_str()), (op("repave", 1).key(), "ses_1:4"));
    assert_eq!(repaved.at_micros, EPOCH_MICROS + 10_000, "when it ended, not when it was seen");
    fleet.install(&m1, "ubuntu", "ud", &op("repave", 1)).await.yes();
    assert_eq!(count(&fleet, "repave_started"), 2, "done twice, and it shows");
}

#[tokio::test(start_paused = true)]
async fn an_installation_can_be_aborted_by_its_stage_only() {
    let (fleet, m1) = (fleet(), machine(&[]));
    fleet.install(&m1, "ubuntu", "", &op("repave", 1)).await.yes();
    assert_eq!(fleet.abort_install(&m1, &op("other", 1)).await, Ok(Ack::Done));
    assert_eq!(count(&fleet, "repave_aborted"), 0);
    assert_eq!(fleet.abort_install(&m1, &op("repave", 2)).await, Ok(Ack::Done));
    pass(50).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.installed, seen.installing), (None, None));
    fleet.abort_install(&m1, &op("repave", 2)).await.yes();
    assert_eq!(kinds(&fleet), ["created", "repave_started", "repave_aborted"]);
}

#[tokio::test(start_paused = true)]
async fn a_reset_boots_the_machine_later_and_every_reset_shows() {
    let (fleet, m1, start) = (fleet(), machine(&[]), Instant::now());
    fleet.set_boot(&m1, BootMode::Pxe, false, &op("netboot", 1)).await.yes();
    assert_eq!(fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await, Ok(Ack::Accepted));
    assert_eq!(start.elapsed(), Duration::from_millis(20));
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.power, seen.reachable, seen.boot_id.as_str()), (PowerState::On, false, "1"));
    assert_eq!(seen.boot_override, None, "used up");
    pass(10).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    assert_eq!((seen.reachable, seen.boot_id.as_str()), (true, "2"));

    fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await.yes();
    pass(10).await;
    assert_eq!(fleet.inspect(&m1).await.unwrap().boot_id, "3");
    assert_eq!((count(&fleet, "reset"), count(&fleet, "booted")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_persistent_override_outlives_a_reset_and_a_reset_powers_on() {
    let (fleet, m1) = (fleet(), machine(&[]));
    fleet.set_boot(&m1, BootMode::Disk, true, &op("netboot", 1)).await.yes();
    fleet.power_off(&m1, &op("off", 1)).await.yes();
    assert!(!fleet.inspect(&m1).await.unwrap().reachable);
    fleet.reset(&m1, RebootMode::Force, &op("reboot", 1)).await.yes();
    pass(10).await;
    let seen = fleet.inspect(&m1).await.unwrap();
    let set = BootOverride { mode: BootMode::Disk, persistent: true };
    assert_eq!((seen.power, seen.reachable, seen.boot_override), (PowerState::On, true, Some(set)));
}

#[tokio::test(start_paused = true)]
async fn a_join_makes_a_member_later_and_a_repave_unmakes_it() {
    let (fleet, m1) = (fleet(), machine(&[]));
    assert_eq!(fleet.membership(&m1, "c1").await, Ok(Membership::NotFound));
    assert_eq!(fleet.join(&m1, "c1", &op("join", 1)).await, Ok(Ack::Accepted));
    assert_eq!(fleet.membership(&m1, "c1").await, Ok(Membership::NotFound));
    pass(10).await;
    assert_eq!(fleet.membership(&m1, "c1").await, Ok(Membership::Ready));
    assert_eq!(fleet.membership(&m1, "c2").await, Ok(Membership::NotFound));
    assert_eq!(fleet.drain_state(&m1, "c1").await, Ok(Drain::Drained));
    assert_eq!(fleet.join(&m1, "c1", &op("join", 1)).await, Ok(Ack::Accepted));
    pass(10).await;
    assert_eq!(count(&fleet, "joined"), 1, "one key, one join");
    fleet.install(&m1, "ubuntu", "", &op("repave", 1)).await.yes();
    assert_eq!(fleet.membership(&m1, "c1").await, Ok(Membership::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_return_is_opened_once_per_key_even_by_twins() {
    let (fleet, m1) = (fleet(), machine(&[]));
    let first = op("rma", 1);
    let (a, b) = tokio::join!(fleet.open_return(&m1, "disk", &first), fleet.open_return(&m1, "disk", &first));
    assert_eq!((a, b), (Ok(Ack::Done), Ok(Ack::Done)));
    fleet.open_return(&m1, "disk", &first).await.yes();
    assert_eq!(count(&fleet, "return_opened"), 1);
}

/// Every act on a few machines, and how long each took by the test's clock.
async fn a_day(seed: u64) -> (Vec<Duration>, Vec<millwright_sim::Effect>) {
    let fleet = SimFleet::in_memory(seed, clock());
    let mut spans = Vec::new();
    for name in ["a", "b", "c"] {
        let mut target = machine(&[]);
        target.labels.clear();
        target.machine_id = MachineId::from_text(name);
        for attempt in 1..=4 {
            let start = Instant::now();
            fleet.set_boot(&target, BootMode::Pxe, false, &op("netboot", attempt)).await.yes();
            fleet.reset(&target, RebootMode::Bmc, &op("reboot", attempt)).await.yes();
            fleet.install(&target, "img", "", &op("repave", attempt)).await.yes();
            spans.push(start.elapsed());
            pass(100).await;
        }
    }
    (spans, fleet.effects().unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_and_calls_give_the_same_day() {
    let (first, second, other) = (a_day(7).await, a_day(7).await, a_day(8).await);
    assert_eq!(first, second);
    assert_ne!(first.0, other.0);
    assert!(first.0.iter().all(|span| *span <= Duration::from_millis(100)));
}
