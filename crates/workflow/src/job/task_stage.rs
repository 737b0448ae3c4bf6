//! A stage that the node's agent carries out: one task, queued once, followed to its end. Whether it is queued, handed
//! out, done or expired is the task's own row; an attempt only remembers which of them it follows.

use super::stage::{JobWork, Sight, failed};
use super::{EXECUTOR, Parameters, observed, order};
use domain::agent::{AgentIdentity, IdentityState};
use domain::job_stage::{AGENT_COMES_WITHIN, Adoption, Ground, JobStage};
use domain::node::NodeStatus;
use domain::stage::FailureClass;
use domain::task::{REQUEUED, REQUEUES_MAX, Task, TaskKind, TaskStatus, WITHDRAWN};
use domain::{Error, JobId, TaskId};
use engine::{Aborted, Acted, Failure, Look, Seen, StageCx};
use serde::{Deserialize, Serialize};
use store::{Cause, Tx, TxResult, task};

/// Which task an attempt follows: the `number`th of its stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Following {
    attempt: u32,
    number: u32,
}

/// Tasks of one stage that are ever made.
const TASKS_MAX: u32 = 64;

pub(super) struct TaskStage<'a> {
    pub work: &'a JobWork,
    pub stage: JobStage,
    pub kind: TaskKind,
}

/// Whether another key has taken the place of the one that was given the task.
fn replaced(task: &Task, agent: Option<&AgentIdentity>) -> bool {
    task.dispatched_at.is_some_and(|at| agent.is_some_and(|agent| agent.enrolled_at > at))
}

fn is_stopped(agent: &AgentIdentity) -> bool {
    match agent.state {
        IdentityState::Good => false,
        IdentityState::Suspended | IdentityState::Revoked => true,
    }
}

/// Nobody is there who could take a task or end it: hours of waiting would change nothing, a person can.
fn identity_stopped(stage: JobStage, sight: &Sight) -> Failure {
    let (job, node) = (&sight.job, &sight.node.id);
    let said = sight.agent.as_ref().map_or(String::new(), |a| format!("{} ({})", a.state, a.state_reason));
    let repair = match sight.agent.as_ref().map(|a| a.state) {
        Some(IdentityState::Suspended) => format!("'millwright node repair {node} --reason WHY' or "),
        Some(IdentityState::Good | IdentityState::Revoked) | None => String::new(),
    };
    let adopt = match stage.adoption(job.kind) {
        Adoption::ByWord => {
            format!("; if the machine is gone for good, 'millwright job adopt_observed_state {} --reason WHY'", job.id)
        }
        Adoption::BySight | Adoption::Never => String::new(),
    };
    let message = format!(
        "the identity of the node's agent is {said}: it can be given no task; {repair}'millwright node rebootstrap {node}', then 'millwright job retry_stage {}'{adopt}",
        job.id
    );
    Failure::new("IDENTITY_STOPPED", FailureClass::NeedsOperator, message)
}

/// Tasks that count are those of this lineage: `since` is the attempt it began with.
fn operation(job: &JobId, since: u32, stage: JobStage, number: u32) -> String {
    format!("{job}/{since}/{stage}/{number}")
}

/// The newest task of the stage, and its number.
fn newest(tx: &mut Tx<'_>, job: &JobId, since: u32, stage: JobStage, from: u32) -> TxResult<Option<(u32, Task)>> {
    let mut found = None;
    for number in from.max(1)..=TASKS_MAX {
        match tx.point(&task::by_operation(&operation(job, since, stage, number)))? {
            Some(task) => found = Some((number, task)),
            None => break,
        }
    }
    Ok(found)
}

