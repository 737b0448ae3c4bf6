//! Operators' switches over all automation. Now: the brake.

use crate::Signal;
use crate::db::params;
use crate::error::TxResult;
use crate::tx::Tx;
use domain::Timestamp;

crate::statements! {
    GET = "SELECT set_by, reason, at FROM switches WHERE name = $1";
    SET = "INSERT INTO switches(name, set_by, reason, at) VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO NOTHING";
    CLEAR = "DELETE FROM switches WHERE name = $1";
    REMEMBER = "INSERT INTO switches(name, set_by, reason, at) VALUES ($1, '', '', $2) ON CONFLICT (name) DO UPDATE SET at = $2";
}

const FREEZE: &str = "freeze";
/// When the last freeze ended: what could not happen meanwhile is nobody's silence.
const THAWED: &str = "thawed";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
}

pub fn frozen(tx: &mut Tx<'_>) -> TxResult<Option<Freeze>> {
    let row = tx.row(GET, params![FREEZE])?;
    Ok(row
        .map(|r| Ok::<_, crate::error::DbError>(Freeze { by: r.string(0)?, reason: r.string(1)?, since: r.time(2)? }))
        .transpose()?)
}

/// Stops all automation. Frozen already: stays as the first one left it.
pub fn freeze(tx: &mut Tx<'_>, by: &str, reason: &str) -> TxResult<()> {
    let now = tx.now();
    tx.exec(SET, params![FREEZE, by, reason, now])?;
    Ok(())
}

/// When the last freeze ended, if there was one.
pub fn thawed(tx: &mut Tx<'_>) -> TxResult<Option<Timestamp>> {
    Ok(tx.row(GET, params![THAWED])?.map(|row| row.time(2)).transpose()?)
}

pub fn unfreeze(tx: &mut Tx<'_>) -> TxResult<()> {
    if tx.exec(CLEAR, params![FREEZE])? > 0 {
        let now = tx.now();
        tx.exec(REMEMBER, params![THAWED, now])?;
    }
    tx.signal(Signal::WorkReady);
    Ok(())
}
