//! A node: one enrolment of a machine into the GPU service, with an agent of its own. Nine states, seventeen moves. What
//! is being done about it is its job's business; the state stays coarse.
//!
//! ```text
//!   bootstrap_issued ──▶ enrolling ──▶ active ◀──▶ offline
//!                            │            │           │
//!                            └──────▶ quarantined ◀───┤   (quarantined ──▶ active)
//!                                         │           │
//!                   active, offline, quarantined ──▶ draining ──▶ retired ──▶ removing ──▶ deleted
//!                                        offline ◀──────┘  ▲         │  ▲         │
//!                                        offline ◀─────────┼─────────┘  └─────────┘
//! ```

use crate::id::{JobId, MachineId, NodeId};
use crate::job_stage::Ground;
use crate::lifecycle::{Deadline, Edge, Guard, NodeGuard, Owner, State};
use crate::time::Timestamp;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeStatus {
    BootstrapIssued,
    Enrolling,
    Active,
    Offline,
    Quarantined,
    Draining,
    Retired,
    Removing,
    Deleted,
}

use NodeStatus::{Active, BootstrapIssued, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired};

/// A bootstrap bundle was issued for it.
pub const ISSUED: &str = "issued";
/// Its onboarding begins: by an operator, or because its agent has enrolled.
pub const ONBOARD: &str = "onboard";
/// Its agent is enrolled, and healthy.
pub const ONBOARDED: &str = "onboarded";
/// Its onboarding was called off, or cannot go on safely.
pub const BLOCKED: &str = "blocked";
pub const HEARTBEAT_LOST: &str = "heartbeat_lost";
pub const HEARTBEAT_BACK: &str = "heartbeat_back";
/// By drift that was found, or because an operator wishes it.
pub const QUARANTINE: &str = "quarantine";
/// Something of a tenant is left on it.
pub const NOT_CLEAN: &str = "not_clean";
/// An operator says that it is well again.
pub const RECOVER: &str = "recover";
/// Its probes say so.
pub const PROVEN_HEALTHY: &str = "proven_healthy";
pub const DRAIN: &str = "drain";
pub const DRAINED: &str = "drained";
/// The drain has failed, or was called off.
pub const DRAIN_STOPPED: &str = "drain_stopped";
pub const REACTIVATE: &str = "reactivate";
pub const REMOVE: &str = "remove";
pub const REMOVAL_STOPPED: &str = "removal_stopped";
pub const REMOVED: &str = "removed";

const fn edge(from: NodeStatus, to: NodeStatus, trigger: &'static str, owner: Owner, guard: Guard) -> Edge<NodeStatus> {
    Edge { from: Some(from), to, trigger, owner, guard }
}

static EDGES: &[Edge<NodeStatus>] = &[
    Edge { from: None, to: BootstrapIssued, trigger: ISSUED, owner: Owner::Operator, guard: Guard::None },
    Edge { from: None, to: Enrolling, trigger: ONBOARD, owner: Owner::Operator, guard: Guard::None },
    edge(BootstrapIssued, Enrolling, ONBOARD, Owner::Operator, Guard::None),
    edge(BootstrapIssued, Enrolling, ONBOARD, Owner::Executor, Guard::None),
    edge(Enrolling, Active, ONBOARDED, Owner::Executor, Guard::Node(NodeGuard::EnrolledAndHealthy)),
    edge(Enrolling, Quarantined, BLOCKED, Owner::Executor, Guard::None),
    edge(Enrolling, Quarantined, QUARANTINE, Owner::Operator, Guard::None),
    edge(Active, Offline, HEARTBEAT_LOST, Owner::Reconciler, Guard::None),
    edge(Offline, Active, HEARTBEAT_BACK, Owner::Reconciler, Guard::Node(NodeGuard::SteadyHeartbeat)),
    edge(Active, Quarantined, QUARANTINE, Owner::Reconciler, Guard::None),
    edge(Active, Quarantined, NOT_CLEAN, Owner::Executor, Guard::None),
    edge(Offline, Quarantined, QUARANTINE, Owner::Reconciler, Guard::None),
    edge(Offline, Quarantined, NOT_CLEAN, Owner::Executor, Guard::None),
    edge(Quarantined, Active, RECOVER, Owner::Operator, Guard::Node(NodeGuard::SteadyHeartbeat)),
    edge(Quarantined, Active, PROVEN_HEALTHY, Owner::Reconciler, Guard::Node(NodeGuard::ProbesPass)),
    edge(Quarantined, Draining, DRAIN, Owner::Operator, Guard::Node(NodeGuard::OwningJob)),
    edge(Active, Draining, DRAIN, Owner::Operator, Guard::Node(NodeGuard::OwningJob)),
    edge(Offline, Draining, DRAIN, Owner::Operator, Guard::Node(NodeGuard::OwningJob)),
    edge(Draining, Retired, DRAINED, Owner::Executor, Guard::None),
    edge(Draining, Offline, DRAIN_STOPPED, Owner::Executor, Guard::None),
    edge(Retired, Offline, REACTIVATE, Owner::Operator, Guard::Node(NodeGuard::IdentityKept)),
    edge(Retired, Removing, REMOVE, Owner::Executor, Guard::Node(NodeGuard::OwningJob)),
    edge(Removing, Retired, REMOVAL_STOPPED, Owner::Executor, Guard::None),
    edge(Removing, Deleted, REMOVED, Owner::Executor, Guard::None),
];

