//! Tasks in the store: queued, handed out under a fence, ended by the agent's word or by time.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::execution;
use crate::filter_sql::Where;
use crate::node;
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::stage::FailureClass;
use domain::task::{DISPATCHED, LEASE, QUEUED, Task, TaskFence, TaskKind, TaskResult, TaskStatus, WITHDRAWN};
use domain::{Error, JobId, NodeId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};

/// What tasks can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        Field::text("node_id"),
        Field::text("job_id"),
        Field::text("stage"),
        Field::text("kind"),
        Field::one_of("status", &["queued", "dispatched", "done", "failed", "expired"]),
        Field::text("ordered_by"),
        Field::time("queued_at"),
        Field::time("dispatched_at"),
    ],
    labels: false,
};

macro_rules! task_columns {
    () => {
        "task_id, node_id, job_id, stage, operation, kind, body, status, version, epoch, fence, requeues, queued_at, dispatched_at, lease_until, take_by, result, signature, expired_because, output_bytes, ordered_by FROM tasks"
    };
}

crate::statements! {
    GET = concat!("SELECT ", task_columns!(), " WHERE task_id = $1");
    BY_OPERATION = concat!("SELECT ", task_columns!(), " WHERE operation = $1");
    LIVE_OF_NODE = concat!("SELECT ", task_columns!(), " WHERE node_id = $1 AND status IN ('queued', 'dispatched')");
    LAST_OF_JOB = concat!("SELECT ", task_columns!(), " WHERE job_id = $1 ORDER BY task_id DESC LIMIT 1");
    LAST_DONE = concat!("SELECT ", task_columns!(), " WHERE job_id = $1 AND stage = $2 AND status = 'done' ORDER BY task_id DESC LIMIT 1");
    LIST = concat!("SELECT ", task_columns!(), " WHERE task_id < $1");
    OVERDUE = concat!("SELECT ", task_columns!(), " WHERE task_id > $1 AND ((status = 'queued' AND take_by <= $2) OR (status = 'dispatched' AND lease_until <= $2)) ORDER BY task_id LIMIT $3");
    INSERT = "INSERT INTO tasks(task_id, node_id, job_id, stage, operation, kind, body, status, version, epoch, fence, requeues, queued_at, take_by, result, signature, expired_because, output_bytes, ordered_by) VALUES ($1, $2, $3, $4, $5, $6, $7, 'queued', 1, 0, 0, 0, $8, $9, '', $10, '', 0, $11)";
    UPDATE = "UPDATE tasks SET version = version + 1, status = $3, epoch = $4, fence = $5, requeues = $6, queued_at = $7, dispatched_at = $8, lease_until = $9, take_by = $10, result = $11, signature = $12, expired_because = $13 WHERE task_id = $1 AND version = $2";
    RENEW = "UPDATE tasks SET lease_until = $4 WHERE task_id = $1 AND epoch = $2 AND fence = $3 AND status = 'dispatched'";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM tasks WHERE task_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

#[derive(Serialize, Deserialize)]
struct ResultRow {
    ok: bool,
    code: String,
    class: String,
    message: String,
    detail: String,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    /// Of results that were stored before it was kept: none.
    #[serde(default)]
    signed_by: String,
}

fn result_to_json(result: Option<&TaskResult>) -> String {
    result.map_or(String::new(), |r| {
        codec::to_json(&ResultRow {
            ok: r.ok,
            code: r.code.clone(),
            class: r.class.as_str().to_owned(),
            message: r.message.clone(),
            detail: r.detail.clone(),
            started_at: r.started_at.map(Timestamp::micros),
            finished_at: r.finished_at.map(Timestamp::micros),
            signed_by: r.signed_by.clone(),
        })
    })
}

fn result_from_json(text: &str, signature: Vec<u8>) -> Result<Option<TaskResult>, DbError> {
    if text.is_empty() {
        return Ok(None);
    }
    let row: ResultRow = codec::from_json("a task's result", text)?;
    Ok(Some(TaskResult {
        ok: row.ok,
        code: row.code,
        class: FailureClass::parse(&row.class).ok_or_else(|| codec::unknown("failure class", &row.class))?,
        message: row.message,
        detail: row.detail,
        signature,
        signed_by: row.signed_by,
        started_at: row.started_at.map(Timestamp::from_micros),
        finished_at: row.finished_at.map(Timestamp::from_micros),
    }))
}

fn read(row: &Row, _: Timestamp) -> Result<Task, DbError> {
    let (job, stage, kind) = (row.string(2)?, row.string(3)?, row.text(5)?);
    Ok(Task {
        id: TaskId::from_text(row.string(0)?),
        node_id: NodeId::from_text(row.string(1)?),
        job: (!job.is_empty()).then(|| (JobId::from_text(job), stage)),
        operation: row.string(4)?,
        kind: TaskKind::parse(kind).ok_or_else(|| codec::unknown("kind of task", kind))?,
        order: row.bytes(6)?.to_vec(),
        status: codec::state(row.text(7)?)?,
        version: row.uint(8)?,
        fence: TaskFence { epoch: row.uint(9)?, counter: row.uint(10)? },
        requeues: u32::try_from(row.uint(11)?).unwrap_or(u32::MAX),
        queued_at: row.time(12)?,
        dispatched_at: row.maybe(13, Row::time)?,
        lease_until: row.maybe(14, Row::time)?,
        take_by: row.time(15)?,
        result: result_from_json(row.text(16)?, row.bytes(17)?.to_vec())?,
        expired_because: row.string(18)?,
        output_bytes: row.uint(19)?,
        ordered_by: row.string(20)?,
    })
}

pub fn by_id(id: &TaskId) -> Point<Task> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

/// The one that carries out an operation.
pub fn by_operation(operation: &str) -> Point<Task> {
    Point { sql: BY_OPERATION, params: vec![Val::from(operation)], read }
}

/// The one that is queued or handed out.
pub fn live_of_node(node: &NodeId) -> Point<Task> {
    Point { sql: LIVE_OF_NODE, params: vec![Val::from(node.as_str())], read }
}

pub fn last_of_job(job: &JobId) -> Point<Task> {
    Point { sql: LAST_OF_JOB, params: vec![Val::from(job.as_str())], read }
}

/// The last one of a job's stage that its agent has done.
pub fn last_done(job: &JobId, stage: &str) -> Point<Task> {
    Point { sql: LAST_DONE, params: vec![Val::from(job.as_str()), Val::from(stage)], read }
}

pub fn get_for_update(tx: &mut Tx<'_>, id: &TaskId) -> TxResult<Option<Task>> {
    tx.locked(LOCK, &by_id(id))
}

/// Newest first, before `before` (all, when empty).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: &str, limit: usize) -> TxResult<Vec<Task>> {
    let mut clause = Where::before(before);
    clause.and(filter, &|field| match field {
        "id" => "task_id",
        "node_id" => "node_id",
        "job_id" => "job_id",
        "stage" => "stage",
        "kind" => "kind",
        "status" => "status",
        "ordered_by" => "ordered_by",
        "queued_at" => "queued_at",
        "dispatched_at" => "dispatched_at",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY task_id DESC LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// Those whose time is up, in order of their ids, after `after`.
pub fn overdue(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<Task>> {
    let now = tx.now();
    Ok(tx.rows(OVERDUE, params![after, now, limit])?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

fn again(tx: &mut Tx<'_>, id: &TaskId) -> TxResult<Task> {
    tx.point(&by_id(id))?.ok_or_else(|| Failure::Lost(format!("task {id}")))
}

/// What a new task is.
pub struct NewTask<'a> {
    pub id: &'a TaskId,
    pub node_id: &'a NodeId,
    pub job: Option<(&'a JobId, &'a str)>,
    pub operation: &'a str,
    pub kind: TaskKind,
    pub order: &'a [u8],
    pub take_by: Timestamp,
}

/// Queues it, unless the same operation was queued before: then that one is the answer.
pub fn queue(tx: &mut Tx<'_>, new: &NewTask<'_>, cause: &Cause) -> TxResult<Task> {
    if let Some(there) = tx.point(&by_operation(new.operation))? {
        return Ok(there);
    }
    let now = tx.now();
    let (job, stage) = new.job.map_or(("", ""), |(job, stage)| (job.as_str(), stage));
    let t = transition(new.id, new.node_id, None, TaskStatus::Queued, 1, new.kind);
    let moved = tx.transition(t, &cause.then(QUEUED), no_guard, |tx| {
        Ok(tx.exec(
            INSERT,
            params![
                new.id.as_str(),
                new.node_id.as_str(),
                job,
                stage,
                new.operation,
                new.kind.as_str(),
                new.order.to_vec(),
                now,
                new.take_by,
                Vec::<u8>::new(),
                &cause.actor,
            ],
        )?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    tx.signal(Signal::NodeChanged(new.node_id.clone()));
    again(tx, new.id)
}

fn write(tx: &mut Tx<'_>, task: &Task) -> Result<u64, DbError> {
    tx.exec(
        UPDATE,
        params![
            task.id.as_str(),
            task.version,
            codec::spelt(task.status),
            task.fence.epoch,
            task.fence.counter,
            task.requeues,
            task.queued_at,
            task.dispatched_at,
            task.lease_until,
            task.take_by,
            result_to_json(task.result.as_ref()),
            task.result.as_ref().map_or(Vec::new(), |r| r.signature.clone()),
            &task.expired_because,
        ],
    )
}

/// A move, and what it brings with it: `after` is how the task is to be. Its job's execution is woken.
pub fn move_to(tx: &mut Tx<'_>, before: &Task, after: &Task, cause: &Cause) -> TxResult<Task> {
    let (from, to) = (Some(before.status), after.status);
    let t = transition(&before.id, &before.node_id, from, to, before.version + 1, before.kind);
    match tx.transition(t, cause, no_guard, |tx| Ok(write(tx, after)?))? {
        Moved::Moved => {}
        Moved::AlreadyThere => return Ok(before.clone()),
    }
    if let Some((job, _)) = &before.job {
        tx.signal(Signal::JobChanged(job.clone()));
        if let Some(job) = tx.point(&crate::job::by_id(job))? {
            execution::wake(tx, &job.execution_id)?;
        }
    }
    tx.signal(Signal::NodeChanged(before.node_id.clone()));
    again(tx, &before.id)
}

/// Hands the queued task of a node to its agent, under a fence above every one before it.
pub fn dispatch(tx: &mut Tx<'_>, task: &Task, actor: &str) -> TxResult<Task> {
    let now = tx.now();
    let fence = TaskFence { epoch: execution::epoch(tx)?, counter: node::raise_fence(tx, &task.node_id)? };
    let lease_until = Some(now.plus(LEASE));
    let after = Task { status: TaskStatus::Dispatched, fence, dispatched_at: Some(now), lease_until, ..task.clone() };
    move_to(tx, task, &after, &Cause::node(actor, DISPATCHED, &format!("fence {fence}")))
}

/// Takes back the live task of a node, if there is one: whoever was given it is not asked any more. In a transaction that
/// has the node's row. The cause's comment is why.
pub fn withdraw_of_node(tx: &mut Tx<'_>, node: &NodeId, cause: &Cause) -> TxResult<()> {
    let Some(live) = tx.point(&live_of_node(node))? else { return Ok(()) };
    let Some(there) = get_for_update(tx, &live.id)?.filter(|there| there.status.is_live()) else { return Ok(()) };
    let expired_because = cause.comment.clone();
    let after = Task { status: TaskStatus::Expired, lease_until: None, expired_because, ..there.clone() };
    move_to(tx, &there, &after, &cause.then(WITHDRAWN)).map(drop)
}

/// Its agent is at it. `false`: not under that fence, or not any more.
pub fn renew(tx: &mut Tx<'_>, id: &TaskId, fence: TaskFence) -> TxResult<bool> {
    let until = tx.now().plus(LEASE);
    Ok(tx.exec(RENEW, params![id.as_str(), fence.epoch, fence.counter, until])? == 1)
}

fn transition<'a>(
    id: &'a TaskId,
    node: &'a NodeId,
    from: Option<TaskStatus>,
    to: TaskStatus,
    version: u64,
    kind: TaskKind,
) -> Transition<'a, TaskStatus> {
    let metadata = codec::to_json(&serde_json::json!({ "kind": kind.as_str() }));
    Transition { entity_id: id.as_str(), subject: node.as_str(), customer_id: "", from, to, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
