//! Machines: register, read, update, move by an operator's decision.

use crate::change::Answer;
use crate::credentials::check_named;
use crate::{Call, Page, PageRequest, Service};
use domain::condition::{self, Condition, ConditionType};
use domain::filter::Filter;
use domain::lifecycle::Guard;
use domain::limits::{self, COMMENT_MAX};
use domain::machine::{
    Labels, Machine, MachineSpec, NODE_LABEL, Phase, REGISTERED, SET_PHASE, check_labels, check_text,
};
use domain::pin::{FORGOTTEN, Pin};
use domain::token::Role;
use domain::{Error, MachineId, Reason};
use provider::{Membership, Target};
use std::sync::Arc;
use std::time::Duration;
use store::hold::Hold;
use store::machine::{self, PhaseChange};
use store::{Cause, Moved, Tx, TxResult, pin};

/// A registration. Without an id one is generated.
#[derive(Clone, Debug, Default)]
pub struct NewMachine {
    pub id: String,
    pub spec: MachineSpec,
    pub labels: Labels,
    /// Non-zero: must match the machine that is there.
    pub version: u64,
}

/// A change of spec and labels.
#[derive(Clone, Debug, Default)]
pub struct MachineUpdate {
    pub id: String,
    pub spec: MachineSpec,
    pub labels: Labels,
    pub version: u64,
    /// `spec`, `labels`, `spec.FIELD`, `labels.KEY`; `None`: spec and labels are replaced whole.
    pub mask: Option<Vec<String>>,
}

/// How long to wait for a cluster's word.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::MachineNotFound, format!("there is no machine {id:?}")).with("machine_id", id)
}

fn check_version(machine: &Machine, version: u64) -> Result<(), Error> {
    if version == 0 || version == machine.version {
        return Ok(());
    }
    Err(Error::new(
        Reason::VersionMismatch,
        format!(
            "machine {} has version {}, not {version}: read it again and repeat your change",
            machine.id, machine.version
        ),
    )
    .with("version", machine.version.to_string()))
}

impl Answer for Machine {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Self> {
        find(tx, call, &MachineId::from_text(id))
    }
}

/// The machine, if it is the caller's to see. What is not is not there.
pub(crate) fn find(tx: &mut Tx<'_>, call: &Call, id: &MachineId) -> TxResult<Machine> {
    let found = machine::get(tx, id)?.filter(|m| call.sees(m));
    Ok(found.ok_or_else(|| not_found(id.as_str()))?)
}

/// What a token of one customer may not do to a machine.
pub(crate) const BEYOND_LABELS: &str = "changing more of a machine than its labels";

/// What of a change needs more than an operator for the whole fleet.
fn may_update(call: &Call, there: &Machine, spec: &MachineSpec, labels: &Labels) -> Result<(), Error> {
    if spec.bmc_endpoint != there.spec.bmc_endpoint || spec.credentials_ref != there.spec.credentials_ref {
        // whoever points us at another BMC is sent the credentials of this one
        call.needs(Role::Admin, "changing spec.bmc_endpoint or spec.credentials_ref")?;
    }
    if spec.ssh_endpoint != there.spec.ssh_endpoint {
        // what is learned there is trusted from then on, and commands and join tokens are sent there
        call.needs(Role::Admin, "changing spec.ssh_endpoint")?;
    }
    let who = |spec: &MachineSpec| {
        let MachineSpec { ssh_endpoint, bmc_endpoint, serial_number, system_uuid, credentials_ref, .. } = spec.clone();
        [ssh_endpoint, bmc_endpoint, serial_number, system_uuid, credentials_ref]
    };
    if who(spec) != who(&there.spec) {
        // a run must end on the machine that it began on
        no_active_run(there)?;
    }
    if spec.customer_id != there.spec.customer_id {
        // what a run still does there is not for the next owner to see, nor to suffer
        no_active_run(there)?;
    }
    let same_provider = there.spec.provider_name(&there.labels) == spec.provider_name(labels);
    // by that label a machine's node is found, to be drained or deleted
    let same_node = there.labels.get(NODE_LABEL) == labels.get(NODE_LABEL);
    if *spec != there.spec || !same_provider || !same_node {
        call.for_fleet(BEYOND_LABELS)?;
    }
    Ok(())
}

