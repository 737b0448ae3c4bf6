//! The engine's own records: executions with their fence, and their journals. Apart from the product's
//! rows, but committed together with them.

use crate::codec::{from_json, to_json};
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::signal::Signal;
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::stage::{Ending, Position};
use domain::{ExecutionId, MachineId, SessionId, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Who may write: raised by every claim. The epoch is raised when a backup is restored, so that a
/// holder from before cannot win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    pub epoch: u64,
    pub counter: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Wants a worker.
    Ready,
    /// Held by a session.
    Running,
    /// Sleeps until `wake_at`; nobody holds it.
    Waiting,
    Done,
    Failed,
    Canceled,
    /// Ended from outside, running no more of its code.
    Terminated,
}

impl Status {
    pub const ALL: [Status; 7] = [
        Status::Ready,
        Status::Running,
        Status::Waiting,
        Status::Done,
        Status::Failed,
        Status::Canceled,
        Status::Terminated,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Ready => "ready",
            Status::Running => "running",
            Status::Waiting => "waiting",
            Status::Done => "done",
            Status::Failed => "failed",
            Status::Canceled => "canceled",
            Status::Terminated => "terminated",
        }
    }

    pub const fn is_terminal(self) -> bool {
        match self {
            Status::Ready | Status::Running | Status::Waiting => false,
            Status::Done | Status::Failed | Status::Canceled | Status::Terminated => true,
        }
    }

    pub const fn of_ending(ending: Ending) -> Self {
        match ending {
            Ending::Done => Status::Done,
            Ending::Failed => Status::Failed,
            Ending::Canceled => Status::Canceled,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelRequest {
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    pub id: ExecutionId,
    pub workflow: String,
    pub workflow_version: u32,
    /// The product record it carries out.
    pub subject: String,
    pub machine_id: MachineId,
    pub status: Status,
    pub position: Position,
    /// The stage at that position, for people.
    pub stage: String,
    /// A lost holder's last call may still be in the air: whoever claims this waits so long, by its own
    /// clock, before it acts.
    pub settle: Duration,
    /// What the stage has stored for its next look, as JSON.
    pub facts: String,
    /// The last failure, as JSON; empty if none.
    pub failure: String,
    pub waiting_for: String,
    pub wake_at: Timestamp,
    /// Of the attempt in hand; before the first one, of the start.
    pub deadline: Timestamp,
    pub holder: Option<SessionId>,
    pub fence: Fence,
    pub cancel: Option<CancelRequest>,
    /// Entries in its journal.
    pub entries: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What executions can be listed by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("execution_id"),
        Field::text("subject"),
        Field::text("machine_id"),
        Field::one_of("status", &["ready", "running", "waiting", "done", "failed", "canceled", "terminated"]),
        Field::text("workflow"),
    ],
    labels: false,
};

macro_rules! execution_columns {
    () => {
        "execution_id, workflow, workflow_version, subject, machine_id, status, position, stage, settle_ms, facts, failure, waiting_for, wake_at, deadline, holder, epoch, fence, cancel_by, cancel_reason, entries, created_at, updated_at"
    };
}

macro_rules! claim {
    ($of:literal, $lock:literal) => {
        concat!(
            "UPDATE executions SET status = 'running', holder = $2, fence = fence + 1, epoch = $4, updated_at = $1 WHERE execution_id ",
            $of,
            "SELECT execution_id FROM executions WHERE status IN ('ready', 'waiting') AND wake_at <= $1 ORDER BY wake_at, execution_id LIMIT $3",
            $lock,
            " RETURNING ",
            execution_columns!()
        )
    };
}

crate::statements! {
    GET = concat!("SELECT ", execution_columns!(), " FROM executions WHERE execution_id = $1");
    BY_SUBJECT = concat!("SELECT ", execution_columns!(), " FROM executions WHERE subject = $1 ORDER BY execution_id DESC LIMIT 1");
    LIST = concat!("SELECT ", execution_columns!(), " FROM executions WHERE execution_id < $1");
    OPEN = concat!("SELECT ", execution_columns!(), " FROM executions WHERE status IN ('ready', 'running', 'waiting') AND workflow = $1 ORDER BY execution_id LIMIT $2");
    OPEN_OF_SUBJECTS = concat!("SELECT ", execution_columns!(), " FROM executions WHERE status IN ('ready', 'running', 'waiting') AND subject IN ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32)");
    INSERT = "INSERT INTO executions(execution_id, workflow, workflow_version, subject, machine_id, status, position, stage, attempt, settle_ms, facts, failure, waiting_for, wake_at, deadline, holder, epoch, fence, cancel_by, cancel_reason, entries, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, 'ready', $6, '', 0, 0, '{}', '', $7, $8, $9, NULL, $10, 0, '', '', 1, $8, $8)";
    JOURNAL_INSERT = "INSERT INTO journal(execution_id, number, at, fence, entry, detail) VALUES ($1, $2, $3, $4, $5, $6)";
    JOURNAL = "SELECT number, at, fence, entry, detail FROM journal WHERE execution_id = $1 ORDER BY number LIMIT $2";
    RECORD = "UPDATE executions SET status = $5, position = $6, stage = $7, attempt = $8, settle_ms = $9, facts = $10, failure = $11, waiting_for = $12, wake_at = CASE WHEN cancel_by <> '' AND $19 = 0 THEN CAST($17 AS BIGINT) ELSE CAST($13 AS BIGINT) END, deadline = $14, holder = $15, entries = $16, updated_at = $17 WHERE execution_id = $1 AND epoch = $2 AND fence = $3 AND holder = $4 AND status = 'running' AND entries = $18 AND EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = $4 AND s.state = 'live')";
    STILL_HELD = "SELECT 1 FROM executions WHERE execution_id = $1 AND epoch = $2 AND fence = $3 AND holder = $4 AND status = 'running'";
    WAKE = "UPDATE executions SET wake_at = $2, updated_at = $2 WHERE execution_id = $1 AND status = 'waiting' AND wake_at > $2";
    NEXT_WAKE = "SELECT wake_at FROM executions WHERE status IN ('ready', 'waiting') ORDER BY wake_at LIMIT 1";
    REQUEST_CANCEL = "UPDATE executions SET cancel_by = $2, cancel_reason = $3, wake_at = CASE WHEN status = 'running' THEN wake_at ELSE $4 END, updated_at = $4 WHERE execution_id = $1 AND cancel_by = '' AND status IN ('ready', 'running', 'waiting')";
    HELD_BY = "SELECT execution_id, cancel_by FROM executions WHERE holder = $1 AND status = 'running' ORDER BY execution_id";
    END_FROM_OUTSIDE = "UPDATE executions SET status = $2, fence = fence + 1, holder = NULL, waiting_for = '', entries = entries + 1, updated_at = $3 WHERE execution_id = $1 AND status IN ('ready', 'running', 'waiting') RETURNING entries, fence";
    EPOCH = "SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'epoch'";
    ACT_COUNT = "SELECT COUNT(*), COALESCE(MIN(at), 0) FROM destructive_acts WHERE rack = $1 AND at > $2";
    ACT_INSERT = "INSERT INTO destructive_acts(rack, at, execution_id, stage) VALUES ($1, $2, $3, $4)";
    ACT_FORGET = "DELETE FROM destructive_acts WHERE rack = $1 AND at <= $2";
}

// as an array, the rows to take are looked for once, and no more are locked than the limit says
const CLAIM: Pair =
    Pair { sqlite: claim!("IN (", ")"), postgres: claim!("= ANY (ARRAY(", " FOR UPDATE SKIP LOCKED))") };

macro_rules! alive {
    () => {
        "SELECT 1 FROM sessions WHERE session_id = $1 AND state = 'live'"
    };
}

/// Whether a session lives; on PostgreSQL nobody can end it before this transaction has ended.
const ALIVE: Pair = Pair { sqlite: alive!(), postgres: concat!(alive!(), " FOR SHARE") };

/// One at a time counts the acts of a rack. SQLite has one writer.
const ACT_LOCK: Pair = Pair { sqlite: "SELECT $1", postgres: "SELECT pg_advisory_xact_lock(7701, hashtext($1))::text" };

const GET_FOR_UPDATE: Pair = Pair {
    sqlite: GET,
    postgres: concat!("SELECT ", execution_columns!(), " FROM executions WHERE execution_id = $1 FOR UPDATE"),
};

pub(crate) const PAIRS: &[(&str, Pair)] =
    &[("CLAIM", CLAIM), ("ALIVE", ALIVE), ("ACT_LOCK", ACT_LOCK), ("GET_FOR_UPDATE", GET_FOR_UPDATE)];

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PositionRow {
    Start,
    Stage { index: usize, attempt: u32 },
    Undo { index: usize, attempt: u32, ending: String },
}

fn position_to_json(position: Position) -> String {
    to_json(&match position {
        Position::Start => PositionRow::Start,
        Position::Stage { index, attempt } => PositionRow::Stage { index, attempt },
        Position::Undo { index, attempt, ending } => {
            PositionRow::Undo { index, attempt, ending: ending.as_str().to_owned() }
        }
    })
}

fn position_from_json(text: &str) -> Result<Position, DbError> {
    Ok(match from_json("a position", text)? {
        PositionRow::Start => Position::Start,
        PositionRow::Stage { index, attempt } => Position::Stage { index, attempt },
        PositionRow::Undo { index, attempt, ending } => Position::Undo {
            index,
            attempt,
            ending: Ending::parse(&ending).ok_or_else(|| DbError::Defect(format!("ending {ending:?} is unknown")))?,
        },
    })
}

pub const fn attempt_of(position: Position) -> u32 {
    match position {
        Position::Start => 0,
        Position::Stage { attempt, .. } | Position::Undo { attempt, .. } => attempt,
    }
}

fn read(row: &Row) -> Result<Execution, DbError> {
    let status = row.text(5)?;
    let cancel_by = row.string(17)?;
    Ok(Execution {
        id: ExecutionId::from_text(row.string(0)?),
        workflow: row.string(1)?,
        workflow_version: u32::try_from(row.uint(2)?).unwrap_or(u32::MAX),
        subject: row.string(3)?,
        machine_id: MachineId::from_text(row.string(4)?),
        status: Status::ALL
            .into_iter()
            .find(|s| s.as_str() == status)
            .ok_or_else(|| DbError::Defect(format!("execution status {status:?} is unknown")))?,
        position: position_from_json(row.text(6)?)?,
        stage: row.string(7)?,
        settle: Duration::from_millis(row.uint(8)?),
        facts: row.string(9)?,
        failure: row.string(10)?,
        waiting_for: row.string(11)?,
        wake_at: row.time(12)?,
        deadline: row.time(13)?,
        holder: row.maybe(14, Row::string)?.map(SessionId::from_text),
        fence: Fence { epoch: row.uint(15)?, counter: row.uint(16)? },
        cancel: if cancel_by.is_empty() {
            None
        } else {
            Some(CancelRequest { by: cancel_by, reason: row.string(18)? })
        },
        entries: row.uint(19)?,
        created_at: row.time(20)?,
        updated_at: row.time(21)?,
    })
}

/// Raised when a backup is restored.
pub fn epoch(tx: &mut Tx<'_>) -> TxResult<u64> {
    tx.row(EPOCH, &[])?.map_or(Ok(1), |row| Ok(row.uint(0)?))
}

/// What a new execution is about.
pub struct NewExecution<'a> {
    pub id: &'a ExecutionId,
    pub workflow: &'a str,
    pub workflow_version: u32,
    pub subject: &'a str,
    pub machine_id: &'a MachineId,
    pub start_within: Duration,
}

