//! A run: one plan applied to one machine, as the customer sees it. A run is a pure fold of its log
//! rows: [`Run::apply`] is used when a change is written and when an old moment is shown again.
//!
//! ```text
//!   PENDING ──executor──▶ RUNNING ──executor──▶ SUCCEEDED | FAILED | CANCELED
//!      └────────────── cancel before start ──────────────────────────▶┘
//! ```

use crate::error::Error;
use crate::id::{MachineId, RunId};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::step::{StepState, StepStatus};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Canceled,
}

pub const REQUESTED: &str = "requested";
pub const STARTED: &str = "started";
pub const FINISHED: &str = "finished";
pub const CANCELED_EARLY: &str = "canceled_before_start";

/// A run that nobody starts in this time (a freeze that was forgotten, no server with its provider) ends.
pub const START_WITHIN: Duration = Duration::from_secs(24 * 3600);

const fn executor(from: RunPhase, to: RunPhase, trigger: &'static str) -> Edge<RunPhase> {
    Edge { from: Some(from), to, trigger, owner: Owner::Executor, guard: Guard::None }
}

static EDGES: &[Edge<RunPhase>] = &[
    Edge { from: None, to: RunPhase::Pending, trigger: REQUESTED, owner: Owner::Operator, guard: Guard::None },
    executor(RunPhase::Pending, RunPhase::Running, STARTED),
    executor(RunPhase::Pending, RunPhase::Canceled, CANCELED_EARLY),
    executor(RunPhase::Running, RunPhase::Succeeded, FINISHED),
    executor(RunPhase::Running, RunPhase::Failed, FINISHED),
    executor(RunPhase::Running, RunPhase::Canceled, FINISHED),
];

impl State for RunPhase {
    const ENTITY: &'static str = "run";
    const ALL: &'static [Self] =
        &[RunPhase::Pending, RunPhase::Running, RunPhase::Succeeded, RunPhase::Failed, RunPhase::Canceled];

    fn as_str(self) -> &'static str {
        match self {
            RunPhase::Pending => "PENDING",
            RunPhase::Running => "RUNNING",
            RunPhase::Succeeded => "SUCCEEDED",
            RunPhase::Failed => "FAILED",
            RunPhase::Canceled => "CANCELED",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            RunPhase::Pending => Deadline::StartWithin(START_WITHIN),
            RunPhase::Running => Deadline::StepBudgets,
            RunPhase::Succeeded | RunPhase::Failed | RunPhase::Canceled => Deadline::AtRest,
        }
    }
}

impl RunPhase {
    pub const fn is_terminal(self) -> bool {
        match self {
            RunPhase::Pending | RunPhase::Running => false,
            RunPhase::Succeeded | RunPhase::Failed | RunPhase::Canceled => true,
        }
    }
}

impl fmt::Display for RunPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operations a caller can name. `None` on a run: only a plan was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunType {
    Repave,
    Rma,
    Reboot,
    Upgrade,
    NetReconfig,
}

impl fmt::Display for RunType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RunType {
    pub const ALL: [RunType; 5] =
        [RunType::Repave, RunType::Rma, RunType::Reboot, RunType::Upgrade, RunType::NetReconfig];

    pub const fn as_str(self) -> &'static str {
        match self {
            RunType::Repave => "REPAVE",
            RunType::Rma => "RMA",
            RunType::Reboot => "REBOOT",
            RunType::Upgrade => "UPGRADE",
            RunType::NetReconfig => "NET_RECONFIG",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|t| t.as_str() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|t| t.as_str()).collect();
            Error::new(
                crate::error::Reason::UnknownRunType,
                format!("type: {text:?} is unknown; use one of {}", known.join(", ")),
            )
            .with("field", "type")
            .allowing(known)
        })
    }
}

/// Why a run ended as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError {
    /// Stable, e.g. `STEP_TIMED_OUT`.
    pub code: String,
    pub class: String,
    pub message: String,
    /// Whether starting the same run again may help.
    pub retryable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub id: RunId,
    pub machine_id: MachineId,
    /// Whose the machine was when it was requested; empty: nobody's. It stays theirs when the machine changes hands.
    pub customer_id: String,
    pub request_id: String,
    pub run_type: Option<RunType>,
    pub plan_id: String,
    pub phase: RunPhase,
    pub steps: Vec<StepStatus>,
    pub current_step: String,
    pub parameters: BTreeMap<String, String>,
    pub error: Option<RunError>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// One for each change, so a fold knows whether it is whole.
    pub version: u64,
}

