//! How a node follows its job: into the busy states, out of them, and back to rest. Every move by its owner, in the
//! transaction of what causes it.

use super::{EXECUTOR, gone};
use domain::agent::{AgentIdentity, HeartbeatPolicy, IdentityState};
use domain::condition::{self, Condition, ConditionType};
use domain::job::Job;
use domain::job_stage::{JobKind, JobStage};
use domain::lifecycle::{Guard, NodeGuard};
use domain::node::{self as nodes, Node, NodeStatus};
use domain::{Error, Reason, Timestamp};
use serde_json::json;
use store::{Cause, Tx, TxResult, agent, job, machine, node};

/// Whether a node's agent is heard of steadily, under an identity that is good.
pub fn agent_is_steady(agent: Option<&AgentIdentity>, policy: &HeartbeatPolicy, now: Timestamp) -> Result<(), String> {
    let Some(agent) = agent else { return Err("no agent has enrolled".to_owned()) };
    if agent.state != IdentityState::Good {
        return Err(format!("its agent's identity is {}: {}", agent.state, agent.state_reason));
    }
    if !policy.is_steady(agent.beats, agent.last_beat, now) {
        return Err(format!(
            "{} heartbeats without a gap, of {} that are needed",
            agent.beats.min(policy.back_after),
            policy.back_after
        ));
    }
    Ok(())
}

/// Its own job holds it, from this transaction on.
fn owned(node: &Node, guard: Guard) -> Result<(), Error> {
    match guard {
        Guard::None => Ok(()),
        Guard::Node(NodeGuard::OwningJob) if node.active_job.is_some() => Ok(()),
        Guard::Node(_)
        | Guard::NoActiveRun
        | Guard::InClusterAndNoActiveRun
        | Guard::Inspected
        | Guard::WorkflowAssigned
        | Guard::ForcedReset
        | Guard::AttemptsSpent
        | Guard::NotInUse => Err(Error::internal(format!("node {}: not a guard of a job's moves: {guard:?}", node.id))),
    }
}

pub(super) fn go(tx: &mut Tx<'_>, before: &Node, to: NodeStatus, reason: &str, cause: &Cause) -> TxResult<Node> {
    let after = blocked_or_not(before, to, reason, &cause.actor);
    let job = before.active_job.as_ref().map_or("", |job| job.as_str());
    let moved = node::move_to(tx, before, &after, &json!({ "job_id": job }), cause, |guard| owned(before, guard))?;
    tell_machine(tx, before, &moved)?;
    Ok(moved)
}

/// A node as it is to be in a status; in quarantine it is somebody's.
pub fn blocked_or_not(before: &Node, to: NodeStatus, reason: &str, by: &str) -> Node {
    let quarantined_by = if to == NodeStatus::Quarantined { by.to_owned() } else { String::new() };
    Node { status: to, status_reason: reason.to_owned(), quarantined_by, ..before.clone() }
}

/// Quarantine is the machine's condition, too, from its beginning to its end.
pub fn tell_machine(tx: &mut Tx<'_>, before: &Node, after: &Node) -> TxResult<()> {
    match (before.status == NodeStatus::Quarantined, after.status == NodeStatus::Quarantined) {
        (_, true) => needs_intervention(tx, after, Some(&after.status_reason)),
        (true, false) => needs_intervention(tx, after, None),
        (false, false) => Ok(()),
    }
}

/// Moves the node to where a stage needs it to be. What lies beyond that already stays: the stage's look finds it done.
pub(super) fn enter(
    tx: &mut Tx<'_>,
    before: &Node,
    kind: JobKind,
    stage: JobStage,
    by: &str,
    reason: &str,
) -> TxResult<Node> {
    let Some(busy) = kind.busy_in(stage).filter(|busy| *busy != before.status) else { return Ok(before.clone()) };
    let cause = match before.status {
        NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined if busy == NodeStatus::Draining => {
            Cause::operator(by, nodes::DRAIN, reason)
        }
        NodeStatus::Retired if busy == NodeStatus::Removing => Cause::executor(by, nodes::REMOVE, reason),
        NodeStatus::BootstrapIssued if busy == NodeStatus::Enrolling => Cause::executor(by, nodes::ONBOARD, reason),
        NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Draining
        | NodeStatus::Removing
        | NodeStatus::Deleted => return Ok(before.clone()),
    };
    go(tx, before, busy, reason, &cause)
}

