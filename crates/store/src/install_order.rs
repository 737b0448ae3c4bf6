//! Install orders in the store: at most one is open for a boot node.

use crate::codec;
use crate::db::{Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::boot_node::BootNode;
use domain::install_order::{CLOSED, Closing, InstallOrder, OPENED, OrderState, OrderTask};
use domain::{BootNodeId, Error, OrderId, RunId};

crate::statements! {
    INSERT = "INSERT INTO install_orders(order_id, node_id, task, state, version, workflow_id, image, user_data_ref, opened_by, run_id, step, opened_at, attempt, log_tail, evidence, operation) VALUES ($1, $2, $3, 'open', 1, $4, $5, $6, $7, $8, $9, $10, 1, '', '', $11)";
    UPDATE = "UPDATE install_orders SET state = $3, version = version + 1, attempt = $4, offered_at = $5, started_at = $6, last_report_at = $7, progress = $8, log_tail = $9, evidence = $10, closed_at = $11, closed_because = $12, disk_boot_at = $13 WHERE order_id = $1 AND version = $2";
    OPEN = "SELECT node_id FROM install_orders WHERE state = 'open' AND order_id > $1 ORDER BY order_id LIMIT $2";
    NODE_OF = "SELECT node_id FROM install_orders WHERE order_id = $1";
    OF_RUN = "SELECT node_id FROM install_orders WHERE run_id = $1 ORDER BY order_id DESC LIMIT 1";
}

/// What an order is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOrder {
    pub id: OrderId,
    pub task: OrderTask,
    pub workflow_id: String,
    pub image: String,
    pub user_data_ref: String,
    pub run: Option<(RunId, String)>,
    pub operation: String,
}

/// An order that was joined, if there is one.
pub(crate) fn read(row: &Row, from: usize) -> Result<Option<InstallOrder>, DbError> {
    let Some(id) = row.maybe(from, Row::string)? else { return Ok(None) };
    let task = row.text(from + 1)?;
    let task = OrderTask::ALL.into_iter().find(|t| t.as_str() == task);
    let closed = match row.maybe(from + 18, Row::time)? {
        None => None,
        Some(at) => {
            let because = row.text(from + 19)?;
            let because = Closing::ALL.into_iter().find(|c| c.as_str() == because);
            Some((at, because.ok_or_else(|| DbError::Defect("why an order was closed is unknown".to_owned()))?))
        }
    };
    let run = match row.maybe(from + 8, Row::string)? {
        None => None,
        Some(run) => Some((RunId::from_text(run), row.string(from + 9)?)),
    };
    Ok(Some(InstallOrder {
        id: OrderId::from_text(id),
        node_id: BootNodeId::from_text(row.string(from + 20)?),
        task: task.ok_or_else(|| DbError::Defect("the task of an order is unknown".to_owned()))?,
        state: codec::state(row.text(from + 2)?)?,
        version: row.uint(from + 3)?,
        workflow_id: row.string(from + 4)?,
        image: row.string(from + 5)?,
        user_data_ref: row.string(from + 6)?,
        opened_by: row.string(from + 7)?,
        run,
        operation: row.string(from + 21)?,
        opened_at: row.time(from + 10)?,
        attempt: u32::try_from(row.uint(from + 11)?).unwrap_or(u32::MAX),
        offered_at: row.maybe(from + 12, Row::time)?,
        started_at: row.maybe(from + 13, Row::time)?,
        last_report_at: row.maybe(from + 14, Row::time)?,
        progress: row.maybe(from + 15, Row::uint)?.map(|p| u8::try_from(p).unwrap_or(100)),
        log_tail: row.string(from + 16)?,
        evidence: row.string(from + 17)?,
        closed,
        disk_boot_at: row.maybe(from + 22, Row::time)?,
    }))
}

/// Opens one for a node that has none.
pub(crate) fn open(tx: &mut Tx<'_>, node: &BootNode, new: &NewOrder, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let (run, step) = match &new.run {
        Some((run, step)) => (Some(run.as_str()), step.as_str()),
        None => (None, ""),
    };
    let cause = cause.then(OPENED);
    let t = transition(&new.id, &node.id, None, OrderState::Open, 1, new.task.as_str());
    let moved = tx.transition(t, &cause, no_guard, |tx| {
        let (workflow, image, user_data) = (&new.workflow_id, &new.image, &new.user_data_ref);
        let (id, node, task, by) = (new.id.as_str(), node.id.as_str(), new.task.as_str(), &cause.actor);
        let operation = &new.operation;
        Ok(tx.exec(INSERT, params![id, node, task, workflow, image, user_data, by, run, step, now, operation])?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(())
}

fn write(tx: &mut Tx<'_>, order: &InstallOrder) -> Result<u64, DbError> {
    let (closed_at, because) = match order.closed {
        Some((at, because)) => (Some(at), Some(because.as_str())),
        None => (None, None),
    };
    tx.exec(
        UPDATE,
        params![
            order.id.as_str(),
            order.version,
            codec::spelt(order.state),
            order.attempt,
            order.offered_at,
            order.started_at,
            order.last_report_at,
            order.progress.map(u32::from),
            &order.log_tail,
            &order.evidence,
            closed_at,
            because,
            order.disk_boot_at,
        ],
    )
}

/// What is known of an order that goes on; `order` has the version that was read.
pub fn save(tx: &mut Tx<'_>, order: &InstallOrder) -> TxResult<()> {
    if write(tx, order)? == 1 { Ok(()) } else { Err(Failure::Lost(format!("order {}", order.id))) }
}

/// Closes it, with what `order` says beyond that. Again: no change.
pub fn close(tx: &mut Tx<'_>, order: &InstallOrder, because: Closing, cause: &Cause) -> TxResult<Moved> {
    let now = tx.now();
    let closed = InstallOrder { state: OrderState::Closed, closed: Some((now, because)), ..order.clone() };
    let cause = cause.then(CLOSED);
    let (from, to) = (Some(order.state), OrderState::Closed);
    let t = transition(&order.id, &order.node_id, from, to, order.version + 1, because.as_str());
    tx.transition(t, &cause, no_guard, |tx| Ok(write(tx, &closed)?))
}

/// The nodes of open orders, in the order of those, after `after`.
pub fn open_nodes(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<BootNodeId>> {
    let rows = tx.rows(OPEN, params![after, limit])?;
    Ok(rows.iter().map(|row| row.string(0).map(BootNodeId::from_text)).collect::<Result<_, _>>()?)
}

/// The node that an order is for.
pub fn node_of(order: &OrderId) -> Point<BootNodeId> {
    let read = |row: &Row, _| Ok(BootNodeId::from_text(row.string(0)?));
    Point { sql: NODE_OF, params: vec![Val::from(order.as_str())], read }
}

/// The node that a run has ordered to be installed, if it has.
pub fn of_run(tx: &mut Tx<'_>, run: &RunId) -> TxResult<Option<BootNodeId>> {
    Ok(tx.row(OF_RUN, params![run.as_str()])?.map(|row| row.string(0).map(BootNodeId::from_text)).transpose()?)
}

fn transition<'a>(
    order: &'a OrderId,
    node: &'a BootNodeId,
    from: Option<OrderState>,
    to: OrderState,
    version: u64,
    what: &str,
) -> Transition<'a, OrderState> {
    let metadata = codec::to_json(&serde_json::json!({ "what": what }));
    Transition { entity_id: order.as_str(), subject: node.as_str(), customer_id: "", from, to, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
