//! Bad networks between the adapter and the simulator, and what was really sent over them.

use crate::{PATIENT, adapter, at, sim};
use domain::Reason;
use domain::endpoint::BmcEndpoint;
use domain::hardware::PowerAction;
use futures::StreamExt as _;
use ipmi::{Ipmi, Timeouts};
use provider::{Ack, Bmc as _, ProviderError};
use std::time::Duration;
use testkit::ipmi_sim::SERIAL;
use testkit::udp_proxy::{Fault, UdpProxy};

#[tokio::test]
async fn a_slow_a_lossy_and_an_echoing_network_are_stood() {
    let sim = sim().await;
    let proxy = UdpProxy::before(sim.address()).await;
    let bmc = at(&sim, proxy.address(), PATIENT);
    for (fault, action, effect) in [
        (Fault::Delay(Duration::from_millis(150)), PowerAction::On, "power 1"),
        (Fault::Duplicate, PowerAction::ForceOff, "power 0"),
        (Fault::None, PowerAction::On, "power 1"),
    ] {
        let before = sim.journal().len();
        proxy.set(fault);
        assert_eq!(bmc.state().await.expect("a state").serial_number, SERIAL, "{fault:?}");
        assert_eq!(bmc.power(action).await, Ok(Ack::Done), "{fault:?}");
        let effects = sim.journal().split_off(before);
        assert!(!effects.is_empty() && effects.iter().all(|e| e == effect), "{fault:?}: {effects:?}");
    }
}

/// Lost datagrams are asked again, or told as what they are: never a yes that is none.
#[tokio::test]
async fn lost_datagrams_never_make_a_false_answer() {
    let sim = sim().await;
    let proxy = UdpProxy::before(sim.address()).await;
    proxy.set(Fault::DropOneOf(7));
    match at(&sim, proxy.address(), PATIENT).power(PowerAction::On).await {
        Ok(_) | Err(ProviderError::Unknown { .. }) => {}
        Err(error) => assert!(sim.journal().is_empty(), "{error}, and yet {:?}", sim.journal()),
    }
}

#[tokio::test]
async fn truncated_datagrams_are_no_answer() {
    let sim = sim().await;
    let proxy = UdpProxy::before(sim.address()).await;
    let timeouts = Timeouts { presence: Duration::from_millis(400), call: Duration::from_secs(3) };
    for length in [0, 3, 10, 20] {
        proxy.set(Fault::Truncate(length));
        let error = at(&sim, proxy.address(), timeouts).power(PowerAction::On).await.expect_err("nothing whole comes");
        assert!(matches!(error, ProviderError::Refused { .. }), "{length}: {error}");
        assert_eq!(error.reason(), Reason::Unreachable, "{length}: {error}");
    }
    assert_eq!(sim.journal(), [""; 0]);
}

/// Answers stop after the first, the second, … up to the last: whatever moment that is, a change that happened is
/// never told as one that did not.
#[tokio::test]
async fn a_change_whose_answer_is_lost_is_unknown() {
    let total = {
        let sim = sim().await;
        let proxy = UdpProxy::before(sim.address()).await;
        proxy.set(Fault::None);
        assert_eq!(at(&sim, proxy.address(), PATIENT).power(PowerAction::On).await, Ok(Ack::Done));
        proxy.answers()
    };
    let timeouts = Timeouts { presence: Duration::from_secs(5), call: Duration::from_secs(6) };
    let one = |lost_after: usize| async move {
        let sim = sim().await;
        let proxy = UdpProxy::before(sim.address()).await;
        proxy.set(Fault::LoseAnswersAfter(lost_after));
        let result = at(&sim, proxy.address(), timeouts).power(PowerAction::On).await;
        let happened = sim.journal() == ["power 1"];
        match &result {
            Ok(_) => assert!(happened, "after {lost_after}: a yes, and nothing happened"),
            Err(ProviderError::Refused { .. }) => assert!(!happened, "after {lost_after}: {result:?}, and it happened"),
            Err(ProviderError::Unknown { .. }) => {}
        }
        happened && matches!(result, Err(ProviderError::Unknown { .. }))
    };
    let unknown: Vec<bool> = futures::stream::iter(0..total).map(one).buffer_unordered(4).collect().await;
    assert!(unknown.contains(&true), "one of {total} moments lies between the command and its answer");
}

