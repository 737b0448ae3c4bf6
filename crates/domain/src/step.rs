//! One step of a run and its four states. A retry is an edge from RUNNING to itself, so that it is on record.

use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepState {
    Waiting,
    Running,
    Succeeded,
    Failed,
}

pub const STEP_STARTED: &str = "step_started";
pub const STEP_RETRYING: &str = "step_retrying";
pub const STEP_ENDED: &str = "step_ended";

const fn executor(from: StepState, to: StepState, trigger: &'static str) -> Edge<StepState> {
    Edge { from: Some(from), to, trigger, owner: Owner::Executor, guard: Guard::None }
}

static EDGES: &[Edge<StepState>] = &[
    executor(StepState::Waiting, StepState::Running, STEP_STARTED),
    executor(StepState::Running, StepState::Running, STEP_RETRYING),
    executor(StepState::Running, StepState::Succeeded, STEP_ENDED),
    executor(StepState::Running, StepState::Failed, STEP_ENDED),
];

impl State for StepState {
    const ENTITY: &'static str = "step";
    const ALL: &'static [Self] = &[StepState::Waiting, StepState::Running, StepState::Succeeded, StepState::Failed];

    fn as_str(self) -> &'static str {
        match self {
            StepState::Waiting => "WAITING",
            StepState::Running => "RUNNING",
            StepState::Succeeded => "SUCCEEDED",
            StepState::Failed => "FAILED",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            StepState::Running => Deadline::AttemptTimeout,
            // WAITING is at rest: the run it belongs to has the deadline.
            StepState::Waiting | StepState::Succeeded | StepState::Failed => Deadline::AtRest,
        }
    }
}

impl fmt::Display for StepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepStatus {
    pub name: String,
    pub state: StepState,
    pub retry_count: u32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub message: String,
}

impl StepStatus {
    pub fn waiting(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: StepState::Waiting,
            retry_count: 0,
            started_at: None,
            finished_at: None,
            message: String::new(),
        }
    }
}
