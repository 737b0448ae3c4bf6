//! Session leases: one row for each life of a server process. Executions point at it, so ten thousand
//! of them need one renewal. A rival judges a session by watching its counter, never by wall clocks.

use crate::db::{Pair, Row, params};
use crate::error::{DbError, TxResult};
use crate::schema;
use crate::signal::Signal;
use crate::tx::Tx;
use domain::SessionId;
use std::time::Duration;

crate::statements! {
    INSERT = "INSERT INTO sessions(session_id, instance_id, started_at, renewals, lease_ms, call_ms, state, ended_because) VALUES ($1, $2, $3, 0, $4, $5, 'live', '')";
    RENEW = "UPDATE sessions SET renewals = renewals + 1 WHERE session_id = $1 AND state = 'live'";
    LIVE = "SELECT session_id, instance_id, renewals, lease_ms, call_ms FROM sessions WHERE state = 'live' ORDER BY session_id";
    END = "UPDATE sessions SET state = $3, ended_because = $4 WHERE session_id = $1 AND renewals = $2 AND state = 'live'";
    RELEASE = "UPDATE sessions SET state = 'released', ended_because = 'handed over' WHERE session_id = $1 AND state = 'live'";
    FORGET_OLD = "DELETE FROM sessions WHERE state <> 'live' AND started_at < $1";
    JOURNAL_LOSS = "INSERT INTO journal(execution_id, number, at, fence, entry, detail) SELECT execution_id, entries + 1, $2, CAST(epoch AS TEXT) || '.' || CAST(fence AS TEXT), 'holder_lost', $3 FROM executions WHERE holder = $1 AND status = 'running'";
    ORPHANS = "UPDATE executions SET status = 'ready', holder = NULL, wake_at = $2, entries = entries + 1, settle_ms = CASE WHEN stage = '' THEN 0 ELSE CAST($3 AS BIGINT) END, deadline = deadline + CAST($3 AS BIGINT) * 1000 + (CAST($2 AS BIGINT) - updated_at), updated_at = $2 WHERE holder = $1 AND status = 'running'";
    HAND_OVER = "UPDATE executions SET status = 'ready', holder = NULL, wake_at = $2, updated_at = $2 WHERE holder = $1 AND status = 'running'";
}

macro_rules! held {
    () => {
        "SELECT execution_id FROM executions WHERE holder = $1 AND status = 'running' ORDER BY execution_id"
    };
}

/// What a session holds; on PostgreSQL it stays so until this transaction has ended.
const HELD: Pair = Pair { sqlite: held!(), postgres: concat!(held!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("HELD", HELD)];

/// A session that looks alive, and how often it has renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSession {
    pub id: SessionId,
    pub instance_id: String,
    pub renewals: u64,
    pub lease: Duration,
    /// No call of it lasts longer.
    pub longest_call: Duration,
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    Renewed,
    /// Somebody has declared the session dead: stop acting.
    Lost,
    /// The schema has moved past this binary: stop claiming.
    SchemaMoved(i64),
}

/// Begins a session. Earlier sessions of the same instance are over: only one process can hold it.
pub fn open(
    tx: &mut Tx<'_>,
    id: &SessionId,
    instance_id: &str,
    lease: Duration,
    longest_call: Duration,
) -> TxResult<()> {
    for session in live(tx)? {
        if session.instance_id == instance_id {
            declare_dead(tx, &session, "the process was started again")?;
        }
    }
    let now = tx.now();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    tx.exec(INSERT, params![id.as_str(), instance_id, now, millis(lease), millis(longest_call)])?;
    // keep the table small; a month of ended sessions is plenty to look back on
    tx.exec(FORGET_OLD, params![now.minus(Duration::from_secs(30 * 86_400))])?;
    Ok(())
}

pub fn renew(tx: &mut Tx<'_>, id: &SessionId) -> TxResult<Renewal> {
    let version = tx.row(schema::VERSION, &[])?.map_or(Ok(0), |row| row.int(0))?;
    if tx.exec(RENEW, params![id.as_str()])? != 1 {
        return Ok(Renewal::Lost);
    }
    Ok(if version > schema::SCHEMA_VERSION { Renewal::SchemaMoved(version) } else { Renewal::Renewed })
}

pub fn live(tx: &mut Tx<'_>) -> TxResult<Vec<LiveSession>> {
    let read = |row: &Row| -> Result<LiveSession, DbError> {
        Ok(LiveSession {
            id: SessionId::from_text(row.string(0)?),
            instance_id: row.string(1)?,
            renewals: row.uint(2)?,
            lease: Duration::from_millis(row.uint(3)?),
            longest_call: Duration::from_millis(row.uint(4)?),
        })
    };
    Ok(tx.rows(LIVE, &[])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// Ends a session whose counter stood still, unless it moved after all. Its executions can be claimed at
/// once, but *acted* on only when its last call must have ended: the claimant waits that out by its own
/// clock. The time since the last word of it is not charged to the steps in hand: nobody was there, or the
/// clock was set. Answers whether the session was ended.
pub fn declare_dead(tx: &mut Tx<'_>, session: &LiveSession, because: &str) -> TxResult<bool> {
    if tx.exec(END, params![session.id.as_str(), session.renewals, "dead", because])? != 1 {
        return Ok(false);
    }
    let now = tx.now();
    let settle_ms = u64::try_from(session.longest_call.as_millis()).unwrap_or(u64::MAX);
    let detail = serde_json::json!({
        "session": session.id.as_str(),
        "because": because,
        "a_call_of_it_may_still_take_effect_for_ms": settle_ms,
    });
    // the journal and the row must speak of the same executions
    tx.pair(HELD, params![session.id.as_str()])?;
    tx.exec(JOURNAL_LOSS, params![session.id.as_str(), now, detail.to_string()])?;
    tx.exec(ORPHANS, params![session.id.as_str(), now, settle_ms])?;
    tx.signal(Signal::WorkReady);
    Ok(true)
}

/// Hands over: what is still held can be claimed by anyone at once. The holder has no call in the air.
pub fn release(tx: &mut Tx<'_>, id: &SessionId) -> TxResult<()> {
    let now = tx.now();
    tx.exec(RELEASE, params![id.as_str()])?;
    tx.exec(HAND_OVER, params![id.as_str(), now])?;
    Ok(())
}
