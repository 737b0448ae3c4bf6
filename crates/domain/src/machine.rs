//! A machine: a piece of hardware with a stable identity, and its explicit phase.
//!
//! ```text
//!                    ┌───────────── operator ─────────────┐
//!   (new) → FACTORY_READY → READY ⇄ MAINTENANCE ⇄ IN_SERVICE
//!                │            │          │            │
//!                └────────────┴── run ───┴────────────┘→ PROVISIONING → as its steps decide
//!   any but RETIRED → RMA → READY | RETIRED             RETIRED: no way back, register anew
//! ```

use crate::condition::{Condition, ConditionType};
use crate::endpoint::{BmcEndpoint, SshEndpoint};
use crate::error::Error;
use crate::id::{MachineId, RunId, check_name};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::limits;
use crate::observation::Observation;
use crate::plan::StepKind;
use crate::run::RunPhase;
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt;

/// The explicit lifecycle phase. There is no error phase: errors are conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    FactoryReady,
    Ready,
    Provisioning,
    InService,
    Maintenance,
    Rma,
    Retired,
}

pub const SET_PHASE: &str = "set_phase";
pub const REGISTERED: &str = "registered";
pub const RUN_STARTED: &str = "run_started";
pub const RUN_ENDED: &str = "run_ended";
pub const RUN_CANCELED_EARLY: &str = "run_canceled_before_start";
pub const INSPECTED: &str = "inspected";

const fn operator(from: Phase, to: Phase, guard: Guard) -> Edge<Phase> {
    Edge { from: Some(from), to, trigger: SET_PHASE, owner: Owner::Operator, guard }
}

const fn executor(from: Phase, to: Phase, trigger: &'static str) -> Edge<Phase> {
    Edge { from: Some(from), to, trigger, owner: Owner::Executor, guard: Guard::None }
}

use Phase::{FactoryReady, InService, Maintenance, Provisioning, Ready, Retired, Rma};

static EDGES: &[Edge<Phase>] = &[
    // one that has booted from the network, and that nobody knew
    Edge { from: None, to: FactoryReady, trigger: REGISTERED, owner: Owner::Node, guard: Guard::None },
    Edge { from: None, to: FactoryReady, trigger: REGISTERED, owner: Owner::Operator, guard: Guard::None },
    Edge { from: Some(FactoryReady), to: Ready, trigger: INSPECTED, owner: Owner::Reconciler, guard: Guard::Inspected },
    operator(FactoryReady, Ready, Guard::NoActiveRun),
    operator(Maintenance, Ready, Guard::NoActiveRun),
    operator(Ready, Maintenance, Guard::NoActiveRun),
    operator(InService, Maintenance, Guard::NoActiveRun),
    operator(Maintenance, InService, Guard::InClusterAndNoActiveRun),
    operator(FactoryReady, Rma, Guard::NoActiveRun),
    operator(Ready, Rma, Guard::NoActiveRun),
    operator(Provisioning, Rma, Guard::NoActiveRun),
    operator(InService, Rma, Guard::NoActiveRun),
    operator(Maintenance, Rma, Guard::NoActiveRun),
    operator(Rma, Ready, Guard::NoActiveRun),
    operator(Rma, Retired, Guard::NoActiveRun),
    operator(Maintenance, Retired, Guard::NoActiveRun),
    operator(Ready, Retired, Guard::NoActiveRun),
    operator(FactoryReady, Retired, Guard::NoActiveRun),
    executor(FactoryReady, Provisioning, RUN_STARTED),
    executor(Ready, Provisioning, RUN_STARTED),
    executor(InService, Provisioning, RUN_STARTED),
    executor(Maintenance, Provisioning, RUN_STARTED),
    executor(Rma, Provisioning, RUN_STARTED),
    executor(Provisioning, FactoryReady, RUN_ENDED),
    executor(Provisioning, Ready, RUN_ENDED),
    executor(Provisioning, InService, RUN_ENDED),
    executor(Provisioning, Maintenance, RUN_ENDED),
    executor(Provisioning, Rma, RUN_ENDED),
    executor(FactoryReady, Maintenance, RUN_CANCELED_EARLY),
    executor(Ready, Maintenance, RUN_CANCELED_EARLY),
    executor(InService, Maintenance, RUN_CANCELED_EARLY),
    executor(Rma, Maintenance, RUN_CANCELED_EARLY),
];

