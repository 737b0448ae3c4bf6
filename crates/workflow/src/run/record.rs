//! How a run and its machine follow the engine, in the transaction of the journal entry.

use crate::install;
use domain::condition::{self, Condition, ConditionType};
use domain::lifecycle::State;
use domain::limits::short;
use domain::machine::{Machine, Phase, RUN_CANCELED_EARLY, RUN_ENDED, RUN_STARTED, phase_after_success};
use domain::plan::{Step, StepKind};
use domain::run::{Run, RunChange, RunError, RunPhase};
use domain::stage::Ending;
use domain::step::StepState;
use domain::{Error, ExecutionId, RunId};
use engine::{Event, Failure};
use store::execution::{self, Execution};
use store::machine::PhaseChange;
use store::{Cause, Tx, TxResult, machine, run};

/// The actor of everything that the engine does by itself.
const EXECUTOR: &str = "executor";

fn gone(what: &str, id: impl std::fmt::Display) -> Error {
    Error::internal(format!("{what} {id} is not in the store"))
}

pub(super) fn events(
    tx: &mut Tx<'_>,
    run_id: &RunId,
    execution: &ExecutionId,
    steps: &[Step],
    events: &[Event],
) -> TxResult<()> {
    if events.is_empty() {
        return Ok(());
    }
    if events.iter().any(|e| matches!(e, Event::Ended { .. })) {
        install::close_with_run(tx, run_id)?;
    }
    let mut run = run::get(tx, run_id)?.ok_or_else(|| gone("run", run_id))?;
    // rows are always locked in this order: boot node, machine, run, execution
    let touches_machine = events.iter().any(|e| matches!(e, Event::Started | Event::Ended { .. }));
    let machine = if touches_machine {
        Some(machine::get_for_update(tx, &run.machine_id)?.ok_or_else(|| gone("machine", &run.machine_id))?)
    } else {
        None
    };
    let name = |index: usize| steps.get(index).map_or(String::new(), |s| s.name.clone());
    let mut changes = Vec::new();
    for event in events {
        match event {
            Event::Started => {
                changes.push(RunChange::Started);
                if let Some(machine) = &machine {
                    start_machine(tx, machine, &run)?;
                }
            }
            Event::Entered { index } => changes.push(RunChange::StepStarted { step: name(*index) }),
            Event::Retrying { index, retry, failure, at } => changes.push(RunChange::StepRetrying {
                step: name(*index),
                retry_count: *retry,
                message: format!("attempt {retry} failed: {}; tries again at {at}", short(&failure.message)),
            }),
            Event::Done { index, message } => {
                changes.push(RunChange::StepSucceeded { step: name(*index), message: short(message) });
            }
            Event::Failed { index, message } => {
                changes.push(RunChange::StepFailed { step: name(*index), message: short(message) });
            }
            Event::Ended { ending, failure, not_undone } => {
                let machine = machine.as_ref().ok_or_else(|| gone("machine", &run.machine_id))?;
                end(tx, machine, &run, execution, steps, &End { ending: *ending, failure, not_undone }, &mut changes)?;
            }
        }
    }
    run::change(tx, &mut run, &changes, EXECUTOR)
}

fn start_machine(tx: &mut Tx<'_>, machine: &Machine, run: &Run) -> TxResult<()> {
    let change = PhaseChange {
        to: Phase::Provisioning,
        active_run: Some(run.id.clone()),
        previous_phase: Some(machine.phase),
        conditions: machine.conditions.clone(),
    };
    let cause = Cause::executor(EXECUTOR, RUN_STARTED, &format!("run {}", run.id));
    machine::set_phase(tx, machine, &change, &cause, |_| Ok(())).map(drop)
}

struct End<'a> {
    ending: Ending,
    failure: &'a Option<Failure>,
    not_undone: &'a [String],
}

fn end(
    tx: &mut Tx<'_>,
    machine: &Machine,
    run: &Run,
    execution: &ExecutionId,
    steps: &[Step],
    end: &End<'_>,
    changes: &mut Vec<RunChange>,
) -> TxResult<()> {
    let left = if end.not_undone.is_empty() {
        String::new()
    } else {
        format!("; could not be taken back: {}", end.not_undone.join("; "))
    };
    let (phase, error) = match end.ending {
        Ending::Done => (RunPhase::Succeeded, None),
        Ending::Failed => (RunPhase::Failed, Some(failed(run, end.failure.as_ref(), &left))),
        Ending::Canceled => {
            let by = execution::get(tx, execution)?.and_then(|e| e.cancel);
            let (by, reason) = by.map_or(("somebody".to_owned(), String::new()), |c| (c.by, c.reason));
            (RunPhase::Canceled, Some(canceled("CANCELED", &by, &reason, &left)))
        }
    };
    // a run that never started still passes through RUNNING when it fails
    let started = run.phase == RunPhase::Running || changes.contains(&RunChange::Started);
    if !started && phase == RunPhase::Failed {
        changes.push(RunChange::Started);
    }
    let needs_person = phase == RunPhase::Failed || !end.not_undone.is_empty();
    let message = error.as_ref().map_or(String::new(), |e| e.message.clone());
    changes.push(RunChange::Finished { phase, error });
    let kinds: Vec<StepKind> = steps.iter().map(|s| s.kind.clone()).collect();
    finish_machine(tx, machine, run, phase, needs_person.then_some(message.as_str()), &kinds, started)
}

