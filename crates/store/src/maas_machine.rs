//! Machines of sites as their MAAS last told of them, and what they are found by. Written by whoever observes, many at a
//! time and only where something is new.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::tx::Tx;
use domain::Timestamp;
use domain::filter::{Field, Filter, Schema};
use domain::job::JobStatus;
use domain::job_stage::JobStage;
use domain::maas_drift::{OfJob, OfNode};
use domain::maas_machine::{Identifier, ObservedMachine, Told, Traits};
use domain::node::MaasRef;
use serde::{Deserialize, Serialize};

/// What they can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("system_id"),
        Field::number("status"),
        Field::text("status_name"),
        Field::one_of(
            "class",
            &[
                "new",
                "commissioning",
                "ready",
                "allocated",
                "deploying",
                "deployed",
                "failed",
                "transitional",
                "unknown",
            ],
        ),
        Field::text("power_state"),
        Field::text("hostname"),
        Field::text("owner"),
        Field::text("hardware_uuid"),
        Field::text("serial"),
        Field::text("pool"),
        Field::text("zone"),
        Field::text("osystem"),
        Field::text("series"),
        Field::text("node_id"),
        Field::time("changed_at"),
        Field::time("absent_since"),
    ],
    labels: false,
};

macro_rules! columns {
    () => {
        "m.site, m.system_id, m.status, m.status_name, m.power_state, m.hostname, m.owner, m.hardware_uuid, m.serial, m.pool, m.zone, m.osystem, m.series, m.body, m.settled, m.first_seen_at, m.status_since, m.changed_at, m.absent_since"
    };
}

/// With the node on it, the job that has not ended, when a job last ended, whether another machine shares an identifier,
/// how many findings of MAAS's are open, whether that job works on the machine in MAAS, and when one last had done so.
macro_rules! linked {
    () => {
        ", n.node_id, n.status, n.status_changed_at, j.status, (SELECT MAX(e.finished_at) FROM jobs e WHERE e.node_id = n.node_id), CAST(CASE WHEN EXISTS (SELECT 1 FROM maas_identifiers i JOIN maas_identifiers o ON o.kind = i.kind AND o.value = i.value AND (o.site <> i.site OR o.system_id <> i.system_id) WHERE i.site = m.site AND i.system_id = m.system_id) THEN 1 ELSE 0 END AS BIGINT), (SELECT COUNT(*) FROM findings f WHERE f.subject = n.node_id AND f.state <> 'resolved' AND substr(f.kind, 1, 5) = 'MAAS_'), CAST(CASE WHEN j.ground = 'maas' THEN 1 ELSE 0 END AS BIGINT), (SELECT MAX(d.finished_at) FROM jobs d WHERE d.node_id = n.node_id AND d.ground = 'maas' AND d.status IN ('completed', 'reconciled')), j.stage FROM nodes n JOIN maas_machines m ON m.site = n.maas_site AND m.system_id = n.maas_system_id LEFT JOIN jobs j ON j.node_id = n.node_id AND j.status NOT IN ('completed', 'cancelled', 'reconciled') WHERE n.maas_site = $1 AND n.status <> 'deleted'"
    };
}

/// Gone since before `$2`, and no node's.
macro_rules! long_absent {
    () => {
        "SELECT m.system_id FROM maas_machines m WHERE m.site = $1 AND m.absent_since < $2 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.maas_site = m.site AND n.maas_system_id = m.system_id AND n.status <> 'deleted')"
    };
}

macro_rules! with_node {
    () => {
        concat!(
            "SELECT ",
            columns!(),
            ", n.node_id, n.name FROM maas_machines m LEFT JOIN nodes n ON n.maas_site = m.site AND n.maas_system_id = m.system_id AND n.status <> 'deleted'"
        )
    };
}

