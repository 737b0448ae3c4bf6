//! Everything that goes wrong between the adapter and a controller: what is read can be read again, what changes
//! something is done once or not at all, and nobody says otherwise than it was.

use crate::fixture::{accepted, adapter, done, impatient, login, one, options, patient, refused, unknown};
use domain::Reason;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use provider::{Bmc as _, PowerState};
use redfish::Redfish;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::redfish_responder::{Responder, What};

const RESET: &str = "ComputerSystem.Reset";
const SYSTEM: &str = "/Systems/1";
const ALWAYS: usize = usize::MAX;

/// A responder that has been spoken to, so that the next question is the one that counts.
async fn warm(timeouts: redfish::Timeouts) -> (Responder, Redfish) {
    let responder = Responder::start(options()).await;
    let bmc = adapter(&responder.endpoint(1), login(), timeouts);
    bmc.state().await.expect("a state");
    (responder, bmc)
}

fn resets(responder: &Responder) -> usize {
    responder.done_to(1).iter().filter(|w| matches!(w, What::Power { .. })).count()
}

#[tokio::test]
async fn a_read_that_goes_wrong_says_how_and_the_next_is_fine() {
    for (fault, reason) in [
        (Fault::Reset, Reason::Unreachable),
        (Fault::Truncate, Reason::BadAnswer),
        (Fault::Malformed, Reason::BadAnswer),
        (Fault::Huge, Reason::BadAnswer),
        (Fault::LongHead, Reason::BadAnswer),
        (Fault::Status(500, "{}".into()), Reason::ProviderRefused),
        (Fault::Busy(3600), Reason::ProviderRefused),
        (Fault::Status(200, "[1, 2]".into()), Reason::BadAnswer),
        (Fault::Status(200, "{\"PowerState\": null}".into()), Reason::BadAnswer),
    ] {
        let (responder, bmc) = warm(patient()).await;
        responder.faults.arm("GET", SYSTEM, fault.clone(), ALWAYS);
        refused(bmc.state().await, reason, &["localhost"]);
        assert!(responder.faults.disarm() >= 1, "{fault:?} came");
        assert_eq!(bmc.state().await.expect("fine again").power, PowerState::Off, "after {fault:?}");
    }
}

#[tokio::test]
async fn a_read_that_is_never_answered_ends() {
    let (responder, bmc) = warm(impatient()).await;
    responder.faults.arm("GET", SYSTEM, Fault::Hold, 1);
    refused(bmc.state().await, Reason::Unreachable, &["no answer"]);
    bmc.state().await.expect("fine again");
}

#[tokio::test]
async fn a_read_survives_what_can_be_survived() {
    let (responder, bmc) = warm(patient()).await;
    for fault in [
        Fault::Delay(Duration::from_millis(50)),
        // on a connection that lay idle: once more on a new one
        Fault::Reset,
        Fault::Busy(0),
        Fault::Status(401, String::new()),
        Fault::Redirect("/redfish/v1/Systems/1/".into()),
        Fault::Redirect(format!("http://localhost:{}/redfish/v1/Systems/1", responder.port(1))),
    ] {
        responder.faults.arm("GET", SYSTEM, fault.clone(), 1);
        bmc.state().await.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(responder.faults.disarm(), 1, "{fault:?} came");
    }
}

#[tokio::test]
async fn a_busy_controller_is_waited_for_once() {
    let (responder, bmc) = warm(patient()).await;
    responder.faults.arm("GET", SYSTEM, Fault::Busy(0), 2);
    refused(bmc.state().await, Reason::ProviderRefused, &["503"]);
    assert_eq!(responder.faults.disarm(), 2);
}

