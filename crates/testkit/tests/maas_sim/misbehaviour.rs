//! What it is told to do wrong it does wrong, so often, and only then; and its log says whether the work was done.

use crate::caller::{Body, Caller, Signature, now, send_over};
use crate::traps::{instant, ready};
use std::sync::Arc;
use std::time::Duration;
use testkit::maas_sim::log::{Answered, Kind};
use testkit::maas_sim::{Calls, MaasSim, Misbehaviour, Options, Racked, status};
use testkit::tls::Authority;
use tokio::time::timeout;

const MAC: &str = "52:54:00:00:00:01";
const BMC: &str = "192.0.2.1";

/// Long enough for an answer that comes.
const PATIENCE: Duration = Duration::from_secs(20);

fn last_request(sim: &MaasSim) -> (u16, bool, Answered) {
    let log = sim.log();
    let last = log.iter().rev().find_map(|entry| match &entry.kind {
        Kind::Request { status, done, answered, .. } => Some((*status, *done, *answered)),
        _ => None,
    });
    last.expect("a request")
}

/// Each kind of misbehaviour, and whether the deployment was done.
#[tokio::test]
async fn each_does_what_it_says_once() {
    let text = || "Later.".to_owned();
    let cases = [
        (Misbehaviour::Conflict(text()), Some(409), false),
        (Misbehaviour::TryAgain, Some(409), false),
        (Misbehaviour::Refuse(503, text()), Some(503), false),
        (Misbehaviour::Refuse(500, text()), Some(500), false),
        (Misbehaviour::FailAfter, Some(500), true),
        (Misbehaviour::AnswerAfter(504, text()), Some(504), true),
        (Misbehaviour::Garbage, Some(200), true),
        (Misbehaviour::Say("null".into()), Some(200), true),
        (Misbehaviour::ResetBefore, None, false),
        (Misbehaviour::ResetAfter, None, true),
    ];
    for (what, code, done) in cases {
        let sim = instant().await;
        let system_id = ready(&sim, MAC, BMC).await;
        let shown = format!("{what:?}");
        let rule = sim.misbehave(Calls::op("deploy").of(&system_id), what, 1);
        let caller = Caller::new(&sim);
        let path = format!("machines/{system_id}/?op=deploy");
        let answer = caller.try_ask("POST", &path, &[]).await;
        assert_eq!(answer.as_ref().ok().map(|a| a.status), code, "{shown}");
        assert_eq!(sim.machine(&system_id).expect("a machine").status == status::DEPLOYED, done, "{shown}");
        assert_eq!(sim.hits(rule), 1, "{shown}");
        let (_, noted, answered) = last_request(&sim);
        assert_eq!(noted, done, "{shown}: its log says whether it was done");
        assert_eq!(answered == Answered::Lost, code.is_none(), "{shown}");
        // the next one goes well, as far as it can
        let again = caller.op(&system_id, "deploy", &[]).await;
        assert_eq!(again.status, if done { 409 } else { 200 }, "{shown}");
    }
}

#[tokio::test]
async fn only_a_serialisation_failure_says_when_to_come_again() {
    let sim = instant().await;
    let caller = Caller::new(&sim);
    sim.misbehave(Calls::reads(), Misbehaviour::TryAgain, 1);
    let answer = caller.ask("GET", "machines/", &[]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (409, Some("5")));
    assert!(answer.text().contains("<html>"));
    sim.misbehave(Calls::reads(), Misbehaviour::Conflict("No.".into()), 1);
    assert_eq!(caller.ask("GET", "machines/", &[]).await.header("retry-after"), None);
}

#[tokio::test]
async fn the_first_calls_may_go_well() {
    let sim = instant().await;
    let caller = Caller::new(&sim);
    sim.misbehave_after(Calls::any(), 2, Misbehaviour::Refuse(503, String::new()), 2);
    let mut codes = Vec::new();
    for _ in 0..6 {
        codes.push(caller.ask("GET", "version/", &[]).await.status);
    }
    assert_eq!(codes, [200, 200, 503, 503, 200, 200]);
}

/// Waits on the simulator's own log for the request that never gets an answer.
#[tokio::test]
async fn an_answer_that_never_comes_may_have_been_work() {
    for (what, done) in [(Misbehaviour::HangBefore, false), (Misbehaviour::HangAfter, true)] {
        let sim = instant().await;
        let system_id = ready(&sim, MAC, BMC).await;
        sim.misbehave(Calls::op("deploy"), what, 1);
        let before = sim.log_len();
        let caller = Caller::new(&sim);
        let noted = async {
            while sim.log_len() == before {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            answer = caller.op(&system_id, "deploy", &[]) => panic!("an answer: {answer:?}"),
            noted = timeout(PATIENCE, noted) => noted.expect("it came in"),
        }
        assert_eq!(last_request(&sim).1, done);
        assert_eq!(sim.machine(&system_id).expect("a machine").status == status::DEPLOYED, done);
    }
}

#[tokio::test]
async fn it_can_be_down_and_comes_back_at_the_same_place() {
    let sim = instant().await;
    let caller = Caller::new(&sim);
    let url = sim.url();
    for _ in 0..3 {
        sim.down().await;
        let refused = caller.try_ask("GET", "version/", &[]).await.expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        sim.up();
        assert_eq!(caller.ask("GET", "version/", &[]).await.status, 200);
    }
    assert_eq!(sim.url(), url);
    sim.hang(true);
    let asked = sim.log_len();
    assert!(timeout(Duration::from_millis(50), caller.try_ask("GET", "version/", &[])).await.is_err());
    sim.hang(false);
    assert_eq!(sim.log_len(), asked, "nothing came of it");
    assert_eq!(caller.ask("GET", "version/", &[]).await.status, 200);
}

#[tokio::test]
async fn it_speaks_tls_with_the_certificate_it_is_given() {
    let authority = Authority::default();
    let options = Options { time: Arc::new(now), ..Options::default() };
    let sim = MaasSim::start_with(options, Some(&authority.pair())).await;
    sim.rack(Racked::new(MAC, BMC));
    let address = sim.url().trim_start_matches("https://").trim_end_matches("/MAAS").replace("localhost", "127.0.0.1");
    let stream = authority.connect(&address, &[]).await.expect("a handshake");
    let signature = Signature::new(&sim.key());
    let path = "/MAAS/api/2.0/users/?op=whoami";
    let answer = send_over(stream, "GET", path, Some(&signature), Body::Form(&[])).await.expect("an answer");
    assert_eq!(answer.json()["username"], "admin");
}