crate::statements! {
    GET = concat!("SELECT ", columns!(), " FROM maas_machines m WHERE m.site = $1 AND m.system_id = $2");
    AFTER = concat!("SELECT ", columns!(), " FROM maas_machines m WHERE m.site = $1 AND m.system_id > $2 ORDER BY m.system_id LIMIT $3");
    WITH_NODE = concat!(with_node!(), " WHERE m.site = $1 AND m.system_id = $2");
    LIST = concat!(with_node!(), " WHERE m.site = $1 AND m.system_id > $2");
    BY_IDENTIFIER = concat!("SELECT ", columns!(), " FROM maas_identifiers i JOIN maas_machines m ON m.site = i.site AND m.system_id = i.system_id WHERE i.kind = $1 AND i.value = $2 AND m.absent_since IS NULL ORDER BY m.site, m.system_id LIMIT 20");
    SHARED = "SELECT i.kind, i.value, o.site, o.system_id FROM maas_identifiers i JOIN maas_identifiers o ON o.kind = i.kind AND o.value = i.value AND (o.site <> i.site OR o.system_id <> i.system_id) JOIN maas_machines m ON m.site = o.site AND m.system_id = o.system_id AND m.absent_since IS NULL WHERE i.site = $1 AND i.system_id = $2 ORDER BY i.kind, i.value, o.site, o.system_id LIMIT 20";
    LINKED = concat!("SELECT ", columns!(), linked!(), " AND m.system_id > $2 ORDER BY m.system_id LIMIT $3");
    LINKED_NODE = concat!("SELECT ", columns!(), linked!(), " AND n.node_id = $2");
    URGENT = "SELECT n.maas_system_id FROM nodes n LEFT JOIN maas_machines m ON m.site = n.maas_site AND m.system_id = n.maas_system_id LEFT JOIN jobs j ON j.node_id = n.node_id AND j.status IN ('pending', 'running', 'compensating') WHERE n.maas_site = $1 AND n.maas_system_id > '' AND n.status <> 'deleted' AND (m.system_id IS NULL OR j.job_id IS NOT NULL) ORDER BY CASE WHEN n.maas_system_id > $2 THEN 0 ELSE 1 END, n.maas_system_id LIMIT $3";
    SETTLE = "UPDATE maas_machines SET settled = $3 WHERE site = $1 AND system_id = $2";
    COUNT = "SELECT COUNT(*) FROM maas_machines WHERE site = $1 AND absent_since IS NULL";
    FORGET_ABSENT_IDENTIFIERS = concat!("DELETE FROM maas_identifiers WHERE site = $1 AND system_id IN (", long_absent!(), ")");
    FORGET_ABSENT = concat!("DELETE FROM maas_machines WHERE site = $1 AND system_id IN (", long_absent!(), ")");
    FORGET_IDENTIFIERS = "DELETE FROM maas_identifiers WHERE site = $1";
    FORGET = "DELETE FROM maas_machines WHERE site = $1";
}

macro_rules! put {
    ($values:literal) => {
        concat!(
            "INSERT INTO maas_machines(site, system_id, status, status_name, class, power_state, hostname, owner, hardware_uuid, serial, pool, zone, osystem, series, body, settled, first_seen_at, status_since, changed_at, absent_since) SELECT $1, ",
            $values,
            " WHERE true ON CONFLICT (site, system_id) DO UPDATE SET status = excluded.status, status_name = excluded.status_name, class = excluded.class, power_state = excluded.power_state, hostname = excluded.hostname, owner = excluded.owner, hardware_uuid = excluded.hardware_uuid, serial = excluded.serial, pool = excluded.pool, zone = excluded.zone, osystem = excluded.osystem, series = excluded.series, body = excluded.body, settled = excluded.settled, status_since = excluded.status_since, changed_at = excluded.changed_at, absent_since = excluded.absent_since"
        )
    };
}

/// `$2`: `[[system_id, status, …], …]`, in the order of the columns.
const PUT: Pair = Pair {
    sqlite: put!(
        "value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, value->>15, value->>16, value->>17, value->>18 FROM json_each($2)"
    ),
    postgres: put!(
        "value->>0, (value->>1)::bigint, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, (value->>15)::bigint, (value->>16)::bigint, (value->>17)::bigint, (value->>18)::bigint FROM jsonb_array_elements($2::text::jsonb)"
    ),
};

/// `$2`: `[system_id, …]`.
const UNIDENTIFY: Pair = Pair {
    sqlite: "DELETE FROM maas_identifiers WHERE site = $1 AND system_id IN (SELECT value FROM json_each($2))",
    postgres: "DELETE FROM maas_identifiers WHERE site = $1 AND system_id IN (SELECT jsonb_array_elements_text($2::text::jsonb))",
};

