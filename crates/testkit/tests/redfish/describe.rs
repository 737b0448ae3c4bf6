//! What is read: the whole description, the one cheap look, logs, sensors, consoles.

use crate::fixture::{adapter, login, one, options, patient, refused};
use domain::Reason;
use domain::hardware::Health;
use provider::{Bmc as _, PowerState};
use testkit::http_faults::Fault;
use testkit::redfish_responder::Responder;

#[tokio::test]
async fn everything_that_is_told_is_in_the_description() {
    let (_responder, bmc) = one(options()).await;
    let told = bmc.describe().await.expect("a description");
    assert_eq!(told.gaps, Vec::<String>::new());
    assert_eq!(
        (told.source.as_str(), told.manufacturer.as_str(), told.model.as_str()),
        ("redfish", "Contoso", "Tower 1")
    );
    assert_eq!((told.serial_number.as_str(), told.hostname.as_str()), ("SN000001", "node-1"));
    assert_eq!(told.system_uuid, "4d570000-0000-4000-8000-000000000001");
    assert_eq!((told.powered, told.health, told.memory_mib), (Some(false), Some(Health::Warning), 32768));
    assert_eq!(told.cpus.len(), 1);
    assert_eq!((told.cpus[0].model.as_str(), told.cpus[0].size), ("Contoso 9000", 16));
    let gpu = told.devices.iter().find(|d| d.kind == "GPU").expect("a GPU");
    assert_eq!((gpu.serial_number.as_str(), gpu.health), ("GPU-77", Some(Health::Warning)));
    assert!(told.devices.iter().any(|d| d.kind == "PCIe" && d.model == "Contoso 25G"));
    assert_eq!((told.drives[0].kind.as_str(), told.drives[0].size), ("SSD", 960_197_124_096));
    assert_eq!((told.nics[0].mac_address.as_str(), told.nics[0].link_up), ("52:54:00:00:00:01", Some(true)));
    assert_eq!((told.firmware[0].version.as_str(), told.firmware[0].updateable), ("1.0.0", true));
    for name in [
        "power.on",
        "power.graceful-off",
        "power.force-off",
        "power.graceful-restart",
        "power.force-restart",
        "power.cycle",
        "boot.pxe",
        "boot.http",
        "boot.disk",
        "boot.cd",
        "bios",
        "virtual-media",
        "event-log",
        "accounts",
        "sensors",
        "identify",
        "console",
        "firmware-update",
    ] {
        assert!(told.capabilities.iter().any(|c| c == name), "{name} is not among {:?}", told.capabilities);
    }
}

#[tokio::test]
async fn an_older_service_is_described_as_well() {
    let mut old = options();
    (old.old_schema, old.media_of_manager) = (true, true);
    old.lacks = vec!["Processors".into(), "FirmwareInventory".into()];
    let (_responder, bmc) = one(old).await;
    let told = bmc.describe().await.expect("a description");
    assert_eq!((told.drives.len(), told.drives[0].size), (1, 500_107_862_016), "the empty bay is none");
    assert_eq!(told.cpus[0].model, "Contoso 9000", "from the summary");
    assert!(told.firmware.iter().any(|f| f.name == "BIOS" && f.version == "2.3"));
    assert!(told.capabilities.iter().any(|c| c == "virtual-media"));
    assert!(told.gaps.iter().any(|gap| gap.starts_with("firmware inventory")), "{:?}", told.gaps);
}

#[tokio::test]
async fn a_part_that_cannot_be_read_is_a_gap_and_the_rest_stands() {
    let (responder, bmc) = one(options()).await;
    responder.faults.arm("GET", "/Processors", Fault::Status(501, "Not implemented".into()), usize::MAX);
    responder.faults.arm("GET", "/Storage/1", Fault::Malformed, usize::MAX);
    responder.faults.arm("GET", "/EthernetInterfaces", Fault::Reset, usize::MAX);
    let told = bmc.describe().await.expect("a description");
    let gaps = told.gaps.join("\n");
    for part in ["processors", "storage", "network interfaces"] {
        assert!(gaps.contains(part), "{part} is not among {gaps}");
    }
    assert_eq!((told.serial_number.as_str(), told.devices.len(), told.memory_mib), ("SN000001", 1, 32768));
}

#[tokio::test]
async fn a_login_that_is_refused_ends_a_description() {
    let (responder, bmc) = one(options()).await;
    bmc.state().await.expect("a state");
    responder.faults.arm("GET", "/Processors", Fault::Status(401, String::new()), usize::MAX);
    refused(bmc.describe().await, Reason::LoginRefused, &["rack-12"]);
}

#[tokio::test]
async fn a_look_is_one_question_once_the_way_is_known() {
    let (responder, bmc) = one(options()).await;
    let state = bmc.state().await.expect("a state");
    assert_eq!((state.serial_number.as_str(), state.power), ("SN000001", PowerState::Off));
    assert_eq!(state.system_uuid, "4d570000-0000-4000-8000-000000000001");
    assert_eq!((state.boot, state.health), (None, Some(Health::Warning)));
    responder.take_questions();
    for _ in 0..3 {
        assert_eq!(bmc.state().await.expect("a state").last_reset, state.last_reset);
    }
    assert_eq!(responder.take_questions(), ["GET /redfish/v1/Systems/1"; 3]);
    responder.change(1, |s| s.resets += 1);
    assert_ne!(bmc.state().await.expect("a state").last_reset, state.last_reset, "a reset shows");
}

