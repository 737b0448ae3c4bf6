//! Connections: kept for a moment, closed when nobody uses them, and replaced when the controller has closed them.

use crate::fixture::{accepted, adapter, done, login, options, patient, until};
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use provider::Bmc as _;
use redfish::Timeouts;
use std::time::Duration;
use testkit::redfish_responder::{Responder, What};

#[tokio::test]
async fn one_connection_serves_one_question_after_the_other() {
    let responder = Responder::start(options()).await;
    let bmc = adapter(&responder.endpoint(1), login(), patient());
    bmc.describe().await.expect("a description");
    for _ in 0..5 {
        bmc.state().await.expect("a state");
    }
    assert!(responder.questions() > 20);
    assert_eq!(responder.faults.opened(), 1);
}

#[tokio::test]
async fn many_questions_at_a_time_leave_few_connections() {
    let responder = Responder::start(options()).await;
    let bmc = adapter(&responder.endpoint(1), login(), patient());
    for state in futures::future::join_all((0..20).map(|_| bmc.state())).await {
        state.expect("a state");
    }
    until("the others are closed", || async { responder.faults.open() <= 2 }).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let responder = Responder::start(options()).await;
    let idle = Timeouts { idle: Duration::from_millis(50), ..patient() };
    let bmc = adapter(&responder.endpoint(1), login(), idle);
    bmc.state().await.expect("a state");
    until("it is closed", || async { responder.faults.open() == 0 }).await;
    bmc.state().await.expect("a state over another");
    drop(bmc);
    until("nothing is left behind", || async { responder.faults.open() == 0 }).await;
}

#[tokio::test]
async fn who_is_told_that_nobody_asks_for_a_while_hangs_up() {
    let responder = Responder::start(options()).await;
    let idle = Timeouts { idle: Duration::from_secs(3600), ..patient() };
    let bmc = adapter(&responder.endpoint(1), login(), idle);
    bmc.state().await.expect("a state");
    assert_eq!(responder.faults.open(), 1, "kept");
    bmc.hang_up();
    until("it is closed", || async { responder.faults.open() == 0 }).await;
    bmc.state().await.expect("a state over another");
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_costs_nothing() {
    let responder = Responder::start(options()).await;
    let bmc = adapter(&responder.endpoint(1), login(), patient());
    bmc.state().await.expect("a state");
    responder.faults.hang_up();
    until("it is closed", || async { responder.faults.open() == 0 }).await;
    accepted(bmc.power(PowerAction::On).await);
    let acts = responder.done_to(1).into_iter().filter(|w| matches!(w, What::Power { .. }));
    assert_eq!(acts.count(), 1);
    responder.faults.hang_up();
    until("it is closed", || async { responder.faults.open() == 0 }).await;
    done(bmc.set_boot(Some(BootOverride { mode: BootMode::Pxe, persistent: false })).await);
}
