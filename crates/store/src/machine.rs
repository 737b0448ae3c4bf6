//! Machines in the store.

use crate::codec::{self, ConditionRow, from_json, to_json};
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::observation;
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::condition::Condition;
use domain::filter::{Field, Filter, Schema};
use domain::lifecycle::{Guard, Owner};
use domain::look::is_looked_at;
use domain::machine::{ActiveRun, Labels, Machine, MachineSpec, Phase};
use domain::observation::Lane;
use domain::{Error, MachineId, Reason, RunId, Timestamp};

/// What machines can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("machine_id"),
        Field::one_of(
            "phase",
            &["FACTORY_READY", "READY", "PROVISIONING", "IN_SERVICE", "MAINTENANCE", "RMA", "RETIRED"],
        ),
        Field::text("provider"),
        Field::text("location"),
        Field::text("rack"),
        Field::text("serial_number"),
        Field::text("system_uuid"),
        Field::text("customer_id"),
        Field::text("target_cluster_ref"),
        Field::text("active_run_id"),
    ],
    labels: true,
};

macro_rules! machine_columns {
    () => {
        "m.machine_id, m.version, m.phase, m.phase_set_by, m.phase_set_at, m.previous_phase, m.provider, m.location, m.rack, m.serial_number, m.system_uuid, m.customer_id, m.target_cluster_ref, m.ssh_endpoint, m.bmc_endpoint, m.credentials_ref, m.mac_addresses, m.labels, m.conditions, m.created_at, m.updated_at, m.active_run_id, r.phase, r.type, r.current_step, o.version, o.lane, o.source, o.conditions, o.facts, o.trouble, o.last_seen, o.observed_at, s.swept_at, s.stale_after_ms FROM machines m LEFT JOIN runs r ON r.run_id = m.active_run_id LEFT JOIN observations o ON o.machine_id = m.machine_id LEFT JOIN sweeps s ON s.lane = o.lane"
    };
}

crate::statements! {
    GET = concat!("SELECT ", machine_columns!(), " WHERE m.machine_id = $1");
    LIST = concat!("SELECT ", machine_columns!(), " WHERE m.machine_id > $1");
    LANE = concat!("SELECT ", machine_columns!(), " WHERE m.machine_id > $1 AND COALESCE(o.lane, 'quick') = $2 ORDER BY m.machine_id LIMIT $3");
    INSERT = "INSERT INTO machines(machine_id, version, phase, phase_set_by, phase_set_at, previous_phase, provider, location, rack, serial_number, system_uuid, customer_id, target_cluster_ref, ssh_endpoint, bmc_endpoint, credentials_ref, mac_addresses, labels, conditions, last_seen, created_at, updated_at) VALUES ($1, 1, $2, $3, $4, '', $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, '[]', NULL, $4, $4)";
    UPDATE_SPEC = "UPDATE machines SET version = version + 1, provider = $3, location = $4, rack = $5, serial_number = $6, system_uuid = $7, customer_id = $8, target_cluster_ref = $9, ssh_endpoint = $10, bmc_endpoint = $11, credentials_ref = $12, mac_addresses = $13, labels = $14, updated_at = $15 WHERE machine_id = $1 AND version = $2";
    UPDATE_PHASE = "UPDATE machines SET version = version + 1, phase = $3, phase_set_by = $4, phase_set_at = $5, previous_phase = $6, active_run_id = $7, conditions = $8, updated_at = $5 WHERE machine_id = $1 AND version = $2";
    UPDATE_HOLD = "UPDATE machines SET version = version + 1, active_run_id = $3, conditions = $4, updated_at = $5 WHERE machine_id = $1 AND version = $2";
    LABELS_DELETE = "DELETE FROM machine_labels WHERE machine_id = $1";
    LABEL_INSERT = "INSERT INTO machine_labels(machine_id, label_key, label_value) VALUES ($1, $2, $3)";
    IDENTIFIERS_DELETE = "DELETE FROM machine_identifiers WHERE machine_id = $1";
    IDENTIFIER_HOLDER = "SELECT machine_id FROM machine_identifiers WHERE kind = $1 AND value = $2";
    IDENTIFIER_INSERT = "INSERT INTO machine_identifiers(kind, value, machine_id) VALUES ($1, $2, $3)";
    COUNT = "SELECT COUNT(*) FROM machines";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM machines WHERE machine_id = $1"
    };
}

/// Takes the row's lock. A statement of its own: one that waits for the lock sees the machine as its rival
/// left it, but the rival's run not yet.
const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