/// `$2`: `[[kind, value, system_id], …]`.
const IDENTIFY: Pair = Pair {
    sqlite: "INSERT INTO maas_identifiers(kind, value, site, system_id) SELECT value->>0, value->>1, $1, value->>2 FROM json_each($2)",
    postgres: "INSERT INTO maas_identifiers(kind, value, site, system_id) SELECT value->>0, value->>1, $1, value->>2 FROM jsonb_array_elements($2::text::jsonb)",
};

pub(crate) const PAIRS: &[(&str, Pair)] = &[("PUT", PUT), ("UNIDENTIFY", UNIDENTIFY), ("IDENTIFY", IDENTIFY)];

#[derive(Serialize, Deserialize)]
struct BodyRow {
    architecture: String,
    netboot: bool,
    locked: bool,
    macs: Vec<String>,
    boot_mac: String,
    addresses: Vec<String>,
    management_ip: String,
    tags: Vec<String>,
    last_sync: String,
    installation: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct TraitsRow {
    hostname: String,
    owner: String,
    pool: String,
    zone: String,
    osystem: String,
    series: String,
    netboot: bool,
    installation: Option<i64>,
}

fn body_to_json(told: &Told) -> String {
    codec::to_json(&BodyRow {
        architecture: told.architecture.clone(),
        netboot: told.netboot,
        locked: told.locked,
        macs: told.macs.clone(),
        boot_mac: told.boot_mac.clone(),
        addresses: told.addresses.clone(),
        management_ip: told.management_ip.clone(),
        tags: told.tags.clone(),
        last_sync: told.last_sync.clone(),
        installation: told.installation,
    })
}

/// Empty: nothing is settled.
fn settled_to_json(settled: Option<&Traits>) -> String {
    let Some(t) = settled.cloned() else { return String::new() };
    codec::to_json(&TraitsRow {
        hostname: t.hostname,
        owner: t.owner,
        pool: t.pool,
        zone: t.zone,
        osystem: t.osystem,
        series: t.series,
        netboot: t.netboot,
        installation: t.installation,
    })
}

fn settled_from_json(text: &str) -> Result<Option<Traits>, DbError> {
    if text.is_empty() {
        return Ok(None);
    }
    let t: TraitsRow = codec::from_json("what is settled of a machine", text)?;
    Ok(Some(Traits {
        hostname: t.hostname,
        owner: t.owner,
        pool: t.pool,
        zone: t.zone,
        osystem: t.osystem,
        series: t.series,
        netboot: t.netboot,
        installation: t.installation,
    }))
}

fn read(row: &Row, _: Timestamp) -> Result<ObservedMachine, DbError> {
    let body: BodyRow = codec::from_json("a machine of a site", row.text(13)?)?;
    Ok(ObservedMachine {
        at: MaasRef { site: row.string(0)?, system_id: row.string(1)? },
        told: Told {
            status: row.int(2)?,
            status_name: row.string(3)?,
            power_state: row.string(4)?,
            hostname: row.string(5)?,
            owner: row.string(6)?,
            hardware_uuid: row.string(7)?,
            serial: row.string(8)?,
            pool: row.string(9)?,
            zone: row.string(10)?,
            osystem: row.string(11)?,
            series: row.string(12)?,
            architecture: body.architecture,
            netboot: body.netboot,
            locked: body.locked,
            macs: body.macs,
            boot_mac: body.boot_mac,
            addresses: body.addresses,
            management_ip: body.management_ip,
            tags: body.tags,
            last_sync: body.last_sync,
            installation: body.installation,
        },
        settled: settled_from_json(row.text(14)?)?,
        first_seen_at: row.time(15)?,
        status_since: row.time(16)?,
        changed_at: row.time(17)?,
        absent_since: row.maybe(18, Row::time)?,
    })
}

/// A machine, and the node that runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithNode {
    pub machine: ObservedMachine,
    /// Its id and its name.
    pub node: Option<(domain::NodeId, String)>,
}

