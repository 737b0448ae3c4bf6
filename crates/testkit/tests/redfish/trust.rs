//! Certificates: pinned, signed by a given authority, any; TLS 1.2 and 1.3.

use crate::fixture::{endpoint, login, options, patient, refused};
use domain::Reason;
use provider::Bmc as _;
use redfish::{Redfish, Trust, certificate_of, is_there};
use std::time::Duration;
use testkit::redfish_responder::Responder;
use testkit::tls::Authority;

const MINUTE: Duration = Duration::from_secs(60);

fn bmc(responder: &Responder, trust: Trust) -> Redfish {
    Redfish::new(&endpoint(&responder.endpoint(1)), trust, login(), "rack-12", patient())
}

#[tokio::test]
async fn a_certificate_is_pinned_and_a_changed_one_refused() {
    for old_tls in [false, true] {
        let pair = Authority::default().pair();
        let responder = Responder::start_with(options(), Some((&pair, old_tls))).await;
        let seen = certificate_of(&endpoint(&responder.endpoint(1)), MINUTE).await.expect("a certificate");
        assert_eq!(seen.len(), 64);
        assert_eq!(responder.questions(), 0, "nothing is sent to see a certificate");
        bmc(&responder, Trust::Pinned(seen.clone())).state().await.expect("the pinned one");
        let other = "ab".repeat(32);
        let words = [seen.as_str(), other.as_str(), "millwright machine repin"];
        let before = responder.questions();
        refused(bmc(&responder, Trust::Pinned(other.clone())).state().await, Reason::UntrustedCertificate, &words);
        assert_eq!(responder.questions(), before, "nothing was sent");
    }
}

#[tokio::test]
async fn a_certificate_is_judged_by_the_authority_that_was_given() {
    let (right, wrong) = (Authority::default(), Authority::default());
    for old_tls in [false, true] {
        let responder = Responder::start_with(options(), Some((&right.pair(), old_tls))).await;
        bmc(&responder, Trust::Ca(right.pem())).state().await.expect("signed by it");
        refused(
            bmc(&responder, Trust::Ca(wrong.pem())).state().await,
            Reason::UntrustedCertificate,
            &["given authorities"],
        );
        for no_authority in ["", "no PEM at all"] {
            let none = Trust::Ca(no_authority.to_owned());
            refused(bmc(&responder, none).state().await, Reason::UntrustedCertificate, &["authorit"]);
        }
        // made out to localhost, and asked for by another name
        let at = endpoint(&format!("https://127.0.0.1:{}", responder.port(1)));
        let elsewhere = Redfish::new(&at, Trust::Ca(right.pem()), login(), "rack-12", patient());
        refused(elsewhere.state().await, Reason::UntrustedCertificate, &["127.0.0.1"]);
        let pin = certificate_of(&at, MINUTE).await.expect("a certificate");
        let pinned = Redfish::new(&at, Trust::Pinned(pin), login(), "rack-12", patient());
        pinned.state().await.expect("a pin does not ask for names");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_fine_when_it_is_pinned() {
    let authority = Authority::default();
    let responder = Responder::start_with(options(), Some((&authority.expired(), false))).await;
    refused(bmc(&responder, Trust::Ca(authority.pem())).state().await, Reason::UntrustedCertificate, &["xpired"]);
    let pin = certificate_of(&endpoint(&responder.endpoint(1)), MINUTE).await.expect("a certificate");
    bmc(&responder, Trust::Pinned(pin.to_uppercase())).state().await.expect("pinned");
    bmc(&responder, Trust::Insecure).state().await.expect("any");
}

#[tokio::test]
async fn whether_redfish_is_there_needs_no_login() {
    let pair = Authority::default().pair();
    let secure = Responder::start_with(options(), Some((&pair, false))).await;
    let at = endpoint(&secure.endpoint(1));
    assert!(is_there(&at, Trust::Insecure).await.expect("an answer"));
    refused(is_there(&at, Trust::Pinned("00".repeat(32))).await, Reason::UntrustedCertificate, &[]);
    assert_eq!(secure.take_questions(), ["GET /redfish/v1/"]);
    let plain = Responder::start(options()).await;
    let clear = endpoint(&plain.endpoint(1));
    assert!(is_there(&clear, Trust::Plain).await.expect("an answer"));
    // something answers there, but not this
    let other = endpoint(&format!("https://localhost:{}", plain.port(1)));
    assert!(!is_there(&other, Trust::Insecure).await.expect("an answer"), "no TLS");
    plain.faults.arm("GET", "/redfish", testkit::http_faults::Fault::Status(404, "<html>".into()), 1);
    assert!(!is_there(&clear, Trust::Plain).await.expect("an answer"), "a web page");
    let port = plain.port(1);
    drop(plain);
    let gone = endpoint(&format!("http://127.0.0.1:{port}"));
    crate::fixture::until("the responder is gone", || async {
        is_there(&gone, Trust::Plain).await.is_err_and(|e| e.reason() == Reason::ConnectionRefused)
    })
    .await;
}
