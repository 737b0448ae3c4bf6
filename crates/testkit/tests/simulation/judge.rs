//! The judge reads the fleet's own journal of effects, in the order in which they took effect, and the runs'
//! outcomes; it asks nobody how they came about.
//!
//! - One attempt of one step takes effect at most once, unless the machine lost its power over it.
//! - Of one execution, no effect carries a lower fence than one before it.
//! - Steps take effect in the plan's order, and what is taken back is taken back last.
//! - No two runs' effects interleave on one machine, and none comes after its run has ended. There are two
//!   exceptions, both documented and on record: a run that was terminated from outside, a call of which may have
//!   been in the air; and one whose step could not be stopped, which says so and asks for a person.
//! - A run that succeeded has had its effects; one that never started has had none.

use crate::nature::Nature;
use crate::rest::Books;
use crate::world::{CALL, World};
use domain::plan::{RmaAction, Step, StepKind};
use domain::run::{Run, RunPhase};
use sim::Effect;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::execution::{Execution, JournalRow, Status};

/// What somebody did to a machine, as opposed to what came of it.
const ACTS: &[&str] = &[
    "netboot",
    "reset",
    "power_off",
    "repave_started",
    "exec_started",
    "join_started",
    "net_applied",
    "return_opened",
];

/// When executions ended, by the true time. Told by the engines the moment it was durable.
#[derive(Default)]
pub struct Ends(Mutex<BTreeMap<String, Duration>>);

impl Ends {
    pub fn note(&self, execution: &str, at: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(execution.to_owned()).or_insert(at);
    }
}

/// An act, with whose it was.
struct Act<'a> {
    effect: &'a Effect,
    execution: &'a str,
    step: &'a str,
    fence: (u64, u64),
}

fn act(effect: &Effect) -> Option<Act<'_>> {
    if !ACTS.contains(&effect.kind.as_str()) {
        return None;
    }
    let (execution, rest) = effect.operation.split_once('.')?;
    let (step, _attempt) = rest.rsplit_once('.')?;
    let (epoch, counter) = effect.fence.split_once('.')?;
    Some(Act { effect, execution, step, fence: (epoch.parse().ok()?, counter.parse().ok()?) })
}

pub fn judge(world: &World, books: &Books, effects: &[Effect], ends: &Ends, began_micros: i64) {
    let nature = &world.nature;
    let acts: Vec<Act<'_>> = effects.iter().filter_map(act).collect();
    let asked = effects.iter().filter(|e| ACTS.contains(&e.kind.as_str())).count();
    if acts.len() != asked {
        nature.wrong("an act of nobody, or without a fence");
    }
    once_per_attempt(nature, effects);
    let ends = ends.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut by_execution: BTreeMap<&str, Vec<&Act<'_>>> = BTreeMap::new();
    acts.iter().for_each(|a| by_execution.entry(a.execution).or_default().push(a));
    for (execution, journal) in &books.executions {
        let Some((run, steps)) = books.runs.iter().find(|(r, _)| r.id.as_str() == execution.subject) else { continue };
        let own = by_execution.remove(execution.id.as_str()).unwrap_or_default();
        let cut = may_go_on(execution, journal);
        fences_rise(nature, execution, &own);
        in_order(nature, execution, steps, &own);
        if run.started_at.is_none() && !own.is_empty() {
            nature.wrong(format!("run {} never started, and had {} effects", run.id, own.len()));
        }
        if run.phase == RunPhase::Succeeded {
            succeeded(nature, run, execution, journal, steps, effects);
        }
        let at = |a: &Act<'_>| Duration::from_micros(u64::try_from(a.effect.at_micros - began_micros).unwrap_or(0));
        if let Some(end) = ends.get(execution.id.as_str()) {
            let most = if cut { *end + CALL * 2 } else { *end };
            let lied = |a: &Act<'_>| {
                effects
                    .iter()
                    .any(|e| e.operation == a.effect.operation && e.kind == "fault" && e.detail["rule"] == "lie:1")
            };
            // a device that says that it is done, and does it later, cannot be waited for
            for late in own.iter().filter(|a| at(a) > *end && !lied(a)) {
                if cut {
                    nature.count("effect: after its execution was terminated, or could not be stopped");
                }
                if at(late) > most {
                    nature.wrong(format!("{} of {} took effect after its end", late.effect.kind, execution.id));
                }
            }
        }
    }
    by_execution.keys().for_each(|e| nature.wrong(format!("effects of an execution that is not there: {e}")));
    no_interleaving(nature, books, &acts);
    nothing_goes_on(nature, books, effects);
}

fn once_per_attempt(nature: &Nature, effects: &[Effect]) {
    let mut seen: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for e in effects {
        if e.kind == "power_lost" {
            // what was under way there is gone, and leaves nothing to be seen: it is rightly done again
            seen.retain(|(machine, _, _), _| *machine != e.machine);
        }
        if !ACTS.contains(&e.kind.as_str()) {
            continue;
        }
        if let Some(first) = seen.insert((&e.machine, &e.kind, &e.operation), e.number) {
            nature.wrong(format!("{} of {} took effect twice: effects {first} and {}", e.kind, e.operation, e.number));
        }
    }
}

