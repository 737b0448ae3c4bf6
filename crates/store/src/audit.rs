//! Who asked for what, and what came of it. Changes are written in the transaction that makes them,
//! refusals in one of their own.

use crate::db::{Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::tx::Tx;
use domain::Timestamp;
use domain::filter::{Field, Filter, Schema};

/// What audit entries can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("actor"),
        Field::text("token_id"),
        Field::text("call"),
        Field::text("target"),
        Field::one_of("outcome", &["done", "refused"]),
        Field::text("code"),
        Field::text("reason"),
        Field::text("request_id"),
    ],
    labels: false,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the list; given by the store.
    pub number: u64,
    pub at: Timestamp,
    /// Empty: a stranger.
    pub actor: String,
    pub token_id: String,
    pub role: String,
    pub call: String,
    /// The machine, run, plan or token it was about, where that was known.
    pub target: String,
    /// Of a refusal; empty: it was done.
    pub code: String,
    pub reason: String,
    pub message: String,
    pub request_id: String,
    /// How many refusals this entry stands for.
    pub count: u64,
}

const DONE: &str = "done";
const REFUSED: &str = "refused";

crate::statements! {
    LIST = "SELECT number, at, actor, token_id, role, call, target, outcome, code, reason, message, request_id, count FROM audit WHERE number < $1";
    INSERT = "INSERT INTO audit(at, actor, token_id, role, call, target, outcome, code, reason, message, request_id, count) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
}

impl Entry {
    pub fn outcome(&self) -> &'static str {
        if self.code.is_empty() { DONE } else { REFUSED }
    }
}

pub fn insert(tx: &mut Tx<'_>, e: &Entry) -> TxResult<()> {
    let now = tx.now();
    let values = params![
        now,
        &e.actor,
        &e.token_id,
        &e.role,
        &e.call,
        &e.target,
        e.outcome(),
        &e.code,
        &e.reason,
        &e.message,
        &e.request_id,
        e.count.max(1),
    ];
    tx.exec(INSERT, values)?;
    Ok(())
}

fn read(row: &Row) -> Result<Entry, DbError> {
    Ok(Entry {
        number: row.uint(0)?,
        at: row.time(1)?,
        actor: row.string(2)?,
        token_id: row.string(3)?,
        role: row.string(4)?,
        call: row.string(5)?,
        target: row.string(6)?,
        code: row.string(8)?,
        reason: row.string(9)?,
        message: row.string(10)?,
        request_id: row.string(11)?,
        count: row.uint(12)?,
    })
}

/// Entries, newest first, before a number (`None`: from the newest).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: Option<u64>, limit: usize) -> TxResult<Vec<Entry>> {
    let mut clause = Where::new(vec![before.map_or(Val::Int(i64::MAX), Val::from)]);
    clause.and(filter, &|field| match field {
        "actor" => "actor",
        "token_id" => "token_id",
        "call" => "call",
        "target" => "target",
        "outcome" => "outcome",
        "code" => "code",
        "reason" => "reason",
        "request_id" => "request_id",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY number DESC LIMIT {limit}", clause.sql);
    Ok(tx.rows(&sql, &clause.params)?.iter().map(read).collect::<Result<_, _>>()?)
}