/// Changes a machine, if the caller may. What was learned at an endpoint that is its no longer is forgotten with it.
fn rewrite(tx: &mut Tx<'_>, by: &Call, there: &Machine, spec: &MachineSpec, labels: &Labels) -> TxResult<Machine> {
    may_update(by, there, spec, labels)?;
    check_named(tx, &there.spec.credentials_ref, &spec.credentials_ref)?;
    let cause = Cause::operator(&by.by.name, FORGOTTEN, "its endpoint was changed");
    for moved in Pin::ALL.into_iter().filter(|pin| pin.moved(&there.spec, spec)) {
        pin::forget(tx, there, moved, &cause)?;
    }
    machine::update_spec(tx, there, spec, labels)
}

/// Narrows a filter to what the caller may see.
pub(crate) fn within_scope(call: &Call, filter: Filter) -> Filter {
    if !call.by.is_scoped() {
        return filter;
    }
    let own = Filter::Is { field: "customer_id", value: call.by.customer_id.clone() };
    Filter::And(vec![own, filter])
}

impl Service {
    /// Registers a machine, or updates spec and labels of one that is there. Status is never touched.
    pub async fn register_machine(&self, call: &Arc<Call>, new: NewMachine) -> Result<Machine, Error> {
        let spec = new.spec.normalized()?;
        check_labels(&new.labels)?;
        let id = if new.id.is_empty() {
            MachineId::generate(self.store().ambient().uuid())
        } else if new.id.starts_with("mch_") {
            // one of ours, to be registered again: it must exist
            let id = MachineId::from_text(new.id.clone());
            self.get_machine(call, &new.id).await?;
            id
        } else {
            MachineId::parse(&new.id)?
        };
        let (version, labels) = (new.version, new.labels);
        let (key, by) = (id.to_string(), call.clone());
        self.change(call, &key, move |tx| match machine::get_for_update(tx, &id)? {
            Some(there) => {
                check_version(&there, version)?;
                rewrite(tx, &by, &there, &spec, &labels)
            }
            None if version != 0 => Err(not_found(id.as_str()).into()),
            None => {
                if !spec.credentials_ref.is_empty() {
                    // they would be sent to whatever the endpoint names
                    by.needs(Role::Admin, "registering a machine with spec.credentials_ref")?;
                    check_named(tx, "", &spec.credentials_ref)?;
                }
                machine::insert(tx, &id, &spec, &labels, &Cause::operator(&by.by.name, REGISTERED, ""))
            }
        })
        .await
    }

    pub async fn get_machine(&self, call: &Arc<Call>, id: &str) -> Result<Machine, Error> {
        let key = MachineId::from_text(required("machine_id", id)?);
        let found = self.store().point(machine::by_id(&key)).await?.filter(|m| call.sees(m));
        found.ok_or_else(|| not_found(key.as_str()))
    }

    pub async fn list_machines(&self, call: &Call, request: &PageRequest) -> Result<Page<Machine>, Error> {
        let size = request.size()?;
        let filter = within_scope(call, machine::FILTER.parse(&request.filter)?);
        let after = request.cursor("machines")?;
        let items = self.store().read(move |tx| machine::list(tx, &filter, &after, size + 1)).await?;
        Ok(request.page("machines", items, size, |m| m.id.to_string()))
    }

    pub async fn update_machine(&self, call: &Arc<Call>, update: MachineUpdate) -> Result<Machine, Error> {
        let id = MachineId::from_text(required("machine.machine_id", &update.id)?);
        let mask = match &update.mask {
            Some(paths) => paths.clone(),
            None => vec!["spec".to_owned(), "labels".to_owned()],
        };
        // a bad mask is found before anything is read
        apply(&mask, &update, &mut MachineSpec::default(), &mut Labels::new())?;
        let (key, by) = (id.to_string(), call.clone());
        self.change(call, &key, move |tx| {
            let there = machine::get_for_update(tx, &id)?.filter(|m| by.sees(m));
            let there = there.ok_or_else(|| not_found(id.as_str()))?;
            check_version(&there, update.version)?;
            let (mut spec, mut labels) = (there.spec.clone(), there.labels.clone());
            apply(&mask, &update, &mut spec, &mut labels)?;
            let spec = spec.normalized()?;
            check_labels(&labels)?;
            rewrite(tx, &by, &there, &spec, &labels)
        })
        .await
    }

