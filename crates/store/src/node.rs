//! Nodes in the store.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::log::{self, LogRow};
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::layers::Layers;
use domain::lifecycle::Guard;
use domain::link::HardwareFacts;
use domain::node::{AgentMode, MaasRef, Node, NodeStatus, View};
use domain::{Error, JobId, MachineId, NodeId, Timestamp};

/// What nodes can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        Field::text("name"),
        Field::one_of(
            "status",
            &[
                "bootstrap_issued",
                "enrolling",
                "active",
                "offline",
                "quarantined",
                "draining",
                "retired",
                "removing",
                "deleted",
            ],
        ),
        Field::text("machine_id"),
        Field::text("maas_site"),
        Field::text("maas_system_id"),
        Field::text("active_job_id"),
        Field::text("cordoned_by"),
        Field::one_of("agent_mode", &["keep", "rebootstrap", "repair"]),
        Field::time("status_changed_at"),
        Field::time("created_at"),
    ],
    labels: false,
};

macro_rules! node_columns {
    () => {
        "node_id, name, status, version, status_reason, status_changed_at, cordoned_by, cordon_reason, machine_id, active_job_id, agent_mode, agent_mode_by, task_fence, created_at, created_by, quarantined_by, unclean, maas_site, maas_system_id FROM nodes"
    };
}

macro_rules! linked_columns {
    () => {
        "n.node_id, n.status, n.status_changed_at, m.machine_id, m.phase, m.phase_set_at, b.state, b.state_changed_at, CAST(CASE WHEN f.finding_id IS NULL THEN 0 ELSE 1 END AS BIGINT) FROM nodes n JOIN machines m ON m.machine_id = n.machine_id LEFT JOIN boot_nodes b ON b.machine_id = m.machine_id AND b.state <> 'retired' LEFT JOIN findings f ON f.subject = n.node_id AND f.kind = 'LAYERS_DISAGREE' AND f.state <> 'resolved' WHERE n.status <> 'deleted'"
    };
}

