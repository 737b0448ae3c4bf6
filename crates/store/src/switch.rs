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
}

const FREEZE: &str = "freeze";

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

pub fn unfreeze(tx: &mut Tx<'_>) -> TxResult<()> {
    tx.exec(CLEAR, params![FREEZE])?;
    tx.signal(Signal::WorkReady);
    Ok(())
}
