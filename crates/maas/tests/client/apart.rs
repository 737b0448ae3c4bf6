//! One site that is slow or down harms nobody but itself, and itself only within bounds.

use crate::fixtures::{ID, access, machine, options};
use crate::server::{Reply, Server};
use domain::Reason;
use domain::stage::FailureClass;
use maas::{Clients, Options};
use provider::{MaasAccess, MaasClients as _, ProviderError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// The one hangs for as long as nobody gives up; all that is asked of the other is answered meanwhile.
#[tokio::test]
async fn a_site_that_hangs_delays_no_other() {
    let hanging = Server::start(|_| Reply::Hang).await;
    let fine = Server::start(|_| Reply::json(machine())).await;
    let clients = Clients::new(Options { read: Duration::from_secs(3600), ..options() });
    let slow = clients.client(&access("oslo", &hanging.url)).expect("a client");
    let fast = clients.client(&access("bergen", &fine.url)).expect("a client");
    let mut waiting = JoinSet::new();
    for _ in 0..50 {
        let slow = slow.clone();
        waiting.spawn(async move { slow.machine(ID).await });
    }
    while hanging.asked().len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..200 {
        fast.machine(ID).await.expect("answered");
    }
    assert_eq!((waiting.len(), waiting.try_join_next().is_none()), (50, true), "the others still wait");
    assert_eq!(hanging.asked().len(), 4, "no more calls at a time than it may have");
    assert!(!clients.is_resting("bergen"));
}

#[tokio::test]
async fn who_waits_too_long_for_a_turn_is_told_so() {
    let hanging = Server::start(|_| Reply::Hang).await;
    let bounds = Options { read: Duration::from_secs(3600), turn: Duration::from_millis(20), ..options() };
    let clients = Clients::new(bounds);
    let one = MaasAccess { calls_max: 1, ..access("oslo", &hanging.url) };
    let client = clients.client(&one).expect("a client");
    let first = client.clone();
    let first = tokio::spawn(async move { first.machine(ID).await });
    while hanging.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let no = client.machine(ID).await.expect_err("no turn");
    assert_eq!(no.reason(), Reason::EndpointBusy, "{no}");
    first.abort();
}

#[tokio::test]
async fn a_site_that_is_down_is_left_alone_and_comes_back() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = up.clone();
    let server = Server::start(move |_| match is_up.load(Ordering::SeqCst) {
        true => Reply::json(machine()),
        false => Reply::Close,
    })
    .await;
    let bounds = Options { repeats: 0, silences: 3, rest: Duration::from_secs(2), ..options() };
    let clients = Clients::new(bounds);
    let client = clients.client(&access("oslo", &server.url)).expect("a client");
    for _ in 0..3 {
        let no = client.machine(ID).await.expect_err("down");
        assert_eq!(no.reason(), Reason::Unreachable, "{no}");
        assert!(matches!(no, ProviderError::Refused { class: FailureClass::DependencyDown, .. }));
    }
    let asked = server.asked().len();
    let no = client.power_on(ID).await.expect_err("left alone");
    assert_eq!(no.reason(), Reason::CircuitOpen, "{no}");
    assert!(matches!(no, ProviderError::Refused { class: FailureClass::DependencyDown, .. }), "nothing was sent");
    assert!(no.to_string().contains("tried again in "), "{no}");
    assert_eq!((server.asked().len(), clients.is_resting("oslo")), (asked, true));
    up.store(true, Ordering::SeqCst);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while client.machine(ID).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "it never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!clients.is_resting("oslo"));
}

/// A BMC that fails is an answer of its site.
#[tokio::test]
async fn what_a_site_says_of_its_machines_is_no_silence() {
    let server = Server::start(|asked| match asked.op() {
        "query_power_state" => Reply::text(503, "No rack controllers can access the BMC"),
        _ => Reply::text(500, "the BMC refused"),
    })
    .await;
    let clients = Clients::new(Options { silences: 1, ..options() });
    let client = clients.client(&access("oslo", &server.url)).expect("a client");
    for _ in 0..3 {
        assert!(client.power_now(ID).await.is_err() && client.power_on(ID).await.is_err());
    }
    assert!(!clients.is_resting("oslo"));
}
