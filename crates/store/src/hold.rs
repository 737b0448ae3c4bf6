//! Holds: what a person does to a machine outside of the database has it for itself as long as it takes. A hold ends
//! by itself at a time that is said when it is taken, so that no server that dies leaves a machine behind.

use crate::db::params;
use crate::error::{DbError, TxResult};
use crate::tx::Tx;
use domain::{MachineId, Timestamp};
use std::time::Duration;

crate::statements! {
    GET = "SELECT act, what, held_by, since, ends_at FROM holds WHERE machine_id = $1 AND ends_at > $2";
    TAKE = "INSERT INTO holds(machine_id, act, what, held_by, since, ends_at) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (machine_id) DO UPDATE SET act = $2, what = $3, held_by = $4, since = $5, ends_at = $6";
    RELEASE = "DELETE FROM holds WHERE machine_id = $1 AND act = $2";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which act it is: nobody gives up the hold of another.
    pub act: String,
    /// What is being done, in words.
    pub what: String,
    pub by: String,
    pub since: Timestamp,
    /// At the latest.
    pub until: Timestamp,
}

/// Who holds a machine now, if anybody does. In a transaction that holds the machine's row it stays so.
pub fn of(tx: &mut Tx<'_>, machine: &MachineId) -> TxResult<Option<Hold>> {
    let now = tx.now();
    let row = tx.row(GET, params![machine.as_str(), now])?;
    let read = |r: crate::db::Row| {
        let (act, what, by) = (r.string(0)?, r.string(1)?, r.string(2)?);
        Ok::<_, DbError>(Hold { act, what, by, since: r.time(3)?, until: r.time(4)? })
    };
    Ok(row.map(read).transpose()?)
}

/// Holds a machine for this act. Whoever calls it has the machine's row, and has found that nobody holds it.
pub fn take(tx: &mut Tx<'_>, machine: &MachineId, act: &str, what: &str, by: &str, lasts: Duration) -> TxResult<()> {
    let now = tx.now();
    tx.exec(TAKE, params![machine.as_str(), act, what, by, now, now.plus(lasts)])?;
    Ok(())
}

/// It has ended. Again, or after its time: no change.
pub fn release(tx: &mut Tx<'_>, machine: &MachineId, act: &str) -> TxResult<()> {
    tx.exec(RELEASE, params![machine.as_str(), act])?;
    Ok(())
}
