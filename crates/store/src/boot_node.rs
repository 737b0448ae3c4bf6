//! Boot nodes in the store, each with its last order beside it.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::install_order::{self, NewOrder};
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::boot_node::{BootNode, BootState, Claims};
use domain::filter::{Field, Filter, Schema};
use domain::lifecycle::Guard;
use domain::{BootNodeId, Error, MacAddress, MachineId, OrderId, Timestamp};

/// What boot nodes can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        Field::mac("mac_address"),
        Field::one_of(
            "state",
            &[
                "discovered",
                "pending",
                "installing",
                "install_failed",
                "installed",
                "active",
                "reprovision",
                "deprovisioning",
                "migrating",
                "retired",
            ],
        ),
        Field::text("workflow_id"),
        Field::text("group"),
        Field::text("hostname"),
        Field::text("ip_address"),
        Field::text("vendor"),
        Field::text("model"),
        Field::text("serial_number"),
        Field::lower_case("system_uuid"),
        Field::text("arch"),
        Field::number("install_attempts"),
        Field::number("install_progress"),
        Field::text("last_install_error"),
        Field::time("state_changed_at"),
        Field::text("machine_id"),
        Field::text("proposed_machine_id"),
        Field::time("created_at"),
        Field::time("last_seen"),
    ],
    labels: false,
};

macro_rules! node_columns {
    () => {
        "n.node_id, n.mac_address, n.state, n.version, n.workflow_id, n.failed_workflow_id, n.device_group, n.hostname, n.ip_address, n.vendor, n.model, n.serial_number, n.system_uuid, n.arch, n.inventory, n.install_attempts, n.last_install_error, n.state_changed_at, n.machine_id, n.proposed_machine_id, n.created_at, n.last_seen, n.boot_mode, n.looks, o.order_id, o.task, o.state, o.version, o.workflow_id, o.image, o.user_data_ref, o.opened_by, o.run_id, o.step, o.opened_at, o.attempt, o.offered_at, o.started_at, o.last_report_at, o.progress, o.log_tail, o.evidence, o.closed_at, o.closed_because, o.node_id, o.operation, o.disk_boot_at FROM boot_nodes n LEFT JOIN install_orders o ON o.order_id = n.order_id"
    };
}

const ORDER: usize = 24;

crate::statements! {
    GET = concat!("SELECT ", node_columns!(), " WHERE n.node_id = $1");
    BY_MAC = concat!("SELECT ", node_columns!(), " WHERE n.mac_address = $1 AND n.state <> 'retired'");
    BY_MACHINE = concat!("SELECT ", node_columns!(), " WHERE n.machine_id = $1 AND n.state <> 'retired'");
    LIST = concat!("SELECT ", node_columns!(), " WHERE n.node_id > $1");
    INSERT = "INSERT INTO boot_nodes(node_id, mac_address, state, version, workflow_id, failed_workflow_id, device_group, hostname, ip_address, vendor, model, serial_number, system_uuid, arch, inventory, install_attempts, state_changed_at, machine_id, proposed_machine_id, created_at, last_seen, boot_mode, looks) VALUES ($1, $2, 'discovered', 1, $3, '', $4, $5, $6, $7, $8, $9, $10, $11, '', 0, $12, $13, $14, $12, $15, $16, 0)";
    UPDATE = "UPDATE boot_nodes SET version = version + 1, state = $3, workflow_id = $4, failed_workflow_id = $5, device_group = $6, hostname = $7, ip_address = $8, vendor = $9, model = $10, serial_number = $11, system_uuid = $12, arch = $13, inventory = $14, install_attempts = $15, last_install_error = $16, state_changed_at = $17, machine_id = $18, proposed_machine_id = $19, last_seen = $20, order_id = $21, mac_address = $22, boot_mode = $23 WHERE node_id = $1 AND version = $2";
    LOOKED = "UPDATE boot_nodes SET looks = looks + 1 WHERE node_id = $1";
    HISTORY = "SELECT sequence, at, from_state, to_state, owner, actor, comment, metadata FROM transitions WHERE subject = $1 AND entity_kind = 'boot_node' ORDER BY sequence DESC LIMIT $2 OFFSET $3";
    HISTORY_TOTAL = "SELECT COUNT(*) FROM transitions WHERE subject = $1 AND entity_kind = 'boot_node'";
    DISCOVERED = "SELECT COUNT(*) FROM boot_nodes WHERE state = 'discovered'";
    HOLDERS = "SELECT DISTINCT machine_id FROM machine_identifiers WHERE (kind = 'mac' AND value = $1) OR (kind = 'serial_number' AND lower(value) = $2) OR (kind = 'system_uuid' AND value IN ($3, $4)) ORDER BY machine_id LIMIT 5";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM boot_nodes WHERE node_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

macro_rules! seen {
    ($ids:literal) => {
        concat!("UPDATE boot_nodes SET last_seen = $1 WHERE node_id IN (", $ids, ")")
    };
}

const SEEN: Pair = Pair {
    sqlite: seen!("SELECT value FROM json_each($2)"),
    postgres: seen!("SELECT jsonb_array_elements_text($2::text::jsonb)"),
};

macro_rules! of_machines {
    ($ids:literal) => {
        concat!("SELECT machine_id, node_id FROM boot_nodes WHERE state <> 'retired' AND machine_id IN (", $ids, ")")
    };
}

const OF_MACHINES: Pair = Pair {
    sqlite: of_machines!("SELECT value FROM json_each($1)"),
    postgres: of_machines!("SELECT jsonb_array_elements_text($1::text::jsonb)"),
};

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK), ("SEEN", SEEN), ("OF_MACHINES", OF_MACHINES)];

