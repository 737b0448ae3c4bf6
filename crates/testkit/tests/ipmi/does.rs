//! What it does: once, twice, and when it is already so.

use crate::{adapter, boot, sim};
use domain::Secret;
use domain::credential::BmcLogin;
use domain::hardware::{Health, PowerAction};
use domain::plan::BootMode;
use ipmi::Ipmi;
use provider::{Ack, Bmc as _, PowerState};
use testkit::ipmi_sim::{MODEL, SERIAL, USERNAME, UUID};

#[tokio::test]
async fn the_state_tells_who_it_is_and_how_it_stands() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    assert_eq!(bmc.name(), format!("the BMC at {} (IPMI)", sim.address()));
    let state = bmc.state().await.expect("a state");
    assert_eq!((state.serial_number.as_str(), state.system_uuid.as_str()), (SERIAL, UUID));
    assert_eq!((state.power, state.health, state.boot), (PowerState::Off, Some(Health::Ok), None));
    sim.set_power(true);
    assert_eq!(bmc.state().await.expect("a state").power, PowerState::On);
    assert_eq!(sim.journal(), [""; 0], "a look changes nothing");
}

#[tokio::test]
async fn the_description_tells_what_ipmi_knows_and_names_the_gaps() {
    let sim = sim().await;
    let description = adapter(&sim).describe().await.expect("a description");
    assert_eq!((description.source.as_str(), description.model.as_str()), ("ipmi", MODEL));
    assert_eq!((description.manufacturer.as_str(), description.serial_number.as_str()), ("Millwright", SERIAL));
    assert_eq!((description.system_uuid.as_str(), description.powered), (UUID, Some(false)));
    assert_eq!(description.firmware.iter().map(|f| f.version.as_str()).collect::<Vec<_>>(), ["2.15"]);
    assert!(description.capabilities.iter().any(|c| c == "boot.pxe"), "{:?}", description.capabilities);
    assert!(!description.capabilities.iter().any(|c| c == "power.graceful-restart"), "{:?}", description.capabilities);
    assert_eq!(description.gaps.len(), 1, "{:?}", description.gaps);
}

#[tokio::test]
async fn power_is_switched_once_and_not_again_when_it_is_already_so() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    assert_eq!(bmc.power(PowerAction::ForceOff).await, Ok(Ack::Done), "already off");
    assert_eq!(bmc.power(PowerAction::GracefulOff).await, Ok(Ack::Done), "already off");
    assert_eq!(sim.journal(), [""; 0]);
    assert_eq!(bmc.power(PowerAction::On).await, Ok(Ack::Done));
    assert_eq!(bmc.power(PowerAction::On).await, Ok(Ack::Done), "already on");
    assert_eq!(sim.journal(), ["power 1"]);
    assert_eq!(bmc.power(PowerAction::ForceRestart).await, Ok(Ack::Accepted));
    assert_eq!(bmc.power(PowerAction::ForceRestart).await, Ok(Ack::Accepted), "a second restart is a restart");
    assert_eq!(sim.journal(), ["power 1", "reset", "reset"]);
    assert_eq!(bmc.power(PowerAction::GracefulOff).await, Ok(Ack::Done));
    assert_eq!(sim.journal(), ["power 1", "reset", "reset", "shutdown"]);
    assert!(!sim.is_on());
    bmc.power(PowerAction::On).await.map(drop).expect("on");
    assert_eq!(bmc.power(PowerAction::ForceOff).await, Ok(Ack::Done));
    assert_eq!(sim.journal()[4..], ["power 1", "power 0"]);
}

#[tokio::test]
async fn a_power_cycle_takes_the_power_away() {
    let sim = sim().await;
    sim.set_power(true);
    assert_eq!(adapter(&sim).power(PowerAction::Cycle).await, Ok(Ack::Accepted));
    assert_eq!(sim.journal().first().map(String::as_str), Some("power 0"));
}

