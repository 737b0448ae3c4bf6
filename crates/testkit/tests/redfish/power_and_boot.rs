//! Power and the boot override, judged by what the machine really did.

use crate::fixture::{accepted, adapter, done, login, one, options, patient, refused};
use domain::Reason;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use provider::{Bmc as _, PowerState};
use testkit::http_faults::Fault;
use testkit::redfish_responder::{Options, Responder, What};

const ONCE_PXE: Option<BootOverride> = Some(BootOverride { mode: BootMode::Pxe, persistent: false });

fn power(word: &str, on: bool) -> What {
    What::Power { word: word.into(), on }
}

#[tokio::test]
async fn each_power_action_is_what_the_controller_calls_it() {
    let (responder, bmc) = one(options()).await;
    for (action, word, on) in [
        (PowerAction::On, "On", true),
        (PowerAction::GracefulRestart, "GracefulRestart", true),
        (PowerAction::ForceRestart, "ForceRestart", true),
        (PowerAction::Cycle, "PowerCycle", true),
        (PowerAction::GracefulOff, "GracefulShutdown", false),
    ] {
        accepted(bmc.power(action).await);
        let mut acts = responder.done_to(1).into_iter().filter(|w| matches!(w, What::Power { .. }));
        assert_eq!(acts.next_back(), Some(power(word, on)), "{action}");
    }
    accepted(bmc.power(PowerAction::On).await);
    accepted(bmc.power(PowerAction::ForceOff).await);
    assert!(!responder.system(1).on);
}

#[tokio::test]
async fn what_is_so_already_is_not_done_again() {
    let (responder, bmc) = one(options()).await;
    done(bmc.power(PowerAction::ForceOff).await);
    done(bmc.power(PowerAction::GracefulOff).await);
    assert_eq!(responder.done_to(1), []);
    accepted(bmc.power(PowerAction::On).await);
    done(bmc.power(PowerAction::On).await);
    assert_eq!(responder.done_to(1).len(), 2, "one power change, one boot");
    done(bmc.set_boot(ONCE_PXE).await);
    done(bmc.set_boot(ONCE_PXE).await);
    assert_eq!(responder.done_to(1).len(), 3);
}

#[tokio::test]
async fn what_is_not_allowed_is_not_replaced_by_something_else() {
    let mut few = options();
    few.reset_types = vec!["On".into(), "ForceOff".into()];
    let (responder, bmc) = one(few).await;
    for action in [PowerAction::Cycle, PowerAction::GracefulRestart, PowerAction::ForceRestart] {
        refused(bmc.power(action).await, Reason::CapabilityMissing, &[action.as_str(), "On, ForceOff"]);
    }
    assert_eq!(responder.done_to(1), []);
}

#[tokio::test]
async fn the_allowed_actions_may_stand_in_an_action_info() {
    let mut apart = options();
    apart.action_info = true;
    apart.reset_types = vec!["ForceOn".into()];
    let (responder, bmc) = one(apart).await;
    refused(bmc.power(PowerAction::Cycle).await, Reason::CapabilityMissing, &["ForceOn"]);
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!(responder.done_to(1).first(), Some(&power("ForceOn", true)));
}

#[tokio::test]
async fn a_controller_that_does_not_say_what_it_allows_is_asked() {
    let mut silent = options();
    silent.action_info = true;
    let (responder, bmc) = one(silent).await;
    // an ActionInfo that tells of no values
    responder.faults.arm("GET", "ResetActionInfo", Fault::Status(200, "{}".into()), usize::MAX);
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!(responder.done_to(1).first(), Some(&power("On", true)));
}

#[tokio::test]
async fn a_boot_override_is_set_proven_and_taken_away() {
    let (responder, bmc) = one(options()).await;
    for (mode, word) in
        [(BootMode::Pxe, "Pxe"), (BootMode::Http, "UefiHttp"), (BootMode::Disk, "Hdd"), (BootMode::Cd, "Cd")]
    {
        for persistent in [false, true] {
            let boot = Some(BootOverride { mode, persistent });
            done(bmc.set_boot(boot).await);
            assert_eq!(bmc.state().await.expect("a state").boot, boot);
            let system = responder.system(1);
            let enabled = if persistent { "Continuous" } else { "Once" };
            assert_eq!((system.boot_target.as_str(), system.boot_enabled.as_str()), (word, enabled));
        }
    }
    done(bmc.set_boot(None).await);
    done(bmc.set_boot(None).await);
    assert_eq!(responder.system(1).boot_enabled, "Disabled");
    done(bmc.set_boot(ONCE_PXE).await);
    accepted(bmc.power(PowerAction::On).await);
    assert!(responder.done_to(1).contains(&What::Booted { from: "Pxe".into() }));
    assert_eq!(bmc.state().await.expect("a state").boot, None, "once");
}