crate::statements! {
    GET = concat!("SELECT ", node_columns!(), " WHERE node_id = $1");
    BY_NAME = concat!("SELECT ", node_columns!(), " WHERE name = $1 AND status <> 'deleted'");
    BY_MACHINE = concat!("SELECT ", node_columns!(), " WHERE machine_id = $1 AND status <> 'deleted'");
    BY_MAAS = concat!("SELECT ", node_columns!(), " WHERE maas_site = $1 AND maas_system_id = $2 AND status <> 'deleted'");
    BY_CLAIM = concat!("SELECT ", node_columns!(), " WHERE node_id = (SELECT node_id FROM node_claims WHERE site = $1 AND kind = $2 AND value = $3) AND status <> 'deleted'");
    CLAIM = "INSERT INTO node_claims(site, kind, value, node_id) VALUES ($1, $2, $3, $4) ON CONFLICT (site, kind, value) DO UPDATE SET node_id = excluded.node_id";
    OF_SITE = concat!("SELECT ", node_columns!(), " WHERE maas_site = $1 AND maas_system_id > $2 AND status <> 'deleted' ORDER BY maas_system_id LIMIT $3");
    LIST = concat!("SELECT ", node_columns!(), " WHERE node_id > $1");
    ORPHANS = "SELECT n.node_id FROM nodes n WHERE n.node_id > $1 AND n.status IN ('enrolling', 'draining', 'removing') AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.node_id = n.node_id AND j.status NOT IN ('completed', 'cancelled', 'reconciled')) ORDER BY n.node_id LIMIT $2";
    INSERT = "INSERT INTO nodes(node_id, name, status, version, status_reason, status_changed_at, cordoned_by, cordon_reason, machine_id, active_job_id, agent_mode, agent_mode_by, task_fence, created_at, created_by, quarantined_by, unclean, maas_site, maas_system_id) VALUES ($1, $2, $3, 1, $4, $5, '', '', $6, NULL, 'keep', '', 0, $5, $7, '', '', $8, $9)";
    UPDATE = "UPDATE nodes SET version = version + 1, name = $3, status = $4, status_reason = $5, status_changed_at = $6, cordoned_by = $7, cordon_reason = $8, machine_id = $9, active_job_id = $10, agent_mode = $11, agent_mode_by = $12, quarantined_by = $13, unclean = $14, maas_site = $15, maas_system_id = $16 WHERE node_id = $1 AND version = $2";
    HOLDERS = "SELECT DISTINCT machine_id FROM machine_identifiers WHERE (kind = 'serial_number' AND lower(value) = $1) OR (kind = 'system_uuid' AND value IN ($2, $3)) ORDER BY machine_id LIMIT 5";
    MAC_HOLDER = "SELECT machine_id FROM machine_identifiers WHERE kind = 'mac' AND value = $1";
    LINKED = concat!("SELECT ", linked_columns!(), " AND n.node_id > $1 ORDER BY n.node_id LIMIT $2");
    LINKED_OF = concat!("SELECT ", linked_columns!(), " AND n.node_id = $1");
    RAISE_FENCE = "UPDATE nodes SET task_fence = task_fence + 1 WHERE node_id = $1 RETURNING task_fence";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM nodes WHERE node_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

fn read(row: &Row, _: Timestamp) -> Result<Node, DbError> {
    let mode = row.text(10)?;
    Ok(Node {
        id: NodeId::from_text(row.string(0)?),
        name: row.string(1)?,
        status: codec::state(row.text(2)?)?,
        version: row.uint(3)?,
        status_reason: row.string(4)?,
        status_changed_at: row.time(5)?,
        cordoned_by: row.string(6)?,
        cordon_reason: row.string(7)?,
        machine_id: row.maybe(8, Row::string)?.map(MachineId::from_text),
        active_job: row.maybe(9, Row::string)?.map(JobId::from_text),
        agent_mode: AgentMode::parse(mode).ok_or_else(|| codec::unknown("agent mode", mode))?,
        agent_mode_by: row.string(11)?,
        task_fence: row.uint(12)?,
        created_at: row.time(13)?,
        created_by: row.string(14)?,
        quarantined_by: row.string(15)?,
        unclean: row.string(16)?,
        maas: match (row.maybe(17, Row::string)?, row.maybe(18, Row::string)?) {
            (Some(site), system_id) => Some(MaasRef { site, system_id: system_id.unwrap_or_default() }),
            (None, _) => None,
        },
    })
}

pub fn by_id(id: &NodeId) -> Point<Node> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

/// The one that is not deleted.
pub fn by_name(name: &str) -> Point<Node> {
    Point { sql: BY_NAME, params: vec![Val::from(name)], read }
}

/// The one that is not deleted.
pub fn by_machine(machine: &MachineId) -> Point<Node> {
    Point { sql: BY_MACHINE, params: vec![Val::from(machine.as_str())], read }
}

/// The one that is not deleted.
pub fn by_maas(machine: &MaasRef) -> Point<Node> {
    let params = vec![Val::from(machine.site.as_str()), Val::from(machine.system_id.as_str())];
    Point { sql: BY_MAAS, params, read }
}

/// The one that is not deleted and has claimed the machine of this name.
pub fn by_claim(site: &str, kind: &str, value: &str) -> Point<Node> {
    Point { sql: BY_CLAIM, params: vec![Val::from(site), Val::from(kind), Val::from(value)], read }
}

/// The site's row is locked by the caller, who has seen that nobody holds it.
pub fn claim(tx: &mut Tx<'_>, site: &str, kind: &str, value: &str, node: &NodeId) -> TxResult<()> {
    tx.exec(CLAIM, params![site, kind, value, node.as_str()])?;
    Ok(())
}

/// Those that run on machines of a site, in order of these, after `after`.
pub fn of_site(tx: &mut Tx<'_>, site: &str, after: &str, limit: usize) -> TxResult<Vec<Node>> {
    let now = tx.now();
    Ok(tx.rows(OF_SITE, params![site, after, limit])?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// For an operation that will write it.
pub fn get_for_update(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Option<Node>> {
    tx.locked(LOCK, &by_id(id))
}

/// In order of their ids, after `after`. Of a view, its statuses only.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, view: Option<View>, after: &str, limit: usize) -> TxResult<Vec<Node>> {
    use domain::lifecycle::State as _;
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "id" => "node_id",
        "name" => "name",
        "status" => "status",
        "machine_id" => "COALESCE(machine_id, '')",
        "maas_site" => "COALESCE(maas_site, '')",
        "maas_system_id" => "COALESCE(maas_system_id, '')",
        "active_job_id" => "COALESCE(active_job_id, '')",
        "cordoned_by" => "cordoned_by",
        "agent_mode" => "agent_mode",
        "status_changed_at" => "status_changed_at",
        "created_at" => "created_at",
        _ => "NULL",
    });
    // names of ours, with nothing to quote
    let shown = view.map(|view| {
        let names = NodeStatus::ALL.iter().filter(|s| s.view() == view).map(|s| format!("'{}'", s.as_str()));
        format!(" AND status IN ({})", names.collect::<Vec<_>>().join(", "))
    });
    let sql = format!("{LIST}{}{} ORDER BY node_id LIMIT {limit}", clause.sql, shown.unwrap_or_default());
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// Those whose status wants a job and that have none, in order of their ids, after `after`.
pub fn orphans(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<NodeId>> {
    let rows = tx.rows(ORPHANS, params![after, limit])?;
    Ok(rows.iter().map(|row| row.string(0).map(NodeId::from_text)).collect::<Result<_, _>>()?)
}

fn again(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Node> {
    tx.point(&by_id(id))?.ok_or_else(|| Failure::Lost(format!("node {id}")))
}

/// One that was not there.
pub fn insert(tx: &mut Tx<'_>, node: &Node, cause: &Cause) -> TxResult<Node> {
    let now = tx.now();
    let t = transition(node, None, node.status, 1, "{}".to_owned());
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(
            INSERT,
            params![
                node.id.as_str(),
                &node.name,
                codec::spelt(node.status),
                &node.status_reason,
                now,
                node.machine_id.as_ref().map(MachineId::as_str),
                &node.created_by,
                node.maas.as_ref().map(|maas| maas.site.as_str()),
                node.maas.as_ref().and_then(MaasRef::found),
            ],
        )?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    again(tx, &node.id)
}

fn write(tx: &mut Tx<'_>, node: &Node) -> Result<u64, DbError> {
    tx.exec(
        UPDATE,
        params![
            node.id.as_str(),
            node.version,
            &node.name,
            codec::spelt(node.status),
            &node.status_reason,
            node.status_changed_at,
            &node.cordoned_by,
            &node.cordon_reason,
            node.machine_id.as_ref().map(MachineId::as_str),
            node.active_job.as_ref().map(JobId::as_str),
            node.agent_mode.as_str(),
            &node.agent_mode_by,
            &node.quarantined_by,
            &node.unclean,
            node.maas.as_ref().map(|maas| maas.site.as_str()),
            node.maas.as_ref().and_then(MaasRef::found),
        ],
    )
}

/// What is known or wished of it, without a move; `node` has the version that was read.
pub fn save(tx: &mut Tx<'_>, node: &Node) -> TxResult<Node> {
    if write(tx, node)? != 1 {
        return Err(Failure::Lost(format!("node {}", node.id)));
    }
    tx.signal(Signal::NodeChanged(node.id.clone()));
    again(tx, &node.id)
}

/// A move, and what it brings with it: `after` is how the node is to be.
pub fn move_to(
    tx: &mut Tx<'_>,
    before: &Node,
    after: &Node,
    metadata: &serde_json::Value,
    cause: &Cause,
    guard: impl FnOnce(Guard) -> Result<(), Error>,
) -> TxResult<Node> {
    let t = transition(before, Some(before.status), after.status, before.version + 1, codec::to_json(metadata));
    let now = tx.now();
    let after = Node { status_changed_at: now, ..after.clone() };
    match tx.transition(t, cause, guard, |tx| Ok(write(tx, &after)?))? {
        Moved::Moved => tx.signal(Signal::NodeChanged(before.id.clone())),
        Moved::AlreadyThere => return Ok(before.clone()),
    }
    again(tx, &before.id)
}

/// Every move of a node, of its jobs and its tasks: the newest first, and how many there are in all.
pub fn history(tx: &mut Tx<'_>, id: &NodeId, limit: usize, offset: usize) -> TxResult<(Vec<LogRow>, u64)> {
    log::newest_of_subject(tx, id.as_str(), limit, offset)
}

/// A node with what its machine and its boot node are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    pub node_id: NodeId,
    pub machine_id: MachineId,
    pub layers: Layers,
    /// Of the three, the last.
    pub moved_at: Timestamp,
    /// That they disagree is a finding already.
    pub found: bool,
}

fn read_linked(row: &Row, _: Timestamp) -> Result<Linked, DbError> {
    let boot = row.maybe(6, Row::string)?;
    let moved = row.time(2)?.max(row.time(5)?);
    Ok(Linked {
        node_id: NodeId::from_text(row.string(0)?),
        machine_id: MachineId::from_text(row.string(3)?),
        layers: Layers {
            node: Some(codec::state(row.text(1)?)?),
            boot_node: boot.as_deref().map(codec::state).transpose()?,
            phase: Some(codec::state(row.text(4)?)?),
        },
        moved_at: row.maybe(7, Row::time)?.map_or(moved, |boot| moved.max(boot)),
        found: row.uint(8)? == 1,
    })
}

/// Nodes that are linked to machines, in order of their ids, after `after`.
pub fn linked(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<Linked>> {
    let now = tx.now();
    Ok(tx.rows(LINKED, params![after, limit])?.iter().map(|row| read_linked(row, now)).collect::<Result<_, _>>()?)
}

/// One of them.
pub fn linked_of(id: &NodeId) -> Point<Linked> {
    Point { sql: LINKED_OF, params: vec![Val::from(id.as_str())], read: read_linked }
}

/// The machines that hold one of these identifiers: at most a handful.
pub fn holders(tx: &mut Tx<'_>, facts: &HardwareFacts) -> TxResult<Vec<MachineId>> {
    let told = |text: &str, tells: bool| if tells { text.to_ascii_lowercase() } else { String::new() };
    let serial = told(&facts.serial_number, domain::identity::tells(&facts.serial_number));
    let uuid = told(&facts.system_uuid, domain::identity::uuid_tells(&facts.system_uuid));
    let swapped = domain::identity::swapped_uuid(&uuid).unwrap_or_default();
    let mut found: Vec<MachineId> = Vec::new();
    for row in tx.rows(HOLDERS, params![serial, uuid, swapped])? {
        found.push(MachineId::from_text(row.string(0)?));
    }
    for mac in facts.macs.iter().take(MACS_ASKED) {
        if let Some(row) = tx.row(MAC_HOLDER, params![mac.as_str()])? {
            found.push(MachineId::from_text(row.string(0)?));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Cards of one machine that are looked up.
const MACS_ASKED: usize = 16;

/// The fence of the next task that is handed out. No news of the node, so its version is not raised.
pub fn raise_fence(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<u64> {
    let rows = tx.rows(RAISE_FENCE, params![id.as_str()])?;
    let row = rows.first().ok_or_else(|| Failure::Lost(format!("node {id}")))?;
    Ok(row.uint(0)?)
}

fn transition(
    node: &Node,
    from: Option<NodeStatus>,
    to: NodeStatus,
    version: u64,
    metadata: String,
) -> Transition<'_, NodeStatus> {
    let id = node.id.as_str();
    Transition { entity_id: id, subject: id, customer_id: "", from, to, version, metadata }
}

fn no_guard(_: Guard) -> Result<(), Error> {
    Ok(())
}
