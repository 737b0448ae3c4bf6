//! How a job and its node follow the engine, in the transaction of the journal entry.

use super::begin::execute;
use super::follow::{self, Stopped, let_go, rest};
use super::stage::{Body, JobWork, is_current};
use super::task_stage::withdraw;
use super::{EXECUTOR, Fresh, Learned, Parameters, observed};
use domain::agent::HeartbeatPolicy;
use domain::job::{self as jobs, Afterwards, Job, JobFailure, JobStatus, Purpose, StageDone};
use domain::job_stage::{JobKind, JobStage, Mode};
use domain::limits::short;
use domain::node::{Node, NodeStatus};
use domain::stage::{Ending, FailureClass};
use domain::task::{Task, signed_text};
use domain::{ExecutionId, JobId};
use engine::{Event, Failure};
use store::execution::{self, Execution};
use store::{Cause, Tx, TxResult, agent, job, task};

pub(super) fn events(tx: &mut Tx<'_>, work: &JobWork, events: &[Event]) -> TxResult<()> {
    if events.is_empty() {
        return Ok(());
    }
    let (mut node, mut there) = follow::lock(tx, &work.job_id)?;
    if !is_current(&there, &work.execution) {
        // whoever ended this attempt has written how the job goes on
        return Ok(());
    }
    for event in events {
        (node, there) = one(tx, work, node, there, event)?;
    }
    Ok(())
}

fn one(tx: &mut Tx<'_>, work: &JobWork, node: Node, there: Job, event: &Event) -> TxResult<(Node, Job)> {
    let stage = |index: usize| match work.bodies.get(index) {
        Some(Body::Do(stage) | Body::TakeBack(stage, _)) => Some(*stage),
        None => None,
    };
    match event {
        Event::Started => {
            if there.status != JobStatus::Pending {
                return Ok((node, there));
            }
            let cause = Cause::executor(EXECUTOR, jobs::STARTED, "");
            let started = job::move_to(tx, &there, &Job { status: JobStatus::Running, ..there.clone() }, &cause)?;
            Ok((node, started))
        }
        Event::Entered { index } => {
            if work.purpose == Purpose::Compensate {
                return Ok((node, there));
            }
            let (now, seen) = (tx.now(), tx.point(&agent::by_node(&node.id))?);
            let node = match stage(*index) {
                Some(entered) => {
                    let node = follow::enter(tx, &node, there.kind, entered, &there.requested_by, &there.reason)?;
                    follow::begins_to_clean(tx, node, &there, entered)?
                }
                None => node,
            };
            // a stage that asks a MAAS tells what that says
            let observed = match stage(*index) {
                Some(JobStage::Maas(_)) if there.observed.starts_with("MAAS") => there.observed.clone(),
                _ => observed(seen.as_ref(), now),
            };
            let there = job::save(tx, &Job { stage: stage(*index), observed, ..there })?;
            Ok((node, there))
        }
        Event::Retrying { retry, failure, at, .. } => {
            let message = format!("attempt {retry} failed: {}; tries again at {at}", short(&failure.message));
            let failure = JobFailure { class: failure.class, code: failure.code.clone(), message };
            Ok((node, job::save(tx, &Job { failure: Some(failure), ..there })?))
        }
        Event::Done { index, message } => match (work.purpose, stage(*index)) {
            (Purpose::Forward, Some(done)) => {
                let adopting = Parameters::of(&there).adopting.filter(|wish| wish.stage == done.as_str());
                stage_done(tx, node, there, done, message, &adopting.map(|wish| wish.by).unwrap_or_default())
            }
            // taken back: it is as if it had never been done
            (Purpose::Compensate, Some(undone)) => {
                let done = there.done.iter().filter(|d| d.stage != undone).cloned().collect();
                Ok((node, job::save(tx, &Job { done, ..there })?))
            }
            (_, None) => Ok((node, there)),
        },
        // the end follows in the same commit
        Event::Failed { .. } => Ok((node, there)),
        Event::Ended { ending, failure, .. } => {
            let policy = &work.policy.heartbeat;
            end(tx, node, there, *ending, failure.as_ref(), &work.execution, &work.fresh, policy)
        }
    }
}

