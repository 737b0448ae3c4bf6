//! The states beside the projected one, in short texts: what is wanted of a machine or a run, and what
//! the engine is doing with it.

use domain::machine::Machine;
use domain::run::Run;
use domain::stage::Position;
use store::execution::{Execution, Status, attempt_of};

/// What the control plane wants of a machine.
pub fn desired_of_machine(m: &Machine) -> String {
    match &m.active_run {
        Some(run) if !run.phase.is_terminal() => {
            let kind = if run.run_type.is_empty() { "run" } else { &run.run_type };
            format!("{kind} requested ({})", run.id)
        }
        Some(_) | None => format!("{} (set by {} at {})", m.phase, m.phase_set_by, m.phase_set_at),
    }
}

/// What the engine is doing with a machine right now.
pub fn execution_of_machine(m: &Machine) -> String {
    match &m.active_run {
        Some(run) if !run.phase.is_terminal() => {
            let step =
                if run.current_step.is_empty() { String::new() } else { format!(" at step {}", run.current_step) };
            format!("run {} {}{step}", run.id, run.phase)
        }
        Some(_) | None => String::new(),
    }
}

/// What the control plane wants of a run.
pub fn desired_of_run(run: &Run, execution: Option<&Execution>) -> String {
    if run.phase.is_terminal() {
        return String::new();
    }
    match execution.and_then(|e| e.cancel.as_ref()) {
        Some(cancel) => format!("CANCELED (asked by {})", cancel.by),
        None => format!("SUCCEEDED, with machine {} as plan {} leaves it", run.machine_id, run.plan_id),
    }
}

/// What the engine is doing with a run right now.
pub fn execution_of_run(run: &Run, execution: Option<&Execution>) -> String {
    match execution {
        None if run.phase.is_terminal() => String::new(),
        None => "missing".to_owned(),
        Some(e) => {
            let at = match e.position {
                Position::Start => "before its first step".to_owned(),
                Position::Stage { .. } => format!("at step {}, attempt {}", e.stage, attempt_of(e.position)),
                Position::Undo { .. } => format!("taking back: {}, attempt {}", e.stage, attempt_of(e.position)),
            };
            match e.status {
                Status::Ready | Status::Running | Status::Waiting => {
                    format!("execution {} {} {at}", e.id, e.status.as_str())
                }
                Status::Done | Status::Failed | Status::Canceled | Status::Terminated => {
                    format!("execution {} ended as {}", e.id, e.status.as_str())
                }
            }
        }
    }
}

/// What was last seen of a run's work.
pub fn observed_of_run(run: &Run, execution: Option<&Execution>) -> String {
    let step = run.steps.iter().find(|s| s.name == run.current_step);
    let said = match (execution, step) {
        (Some(e), _) if !e.waiting_for.is_empty() && !e.status.is_terminal() => {
            format!("waiting for {}", e.waiting_for)
        }
        (_, Some(step)) if !step.message.is_empty() => format!("step {}: {}", step.name, step.message),
        (_, _) => run.error.as_ref().map_or(String::new(), |e| e.message.clone()),
    };
    match execution {
        Some(e) if !said.is_empty() => format!("{said} (seen at {})", e.updated_at),
        Some(_) | None => said,
    }
}