fn fences_rise(nature: &Nature, execution: &Execution, own: &[&Act<'_>]) {
    for pair in own.windows(2) {
        if pair[1].fence < pair[0].fence {
            let (late, before) = (pair[1].effect, pair[0].effect);
            nature.wrong(format!(
                "{}: {} with fence {} took effect after {} with fence {}",
                execution.id, late.kind, late.fence, before.kind, before.fence
            ));
        }
    }
}

fn in_order(nature: &Nature, execution: &Execution, steps: &[Step], own: &[&Act<'_>]) {
    let place = |a: &Act<'_>| steps.iter().position(|s| s.name == a.step);
    for pair in own.windows(2) {
        if place(pair[1]) < place(pair[0]) {
            nature.wrong(format!("{}: step {} took effect after {}", execution.id, pair[1].step, pair[0].step));
        }
    }
}

fn no_interleaving(nature: &Nature, books: &Books, acts: &[Act<'_>]) {
    let cut: BTreeSet<&str> =
        books.executions.iter().filter(|(e, journal)| may_go_on(e, journal)).map(|(e, _)| e.id.as_str()).collect();
    let mut on: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for a in acts.iter().filter(|a| !cut.contains(a.execution)) {
        let order = on.entry(a.effect.machine.as_str()).or_default();
        match order.iter().position(|e| *e == a.execution) {
            None => order.push(a.execution),
            Some(n) if n + 1 == order.len() => {}
            Some(_) => {
                let e = a.effect;
                nature.wrong(format!("{} of {} on {} interleaves with another run's", e.kind, e.operation, e.machine));
            }
        }
    }
}

/// What a run that succeeded must have left in the world.
fn succeeded(
    nature: &Nature,
    run: &Run,
    execution: &Execution,
    journal: &[JournalRow],
    steps: &[Step],
    effects: &[Effect],
) {
    for step in steps {
        let stage = format!("{}.{}.", execution.id, step.name);
        let own = |kind: &str| {
            effects.iter().filter(|e| e.kind == kind && e.operation.starts_with(&stage)).collect::<Vec<_>>()
        };
        let ever = |kind: &str| effects.iter().any(|e| e.kind == kind && e.machine == run.machine_id.as_str());
        let done = match &step.kind {
            StepKind::Repave { .. } => own("repaved").len() == 1,
            StepKind::Reboot { .. } => !own("reset").is_empty(),
            StepKind::Ssh { .. } => {
                let well = own("exec_finished").iter().filter(|e| e.detail["exit_code"] == 0).count();
                (1..=1 + unseen(nature, journal, &step.name)).contains(&well)
            }
            StepKind::Join { .. } => ever("joined"),
            StepKind::Net { parameters } => effects.iter().any(|e| {
                e.kind == "net_applied"
                    && e.machine == run.machine_id.as_str()
                    && parameters.iter().all(|(k, v)| e.detail["parameters"][k] == *v)
            }),
            StepKind::Rma { action: RmaAction::Return, .. } => ever("return_opened"),
            StepKind::Rma { action: RmaAction::Shutdown, .. } => ever("power_off") || ever("power_lost"),
            StepKind::Rma { action: RmaAction::DrainCheck, .. }
            | StepKind::Netboot { .. }
            | StepKind::Verify { .. } => true,
        };
        if !done {
            nature.wrong(format!("run {} succeeded, and step {} left nothing in the world", run.id, step.name));
        }
    }
}

/// Whether something of an execution may go on after its end, as documented.
fn may_go_on(execution: &Execution, journal: &[JournalRow]) -> bool {
    let aborted = journal.iter().rev().find(|row| row.entry == "aborted");
    let detail = aborted.and_then(|row| serde_json::from_str::<serde_json::Value>(&row.detail).ok());
    execution.status == Status::Terminated || detail.is_some_and(|detail| !detail["failed"].is_null())
}

/// Attempts at a step whose whole time passed before anybody saw them end: a command of such a one may have run
/// to its end all the same, and is run again.
fn unseen(nature: &Nature, journal: &[JournalRow], step: &str) -> usize {
    let timed_out = |row: &&JournalRow| {
        let detail: serde_json::Value = serde_json::from_str(&row.detail).unwrap_or_default();
        row.entry == "attempt_failed" && detail["stage"] == step && detail["failure"]["code"] == "STEP_TIMED_OUT"
    };
    let count = journal.iter().filter(timed_out).count();
    nature.count_many("attempt: nobody saw it end", count as u64);
    count
}

/// What was begun on a machine has ended: finished, aborted, killed, or cut off by the machine's own power.
fn nothing_goes_on(nature: &Nature, books: &Books, effects: &[Effect]) {
    let cut =
        |e: &Effect| books.executions.iter().any(|(x, j)| e.operation.starts_with(x.id.as_str()) && may_go_on(x, j));
    let mut under_way: BTreeMap<(&str, &str), &Effect> = BTreeMap::new();
    for e in effects {
        let machine = e.machine.as_str();
        match e.kind.as_str() {
            "repave_started" => drop(under_way.insert((machine, "repave"), e)),
            "repaved" | "repave_aborted" => drop(under_way.remove(&(machine, "repave"))),
            "reset" | "power_off" | "power_lost" => drop(under_way.remove(&(machine, "repave"))),
            _ => {}
        }
    }
    for e in under_way.values().filter(|e| !cut(e)) {
        nature.wrong(format!("{} on {} is still under way", e.operation, e.machine));
    }
}
