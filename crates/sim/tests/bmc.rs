//! The simulated machine's management controller, as people use it, on the clock of the test.

mod common;

use common::{clock, count, fleet, kinds, machine};
use domain::Reason;
use domain::hardware::{BootOverride, ControllerTask, PowerAction};
use domain::machine::MachineSpec;
use domain::plan::BootMode;
use millwright_sim::SimFleet;
use provider::{Ack, Management, PowerState};
use std::collections::BTreeMap;

#[tokio::test(start_paused = true)]
async fn every_power_action_does_what_its_name_says_and_is_journaled() {
    let (fleet, m1) = (fleet(), machine(&[("sim.latency_ms", "0")]));
    let (bmc, _) = fleet.bmc(&m1).await.unwrap();
    for (action, ack, power) in [
        (PowerAction::On, Ack::Done, PowerState::On),
        (PowerAction::GracefulRestart, Ack::Accepted, PowerState::On),
        (PowerAction::ForceOff, Ack::Done, PowerState::Off),
        (PowerAction::GracefulOff, Ack::Done, PowerState::Off),
        (PowerAction::On, Ack::Accepted, PowerState::On),
        (PowerAction::Cycle, Ack::Accepted, PowerState::On),
        (PowerAction::ForceRestart, Ack::Accepted, PowerState::On),
    ] {
        assert_eq!(bmc.power(action).await, Ok(ack), "{action}");
        assert_eq!(bmc.state().await.unwrap().power, power, "{action}");
    }
    assert_eq!((count(&fleet, "reset"), count(&fleet, "power_off"), count(&fleet, "booted")), (4, 1, 4));
    assert_eq!(bmc.power(PowerAction::ForceOff).await, Ok(Ack::Done));
    assert_eq!(bmc.power(PowerAction::ForceRestart).await.unwrap_err().reason(), Reason::ProviderRefused);
}

#[tokio::test(start_paused = true)]
async fn what_people_left_at_a_controller_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.jsonl");
    let m1 = machine(&[("sim.latency_ms", "0")]);
    let one = SimFleet::open(&path, 1, clock()).unwrap();
    let (bmc, _) = one.bmc(&m1).await.unwrap();
    assert_eq!(bmc.insert_media("https://h/a.iso").await, Ok(Ack::Done));
    assert_eq!(bmc.insert_media("https://h/a.iso").await, Ok(Ack::Done), "it is in already");
    assert_eq!(bmc.identify(true).await, Ok(Ack::Done));
    let attributes = BTreeMap::from([("SecureBoot".to_owned(), "Enabled".to_owned())]);
    assert_eq!(bmc.set_bios(&attributes).await, Ok(Ack::Done));
    assert!(bmc.set_bios(&BTreeMap::from([("Colour".to_owned(), "red".to_owned())])).await.is_err());
    let boot = BootOverride { mode: BootMode::Cd, persistent: false };
    assert_eq!(bmc.set_boot(Some(boot)).await, Ok(Ack::Done));
    let task = bmc.update_firmware("https://h/bios.bin", &[]).await.unwrap();
    assert!(matches!(bmc.task(&task).await, Ok(ControllerTask::Done { .. })));
    assert!(bmc.task("another").await.is_err());
    let (before, log) = (bmc.describe().await.unwrap(), bmc.event_log(100).await.unwrap());
    drop(bmc);
    drop(one);

    let again = SimFleet::open(&path, 1, clock()).unwrap();
    let (bmc, _) = again.bmc(&m1).await.unwrap();
    assert_eq!((bmc.describe().await.unwrap(), bmc.event_log(100).await.unwrap()), (before, log));
    assert_eq!(bmc.media().await, Ok(Some("https://h/a.iso".to_owned())));
    assert_eq!(bmc.bios().await.unwrap().pending, attributes);
    assert_eq!(count(&again, "media_inserted"), 1);
    assert_eq!(bmc.power(PowerAction::ForceRestart).await, Ok(Ack::Accepted));
    let bios = bmc.bios().await.unwrap();
    assert_eq!((bios.current["SecureBoot"].as_str(), bios.pending.len()), ("Enabled", 0));
    assert_eq!(bmc.state().await.unwrap().boot, None, "it was for one boot");
}

#[tokio::test(start_paused = true)]
async fn an_update_takes_its_time_and_is_not_begun_twice() {
    let (fleet, m1) = (fleet(), machine(&[("sim.latency_ms", "0"), ("sim.fault.bmc", "slow:60000")]));
    let (bmc, _) = fleet.bmc(&m1).await.unwrap();
    let task = bmc.update_firmware("https://h/bios.bin", &[]).await.unwrap();
    assert!(matches!(bmc.task(&task).await, Ok(ControllerTask::Running { percent: Some(0..=1), .. })));
    assert!(bmc.update_firmware("https://h/bios.bin", &[]).await.is_err());
    assert_eq!(kinds(&fleet), ["created", "update_started"]);
}

#[tokio::test(start_paused = true)]
async fn a_discovery_finds_the_same_machine_again_and_leaves_no_trace() {
    let fleet = fleet();
    let at = |endpoint: &str| MachineSpec { bmc_endpoint: endpoint.to_owned(), ..MachineSpec::default() };
    let found = fleet.discover(&at("10.0.0.1")).await.unwrap();
    assert_eq!(found, fleet.discover(&at("10.0.0.1")).await.unwrap());
    let other = fleet.discover(&at("10.0.0.2")).await.unwrap();
    assert_ne!(found.spec.serial_number, other.spec.serial_number);
    assert!(found.spec.mac_addresses.iter().all(|mac| !other.spec.mac_addresses.contains(mac)));
    assert_eq!(found.spec.clone().normalized().as_ref(), Ok(&found.spec));
    let nowhere = fleet.discover(&at("https://bmc.invalid:8443")).await.unwrap_err();
    assert_eq!(nowhere.reason(), Reason::Unreachable);
    assert!(fleet.effects().unwrap().is_empty());
    assert!(found.description.gaps.is_empty());
}