#[tokio::test]
async fn a_system_that_has_moved_is_looked_for_anew() {
    let (responder, bmc) = one(options()).await;
    bmc.state().await.expect("a state");
    responder.take_questions();
    responder.faults.arm("GET", "/Systems/1", Fault::Status(404, String::new()), 1);
    bmc.state().await.expect("a state");
    let asked = responder.take_questions();
    assert!(asked.contains(&"GET /redfish/v1/Systems".to_owned()), "{asked:?}");
}

#[tokio::test]
async fn of_several_systems_one_must_be_named() {
    let mut two = options();
    two.systems = 2;
    let responder = Responder::start(two).await;
    let at = format!("http://localhost:{}", responder.port(1));
    let unnamed = adapter(&at, login(), patient());
    let words = ["2 systems", "/redfish/v1/Systems/1", "/redfish/v1/Systems/2"];
    refused(unnamed.state().await, Reason::ProviderRefused, &words);
    let wrong = adapter(&format!("{at}/redfish/v1/Systems/9"), login(), patient());
    refused(wrong.state().await, Reason::ProviderRefused, &["Systems/9", "/redfish/v1/Systems/2"]);
}

#[tokio::test]
async fn the_newest_events_come_first_however_the_log_is_ordered() {
    for newest_first in [false, true] {
        let mut logged = options();
        logged.log_newest_first = newest_first;
        let (responder, bmc) = one(logged).await;
        let events = bmc.event_log(12).await.expect("events");
        let ids: Vec<String> = events.iter().map(|e| e.id.clone()).collect();
        let newest: Vec<String> = (14..=25).rev().map(|n: usize| n.to_string()).collect();
        assert_eq!(ids, newest, "newest first: {newest_first}");
        assert_eq!((events[0].severity.as_str(), events[0].message.as_str()), ("Warning", "event 25"));
        assert_eq!(events[0].at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T00:25:00.000Z"));
        let pages = responder.take_questions().iter().filter(|q| q.contains("Entries")).count();
        assert_eq!(pages, if newest_first { 2 } else { 3 }, "no more pages than it takes");
        assert_eq!(bmc.event_log(0).await.expect("none").len(), 0);
        assert_eq!(bmc.event_log(1000).await.expect("all").len(), 25);
    }
}

#[tokio::test]
async fn sensors_are_read_in_the_new_form_and_in_the_old() {
    for old_schema in [false, true] {
        let mut form = options();
        form.old_schema = old_schema;
        let (_responder, bmc) = one(form).await;
        let sensors = bmc.sensors().await.expect("sensors");
        let readings: Vec<_> = sensors.iter().map(|s| (s.name.as_str(), s.reading.as_str(), s.health)).collect();
        assert!(readings.contains(&("Inlet", "21.5 degrees C", Some(Health::Ok))), "{readings:?}");
        assert!(readings.contains(&("Fan 1", "9000 RPM", Some(Health::Ok))), "{readings:?}");
        assert_eq!(readings.contains(&("System", "310 W", Some(Health::Ok))), old_schema);
    }
}

#[tokio::test]
async fn consoles_are_told_without_a_password() {
    let (_responder, bmc) = one(options()).await;
    let consoles = bmc.console().await.expect("consoles");
    let ways: Vec<_> = consoles.iter().map(|c| (c.kind.as_str(), c.protocol.as_str())).collect();
    assert_eq!(ways, [("serial", "ssh"), ("serial", "ipmi-sol"), ("graphical", "web")]);
    assert!(consoles.iter().all(|c| !c.connect.contains("cnry_")));
    assert_eq!(consoles[0].connect, "ssh operator@localhost");
}

#[tokio::test]
async fn what_is_lacking_is_refused_by_name() {
    let mut bare = options();
    let lacks =
        ["Bios", "VirtualMedia", "LogServices", "UpdateService", "AccountService", "Sensors", "Chassis", "Lamp"];
    bare.lacks = lacks.map(str::to_owned).to_vec();
    let (responder, bmc) = one(bare).await;
    let missing = Reason::CapabilityMissing;
    refused(bmc.bios().await, missing, &["BIOS"]);
    refused(bmc.set_bios(&[("a".to_owned(), "b".to_owned())].into()).await, missing, &["BIOS"]);
    refused(bmc.media().await, missing, &["virtual media"]);
    refused(bmc.insert_media("http://127.0.0.1/x.iso").await, missing, &["virtual media"]);
    refused(bmc.eject_media().await, missing, &["virtual media"]);
    refused(bmc.event_log(1).await, missing, &["event log"]);
    refused(bmc.update_firmware("http://127.0.0.1/fw", &[]).await, missing, &["firmware"]);
    refused(bmc.set_password("operator", &domain::Secret::new("long enough")).await, missing, &["account"]);
    refused(bmc.sensors().await, missing, &["sensors"]);
    refused(bmc.identify(true).await, missing, &["lamp"]);
    assert_eq!(responder.done_to(1), []);
}