/// From the first stage that cleans on the node counts as unclean, until a check has proven otherwise.
pub(super) fn begins_to_clean(tx: &mut Tx<'_>, node: Node, there: &Job, stage: JobStage) -> TxResult<Node> {
    if !stage.cleans() || !node.unclean.is_empty() {
        return Ok(node);
    }
    let unclean = format!("{} of job {} has begun", there.kind, there.id);
    node::save(tx, &Node { unclean, ..node })
}

/// Why a job stopped short of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped<'a> {
    Failed { code: &'a str },
    Cancelled,
}

/// Out of a busy state, since nothing works on the node any more; and into quarantine, where what was found asks for it.
pub(super) fn rest(tx: &mut Tx<'_>, before: &Node, stopped: Stopped<'_>, why: &str) -> TxResult<Node> {
    let by = |trigger| Cause::executor(EXECUTOR, trigger, why);
    let node = match before.status {
        NodeStatus::Draining => go(tx, before, NodeStatus::Offline, why, &by(nodes::DRAIN_STOPPED))?,
        NodeStatus::Removing => go(tx, before, NodeStatus::Retired, why, &by(nodes::REMOVAL_STOPPED))?,
        NodeStatus::Enrolling if stopped == Stopped::Cancelled => {
            go(tx, before, NodeStatus::Quarantined, why, &by(nodes::BLOCKED))?
        }
        NodeStatus::Enrolling
        | NodeStatus::BootstrapIssued
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::Deleted => before.clone(),
    };
    let dirty = matches!(stopped, Stopped::Failed { code: "NOT_CLEAN" }) || !node.unclean.is_empty();
    match node.status {
        // whatever ended it: what was begun to be cleaned is not proven clean
        NodeStatus::Active | NodeStatus::Offline if dirty => {
            go(tx, &node, NodeStatus::Quarantined, why, &by(nodes::NOT_CLEAN))
        }
        // for another reason so far, which probes or a person may find settled; that it is not clean outlasts that
        NodeStatus::Quarantined if dirty => {
            let quarantined_by = EXECUTOR.to_owned();
            let node = node::save(tx, &Node { status_reason: why.to_owned(), quarantined_by, ..node })?;
            needs_intervention(tx, &node, Some(why))?;
            Ok(node)
        }
        NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Quarantined
        | NodeStatus::Draining
        | NodeStatus::Retired
        | NodeStatus::Removing
        | NodeStatus::Deleted => Ok(node),
    }
}

/// By whom a job has set a cordon.
pub(super) fn cordon_of(job: &Job) -> String {
    format!("job {}", job.id)
}

/// The job has ended: it lets go of its node, and lifts its own cordon.
pub(super) fn let_go(tx: &mut Tx<'_>, before: &Node, job: &Job) -> TxResult<Node> {
    let mut after = Node { active_job: None, ..before.clone() };
    if after.cordoned_by == cordon_of(job) {
        after.cordoned_by = String::new();
        after.cordon_reason = String::new();
    }
    node::save(tx, &after)
}