/// The simulator never marks its boot flags as valid: so it is accepted, not done.
#[tokio::test]
async fn the_next_boot_is_set_and_taken_back() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    for (mode, expected) in
        [(BootMode::Pxe, "boot pxe"), (BootMode::Cd, "boot cdrom"), (BootMode::Disk, "boot default")]
    {
        for _ in 0..2 {
            assert_eq!(bmc.set_boot(Some(boot(mode, false))).await, Ok(Ack::Accepted), "{mode:?}");
            assert_eq!(sim.journal().last().map(String::as_str), Some(expected));
        }
    }
    assert_eq!(bmc.set_boot(None).await, Ok(Ack::Done));
    assert_eq!(sim.journal().last().map(String::as_str), Some("boot none"));
    assert_eq!(sim.journal().len(), 7, "{:?}", sim.journal());
}

#[tokio::test]
async fn sensors_and_events_are_read() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    let sensors = bmc.sensors().await.expect("sensors");
    assert_eq!(sensors.len(), 1);
    assert_eq!((sensors[0].name.as_str(), sensors[0].reading.as_str()), ("CPU Temp", "35 degrees C"));
    assert_eq!(sensors[0].health, Some(Health::Ok));

    assert_eq!(bmc.event_log(10).await, Ok(Vec::new()), "an empty log is no error");
    let add = "raw 0x0a 0x44 0 0 2 0 0 0 0 0x20 0 4 1 0x30 1 0x59 0x55 0x50";
    sim.ipmitool(&add.split(' ').collect::<Vec<_>>());
    // 2026-05-10 04:56:00 UTC
    sim.ipmitool(&["raw", "0x0a", "0x49", "0xf0", "0x0f", "0x00", "0x6a"]);
    sim.ipmitool(&add.split(' ').collect::<Vec<_>>());
    let events = bmc.event_log(10).await.expect("events");
    assert_eq!(events.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(), ["2", "1"], "newest first");
    assert!(events[0].at.is_some_and(|at| at.to_string().starts_with("2026-05-10T04:5")), "{:?}", events[0]);
    assert_eq!((events[1].at, events[1].severity.as_str()), (None, "Critical"));
    assert!(events[0].message.contains("Upper Critical going high"), "{:?}", events[0]);
    assert_eq!(bmc.event_log(1).await.expect("events").len(), 1);
    assert_eq!(bmc.event_log(0).await, Ok(Vec::new()));
}

#[tokio::test]
async fn the_lamp_is_lit_and_put_out() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    for on in [true, true, false, false] {
        assert_eq!(bmc.identify(on).await, Ok(Ack::Done));
    }
    assert_eq!(sim.journal(), ["identify 0 1", "identify 0 1", "identify 0 0", "identify 0 0"]);
}

#[tokio::test]
async fn the_console_command_has_no_password_in_it() {
    let sim = sim().await;
    let consoles = adapter(&sim).console().await.expect("consoles");
    assert_eq!(consoles.len(), 1);
    let text = format!("{consoles:?}");
    assert!(consoles[0].connect.ends_with("-E sol activate") && !text.contains(crate::PASSWORD), "{text}");
}

#[tokio::test]
async fn a_new_password_is_set_and_proven() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    let new = Secret::new("n3w 'pa\" #$x12");
    assert_eq!(bmc.set_password(USERNAME, &new).await, Ok(Ack::Done));
    let old = bmc.state().await.expect_err("the old one is refused");
    assert_eq!(old.reason(), domain::Reason::LoginRefused);
    let login = BmcLogin { username: USERNAME.to_owned(), password: new.clone() };
    let bmc = Ipmi::new(&sim.endpoint(), login, "rack-1", crate::PATIENT);
    assert_eq!(bmc.state().await.expect("the new one is taken").serial_number, SERIAL);
    assert_eq!(bmc.set_password(USERNAME, &new).await, Ok(Ack::Done), "a second time");
    assert_eq!(bmc.set_password("ops", &Secret::new("another-one")).await, Ok(Ack::Done));
    let login = BmcLogin { username: "ops".to_owned(), password: Secret::new("another-one") };
    Ipmi::new(&sim.endpoint(), login, "rack-1", crate::PATIENT).state().await.expect("the other account, too");
}