    /// An operator's decision. Repeating it changes nothing.
    pub async fn set_phase(&self, call: &Arc<Call>, id: &str, to: Phase, reason: &str) -> Result<Machine, Error> {
        check_text("reason", reason, COMMENT_MAX)?;
        let id = MachineId::from_text(required("machine_id", id)?);
        let in_cluster = match to {
            Phase::InService => self.cluster_confirms(&self.get_machine(call, id.as_str()).await?).await,
            Phase::FactoryReady
            | Phase::Ready
            | Phase::Provisioning
            | Phase::Maintenance
            | Phase::Rma
            | Phase::Retired => Ok(()),
        };
        let (key, by) = (id.to_string(), call.clone());
        let cause = Cause::operator(&call.by.name, SET_PHASE, reason);
        self.change(call, &key, move |tx| {
            let there = machine::get_for_update(tx, &id)?.filter(|m| by.sees(m));
            let there = there.ok_or_else(|| not_found(id.as_str()))?;
            move_phase(tx, there, to, &cause, &in_cluster)
        })
        .await
    }

    /// Asks the machine's cluster whether it is a ready member.
    async fn cluster_confirms(&self, machine: &Machine) -> Result<(), Error> {
        let cluster_ref = &machine.spec.target_cluster_ref;
        let no = |why: String| {
            Err(Error::new(
                Reason::NotConfirmed,
                format!("machine {} can only become IN_SERVICE when its cluster confirms it: {why}", machine.id),
            ))
        };
        if cluster_ref.is_empty() {
            return no("spec.target_cluster_ref is empty".to_owned());
        }
        let provider = match self.inner.providers.get(machine.spec.provider_name(&machine.labels)) {
            Ok(provider) => provider,
            Err(e) => return no(e.message),
        };
        let Some(cluster) = provider.cluster() else { return no("its provider knows no clusters".to_owned()) };
        match tokio::time::timeout(CLUSTER_TIMEOUT, cluster.membership(&Target::of(machine), cluster_ref)).await {
            Ok(Ok(Membership::Ready)) => Ok(()),
            Ok(Ok(Membership::NotReady(why))) => no(format!("{cluster_ref} says not ready: {why}")),
            Ok(Ok(Membership::NotFound)) => no(format!("{cluster_ref} does not know it")),
            Ok(Err(e)) => no(format!("{cluster_ref} could not be asked: {e}")),
            Err(_) => no(format!("{cluster_ref} did not answer in time")),
        }
    }
}

fn move_phase(
    tx: &mut Tx<'_>,
    there: Machine,
    to: Phase,
    cause: &Cause,
    in_cluster: &Result<(), Error>,
) -> TxResult<Machine> {
    if there.phase != to {
        // before the edge is judged: what a run holds cannot be moved at all
        no_active_run(&there)?;
    }
    let now = tx.now();
    let mut conditions = there.conditions.clone();
    if there.phase == Phase::Maintenance && there.condition(ConditionType::NeedsIntervention) {
        let mut cleared = Condition::new(ConditionType::NeedsIntervention, false, "ClearedByOperator", now);
        cleared.message = format!("{} moved the machine to {to}", cause.actor);
        condition::set(&mut conditions, cleared);
    }
    let active = there.active_run.clone();
    let guard = |guard: Guard| match guard {
        Guard::None => Ok(()),
        Guard::NoActiveRun => no_active_run(&there),
        Guard::InClusterAndNoActiveRun => no_active_run(&there).and_then(|()| in_cluster.clone()),
        Guard::Inspected
        | Guard::WorkflowAssigned
        | Guard::ForcedReset
        | Guard::AttemptsSpent
        | Guard::NotInUse
        | Guard::Node(_) => Err(Error::internal("not an operator's guard")),
    };
    let change = PhaseChange { to, active_run: active.map(|r| r.id), previous_phase: there.previous_phase, conditions };
    Ok(match machine::set_phase(tx, &there, &change, cause, guard)? {
        Moved::AlreadyThere => there,
        Moved::Moved => Machine {
            phase: to,
            phase_set_by: cause.owner(),
            phase_set_at: now,
            conditions: change.conditions,
            version: there.version + 1,
            updated_at: now,
            ..there
        },
    })
}