fn read_with_node(row: &Row, now: Timestamp) -> Result<WithNode, DbError> {
    let (id, name) = (row.maybe(19, Row::string)?, row.maybe(20, Row::string)?);
    let node = id.map(|id| (domain::NodeId::from_text(id), name.unwrap_or_default()));
    Ok(WithNode { machine: read(row, now)?, node })
}

/// A machine that a node runs on, with what it is judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    pub machine: ObservedMachine,
    pub node: OfNode,
    /// The job that has not ended.
    pub job: Option<OfJob>,
    /// That job works on the machine in MAAS, and not only on what runs on it.
    pub deploys: bool,
    /// When such a job was last brought to its end.
    pub deployed_at: Option<Timestamp>,
    /// When the node last moved or a job of it last ended.
    pub quiet_since: Timestamp,
    /// Another machine has one of its identifiers, or had.
    pub shares: bool,
    /// Findings about it that are open.
    pub open: u64,
}

fn read_linked(row: &Row, now: Timestamp) -> Result<Linked, DbError> {
    let (moved, ended) = (row.time(21)?, row.maybe(23, Row::time)?);
    let stage = row.maybe(28, Row::string)?.as_deref().and_then(JobStage::parse);
    let status: Option<JobStatus> = row.maybe(22, Row::string)?.as_deref().map(codec::state).transpose()?;
    let job = status.map(|status| OfJob { status, stage });
    Ok(Linked {
        machine: read(row, now)?,
        node: OfNode {
            id: domain::NodeId::from_text(row.string(19)?),
            status: codec::state(row.text(20)?)?,
            status_changed_at: moved,
        },
        job,
        deploys: row.uint(26)? == 1,
        deployed_at: row.maybe(27, Row::time)?,
        quiet_since: ended.map_or(moved, |ended| moved.max(ended)),
        shares: row.uint(24)? == 1,
        open: row.uint(25)?,
    })
}

/// Those of a site that nodes run on, in order of their ids, after `after`.
pub fn linked(tx: &mut Tx<'_>, site: &str, after: &str, limit: usize) -> TxResult<Vec<Linked>> {
    let now = tx.now();
    Ok(tx
        .rows(LINKED, params![site, after, limit])?
        .iter()
        .map(|row| read_linked(row, now))
        .collect::<Result<_, _>>()?)
}

/// The one that this node runs on.
pub fn linked_node(site: &str, node: &domain::NodeId) -> Point<Linked> {
    Point { sql: LINKED_NODE, params: vec![Val::from(site), Val::from(node.as_str())], read: read_linked }
}

/// Machines of nodes that nobody has seen yet, and those whose node has a job under way: in order of their ids from `after`
/// on, and then from the first.
pub fn urgent(tx: &mut Tx<'_>, site: &str, after: &str, limit: usize) -> TxResult<Vec<String>> {
    let rows = tx.rows(URGENT, params![site, after, limit])?;
    Ok(rows.iter().map(|row| row.string(0)).collect::<Result<_, _>>()?)
}

fn key(at: &MaasRef) -> Vec<Val> {
    vec![Val::from(at.site.as_str()), Val::from(at.system_id.as_str())]
}

pub fn by_ref(at: &MaasRef) -> Point<ObservedMachine> {
    Point { sql: GET, params: key(at), read }
}

pub fn with_node(at: &MaasRef) -> Point<WithNode> {
    Point { sql: WITH_NODE, params: key(at), read: read_with_node }
}

