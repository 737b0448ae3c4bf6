//! The crash harness: every run type, and cancel, disturbed at every point there is. The engine is dropped after
//! every journal entry and around every provider call, dropped again inside recovery; every step is repeated,
//! every call refused, every answer lost. Each point is named and counted, and one that was declared and never
//! hit fails the test. The verdict comes from the provider's effect journal and a model of its own (`model.rs`).
//!
//! Pairs of points are tried on the store in memory, where the clock is virtual; single points, and a crash
//! inside recovery, on SQLite and PostgreSQL. `-- --nocapture` prints the counts.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod case;
mod harness;
mod lane;
mod model;
mod script;
mod tap;
mod tapped;

use case::{CASES, Case};
use domain::stage::FailureClass;
use harness::{Harness, is_entry};
use script::What;
use tap::Seen;
use testkit::fleet::Database;

const EVERY: usize = usize::MAX;
const FOR_GOOD: What = What::Refuse(FailureClass::NeedsOperator);
const ONCE: What = What::Refuse(FailureClass::Transient);

fn slow_too() -> Vec<Case> {
    CASES.into_iter().chain(CASES.map(Case::slow)).collect()
}

fn at_entries(seen: &Seen) -> Vec<What> {
    if is_entry(seen) { vec![What::Crash] } else { vec![] }
}

/// Carried out and not recorded: whoever comes next does the step again. And about to be sent.
fn at_calls(seen: &Seen) -> Vec<What> {
    match (is_entry(seen), seen.acts) {
        (true, _) => vec![],
        (false, true) => vec![What::CrashBefore, What::Crash],
        (false, false) => vec![What::Crash],
    }
}

fn crash_anywhere(seen: &Seen) -> Vec<What> {
    if is_entry(seen) { at_entries(seen) } else { at_calls(seen) }
}

fn crash_at_record_or_act(seen: &Seen) -> Vec<What> {
    if is_entry(seen) || seen.acts { vec![What::Crash] } else { vec![] }
}

/// A look is given up when somebody cancels, so there is one moment; an act is seen through, so there are two.
fn canceled_at(seen: &Seen) -> Vec<What> {
    match (is_entry(seen), seen.acts) {
        (true, _) => vec![],
        (false, true) => vec![What::CancelBefore, What::CancelAfter],
        (false, false) => vec![What::CancelBefore],
    }
}

fn at_acts(what: &[What]) -> impl Fn(&Seen) -> Vec<What> {
    move |seen| if seen.acts { what.to_vec() } else { vec![] }
}

fn each_call(what: &[What]) -> impl Fn(&Seen) -> Vec<What> {
    move |seen| if is_entry(seen) { vec![] } else { what.to_vec() }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_every_entry_and_again_inside_recovery() {
    let mut harness = Harness::new(Database::Memory, "crash after every entry, then anywhere in recovery");
    let once = harness.everywhere(&CASES, at_entries).await;
    harness.again(&once, EVERY, crash_anywhere).await;
    harness.everywhere(&CASES.map(Case::slow), crash_anywhere).await;
    harness.close(400);
}

#[tokio::test(start_paused = true)]
async fn a_crash_around_every_call_and_then_answers_lost_in_recovery() {
    let mut harness = Harness::new(Database::Memory, "crash around every call, then answers lost in recovery");
    let once = harness.everywhere(&CASES, at_calls).await;
    harness.again(&once, 3, each_call(&[What::LoseAnswer])).await;
    let once = harness.everywhere(&CASES.map(Case::slow), at_acts(&[What::Crash])).await;
    harness.again(&once, 2, each_call(&[What::NeverAnswer])).await;
    harness.close(250);
}

#[tokio::test(start_paused = true)]
async fn every_act_delivered_twice() {
    let mut harness = Harness::new(Database::Memory, "every act delivered twice");
    harness.everywhere(&slow_too(), at_acts(&[What::Twice])).await;
    harness.close(30);
}

#[tokio::test(start_paused = true)]
async fn every_answer_lost() {
    let mut harness = Harness::new(Database::Memory, "every answer lost, then a crash after every entry");
    harness.everywhere(&CASES.map(Case::slow), each_call(&[What::LoseAnswer, What::NeverAnswer])).await;
    let lost = harness.everywhere(&CASES, each_call(&[What::LoseAnswer, What::NeverAnswer])).await;
    harness.again(&lost, 2, at_entries).await;
    harness.close(380);
}

#[tokio::test(start_paused = true)]
async fn every_call_refused_once_and_for_ever() {
    let mut harness = Harness::new(Database::Memory, "every call refused once, and for ever");
    harness.everywhere(&CASES, each_call(&[What::RefuseFromNowOn])).await;
    harness.everywhere(&slow_too(), each_call(&[ONCE])).await;
    harness.close(150);
}

/// For good, and then everything goes wrong while it is taken back.
#[tokio::test(start_paused = true)]
async fn every_call_refused_for_good_and_its_unwinding_disturbed() {
    let mut harness = Harness::new(Database::Memory, "every call refused for good, then its unwinding disturbed");
    let failed = harness.everywhere(&slow_too(), each_call(&[FOR_GOOD])).await;
    harness.again(&failed, EVERY, crash_at_record_or_act).await;
    harness.again(&failed, EVERY, at_acts(&[What::LoseAnswer, FOR_GOOD])).await;
    harness.close(700);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_after_every_entry_and_its_unwinding_disturbed() {
    let mut harness = Harness::new(Database::Memory, "canceled after every entry, then its unwinding disturbed");
    let crashed = harness.everywhere(&CASES, at_entries).await;
    let canceled = harness.canceled(&CASES, &crashed).await;
    harness.again(&canceled, EVERY, crash_at_record_or_act).await;
    harness.again(&canceled, EVERY, at_acts(&[What::LoseAnswer, ONCE, FOR_GOOD])).await;
    harness.close(340);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_during_every_call_and_its_unwinding_disturbed() {
    let mut harness = Harness::new(Database::Memory, "canceled during every call, then its unwinding disturbed");
    let canceled = harness.everywhere(&CASES.map(Case::slow), canceled_at).await;
    harness.again(&canceled, EVERY, crash_at_record_or_act).await;
    harness.again(&canceled, EVERY, at_acts(&[What::NeverAnswer])).await;
    harness.close(580);
}

async fn single_points(database: Database) {
    let mut harness = Harness::new(database, "crash anywhere, and again inside recovery");
    let crashed = harness.everywhere(&CASES, crash_anywhere).await;
    let at_entries: Vec<_> = crashed.into_iter().filter(|(job, _)| job.1.name.contains("entry")).collect();
    harness.again(&at_entries, 1, each_call(&[What::Crash])).await;
    harness.close(120);
    let mut harness = Harness::new(database, "every act twice, every answer lost, every call refused");
    harness.everywhere(&CASES, at_acts(&[What::Twice])).await;
    harness.everywhere(&CASES, each_call(&[What::LoseAnswer, FOR_GOOD])).await;
    harness.close(105);
    let mut harness = Harness::new(database, "canceled after every entry and during every call");
    harness.canceled(&CASES, &at_entries).await;
    harness.everywhere(&CASES, each_call(&[What::CancelBefore])).await;
    harness.close(95);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_single_point_on_sqlite() {
    single_points(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_single_point_on_postgres() {
    single_points(Database::Postgres).await;
}