#[tokio::test]
async fn a_call_that_outlasts_its_time_is_ended_and_leaves_no_child() {
    let sim = sim().await;
    let proxy = UdpProxy::before(sim.address()).await;
    proxy.set(Fault::LoseAnswersAfter(1));
    let timeouts = Timeouts { presence: PATIENT.presence, call: Duration::from_millis(300) };
    let error = at(&sim, proxy.address(), timeouts).state().await.expect_err("ended");
    assert_eq!(error.reason(), Reason::Unreachable, "{error}");
    proxy.set(Fault::LoseAnswersAfter(1));
    let error = at(&sim, proxy.address(), timeouts).identify(true).await.expect_err("ended");
    assert_eq!(error.reason(), Reason::ProviderSilent, "it may have been sent: {error}");
    // a call that is given up in the middle
    proxy.set(Fault::LoseAnswersAfter(1));
    let bmc = at(&sim, proxy.address(), PATIENT);
    let port = proxy.address().port().to_string();
    let call = bmc.state();
    let seen = async {
        while children_with(&port) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = call => panic!("nothing answers"),
        () = seen => {}
    }
    for _ in 0..1000 {
        if children_with(&port) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a child is left");
}

/// Live processes called ipmitool that talk to this port; one that only waits to be reaped has no command line.
fn children_with(port: &str) -> usize {
    let is_one = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> = line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        words.first().is_some_and(|program| program.ends_with("ipmitool")) && words.iter().any(|word| word == port)
    };
    std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|e| is_one(e).then_some(())).count()
}

/// What an Open Session Request proposes: authentication, integrity, confidentiality.
fn proposals(asked: &[Vec<u8>]) -> Vec<(u8, u8, u8)> {
    let open =
        |datagram: &&Vec<u8>| datagram.len() >= 48 && datagram[..4] == [6, 0, 0xff, 7] && datagram[4..6] == [6, 0x10];
    asked.iter().filter(open).map(|d| (d[28], d[36], d[44])).collect()
}

/// The simulator takes cipher suite 0 with any password: so would a careless client.
#[tokio::test]
async fn cipher_suite_0_is_never_used() {
    let sim = sim().await;
    let proxy = UdpProxy::before(sim.address()).await;
    let endpoint = BmcEndpoint { port: proxy.address().port(), ..sim.endpoint() };
    let with = |cipher: u8| Ipmi::new(&BmcEndpoint { cipher, ..endpoint.clone() }, sim.login(), "rack-1", PATIENT);
    let error = with(0).power(PowerAction::On).await.expect_err("never");
    assert!(error.to_string().contains("never used"), "{error}");
    assert_eq!(proxy.asked().len(), 0, "nothing was sent");
    with(17).state().await.expect_err("the simulator lacks it");
    let asked = proxy.asked().len();
    assert!(proposals(&proxy.asked()).iter().all(|p| *p == (3, 4, 1)), "{:?}", proposals(&proxy.asked()));
    with(3).state().await.expect("a state");
    let three = proposals(&proxy.asked()[asked..]);
    assert!(!three.is_empty() && three.iter().all(|p| *p == (1, 1, 1)), "{three:?}");
}

#[tokio::test]
async fn many_at_a_time_do_not_mix_up() {
    let sim = sim().await;
    let bmc = adapter(&sim);
    let states = futures::future::join_all((0..8).map(|_| bmc.state())).await;
    for state in states {
        assert_eq!(state.expect("a state").serial_number, SERIAL);
    }
}