impl TaskStage<'_> {
    fn following(cx: &StageCx) -> Following {
        serde_json::from_value(cx.facts.clone()).unwrap_or_default()
    }

    pub async fn look(&self, cx: &StageCx, sight: &Sight) -> Result<Look, Failure> {
        if self.stage == JobStage::RemoveGpuaasNodeRecord && sight.node.status == NodeStatus::Deleted {
            return Ok(Seen::Done("the node is deleted".to_owned()).into());
        }
        // retired is what a drain leads to; where it comes anew the system that could be drained may be gone by then
        let comes_anew = match self.work.kind.ground() {
            Ground::Maas | Ground::Boot => true,
            Ground::Bundle => false,
        };
        if self.stage == JobStage::DrainNode && comes_anew && sight.node.status == NodeStatus::Retired {
            return Ok(Seen::Done("it is retired: nothing runs on it".to_owned()).into());
        }
        let mut follow = Self::following(cx);
        let fresh = follow.attempt != cx.attempt;
        let (job, since, stage, from) = (sight.job.id.clone(), sight.job.tasks_since, self.stage, follow.number);
        let node = sight.node.id.clone();
        let read = self
            .work
            .store
            .read(move |tx| Ok((newest(tx, &job, since, stage, from)?, tx.point(&task::live_of_node(&node))?)));
        let (there, live) = read.await.map_err(|e| failed(&e))?;
        if fresh {
            follow = Following { attempt: cx.attempt, number: there.as_ref().map_or(1, |(number, _)| *number) };
            // one that has failed is spent; one that expired is handed out again
            if there.as_ref().is_some_and(|(_, task)| task.status == TaskStatus::Failed) {
                follow.number += 1;
            }
        }
        if follow.number > TASKS_MAX {
            let message = format!("{TASKS_MAX} tasks of this stage have failed; restart_clean begins anew");
            return Err(Failure::new("TASKS_SPENT", FailureClass::NeedsOperator, message));
        }
        let task = there.filter(|(number, _)| *number == follow.number).map(|(_, task)| task);
        // one at a time: whatever else is on the node is waited for
        let other = live.filter(|live| task.as_ref().is_none_or(|ours| ours.id != live.id && !ours.status.is_live()));
        let seen = match (task, other) {
            (Some(task), _) if task.status == TaskStatus::Done => self.judge(&task, fresh, cx, sight),
            _ if sight.agent.as_ref().is_some_and(is_stopped) => Seen::Failed(identity_stopped(self.stage, sight)),
            (_, Some(other)) => Seen::Waiting {
                on: format!("task {} ({}), which {} has ordered", other.id, other.kind, other.ordered_by),
                look_again: cx.look_again(),
            },
            (None, None) => Seen::Clear,
            (Some(task), None) => self.judge(&task, fresh, cx, sight),
        };
        Ok(Look { seen, output: Vec::new(), facts: Some(serde_json::json!(follow)) })
    }

    fn judge(&self, task: &Task, fresh: bool, cx: &StageCx, sight: &Sight) -> Seen {
        let now = self.work.store.ambient().now();
        let agent = observed(sight.agent.as_ref(), now);
        match task.status {
            TaskStatus::Queued => Seen::Waiting {
                on: format!("the agent to take task {} ({}); {agent}", task.id, task.kind),
                look_again: cx.look_again(),
            },
            TaskStatus::Dispatched => Seen::Waiting {
                on: format!("task {} ({}) on the node; {agent}", task.id, task.kind),
                look_again: cx.look_again(),
            },
            TaskStatus::Done => Seen::Done(task.result.as_ref().map_or(String::new(), |r| r.message.clone())),
            TaskStatus::Failed => match &task.result {
                Some(result) => Seen::Failed(Failure::new(&result.code, result.class, result.message.clone())),
                None => Seen::Failed(Failure::new("TASK_FAILED", FailureClass::Transient, "the agent refused it")),
            },
            // of an earlier attempt: it is queued again
            TaskStatus::Expired if fresh => Seen::Clear,
            // nobody can say whether the one before it has done it: nothing is tried again by itself
            TaskStatus::Expired if replaced(task, sight.agent.as_ref()) => Seen::Failed(Failure::new(
                "AGENT_REPLACED",
                FailureClass::NeedsOperator,
                format!(
                    "task {} was handed to an agent with another key, and how it ended is not known; look at the machine, then 'millwright job retry_stage {}' has it done",
                    task.id, sight.job.id
                ),
            )),
            TaskStatus::Expired => Seen::Failed(Failure::new(
                "AGENT_SILENT",
                FailureClass::DependencyDown,
                format!("task {} expired: {}; {agent}", task.id, task.expired_because),
            )),
        }
    }

    /// Queues the task, or queues it again. The same one is never queued twice: its operation is its name.
    pub async fn act(&self, cx: &StageCx) -> Acted {
        let follow = Self::following(cx);
        let (stage, kind, policy) = (self.stage, self.kind, self.work.policy.clone());
        let id = TaskId::generate(self.work.store.ambient().uuid());
        let written = self.work.write(move |tx, node, job| {
            let operation = operation(&job.id, job.tasks_since, stage, follow.number.max(1));
            let now = tx.now();
            let take_by = now.plus(AGENT_COMES_WITHIN);
            let cause = Cause::executor(EXECUTOR, REQUEUED, stage.as_str());
            if let Some(there) = tx.point(&task::by_operation(&operation))? {
                if there.status == TaskStatus::Expired {
                    requeue(tx, &there, &cause)?;
                }
                return Ok(());
            }
            if let Some(other) = tx.point(&task::live_of_node(&node.id))? {
                let message = format!("task {} ({}) of {} is on the node", other.id, other.kind, other.ordered_by);
                return Err(Error::new(domain::Reason::NodeHeld, message).into());
            }
            let told = Parameters::of(&job);
            let Some(body) = order::of_stage(kind, &policy, &told) else {
                return Err(Error::internal(format!("{kind} is no stage's task")).into());
            };
            let new = task::NewTask {
                id: &id,
                node_id: &node.id,
                job: Some((&job.id, stage.as_str())),
                operation: &operation,
                kind,
                order: &body,
                take_by,
            };
            task::queue(tx, &new, &cause).map(drop)
        });
        match written.await {
            Ok(true) => Acted::Yes,
            Ok(false) => {
                Acted::No(Failure::new("SUPERSEDED", FailureClass::NeedsOperator, "another attempt has begun"))
            }
            Err(e) => Acted::No(failed(&e)),
        }
    }

    /// The job wants it no more. An agent that is at it is told so.
    pub async fn withdraw(&self) -> Result<Aborted, Failure> {
        let written = self.work.write(move |tx, _, job| withdraw(tx, &job.id));
        written.await.map(|_| Aborted::Stopped).map_err(|e| failed(&e))
    }
}

