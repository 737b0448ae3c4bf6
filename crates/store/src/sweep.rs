//! Sweeps over the fleet: one row for each lane, so that of several servers only one sweeps at a time,
//! and so that what a sweep confirmed needs no row of its own.

use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::schema;
use crate::tx::Tx;
use domain::Timestamp;
use domain::observation::Lane;
use std::time::Duration;

crate::statements! {
    GET = "SELECT round, beats, sweeper, started_at, finished_at, swept_at FROM sweeps WHERE lane = $1";
    FIRST = "INSERT INTO sweeps(lane, round, beats, sweeper, started_at, stale_after_ms) VALUES ($1, 1, 0, $2, $3, $4) ON CONFLICT (lane) DO NOTHING";
    NEXT = "UPDATE sweeps SET round = round + 1, beats = 0, sweeper = $3, started_at = $4, finished_at = NULL, stale_after_ms = $5 WHERE lane = $1 AND round = $2";
    BEAT = "UPDATE sweeps SET beats = beats + 1 WHERE lane = $1 AND round = $2 AND finished_at IS NULL";
    FINISH = "UPDATE sweeps SET finished_at = $3, swept_at = CASE WHEN CAST($4 AS BIGINT) = 1 THEN started_at ELSE swept_at END WHERE lane = $1 AND round = $2 AND finished_at IS NULL";
}

/// The last sweep of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Raised by every claim.
    pub round: u64,
    /// Raised by a sweep that takes longer than a period: it is alive.
    pub beats: u64,
    pub sweeper: String,
    pub started_at: Timestamp,
    /// Unset while it is under way.
    pub finished_at: Option<Timestamp>,
    /// The start of the last sweep that saw every machine.
    pub swept_at: Option<Timestamp>,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Taken {
        round: u64,
    },
    /// Another server was faster.
    Lost,
    /// The schema has moved past this binary: write no more.
    SchemaMoved(i64),
}

fn read(row: &Row) -> Result<Sweep, DbError> {
    Ok(Sweep {
        round: row.uint(0)?,
        beats: row.uint(1)?,
        sweeper: row.string(2)?,
        started_at: row.time(3)?,
        finished_at: row.maybe(4, Row::time)?,
        swept_at: row.maybe(5, Row::time)?,
    })
}

pub fn get(tx: &mut Tx<'_>, lane: Lane) -> TxResult<Option<Sweep>> {
    Ok(tx.row(GET, params![lane.as_str()])?.as_ref().map(read).transpose()?)
}

/// Begins the round after `round` (zero: the first), if nobody else has.
pub fn claim(tx: &mut Tx<'_>, lane: Lane, round: u64, sweeper: &str, stale_after: Duration) -> TxResult<Claim> {
    let version = tx.row(schema::VERSION, &[])?.map_or(Ok(0), |row| row.int(0))?;
    if version > schema::SCHEMA_VERSION {
        return Ok(Claim::SchemaMoved(version));
    }
    let now = tx.now();
    let stale_after = u64::try_from(stale_after.as_millis()).unwrap_or(u64::MAX);
    let changed = if round == 0 {
        tx.exec(FIRST, params![lane.as_str(), sweeper, now, stale_after])?
    } else {
        tx.exec(NEXT, params![lane.as_str(), round, sweeper, now, stale_after])?
    };
    Ok(if changed == 1 { Claim::Taken { round: round + 1 } } else { Claim::Lost })
}

/// Shows that the sweep is alive; `false`: somebody else has taken over.
pub fn beat(tx: &mut Tx<'_>, lane: Lane, round: u64) -> TxResult<bool> {
    Ok(tx.exec(BEAT, params![lane.as_str(), round])? == 1)
}

/// Ends a sweep. `complete`: every machine was looked at, and what changed is written.
pub fn finish(tx: &mut Tx<'_>, lane: Lane, round: u64, complete: bool) -> TxResult<bool> {
    let now = tx.now();
    Ok(tx.exec(FINISH, params![lane.as_str(), round, now, complete])? == 1)
}