/// Stores intent; a claim carries it out.
pub fn insert(tx: &mut Tx<'_>, new: &NewExecution<'_>) -> TxResult<()> {
    let (now, epoch) = (tx.now(), epoch(tx)?);
    tx.exec(
        INSERT,
        params![
            new.id.as_str(),
            new.workflow,
            new.workflow_version,
            new.subject,
            new.machine_id.as_str(),
            position_to_json(Position::Start),
            "a free worker",
            now,
            now.plus(new.start_within),
            epoch,
        ],
    )?;
    let fence = Fence { epoch, counter: 0 };
    tx.exec(JOURNAL_INSERT, params![new.id.as_str(), 1i64, now, fence.to_string(), "requested", "{}"])?;
    tx.signal(Signal::WorkReady);
    Ok(())
}

pub fn get(tx: &mut Tx<'_>, id: &ExecutionId) -> TxResult<Option<Execution>> {
    Ok(tx.row(GET, params![id.as_str()])?.as_ref().map(read).transpose()?)
}

pub fn get_for_update(tx: &mut Tx<'_>, id: &ExecutionId) -> TxResult<Option<Execution>> {
    Ok(tx.pair(GET_FOR_UPDATE, params![id.as_str()])?.first().map(read).transpose()?)
}

/// The newest execution of a product record.
pub fn by_subject(tx: &mut Tx<'_>, subject: &str) -> TxResult<Option<Execution>> {
    Ok(tx.row(BY_SUBJECT, params![subject])?.as_ref().map(read).transpose()?)
}

