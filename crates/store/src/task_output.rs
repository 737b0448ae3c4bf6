//! What tasks print, by its place in the whole: the same bytes sent twice are stored once.

use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::tx::Tx;
use domain::task::OUTPUT_MAX;
use domain::{TaskId, Timestamp};

crate::statements! {
    KEPT = "SELECT output_bytes FROM tasks WHERE task_id = $1";
    INSERT = "INSERT INTO task_output(task_id, start_at, at, stream, data) VALUES ($1, $2, $3, $4, $5)";
    ADVANCE = "UPDATE tasks SET output_bytes = $2 WHERE task_id = $1";
    LIST = "SELECT start_at, at, stream, data FROM task_output WHERE task_id = $1 AND start_at + LENGTH(data) > $2 ORDER BY start_at LIMIT $3";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start_at: u64,
    pub at: Timestamp,
    pub stream: String,
    pub data: Vec<u8>,
}

/// Stores what is new of it, up to the bound; answers how far the whole is known now.
pub fn append(tx: &mut Tx<'_>, id: &TaskId, start_at: u64, stream: &str, data: &[u8]) -> TxResult<u64> {
    let known = tx.row(KEPT, params![id.as_str()])?.map_or(Ok(0), |row| row.uint(0))?;
    let end = start_at.saturating_add(data.len() as u64);
    if end <= known {
        return Ok(known);
    }
    let skip = usize::try_from(known.saturating_sub(start_at)).unwrap_or(usize::MAX).min(data.len());
    let from = start_at.max(known);
    let room = usize::try_from((OUTPUT_MAX as u64).saturating_sub(from)).unwrap_or(0);
    let fresh = &data[skip..];
    let kept = &fresh[..fresh.len().min(room)];
    if !kept.is_empty() {
        let now = tx.now();
        tx.exec(INSERT, params![id.as_str(), from, now, stream, kept.to_vec()])?;
    }
    tx.exec(ADVANCE, params![id.as_str(), end])?;
    Ok(end)
}

/// Those that end after `from`.
pub fn list(tx: &mut Tx<'_>, id: &TaskId, from: u64, limit: usize) -> TxResult<Vec<Piece>> {
    let read = |row: &Row| -> Result<Piece, DbError> {
        Ok(Piece { start_at: row.uint(0)?, at: row.time(1)?, stream: row.string(2)?, data: row.bytes(3)?.to_vec() })
    };
    Ok(tx.rows(LIST, params![id.as_str(), from, limit])?.iter().map(read).collect::<Result<_, _>>()?)
}