/// A stage is done, or vouched for: what follows from that for the node is in the same commit.
pub(super) fn stage_done(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    stage: JobStage,
    message: &str,
    adopted_by: &str,
) -> TxResult<(Node, Job)> {
    let at = tx.now();
    let mut after = Job { failure: None, stage: Some(stage), ..there };
    after.done.retain(|d| d.stage != stage);
    after.done.push(StageDone { stage, adopted_by: adopted_by.to_owned(), message: short(message), at });
    let node = match stage {
        JobStage::RetireGpuaasNode if node.status == NodeStatus::Draining => {
            let cause = Cause::executor(EXECUTOR, domain::node::DRAINED, message);
            follow::go(tx, &node, NodeStatus::Retired, "drained", &cause)?
        }
        JobStage::RemoveGpuaasNodeRecord if node.status != NodeStatus::Deleted => follow::removed(tx, &node, message)?,
        JobStage::ValidateCleanNode => {
            after.clean_record = clean_record(tx, &after.id, stage, adopted_by, message)?;
            // what somebody vouches for is not proven
            let node = match adopted_by {
                "" => store::node::save(tx, &Node { unclean: String::new(), ..node })?,
                _ => node,
            };
            match after.kind {
                JobKind::Decommission(Mode::Reimage(_)) if node.status == NodeStatus::Retired => {
                    follow::reimaged(tx, &node, &after)?
                }
                JobKind::Decommission(_) | JobKind::Onboarding(_) | JobKind::Drain | JobKind::Removal => node,
            }
        }
        JobStage::RetireGpuaasNode
        | JobStage::RemoveGpuaasNodeRecord
        | JobStage::RepaveMachine
        | JobStage::WaitForAgentEnrollment
        | JobStage::LinkMachine
        | JobStage::CheckHealth
        | JobStage::DisableNode
        | JobStage::ForceReleaseAllocations
        | JobStage::DrainNode
        | JobStage::CleanupStorage
        | JobStage::ScrubGpu
        | JobStage::CleanupSecrets
        | JobStage::Maas(_) => node,
    };
    let there = job::save(tx, &after)?;
    Ok((node, there))
}

/// What was checked, by which agent, when; or who vouches for it. It proves itself later, whatever becomes of the node and
/// its key: with the text that was signed, word for word, and the public key beside the signature. What was scrubbed before
/// it is in it alike.
fn clean_record(tx: &mut Tx<'_>, id: &JobId, stage: JobStage, adopted_by: &str, message: &str) -> TxResult<String> {
    let at = tx.now().to_string();
    if !adopted_by.is_empty() {
        return Ok(serde_json::json!({ "vouched_by": adopted_by, "because": message, "at": at }).to_string());
    }
    let Some(mut record) = tx.point(&task::last_done(id, stage.as_str()))?.as_ref().and_then(signed_record) else {
        return Ok(String::new());
    };
    let scrub = JobStage::ScrubGpu;
    let done = tx.point(&job::by_id(id))?.map_or(Vec::new(), |job| job.done);
    let scrubbed = match done.iter().find(|done| done.stage == scrub) {
        Some(done) if !done.adopted_by.is_empty() => {
            let (by, at) = (&done.adopted_by, done.at.to_string());
            Some(serde_json::json!({ "vouched_by": by, "because": done.message, "at": at }))
        }
        Some(_) => tx.point(&task::last_done(id, scrub.as_str()))?.as_ref().and_then(signed_record),
        None => None,
    };
    if let Some(scrubbed) = scrubbed {
        record["scrubbed"] = scrubbed;
    }
    record["stored_at"] = at.into();
    Ok(record.to_string())
}

