//! How a job begins: it takes its node, in the transaction that makes both.

use super::follow::enter;
use super::{EXECUTOR, Fresh, JOB_WORKFLOW, JOB_WORKFLOW_VERSION, Parameters, observed};
use domain::job::{Job, JobStatus, Purpose, START_WITHIN};
use domain::job_stage::JobKind;
use domain::node::{Node, NodeStatus};
use domain::{Error, ExecutionId, JobId, MachineId, NodeId, Reason};
use store::execution::{self, NewExecution};
use store::{Cause, Tx, TxResult, agent, job, machine, node};

/// What is wished for.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub kind: JobKind,
    pub parameters: Parameters,
    pub reason: String,
}

/// Takes the node for a new job, moves it where the kind's first stage needs it to be, and has the engine begin.
/// `node` was locked by the caller; so was its machine, before it, where it has one. `cause` is an operator's, or the
/// executor's where an agent's enrolment begins its onboarding.
pub fn begin(tx: &mut Tx<'_>, node: &Node, new: &NewJob, fresh: &Fresh, cause: &Cause) -> TxResult<Job> {
    if let Some(there) = tx.point(&job::open_of_node(&node.id))? {
        return Err(held(node, &there).into());
    }
    let first = new.kind.stages().first().copied();
    // a node that is busy by its status and has no job gets one: that is how it is freed
    let busy = first.and_then(|stage| new.kind.busy_in(stage));
    if !new.kind.begins_from().contains(&node.status) && busy != Some(node.status) {
        let from: Vec<String> = new.kind.begins_from().iter().map(ToString::to_string).collect();
        let message = format!("node {} is {}: {} begins from {} only", node.id, node.status, new.kind, from.join(", "));
        return Err(Error::new(Reason::ActionNotAllowed, message).with("node_id", node.id.as_str()).into());
    }
    if let Some(id) = &node.machine_id
        && let Some(run) = machine::get(tx, id)?.and_then(|machine| machine.active_run).map(|active| active.id)
    {
        let message =
            format!("run {run} is active on machine {id}, which node {} is; wait for it, or cancel it", node.id);
        return Err(Error::new(Reason::ActiveRun, message).with("run_id", run.as_str()).into());
    }
    let now = tx.now();
    let seen = tx.point(&agent::by_node(&node.id))?;
    let made = Job {
        id: fresh.job.clone(),
        kind: new.kind,
        node_id: node.id.clone(),
        status: JobStatus::Pending,
        version: 1,
        stage: None,
        attempt: 1,
        execution_id: fresh.execution.clone(),
        purpose: Purpose::Forward,
        first_stage: 0,
        afterwards: None,
        tasks_since: 1,
        failure: None,
        observed: observed(seen.as_ref(), now),
        done: Vec::new(),
        parameters: new.parameters.to_text(),
        learned: "{}".to_owned(),
        clean_record: String::new(),
        requested_by: cause.actor.clone(),
        reason: new.reason.clone(),
        created_at: now,
        updated_at: now,
        finished_at: None,
    };
    let taken = node::save(tx, &Node { active_job: Some(made.id.clone()), ..node.clone() })?;
    let taken = match first {
        Some(stage) => enter(tx, &taken, new.kind, stage, &cause.actor, &new.reason)?,
        None => taken,
    };
    let made = job::insert(tx, &made, &cause.then(domain::job::REQUESTED))?;
    execute(tx, &taken, &made.id, &made.execution_id)?;
    Ok(made)
}

/// A node that is busy by its status and has no job gets the job that its status is about.
pub fn adopt_orphan(tx: &mut Tx<'_>, id: &NodeId, fresh: &Fresh) -> TxResult<()> {
    let Some(there) = lock_node(tx, id)? else { return Ok(()) };
    let kind = match there.status {
        NodeStatus::Enrolling => JobKind::Onboarding(there.ground()),
        NodeStatus::Draining => JobKind::Drain,
        NodeStatus::Removing => JobKind::Removal,
        NodeStatus::BootstrapIssued
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::Deleted => return Ok(()),
    };
    let reason = format!("the node was {} without a job", there.status);
    let parameters = last_parameters(tx, &there, kind)?;
    let new = NewJob { kind, parameters, reason: reason.clone() };
    begin(tx, &there, &new, fresh, &Cause::executor(EXECUTOR, domain::job::REQUESTED, &reason)).map(drop)
}

/// What the last job of this kind was told: one that takes its place goes on with the same.
fn last_parameters(tx: &mut Tx<'_>, node: &Node, kind: JobKind) -> TxResult<Parameters> {
    let last = tx.point(&job::last_of_node(&node.id))?.filter(|job| job.kind == kind);
    Ok(last.map_or_else(Parameters::default, |job| serde_json::from_str(&job.parameters).unwrap_or_default()))
}

/// Locks a node, and its machine before it.
pub fn lock_node(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Option<Node>> {
    let Some(seen) = tx.point(&node::by_id(id))? else { return Ok(None) };
    if let Some(machine) = &seen.machine_id {
        machine::get_for_update(tx, machine)?;
    }
    node::get_for_update(tx, id)
}

fn held(node: &Node, there: &Job) -> Error {
    let way = match there.status.is_under_way() {
        true => format!("wait for it, or cancel it: 'millwright job cancel {}'", there.id),
        false => format!(
            "go on with it ('millwright job resume {0}'), or call it off: 'millwright job cancel {0}'",
            there.id
        ),
    };
    let message = format!("job {} ({}, {}) holds node {}; {way}", there.id, there.kind, there.status, node.id);
    Error::new(Reason::NodeHeld, message).with("job_id", there.id.as_str())
}

/// Has the engine begin an attempt.
pub(super) fn execute(tx: &mut Tx<'_>, node: &Node, job: &JobId, execution: &ExecutionId) -> TxResult<()> {
    let machine = node.machine_id.clone().unwrap_or_else(|| MachineId::from_text(node.id.as_str()));
    execution::insert(
        tx,
        &NewExecution {
            id: execution,
            workflow: JOB_WORKFLOW,
            workflow_version: JOB_WORKFLOW_VERSION,
            subject: job.as_str(),
            machine_id: &machine,
            start_within: START_WITHIN,
        },
    )
}