/// The agent has enrolled and is well: the node goes into service.
pub(super) fn onboarded(tx: &mut Tx<'_>, before: &Node, policy: &HeartbeatPolicy) -> TxResult<Node> {
    if before.status != NodeStatus::Enrolling {
        return Ok(before.clone());
    }
    let (now, seen) = (tx.now(), tx.point(&agent::by_node(&before.id))?);
    let healthy =
        agent_is_steady(seen.as_ref(), policy, now).and_then(|()| seen.as_ref().map_or(Ok(()), super::probes_pass));
    let after = Node { status: NodeStatus::Active, status_reason: "onboarded".to_owned(), ..before.clone() };
    let proof = json!({ "heartbeats": seen.as_ref().map_or(0, |a| a.beats), "probes": "all pass" });
    let cause = Cause::executor(EXECUTOR, nodes::ONBOARDED, "its agent has enrolled, and its checks pass");
    node::move_to(tx, before, &after, &proof, &cause, |_| {
        healthy.map_err(|why| Error::new(Reason::NotConfirmed, format!("node {} is not healthy: {why}", before.id)))
    })
}

/// Its system came anew, with an agent of its own, and is proven clean: it is in service again once its heartbeat says so.
pub(super) fn reimaged(tx: &mut Tx<'_>, before: &Node, job: &Job) -> TxResult<Node> {
    let why = "its system was deployed anew, and is proven clean";
    let after = blocked_or_not(before, NodeStatus::Offline, why, EXECUTOR);
    let kept = tx.point(&agent::by_node(&before.id))?.is_some_and(|agent| agent.state == IdentityState::Good);
    // whoever asked for the reimage asked for this
    let cause = Cause::operator(&job.requested_by, nodes::REACTIVATE, why);
    node::move_to(tx, before, &after, &json!({ "job_id": job.id.as_str() }), &cause, |_| match kept {
        true => Ok(()),
        false => Err(Error::new(Reason::NotConfirmed, format!("no agent of node {} is let in", before.id))),
    })
}

/// The node is gone: nobody comes with its identity any more.
pub(super) fn removed(tx: &mut Tx<'_>, before: &Node, why: &str) -> TxResult<Node> {
    let mut there = before.clone();
    if there.status == NodeStatus::Retired {
        there = go(tx, &there, NodeStatus::Removing, why, &Cause::executor(EXECUTOR, nodes::REMOVE, why))?;
    }
    let gone = go(tx, &there, NodeStatus::Deleted, why, &Cause::executor(EXECUTOR, nodes::REMOVED, why))?;
    agent::set_state(tx, &gone.id, IdentityState::Revoked, "its node was removed")?;
    Ok(gone)
}

/// The condition of the linked machine: a person should look. `None`: no longer because of us.
fn needs_intervention(tx: &mut Tx<'_>, node: &Node, message: Option<&str>) -> TxResult<()> {
    const QUARANTINED: &str = "NodeQuarantined";
    let Some(id) = &node.machine_id else { return Ok(()) };
    let Some(there) = machine::get_for_update(tx, id)?.filter(|there| there.active_run.is_none()) else {
        return Ok(());
    };
    let kind = ConditionType::NeedsIntervention;
    let ours = there.conditions.iter().any(|c| c.kind == kind && c.reason == QUARANTINED);
    let (is, reason, message) = match message {
        Some(message) => (true, QUARANTINED, message),
        None if there.condition(kind) && ours => (false, "NodeRecovered", ""),
        None => return Ok(()),
    };
    let mut conditions = there.conditions.clone();
    let mut said = Condition::new(kind, is, reason, tx.now());
    message.clone_into(&mut said.message);
    condition::set(&mut conditions, said);
    machine::set_hold(tx, &there, None, &conditions)
}

/// Locks a job's node (its machine first), then the job.
pub(super) fn lock(tx: &mut Tx<'_>, id: &domain::JobId) -> TxResult<(Node, Job)> {
    let there = tx.point(&job::by_id(id))?.ok_or_else(|| {
        Error::new(Reason::JobNotFound, format!("there is no job {:?}", id.as_str())).with("job_id", id.as_str())
    })?;
    let node = super::lock_node(tx, &there.node_id)?.ok_or_else(|| gone("node", &there.node_id))?;
    let job = job::get_for_update(tx, id)?.ok_or_else(|| gone("job", id))?;
    Ok((node, job))
}
