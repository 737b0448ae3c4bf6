//! Observations in the store: one row for each machine that was ever looked at, read together with the
//! machine and written apart from it, and only when something has changed.

use crate::codec::{ConditionRow, from_json, to_json};
use crate::db::{Row, params};
use crate::error::{DbError, Failure, TxResult};
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::Timestamp;
use domain::condition::{ConditionStatus, OBSERVED};
use domain::machine::Machine;
use domain::observation::{Freshness, Lane, Observation, Observed, STALE_AFTER, Trouble};
use serde::{Deserialize, Serialize};
use std::time::Duration;

crate::statements! {
    INSERT = "INSERT INTO observations(machine_id, version, lane, source, conditions, facts, trouble, last_seen, observed_at) VALUES ($1, 1, $2, $3, $4, $5, $6, $7, $8)";
    UPDATE = "UPDATE observations SET version = version + 1, lane = $3, source = $4, conditions = $5, facts = $6, trouble = $7, last_seen = $8, observed_at = $9 WHERE machine_id = $1 AND version = $2";
}

#[derive(Serialize, Deserialize)]
struct TroubleRow {
    reason: String,
    message: String,
}

/// Reads the columns from `first` on; `None` where nobody has looked.
pub(crate) fn read(row: &Row, first: usize, as_of: Timestamp) -> Result<Option<Observation>, DbError> {
    let Some(version) = row.maybe(first, Row::uint)? else { return Ok(None) };
    let lane = row.text(first + 1)?;
    let conditions = from_json::<Vec<ConditionRow>>("observed conditions", row.text(first + 3)?)?;
    let trouble = from_json::<Option<TroubleRow>>("the trouble of a look", row.text(first + 5)?)?;
    let stale_after = row.maybe(first + 9, Row::uint)?.map_or(STALE_AFTER, Duration::from_millis);
    Ok(Some(Observation {
        version,
        lane: Lane::parse(lane).ok_or_else(|| DbError::Defect(format!("the lane {lane:?} is unknown")))?,
        source: row.string(first + 2)?,
        conditions: conditions.into_iter().map(Observed::try_from).collect::<Result<_, _>>()?,
        facts: row.string(first + 4)?,
        trouble: trouble.map(|t| Trouble { reason: t.reason, message: t.message }),
        last_seen: row.maybe(first + 6, Row::time)?,
        observed_at: row.time(first + 7)?,
        fresh: Freshness { swept_at: row.maybe(first + 8, Row::time)?, stale_after, as_of },
    }))
}

/// Puts a new observation in the place of the machine's old one. Each status that flips is a row in the
/// log, under the machine's own history; the machine's row and version are not touched.
pub fn record(tx: &mut Tx<'_>, machine: &Machine, new: &Observation, actor: &str) -> TxResult<()> {
    let before = machine.observation.as_ref();
    for seen in &new.conditions {
        let was = before.and_then(|o| o.get(seen.condition.kind)).is_some_and(|o| o.condition.status);
        flip(tx, machine, new, seen, was, actor)?;
    }
    let conditions = to_json(&new.conditions.iter().map(ConditionRow::from).collect::<Vec<_>>());
    let trouble = new.trouble.as_ref().map(|t| TroubleRow { reason: t.reason.clone(), message: t.message.clone() });
    let id = machine.id.as_str();
    let (lane, trouble) = (new.lane.as_str(), to_json(&trouble));
    let changed = match before {
        None => tx.exec(
            INSERT,
            params![id, lane, &new.source, conditions, &new.facts, trouble, new.last_seen, new.observed_at],
        )?,
        Some(old) => tx.exec(
            UPDATE,
            params![
                id,
                old.version,
                lane,
                &new.source,
                conditions,
                &new.facts,
                trouble,
                new.last_seen,
                new.observed_at
            ],
        )?,
    };
    if changed == 1 { Ok(()) } else { Err(Failure::Lost(format!("the observation of machine {id}"))) }
}

/// The row itself is swapped by [`record`], once for all its conditions.
fn flip(
    tx: &mut Tx<'_>,
    machine: &Machine,
    new: &Observation,
    seen: &Observed,
    was: bool,
    actor: &str,
) -> TxResult<()> {
    let c = &seen.condition;
    let id = format!("{}/{}", machine.id, c.kind.as_str());
    let t = Transition {
        entity_id: &id,
        subject: machine.id.as_str(),
        customer_id: &machine.spec.customer_id,
        from: Some(ConditionStatus::of(was)),
        to: ConditionStatus::of(c.status),
        version: machine.observation.as_ref().map_or(0, |o| o.version) + 1,
        metadata: serde_json::json!({"reason": c.reason, "source": new.source}).to_string(),
    };
    let cause = Cause::reconciler(actor, OBSERVED, &c.message);
    match tx.transition(t, &cause, |_| Ok(()), |_| Ok(1))? {
        Moved::Moved | Moved::AlreadyThere => Ok(()),
    }
}