fn read(row: &Row, as_of: Timestamp) -> Result<Machine, DbError> {
    let active_run = match row.maybe(21, Row::string)? {
        Some(id) => Some(ActiveRun {
            id: RunId::from_text(id),
            phase: codec::state(row.text(22)?)?,
            run_type: row.string(23)?,
            current_step: row.string(24)?,
        }),
        None => None,
    };
    let conditions = from_json::<Vec<ConditionRow>>("conditions", row.text(18)?)?;
    let set_by = row.text(3)?;
    Ok(Machine {
        id: MachineId::from_text(row.string(0)?),
        version: row.uint(1)?,
        phase: codec::state(row.text(2)?)?,
        phase_set_by: Owner::ALL.into_iter().find(|o| o.as_str() == set_by).unwrap_or(Owner::Operator),
        phase_set_at: row.time(4)?,
        previous_phase: match row.text(5)? {
            "" => None,
            text => Some(codec::state(text)?),
        },
        spec: MachineSpec {
            provider: row.string(6)?,
            location: row.string(7)?,
            rack: row.string(8)?,
            serial_number: row.string(9)?,
            system_uuid: row.string(10)?,
            customer_id: row.string(11)?,
            target_cluster_ref: row.string(12)?,
            ssh_endpoint: row.string(13)?,
            bmc_endpoint: row.string(14)?,
            credentials_ref: row.string(15)?,
            mac_addresses: from_json("mac_addresses", row.text(16)?)?,
        },
        labels: from_json("labels", row.text(17)?)?,
        conditions: conditions.into_iter().map(Condition::try_from).collect::<Result<_, _>>()?,
        created_at: row.time(19)?,
        updated_at: row.time(20)?,
        active_run,
        observation: observation::read(row, 25, as_of)?,
    })
}

pub fn by_id(id: &MachineId) -> Point<Machine> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

pub fn get(tx: &mut Tx<'_>, id: &MachineId) -> TxResult<Option<Machine>> {
    tx.point(&by_id(id))
}

/// For an operation that will write it.
pub fn get_for_update(tx: &mut Tx<'_>, id: &MachineId) -> TxResult<Option<Machine>> {
    tx.locked(LOCK, &by_id(id))
}

/// Machines in order of their ids, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<Machine>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "machine_id" => "m.machine_id",
        "phase" => "m.phase",
        // as the machine is driven: the label counts where the field is empty
        "provider" => {
            "CASE WHEN m.provider <> '' THEN m.provider ELSE COALESCE((SELECT l.label_value FROM machine_labels l WHERE l.machine_id = m.machine_id AND l.label_key = 'provider'), '') END"
        }
        "location" => "m.location",
        "rack" => "m.rack",
        "serial_number" => "m.serial_number",
        "system_uuid" => "m.system_uuid",
        "customer_id" => "m.customer_id",
        "target_cluster_ref" => "m.target_cluster_ref",
        // a machine without one has another, so to say
        "active_run_id" => "COALESCE(m.active_run_id, '')",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY m.machine_id LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// The machines that a sweep of this lane looks at, in order of their ids, after `after`.
