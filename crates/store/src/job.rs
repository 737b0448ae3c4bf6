//! Jobs in the store.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::job::{Afterwards, Job, JobFailure, JobStatus, Purpose, StageDone};
use domain::job_stage::{JobKind, JobStage};
use domain::stage::FailureClass;
use domain::{Error, ExecutionId, JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// What jobs can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        Field::one_of("kind", &["onboarding", "drain", "removal", "decommission"]),
        Field::one_of("mode", &["soft_reset", "storage_cleanup", "full_decommission"]),
        Field::text("node_id"),
        Field::one_of(
            "status",
            &[
                "pending",
                "running",
                "completed",
                "failed_retryable",
                "failed_manual_intervention",
                "cancelled",
                "compensating",
                "reconciled",
            ],
        ),
        Field::text("stage"),
        Field::text("failure_class"),
        Field::text("failure_code"),
        Field::text("requested_by"),
        Field::number("attempt"),
        Field::time("created_at"),
        Field::time("updated_at"),
        Field::time("finished_at"),
    ],
    labels: false,
};

macro_rules! job_columns {
    () => {
        "job_id, kind, mode, node_id, status, version, stage, attempt, execution_id, purpose, first_stage, afterwards, failure_class, failure_code, failure_message, observed, done, parameters, clean_record, requested_by, reason, created_at, updated_at, finished_at, tasks_since, ground, learned FROM jobs"
    };
}