/// Subjects looked up in one statement.
const SUBJECTS: usize = 32;

/// The executions of these subjects that have not ended.
pub fn open_of_subjects(tx: &mut Tx<'_>, subjects: &[String]) -> TxResult<Vec<Execution>> {
    let mut found = Vec::new();
    for chunk in subjects.chunks(SUBJECTS) {
        let mut values: Vec<Val> = chunk.iter().map(Val::from).collect();
        values.resize(SUBJECTS, Val::from(""));
        for row in tx.rows(OPEN_OF_SUBJECTS, &values)? {
            found.push(read(&row)?);
        }
    }
    Ok(found)
}

/// Newest first, before `before` (all, when empty).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: &str, limit: usize) -> TxResult<Vec<Execution>> {
    let mut clause = Where::before(before);
    clause.and(filter, &|field| match field {
        "execution_id" => "execution_id",
        "subject" => "subject",
        "machine_id" => "machine_id",
        "status" => "status",
        "workflow" => "workflow",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY execution_id DESC LIMIT {limit}", clause.sql);
    Ok(tx.rows(&sql, &clause.params)?.iter().map(read).collect::<Result<_, _>>()?)
}

/// Executions of one kind that have not ended, oldest first.
pub fn list_open(tx: &mut Tx<'_>, workflow: &str, limit: usize) -> TxResult<Vec<Execution>> {
    Ok(tx.rows(OPEN, params![workflow, limit])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// Takes due executions for a session, the longest due first, raising their fences. A session that was
/// declared dead without knowing it takes nothing: nobody would ever take it away again.
pub fn claim(tx: &mut Tx<'_>, session: &SessionId, limit: usize) -> TxResult<Vec<Execution>> {
    if tx.pair(ALIVE, params![session.as_str()])?.is_empty() {
        return Ok(Vec::new());
    }
    let (now, epoch) = (tx.now(), epoch(tx)?);
    let rows = tx.pair(CLAIM, params![now, session.as_str(), limit, epoch])?;
    let mut claimed: Vec<Execution> = rows.iter().map(read).collect::<Result<_, _>>()?;
    // an UPDATE returns its rows in any order
    claimed.sort_by(|a, b| (a.wake_at, &a.id).cmp(&(b.wake_at, &b.id)));
    Ok(claimed)
}

/// When the next execution is due.
pub fn next_wake(tx: &mut Tx<'_>) -> TxResult<Option<Timestamp>> {
    Ok(tx.row(NEXT_WAKE, &[])?.map(|row| row.time(0)).transpose()?)
}

/// One line of an execution's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub entry: &'static str,
    pub detail: serde_json::Value,
}

/// Writes the execution as the worker has it, with journal entries. Refused if the fence, the holder or
/// the session is no longer the worker's: the caller's whole transaction goes with it. A worker that puts
/// it to sleep without having seen that somebody asked it to stop finds it due at once.
pub fn record(tx: &mut Tx<'_>, session: &SessionId, execution: &mut Execution, entries: &[Entry]) -> TxResult<()> {
    let now = tx.now();
    let last = execution.entries + entries.len() as u64;
    let changed = tx.exec(
        RECORD,
        params![
            execution.id.as_str(),
            execution.fence.epoch,
            execution.fence.counter,
            session.as_str(),
            execution.status.as_str(),
            position_to_json(execution.position),
            &execution.stage,
            attempt_of(execution.position),
            u64::try_from(execution.settle.as_millis()).unwrap_or(u64::MAX),
            &execution.facts,
            &execution.failure,
            &execution.waiting_for,
            execution.wake_at,
            execution.deadline,
            execution.holder.as_ref().map(SessionId::as_str),
            last,
            now,
            execution.entries,
            execution.cancel.is_some(),
        ],
    )?;
    if changed != 1 {
        return Err(fenced(execution));
    }
    for (number, entry) in (execution.entries + 1..).zip(entries) {
        let fence = execution.fence.to_string();
        tx.exec(
            JOURNAL_INSERT,
            params![execution.id.as_str(), number, now, fence, entry.entry, entry.detail.to_string()],
        )?;
    }
    execution.entries = last;
    execution.updated_at = now;
    Ok(())
}

/// Why the product's rows could not follow a worker. Rows that a newer holder has moved on are in no state
/// that its predecessor knows: that is no defect, and the fence says so.
pub fn failed_or_fenced(tx: &mut Tx<'_>, session: &SessionId, execution: &Execution, failure: Failure) -> Failure {
    let fence = &execution.fence;
    let still = tx.row(STILL_HELD, params![execution.id.as_str(), fence.epoch, fence.counter, session.as_str()]);
    match still {
        Ok(None) => fenced(execution),
        // held all the same; or the database has failed, and says no more than that
        Ok(Some(_)) | Err(_) => failure,
    }
}

fn fenced(execution: &Execution) -> Failure {
    Failure::Fenced(format!("execution {} with fence {}", execution.id, execution.fence))
}

/// Asks an execution to stop. The first request counts; `false`: it was asked before, or has ended.
pub fn request_cancel(tx: &mut Tx<'_>, id: &ExecutionId, request: &CancelRequest) -> TxResult<bool> {
    let now = tx.now();
    let changed = tx.exec(REQUEST_CANCEL, params![id.as_str(), &request.by, &request.reason, now])?;
    tx.signal(Signal::CancelRequested(id.clone()));
    tx.signal(Signal::WorkReady);
    Ok(changed == 1)
}

/// What it waits for may have come: it is looked at again at once. One that a worker has looks by itself.
pub fn wake(tx: &mut Tx<'_>, id: &ExecutionId) -> TxResult<()> {
    let now = tx.now();
    if tx.exec(WAKE, params![id.as_str(), now])? == 1 {
        tx.signal(Signal::WorkReady);
    }
    Ok(())
}

/// An execution that a session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub id: ExecutionId,
    pub cancel_requested: bool,
}

pub fn held_by(tx: &mut Tx<'_>, session: &SessionId) -> TxResult<Vec<Held>> {
    let read = |row: &Row| -> Result<Held, DbError> {
        Ok(Held { id: ExecutionId::from_text(row.string(0)?), cancel_requested: !row.text(1)?.is_empty() })
    };
    Ok(tx.rows(HELD_BY, params![session.as_str()])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// Ends an execution whoever holds it; the holder's next write is refused. `false`: it had ended.
pub fn end_from_outside(tx: &mut Tx<'_>, execution: &Execution, status: Status, entry: &Entry) -> TxResult<bool> {
    let now = tx.now();
    let rows = tx.rows(END_FROM_OUTSIDE, params![execution.id.as_str(), status.as_str(), now])?;
    let Some(row) = rows.first() else { return Ok(false) };
    let fence = Fence { epoch: execution.fence.epoch, counter: row.uint(1)? };
    let params =
        params![execution.id.as_str(), row.uint(0)?, now, fence.to_string(), entry.entry, entry.detail.to_string()];
    tx.exec(JOURNAL_INSERT, params)?;
    tx.signal(Signal::CancelRequested(execution.id.clone()));
    Ok(true)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    pub number: u64,
    pub at: Timestamp,
    pub fence: String,
    pub entry: String,
    pub detail: String,
}

pub fn journal(tx: &mut Tx<'_>, id: &ExecutionId, limit: usize) -> TxResult<Vec<JournalRow>> {
    let read = |row: &Row| -> Result<JournalRow, DbError> {
        Ok(JournalRow {
            number: row.uint(0)?,
            at: row.time(1)?,
            fence: row.string(2)?,
            entry: row.string(3)?,
            detail: row.string(4)?,
        })
    };
    Ok(tx.rows(JOURNAL, params![id.as_str(), limit])?.iter().map(read).collect::<Result<_, _>>()?)
}

const CAP_WINDOW: Duration = Duration::from_secs(3600);

/// Counts a destructive act against its rack's cap. `Some(when)`: the cap is reached until then.
pub fn count_destructive(
    tx: &mut Tx<'_>,
    rack: &str,
    cap: u64,
    id: &ExecutionId,
    stage: &str,
) -> TxResult<Option<Timestamp>> {
    let now = tx.now();
    let window = now.minus(CAP_WINDOW);
    tx.pair(ACT_LOCK, params![rack])?;
    let row = tx.row(ACT_COUNT, params![rack, window])?;
    let (count, oldest) = row.map_or(Ok((0, now)), |r| Ok::<_, DbError>((r.uint(0)?, r.time(1)?)))?;
    if count >= cap {
        // a cap of nothing at all never has room
        return Ok(Some(if count == 0 { now } else { oldest }.plus(CAP_WINDOW)));
    }
    tx.exec(ACT_FORGET, params![rack, window])?;
    tx.exec(ACT_INSERT, params![rack, now, id.as_str(), stage])?;
    Ok(None)
}