/// A task's result, with everything that its signature is checked by.
fn signed_record(task: &Task) -> Option<serde_json::Value> {
    let result = task.result.as_ref()?;
    let signature: String = result.signature.iter().map(|b| format!("{b:02x}")).collect();
    let checked: serde_json::Value = serde_json::from_str(&result.detail).unwrap_or_default();
    Some(serde_json::json!({
        "result": result.message, "checked": checked, "node_id": task.node_id.as_str(), "task_id": task.id.as_str(),
        "fence": task.fence.to_string(), "finished_at": result.finished_at.map(|t| t.to_string()),
        "signed_text": signed_text(task.id.as_str(), task.fence, result.ok, &result.detail), "signature": signature,
        "algorithm": "ECDSA P-256 SHA-256", "agent_public_key": result.signed_by,
    }))
}

#[allow(clippy::too_many_arguments, reason = "what ended, how, and what may follow")]
fn end(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    ending: Ending,
    failure: Option<&Failure>,
    execution: &ExecutionId,
    fresh: &Fresh,
    policy: &HeartbeatPolicy,
) -> TxResult<(Node, Job)> {
    match (there.purpose, ending) {
        // somebody wished for its end before it failed
        (Purpose::Forward, Ending::Failed) if there.afterwards.is_some() => {
            let why = failure.map_or(String::new(), |f| f.message.clone());
            canceled(tx, node, there, fresh, EXECUTOR, &why)
        }
        (Purpose::Forward, Ending::Done) => {
            let node = match there.kind {
                JobKind::Onboarding(_) => follow::onboarded(tx, &node, policy)?,
                JobKind::Drain | JobKind::Removal | JobKind::Decommission(_) => node,
            };
            let node = let_go(tx, &node, &there)?;
            // what was adopted was not carried out, or not by this job alone: it says so by how it ends
            let adopted = there.done.iter().any(|done| !done.adopted_by.is_empty());
            let (status, trigger) =
                if adopted { (JobStatus::Reconciled, jobs::ADOPTED) } else { (JobStatus::Completed, jobs::FINISHED) };
            let cause = Cause::executor(EXECUTOR, trigger, "");
            let after = Job { status, failure: None, afterwards: None, ..there.clone() };
            Ok((node, job::move_to(tx, &there, &after, &cause)?))
        }
        (Purpose::Forward, Ending::Failed) => {
            let failure = failure.map_or_else(unknown_failure, |f| JobFailure {
                class: f.class,
                code: f.code.clone(),
                message: short(&f.message),
            });
            fail(tx, node, there, failure, jobs::FAILED, EXECUTOR)
        }
        (Purpose::Forward, Ending::Canceled) => {
            let asked = execution::get(tx, execution)?.and_then(|e| e.cancel);
            let (by, why) = asked.map_or((EXECUTOR.to_owned(), String::new()), |c| (c.by, c.reason));
            canceled(tx, node, there, fresh, &by, &why)
        }
        (Purpose::Compensate, Ending::Done) => compensated(tx, node, there, fresh),
        (Purpose::Compensate, Ending::Failed | Ending::Canceled) => {
            let (class, why) = failure
                .map_or((FailureClass::NeedsOperator, "it was stopped".to_owned()), |f| (f.class, f.message.clone()));
            let failure = JobFailure {
                class,
                code: "COMPENSATION_FAILED".to_owned(),
                message: short(&format!("what was done could not be taken back: {why}")),
            };
            fail(tx, node, there, failure, jobs::FAILED, EXECUTOR)
        }
    }
}

fn unknown_failure() -> JobFailure {
    JobFailure { class: FailureClass::NeedsOperator, code: "FAILED".to_owned(), message: "it failed".to_owned() }
}