crate::statements! {
    GET = concat!("SELECT ", job_columns!(), " WHERE job_id = $1");
    OPEN_OF_NODE = concat!("SELECT ", job_columns!(), " WHERE node_id = $1 AND status NOT IN ('completed', 'cancelled', 'reconciled')");
    LEARNED_OF_NODE = "SELECT learned FROM jobs WHERE node_id = $1 AND ground <> 'bundle' ORDER BY job_id DESC LIMIT 8";
    LAST_OF_NODE = concat!("SELECT ", job_columns!(), " WHERE node_id = $1 ORDER BY job_id DESC LIMIT 1");
    LIST = concat!("SELECT ", job_columns!(), " WHERE job_id < $1");
    LEFT = "SELECT j.job_id FROM jobs j JOIN executions e ON e.execution_id = j.execution_id WHERE j.job_id > $1 AND j.status IN ('pending', 'running', 'compensating') AND e.status IN ('done', 'failed', 'canceled', 'terminated') ORDER BY j.job_id LIMIT $2";
    INSERT = "INSERT INTO jobs(job_id, kind, mode, node_id, status, version, stage, attempt, execution_id, purpose, first_stage, afterwards, failure_class, failure_code, failure_message, observed, done, parameters, clean_record, requested_by, reason, created_at, updated_at, tasks_since, ground, learned) VALUES ($1, $2, $3, $4, 'pending', 1, '', 1, $5, 'forward', 0, '', '', '', '', $6, '[]', $7, '', $8, $9, $10, $10, 1, $11, $12)";
    UPDATE = "UPDATE jobs SET version = version + 1, status = $3, stage = $4, attempt = $5, execution_id = $6, purpose = $7, first_stage = $8, afterwards = $9, failure_class = $10, failure_code = $11, failure_message = $12, observed = $13, done = $14, clean_record = $15, updated_at = $16, finished_at = $17, parameters = $18, tasks_since = $19, ground = $20, learned = $21 WHERE job_id = $1 AND version = $2";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM jobs WHERE job_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

#[derive(Serialize, Deserialize)]
struct DoneRow {
    stage: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    adopted_by: String,
    message: String,
    at: i64,
}

fn done_to_json(done: &[StageDone]) -> String {
    let rows: Vec<DoneRow> = done
        .iter()
        .map(|d| DoneRow {
            stage: d.stage.as_str().to_owned(),
            adopted_by: d.adopted_by.clone(),
            message: d.message.clone(),
            at: d.at.micros(),
        })
        .collect();
    codec::to_json(&rows)
}

fn stage_of(text: &str) -> Result<JobStage, DbError> {
    JobStage::parse(text).ok_or_else(|| codec::unknown("stage", text))
}

fn done_from_json(text: &str) -> Result<Vec<StageDone>, DbError> {
    let read = |row: DoneRow| {
        Ok(StageDone {
            stage: stage_of(&row.stage)?,
            adopted_by: row.adopted_by,
            message: row.message,
            at: Timestamp::from_micros(row.at),
        })
    };
    codec::from_json::<Vec<DoneRow>>("the stages of a job", text)?.into_iter().map(read).collect()
}

fn read(row: &Row, _: Timestamp) -> Result<Job, DbError> {
    let (kind, mode, ground, stage) = (row.text(1)?, row.text(2)?, row.text(25)?, row.text(6)?);
    let (purpose, afterwards, class) = (row.text(9)?, row.text(11)?, row.text(12)?);
    let failure = if class.is_empty() {
        None
    } else {
        let class = FailureClass::parse(class).ok_or_else(|| codec::unknown("failure class", class))?;
        Some(JobFailure { class, code: row.string(13)?, message: row.string(14)? })
    };
    Ok(Job {
        id: JobId::from_text(row.string(0)?),
        kind: JobKind::parse(kind, mode, ground)
            .ok_or_else(|| codec::unknown("kind of job", &format!("{kind} {mode} {ground}")))?,
        node_id: NodeId::from_text(row.string(3)?),
        status: codec::state(row.text(4)?)?,
        version: row.uint(5)?,
        stage: if stage.is_empty() { None } else { Some(stage_of(stage)?) },
        attempt: u32::try_from(row.uint(7)?).unwrap_or(u32::MAX),
        execution_id: ExecutionId::from_text(row.string(8)?),
        purpose: Purpose::parse(purpose).ok_or_else(|| codec::unknown("purpose", purpose))?,
        first_stage: usize::try_from(row.uint(10)?).unwrap_or(usize::MAX),
        afterwards: match afterwards {
            "" => None,
            text => Some(Afterwards::parse(text).ok_or_else(|| codec::unknown("what follows", text))?),
        },
        failure,
        observed: row.string(15)?,
        done: done_from_json(row.text(16)?)?,
        parameters: row.string(17)?,
        clean_record: row.string(18)?,
        requested_by: row.string(19)?,
        reason: row.string(20)?,
        created_at: row.time(21)?,
        updated_at: row.time(22)?,
        finished_at: row.maybe(23, Row::time)?,
        tasks_since: u32::try_from(row.uint(24)?).unwrap_or(u32::MAX),
        learned: row.string(26)?,
    })
}

pub fn by_id(id: &JobId) -> Point<Job> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

/// The one that has not ended.
pub fn open_of_node(node: &NodeId) -> Point<Job> {
    Point { sql: OPEN_OF_NODE, params: vec![Val::from(node.as_str())], read }
}

/// What the last few jobs of a node that somebody deploys have learned, the newest first.
pub fn learned_of_node(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<Vec<String>> {
    let read = |row: &Row| row.string(0);
    Ok(tx.rows(LEARNED_OF_NODE, params![node.as_str()])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// The newest, ended or not.
pub fn last_of_node(node: &NodeId) -> Point<Job> {
    Point { sql: LAST_OF_NODE, params: vec![Val::from(node.as_str())], read }
}

pub fn get_for_update(tx: &mut Tx<'_>, id: &JobId) -> TxResult<Option<Job>> {
    tx.locked(LOCK, &by_id(id))
}

/// Newest first, before `before` (all, when empty).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: &str, limit: usize) -> TxResult<Vec<Job>> {
    let mut clause = Where::before(before);
    clause.and(filter, &|field| match field {
        "id" => "job_id",
        "kind" => "kind",
        "mode" => "mode",
        "node_id" => "node_id",
        "status" => "status",
        "stage" => "stage",
        "failure_class" => "failure_class",
        "failure_code" => "failure_code",
        "requested_by" => "requested_by",
        "attempt" => "attempt",
        "created_at" => "created_at",
        "updated_at" => "updated_at",
        "finished_at" => "finished_at",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY job_id DESC LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// Those that are under way and whose execution has ended, in order of their ids, after `after`.
pub fn left_by_their_execution(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<JobId>> {
    let rows = tx.rows(LEFT, params![after, limit])?;
    Ok(rows.iter().map(|row| row.string(0).map(JobId::from_text)).collect::<Result<_, _>>()?)
}

/// A job that was not there, with its first attempt: the caller inserts the execution that it names.
pub fn insert(tx: &mut Tx<'_>, job: &Job, cause: &Cause) -> TxResult<Job> {
    let now = tx.now();
    let t = transition(job, None, JobStatus::Pending, 1);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(
            INSERT,
            params![
                job.id.as_str(),
                job.kind.as_str(),
                job.kind.mode(),
                job.node_id.as_str(),
                job.execution_id.as_str(),
                &job.observed,
                &job.parameters,
                &job.requested_by,
                &job.reason,
                now,
                job.kind.ground().as_str(),
                &job.learned,
            ],
        )?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    tx.signal(Signal::JobChanged(job.id.clone()));
    again(tx, &job.id)
}

fn again(tx: &mut Tx<'_>, id: &JobId) -> TxResult<Job> {
    tx.point(&by_id(id))?.ok_or_else(|| Failure::Lost(format!("job {id}")))
}

fn write(tx: &mut Tx<'_>, job: &Job) -> Result<u64, DbError> {
    let now = tx.now();
    let failure = job.failure.as_ref();
    tx.exec(
        UPDATE,
        params![
            job.id.as_str(),
            job.version,
            codec::spelt(job.status),
            job.stage.map_or("", JobStage::as_str),
            job.attempt,
            job.execution_id.as_str(),
            job.purpose.as_str(),
            job.first_stage,
            job.afterwards.map_or("", Afterwards::as_str),
            failure.map_or("", |f| f.class.as_str()),
            failure.map_or("", |f| f.code.as_str()),
            failure.map_or("", |f| f.message.as_str()),
            &job.observed,
            done_to_json(&job.done),
            &job.clean_record,
            now,
            job.finished_at,
            &job.parameters,
            job.tasks_since,
            job.kind.ground().as_str(),
            &job.learned,
        ],
    )
}

/// What is known of one that stays in its status; `job` has the version that was read.
pub fn save(tx: &mut Tx<'_>, job: &Job) -> TxResult<Job> {
    if write(tx, job)? != 1 {
        return Err(Failure::Lost(format!("job {}", job.id)));
    }
    tx.signal(Signal::JobChanged(job.id.clone()));
    again(tx, &job.id)
}

/// A move, and what it brings with it: `after` is how the job is to be.
pub fn move_to(tx: &mut Tx<'_>, before: &Job, after: &Job, cause: &Cause) -> TxResult<Job> {
    let now = tx.now();
    let after = Job { finished_at: after.status.is_terminal().then_some(now), ..after.clone() };
    let t = transition(&after, Some(before.status), after.status, before.version + 1);
    match tx.transition(t, cause, no_guard, |tx| Ok(write(tx, &after)?))? {
        Moved::Moved => tx.signal(Signal::JobChanged(before.id.clone())),
        Moved::AlreadyThere => return save(tx, &after),
    }
    again(tx, &before.id)
}

/// In the history of its node, with what it was at.
fn transition(job: &Job, from: Option<JobStatus>, to: JobStatus, version: u64) -> Transition<'_, JobStatus> {
    let mut metadata = serde_json::json!({
        "kind": job.kind.as_str(), "stage": job.stage.map_or("", JobStage::as_str), "attempt": job.attempt,
    });
    if let Some(failure) = &job.failure {
        metadata["failure"] = serde_json::json!({ "class": failure.class.as_str(), "code": failure.code });
    }
    Transition {
        entity_id: job.id.as_str(),
        subject: job.node_id.as_str(),
        customer_id: "",
        from,
        to,
        version,
        metadata: codec::to_json(&metadata),
    }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