impl State for Phase {
    const ENTITY: &'static str = "machine";
    const ALL: &'static [Self] = &[FactoryReady, Ready, Provisioning, InService, Maintenance, Rma, Retired];

    fn as_str(self) -> &'static str {
        match self {
            FactoryReady => "FACTORY_READY",
            Ready => "READY",
            Provisioning => "PROVISIONING",
            InService => "IN_SERVICE",
            Maintenance => "MAINTENANCE",
            Rma => "RMA",
            Retired => "RETIRED",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Provisioning => Deadline::ActiveRun,
            FactoryReady | Ready | InService | Maintenance | Rma | Retired => Deadline::AtRest,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What callers say about a machine. Status is ours alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSpec {
    pub ssh_endpoint: String,
    pub bmc_endpoint: String,
    pub target_cluster_ref: String,
    pub mac_addresses: Vec<String>,
    pub provider: String,
    pub location: String,
    pub rack: String,
    pub serial_number: String,
    pub customer_id: String,
    pub system_uuid: String,
    pub credentials_ref: String,
}

/// The label of a machine that names its node in its cluster.
pub const NODE_LABEL: &str = "node";

pub type Labels = BTreeMap<String, String>;

/// A strong identifier. No two machines share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identifier {
    pub kind: &'static str,
    pub value: String,
}

impl MachineSpec {
    /// Checks every field and brings identifiers to their one spelling.
    pub fn normalized(mut self) -> Result<Self, Error> {
        for (field, text) in [
            ("spec.ssh_endpoint", &self.ssh_endpoint),
            ("spec.bmc_endpoint", &self.bmc_endpoint),
            ("spec.target_cluster_ref", &self.target_cluster_ref),
            ("spec.provider", &self.provider),
            ("spec.location", &self.location),
            ("spec.rack", &self.rack),
            ("spec.serial_number", &self.serial_number),
            ("spec.customer_id", &self.customer_id),
            ("spec.credentials_ref", &self.credentials_ref),
        ] {
            check_text(field, text, limits::TEXT_MAX)?;
        }
        if !self.provider.is_empty() {
            check_name("spec.provider", &self.provider)?;
        }
        // a mistake is better told now than by a machine that is never reached; and a password is not stored
        if !self.bmc_endpoint.is_empty() {
            BmcEndpoint::parse(&self.bmc_endpoint).map_err(|e| Error::field("spec.bmc_endpoint", e))?;
        }
        if !self.ssh_endpoint.is_empty() {
            SshEndpoint::parse(&self.ssh_endpoint).map_err(|e| Error::field("spec.ssh_endpoint", e))?;
        }
        if self.mac_addresses.len() > limits::MAC_ADDRESSES_MAX {
            return Err(Error::field(
                "spec.mac_addresses",
                format!("has {} entries, at most {} are allowed", self.mac_addresses.len(), limits::MAC_ADDRESSES_MAX),
            ));
        }
        let mut macs = Vec::with_capacity(self.mac_addresses.len());
        for (i, mac) in self.mac_addresses.iter().enumerate() {
            let mac = crate::mac::MacAddress::parse(mac).map(|mac| mac.to_string()).ok_or_else(|| {
                Error::field(
                    &format!("spec.mac_addresses[{i}]"),
                    format!("{mac:?} is not a MAC address like aa:bb:cc:dd:ee:ff"),
                )
            })?;
            if !macs.contains(&mac) {
                macs.push(mac);
            }
        }
        self.mac_addresses = macs;
        if !self.system_uuid.is_empty() {
            self.system_uuid = normal_uuid(&self.system_uuid)
                .ok_or_else(|| Error::field("spec.system_uuid", format!("{:?} is not a UUID", self.system_uuid)))?;
        }
        Ok(self)
    }

    pub fn identifiers(&self) -> Vec<Identifier> {
        let mut all: Vec<Identifier> =
            self.mac_addresses.iter().map(|mac| Identifier { kind: "mac", value: mac.clone() }).collect();
        if !self.serial_number.is_empty() {
            all.push(Identifier { kind: "serial_number", value: self.serial_number.clone() });
        }
        if !self.system_uuid.is_empty() {
            all.push(Identifier { kind: "system_uuid", value: self.system_uuid.clone() });
        }
        all
    }

