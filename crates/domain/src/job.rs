//! A job: the operator's view of a staged operation on a node. Each attempt is one execution of the engine; the job
//! outlives its attempts, and says at every moment what comes next and what can be done.

use crate::id::{ExecutionId, JobId, NodeId};
use crate::job_stage::{JobKind, JobStage, Mode, Undo};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::stage::FailureClass;
use crate::time::Timestamp;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobStatus {
    /// Accepted, not started.
    Pending,
    Running,
    Completed,
    /// Failed, and safe to try again.
    FailedRetryable,
    /// A person must decide.
    FailedManualIntervention,
    Cancelled,
    /// What was done is being taken back.
    Compensating,
    /// Brought into line with what was found to be true.
    Reconciled,
}

use JobStatus::{
    Cancelled, Compensating, Completed, FailedManualIntervention, FailedRetryable, Pending, Reconciled, Running,
};

pub const REQUESTED: &str = "requested";
pub const STARTED: &str = "started";
pub const FINISHED: &str = "finished";
pub const FAILED: &str = "failed";
/// An operator goes on with it.
pub const RESUMED: &str = "resumed";
/// What was done is taken back, to cancel it or to begin anew.
pub const COMPENSATE: &str = "compensate";
pub const CANCELLED: &str = "cancelled";
/// Taken back; it begins anew.
pub const RESTARTED: &str = "restarted";
/// An operator stops it until somebody has looked.
pub const FROZEN: &str = "frozen";
/// What was found to be true ends it.
pub const ADOPTED: &str = "adopted";
/// Its execution was ended past it.
pub const ENDED_OUTSIDE: &str = "ended_outside";

const fn edge(from: JobStatus, to: JobStatus, trigger: &'static str, owner: Owner) -> Edge<JobStatus> {
    Edge { from: Some(from), to, trigger, owner, guard: Guard::None }
}

static EDGES: &[Edge<JobStatus>] = &[
    Edge { from: None, to: Pending, trigger: REQUESTED, owner: Owner::Operator, guard: Guard::None },
    // an agent that enrols begins its onboarding
    Edge { from: None, to: Pending, trigger: REQUESTED, owner: Owner::Executor, guard: Guard::None },
    edge(Pending, Running, STARTED, Owner::Executor),
    edge(Pending, Cancelled, CANCELLED, Owner::Operator),
    edge(Pending, Cancelled, ENDED_OUTSIDE, Owner::Executor),
    edge(Running, Completed, FINISHED, Owner::Executor),
    edge(Running, FailedRetryable, FAILED, Owner::Executor),
    edge(Running, FailedManualIntervention, FAILED, Owner::Executor),
    edge(Running, FailedManualIntervention, FROZEN, Owner::Operator),
    edge(Running, FailedManualIntervention, ENDED_OUTSIDE, Owner::Executor),
    edge(Running, Compensating, COMPENSATE, Owner::Executor),
    edge(Running, Cancelled, CANCELLED, Owner::Executor),
    edge(Running, Cancelled, ENDED_OUTSIDE, Owner::Executor),
    edge(Running, Reconciled, ADOPTED, Owner::Operator),
    // its last stage is done, and one of them was adopted
    edge(Running, Reconciled, ADOPTED, Owner::Executor),
    edge(FailedRetryable, Running, RESUMED, Owner::Operator),
    edge(FailedRetryable, Compensating, COMPENSATE, Owner::Operator),
    edge(FailedRetryable, Reconciled, ADOPTED, Owner::Operator),
    edge(FailedRetryable, Cancelled, CANCELLED, Owner::Operator),
    edge(FailedManualIntervention, Running, RESUMED, Owner::Operator),
    edge(FailedManualIntervention, Compensating, COMPENSATE, Owner::Operator),
    edge(FailedManualIntervention, Reconciled, ADOPTED, Owner::Operator),
    edge(FailedManualIntervention, Cancelled, CANCELLED, Owner::Operator),
    edge(Compensating, Cancelled, CANCELLED, Owner::Executor),
    edge(Compensating, Running, RESTARTED, Owner::Executor),
    edge(Compensating, FailedManualIntervention, FAILED, Owner::Executor),
    edge(Compensating, FailedManualIntervention, FROZEN, Owner::Operator),
    edge(Compensating, FailedManualIntervention, ENDED_OUTSIDE, Owner::Executor),
];

impl State for JobStatus {
    const ENTITY: &'static str = "job";
    const ALL: &'static [Self] =
        &[Pending, Running, Completed, FailedRetryable, FailedManualIntervention, Cancelled, Compensating, Reconciled];

    fn as_str(self) -> &'static str {
        match self {
            Pending => "pending",
            Running => "running",
            Completed => "completed",
            FailedRetryable => "failed_retryable",
            FailedManualIntervention => "failed_manual_intervention",
            Cancelled => "cancelled",
            Compensating => "compensating",
            Reconciled => "reconciled",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Pending => Deadline::StartWithin(START_WITHIN),
            Running | Compensating => Deadline::StepBudgets,
            FailedRetryable | FailedManualIntervention | Completed | Cancelled | Reconciled => Deadline::AtRest,
        }
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A worker must have taken it up by then.
pub const START_WITHIN: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

impl JobStatus {
    pub const fn is_terminal(self) -> bool {
        match self {
            Completed | Cancelled | Reconciled => true,
            Pending | Running | FailedRetryable | FailedManualIntervention | Compensating => false,
        }
    }

