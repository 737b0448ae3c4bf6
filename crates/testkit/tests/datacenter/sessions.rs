//! Sessions at controllers, which have few: one is kept for each, and none is left behind by whoever is done with it.
//! The verdict is the responder's own count.

use crate::ground::{Ground, PASSWORD, impatient, options, target, until};
use datacenter::{Datacenter, Options};
use domain::Secret;
use domain::credential::{BmcLogin, Credential};
use domain::machine::MachineSpec;
use provider::{Ack, Inspect as _, Management as _, Provider};
use std::sync::Arc;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::keyring::MemoryKeyring;
use testkit::redfish_responder::{self, Responder, What};

fn logins(responder: &Responder) -> usize {
    responder.done_to(0).iter().filter(|what| **what == What::LoggedIn).count()
}

async fn none_is_left(responder: &Responder) {
    until("all sessions are closed", || responder.open_sessions() == 0).await;
}

#[tokio::test]
async fn sweeps_share_one_and_a_stop_closes_it() {
    let g = Ground::bmc_only(options()).await;
    for _ in 0..5 {
        g.dc.watch(&g.target).await.expect("a look");
        assert_eq!((logins(&g.responder), g.responder.open_sessions()), (1, 1));
    }
    Provider::close(&g.dc).await;
    assert_eq!(g.responder.open_sessions(), 0, "closed when it says so");
    assert!(g.responder.done_to(0).contains(&What::LoggedOut));
}

#[tokio::test]
async fn another_login_closes_the_session_of_the_last() {
    let g = Ground::bmc_only(options()).await;
    g.look().await;
    let auditor = BmcLogin { username: "auditor".into(), password: Secret::new("looks only") };
    g.keyring.set("bmc", Credential::Bmc(auditor));
    g.look().await;
    until("the first is closed", || g.responder.open_sessions() == 1).await;
    assert_eq!(logins(&g.responder), 2);
    // and a password that is changed: whatever was tried on the way
    let operator = BmcLogin { username: "operator".into(), password: Secret::new(PASSWORD) };
    g.keyring.set("bmc", Credential::Bmc(operator));
    assert_eq!(g.dc.rotate_password(&g.target).await, Ok(Ack::Done));
    g.look().await;
    until("only the last is open", || g.responder.open_sessions() == 1).await;
    Provider::close(&g.dc).await;
    none_is_left(&g.responder).await;
}

#[tokio::test]
async fn a_discovery_leaves_none_and_neither_does_a_provider_that_is_gone() {
    let g = Ground::bmc_only(options()).await;
    let spec = MachineSpec { serial_number: String::new(), system_uuid: String::new(), ..g.target.spec.clone() };
    g.dc.discover(&spec).await.expect("discovered");
    assert!(logins(&g.responder) > 0);
    none_is_left(&g.responder).await;
    let Ground { responder, dc, target, .. } = g;
    dc.watch(&target).await.expect("a look");
    assert_eq!(responder.open_sessions(), 1);
    drop(dc);
    none_is_left(&responder).await;
}

/// A machine that nobody looks at any more is gone, or another server's.
#[tokio::test]
async fn who_is_not_asked_any_more_is_logged_out() {
    let many = redfish_responder::Options { systems: 2, own_ports: true, ..Default::default() };
    let responder = Responder::start(many).await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let dc = Datacenter::new(Options { forget_after: Duration::from_millis(300), ..options() }, keyring);
    let machine = |number| {
        target(MachineSpec {
            bmc_endpoint: responder.endpoint(number),
            credentials_ref: "bmc".into(),
            ..MachineSpec::default()
        })
    };
    let (gone, stays) = (machine(1), machine(2));
    dc.watch(&gone).await.expect("a look");
    let begun = tokio::time::Instant::now();
    while !responder.done_to(0).contains(&What::LoggedOut) {
        dc.watch(&stays).await.expect("a look");
        assert!(begun.elapsed() < Duration::from_secs(60), "never logged out");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Provider::close(&dc).await;
    none_is_left(&responder).await;
}

/// Those that do not answer are not waited for longer than a call takes, and the others are closed all the same.
#[tokio::test]
async fn a_stop_ends_although_some_do_not_answer() {
    let many = redfish_responder::Options { systems: 12, own_ports: true, ..Default::default() };
    let responder = Responder::start(many).await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let dc = Datacenter::new(Options { redfish_calls: 4, ..impatient() }, keyring);
    for number in 1..=12 {
        let spec = MachineSpec {
            bmc_endpoint: responder.endpoint(number),
            credentials_ref: "bmc".into(),
            ..MachineSpec::default()
        };
        dc.watch(&target(spec)).await.expect("a look");
    }
    assert_eq!(responder.open_sessions(), 12);
    responder.faults.arm("DELETE", "/Sessions/", Fault::Hold, 2);
    tokio::time::timeout(Duration::from_secs(60), Provider::close(&dc)).await.expect("it ends");
    assert_eq!((responder.faults.disarm(), responder.open_sessions()), (2, 2));
}
