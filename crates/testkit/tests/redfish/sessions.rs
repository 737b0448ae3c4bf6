//! Being let in: one session, renewed once when it ends, basic authentication where there are none, and never a
//! wrong password twice.

use crate::fixture::{accepted, adapter, login, one, options, patient, refused};
use domain::credential::BmcLogin;
use domain::hardware::PowerAction;
use domain::{Reason, Secret};
use provider::Bmc as _;
use testkit::http_faults::Fault;
use testkit::redfish_responder::{Responder, What};

fn count(responder: &Responder, what: &What) -> usize {
    responder.done_to(0).iter().filter(|w| *w == what).count()
}

#[tokio::test]
async fn one_session_serves_everything_and_is_closed() {
    let (responder, bmc) = one(options()).await;
    bmc.describe().await.expect("a description");
    accepted(bmc.power(PowerAction::On).await);
    bmc.event_log(5).await.expect("events");
    assert_eq!((count(&responder, &What::LoggedIn), responder.open_sessions()), (1, 1));
    bmc.close().await.expect("closed");
    bmc.close().await.expect("closed already");
    assert_eq!(responder.open_sessions(), 0);
    bmc.state().await.expect("another session");
    assert_eq!(count(&responder, &What::LoggedIn), 2);
}

#[tokio::test]
async fn many_at_a_time_share_one_session() {
    let (responder, bmc) = one(options()).await;
    let states = (0..8).map(|_| bmc.state());
    for state in futures::future::join_all(states).await {
        state.expect("a state");
    }
    assert_eq!(count(&responder, &What::LoggedIn), 1);
}

#[tokio::test]
async fn a_session_that_ends_in_the_middle_is_renewed_once() {
    let (responder, bmc) = one(options()).await;
    bmc.state().await.expect("a state");
    responder.end_sessions();
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!(count(&responder, &What::LoggedIn), 2);
    let acts = responder.done_to(1).into_iter().filter(|w| matches!(w, What::Power { .. })).count();
    assert_eq!(acts, 1, "and what was asked is done once");
}

#[tokio::test]
async fn a_change_refused_in_mid_session_is_sent_again_after_one_login() {
    let (responder, bmc) = one(options()).await;
    bmc.state().await.expect("a state");
    responder.faults.arm("POST", "ComputerSystem.Reset", Fault::Status(401, String::new()), 1);
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!((responder.faults.disarm(), count(&responder, &What::LoggedIn)), (1, 2));
    assert!(responder.system(1).on);
}

#[tokio::test]
async fn a_fresh_session_that_is_not_let_in_is_a_refused_login() {
    let (responder, bmc) = one(options()).await;
    bmc.state().await.expect("a state");
    responder.faults.arm("GET", "/Systems/1", Fault::Status(401, String::new()), usize::MAX);
    refused(bmc.state().await, Reason::LoginRefused, &["rack-12"]);
    assert_eq!(count(&responder, &What::LoggedIn), 2, "renewed once, not more");
}

#[tokio::test]
async fn without_sessions_the_password_goes_with_every_question() {
    let mut basic = options();
    basic.sessions = false;
    let (responder, bmc) = one(basic).await;
    bmc.state().await.expect("a state");
    bmc.state().await.expect("a state");
    assert_eq!((count(&responder, &What::LoggedIn), responder.open_sessions()), (0, 0));
    assert!(!responder.take_questions().iter().any(|q| q.contains("Session")));
}

#[tokio::test]
async fn a_session_service_that_is_listed_and_not_there_is_remembered() {
    for status in [404, 405, 501] {
        let (responder, bmc) = one(options()).await;
        responder.faults.arm("POST", "/Sessions", Fault::Status(status, String::new()), usize::MAX);
        bmc.state().await.expect("a state");
        bmc.state().await.expect("a state");
        assert_eq!(responder.faults.disarm(), 1, "asked for once, status {status}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_tried_once() {
    for sessions in [true, false] {
        let mut door = options();
        door.sessions = sessions;
        let responder = Responder::start(door).await;
        let wrong = BmcLogin { password: Secret::new("cnry_wrong_wrong_wrong"), ..login() };
        let bmc = adapter(&responder.endpoint(1), wrong, patient());
        for _ in 0..3 {
            refused(bmc.state().await, Reason::LoginRefused, &["rack-12", "millwright credential set"]);
        }
        refused(bmc.describe().await, Reason::LoginRefused, &[]);
        refused(bmc.power(PowerAction::On).await, Reason::LoginRefused, &[]);
        assert_eq!(count(&responder, &What::LoginRefused), 1, "accounts get locked");
        assert!(!responder.system(1).on);
    }
}
