//! Who asked for what, and what came of it. Changes are written in the transaction that makes them,
//! refusals in one of their own; what is done outside the database before it begins, and again when it ended.

use crate::db::{Row, Val};
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
        Field::one_of("outcome", &[DONE, REFUSED, BEGUN]),
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
    /// It was put on record before it was done; another entry tells how it ended. Without one that is not known.
    pub begun: bool,
}

const DONE: &str = "done";
const REFUSED: &str = "refused";
const BEGUN: &str = "begun";

crate::statements! {
    LIST = "SELECT number, at, actor, token_id, role, call, target, outcome, code, reason, message, request_id, count FROM audit WHERE number < $1";
}

impl Entry {
    pub fn outcome(&self) -> &'static str {
        match (self.code.is_empty(), self.begun) {
            (false, _) => REFUSED,
            (true, true) => BEGUN,
            (true, false) => DONE,
        }
    }
}

/// Puts an entry on record, as of the time of this transaction. It is written with those of the others that
/// are committed together.
pub fn insert(tx: &mut Tx<'_>, entry: &Entry) {
    let at = tx.now();
    tx.closing.audit.push(Entry { at, ..entry.clone() });
}

/// The columns of an entry, in the order in which both databases are given them.
pub(crate) const COLUMNS: &str =
    "at, actor, token_id, role, call, target, outcome, code, reason, message, request_id, count";

impl Entry {
    pub(crate) fn texts(&self) -> [&str; 10] {
        let Self { actor, token_id, role, call, target, code, reason, message, request_id, .. } = self;
        [actor, token_id, role, call, target, self.outcome(), code, reason, message, request_id]
    }

    pub(crate) fn stands_for(&self) -> i64 {
        i64::try_from(self.count.max(1)).unwrap_or(i64::MAX)
    }
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
        begun: row.string(7)? == BEGUN,
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