/// One change of a run: what its log row says beyond the states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunChange {
    Requested {
        machine_id: MachineId,
        customer_id: String,
        request_id: String,
        run_type: Option<RunType>,
        plan_id: String,
        steps: Vec<String>,
        parameters: BTreeMap<String, String>,
    },
    Started,
    StepStarted {
        step: String,
    },
    StepRetrying {
        step: String,
        retry_count: u32,
        message: String,
    },
    StepSucceeded {
        step: String,
        message: String,
    },
    StepFailed {
        step: String,
        message: String,
    },
    Finished {
        phase: RunPhase,
        error: Option<RunError>,
    },
}

/// A log that does not fold: the corruption detector's finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFold(pub String);

impl Run {
    /// The first row of a run's log.
    pub fn requested(id: RunId, at: Timestamp, change: &RunChange) -> Result<Run, BadFold> {
        let RunChange::Requested { machine_id, customer_id, request_id, run_type, plan_id, steps, parameters } = change
        else {
            return Err(BadFold(format!("the log of {id} does not begin with its request but with {change:?}")));
        };
        Ok(Run {
            id,
            machine_id: machine_id.clone(),
            customer_id: customer_id.clone(),
            request_id: request_id.clone(),
            run_type: *run_type,
            plan_id: plan_id.clone(),
            phase: RunPhase::Pending,
            steps: steps.iter().map(|name| StepStatus::waiting(name)).collect(),
            current_step: String::new(),
            parameters: parameters.clone(),
            error: None,
            created_at: at,
            started_at: None,
            finished_at: None,
            version: 1,
        })
    }

    /// Every later row.
    pub fn apply(&mut self, at: Timestamp, change: &RunChange) -> Result<(), BadFold> {
        match change {
            RunChange::Requested { .. } => return Err(BadFold(format!("{} was requested twice", self.id))),
            RunChange::Started => {
                self.phase = RunPhase::Running;
                self.started_at = Some(at);
            }
            RunChange::StepStarted { step } => {
                let status = self.step_mut(step)?;
                status.state = StepState::Running;
                status.started_at = Some(at);
                step.clone_into(&mut self.current_step);
            }
            RunChange::StepRetrying { step, retry_count, message } => {
                let status = self.step_mut(step)?;
                status.retry_count = *retry_count;
                message.clone_into(&mut status.message);
            }
            RunChange::StepSucceeded { step, message } => {
                let status = self.step_mut(step)?;
                status.state = StepState::Succeeded;
                status.finished_at = Some(at);
                message.clone_into(&mut status.message);
            }
            RunChange::StepFailed { step, message } => {
                let status = self.step_mut(step)?;
                status.state = StepState::Failed;
                status.finished_at = Some(at);
                message.clone_into(&mut status.message);
            }
            RunChange::Finished { phase, error } => {
                self.phase = *phase;
                self.error.clone_from(error);
                self.finished_at = Some(at);
                if *phase == RunPhase::Succeeded {
                    self.current_step.clear();
                }
            }
        }
        self.version += 1;
        Ok(())
    }

    pub fn step(&self, name: &str) -> Option<&StepStatus> {
        self.steps.iter().find(|s| s.name == name)
    }

    fn step_mut(&mut self, name: &str) -> Result<&mut StepStatus, BadFold> {
        let id = self.id.clone();
        self.steps.iter_mut().find(|s| s.name == name).ok_or_else(|| BadFold(format!("{id} has no step {name:?}")))
    }

    pub fn type_text(&self) -> &'static str {
        self.run_type.map_or("", RunType::as_str)
    }
}

impl RunChange {
    /// One line for a person who follows the run.
    pub fn describe(&self) -> String {
        let with = |head: String, message: &str| if message.is_empty() { head } else { format!("{head}: {message}") };
        match self {
            RunChange::Requested { .. } => "requested".to_owned(),
            RunChange::Started => "started".to_owned(),
            RunChange::StepStarted { step } => format!("step {step} started"),
            RunChange::StepRetrying { step, retry_count, message } => {
                with(format!("step {step} retry {retry_count}"), message)
            }
            RunChange::StepSucceeded { step, message } => with(format!("step {step} succeeded"), message),
            RunChange::StepFailed { step, message } => with(format!("step {step} failed"), message),
            RunChange::Finished { phase, error } => {
                let verb = match phase {
                    RunPhase::Succeeded => "succeeded",
                    RunPhase::Failed => "failed",
                    RunPhase::Canceled => "canceled",
                    RunPhase::Pending | RunPhase::Running => "changed",
                };
                with(verb.to_owned(), error.as_ref().map_or("", |e| e.message.as_str()))
            }
        }
    }
}