    /// The provider that drives this machine: the field, or the label of that name.
    pub fn provider_name<'a>(&'a self, labels: &'a Labels) -> &'a str {
        if self.provider.is_empty() { labels.get("provider").map_or("", String::as_str) } else { &self.provider }
    }
}

pub fn check_labels(labels: &Labels) -> Result<(), Error> {
    if labels.len() > limits::LABELS_MAX {
        return Err(Error::field(
            "labels",
            format!("has {} entries, at most {} are allowed", labels.len(), limits::LABELS_MAX),
        ));
    }
    for (key, value) in labels {
        if key.is_empty() {
            return Err(Error::field("labels", "a key is empty"));
        }
        check_text("labels (key)", key, limits::LABEL_KEY_MAX)?;
        check_text(&format!("labels.{key}"), value, limits::LABEL_VALUE_MAX)?;
    }
    Ok(())
}

/// Bounded, and free of control characters that would garble a terminal or a log.
pub fn check_text(field: &str, text: &str, max: usize) -> Result<(), Error> {
    if text.len() > max {
        return Err(Error::field(field, format!("has {} bytes, at most {max} are allowed", text.len())));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(Error::field(field, format!("contains the control character {bad:?}")));
    }
    Ok(())
}

fn normal_uuid(text: &str) -> Option<String> {
    uuid::Uuid::try_parse(text).ok().map(|u| u.hyphenated().to_string())
}

/// One machine as stored, with the phase of its active run beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub id: MachineId,
    pub labels: Labels,
    pub spec: MachineSpec,
    pub phase: Phase,
    pub phase_set_by: Owner,
    pub phase_set_at: Timestamp,
    /// Where an active run found it.
    pub previous_phase: Option<Phase>,
    pub active_run: Option<ActiveRun>,
    /// What the executor and operators have set; what is observed stands apart.
    pub conditions: Vec<Condition>,
    /// What looks at it have shown, if anybody has looked. Never raises `version`.
    pub observation: Option<Observation>,
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The run that holds a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRun {
    pub id: RunId,
    pub phase: RunPhase,
    pub run_type: String,
    pub current_step: String,
}

impl Machine {
    /// Whether a condition holds: as observed, or as set where nobody observes it.
    pub fn condition(&self, kind: ConditionType) -> bool {
        let observed = self.observation.as_ref().and_then(|o| o.get(kind)).map(|o| &o.condition);
        observed.or_else(|| self.conditions.iter().find(|c| c.kind == kind)).is_some_and(|c| c.status)
    }

    /// The run at work on it, if there is one.
    pub fn running(&self) -> Option<&ActiveRun> {
        self.active_run.as_ref().filter(|run| !run.phase.is_terminal())
    }