/// Takes back the live task of a job, if there is one: a job that does not go on has nothing done on its node.
pub(super) fn withdraw(tx: &mut Tx<'_>, job: &JobId) -> TxResult<()> {
    let Some(there) = tx.point(&task::last_of_job(job))? else { return Ok(()) };
    if there.status.is_live() {
        let cause = Cause::executor(EXECUTOR, WITHDRAWN, "its job wants it no more");
        let after = Task {
            status: TaskStatus::Expired,
            lease_until: None,
            expired_because: "its job wants it no more".to_owned(),
            ..there.clone()
        };
        task::move_to(tx, &there, &after, &cause)?;
    }
    Ok(())
}

/// Hands an expired task out again, under the same id and, at its dispatch, a higher fence.
pub(super) fn requeue(tx: &mut Tx<'_>, there: &Task, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let after = Task {
        status: TaskStatus::Queued,
        requeues: there.requeues + 1,
        queued_at: now,
        take_by: now.plus(AGENT_COMES_WITHIN),
        dispatched_at: None,
        lease_until: None,
        expired_because: String::new(),
        ..there.clone()
    };
    task::move_to(tx, there, &after, &cause.then(REQUEUED)).map(drop)
}

/// A task whose lease ran out is handed out again while somebody still wants it, a few times; after that its job is
/// told that it failed. The agent runs it once all the same: it knows it by its id.
pub fn requeue_expired(tx: &mut Tx<'_>, expired: &Task) -> TxResult<()> {
    if expired.dispatched_at.is_none() || expired.requeues >= REQUEUES_MAX {
        return Ok(());
    }
    let wanted = match &expired.job {
        None => true,
        Some((id, stage)) => tx.point(&store::job::by_id(id))?.is_some_and(|job| {
            job.status.is_under_way() && job.stage.is_some_and(|at| at.as_str() == stage) && job.afterwards.is_none()
        }),
    };
    if !wanted {
        return Ok(());
    }
    requeue(tx, expired, &Cause::executor(EXECUTOR, REQUEUED, "its lease ran out"))
}
