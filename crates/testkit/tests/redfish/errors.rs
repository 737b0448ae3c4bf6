//! The ways of not getting through, each with a reason of its own and what can be done about it. (That it is the
//! wrong machine is judged above the adapter, by what `state` tells.)

use crate::fixture::{adapter, endpoint, login, one, options, patient, refused};
use domain::Reason;
use domain::credential::BmcLogin;
use domain::hardware::PowerAction;
use domain::{Error, Secret};
use provider::{Bmc as _, ProviderError};
use redfish::{Redfish, Timeouts, Trust, certificate_of};
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::redfish_responder::Responder;
use testkit::tls::Authority;

/// Long enough to be refused, short enough to wait for silence.
fn short() -> Timeouts {
    Timeouts { connect: Duration::from_secs(2), ..patient() }
}

#[tokio::test]
async fn each_way_of_not_getting_through_has_its_own_reason() {
    let mut seen: Vec<ProviderError> = Vec::new();

    let nowhere = adapter("http://no-such-host.invalid", login(), short());
    seen.push(nowhere.state().await.expect_err("no such host"));

    let port = testkit::closed_port::ClosedPort::new();
    let closed = adapter(&format!("http://{}", port.at), login(), short());
    seen.push(closed.state().await.expect_err("nobody listens"));

    let (responder, bmc) = one(options()).await;
    let wrong = BmcLogin { password: Secret::new("cnry_not_this_one_at_all"), ..login() };
    seen.push(adapter(&responder.endpoint(1), wrong, patient()).state().await.expect_err("a wrong password"));

    let secure = Responder::start_with(options(), Some((&Authority::default().pair(), false))).await;
    let at = endpoint(&secure.endpoint(1));
    let pinned = Redfish::new(&at, Trust::Pinned("12".repeat(32)), login(), "rack-12", patient());
    seen.push(pinned.state().await.expect_err("another certificate"));

    responder.behave(|o| o.reset_types = vec!["On".into()]);
    seen.push(bmc.power(PowerAction::Cycle).await.expect_err("not offered"));

    let reasons: Vec<Reason> = seen.iter().map(ProviderError::reason).collect();
    let expected = [
        Reason::Unreachable,
        Reason::ConnectionRefused,
        Reason::LoginRefused,
        Reason::UntrustedCertificate,
        Reason::CapabilityMissing,
    ];
    assert_eq!(reasons, expected);
    let codes: BTreeSet<String> = seen.iter().map(|e| format!("{:?}", Error::from(e.clone()).reason)).collect();
    assert_eq!(codes.len(), expected.len(), "five codes: {codes:?}");
    for e in &seen {
        let text = e.to_string();
        assert!(text.starts_with("the BMC at http"), "it says which: {text}");
        let acts = ["check", "millwright credential set", "millwright machine repin", "millwright machine inspect"];
        assert!(acts.iter().any(|act| text.contains(act)), "it says what to do: {text}");
        assert!(!format!("{e:?}").contains("cnry_"), "a secret is in {text}");
    }
}

#[tokio::test]
async fn a_port_that_takes_connections_and_says_nothing_is_unreachable() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let at = endpoint(&format!("https://127.0.0.1:{port}"));
    let bmc = Redfish::new(&at, Trust::Insecure, login(), "rack-12", short());
    refused(bmc.state().await, Reason::Unreachable, &["in time"]);
    refused(certificate_of(&at, Duration::from_millis(200)).await, Reason::Unreachable, &["handshake"]);
}

/// What `state` tells is what the machine says of itself: a card that was put into another machine shows.
#[tokio::test]
async fn another_machine_behind_the_same_address_shows() {
    let (responder, bmc) = one(options()).await;
    let before = bmc.state().await.expect("a state");
    responder.change(1, |s| (s.serial, s.uuid) = ("OTHER".into(), "ABCDEF00-0000-4000-8000-000000000000".into()));
    let after = bmc.state().await.expect("a state");
    assert_ne!(before.serial_number, after.serial_number);
    assert_eq!(
        (after.serial_number.as_str(), after.system_uuid.as_str()),
        ("OTHER", "abcdef00-0000-4000-8000-000000000000")
    );
}