/// All of a site, absent ones too, in order of their ids, after `after`.
pub fn after(tx: &mut Tx<'_>, site: &str, after: &str, limit: usize) -> TxResult<Vec<ObservedMachine>> {
    let now = tx.now();
    Ok(tx.rows(AFTER, params![site, after, limit])?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// The same for people, with their nodes.
pub fn list(tx: &mut Tx<'_>, site: &str, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<WithNode>> {
    let mut clause = Where::new(vec![Val::from(site), Val::from(after)]);
    clause.and(filter, &|field| match field {
        "system_id" => "m.system_id",
        "status" => "m.status",
        "status_name" => "m.status_name",
        "class" => "m.class",
        "power_state" => "m.power_state",
        "hostname" => "m.hostname",
        "owner" => "m.owner",
        "hardware_uuid" => "m.hardware_uuid",
        "serial" => "m.serial",
        "pool" => "m.pool",
        "zone" => "m.zone",
        "osystem" => "m.osystem",
        "series" => "m.series",
        "node_id" => "COALESCE(n.node_id, '')",
        "changed_at" => "m.changed_at",
        "absent_since" => "m.absent_since",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY m.system_id LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read_with_node(row, now)).collect::<Result<_, _>>()?)
}

/// Those that are there and have it, of whatever site: more than one is worth a look. At most twenty.
pub fn by_identifier(tx: &mut Tx<'_>, kind: Identifier, value: &str) -> TxResult<Vec<ObservedMachine>> {
    let now = tx.now();
    let rows = tx.rows(BY_IDENTIFIER, params![kind.as_str(), value.to_ascii_lowercase()])?;
    Ok(rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// What this machine has in common with others that are there, and with which. At most twenty.
pub fn shared(tx: &mut Tx<'_>, at: &MaasRef) -> TxResult<Vec<(Identifier, String, MaasRef)>> {
    let read = |row: &Row| -> Result<(Identifier, String, MaasRef), DbError> {
        let kind = row.text(0)?;
        let kind = Identifier::parse(kind).ok_or_else(|| codec::unknown("identifier", kind))?;
        Ok((kind, row.string(1)?, MaasRef { site: row.string(2)?, system_id: row.string(3)? }))
    };
    Ok(tx.rows(SHARED, params![&at.site, &at.system_id])?.iter().map(read).collect::<Result<_, _>>()?)
}

/// How many are there.
pub fn count(tx: &mut Tx<'_>, site: &str) -> TxResult<u64> {
    tx.row(COUNT, params![site])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// What was seen, in the place of what was known: all by three statements. Each machine at most once.
pub fn put(tx: &mut Tx<'_>, site: &str, machines: &[ObservedMachine]) -> TxResult<()> {
    if machines.is_empty() {
        return Ok(());
    }
    let time = Timestamp::micros;
    let row = |m: &ObservedMachine| {
        let t = &m.told;
        serde_json::json!([
            m.at.system_id,
            t.status,
            t.status_name,
            t.class().as_str(),
            t.power_state,
            t.hostname,
            t.owner,
            t.hardware_uuid,
            t.serial,
            t.pool,
            t.zone,
            t.osystem,
            t.series,
            body_to_json(t),
            settled_to_json(m.settled.as_ref()),
            time(m.first_seen_at),
            time(m.status_since),
            time(m.changed_at),
            m.absent_since.map(time),
        ])
    };
    let (dialect, ids) = (tx.dialect(), machines.iter().map(|m| m.at.system_id.as_str()).collect::<Vec<_>>());
    let identifiers: Vec<_> = machines
        .iter()
        .flat_map(|m| {
            let of = |(kind, value): (Identifier, String)| (kind.as_str(), value, m.at.system_id.as_str());
            m.told.identifiers().into_iter().map(of)
        })
        .collect();
    let rows = codec::to_json(&machines.iter().map(row).collect::<Vec<_>>());
    tx.exec(PUT.get(dialect), params![site, rows])?;
    tx.exec(UNIDENTIFY.get(dialect), params![site, codec::to_json(&ids)])?;
    tx.exec(IDENTIFY.get(dialect), params![site, codec::to_json(&identifiers)])?;
    Ok(())
}

/// How a machine is when nobody works on it; `None`: somebody does.
pub fn settle(tx: &mut Tx<'_>, at: &MaasRef, settled: Option<&Traits>) -> TxResult<()> {
    tx.exec(SETTLE, params![&at.site, &at.system_id, settled_to_json(settled)])?;
    Ok(())
}

/// What was seen of a site that is no more.
/// Those that MAAS has had no more since before then, and that are no node's.
pub fn forget_absent(tx: &mut Tx<'_>, site: &str, before: Timestamp) -> TxResult<()> {
    tx.exec(FORGET_ABSENT_IDENTIFIERS, params![site, before])?;
    tx.exec(FORGET_ABSENT, params![site, before])?;
    Ok(())
}

pub fn forget(tx: &mut Tx<'_>, site: &str) -> TxResult<()> {
    tx.exec(FORGET_IDENTIFIERS, params![site])?;
    tx.exec(FORGET, params![site])?;
    Ok(())
}
