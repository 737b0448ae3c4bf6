//! Plans in the store. A plan is written once and never changed.

use crate::codec;
use crate::db::{Row, params};
use crate::error::{DbError, TxResult};
use crate::tx::Tx;
use domain::plan::Plan;

crate::statements! {
    GET = "SELECT plan_id, display_name, body FROM plans WHERE plan_id = $1";
    LIST = "SELECT plan_id, display_name, body FROM plans ORDER BY plan_id";
    TOTAL_BYTES = "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM plans";
    INSERT = "INSERT INTO plans(plan_id, display_name, body, source, created_at, created_by) VALUES ($1, $2, $3, $4, $5, $6)";
}

fn read(row: &Row) -> Result<Plan, DbError> {
    Ok(Plan { id: row.string(0)?, display_name: row.string(1)?, steps: codec::steps_from_json(row.text(2)?)? })
}

pub fn get(tx: &mut Tx<'_>, id: &str) -> TxResult<Option<Plan>> {
    Ok(tx.row(GET, params![id])?.as_ref().map(read).transpose()?)
}

/// All plans: few, and written by administrators only.
pub fn list(tx: &mut Tx<'_>) -> TxResult<Vec<Plan>> {
    Ok(tx.rows(LIST, &[])?.iter().map(read).collect::<Result<_, _>>()?)
}

pub fn total_bytes(tx: &mut Tx<'_>) -> TxResult<u64> {
    tx.row(TOTAL_BYTES, &[])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// `source`: `built-in`, `folder` or `api`.
pub fn insert(tx: &mut Tx<'_>, plan: &Plan, source: &str, by: &str) -> TxResult<()> {
    let now = tx.now();
    tx.exec(INSERT, params![&plan.id, &plan.display_name, codec::steps_to_json(&plan.steps), source, now, by])?;
    Ok(())
}
