//! One look at a machine, and what follows from it: which conditions hold, whether we can manage it.
//!
//! A look has two independent sources, the hardware (its BMC) and the machine's cluster. What one of
//! them does not tell is not guessed: the condition keeps its last value and is no longer confirmed.

use crate::condition::{Condition, ConditionType};
use crate::error::Reason;
use crate::identity::another_machine;
use crate::limits::short;
use crate::machine::{Machine, MachineSpec, Phase};
use crate::observation::{Freshness, Lane, Observation, Observed, Trouble};
use crate::stage::FailureClass;
use crate::time::Timestamp;

/// What the hardware says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub serial_number: String,
    pub system_uuid: String,
    pub powered: bool,
    /// Whether the system on it answers.
    pub reachable: bool,
    /// Whether there was a way to ask the system.
    pub host_asked: bool,
    /// The image on its disk.
    pub installed: Option<String>,
    /// Whether the disk was read.
    pub disk_read: bool,
    pub installing: Option<String>,
}

/// What became of asking the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hardware {
    Answered(Facts),
    /// It was asked, and gave no answer that could be used.
    Silent(Trouble),
    /// It could not even be asked; that says nothing about the machine.
    Blind(Trouble),
}

impl Hardware {
    /// A provider's no: by its reason where it gives one of its own, else by its class.
    pub fn refused(class: FailureClass, reason: Reason, message: &str) -> Self {
        let trouble = |reason| Trouble::new(reason, message);
        match reason {
            Reason::ProviderRefused => {}
            // nothing was asked; that says nothing about the machine
            Reason::CredentialMissing
            | Reason::CredentialNotFound
            | Reason::SecretKeyUnavailable
            | Reason::CapabilityMissing
            | Reason::EndpointBusy
            | Reason::StoreUnavailable => return Hardware::Blind(trouble(&reason.word())),
            Reason::WrongMachine => return Hardware::Silent(trouble(WRONG_MACHINE)),
            other => return Hardware::Silent(trouble(&other.word())),
        }
        match class {
            FailureClass::Transient => Hardware::Silent(trouble("Unreachable")),
            FailureClass::Hardware => Hardware::Silent(trouble("HardwareFault")),
            FailureClass::Conflict => Hardware::Silent(trouble("Conflict")),
            FailureClass::NeedsOperator => Hardware::Silent(trouble("NeedsOperator")),
            FailureClass::DependencyDown => Hardware::Blind(trouble("DependencyDown")),
            FailureClass::InvalidInput => Hardware::Blind(trouble("InvalidInput")),
        }
    }

    pub fn no_answer(message: &str) -> Self {
        Hardware::Silent(Trouble::new("NoAnswer", message))
    }

    pub fn blind(reason: &str, message: &str) -> Self {
        Hardware::Blind(Trouble::new(reason, message))
    }
}

/// What the cluster says about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    Joined,
    NotReady(String),
    NotJoined,
    /// The machine names no cluster.
    NoClusterRef,
    /// The cluster could not be asked, or did not answer.
    NotAsked(String),
}

/// What a member still runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    Drained,
    InUse(String),
    NotAsked(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// When it began: nothing in it is older.
    pub at: Timestamp,
    /// The provider that was asked.
    pub source: String,
    pub hardware: Hardware,
    pub member: Member,
    /// Only known of members.
    pub workload: Workload,
}

/// Whether machines in this phase are looked at. The others are out of our hands.
pub const fn is_looked_at(phase: Phase) -> bool {
    match phase {
        Phase::FactoryReady | Phase::Ready | Phase::Provisioning | Phase::InService | Phase::Maintenance => true,
        Phase::Rma | Phase::Retired => false,
    }
}

/// What one look says about one condition.
struct Finding {
    status: bool,
    reason: String,
    message: String,
}

fn finding(status: bool, reason: &str, message: impl Into<String>) -> Option<Finding> {
    Some(Finding { status, reason: reason.to_owned(), message: short(&message.into()) })
}

impl Look {
    /// The facts, if they are about this machine.
    fn facts(&self, spec: &MachineSpec) -> Result<&Facts, Trouble> {
        match &self.hardware {
            Hardware::Answered(facts) => match another_machine(spec, &facts.serial_number, &facts.system_uuid) {
                None => Ok(facts),
                Some(message) => Err(Trouble::new(WRONG_MACHINE, &message)),
            },
            Hardware::Silent(trouble) | Hardware::Blind(trouble) => Err(trouble.clone()),
        }
    }