impl State for NodeStatus {
    const ENTITY: &'static str = "node";
    const ALL: &'static [Self] =
        &[BootstrapIssued, Enrolling, Active, Offline, Quarantined, Draining, Retired, Removing, Deleted];

    fn as_str(self) -> &'static str {
        match self {
            BootstrapIssued => "bootstrap_issued",
            Enrolling => "enrolling",
            Active => "active",
            Offline => "offline",
            Quarantined => "quarantined",
            Draining => "draining",
            Retired => "retired",
            Removing => "removing",
            Deleted => "deleted",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Enrolling | Draining | Removing => Deadline::OwningJob,
            BootstrapIssued | Active | Offline | Quarantined | Retired | Deleted => Deadline::AtRest,
        }
    }
}

impl fmt::Display for NodeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl NodeStatus {
    /// Where an inventory shows it: its five coarse states, what is in progress, or what is gone.
    pub const fn view(self) -> View {
        match self {
            Active | Offline | Quarantined | Retired | Removing => View::Inventory,
            BootstrapIssued | Enrolling | Draining => View::InProgress,
            Deleted => View::Archive,
        }
    }
}

/// In whose name probes quarantine.
pub const PROBES: &str = "probes";

/// Which part of the inventory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    Inventory,
    InProgress,
    Archive,
}

impl View {
    pub const ALL: [View; 3] = [View::Inventory, View::InProgress, View::Archive];

    pub const fn as_str(self) -> &'static str {
        match self {
            View::Inventory => "inventory",
            View::InProgress => "in_progress",
            View::Archive => "archive",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.as_str() == text)
    }
}

/// What is wished for a node's agent (intent; whoever carries it out clears it once it is proven).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentMode {
    /// As it is.
    Keep,
    /// A new key by a new bundle; the old one is good until then.
    Rebootstrap,
    /// The same key goes on after its identity was stopped: the next one that comes with it is the one.
    Repair,
}

impl AgentMode {
    pub const ALL: [AgentMode; 3] = [AgentMode::Keep, AgentMode::Rebootstrap, AgentMode::Repair];

