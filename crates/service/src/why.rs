//! What an active run waits for, in one sentence.

use domain::Timestamp;
use domain::run::{Run, RunPhase};
use domain::stage::Position;
use store::execution::{Execution, Status};
use store::switch::Freeze;

pub(crate) fn why(run: &Run, execution: Option<&Execution>, frozen: Option<&Freeze>, now: Timestamp) -> String {
    if run.phase.is_terminal() {
        return String::new();
    }
    let Some(e) = execution else {
        return "its execution is missing: an operator must look (millwright engine list)".to_owned();
    };
    let mut parts = Vec::new();
    if let Some(cancel) = &e.cancel {
        parts.push(format!("cancel requested by {}", cancel.by));
    }
    if let Some(freeze) = frozen {
        parts.push(format!("all automation is frozen by {}: {}", freeze.by, freeze.reason));
    }
    parts.push(at_hand(e, now));
    if run.phase == RunPhase::Running
        && let Position::Stage { attempt, .. } = e.position
    {
        parts.push(format!("attempt {attempt} has until {}", e.deadline));
    }
    parts.join("; ")
}

/// What is being done, or waited for, right now.
pub(crate) fn at_hand(e: &Execution, now: Timestamp) -> String {
    match e.status {
        Status::Running => doing(e),
        Status::Ready | Status::Waiting => sleeping(e, now),
        Status::Done | Status::Failed | Status::Canceled | Status::Terminated => {
            format!("its execution has ended as {}", e.status.as_str())
        }
    }
}

fn doing(e: &Execution) -> String {
    match e.position {
        Position::Start => "a worker has it and is about to begin".to_owned(),
        Position::Stage { attempt, .. } => format!("a worker is at step {}, attempt {attempt}", e.stage),
        Position::Undo { attempt, .. } => format!("a worker is at {}, attempt {attempt}", e.stage),
    }
}

fn sleeping(e: &Execution, now: Timestamp) -> String {
    let on = if e.waiting_for.is_empty() { "a free worker" } else { &e.waiting_for };
    if e.wake_at > now {
        format!("waiting for {on}; looks again at {}", e.wake_at)
    } else {
        format!("waiting for {on}")
    }
}