fn read(row: &Row, _: Timestamp) -> Result<BootNode, DbError> {
    Ok(BootNode {
        id: BootNodeId::from_text(row.string(0)?),
        mac: MacAddress::from_text(row.string(1)?),
        state: codec::state(row.text(2)?)?,
        version: row.uint(3)?,
        workflow_id: row.string(4)?,
        failed_workflow_id: row.string(5)?,
        group: row.string(6)?,
        claims: Claims {
            hostname: row.string(7)?,
            ip_address: row.string(8)?,
            vendor: row.string(9)?,
            model: row.string(10)?,
            serial_number: row.string(11)?,
            system_uuid: row.string(12)?,
            arch: row.string(13)?,
            boot_mode: row.string(22)?,
        },
        inventory: row.string(14)?,
        looks: u32::try_from(row.uint(23)?).unwrap_or(u32::MAX),
        install_attempts: u32::try_from(row.uint(15)?).unwrap_or(u32::MAX),
        last_install_error: row.maybe(16, Row::string)?,
        state_changed_at: row.time(17)?,
        machine_id: row.maybe(18, Row::string)?.map(MachineId::from_text),
        proposed_machine_id: row.maybe(19, Row::string)?.map(MachineId::from_text),
        created_at: row.time(20)?,
        last_seen: row.maybe(21, Row::time)?,
        order: install_order::read(row, ORDER)?,
    })
}

pub fn by_id(id: &BootNodeId) -> Point<BootNode> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

/// The one that is not retired.
pub fn by_mac(mac: &MacAddress) -> Point<BootNode> {
    Point { sql: BY_MAC, params: vec![Val::from(mac.as_str())], read }
}

/// The one that is not retired.
pub fn by_machine(machine: &MachineId) -> Point<BootNode> {
    Point { sql: BY_MACHINE, params: vec![Val::from(machine.as_str())], read }
}

/// Which boot nodes these machines are, by one statement.
pub fn of_machines<'a>(
    tx: &mut Tx<'_>,
    machines: impl IntoIterator<Item = &'a MachineId>,
) -> TxResult<Vec<(MachineId, BootNodeId)>> {
    let ids: Vec<&str> = machines.into_iter().map(MachineId::as_str).collect();
    let read =
        |row: &Row| Ok::<_, DbError>((MachineId::from_text(row.string(0)?), BootNodeId::from_text(row.string(1)?)));
    let rows = tx.pair(OF_MACHINES, params![codec::to_json(&ids)])?;
    Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
}

/// For an operation that will write it.
pub fn get_for_update(tx: &mut Tx<'_>, id: &BootNodeId) -> TxResult<Option<BootNode>> {
    tx.locked(LOCK, &by_id(id))
}