    /// What a person should believe, by fixed precedence. Never stored.
    pub fn effective_state(&self) -> Phase {
        if self.running().is_some() {
            return Provisioning;
        }
        match self.phase {
            Rma | Retired | Maintenance => self.phase,
            FactoryReady | Ready | Provisioning | InService => {
                if self.condition(ConditionType::InCustomerCluster) {
                    InService
                } else if self.phase == FactoryReady {
                    FactoryReady
                } else {
                    Ready
                }
            }
        }
    }
}

/// Whether a run of this type may start from this phase.
pub fn may_start_run(phase: Phase, is_rma: bool) -> bool {
    match phase {
        Retired => false,
        Rma => is_rma,
        FactoryReady | Ready | Provisioning | InService | Maintenance => true,
    }
}

/// The phase after a run that succeeded, by the steps that ran.
pub fn phase_after_success(before: Phase, steps: &[StepKind]) -> Phase {
    let ran = |f: fn(&StepKind) -> bool| steps.iter().any(f);
    if ran(|s| matches!(s, StepKind::Rma { .. })) {
        Rma
    } else if ran(|s| matches!(s, StepKind::Join { .. })) {
        InService
    } else if ran(|s| matches!(s, StepKind::Repave { .. })) {
        Ready
    } else {
        before
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn machine(phase: Phase) -> Machine {
        Machine {
            id: MachineId::from_text("m-1"),
            labels: Labels::new(),
            spec: MachineSpec::default(),
            phase,
            phase_set_by: Owner::Operator,
            phase_set_at: Timestamp::default(),
            previous_phase: None,
            active_run: None,
            conditions: vec![],
            observation: None,
            version: 1,
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
        }
    }

    fn in_cluster(mut m: Machine) -> Machine {
        m.conditions.push(Condition::new(ConditionType::InCustomerCluster, true, "Joined", Timestamp::default()));
        m
    }

    fn with_run(mut m: Machine, phase: RunPhase) -> Machine {
        m.active_run = Some(ActiveRun {
            id: RunId::from_text("run_1"),
            phase,
            run_type: String::new(),
            current_step: String::new(),
        });
        m
    }

    #[test]
    fn effective_state_follows_the_documents_precedence() {
        for phase in Phase::ALL.iter().copied() {
            // rule 1 beats everything
            assert_eq!(in_cluster(with_run(machine(phase), RunPhase::Pending)).effective_state(), Provisioning);
            assert_eq!(with_run(machine(phase), RunPhase::Running).effective_state(), Provisioning);
            // a stale pointer at a terminal run does not
            let stale = with_run(machine(phase), RunPhase::Succeeded).effective_state();
            assert_eq!(stale, machine(phase).effective_state());
            let expected = match phase {
                Rma | Retired | Maintenance => (phase, phase),
                FactoryReady => (FactoryReady, InService),
                Ready | Provisioning | InService => (Ready, InService),
            };
            assert_eq!(machine(phase).effective_state(), expected.0, "{phase} outside a cluster");
            assert_eq!(in_cluster(machine(phase)).effective_state(), expected.1, "{phase} in a cluster");
        }
    }

    #[test]
    fn endpoints_that_cannot_be_are_refused_by_field() {
        for (bmc, ssh, field) in [("ftp://x", "", "spec.bmc_endpoint"), ("10.0.0.1", "root@x", "spec.ssh_endpoint")] {
            let spec = MachineSpec { bmc_endpoint: bmc.into(), ssh_endpoint: ssh.into(), ..MachineSpec::default() };
            assert!(spec.normalized().is_err_and(|e| e.message.starts_with(field)), "{bmc} {ssh}");
        }
    }

    #[test]
    fn identifiers_have_one_spelling() {
        let spec = MachineSpec {
            mac_addresses: vec!["AA-BB-CC-DD-EE-FF".into(), "aabb.ccdd.eeff".into()],
            system_uuid: "4D570000-0000-4000-8000-5254004D5800".into(),
            ..MachineSpec::default()
        };
        let spec = spec.normalized().expect("valid");
        assert_eq!(spec.mac_addresses, ["aa:bb:cc:dd:ee:ff"]);
        assert_eq!(spec.system_uuid, "4d570000-0000-4000-8000-5254004d5800");
        for bad in ["aa:bb", "zz:bb:cc:dd:ee:ff", "aa:bb:cc:dd:ee:ff:00", ""] {
            let spec = MachineSpec { mac_addresses: vec![bad.into()], ..MachineSpec::default() };
            assert!(spec.normalized().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn endpoints_that_lead_nowhere_and_passwords_in_them_are_refused() {
        let spec = |bmc: &str, ssh: &str| MachineSpec {
            bmc_endpoint: bmc.into(),
            ssh_endpoint: ssh.into(),
            ..MachineSpec::default()
        };
        spec("10.20.30.41", "10.20.30.40:22").normalized().expect("as people write them");
        for (bmc, ssh) in
            [("ftp://x", ""), ("https://a:geheim@x", ""), ("", "a:geheim@x"), ("", "x?jump=a:geheim@y"), ("x y", "")]
        {
            let error = spec(bmc, ssh).normalized().expect_err("refused");
            assert!(error.message.starts_with("spec.") && !error.message.contains("geheim"), "{}", error.message);
        }
    }

    #[test]
    fn phase_after_a_run_depends_on_what_ran() {
        let join = StepKind::Join { cluster_ref: "c".into() };
        let repave = StepKind::Repave { image: "i".into(), user_data_ref: String::new() };
        assert_eq!(phase_after_success(Ready, &[repave.clone(), join]), InService);
        assert_eq!(phase_after_success(InService, &[repave]), Ready);
        assert_eq!(phase_after_success(InService, &[]), InService);
    }
}
