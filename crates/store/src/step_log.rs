//! What a run's steps printed: appended before it is streamed, numbered without holes within the run.

use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::signal::Signal;
use crate::tx::Tx;
use domain::{RunId, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub sequence: u64,
    pub at: Timestamp,
    pub step: String,
    pub stream: String,
    pub data: Vec<u8>,
}

crate::statements! {
    HEAD = "SELECT COALESCE(MAX(sequence), 0) FROM step_logs WHERE run_id = $1";
    INSERT = "INSERT INTO step_logs(run_id, sequence, at, step, stream, data) VALUES ($1, $2, $3, $4, $5, $6)";
    STORED = "SELECT COALESCE(SUM(LENGTH(data)), 0) FROM step_logs WHERE run_id = $1 AND step = $2";
    AFTER = "SELECT sequence, at, step, stream, data FROM step_logs WHERE run_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3";
}

pub fn head(tx: &mut Tx<'_>, run: &RunId) -> TxResult<u64> {
    tx.row(HEAD, params![run.as_str()])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// Appends pieces of output in order.
pub fn append(tx: &mut Tx<'_>, run: &RunId, step: &str, chunks: &[(&'static str, Vec<u8>)]) -> TxResult<()> {
    let now = tx.now();
    for (sequence, (stream, data)) in (head(tx, run)? + 1..).zip(chunks) {
        tx.exec(INSERT, params![run.as_str(), sequence, now, step, *stream, data.clone()])?;
    }
    tx.signal(Signal::Output(run.clone()));
    Ok(())
}

/// How many bytes there are of a step.
pub fn stored(tx: &mut Tx<'_>, run: &RunId, step: &str) -> TxResult<usize> {
    let row = tx.row(STORED, params![run.as_str(), step])?;
    Ok(row.map_or(Ok(0), |row| row.uint(0)).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))?)
}

pub fn after(tx: &mut Tx<'_>, run: &RunId, sequence: u64, limit: usize) -> TxResult<Vec<LogChunk>> {
    let read = |row: &Row| -> Result<LogChunk, DbError> {
        Ok(LogChunk {
            sequence: row.uint(0)?,
            at: row.time(1)?,
            step: row.string(2)?,
            stream: row.string(3)?,
            data: row.bytes(4)?.to_vec(),
        })
    };
    Ok(tx.rows(AFTER, params![run.as_str(), sequence, limit])?.iter().map(read).collect::<Result<_, _>>()?)
}