/// A job stands still: its node rests, and a person decides.
pub(super) fn fail(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    failure: JobFailure,
    trigger: &'static str,
    by: &str,
) -> TxResult<(Node, Job)> {
    withdraw(tx, &there.id)?;
    // one that never began still passes through running
    let there = if there.status == JobStatus::Pending {
        let cause = Cause::executor(EXECUTOR, jobs::STARTED, "");
        job::move_to(tx, &there, &Job { status: JobStatus::Running, ..there.clone() }, &cause)?
    } else {
        there
    };
    let why = format!("{} of job {}: {}", there.stage.map_or("the start", JobStage::as_str), there.id, failure.message);
    let node = rest(tx, &node, Stopped::Failed { code: &failure.code }, &short(&why))?;
    let (status, cause) = match trigger {
        jobs::FROZEN => (JobStatus::FailedManualIntervention, Cause::operator(by, trigger, &failure.message)),
        jobs::ENDED_OUTSIDE => (JobStatus::FailedManualIntervention, Cause::executor(by, trigger, &failure.message)),
        // half taken back, nothing goes on by itself
        _ if there.status == JobStatus::Compensating => {
            (JobStatus::FailedManualIntervention, Cause::executor(by, trigger, &failure.message))
        }
        _ => (JobStatus::after_failure(failure.class), Cause::executor(by, trigger, &failure.message)),
    };
    let after = Job { status, failure: Some(failure), ..there.clone() };
    Ok((node, job::move_to(tx, &there, &after, &cause)?))
}

/// The stage in hand was stopped: what was done is taken back, if anything is to be.
pub(super) fn canceled(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    fresh: &Fresh,
    by: &str,
    why: &str,
) -> TxResult<(Node, Job)> {
    withdraw(tx, &there.id)?;
    if let Some(from) = finishes(&node, &there) {
        return go_from(tx, node, there, from, fresh, &Cause::executor(by, jobs::RESUMED, why));
    }
    let afterwards = there.afterwards.unwrap_or(Afterwards::Cancelled);
    if !there.to_take_back().is_empty() {
        return take_back(tx, node, there, afterwards, fresh, &Cause::executor(by, jobs::COMPENSATE, why));
    }
    match afterwards {
        Afterwards::Cancelled => cancelled(tx, node, there, &Cause::executor(by, jobs::CANCELLED, why)),
        Afterwards::Restart => {
            // through the same states as one that has something to take back
            let cause = Cause::executor(by, jobs::COMPENSATE, why);
            let after = Job { status: JobStatus::Compensating, ..there.clone() };
            let there = job::move_to(tx, &there, &after, &cause)?;
            compensated(tx, node, there, fresh)
        }
    }
}

/// A node that is deleted cannot be taken back: what is left of its removal is finished, whatever was wished meanwhile.
fn finishes(node: &Node, there: &Job) -> Option<usize> {
    if node.status != NodeStatus::Deleted || !there.kind.removes() {
        return None;
    }
    there.stages().iter().position(|stage| !there.is_done(*stage))
}

/// Everything is taken back.
fn compensated(tx: &mut Tx<'_>, node: Node, there: Job, fresh: &Fresh) -> TxResult<(Node, Job)> {
    if let Some(from) = finishes(&node, &there) {
        let cause = Cause::executor(EXECUTOR, jobs::RESTARTED, "its node is deleted: the rest is finished");
        return go_from(tx, node, there, from, fresh, &cause);
    }
    match there.afterwards.unwrap_or(Afterwards::Cancelled) {
        Afterwards::Cancelled => cancelled(tx, node, there, &Cause::executor(EXECUTOR, jobs::CANCELLED, "taken back")),
        Afterwards::Restart => {
            let cause = Cause::executor(EXECUTOR, jobs::RESTARTED, "taken back; begins anew");
            go_from(tx, node, anew(there), 0, fresh, &cause)
        }
    }
}

/// As if nothing of it had ever been done: nothing is in hand, its tasks are new ones, and it learns everything again.
pub(super) fn anew(there: Job) -> Job {
    Job { stage: None, learned: Learned::anew(&there.learned), ..there }
}