    /// Whether an execution must be there that has not ended.
    pub const fn is_under_way(self) -> bool {
        match self {
            Pending | Running | Compensating => true,
            FailedRetryable | FailedManualIntervention | Completed | Cancelled | Reconciled => false,
        }
    }

    /// How a failure of this class leaves a job.
    pub const fn after_failure(class: FailureClass) -> Self {
        if class.may_pass() { FailedRetryable } else { FailedManualIntervention }
    }
}

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    Forward,
    /// Takes back what was done, last first.
    Compensate,
}

impl Purpose {
    pub const ALL: [Purpose; 2] = [Purpose::Forward, Purpose::Compensate];

    pub const fn as_str(self) -> &'static str {
        match self {
            Purpose::Forward => "forward",
            Purpose::Compensate => "compensate",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == text)
    }
}

/// What follows once everything is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Afterwards {
    Cancelled,
    Restart,
}

impl Afterwards {
    pub const ALL: [Afterwards; 2] = [Afterwards::Cancelled, Afterwards::Restart];

    pub const fn as_str(self) -> &'static str {
        match self {
            Afterwards::Cancelled => "cancelled",
            Afterwards::Restart => "restart",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.as_str() == text)
    }
}

/// Why a job stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFailure {
    pub class: FailureClass,
    /// Stable.
    pub code: String,
    pub message: String,
}

/// How a stage came to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageDone {
    pub stage: JobStage,
    /// Who vouches for it, or wanted it taken as it was found, where it was adopted; empty: it was carried out.
    pub adopted_by: String,
    pub message: String,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub kind: JobKind,
    pub node_id: NodeId,
    pub status: JobStatus,
    pub version: u64,
    /// The one in hand, or the one that failed; after the end the last one. `None`: nothing has begun.
    pub stage: Option<JobStage>,
    /// Executions so far.
    pub attempt: u32,
    /// Of the last attempt.
    pub execution_id: ExecutionId,
    pub purpose: Purpose,
    /// The first stage of this attempt, as an index into the kind's stages (of a compensation: unused).
    pub first_stage: usize,
    pub afterwards: Option<Afterwards>,
    /// The attempt from which on tasks count: what was done before it is done again.
    pub tasks_since: u32,
    pub failure: Option<JobFailure>,
    /// What was last seen of the node, with its time in words.
    pub observed: String,
    pub done: Vec<StageDone>,
    /// What its stages are told, as JSON.
    pub parameters: String,
    /// What its stages have found out for those after them, as JSON.
    pub learned: String,
    /// The signed clean record, as JSON; empty: none was made.
    pub clean_record: String,
    pub requested_by: String,
    pub reason: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl Job {
    pub fn stages(&self) -> &'static [JobStage] {
        self.kind.stages()
    }

    pub fn is_done(&self, stage: JobStage) -> bool {
        self.done.iter().any(|d| d.stage == stage)
    }

    /// Where the stage in hand is in the kind's list; before the first one: 0.
    pub fn stage_index(&self) -> usize {
        self.stage.and_then(|stage| self.stages().iter().position(|s| *s == stage)).unwrap_or(0)
    }

    /// What may have been done and can be taken back, in the order in which it is taken back. The same as long as the stage
    /// in hand is, whatever has been taken back already: whoever takes over finds every one in its place.
    pub fn to_take_back(&self) -> Vec<JobStage> {
        let Some(at) = self.stage.and_then(|stage| self.stages().iter().position(|s| *s == stage)) else {
            return Vec::new();
        };
        let undone = |stage: &JobStage| match stage.undo() {
            Some(Undo::GiveBack | Undo::RemoveCreated | Undo::WithdrawBundle | Undo::CancelRun) => {
                !self.is_handed_over()
            }
            Some(Undo::LiftCordon) => true,
            None => false,
        };
        self.stages().iter().take(at + 1).copied().filter(undone).rev().collect()
    }

    /// Whether the node has its new system, proven: whatever becomes of the job, that is not taken from it again.
    fn is_handed_over(&self) -> bool {
        matches!(self.kind, JobKind::Decommission(Mode::Reimage(_))) && self.stage == Some(JobStage::CheckHealth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn eight_statuses_with_the_declared_moves() {
        assert_eq!(JobStatus::ALL.len(), 8);
        let pairs: BTreeSet<(&str, &str)> =
            EDGES.iter().filter_map(|e| e.from.map(|from| (from.as_str(), e.to.as_str()))).collect();
        let failed = ["failed_retryable", "failed_manual_intervention"];
        let mut declared: BTreeSet<(&str, &str)> = [
            ("pending", "running"),
            ("pending", "cancelled"),
            ("running", "completed"),
            ("running", "failed_retryable"),
            ("running", "failed_manual_intervention"),
            ("running", "compensating"),
            ("running", "cancelled"),
            ("running", "reconciled"),
            ("compensating", "cancelled"),
            ("compensating", "running"),
            ("compensating", "failed_manual_intervention"),
        ]
        .into();
        for from in failed {
            declared.extend(["running", "compensating", "reconciled", "cancelled"].map(|to| (from, to)));
        }
        assert_eq!(pairs, declared);
    }

    #[test]
    fn only_what_has_ended_has_no_exit() {
        for status in JobStatus::ALL {
            let exits = EDGES.iter().any(|e| e.from == Some(*status));
            assert_eq!(exits, !status.is_terminal(), "{status}");
        }
    }
}
