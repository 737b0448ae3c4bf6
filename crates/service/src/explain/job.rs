//! Why a job is where it is.

use super::{Action, Explanation, seconds_until};
use crate::jobs::{JobView, purpose_of, view};
use crate::{Call, StageView};
use domain::job::{Job, JobStatus};
use domain::job_action::{JobAction, judge_all};
use domain::node::NodeStatus;
use domain::stage::{Position, UNDO_RETRIES};
use domain::{Error, JobId, NodeId, Reason};
use store::execution::attempt_of;
use store::{Tx, TxResult, job, node};

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct JobWhy {
    pub view: JobView,
    /// What people call its node.
    pub node_name: String,
}

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Option<Explanation>> {
    // the fleet's alone
    if call.by.is_scoped() {
        return Ok(None);
    }
    let Some(found) = tx.point(&job::by_id(&JobId::from_text(id)))? else { return Ok(None) };
    let node_name = name_of(tx, &found.node_id)?;
    Ok(Some(JobWhy { view: view(tx, found)?, node_name }.explain(call)))
}

pub(super) fn name_of(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<String> {
    Ok(tx.point(&node::by_id(id))?.map_or(String::new(), |n| n.name))
}

impl JobWhy {
    pub fn explain(&self, call: &Call) -> Explanation {
        let (view, job) = (&self.view, &self.view.job);
        let base = Explanation {
            id: job.id.to_string(),
            kind: "job",
            state: job.status.to_string(),
            projected: job.status.to_string(),
            desired: if job.status.is_terminal() {
                String::new()
            } else {
                format!("{} of node {}, asked for by {}", job.kind, self.name(), job.requested_by)
            },
            observed: view.observed(),
            actions: self.actions(call),
            problems: self.problems(),
            ..Explanation::default()
        };
        match job.status {
            JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => self.ended(base),
            JobStatus::Pending
            | JobStatus::Running
            | JobStatus::Compensating
            | JobStatus::FailedRetryable
            | JobStatus::FailedManualIntervention => self.open(base),
        }
    }

    fn name(&self) -> &str {
        if self.node_name.is_empty() { self.view.job.node_id.as_str() } else { &self.node_name }
    }

    fn ended(&self, base: Explanation) -> Explanation {
        let job = &self.view.job;
        let at = job.finished_at.unwrap_or(job.updated_at);
        Explanation {
            at_rest: true,
            since: Some(at),
            summary: format!("job {} ({}) of node {} has ended as {}", job.id, job.kind, self.name(), job.status),
            last_seen: self.last_word(),
            last_seen_at: Some(at),
            ..base
        }
    }

    /// The last thing that a stage said.
    fn last_word(&self) -> String {
        let stages = self.view.stages();
        let told = |s: &&StageView| s.finished_at.is_some();
        match stages.iter().rev().find(told) {
            Some(s) if s.message.is_empty() => format!("{} is {}", s.stage, s.state),
            Some(s) => format!("{} is {}: {}", s.stage, s.state, s.message),
            None => self.view.observed(),
        }
    }

    fn open(&self, base: Explanation) -> Explanation {
        let (view, job, now) = (&self.view, &self.view.job, self.view.now);
        let waiting_for = view.waiting_for();
        let stage = view.stage_name();
        let how = if job.status.is_under_way() { purpose_of(job) } else { "has stopped" };
        let summary = format!(
            "job {} ({}) of node {} is {} at {stage}, attempt {} ({how}): waits for {waiting_for}",
            job.id,
            job.kind,
            self.name(),
            job.status,
            job.attempt
        );
        let execution = view.execution.as_ref();
        let deadline = execution.filter(|_| job.status.is_under_way() && view.frozen.is_none()).map(|e| e.deadline);
        Explanation {
            summary,
            waiting_for,
            since: Some(job.updated_at),
            last_seen: match &view.task {
                Some(task) if job.status.is_under_way() => {
                    format!("{}; task {} ({}) is {}", view.observed(), task.id, task.kind, task.status)
                }
                Some(_) | None => view.observed(),
            },
            last_seen_at: Some(execution.map_or(job.updated_at, |e| e.updated_at)),
            expected: self.expected(job),
            next_try: view.next_try(),
            attempt: Some(job.attempt),
            attempts_left: execution.and_then(|e| match e.position {
                Position::Start => None,
                Position::Stage { .. } => {
                    let most = view.stage().map_or(0, |s| s.decl().max_retries) + 1;
                    Some(most.saturating_sub(attempt_of(e.position)))
                }
                Position::Undo { .. } => Some((UNDO_RETRIES + 1).saturating_sub(attempt_of(e.position))),
            }),
            deadline,
            seconds_left: deadline.map(|at| seconds_until(at, now)),
            held_by: match execution {
                Some(e) => e
                    .holder
                    .as_ref()
                    .map_or("nobody: the next free worker takes it".to_owned(), |s| format!("server session {s}")),
                None if job.status.is_under_way() => "nobody: its execution is missing".to_owned(),
                None => "nobody: it stands still".to_owned(),
            },
            execution: format!("execution {}", job.execution_id),
            ..base
        }
    }

    fn expected(&self, job: &Job) -> String {
        match job.status {
            JobStatus::Pending | JobStatus::Running => match self.view.stage() {
                Some(stage) => match stage.task(job.kind) {
                    Some(task) => format!("{stage} is done: the node's agent says that {task} is"),
                    None => format!("{stage} is done"),
                },
                None => "its stages are done".to_owned(),
            },
            JobStatus::Compensating => "what was done is taken back".to_owned(),
            JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => {
                let (action, why) = self.view.recommended();
                format!("{action}: {why}")
            }
            JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => String::new(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let (view, job) = (&self.view, &self.view.job);
        let mut problems = Vec::new();
        if let Some(failure) = job.failure.as_ref() {
            problems.push(format!("{} ({}): {}", failure.code, failure.class.as_str(), failure.message));
        }
        if job.status.is_under_way() && view.execution.is_none() {
            problems.push(format!(
                "its execution is missing, which must not happen: 'millwright job reconcile {}'",
                job.id
            ));
        }
        if let Some(freeze) = &view.frozen {
            problems
                .push(format!("all automation is frozen by {} since {}: {}", freeze.by, freeze.since, freeze.reason));
        }
        problems
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let (view, job) = (&self.view, &self.view.job);
        const RULE: &str = "millwright.v1.JobService/ActOnJob";
        if job.status.is_terminal() {
            let name = "look at its node, from which a new job is begun";
            let judged = match view.node {
                NodeStatus::Deleted => Err(Error::new(Reason::ActionNotAllowed, "its node is deleted")),
                NodeStatus::BootstrapIssued
                | NodeStatus::Enrolling
                | NodeStatus::Active
                | NodeStatus::Offline
                | NodeStatus::Quarantined
                | NodeStatus::Draining
                | NodeStatus::Retired
                | NodeStatus::Removing => Ok(()),
            };
            let command = format!("millwright why {}", job.node_id);
            return vec![Action::new(call, "millwright.v1.ExplainService/Explain", name, command, judged)];
        }
        let mut actions: Vec<Action> = judge_all(job, view.node)
            .into_iter()
            .map(|(action, judged)| {
                let judged = judged.map(drop).map_err(|why| Error::new(Reason::ActionNotAllowed, why));
                Action::new(call, RULE, action.as_str(), command(action, job), judged)
            })
            .collect();
        if view.frozen.is_some() {
            let rpc = "millwright.v1.EngineService/Unfreeze";
            actions.push(Action::new(call, rpc, "unfreeze", "millwright unfreeze".to_owned(), Ok(())));
        }
        actions
    }
}

fn command(action: JobAction, job: &Job) -> String {
    let reason = if action.needs_reason() { " --reason WHY" } else { "" };
    format!("millwright job {action} {}{reason}", job.id)
}