#[tokio::test]
async fn redirects_end_and_lead_nowhere_else() {
    let (responder, bmc) = warm(patient()).await;
    responder.faults.arm("GET", SYSTEM, Fault::Redirect("/redfish/v1/Systems/1".into()), ALWAYS);
    refused(bmc.state().await, Reason::ProviderRefused, &["307"]);
    assert_eq!(responder.faults.disarm(), 4, "three redirects are followed");
    let other = Responder::start(options()).await;
    for elsewhere in [format!("http://localhost:{}/redfish/v1/Systems/1", other.port(1)), "//other/redfish".into()] {
        responder.faults.arm("GET", SYSTEM, Fault::Redirect(elsewhere), ALWAYS);
        refused(bmc.state().await, Reason::BadAnswer, &["redirects"]);
        responder.faults.disarm();
    }
    assert_eq!(other.questions(), 0, "no login is carried elsewhere");
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_unknown_and_not_sent_again() {
    for (fault, done) in
        [(Fault::Reset, 0), (Fault::LoseAnswer, 1), (Fault::Truncate, 1), (Fault::LongHead, 0), (Fault::Huge, 0)]
    {
        let (responder, bmc) = warm(patient()).await;
        responder.faults.arm("POST", RESET, fault.clone(), ALWAYS);
        unknown(bmc.power(PowerAction::On).await);
        assert_eq!((responder.faults.disarm(), resets(&responder)), (1, done), "{fault:?}");
        // a look tells
        let on = if done == 1 { PowerState::On } else { PowerState::Off };
        assert_eq!(bmc.state().await.expect("a state").power, on, "{fault:?}");
    }
}

#[tokio::test]
async fn a_change_that_is_never_answered_is_unknown() {
    for (fault, done) in [(Fault::Hold, 0), (Fault::HoldAnswer, 1)] {
        let (responder, bmc) = warm(impatient()).await;
        responder.faults.arm("POST", RESET, fault.clone(), ALWAYS);
        unknown(bmc.power(PowerAction::On).await);
        assert_eq!((responder.faults.disarm(), resets(&responder)), (1, done), "{fault:?}");
    }
}

#[tokio::test]
async fn a_change_that_is_answered_oddly_is_done_once() {
    for fault in [
        Fault::Malformed,
        Fault::Busy(0),
        Fault::Delay(Duration::from_millis(50)),
        Fault::Redirect("/redfish/v1/Systems/1/Actions/ComputerSystem.Reset/".into()),
        Fault::Status(401, String::new()),
    ] {
        let (responder, bmc) = warm(patient()).await;
        responder.faults.arm("POST", RESET, fault.clone(), 1);
        accepted(bmc.power(PowerAction::On).await);
        assert_eq!((responder.faults.disarm(), resets(&responder)), (1, 1), "{fault:?}");
    }
}

#[tokio::test]
async fn a_no_says_what_the_controller_says() {
    let info = r#"{"error": {"@Message.ExtendedInfo": [{"Message": "The lid is open."}, {"Message": "Close it."}]}}"#;
    for (status, reason) in [
        (400, Reason::ProviderRefused),
        (403, Reason::ProviderRefused),
        (409, Reason::ProviderRefused),
        (405, Reason::CapabilityMissing),
        (501, Reason::CapabilityMissing),
    ] {
        let (responder, bmc) = warm(patient()).await;
        responder.faults.arm("POST", RESET, Fault::Status(status, info.into()), 1);
        let words = ["The lid is open.; Close it.", "power action on", &status.to_string()];
        refused(bmc.power(PowerAction::On).await, reason, &words);
        assert_eq!(resets(&responder), 0);
    }
}

/// Something broke inside of it, and nobody knows how far it got: not refused, and not sent again.
#[tokio::test]
async fn a_change_that_breaks_the_controller_may_have_been_done() {
    let info = r#"{"error": {"@Message.ExtendedInfo": [{"Message": "Out of memory."}]}}"#;
    for status in [500, 502, 503, 504] {
        let (responder, bmc) = warm(patient()).await;
        responder.faults.arm("POST", RESET, Fault::Status(status, info.into()), ALWAYS);
        let told = unknown(bmc.power(PowerAction::On).await);
        assert!(told.contains("Out of memory.") && told.contains(&status.to_string()), "{told}");
        assert_eq!(responder.faults.disarm(), 1, "{status}: not sent again");
        responder.faults.arm("PATCH", SYSTEM, Fault::Status(status, info.into()), ALWAYS);
        unknown(bmc.set_boot(Some(BootOverride { mode: BootMode::Pxe, persistent: false })).await);
        assert_eq!(responder.faults.disarm(), 1, "{status}: not sent again");
    }
    // who says when to come back has not begun
    let (responder, bmc) = warm(patient()).await;
    responder.faults.arm("POST", RESET, Fault::Busy(3600), ALWAYS);
    refused(bmc.power(PowerAction::On).await, Reason::ProviderRefused, &["503"]);
}

#[tokio::test]
async fn a_talkative_no_is_cut() {
    let (responder, bmc) = warm(patient()).await;
    let long = format!(r#"{{"error": {{"message": "{}"}}}}"#, "no ".repeat(100_000));
    responder.faults.arm("POST", RESET, Fault::Status(400, long), 1);
    let text = refused(bmc.power(PowerAction::On).await, Reason::ProviderRefused, &["no no no"]);
    assert!(text.len() < 2 * domain::limits::MESSAGE_MAX, "{} bytes", text.len());
}

#[tokio::test]
async fn a_lost_read_back_does_not_hide_that_a_change_was_made() {
    let (responder, bmc) = one(options()).await;
    let pxe = Some(BootOverride { mode: BootMode::Pxe, persistent: false });
    responder.faults.arm("PATCH", SYSTEM, Fault::LoseAnswer, 1);
    unknown(bmc.set_boot(pxe).await);
    // whoever looks first finds it done
    assert_eq!(bmc.state().await.expect("a state").boot, pxe);
    done(bmc.set_boot(pxe).await);
    assert_eq!(responder.done_to(1).len(), 1);
}
