//! What operators do about a job. The judgement is `domain::job_action`, the same for a preview and the deed.

use super::follow::{self, blocked_or_not, let_go, tell_machine};
use super::record::{anew, canceled, cancelled, ended_outside, fail, go_from, stage_done, take_back};
use super::task_stage::{requeue, withdraw};
use super::{Adopting, Fresh, Parameters, TAKING_BACK, gone, observed};
use domain::job::{self as jobs, Afterwards, Job, JobFailure, JobStatus};
use domain::job_action::{Effect, JobAction, judge_action, judge_all};
use domain::job_stage::JobStage;
use domain::lifecycle::Guard;
use domain::node::{self as nodes, Node, NodeStatus};
use domain::stage::FailureClass;
use domain::task::{REQUEUED, Task, TaskStatus, WITHDRAWN};
use domain::{Error, JobId, Reason};
use engine::Engine;
use serde_json::json;
use store::{Cause, Tx, TxResult, agent, execution, job, node, task};

/// One action, by whom and why.
#[derive(Clone, Debug)]
pub struct Act {
    pub job: JobId,
    pub action: JobAction,
    pub by: String,
    pub reason: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Acted {
    pub job: Job,
    pub node: Node,
    pub effect: Effect,
}

/// Carries an action out, or refuses it with the actions that are allowed. Locks machine, node, job and execution in that
/// order. Safe to repeat.
pub fn act(tx: &mut Tx<'_>, engine: &Engine, act: &Act, fresh: &Fresh) -> TxResult<Acted> {
    let (node, there) = follow::lock(tx, &act.job)?;
    if act.action.needs_reason() && act.reason.trim().is_empty() {
        return Err(Error::field("reason", format!("say why: {} is put on record with its reason", act.action)).into());
    }
    let effect = judge_action(act.action, &there, node.status).map_err(|why| refused(act, &there, &node, &why))?;
    let (node, job) = carry_out(tx, engine, act, fresh, node, there, &effect)?;
    let looks = act.action == JobAction::AdoptObservedState && matches!(effect, Effect::Go { .. } | Effect::Nudge);
    let job = if looks { adopting(tx, job, &act.by)? } else { job };
    Ok(Acted { job, node, effect })
}

/// The stage in hand adopts what it finds by its own look: by whose wish is remembered until then.
fn adopting(tx: &mut Tx<'_>, there: Job, by: &str) -> TxResult<Job> {
    let Some(stage) = there.stage.filter(|_| there.status == JobStatus::Running) else { return Ok(there) };
    let wish = Adopting { stage: stage.as_str().to_owned(), by: by.to_owned() };
    let parameters = Parameters { adopting: Some(wish), ..Parameters::of(&there) }.to_text();
    if parameters == there.parameters {
        return Ok(there);
    }
    job::save(tx, &Job { parameters, ..there })
}

/// Why an action is not possible, with those that are.
fn refused(act: &Act, there: &Job, node: &Node, why: &str) -> Error {
    let allowed = judge_all(there, node.status).into_iter().filter(|(_, verdict)| verdict.is_ok()).map(|(a, _)| a);
    let message = format!("{} of job {} ({}): {why}", act.action, there.id, there.status);
    Error::new(Reason::ActionNotAllowed, message)
        .with("job_id", there.id.as_str())
        .allowing(allowed.collect::<Vec<_>>())
}

fn carry_out(
    tx: &mut Tx<'_>,
    engine: &Engine,
    act: &Act,
    fresh: &Fresh,
    node: Node,
    there: Job,
    effect: &Effect,
) -> TxResult<(Node, Job)> {
    let operator = |trigger| Cause::operator(&act.by, trigger, &act.reason);
    match effect {
        Effect::Nothing => Ok((node, there)),
        Effect::Nudge | Effect::Reconcile => reconcile(tx, node, there, act),
        Effect::Go { from } => go_from(tx, node, there, *from, fresh, &operator(jobs::RESUMED)),
        Effect::Stop { afterwards } => stop(tx, engine, node, there, *afterwards, act, fresh),
        Effect::TakeBack { afterwards } => {
            if there.to_take_back().is_empty() && *afterwards == Afterwards::Restart {
                return go_from(tx, node, anew(there), 0, fresh, &operator(jobs::RESUMED));
            }
            take_back(tx, node, there, *afterwards, fresh, &operator(jobs::COMPENSATE))
        }
        Effect::LeaveBehind { afterwards } => {
            let wish = Adopting { stage: TAKING_BACK.to_owned(), by: act.by.clone() };
            let parameters = Parameters { adopting: Some(wish), ..Parameters::of(&there) }.to_text();
            let there = job::save(tx, &Job { parameters, ..there })?;
            take_back(tx, node, there, *afterwards, fresh, &operator(jobs::COMPENSATE))
        }
        Effect::EndCancelled => {
            if there.status == JobStatus::Pending {
                end_execution(tx, engine, &there, act)?;
            }
            cancelled(tx, node, there, &operator(jobs::CANCELLED))
        }
        Effect::Adopt { stage, next } => adopt(tx, engine, act, fresh, node, there, *stage, *next),
        Effect::Freeze => freeze(tx, engine, node, there, act),
        Effect::Quarantine { freeze: stop } => {
            let (node, there) = if *stop { freeze(tx, engine, node, there, act)? } else { (node, there) };
            Ok((quarantine(tx, &node, act)?, there))
        }
    }
}

/// Wakes what sleeps, queues what expired, and writes down what was ended past the job.
fn reconcile(tx: &mut Tx<'_>, node: Node, there: Job, act: &Act) -> TxResult<(Node, Job)> {
    let (now, seen) = (tx.now(), tx.point(&agent::by_node(&node.id))?);
    let observed = match there.stage {
        // what MAAS said last is what a stage of its goes by
        Some(JobStage::Maas(_)) => there.observed.clone(),
        _ => observed(seen.as_ref(), now),
    };
    let there = if observed == there.observed { there } else { job::save(tx, &Job { observed, ..there })? };
    if !there.status.is_under_way() {
        return Ok((node, there));
    }
    match execution::get_for_update(tx, &there.execution_id)? {
        Some(e) if e.status.is_terminal() => {
            ended_outside(tx, &e, "the engine", &format!("it is {}", e.status.as_str()))?;
            return again(tx, &there.id);
        }
        Some(e) => execution::wake(tx, &e.id)?,
        None => return Err(gone("execution", &there.execution_id).into()),
    }
    hand_out_again(tx, &node, &there, act)?;
    Ok((node, there))
}

/// One that expired, or whose lease is stale, is queued again; one that is queued, or whose lease is live, is left alone.
fn hand_out_again(tx: &mut Tx<'_>, node: &Node, there: &Job, act: &Act) -> TxResult<()> {
    let Some(last) = tx.point(&task::last_of_job(&there.id))? else { return Ok(()) };
    let wanted = last.job.as_ref().is_some_and(|(_, stage)| there.stage.is_some_and(|s| s.as_str() == stage));
    if !wanted || there.afterwards.is_some() {
        return Ok(());
    }
    let operator = |trigger| Cause::operator(&act.by, trigger, &act.reason);
    let now = tx.now();
    let expired = match last.status {
        TaskStatus::Expired => last,
        TaskStatus::Dispatched if last.lease_until.is_none_or(|until| until <= now) => {
            let expired_because = "its lease ran out".to_owned();
            let after = Task { status: TaskStatus::Expired, lease_until: None, expired_because, ..last.clone() };
            task::move_to(tx, &last, &after, &operator(WITHDRAWN))?
        }
        TaskStatus::Queued | TaskStatus::Dispatched | TaskStatus::Done | TaskStatus::Failed => return Ok(()),
    };
    // one at a time: what somebody has ordered meanwhile is waited for, and the stage hands out its own then
    if tx.point(&task::live_of_node(&node.id))?.is_some() {
        return Ok(());
    }
    requeue(tx, &expired, &operator(REQUEUED))
}

fn again(tx: &mut Tx<'_>, id: &JobId) -> TxResult<(Node, Job)> {
    follow::lock(tx, id)
}

/// The stage in hand is asked to stop; what follows is remembered with the job. Where no worker has it, nothing is to be
/// waited for.
fn stop(
    tx: &mut Tx<'_>,
    engine: &Engine,
    node: Node,
    there: Job,
    then: Afterwards,
    act: &Act,
    fresh: &Fresh,
) -> TxResult<(Node, Job)> {
    let there = job::save(tx, &Job { afterwards: Some(then), ..there })?;
    if there.status == JobStatus::Compensating {
        // it goes on being taken back, to another end
        execution::wake(tx, &there.execution_id)?;
        return Ok((node, there));
    }
    let running =
        execution::get_for_update(tx, &there.execution_id)?.ok_or_else(|| gone("execution", &there.execution_id))?;
    if running.holder.is_some() {
        engine.request_cancel(tx, &running, &act.by, &act.reason)?;
        return Ok((node, there));
    }
    end_execution(tx, engine, &there, act)?;
    canceled(tx, node, there, fresh, &act.by, &act.reason)
}

/// Its execution runs no more of its code. The job's own rows are the caller's to write.
fn end_execution(tx: &mut Tx<'_>, engine: &Engine, there: &Job, act: &Act) -> TxResult<()> {
    let Some(running) = execution::get_for_update(tx, &there.execution_id)? else { return Ok(()) };
    if !running.status.is_terminal() {
        engine.end_quietly(tx, &running, &act.by, &act.reason)?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the action, its job and node, and what it is about")]
fn adopt(
    tx: &mut Tx<'_>,
    engine: &Engine,
    act: &Act,
    fresh: &Fresh,
    node: Node,
    there: Job,
    stage: JobStage,
    next: Option<usize>,
) -> TxResult<(Node, Job)> {
    if there.status == JobStatus::Running {
        end_execution(tx, engine, &there, act)?;
        withdraw(tx, &there.id)?;
    }
    let (node, there) = stage_done(tx, node, there, stage, &act.reason, &act.by)?;
    match next {
        Some(next) => {
            // running already where it ran: only the attempt is another
            let cause = Cause::operator(&act.by, jobs::RESUMED, &act.reason);
            go_from(tx, node, there, next, fresh, &cause)
        }
        None => {
            let node = let_go(tx, &node, &there)?;
            let cause = Cause::operator(&act.by, jobs::ADOPTED, &act.reason);
            let after = Job { status: JobStatus::Reconciled, failure: None, ..there.clone() };
            Ok((node, job::move_to(tx, &there, &after, &cause)?))
        }
    }
}

fn freeze(tx: &mut Tx<'_>, engine: &Engine, node: Node, there: Job, act: &Act) -> TxResult<(Node, Job)> {
    end_execution(tx, engine, &there, act)?;
    let message = format!("stopped by {}: {}", act.by, act.reason);
    let failure = JobFailure { class: FailureClass::NeedsOperator, code: "FROZEN".to_owned(), message };
    fail(tx, node, there, failure, jobs::FROZEN, &act.by)
}

/// The operator's wish is the reconciler's edge, made at once; of an enrolling node it is the operator's own.
fn quarantine(tx: &mut Tx<'_>, before: &Node, act: &Act) -> TxResult<Node> {
    let cause = match before.status {
        NodeStatus::Enrolling => Cause::operator(&act.by, nodes::QUARANTINE, &act.reason),
        NodeStatus::Active | NodeStatus::Offline => Cause::reconciler(&act.by, nodes::QUARANTINE, &act.reason),
        NodeStatus::BootstrapIssued
        | NodeStatus::Quarantined
        | NodeStatus::Draining
        | NodeStatus::Retired
        | NodeStatus::Removing
        | NodeStatus::Deleted => return Ok(before.clone()),
    };
    let after = blocked_or_not(before, NodeStatus::Quarantined, &act.reason, &act.by);
    let unguarded = |guard: Guard| match guard {
        Guard::None => Ok(()),
        other => Err(Error::internal(format!("a quarantine has no guard {other:?}"))),
    };
    let metadata = json!({ "job_id": act.job.as_str() });
    let quarantined = node::move_to(tx, before, &after, &metadata, &cause, unguarded)?;
    tell_machine(tx, before, &quarantined)?;
    Ok(quarantined)
}