/// It ends as cancelled, and its node rests.
pub(super) fn cancelled(tx: &mut Tx<'_>, node: Node, there: Job, cause: &Cause) -> TxResult<(Node, Job)> {
    withdraw(tx, &there.id)?;
    if matches!(there.kind, JobKind::Onboarding(_)) {
        // also of one that was called off before its first stage
        agent::withdraw(tx, &node.id)?;
    }
    let why = format!("{} was cancelled by {}", there.kind, cause.actor);
    let node = rest(tx, &node, Stopped::Cancelled, &why)?;
    let node = let_go(tx, &node, &there)?;
    let after = Job { status: JobStatus::Cancelled, ..there.clone() };
    Ok((node, job::move_to(tx, &there, &after, cause)?))
}

/// An attempt of its own takes back what was done.
pub(super) fn take_back(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    afterwards: Afterwards,
    fresh: &Fresh,
    cause: &Cause,
) -> TxResult<(Node, Job)> {
    let after = Job {
        status: JobStatus::Compensating,
        purpose: Purpose::Compensate,
        afterwards: Some(afterwards),
        attempt: there.attempt + 1,
        execution_id: fresh.execution.clone(),
        failure: None,
        ..there.clone()
    };
    let after = job::move_to(tx, &there, &after, cause)?;
    execute(tx, &node, &after.id, &after.execution_id)?;
    Ok((node, after))
}

/// A new attempt, from a stage on. What comes after it counts as not done.
pub(super) fn go_from(
    tx: &mut Tx<'_>,
    node: Node,
    there: Job,
    from: usize,
    fresh: &Fresh,
    cause: &Cause,
) -> TxResult<(Node, Job)> {
    let attempt = there.attempt + 1;
    let earlier = there.stages().get(..from).unwrap_or_default();
    // the same stage again follows the task it has; another one begins anew
    let same = there.purpose == Purpose::Forward && there.stage.is_some() && there.stage_index() == from;
    let after = Job {
        status: JobStatus::Running,
        purpose: Purpose::Forward,
        afterwards: None,
        attempt,
        first_stage: from,
        stage: there.stages().get(from).copied(),
        tasks_since: if same { there.tasks_since } else { attempt },
        execution_id: fresh.execution.clone(),
        failure: None,
        done: there.done.iter().filter(|d| earlier.contains(&d.stage)).cloned().collect(),
        parameters: match Parameters::of(&there) {
            Parameters { adopting: None, .. } => there.parameters.clone(),
            told => Parameters { adopting: None, ..told }.to_text(),
        },
        ..there.clone()
    };
    let node = match after.stage {
        Some(stage) => follow::enter(tx, &node, after.kind, stage, &cause.actor, &cause.comment)?,
        None => node,
    };
    let after = job::move_to(tx, &there, &after, cause)?;
    execute(tx, &node, &after.id, &after.execution_id)?;
    Ok((node, after))
}

/// Its execution was ended past it: the job says so, by whom, and a person decides.
pub fn ended_outside(tx: &mut Tx<'_>, execution: &Execution, by: &str, reason: &str) -> TxResult<()> {
    let (node, there) = follow::lock(tx, &JobId::from_text(execution.subject.clone()))?;
    if !is_current(&there, &execution.id) {
        return Ok(());
    }
    let message = short(&format!("its execution was ended by {by}: {reason}"));
    match there.status {
        JobStatus::Pending => {
            cancelled(tx, node, there, &Cause::executor(by, jobs::ENDED_OUTSIDE, &message))?;
        }
        JobStatus::Running | JobStatus::Compensating => {
            let failure = JobFailure { class: FailureClass::NeedsOperator, code: "ENDED_OUTSIDE".to_owned(), message };
            fail(tx, node, there, failure, jobs::ENDED_OUTSIDE, by)?;
        }
        JobStatus::FailedRetryable
        | JobStatus::FailedManualIntervention
        | JobStatus::Completed
        | JobStatus::Cancelled
        | JobStatus::Reconciled => {}
    }
    Ok(())
}