pub fn list_lane(tx: &mut Tx<'_>, lane: Lane, after: &str, limit: usize) -> TxResult<Vec<Machine>> {
    let now = tx.now();
    let rows = tx.rows(LANE, params![after, lane.as_str(), limit])?;
    Ok(rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

pub fn count(tx: &mut Tx<'_>) -> TxResult<u64> {
    tx.row(COUNT, &[])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// A machine that was not there.
pub fn insert(
    tx: &mut Tx<'_>,
    id: &MachineId,
    spec: &MachineSpec,
    labels: &Labels,
    cause: &Cause,
) -> TxResult<Machine> {
    let now = tx.now();
    let t = Transition {
        entity_id: id.as_str(),
        subject: id.as_str(),
        customer_id: &spec.customer_id,
        from: None,
        to: Phase::FactoryReady,
        version: 1,
        metadata: "{}".to_owned(),
    };
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(
            INSERT,
            params![
                id.as_str(),
                Phase::FactoryReady.to_string(),
                cause.owner().as_str(),
                now,
                &spec.provider,
                &spec.location,
                &spec.rack,
                &spec.serial_number,
                &spec.system_uuid,
                &spec.customer_id,
                &spec.target_cluster_ref,
                &spec.ssh_endpoint,
                &spec.bmc_endpoint,
                &spec.credentials_ref,
                to_json(&spec.mac_addresses),
                to_json(labels),
            ],
        )?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    write_identifiers(tx, id, spec)?;
    write_labels(tx, id, labels)?;
    tx.signal(Signal::MachineChanged(id.clone()));
    get(tx, id)?.ok_or_else(|| Failure::Lost(format!("machine {id}")))
}

/// Spec and labels; status is not touched.
pub fn update_spec(tx: &mut Tx<'_>, machine: &Machine, spec: &MachineSpec, labels: &Labels) -> TxResult<Machine> {
    if *spec == machine.spec && *labels == machine.labels {
        return Ok(machine.clone());
    }
    let now = tx.now();
    let changed = tx.exec(
        UPDATE_SPEC,
        params![
            machine.id.as_str(),
            machine.version,
            &spec.provider,
            &spec.location,
            &spec.rack,
            &spec.serial_number,
            &spec.system_uuid,
            &spec.customer_id,
            &spec.target_cluster_ref,
            &spec.ssh_endpoint,
            &spec.bmc_endpoint,
            &spec.credentials_ref,
            to_json(&spec.mac_addresses),
            to_json(labels),
            now,
        ],
    )?;
    if changed != 1 {
        return Err(Failure::Lost(format!("machine {}", machine.id)));
    }
    if spec.identifiers() != machine.spec.identifiers() && machine.phase != Phase::Retired {
        tx.exec(IDENTIFIERS_DELETE, params![machine.id.as_str()])?;
        write_identifiers(tx, &machine.id, spec)?;
    }
    if *labels != machine.labels {
        tx.exec(LABELS_DELETE, params![machine.id.as_str()])?;
        write_labels(tx, &machine.id, labels)?;
    }
    tx.signal(Signal::MachineChanged(machine.id.clone()));
    Ok(Machine {
        spec: spec.clone(),
        labels: labels.clone(),
        version: machine.version + 1,
        updated_at: now,
        ..machine.clone()
    })
}

fn write_labels(tx: &mut Tx<'_>, id: &MachineId, labels: &Labels) -> TxResult<()> {
    for (key, value) in labels {
        tx.exec(LABEL_INSERT, params![id.as_str(), key, value])?;
    }
    Ok(())
}

fn write_identifiers(tx: &mut Tx<'_>, id: &MachineId, spec: &MachineSpec) -> TxResult<()> {
    for identifier in spec.identifiers() {
        if let Some(row) = tx.row(IDENTIFIER_HOLDER, params![identifier.kind, &identifier.value])? {
            let holder = row.string(0)?;
            return Err(Error::new(
                Reason::IdentityTaken,
                format!(
                    "machine {id}: {} {} belongs to machine {holder}; remove it there first, or update that machine",
                    identifier.kind, identifier.value
                ),
            )
            .with("machine_id", holder)
            .with("field", identifier.kind)
            .into());
        }
        tx.exec(IDENTIFIER_INSERT, params![identifier.kind, &identifier.value, id.as_str()])?;
    }
    Ok(())
}

fn no_guard(_: Guard) -> Result<(), Error> {
    Ok(())
}

/// What a move of the phase brings with it.
pub struct PhaseChange {
    pub to: Phase,
    pub active_run: Option<RunId>,
    pub previous_phase: Option<Phase>,
    pub conditions: Vec<Condition>,
}

/// Moves the phase. `guard` judges the edge's guard by facts the caller has.
pub fn set_phase(
    tx: &mut Tx<'_>,
    machine: &Machine,
    change: &PhaseChange,
    cause: &Cause,
    guard: impl FnOnce(Guard) -> Result<(), Error>,
) -> TxResult<Moved> {
    let now = tx.now();
    let t = Transition {
        entity_id: machine.id.as_str(),
        subject: machine.id.as_str(),
        customer_id: &machine.spec.customer_id,
        from: Some(machine.phase),
        to: change.to,
        version: machine.version + 1,
        metadata: match &change.active_run {
            Some(run) => format!("{{\"run_id\":{:?}}}", run.as_str()),
            None => "{}".to_owned(),
        },
    };
    if change.to == Phase::Retired {
        // it is gone: whoever registers that hardware anew must not meet it
        tx.exec(IDENTIFIERS_DELETE, params![machine.id.as_str()])?;
    }
    // a look shows something else after a run; an operator's word changes nothing that a look would show
    let let_go = change.active_run.is_none() && cause.owner() == Owner::Executor;
    if let_go || is_looked_at(machine.phase) != is_looked_at(change.to) {
        tx.signal(Signal::MachineChanged(machine.id.clone()));
    }
    tx.transition(t, cause, guard, |tx| {
        Ok(tx.exec(
            UPDATE_PHASE,
            params![
                machine.id.as_str(),
                machine.version,
                change.to.to_string(),
                cause.owner().as_str(),
                now,
                change.previous_phase.map_or(String::new(), |p| p.to_string()),
                change.active_run.as_ref().map(RunId::as_str),
                conditions_json(&change.conditions),
            ],
        )?)
    })
}

/// Takes or gives up the hold of a run without moving the phase.
pub fn set_hold(
    tx: &mut Tx<'_>,
    machine: &Machine,
    active_run: Option<&RunId>,
    conditions: &[Condition],
) -> TxResult<()> {
    let now = tx.now();
    let changed = tx.exec(
        UPDATE_HOLD,
        params![machine.id.as_str(), machine.version, active_run.map(RunId::as_str), conditions_json(conditions), now],
    )?;
    if changed != 1 {
        return Err(Failure::Lost(format!("machine {}", machine.id)));
    }
    if active_run.is_none() {
        tx.signal(Signal::MachineChanged(machine.id.clone()));
    }
    Ok(())
}

fn conditions_json(conditions: &[Condition]) -> String {
    to_json(&conditions.iter().map(ConditionRow::from).collect::<Vec<_>>())
}