#[tokio::test]
async fn an_override_that_we_have_no_word_for_is_taken_away_too() {
    let (responder, bmc) = one(options()).await;
    responder.change(1, |s| (s.boot_target, s.boot_enabled) = ("BiosSetup".into(), "Once".into()));
    assert_eq!(bmc.state().await.expect("a state").boot, None);
    done(bmc.set_boot(None).await);
    assert_eq!(responder.system(1).boot_enabled, "Disabled");
}

#[tokio::test]
async fn a_boot_mode_that_is_not_offered_is_refused_by_name() {
    let mut few = options();
    few.boot_targets = vec!["None".into(), "Pxe".into()];
    let (responder, bmc) = one(few).await;
    let http = Some(BootOverride { mode: BootMode::Http, persistent: false });
    refused(bmc.set_boot(http).await, Reason::CapabilityMissing, &["HTTP", "Pxe"]);
    assert_eq!(responder.done_to(1), []);
}

#[tokio::test]
async fn an_override_that_is_accepted_and_ignored_is_found_out() {
    let (responder, bmc) = one(options()).await;
    responder.faults.arm("PATCH", "/Systems/1", Fault::DoNothing, 1);
    let words = ["PXE once", "\"None\"", "\"Disabled\"", "ignores"];
    refused(bmc.set_boot(ONCE_PXE).await, Reason::ProviderRefused, &words);
    assert_eq!(responder.faults.disarm(), 1);
}

#[tokio::test]
async fn a_power_action_that_is_accepted_and_ignored_shows_in_the_state() {
    let (responder, bmc) = one(options()).await;
    responder.faults.arm("POST", "ComputerSystem.Reset", Fault::DoNothing, 1);
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!(bmc.state().await.expect("a state").power, PowerState::Off, "accepted is not done");
    assert_eq!(responder.done_to(1), []);
}

/// The quirks named in `quirks.rs`: a drive for virtual media that is a USB one, and an override that is dropped
/// unless it says for which boot mode it is.
#[tokio::test]
async fn supermicro_boots_from_its_usb_drive_and_hears_the_boot_mode() {
    let mut maker = options();
    maker.manufacturer = "Supermicro".into();
    maker.boot_targets.push("UsbCd".into());
    let (responder, bmc) = one(maker).await;
    let cd = Some(BootOverride { mode: BootMode::Cd, persistent: false });
    done(bmc.set_boot(cd).await);
    assert_eq!(responder.system(1).boot_target, "UsbCd");
    assert_eq!(bmc.state().await.expect("a state").boot, cd);
    done(bmc.set_boot(ONCE_PXE).await);
    assert_eq!(responder.system(1).boot_target, "Pxe");
}

#[tokio::test]
async fn a_controller_that_wants_to_hear_the_version_hears_it() {
    let mut strict = options();
    strict.wants_etag = true;
    let (responder, bmc) = one(strict).await;
    done(bmc.set_boot(ONCE_PXE).await);
    assert_eq!(responder.system(1).boot_target, "Pxe");
}

#[tokio::test]
async fn each_of_many_systems_is_driven_by_itself() {
    let mut many = options();
    many.systems = 3;
    let responder = Responder::start(many.clone()).await;
    let second = adapter(&responder.endpoint(2), login(), patient());
    accepted(second.power(PowerAction::On).await);
    assert_eq!((1..=3).map(|n| responder.system(n).on).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(second.state().await.expect("a state").serial_number, "SN000002");
    let by_port = Options { own_ports: true, ..many.clone() };
    let by_address = Options { own_addresses: true, ..many };
    for options in [by_port, by_address] {
        let responder = Responder::start(options).await;
        let third = adapter(&responder.endpoint(3), login(), patient());
        assert_eq!(third.state().await.expect("a state").serial_number, "SN000003");
    }
}
