//! What it refuses, and why: each no has its own reason.

use crate::{PATIENT, SHORT, adapter, at, boot, script, sim};
use domain::credential::BmcLogin;
use domain::endpoint::{BmcEndpoint, HostPort};
use domain::hardware::PowerAction;
use domain::plan::BootMode;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use ipmi::{Ipmi, Timeouts, is_there};
use provider::{Ack, Bmc, ProviderError};
use std::net::SocketAddr;
use std::time::Duration;
use testkit::ipmi_sim::{Knob, USERNAME, free_port, program};
use tokio::net::UdpSocket;

/// Every capability, asked once; the names of those that did not fail, and how the others failed.
async fn ask_all(bmc: &dyn Bmc) -> Vec<(&'static str, Option<ProviderError>)> {
    vec![
        ("state", bmc.state().await.err()),
        ("describe", bmc.describe().await.err()),
        ("power", bmc.power(PowerAction::On).await.err()),
        ("set_boot", bmc.set_boot(Some(boot(BootMode::Pxe, false))).await.err()),
        ("sensors", bmc.sensors().await.err()),
        ("event_log", bmc.event_log(5).await.err()),
        ("identify", bmc.identify(true).await.err()),
        ("set_password", bmc.set_password(USERNAME, &Secret::new("other")).await.err()),
    ]
}

async fn all_fail_with(bmc: &dyn Bmc, reason: Reason) {
    for (what, error) in ask_all(bmc).await {
        let error = error.unwrap_or_else(|| panic!("{what} did not fail"));
        assert_eq!(error.reason(), reason, "{what}: {error}");
    }
}

async fn there(address: SocketAddr, within: Duration) -> bool {
    let at = HostPort { host: address.ip().to_string(), port: address.port() };
    is_there(&at, within).await.expect("the question can be put")
}

#[tokio::test]
async fn where_nothing_answers_every_call_is_unreachable() {
    let sim = sim().await;
    let hole = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let address = hole.local_addr().expect("an address");
    assert!(!there(address, SHORT.presence).await);
    all_fail_with(&at(&sim, address, SHORT), Reason::Unreachable).await;
    let mut buffer = [0; 64];
    hole.recv_from(&mut buffer).await.expect("it was asked");
}

#[tokio::test]
async fn a_name_that_nobody_has_is_unreachable() {
    let sim = sim().await;
    let endpoint = BmcEndpoint::parse("ipmi://no-such-host.invalid?cipher=3").expect("an endpoint");
    let error = Ipmi::new(&endpoint, sim.login(), "rack-1", PATIENT).state().await.expect_err("unreachable");
    assert_eq!(error.reason(), Reason::Unreachable, "{error}");
    assert!(is_there(&endpoint.at(), Duration::from_secs(10)).await.is_err());
}

#[tokio::test]
async fn a_port_that_nobody_has_refuses() {
    let sim = sim().await;
    let address = free_port();
    assert!(!there(address, SHORT.presence).await);
    let bmc = at(&sim, address, Timeouts { presence: PATIENT.presence, ..SHORT });
    all_fail_with(&bmc, Reason::ConnectionRefused).await;
}

#[tokio::test]
async fn a_wrong_password_and_a_wrong_name_are_refused_logins() {
    let sim = sim().await;
    assert!(there(sim.address(), PATIENT.presence).await, "no login is needed to see that it is there");
    for (username, password) in [(USERNAME, "wrong"), ("nobody", crate::PASSWORD)] {
        let login = BmcLogin { username: username.to_owned(), password: Secret::new(password) };
        let bmc = Ipmi::new(&sim.endpoint(), login, "rack-1", PATIENT);
        let error = bmc.state().await.expect_err("refused");
        let same = ProviderError::login_refused(bmc.name(), "rack-1");
        assert_eq!(error, same);
    }
    let login = BmcLogin { username: USERNAME.to_owned(), password: Secret::new("wrong") };
    all_fail_with(&Ipmi::new(&sim.endpoint(), login, "rack-1", PATIENT), Reason::LoginRefused).await;
    assert_eq!(sim.journal(), [""; 0]);
}

#[tokio::test]
async fn a_login_that_ipmi_cannot_carry_is_refused_before_it_is_cut_short() {
    let sim = sim().await;
    for (username, password) in
        [(USERNAME, "123456789012345678901"), (USERNAME, "a\nb"), ("12345678901234567", "a"), (USERNAME, "")]
    {
        let login = BmcLogin { username: username.to_owned(), password: Secret::new(password) };
        let error = Ipmi::new(&sim.endpoint(), login, "rack-1", PATIENT).state().await.expect_err("refused");
        assert_eq!(error.reason(), Reason::LoginRefused, "{error}");
        assert!(password.is_empty() || !error.to_string().contains(&format!("{password:?}")), "{error}");
    }
    let long = Secret::new("123456789012345678901");
    let error = adapter(&sim).set_password(USERNAME, &long).await.expect_err("refused");
    assert!(matches!(error, ProviderError::Refused { class: FailureClass::InvalidInput, .. }), "{error}");
}

/// The simulator gives every account the level that is asked for; so a stand-in before the real ipmitool asks for a
/// lower one, and the simulator refuses what that level may not do.
#[tokio::test]
async fn too_low_a_privilege_is_told_apart_from_a_wrong_password() {
    let sim = sim().await;
    let folder = tempfile::tempdir().expect("a folder");
    let real = program("ipmitool");
    let lower = "for word; do shift; [ \"$word\" = ADMINISTRATOR ] && word=USER; set -- \"$@\" \"$word\"; done";
    let tool = script(folder.path(), &format!("{lower}\nexec {} \"$@\"\n", real.display()));
    let bmc = adapter(&sim).with_tool(tool);
    bmc.state().await.expect("it may look");
    for error in [bmc.power(PowerAction::On).await, bmc.identify(true).await] {
        let error = error.expect_err("it may only look");
        assert_eq!(error.reason(), Reason::LoginRefused, "{error}");
        assert!(error.to_string().contains("ADMINISTRATOR"), "{error}");
    }
    assert_eq!(sim.journal(), [""; 0]);
}