    /// The first proof of manageability: who it is was read from the machine itself, and fits the spec.
    pub fn proves_manageable(&self, spec: &MachineSpec) -> bool {
        self.facts(spec).is_ok_and(|f| !f.serial_number.is_empty() || !f.system_uuid.is_empty())
    }

    fn find(&self, kind: ConditionType, machine: &Machine) -> Option<Finding> {
        let facts = self.facts(&machine.spec);
        match kind {
            ConditionType::BmcReachable if has_no_bmc(&machine.spec) => {
                finding(false, "NoBMC", "it has none: spec.bmc_endpoint is empty")
            }
            ConditionType::BmcReachable => match (&self.hardware, &facts) {
                (Hardware::Blind(_), _) => None,
                (_, Ok(_)) => finding(true, "Answers", format!("inspected through {}", self.source)),
                (_, Err(t)) => finding(false, &t.reason, format!("{}: {}", self.source, t.message)),
            },
            ConditionType::Reachable if has_no_bmc(&machine.spec) && facts.is_err() => match &self.hardware {
                Hardware::Silent(t) => finding(false, &t.reason, &t.message),
                Hardware::Answered(_) | Hardware::Blind(_) => None,
            },
            ConditionType::Reachable => {
                facts.ok().filter(|f| f.host_asked).and_then(|f| match (f.powered, f.reachable) {
                    (_, true) => finding(true, "HostAnswers", ""),
                    (true, false) => finding(false, "NoAnswer", "it is powered, and the system on it does not answer"),
                    (false, false) => finding(false, "PoweredOff", ""),
                })
            }
            ConditionType::Provisioned => facts.ok().and_then(|f| match (&f.installing, &f.installed) {
                (Some(image), _) => finding(false, "Installing", image),
                (None, Some(image)) => finding(true, "Installed", image),
                (None, None) if !f.disk_read => None,
                (None, None) => finding(false, "NotInstalled", ""),
            }),
            ConditionType::InCustomerCluster => {
                let cluster = &machine.spec.target_cluster_ref;
                match &self.member {
                    Member::Joined => finding(true, "Joined", cluster),
                    Member::NotReady(why) => finding(false, "NotReady", format!("{cluster}: {why}")),
                    Member::NotJoined => finding(false, "NotJoined", format!("{cluster} does not know it")),
                    Member::NoClusterRef => finding(false, "NoClusterRef", "spec.target_cluster_ref is empty"),
                    Member::NotAsked(_) => None,
                }
            }
            ConditionType::Drained => match (&self.member, &self.workload) {
                (Member::NotJoined | Member::NoClusterRef, _) => finding(false, "NotInCluster", ""),
                (Member::NotAsked(_), _) | (_, Workload::NotAsked(_)) => None,
                (Member::Joined | Member::NotReady(_), Workload::Drained) => finding(true, "Drained", ""),
                (Member::Joined | Member::NotReady(_), Workload::InUse(what)) => finding(false, "InUse", what),
            },
            ConditionType::Degraded => self.degraded(machine),
            // set by others, or computed on read
            ConditionType::NeedsIntervention | ConditionType::Reconciled => None,
        }
    }

