//! The verdict, from the fleet's own journal and the clients' ledger: what every request has done to its
//! machine, each thing once, in order, and nothing after its client was told of the end.

use crate::ledger::{Book, ToldRun};
use crate::load::TAG;
use proto::baremetal::v1::run::Phase;
use serde_json::Value;
use sim::Effect;
use std::collections::{BTreeMap, BTreeSet};

/// What a run of the plan does, in this order.
const ACTS: [&str; 5] = ["net_applied", "exec_started", "netboot", "repave_started", "reset"];
/// What comes of it by itself.
const ENDS: [&str; 3] = ["exec_finished", "repaved", "booted"];
/// What a canceled run may do to stop and to take back.
const UNDOING: [&str; 3] = ["exec_killed", "repave_aborted", "clear_netboot"];

#[derive(Debug, Default)]
pub struct Counts {
    pub succeeded: usize,
    pub canceled: usize,
    #[allow(dead_code)] // shown at the end
    pub effects: usize,
}

pub fn give(effects: &[Effect], book: &Book) -> Counts {
    let mut counts = Counts { effects: effects.len(), ..Counts::default() };
    let mut by_execution: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in effects.iter().filter(|e| !e.operation.is_empty()) {
        let execution = effect.operation.split('.').next().expect("an execution");
        by_execution.entry(execution).or_default().push(effect);
    }
    let mut done: BTreeMap<&str, &Vec<&Effect>> = BTreeMap::new();
    for (execution, effects) in &by_execution {
        let request =
            tag(effects).unwrap_or_else(|| panic!("{execution} did not begin at the beginning: {effects:#?}"));
        assert!(book.runs.contains_key(request), "{execution} was done for {request}, which nobody was answered for");
        let twice = done.insert(request, effects);
        assert!(twice.is_none(), "{request} was carried out twice: {twice:#?} and {effects:#?}");
    }
    for (request, run) in &book.runs {
        let effects = done.get(request.as_str()).map(|e| e.as_slice()).unwrap_or_default();
        check_common(request, run, effects);
        match run.phase {
            Phase::Succeeded => {
                check_succeeded(request, run, effects);
                counts.succeeded += 1;
            }
            Phase::Canceled => {
                assert!(run.cancel_asked, "{request} was canceled, and its client never asked for it");
                check_canceled(request, run, effects);
                counts.canceled += 1;
            }
            Phase::Failed | Phase::Pending | Phase::Running | Phase::Unspecified => {
                panic!("{request} is no run that came to its end: {run:?}, {effects:#?}")
            }
        }
    }
    counts
}

/// The request that the first step has written onto the machine, or is about to.
fn tag<'a>(effects: &[&'a Effect]) -> Option<&'a str> {
    let first = effects.first()?;
    let applied = match first.kind.as_str() {
        "net_applied" => &first.detail,
        "deferred" => &first.detail["change"]["detail"],
        _ => &Value::Null,
    };
    applied["parameters"][TAG].as_str()
}

fn of_kinds<'a>(effects: &[&'a Effect], kinds: &[&str]) -> Vec<&'a Effect> {
    effects.iter().copied().filter(|e| kinds.contains(&e.kind.as_str())).collect()
}

fn check_common(request: &str, run: &ToldRun, effects: &[&Effect]) {
    let strangers: BTreeSet<&str> =
        effects.iter().map(|e| e.machine.as_str()).filter(|m| *m != run.machine_id).collect();
    assert!(strangers.is_empty(), "{request} touched {strangers:?}");
    let known = |kind: &str| kind == "deferred" || [&ACTS[..], &ENDS, &UNDOING].concat().contains(&kind);
    let unknown: Vec<_> = effects.iter().filter(|e| !known(&e.kind)).collect();
    assert!(unknown.is_empty(), "{request} did what is not in its plan: {unknown:#?}");
    let acts = of_kinds(effects, &ACTS);
    let kinds: Vec<&str> = acts.iter().map(|e| e.kind.as_str()).collect();
    assert!(ACTS.starts_with(&kinds), "{request}: each act once and in order, but: {kinds:?}\n{effects:#?}");
    for pair in acts.windows(2) {
        assert!(fence(pair[0]) <= fence(pair[1]), "{request}: an older holder has acted after a newer one: {pair:#?}");
    }
    let told = run.ended_at.unwrap_or_else(|| panic!("{request} has not come to rest: {run:?}"));
    let late: Vec<_> = acts.iter().filter(|e| e.at_micros > told).collect();
    assert!(late.is_empty(), "{request} went on after its end was told at {told}: {late:#?}");
}

fn check_succeeded(request: &str, run: &ToldRun, effects: &[&Effect]) {
    let mut kinds: Vec<&str> = effects.iter().map(|e| e.kind.as_str()).filter(|k| *k != "deferred").collect();
    kinds.sort_unstable();
    let mut expected = [&ACTS[..], &ENDS].concat();
    expected.sort_unstable();
    assert_eq!(kinds, expected, "{request}: all of it, and once\n{effects:#?}");
    let retried: Vec<_> = effects.iter().filter(|e| !e.operation.ends_with(".1")).collect();
    assert!(retried.is_empty(), "{request}: no attempt fails because a server was away: {retried:#?}");
    let early = effects.iter().find(|e| run.ended_at.is_some_and(|told| e.at_micros > told));
    assert!(early.is_none(), "{request} was called done before it was: {early:#?}");
}

fn check_canceled(request: &str, run: &ToldRun, effects: &[&Effect]) {
    let next_boot = of_kinds(effects, &["netboot", "clear_netboot", "reset"]);
    let left = next_boot.last().is_some_and(|e| e.kind == "netboot");
    assert!(!left, "{request} was canceled and its boot override is still set: {run:?}\n{effects:#?}");
}

/// Fences are `epoch.counter`.
fn fence(effect: &Effect) -> (u64, u64) {
    let parsed = effect.fence.split_once('.').and_then(|(epoch, n)| Some((epoch.parse().ok()?, n.parse().ok()?)));
    parsed.unwrap_or_else(|| panic!("no fence on {effect:?}"))
}
