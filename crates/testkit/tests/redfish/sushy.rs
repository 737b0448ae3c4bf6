//! Against sushy-emulator: the truth, as far as it goes. Each test has a system of its own.

use crate::fixture::{accepted, adapter, done, endpoint, password, patient, refused, unknown, until};
use domain::credential::BmcLogin;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use domain::{Reason, Secret};
use provider::{Bmc as _, PowerState};
use redfish::{Redfish, Trust, certificate_of, is_there};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::http_faults::{self, Asked, Faults, Handler, Reply};
use testkit::sushy::{Sushy, USERNAME};
use testkit::tls::Authority;
use tokio_util::sync::CancellationToken;

/// One for the whole process; it ends with it.
pub fn shared() -> &'static Sushy {
    static SHARED: OnceLock<Sushy> = OnceLock::new();
    SHARED.get_or_init(|| Sushy::start(16, password(), None))
}

pub fn login() -> BmcLogin {
    BmcLogin { username: USERNAME.into(), password: Secret::new(password()) }
}

fn system(number: usize) -> Redfish {
    adapter(&shared().endpoint(number), login(), patient())
}

const fn boot(mode: BootMode, persistent: bool) -> Option<BootOverride> {
    Some(BootOverride { mode, persistent })
}

async fn has_power(bmc: &Redfish, wanted: PowerState) {
    until("the power has changed", || async { bmc.state().await.expect("a state").power == wanted }).await;
}

#[tokio::test]
async fn it_is_described() {
    let told = system(3).describe().await.expect("a description");
    assert_eq!((told.manufacturer.as_str(), told.system_uuid), ("Sushy Emulator", Sushy::uuid(3)));
    assert_eq!(told.nics.iter().map(|n| n.mac_address.as_str()).collect::<Vec<_>>(), ["52:54:00:4d:00:03"]);
    assert_eq!(told.drives.iter().map(|d| d.size).collect::<Vec<_>>(), [480_103_981_056]);
    assert_eq!((told.powered, told.boot), (Some(false), None));
    for name in [
        "power.on",
        "power.force-off",
        "power.graceful-restart",
        "boot.pxe",
        "boot.disk",
        "boot.cd",
        "virtual-media",
        "sensors",
    ] {
        assert!(told.capabilities.iter().any(|c| c == name), "{name} is not among {:?}", told.capabilities);
    }
    for name in ["power.cycle", "event-log", "accounts", "bios"] {
        assert!(!told.capabilities.iter().any(|c| c == name), "{name} is among {:?}", told.capabilities);
    }
    assert!(
        told.gaps.iter().any(|gap| gap.starts_with("memory")),
        "its memory is linked to and not there: {:?}",
        told.gaps
    );
}

#[tokio::test]
async fn its_power_is_driven() {
    let bmc = system(0);
    done(bmc.power(PowerAction::ForceOff).await);
    accepted(bmc.power(PowerAction::On).await);
    has_power(&bmc, PowerState::On).await;
    done(bmc.power(PowerAction::On).await);
    accepted(bmc.power(PowerAction::GracefulRestart).await);
    has_power(&bmc, PowerState::On).await;
    accepted(bmc.power(PowerAction::GracefulOff).await);
    has_power(&bmc, PowerState::Off).await;
    done(bmc.power(PowerAction::GracefulOff).await);
    refused(bmc.power(PowerAction::Cycle).await, Reason::CapabilityMissing, &["cycle", "ForceRestart"]);
}

#[tokio::test]
async fn its_boot_device_is_set_for_good_and_reported_so() {
    let bmc = system(1);
    assert_eq!(bmc.state().await.expect("a state").boot, None);
    done(bmc.set_boot(boot(BootMode::Pxe, false)).await);
    assert_eq!(bmc.state().await.expect("a state").boot, boot(BootMode::Pxe, true), "whoever set it must clear it");
    done(bmc.set_boot(boot(BootMode::Pxe, false)).await);
    done(bmc.set_boot(boot(BootMode::Cd, true)).await);
    assert_eq!(bmc.state().await.expect("a state").boot, boot(BootMode::Cd, true));
    done(bmc.set_boot(boot(BootMode::Http, false)).await);
    assert_eq!(bmc.state().await.expect("a state").boot, boot(BootMode::Pxe, true), "without a URL it is PXE");
    done(bmc.set_boot(None).await);
    done(bmc.set_boot(None).await);
    assert_eq!(bmc.state().await.expect("a state").boot, None);
}

/// What an image is fetched from.
struct Image;

impl Handler for Image {
    async fn answer(&self, _: Asked) -> Reply {
        Reply { body: vec![7; 4096], ..Reply::status(200) }.with("content-type", "application/octet-stream")
    }
}