    pub const fn as_str(self) -> &'static str {
        match self {
            AgentMode::Keep => "keep",
            AgentMode::Rebootstrap => "rebootstrap",
            AgentMode::Repair => "repair",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// A machine of a site, by the only name that stays.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaasRef {
    pub site: String,
    /// Empty: which one it is is still to be found out.
    pub system_id: String,
}

impl MaasRef {
    /// Its id there, once it is known.
    pub fn found(&self) -> Option<&str> {
        (!self.system_id.is_empty()).then_some(self.system_id.as_str())
    }
}

impl fmt::Display for MaasRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.site, self.system_id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    pub status: NodeStatus,
    pub version: u64,
    /// Why it is in this status, in a sentence; of a quarantine always.
    pub status_reason: String,
    pub status_changed_at: Timestamp,
    /// Who has quarantined it, and so who may end that: [`PROBES`], or a person or job. Empty: it is not quarantined.
    pub quarantined_by: String,
    /// Why it may hold something of a tenant's: a cleanup began, and no check has proven it clean since. Empty: it does not.
    pub unclean: String,
    /// Kept from new work by whom and why; empty: it is not. Says nothing about its status.
    pub cordoned_by: String,
    pub cordon_reason: String,
    pub machine_id: Option<MachineId>,
    /// The machine of a MAAS that it runs on.
    pub maas: Option<MaasRef>,
    /// The job that holds it.
    pub active_job: Option<JobId>,
    pub agent_mode: AgentMode,
    pub agent_mode_by: String,
    /// Raised by every dispatch of a task.
    pub task_fence: u64,
    pub created_at: Timestamp,
    pub created_by: String,
}

impl Node {
    /// One that has just come to be.
    pub fn new(id: NodeId, name: &str, status: NodeStatus, reason: &str, by: &str, now: Timestamp) -> Self {
        Self {
            id,
            name: name.to_owned(),
            status,
            version: 1,
            status_reason: reason.to_owned(),
            status_changed_at: now,
            quarantined_by: String::new(),
            unclean: String::new(),
            cordoned_by: String::new(),
            cordon_reason: String::new(),
            machine_id: None,
            maas: None,
            active_job: None,
            agent_mode: AgentMode::Keep,
            agent_mode_by: String::new(),
            task_fence: 0,
            created_at: now,
            created_by: by.to_owned(),
        }
    }

    /// Where its system comes from, as far as its own record tells: whether our network boot installs its machine is
    /// that machine's.
    pub fn ground(&self) -> Ground {
        if self.maas.is_some() { Ground::Maas } else { Ground::Bundle }
    }

    pub fn is_cordoned(&self) -> bool {
        !self.cordoned_by.is_empty()
    }

    /// Whether new work may be placed on it, and why not.
    pub fn schedulable(&self) -> Result<(), String> {
        if self.status != Active {
            return Err(format!("it is {}", self.status));
        }
        if self.is_cordoned() {
            return Err(format!("it was cordoned by {}: {}", self.cordoned_by, self.cordon_reason));
        }
        match &self.active_job {
            Some(job) => Err(format!("job {job} works on it")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nine_states_and_exactly_seventeen_moves() {
        assert_eq!(NodeStatus::ALL.len(), 9);
        let pairs: BTreeSet<(&str, &str)> =
            EDGES.iter().filter_map(|e| e.from.map(|from| (from.as_str(), e.to.as_str()))).collect();
        let documented: BTreeSet<(&str, &str)> = [
            ("bootstrap_issued", "enrolling"),
            ("enrolling", "active"),
            ("enrolling", "quarantined"),
            ("active", "offline"),
            ("offline", "active"),
            ("active", "quarantined"),
            ("offline", "quarantined"),
            ("quarantined", "active"),
            ("quarantined", "draining"),
            ("active", "draining"),
            ("offline", "draining"),
            ("draining", "retired"),
            ("draining", "offline"),
            ("retired", "offline"),
            ("retired", "removing"),
            ("removing", "retired"),
            ("removing", "deleted"),
        ]
        .into();
        assert_eq!(pairs, documented);
    }

    #[test]
    fn deleted_has_no_exit_and_a_machine_moves_no_node_by_itself() {
        assert!(EDGES.iter().all(|e| e.from != Some(Deleted) && e.owner != Owner::Node));
    }

    #[test]
    fn busy_states_are_entered_only_with_their_job() {
        for edge in EDGES.iter().filter(|e| matches!(e.to, Draining | Removing)) {
            assert_eq!(edge.guard, Guard::Node(NodeGuard::OwningJob), "{edge:?}");
        }
    }

    #[test]
    fn an_inventory_has_the_five_states_of_the_document() {
        let shown: Vec<&str> =
            NodeStatus::ALL.iter().filter(|s| s.view() == View::Inventory).map(|s| s.as_str()).collect();
        assert_eq!(shown, ["active", "offline", "quarantined", "retired", "removing"]);
    }
}