pub(crate) fn no_active_run(machine: &Machine) -> Result<(), Error> {
    match &machine.active_run {
        Some(run) if !run.phase.is_terminal() => Err(Error::new(
            Reason::ActiveRun,
            format!("machine {} is held by run {} ({}); wait for it, or cancel it", machine.id, run.id, run.phase),
        )
        .with("run_id", run.id.as_str())
        .allowing(["wait", "cancel"])),
        Some(_) | None => Ok(()),
    }
}

/// Refuses what must not happen while somebody does something to the machine by hand.
pub(crate) fn not_held(machine: &MachineId, hold: Option<&Hold>) -> Result<(), Error> {
    match hold {
        None => Ok(()),
        Some(hold) => Err(Error::new(
            Reason::MachineHeld,
            format!(
                "machine {machine} is held by {} for {} since {}, until {} at the latest; try again in a moment",
                hold.by, hold.what, hold.since, hold.until
            ),
        )
        .with("held_by", &hold.by)
        .with("until", hold.until.to_string())
        .allowing(["wait"])),
    }
}

/// A text that names something: there, bounded, and fit to be printed and stored.
pub(crate) fn required(field: &str, text: &str) -> Result<String, Error> {
    if text.is_empty() {
        return Err(Error::field(field, "must not be empty"));
    }
    check_text(field, text, limits::COMMENT_MAX)?;
    Ok(text.to_owned())
}

/// Copies what the mask names from the update.
fn apply(mask: &[String], update: &MachineUpdate, spec: &mut MachineSpec, labels: &mut Labels) -> Result<(), Error> {
    let from = &update.spec;
    for path in mask {
        match path.split_once('.') {
            None if path == "spec" => *spec = from.clone(),
            None if path == "labels" => labels.clone_from(&update.labels),
            Some(("labels", key)) => match update.labels.get(key) {
                Some(value) => drop(labels.insert(key.to_owned(), value.clone())),
                None => drop(labels.remove(key)),
            },
            Some(("spec", "ssh_endpoint")) => spec.ssh_endpoint.clone_from(&from.ssh_endpoint),
            Some(("spec", "bmc_endpoint")) => spec.bmc_endpoint.clone_from(&from.bmc_endpoint),
            Some(("spec", "target_cluster_ref")) => spec.target_cluster_ref.clone_from(&from.target_cluster_ref),
            Some(("spec", "mac_addresses")) => spec.mac_addresses.clone_from(&from.mac_addresses),
            Some(("spec", "provider")) => spec.provider.clone_from(&from.provider),
            Some(("spec", "location")) => spec.location.clone_from(&from.location),
            Some(("spec", "rack")) => spec.rack.clone_from(&from.rack),
            Some(("spec", "serial_number")) => spec.serial_number.clone_from(&from.serial_number),
            Some(("spec", "customer_id")) => spec.customer_id.clone_from(&from.customer_id),
            Some(("spec", "system_uuid")) => spec.system_uuid.clone_from(&from.system_uuid),
            Some(("spec", "credentials_ref")) => spec.credentials_ref.clone_from(&from.credentials_ref),
            _ => {
                return Err(Error::field(
                    "update_mask",
                    format!(
                        "{path:?} is unknown; use spec, labels, spec.FIELD or labels.KEY (status is managed by the server)"
                    ),
                ));
            }
        }
    }
    Ok(())
}