/// Boot nodes in order of their ids, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<BootNode>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "id" => "n.node_id",
        "mac_address" => "n.mac_address",
        "state" => "n.state",
        "workflow_id" => "n.workflow_id",
        "group" => "n.device_group",
        "hostname" => "n.hostname",
        "ip_address" => "n.ip_address",
        "vendor" => "n.vendor",
        "model" => "n.model",
        "serial_number" => "n.serial_number",
        "system_uuid" => "n.system_uuid",
        "arch" => "n.arch",
        "install_attempts" => "n.install_attempts",
        "install_progress" => "o.progress",
        "last_install_error" => "COALESCE(n.last_install_error, '')",
        "state_changed_at" => "n.state_changed_at",
        "machine_id" => "COALESCE(n.machine_id, '')",
        "proposed_machine_id" => "COALESCE(n.proposed_machine_id, '')",
        "created_at" => "n.created_at",
        "last_seen" => "n.last_seen",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY n.node_id LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// How many nobody has approved.
pub fn count_discovered(tx: &mut Tx<'_>) -> TxResult<u64> {
    tx.row(DISCOVERED, &[])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// A node that was not there; of `node` what its first contact or its registration tells is kept.
pub fn insert(tx: &mut Tx<'_>, node: &BootNode, cause: &Cause) -> TxResult<BootNode> {
    let now = tx.now();
    let t = transition(node, None, BootState::Discovered, 1, "{}");
    let c = &node.claims;
    let moved = tx.transition(
        t,
        cause,
        |_| Ok(()),
        |tx| {
            Ok(tx.exec(
                INSERT,
                params![
                    node.id.as_str(),
                    node.mac.as_str(),
                    &node.workflow_id,
                    &node.group,
                    &c.hostname,
                    &c.ip_address,
                    &c.vendor,
                    &c.model,
                    &c.serial_number,
                    &c.system_uuid,
                    &c.arch,
                    now,
                    node.machine_id.as_ref().map(MachineId::as_str),
                    node.proposed_machine_id.as_ref().map(MachineId::as_str),
                    node.last_seen,
                    &c.boot_mode,
                ],
            )?)
        },
    )?;
    debug_assert_eq!(moved, Moved::Moved);
    again(tx, &node.id)
}

fn again(tx: &mut Tx<'_>, id: &BootNodeId) -> TxResult<BootNode> {
    tx.point(&by_id(id))?.ok_or_else(|| Failure::Lost(format!("boot node {id}")))
}

/// Writes everything of `node` but what is its order's own; its version is the one that was read.
fn write(tx: &mut Tx<'_>, node: &BootNode, order: Option<&OrderId>) -> Result<u64, DbError> {
    let c = &node.claims;
    tx.exec(
        UPDATE,
        params![
            node.id.as_str(),
            node.version,
            codec::spelt(node.state),
            &node.workflow_id,
            &node.failed_workflow_id,
            &node.group,
            &c.hostname,
            &c.ip_address,
            &c.vendor,
            &c.model,
            &c.serial_number,
            &c.system_uuid,
            &c.arch,
            &node.inventory,
            node.install_attempts,
            node.last_install_error.as_deref(),
            node.state_changed_at,
            node.machine_id.as_ref().map(MachineId::as_str),
            node.proposed_machine_id.as_ref().map(MachineId::as_str),
            node.last_seen,
            order.map(OrderId::as_str),
            node.mac.as_str(),
            &c.boot_mode,
        ],
    )
}

fn order_of(node: &BootNode) -> Option<&OrderId> {
    node.order.as_ref().map(|order| &order.id)
}

/// What is known of it, without a move.
pub fn save(tx: &mut Tx<'_>, node: &BootNode) -> TxResult<()> {
    if write(tx, node, order_of(node))? != 1 {
        return Err(Failure::Lost(format!("boot node {}", node.id)));
    }
    tx.signal(Signal::BootNodeChanged(node.id.clone()));
    Ok(())
}

/// A discovery boot is handed out to it. Counted beside the row's version: nobody else writes this.
pub fn looked(tx: &mut Tx<'_>, id: &BootNodeId) -> TxResult<()> {
    tx.exec(LOOKED, params![id.as_str()])?;
    Ok(())
}

/// They were heard of. No news but the time, so nobody's version is raised.
pub fn seen<'a>(tx: &mut Tx<'_>, ids: impl IntoIterator<Item = &'a BootNodeId>) -> TxResult<()> {
    let ids: Vec<&str> = ids.into_iter().map(BootNodeId::as_str).collect();
    let (now, sql) = (tx.now(), SEEN.get(tx.dialect()));
    tx.exec(sql, params![now, codec::to_json(&ids)])?;
    Ok(())
}