/// The simulator says yes to twenty bytes, and then takes neither the new password nor the old one.
#[tokio::test]
async fn a_new_password_longer_than_every_controller_keeps_is_not_sent() {
    let sim = sim().await;
    let long = Secret::new("1".repeat(ipmi::NEW_PASSWORD_MAX + 1));
    let bmc = adapter(&sim);
    let error = bmc.set_password(USERNAME, &long).await.expect_err("refused");
    assert!(matches!(error, ProviderError::Refused { class: FailureClass::InvalidInput, .. }), "{error}");
    bmc.state().await.expect("the old one is still taken");
    let longest = Secret::new("1".repeat(ipmi::NEW_PASSWORD_MAX));
    assert_eq!(bmc.set_password(USERNAME, &longest).await, Ok(Ack::Done));
}

/// What answers without end is ended.
#[tokio::test]
async fn more_than_any_answer_can_be_is_refused() {
    let sim = sim().await;
    let folder = tempfile::tempdir().expect("a folder");
    let bmc = adapter(&sim).with_tool(script(folder.path(), "exec /usr/bin/yes\n"));
    assert_eq!(bmc.state().await.expect_err("too much").reason(), Reason::BadAnswer);
    assert_eq!(bmc.identify(true).await.expect_err("too much").reason(), Reason::ProviderSilent);
}

#[tokio::test]
async fn what_ipmi_does_not_have_is_missing() {
    let sim = sim().await;
    sim.set_power(true);
    let bmc = adapter(&sim);
    let missing = [
        bmc.power(PowerAction::GracefulRestart).await.expect_err("missing"),
        bmc.set_boot(Some(boot(BootMode::Http, false))).await.expect_err("missing"),
        bmc.set_password("nobody", &Secret::new("x")).await.expect_err("missing"),
        bmc.media().await.expect_err("missing"),
        bmc.bios().await.expect_err("missing"),
        bmc.update_firmware("http://x/y", &[]).await.expect_err("missing"),
    ];
    for error in missing {
        assert_eq!(error.reason(), Reason::CapabilityMissing, "{error}");
    }
    assert_eq!(sim.journal(), [""; 0]);
}

#[tokio::test]
async fn a_cipher_suite_that_it_lacks_is_missing() {
    let sim = sim().await;
    let endpoint = BmcEndpoint { cipher: 17, ..sim.endpoint() };
    all_fail_with(&Ipmi::new(&endpoint, sim.login(), "rack-1", PATIENT), Reason::CapabilityMissing).await;
}

#[tokio::test]
async fn without_ipmitool_it_says_how_to_install_it() {
    let sim = sim().await;
    let bmc = adapter(&sim).with_tool("/nonexistent/ipmitool");
    for (what, error) in ask_all(&bmc).await {
        let Some(ProviderError::Refused { class, reason, message }) = error else { panic!("{what} did not fail") };
        assert_eq!((class, reason), (FailureClass::DependencyDown, Reason::CapabilityMissing), "{what}");
        assert!(message.contains("apt-get install ipmitool"), "{message}");
    }
}

#[tokio::test]
async fn a_machine_that_is_off_is_not_restarted() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    for action in [PowerAction::ForceRestart, PowerAction::Cycle] {
        let error = bmc.power(action).await.expect_err("there is nothing to restart");
        assert_eq!(error.reason(), Reason::ProviderRefused, "{error}");
    }
    assert_eq!(sim.journal(), [""; 0]);
}

#[tokio::test]
async fn a_controller_that_fails_the_command_refuses_it() {
    let sim = sim().await;
    sim.turn(Knob::FailPower, true);
    let bmc = adapter(&sim);
    let failed = [bmc.power(PowerAction::On).await, bmc.identify(true).await];
    for error in failed {
        let error = error.expect_err("the chassis fails");
        assert!(matches!(error, ProviderError::Refused { .. }), "{error}");
        assert_eq!(error.reason(), Reason::ProviderRefused, "{error}");
    }
    assert_eq!(sim.journal(), [""; 0]);
    sim.turn(Knob::FailPower, false);
    assert_eq!(bmc.power(PowerAction::On).await, Ok(Ack::Done));
}

#[tokio::test]
async fn ok_and_did_nothing_is_never_done() {
    let sim = sim().await;
    sim.turn(Knob::DidNothing, true);
    let bmc = adapter(&sim);
    assert_eq!(bmc.power(PowerAction::On).await, Ok(Ack::Accepted), "said yes, and shows nothing of it");
    let error = bmc.set_boot(Some(boot(BootMode::Pxe, false))).await.expect_err("read back");
    assert!(error.to_string().contains("did nothing"), "{error}");
    assert_eq!(sim.journal(), [""; 0]);
}

/// The simulator drops that it is for all boots, as some controllers do.
#[tokio::test]
async fn a_boot_device_for_all_boots_that_was_taken_for_one_is_found_out() {
    let sim = sim().await;
    let error = adapter(&sim).set_boot(Some(boot(BootMode::Pxe, true))).await.expect_err("read back");
    assert_eq!(error.reason(), Reason::CapabilityMissing, "{error}");
    assert_eq!(sim.journal(), ["boot pxe"]);
}
