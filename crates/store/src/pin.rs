//! Pins in the store: what a machine was recognized by at its first contact, for each of its endpoints. Beside the
//! machines, whose versions they do not raise, and in the machines' history.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::limits::short;
use domain::machine::Machine;
use domain::pin::{Pin, PinState};
use domain::{Error, MachineId, Timestamp};

crate::statements! {
    GET = "SELECT endpoint, state, value, version FROM pins WHERE machine_id = $1 AND pin = $2 AND endpoint = $3";
    OF_MACHINE = "SELECT endpoint, state, value, version FROM pins WHERE machine_id = $1 AND pin = $2 AND state = 'pinned' ORDER BY endpoint";
    INSERT = "INSERT INTO pins(machine_id, pin, endpoint, state, value, version, pinned_at) VALUES ($1, $2, $3, 'pinned', $4, 1, $5)";
    PIN_AGAIN = "UPDATE pins SET state = 'pinned', value = $4, version = version + 1, pinned_at = $5 WHERE machine_id = $1 AND pin = $2 AND endpoint = $3 AND version = $6";
    FORGET = "UPDATE pins SET state = 'forgotten', value = '', version = version + 1 WHERE machine_id = $1 AND pin = $2 AND endpoint = $3 AND version = $4";
}

/// Two servers that see a machine for the first time must not each believe their own eyes.
const LOCK: Pair = Pair {
    sqlite: "SELECT 1 FROM machines WHERE machine_id = $1",
    postgres: "SELECT 1 FROM machines WHERE machine_id = $1 FOR NO KEY UPDATE",
};

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    pub endpoint: String,
    pub state: PinState,
    /// Empty once it is forgotten.
    pub value: String,
    version: u64,
}

fn read(row: &Row, _: Timestamp) -> Result<Pinned, DbError> {
    let state = codec::state(row.text(1)?)?;
    Ok(Pinned { endpoint: row.string(0)?, state, value: row.string(2)?, version: row.uint(3)? })
}

/// Also one that was forgotten.
pub fn at(machine: &MachineId, pin: Pin, endpoint: &str) -> Point<Pinned> {
    let params = vec![Val::from(machine.as_str()), Val::from(pin.as_str()), Val::from(endpoint)];
    Point { sql: GET, params, read }
}

/// Pins what was seen, unless something is pinned there: the answer is what is pinned now.
pub fn pin(
    tx: &mut Tx<'_>,
    machine: &Machine,
    pin: Pin,
    endpoint: &str,
    seen: &str,
    cause: &Cause,
) -> TxResult<String> {
    tx.pair(LOCK, params![machine.id.as_str()])?;
    let there = tx.point(&at(&machine.id, pin, endpoint))?;
    if let Some(there) = there.as_ref().filter(|there| there.state == PinState::Pinned) {
        return Ok(there.value.clone());
    }
    let (id, now) = (machine.id.as_str(), tx.now());
    let from = there.as_ref().map(|there| there.state);
    let version = there.as_ref().map_or(0, |there| there.version);
    let entity = entity(machine, pin);
    let t = transition(&entity, machine, from, PinState::Pinned, version + 1, endpoint, seen);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(match there {
            None => tx.exec(INSERT, params![id, pin.as_str(), endpoint, seen, now])?,
            Some(_) => tx.exec(PIN_AGAIN, params![id, pin.as_str(), endpoint, seen, now, version])?,
        })
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(seen.to_owned())
}

/// Pins this in the place of what was read there. `false`: something else is there by now, and stays.
pub fn swap(
    tx: &mut Tx<'_>,
    machine: &Machine,
    pin: Pin,
    (endpoint, read): (&str, Option<&str>),
    value: &str,
    (forgotten, pinned): (&Cause, &Cause),
) -> TxResult<bool> {
    tx.pair(LOCK, params![machine.id.as_str()])?;
    let there = tx.point(&at(&machine.id, pin, endpoint))?.filter(|there| there.state == PinState::Pinned);
    let there = there.map(|there| there.value);
    if there.as_deref() == Some(value) {
        return Ok(true);
    }
    if there.as_deref() != read {
        return Ok(false);
    }
    forget(tx, machine, pin, forgotten)?;
    self::pin(tx, machine, pin, endpoint, value, pinned)?;
    Ok(true)
}

/// Forgets what is pinned for a machine, at all of its endpoints. Again: no change.
pub fn forget(tx: &mut Tx<'_>, machine: &Machine, pin: Pin, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let id = machine.id.as_str();
    tx.pair(LOCK, params![id])?;
    let rows = tx.rows(OF_MACHINE, params![id, pin.as_str()])?;
    for there in rows.iter().map(|row| read(row, now)).collect::<Result<Vec<_>, _>>()? {
        let entity = entity(machine, pin);
        let to = PinState::Forgotten;
        let t = transition(&entity, machine, Some(there.state), to, there.version + 1, &there.endpoint, &there.value);
        let moved = tx.transition(t, cause, no_guard, |tx| {
            Ok(tx.exec(FORGET, params![id, pin.as_str(), &there.endpoint, there.version])?)
        })?;
        debug_assert_eq!(moved, Moved::Moved);
    }
    Ok(())
}

fn entity(machine: &Machine, pin: Pin) -> String {
    format!("{}/{}", machine.id, pin.as_str())
}

/// Fingerprints and host keys are no secrets: the log says which was trusted since when.
fn transition<'a>(
    entity: &'a str,
    machine: &'a Machine,
    from: Option<PinState>,
    to: PinState,
    version: u64,
    endpoint: &str,
    value: &str,
) -> Transition<'a, PinState> {
    let metadata = codec::to_json(&serde_json::json!({ "endpoint": endpoint, "value": short(value) }));
    let customer_id = &machine.spec.customer_id;
    Transition { entity_id: entity, subject: machine.id.as_str(), customer_id, from, to, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
