//! Killing a command kills all of it, and is done only then.

use crate::fixture::*;
use domain::stage::FailureClass;
use provider::{Ack, ExecState, ProviderError, Stream};

#[tokio::test]
async fn grandchildren_die_too_even_those_that_do_not_listen() {
    let (host, key) = (reach(shared()), key());
    let script = "sh -c 'sleep 86439 & trap \"\" TERM; while :; do sleep 86439; done' & \
                  sh -c '(sleep 86439 &) ; exit 0'; sleep 86439";
    assert_eq!(host.start(&sh(script), &key, None).await, Ok(Ack::Accepted));
    until("all of them", || processes_with("sleep 86439").iter().filter(|p| p.starts_with("sleep")).count() == 4).await;
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    assert_eq!(processes_with("86439"), Vec::<String>::new());
    let (status, _) = ended(&host, &key).await;
    assert!([143, 137].contains(&status), "{status}");
    assert_eq!(host.kill(&key).await, Ok(Ack::Done), "a second time");
}

#[tokio::test]
async fn the_last_words_of_what_is_asked_to_end_are_kept() {
    let (host, key) = (reach(shared()), key());
    let script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done";
    assert_eq!(host.start(&sh(script), &key, None).await, Ok(Ack::Accepted));
    follow(&host, &key, 0, |_, output| !output.is_empty()).await;
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    let (status, output) = ended(&host, &key).await;
    // on the other stream its shell may tell of the sleep that was ended
    assert_eq!((status, of(Stream::Stdout, &output).as_slice()), (7, &b"ready\nbye\n"[..]));
}

#[tokio::test]
async fn to_kill_what_has_ended_is_done() {
    let (host, key) = (reach(shared()), key());
    assert_eq!(host.start(&sh("exit 2"), &key, None).await, Ok(Ack::Accepted));
    assert_eq!(ended(&host, &key).await.0, 2);
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    assert_eq!(ended(&host, &key).await.0, 2);
}

#[tokio::test]
async fn what_was_killed_before_it_was_started_stays_so() {
    let (host, key) = (reach(shared()), key());
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    assert_eq!(host.poll(&key, 0).await.map(|p| p.state), Ok(ExecState::NeverStarted));
    // a start that was on its way when the run was cancelled
    let late = host.start(&sh("true"), &key, None).await;
    assert!(matches!(&late, Err(ProviderError::Refused { class: FailureClass::Conflict, .. })), "{late:?}");
    assert_eq!(host.poll(&key, 0).await.map(|p| p.state), Ok(ExecState::NeverStarted));
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
}

#[tokio::test]
async fn a_recorder_that_was_killed_is_told_apart() {
    let (host, key) = (reach(shared()), key());
    assert_eq!(host.start(&sh("echo begun; exec sleep 86440"), &key, None).await, Ok(Ack::Accepted));
    follow(&host, &key, 0, |_, output| !output.is_empty()).await;
    let lock = std::fs::read_to_string(shared().inside(&format!("/var/lib/millwright/exec/{key}.lock")));
    let leader = lock.expect("a lock").split(' ').nth(1).expect("a leader").to_owned();
    let killer = self::key();
    assert_eq!(host.start(&command("kill", &["-KILL", &leader]), &killer, None).await, Ok(Ack::Accepted));
    assert_eq!(ended(&host, &killer).await.0, 0);
    let (status, output) = ended(&host, &key).await;
    assert_eq!(status, ssh::INTERRUPTED_STATUS);
    assert!(words(&output).contains("recorder was killed"), "{}", words(&output));
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    assert_eq!(processes_with("sleep 86440"), Vec::<String>::new(), "what it left behind is found by its session");
}