fn failed(run: &Run, failure: Option<&Failure>, left: &str) -> RunError {
    let step = if run.current_step.is_empty() { String::new() } else { format!("step {}: ", run.current_step) };
    match failure {
        Some(f) => RunError {
            code: f.code.clone(),
            class: f.class.to_string(),
            message: short(&format!("{step}{}{left}", f.message)),
            retryable: f.class.may_pass(),
        },
        None => RunError {
            code: "FAILED".into(),
            class: String::new(),
            message: format!("{step}failed{left}"),
            retryable: false,
        },
    }
}

fn canceled(code: &str, by: &str, reason: &str, left: &str) -> RunError {
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let verb = if code == "TERMINATED" { "terminated" } else { "canceled" };
    RunError {
        code: code.to_owned(),
        class: String::new(),
        message: format!("{verb} by {by}{because}{left}"),
        retryable: true,
    }
}

/// Lets the machine go, into the phase that the end of the run calls for.
fn finish_machine(
    tx: &mut Tx<'_>,
    machine: &Machine,
    run: &Run,
    ended: RunPhase,
    needs_person: Option<&str>,
    steps: &[StepKind],
    started: bool,
) -> TxResult<()> {
    let now = tx.now();
    let before = machine.previous_phase.unwrap_or(machine.phase);
    let to = match ended {
        RunPhase::Succeeded => phase_after_success(before, steps),
        RunPhase::Failed | RunPhase::Canceled | RunPhase::Pending | RunPhase::Running => Phase::Maintenance,
    };
    let mut conditions = machine.conditions.clone();
    let had = machine.condition(ConditionType::NeedsIntervention);
    if let Some(message) = needs_person {
        let mut condition = Condition::new(ConditionType::NeedsIntervention, true, "RunFailed", now);
        message.clone_into(&mut condition.message);
        condition::set(&mut conditions, condition);
    } else if ended == RunPhase::Succeeded && had {
        condition::set(&mut conditions, Condition::new(ConditionType::NeedsIntervention, false, "RunSucceeded", now));
    }
    let trigger = if started || ended == RunPhase::Failed { RUN_ENDED } else { RUN_CANCELED_EARLY };
    let cause = Cause::executor(EXECUTOR, trigger, &format!("run {} {}", run.id, ended.as_str()));
    let mut machine = machine.clone();
    if !started && ended == RunPhase::Failed {
        start_machine(tx, &machine, run)?;
        machine.phase = Phase::Provisioning;
        machine.version += 1;
    }
    let change = PhaseChange { to, active_run: None, previous_phase: None, conditions };
    match machine::set_phase(tx, &machine, &change, &cause, |_| Ok(()))? {
        store::Moved::Moved => Ok(()),
        // already where it belongs (a canceled run on a machine in MAINTENANCE): only the hold is given up
        store::Moved::AlreadyThere => machine::set_hold(tx, &machine, None, &change.conditions),
    }
}

/// Somebody ended the execution without running its code: the rows say so, and a person should look.
pub(super) fn ended_from_outside(tx: &mut Tx<'_>, execution: &Execution, by: &str, reason: &str) -> TxResult<()> {
    let run_id = RunId::from_text(execution.subject.clone());
    install::close_with_run(tx, &run_id)?;
    let machine =
        machine::get_for_update(tx, &execution.machine_id)?.ok_or_else(|| gone("machine", &execution.machine_id))?;
    let mut run = run::get(tx, &run_id)?.ok_or_else(|| gone("run", &run_id))?;
    let started = run.phase == RunPhase::Running;
    let code = if started { "TERMINATED" } else { "CANCELED" };
    let error = canceled(code, by, reason, "");
    let message = error.message.clone();
    let mut changes = Vec::new();
    for step in run.steps.iter().filter(|s| s.state == StepState::Running) {
        changes.push(RunChange::StepFailed { step: step.name.clone(), message: message.clone() });
    }
    changes.push(RunChange::Finished { phase: RunPhase::Canceled, error: Some(error) });
    finish_machine(tx, &machine, &run, RunPhase::Canceled, started.then_some(message.as_str()), &[], started)?;
    run::change(tx, &mut run, &changes, by)
}
