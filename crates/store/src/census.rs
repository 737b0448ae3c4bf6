//! How much of what there is, at one moment: what the metrics page shows of the rows. Asked for at a
//! scrape, never kept up to date by the writes; what can grow
//! without end is counted up to a bound.

use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::log;
use crate::switch;
use crate::tx::Tx;
use domain::Timestamp;

/// Due executions counted, at most.
const DUE_MAX: usize = 10_000;
/// Open executions sorted by what they wait for, at most.
const OPEN_MAX: usize = 50_000;
/// So much of what an execution waits for is read: enough to tell the kinds of waits apart.
pub const WAIT_PREFIX: usize = 20;

crate::statements! {
    MACHINES = "SELECT phase, COUNT(*) FROM machines GROUP BY phase";
    RUNS = "SELECT phase, COUNT(*) FROM runs WHERE phase IN ('PENDING', 'RUNNING') GROUP BY phase";
    DUE = "SELECT COUNT(*), COALESCE(MIN(wake_at), $1) FROM (SELECT wake_at FROM executions WHERE status IN ('ready', 'waiting') AND wake_at <= $1 ORDER BY wake_at LIMIT $2) AS due";
    OPEN = "SELECT status, CAST(CASE WHEN wake_at <= $1 THEN 1 ELSE 0 END AS BIGINT), substr(waiting_for, 1, 20), COUNT(*) FROM (SELECT status, wake_at, waiting_for FROM executions WHERE status IN ('ready', 'running', 'waiting') ORDER BY execution_id LIMIT $2) AS open GROUP BY 1, 2, 3";
}

/// Executions that have not ended and wait for the same kind of thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// A worker has them.
    pub running: bool,
    /// Their time has come.
    pub due: bool,
    /// The first [`WAIT_PREFIX`] characters of what they wait for.
    pub waiting_for: String,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    pub at: Timestamp,
    pub machines: Vec<(String, u64)>,
    pub runs: Vec<(String, u64)>,
    pub due: u64,
    pub oldest_due: Timestamp,
    pub open: Vec<Open>,
    pub log_head: u64,
    pub frozen: bool,
}

pub fn census(tx: &mut Tx<'_>) -> TxResult<Census> {
    let at = tx.now();
    let by_name = |row: &Row| -> Result<(String, u64), DbError> { Ok((row.string(0)?, row.uint(1)?)) };
    let open = |row: &Row| -> Result<Open, DbError> {
        Ok(Open {
            running: row.text(0)? == "running",
            due: row.uint(1)? == 1,
            waiting_for: row.string(2)?,
            count: row.uint(3)?,
        })
    };
    let due = tx.row(DUE, params![at, DUE_MAX])?;
    let (due, oldest_due) = due.map_or(Ok((0, at)), |row| Ok::<_, DbError>((row.uint(0)?, row.time(1)?)))?;
    Ok(Census {
        at,
        machines: tx.rows(MACHINES, &[])?.iter().map(by_name).collect::<Result<_, _>>()?,
        runs: tx.rows(RUNS, &[])?.iter().map(by_name).collect::<Result<_, _>>()?,
        due,
        oldest_due,
        open: tx.rows(OPEN, params![at, OPEN_MAX])?.iter().map(open).collect::<Result<_, _>>()?,
        log_head: log::range(tx)?.head,
        frozen: switch::frozen(tx)?.is_some(),
    })
}