    /// Something is wrong that neither the phase nor a run excuses.
    fn degraded(&self, machine: &Machine) -> Option<Finding> {
        let facts = match (&self.hardware, self.facts(&machine.spec)) {
            (Hardware::Blind(_), _) => return None,
            (_, Ok(facts)) => Some(facts),
            // no run makes another machine of it
            (_, Err(t)) if t.reason == WRONG_MACHINE => return finding(true, WRONG_MACHINE, t.message),
            (_, Err(_)) => None,
        };
        let expected_up = match machine.phase {
            Phase::Ready | Phase::InService => true,
            Phase::FactoryReady | Phase::Provisioning | Phase::Maintenance | Phase::Rma | Phase::Retired => false,
        };
        // a machine that waits for its first system has nothing that could answer
        let empty = facts.is_some_and(|f| f.installed.is_none()) && machine.phase == Phase::Ready;
        let outside = matches!(self.member, Member::NotReady(_) | Member::NotJoined);
        let wrong = match facts {
            None if has_no_bmc(&machine.spec) => {
                Some(("HostUnreachable", "its system does not answer, and it has no BMC"))
            }
            None => Some(("BMCSilent", "its BMC does not answer")),
            Some(f) if expected_up && !f.powered => Some(("PoweredOff", "it is powered off")),
            Some(f) if expected_up && f.host_asked && !f.reachable && !empty => {
                Some(("HostUnreachable", "its system does not answer"))
            }
            Some(_) if machine.phase == Phase::InService && outside => {
                Some(("NotInCluster", "it is IN_SERVICE, and its cluster does not have it ready"))
            }
            Some(_) => None,
        };
        match (wrong, machine.running()) {
            (None, _) => finding(false, "NothingWrong", ""),
            (Some((_, what)), Some(_)) => finding(false, "RunActive", format!("{what}, while a run works on it")),
            (Some((reason, what)), None) => finding(true, reason, what),
        }
    }

    /// Whether some source gave no answer: such looks take long, and are not made in line with others.
    fn is_slow(&self) -> bool {
        let hardware = match &self.hardware {
            Hardware::Answered(_) => false,
            Hardware::Silent(_) | Hardware::Blind(_) => true,
        };
        let cluster = match (&self.member, &self.workload) {
            (Member::NotAsked(_), _) => true,
            (Member::Joined | Member::NotReady(_), Workload::NotAsked(_)) => true,
            (Member::Joined | Member::NotReady(_), Workload::Drained | Workload::InUse(_)) => false,
            (Member::NotJoined | Member::NoClusterRef, _) => false,
        };
        hardware || cluster
    }
}

pub(crate) const WRONG_MACHINE: &str = "WrongMachine";

/// Whether a machine is reached by its system alone.
fn has_no_bmc(spec: &MachineSpec) -> bool {
    spec.bmc_endpoint.is_empty() && !spec.ssh_endpoint.is_empty()
}

/// In words, and only what stays the same from look to look.
fn words(spec: &MachineSpec, facts: &Facts) -> String {
    let bmc = if has_no_bmc(spec) { "no BMC" } else { "BMC answers" };
    let power = if facts.powered { "power on" } else { "power off" };
    let host = match (facts.host_asked, facts.reachable) {
        (false, _) => "host not asked",
        (true, true) => "host answers",
        (true, false) => "host does not answer",
    };
    let disk = match (&facts.installing, &facts.installed) {
        (Some(image), _) => format!("{} being installed", short(image)),
        (None, Some(image)) => format!("{} installed", short(image)),
        (None, None) if !facts.disk_read => "disk not read".to_owned(),
        (None, None) => "nothing installed".to_owned(),
    };
    format!("{bmc}, {power}, {host}, {disk}")
}

/// What is known of the machine after a look at it. Pure: the same look gives the same.
pub fn observe(machine: &Machine, look: &Look) -> Observation {
    let before = machine.observation.as_ref();
    let keep = |kind| before.and_then(|o| o.unconfirmed(kind));
    let conditions = ConditionType::OBSERVED.into_iter().filter_map(|kind| match look.find(kind, machine) {
        None => keep(kind),
        Some(now) => {
            let same = before.and_then(|o| o.get(kind)).filter(|was| was.condition.status == now.status);
            let condition = Condition {
                kind,
                status: now.status,
                reason: now.reason,
                message: now.message,
                last_transition: same.map_or(look.at, |was| was.condition.last_transition),
                observed_at: look.at,
            };
            Some(Observed { condition, confirmed: true })
        }
    });
    let (facts, trouble) = match look.facts(&machine.spec) {
        Ok(facts) => (words(&machine.spec, facts), None),
        Err(trouble) => (before.map_or(String::new(), |o| o.facts.clone()), Some(trouble)),
    };
    Observation {
        version: before.map_or(0, |o| o.version) + 1,
        lane: if look.is_slow() { Lane::Slow } else { Lane::Quick },
        source: look.source.clone(),
        conditions: conditions.collect(),
        last_seen: if trouble.is_none() { Some(look.at) } else { before.and_then(Observation::last_seen) },
        facts,
        trouble,
        observed_at: look.at,
        fresh: Freshness::of_look(look.at),
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
