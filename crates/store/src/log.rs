//! Reading the ordered log: by sequence for watchers, by subject for histories and folds.

use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::tx::Tx;
use domain::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRow {
    pub sequence: u64,
    pub at: Timestamp,
    pub entity_kind: String,
    pub entity_id: String,
    pub subject: String,
    /// Whose it was when it happened; empty: the fleet's alone.
    pub customer_id: String,
    pub from_state: String,
    pub to_state: String,
    pub version: u64,
    pub trigger: String,
    pub owner: String,
    pub actor: String,
    pub comment: String,
    pub metadata: String,
}

/// The first and the last sequence that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    pub first: u64,
    pub head: u64,
}

macro_rules! log_columns {
    () => {
        "sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id"
    };
}

crate::statements! {
    RANGE = "SELECT kept_from, seq FROM log_head WHERE one = 1";
    AFTER = concat!("SELECT ", log_columns!(), " FROM transitions WHERE sequence > $1 ORDER BY sequence LIMIT $2");
    OF_SUBJECT = concat!("SELECT ", log_columns!(), " FROM transitions WHERE subject = $1 AND sequence > $2 AND sequence <= $3 ORDER BY sequence LIMIT $4");
    NEWEST_OF_SUBJECT = concat!("SELECT ", log_columns!(), " FROM transitions WHERE subject = $1 ORDER BY sequence DESC LIMIT $2 OFFSET $3");
    COUNT_OF_SUBJECT = "SELECT COUNT(*) FROM transitions WHERE subject = $1";
}

fn read(row: &Row) -> Result<LogRow, DbError> {
    Ok(LogRow {
        sequence: row.uint(0)?,
        at: row.time(1)?,
        entity_kind: row.string(2)?,
        entity_id: row.string(3)?,
        subject: row.string(4)?,
        from_state: row.string(5)?,
        to_state: row.string(6)?,
        version: row.uint(7)?,
        trigger: row.string(8)?,
        owner: row.string(9)?,
        actor: row.string(10)?,
        comment: row.string(11)?,
        metadata: row.string(12)?,
        customer_id: row.string(13)?,
    })
}

pub fn range(tx: &mut Tx<'_>) -> TxResult<LogRange> {
    match tx.row(RANGE, &[])? {
        Some(row) => Ok(LogRange { first: row.uint(0)?, head: row.uint(1)? }),
        None => Err(DbError::Defect("log_head is empty".into()).into()),
    }
}

/// The rows after a sequence, in order.
pub fn after(tx: &mut Tx<'_>, sequence: u64, limit: usize) -> TxResult<Vec<LogRow>> {
    Ok(tx.rows(AFTER, params![sequence, limit])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// The history of one subject between two sequences (the first excluded).
pub fn of_subject(tx: &mut Tx<'_>, subject: &str, after: u64, up_to: u64, limit: usize) -> TxResult<Vec<LogRow>> {
    Ok(tx.rows(OF_SUBJECT, params![subject, after, up_to, limit])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// The newest first, and how many there are in all.
pub fn newest_of_subject(tx: &mut Tx<'_>, subject: &str, limit: usize, offset: usize) -> TxResult<(Vec<LogRow>, u64)> {
    let total = tx.row(COUNT_OF_SUBJECT, params![subject])?.map_or(Ok(0), |row| row.uint(0))?;
    let rows = tx.rows(NEWEST_OF_SUBJECT, params![subject, limit, offset])?;
    Ok((rows.iter().map(read).collect::<Result<_, _>>()?, total))
}