#[tokio::test]
async fn an_image_is_inserted_and_ejected() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/test.iso", listener.local_addr().expect("an address"));
    let closed = CancellationToken::new();
    let faults = Arc::new(Faults::default());
    tokio::spawn(http_faults::serve(listener, None, faults, Arc::new(Image), closed.clone()));
    let bmc = system(2);
    assert_eq!(bmc.media().await.expect("read"), None);
    done(bmc.insert_media(&url).await);
    done(bmc.insert_media(&url).await);
    assert_eq!(bmc.media().await.expect("read").as_deref(), Some(url.as_str()));
    done(bmc.eject_media().await);
    done(bmc.eject_media().await);
    assert_eq!(bmc.media().await.expect("read"), None);
    closed.cancel();
    // it answers 500, which says that it failed and not how far it got
    let failed = unknown(bmc.insert_media("http://127.0.0.1:1/none.iso").await);
    assert!(failed.contains("insert") && failed.contains("HTTP status 500"), "{failed}");
    assert_eq!(bmc.media().await.expect("read"), None);
}

#[tokio::test]
async fn its_lamp_and_its_sensors() {
    let bmc = system(4);
    for on in [false, false, true, true] {
        done(bmc.identify(on).await);
    }
    let sensors = bmc.sensors().await.expect("sensors");
    assert!(sensors.iter().any(|s| s.name == "Chassis Intake Temp" && s.reading == "25 degrees C"), "{sensors:?}");
}

#[tokio::test]
async fn what_it_lacks_is_refused_by_name() {
    let bmc = system(5);
    let missing = Reason::CapabilityMissing;
    refused(bmc.bios().await, missing, &["BIOS"]);
    refused(bmc.event_log(10).await, missing, &["event log"]);
    refused(bmc.set_password(USERNAME, &Secret::new("cnry_never_to_be_seen")).await, missing, &["account"]);
    // it says that it can, and fails
    refused(bmc.update_firmware("http://127.0.0.1:1/fw.bin", &[]).await, Reason::ProviderRefused, &["firmware"]);
}

#[tokio::test]
async fn it_has_no_sessions_and_a_wrong_password_is_refused() {
    system(6).state().await.expect("by basic authentication");
    let wrong = BmcLogin { password: Secret::new("cnry_wrong_wrong_wrong"), ..login() };
    let bmc = adapter(&shared().endpoint(6), wrong, patient());
    refused(bmc.state().await, Reason::LoginRefused, &["rack-12"]);
    refused(bmc.power(PowerAction::On).await, Reason::LoginRefused, &[]);
    assert_eq!(system(6).state().await.expect("a state").power, PowerState::Off);
}

#[tokio::test]
async fn of_its_systems_one_must_be_named_and_a_name_leads_to_it() {
    let at = format!("http://localhost:{}", shared().port);
    let first = format!("/redfish/v1/Systems/{}", Sushy::uuid(0));
    refused(adapter(&at, login(), patient()).state().await, Reason::ProviderRefused, &["16 systems", &first]);
    let named = adapter(&format!("{at}/redfish/v1/Systems/node-0007"), login(), patient());
    assert_eq!(named.state().await.expect("redirected").system_uuid, Sushy::uuid(7));
    let none = adapter(&format!("{at}/redfish/v1/Systems/nope"), login(), patient());
    refused(none.state().await, Reason::ProviderRefused, &["nope", &first]);
}

#[tokio::test]
async fn its_certificate_is_pinned_or_signed_by_an_authority() {
    let authority = Authority::default();
    let emulator = Sushy::start(1, password(), Some(&authority.pair()));
    let at = endpoint(&emulator.endpoint(0));
    let pin = certificate_of(&at, Duration::from_secs(60)).await.expect("a certificate");
    assert!(is_there(&at, Trust::Pinned(pin.clone())).await.expect("an answer"));
    for trust in [Trust::Pinned(pin.clone()), Trust::Ca(authority.pem()), Trust::Insecure] {
        let bmc = Redfish::new(&at, trust, login(), "rack-12", patient());
        assert_eq!(bmc.state().await.expect("a state").system_uuid, Sushy::uuid(0));
    }
    let other = "cd".repeat(32);
    let bmc = Redfish::new(&at, Trust::Pinned(other.clone()), login(), "rack-12", patient());
    refused(bmc.state().await, Reason::UntrustedCertificate, &[&pin, &other]);
    let stranger = Trust::Ca(Authority::default().pem());
    let bmc = Redfish::new(&at, stranger, login(), "rack-12", patient());
    refused(bmc.state().await, Reason::UntrustedCertificate, &[&pin]);
}