/// A move, and what it brings with it: `after` is how the node is to be.
pub fn move_to(
    tx: &mut Tx<'_>,
    before: &BootNode,
    after: &BootNode,
    metadata: &serde_json::Value,
    cause: &Cause,
    guard: impl FnOnce(Guard) -> Result<(), Error>,
) -> TxResult<BootNode> {
    let metadata = codec::to_json(metadata);
    let t = transition(before, Some(before.state), after.state, before.version + 1, &metadata);
    let now = tx.now();
    let after = BootNode { state_changed_at: now, ..after.clone() };
    match tx.transition(t, cause, guard, |tx| Ok(write(tx, &after, order_of(&after))?))? {
        Moved::Moved => tx.signal(Signal::BootNodeChanged(before.id.clone())),
        Moved::AlreadyThere => return Ok(before.clone()),
    }
    again(tx, &before.id)
}

/// Opens an order for it, which becomes its last one.
pub fn open_order(tx: &mut Tx<'_>, node: &BootNode, new: &NewOrder, cause: &Cause) -> TxResult<BootNode> {
    install_order::open(tx, node, new, cause)?;
    if write(tx, node, Some(&new.id))? != 1 {
        return Err(Failure::Lost(format!("boot node {}", node.id)));
    }
    tx.signal(Signal::BootNodeChanged(node.id.clone()));
    again(tx, &node.id)
}

/// The machines that hold one of its identifiers, whatever becomes of it: at most a handful.
pub fn candidates(tx: &mut Tx<'_>, node: &BootNode) -> TxResult<Vec<MachineId>> {
    let claims = &node.claims;
    let told = |text: &str, tells: bool| if tells { text.to_owned() } else { String::new() };
    // in whatever case it is written: a label, a firmware and a person do not agree on that
    let serial = told(&claims.serial_number, domain::identity::tells(&claims.serial_number)).to_ascii_lowercase();
    let uuid = told(&claims.system_uuid, domain::identity::uuid_tells(&claims.system_uuid)).to_ascii_lowercase();
    let swapped = domain::identity::swapped_uuid(&uuid).unwrap_or_default();
    let rows = tx.rows(HOLDERS, params![node.mac.as_str(), serial, uuid, swapped])?;
    Ok(rows.iter().map(|row| row.string(0).map(MachineId::from_text)).collect::<Result<_, _>>()?)
}

/// One move, as the history has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub sequence: u64,
    pub at: Timestamp,
    pub from_state: String,
    pub to_state: String,
    pub owner: String,
    pub actor: String,
    pub comment: String,
    pub metadata: String,
}

/// The newest first, and how many there are.
pub fn history(tx: &mut Tx<'_>, id: &BootNodeId, limit: usize, offset: usize) -> TxResult<(Vec<Move>, u64)> {
    let total = tx.row(HISTORY_TOTAL, params![id.as_str()])?.map_or(Ok(0), |row| row.uint(0))?;
    let read = |row: &Row| {
        Ok::<_, DbError>(Move {
            sequence: row.uint(0)?,
            at: row.time(1)?,
            from_state: row.string(2)?,
            to_state: row.string(3)?,
            owner: row.string(4)?,
            actor: row.string(5)?,
            comment: row.string(6)?,
            metadata: row.string(7)?,
        })
    };
    let rows = tx.rows(HISTORY, params![id.as_str(), limit, offset])?;
    Ok((rows.iter().map(read).collect::<Result<_, _>>()?, total))
}

fn transition<'a>(
    node: &'a BootNode,
    from: Option<BootState>,
    to: BootState,
    version: u64,
    metadata: &str,
) -> Transition<'a, BootState> {
    let (entity_id, subject) = (node.id.as_str(), node.id.as_str());
    Transition { entity_id, subject, customer_id: "", from, to, version, metadata: metadata.to_owned() }
}
