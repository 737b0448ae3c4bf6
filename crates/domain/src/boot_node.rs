//! A boot node: a piece of hardware as the network-boot service knows it, by the card it boots from.
//!
//! ```text
//!   discovered ──▶ pending ──▶ installing ──▶ installed ──▶ active ──▶ reprovision ──▶ pending
//!                     ▲             │                         ├──────▶ deprovisioning ──▶ retired
//!                     └─ install_failed ◀┘                    └──────▶ migrating ──▶ active
//!                                                      any ──▶ retired
//! ```

use crate::id::{BootNodeId, MachineId};
use crate::identity::{same_uuid, tells, uuid_tells};
use crate::install_order::InstallOrder;
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::mac::MacAddress;
use crate::time::Timestamp;
use std::fmt;
use std::time::Duration;

/// Failures in all before somebody must act.
pub const MAX_INSTALL_ATTEMPTS: u32 = 3;
/// Discovery boots that are tried: one that brings no report must not keep a machine from its disk.
pub const MAX_LOOKS: u32 = 3;
/// An attempt that says nothing for so long has failed.
pub const SILENT_AFTER: Duration = Duration::from_secs(15 * 60);
/// Approved, and never seen to boot: somebody should know.
pub const BOOTS_WITHIN: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BootState {
    Discovered,
    Pending,
    Installing,
    InstallFailed,
    Installed,
    Active,
    Reprovision,
    Deprovisioning,
    Migrating,
    Retired,
}

use BootState::{
    Active, Deprovisioning, Discovered, InstallFailed, Installed, Installing, Migrating, Pending, Reprovision, Retired,
};

/// An operator's word.
pub const SET_STATE: &str = "set_state";
/// An operator brings one before it has booted.
pub const REGISTERED: &str = "registered";
/// The first contact.
pub const BOOTED: &str = "booted";
pub const STARTED: &str = "started";
pub const COMPLETE: &str = "complete";
pub const FAILED: &str = "failed";
/// It asked what to boot in the middle of an attempt, which has ended with that.
pub const BOOTED_AGAIN: &str = "booted_again";
/// An attempt said nothing for too long.
pub const SILENT: &str = "silent";
/// A run installs it anew, or has proven that it did.
pub const REPAVE: &str = "repave";
pub const PROVEN: &str = "proven";
pub const CANCELED: &str = "canceled";
/// The setting of its group verifies it.
pub const PROMOTED: &str = "promoted";
/// Its disks are proven to be empty.
pub const ERASED: &str = "erased";

const fn edge(from: BootState, to: BootState, trigger: &'static str, owner: Owner, guard: Guard) -> Edge<BootState> {
    Edge { from: Some(from), to, trigger, owner, guard }
}

const fn operator(from: BootState, to: BootState, guard: Guard) -> Edge<BootState> {
    edge(from, to, SET_STATE, Owner::Operator, guard)
}

const fn executor(from: BootState, to: BootState, trigger: &'static str, guard: Guard) -> Edge<BootState> {
    edge(from, to, trigger, Owner::Executor, guard)
}

const fn node(from: BootState, to: BootState, trigger: &'static str, guard: Guard) -> Edge<BootState> {
    edge(from, to, trigger, Owner::Node, guard)
}

static EDGES: &[Edge<BootState>] = &[
    Edge { from: None, to: Discovered, trigger: BOOTED, owner: Owner::Node, guard: Guard::None },
    Edge { from: None, to: Discovered, trigger: REGISTERED, owner: Owner::Operator, guard: Guard::None },
    operator(Discovered, Pending, Guard::WorkflowAssigned),
    node(Pending, Installing, STARTED, Guard::None),
    node(Installing, Installed, COMPLETE, Guard::None),
    node(Installing, InstallFailed, FAILED, Guard::AttemptsSpent),
    node(Installing, InstallFailed, BOOTED_AGAIN, Guard::AttemptsSpent),
    edge(Installing, InstallFailed, SILENT, Owner::Reconciler, Guard::AttemptsSpent),
    executor(Installing, InstallFailed, CANCELED, Guard::None),
    operator(InstallFailed, Pending, Guard::ForcedReset),
    executor(InstallFailed, Pending, REPAVE, Guard::WorkflowAssigned),
    operator(Installed, Active, Guard::None),
    executor(Installed, Active, PROVEN, Guard::None),
    edge(Installed, Active, PROMOTED, Owner::Reconciler, Guard::None),
    operator(Active, Reprovision, Guard::NotInUse),
    executor(Active, Reprovision, REPAVE, Guard::None),
    operator(Active, Deprovisioning, Guard::NotInUse),
    operator(Active, Migrating, Guard::None),
    operator(Reprovision, Pending, Guard::WorkflowAssigned),
    executor(Reprovision, Pending, REPAVE, Guard::WorkflowAssigned),
    edge(Deprovisioning, Retired, ERASED, Owner::Reconciler, Guard::None),
    operator(Migrating, Active, Guard::None),
    // the record is taken out of service; a machine that is still in use keeps it
    operator(Discovered, Retired, Guard::NotInUse),
    operator(Pending, Retired, Guard::NotInUse),
    operator(Installing, Retired, Guard::NotInUse),
    operator(InstallFailed, Retired, Guard::NotInUse),
    operator(Installed, Retired, Guard::NotInUse),
    operator(Active, Retired, Guard::NotInUse),
    operator(Reprovision, Retired, Guard::NotInUse),
    operator(Deprovisioning, Retired, Guard::NotInUse),
    operator(Migrating, Retired, Guard::NotInUse),
];

impl State for BootState {
    const ENTITY: &'static str = "boot_node";
    const ALL: &'static [Self] = &[
        Discovered,
        Pending,
        Installing,
        InstallFailed,
        Installed,
        Active,
        Reprovision,
        Deprovisioning,
        Migrating,
        Retired,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Discovered => "discovered",
            Pending => "pending",
            Installing => "installing",
            InstallFailed => "install_failed",
            Installed => "installed",
            Active => "active",
            Reprovision => "reprovision",
            Deprovisioning => "deprovisioning",
            Migrating => "migrating",
            Retired => "retired",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Pending => Deadline::FindingAfter(BOOTS_WITHIN),
            Installing | Deprovisioning => Deadline::Silence(SILENT_AFTER),
            Discovered | InstallFailed | Installed | Active | Reprovision | Migrating | Retired => Deadline::AtRest,
        }
    }
}

impl fmt::Display for BootState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a machine says of itself when it boots or reports. Nobody has checked it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub hostname: String,
    pub ip_address: String,
    pub vendor: String,
    pub model: String,
    pub serial_number: String,
    pub system_uuid: String,
    /// As iPXE spells it: `x86_64`, `arm64`, `i386`.
    pub arch: String,
    /// `bios` or `uefi`: what its firmware has started iPXE by.
    pub boot_mode: String,
}

impl Claims {
    /// Whether any of it was not known, or known otherwise. What is not said is no news.
    pub fn is_news_to(&self, known: &Claims) -> bool {
        let news = |said: &str, known: &str| !said.is_empty() && said != known;
        news(&self.hostname, &known.hostname)
            || news(&self.ip_address, &known.ip_address)
            || news(&self.vendor, &known.vendor)
            || news(&self.model, &known.model)
            || news(&self.serial_number, &known.serial_number)
            || news(&self.system_uuid, &known.system_uuid)
            || news(&self.arch, &known.arch)
            || news(&self.boot_mode, &known.boot_mode)
    }

    /// What was said before, where nothing new was said.
    #[must_use]
    pub fn over(self, before: &Claims) -> Claims {
        let newer = |new: String, old: &str| if new.is_empty() { old.to_owned() } else { new };
        Claims {
            hostname: newer(self.hostname, &before.hostname),
            ip_address: newer(self.ip_address, &before.ip_address),
            vendor: newer(self.vendor, &before.vendor),
            model: newer(self.model, &before.model),
            serial_number: newer(self.serial_number, &before.serial_number),
            system_uuid: newer(self.system_uuid, &before.system_uuid),
            arch: newer(self.arch, &before.arch),
            boot_mode: newer(self.boot_mode, &before.boot_mode),
        }
    }
}

impl BootNode {
    /// What is kept of claims that nobody has proven. Before it is approved, and while it moves to other hardware, a machine
    /// is who it says; after that its serial number and UUID stay: who could write those could stop its next
    /// installation.
    #[must_use]
    pub fn believes(&self, said: &Claims) -> Claims {
        let fresh = said.clone().over(&self.claims);
        match self.state {
            Discovered | Migrating => fresh,
            Pending | Installing | InstallFailed | Installed | Active | Reprovision | Deprovisioning | Retired => {
                let known = self.claims.clone().over(said);
                Claims { serial_number: known.serial_number, system_uuid: known.system_uuid, ..fresh }
            }
        }
    }
}

impl BootNode {
    /// Why whoever boots from its card cannot be it, once somebody has approved it: a card can be moved, and an installer
    /// must not follow it.
    pub fn contradicts(&self, said: &Claims) -> Option<String> {
        match self.state {
            Discovered | Migrating | Retired => return None,
            Pending | Installing | InstallFailed | Installed | Active | Reprovision | Deprovisioning => {}
        }
        let (known, mac) = (&self.claims, &self.mac);
        let (serial, uuid) = ((&known.serial_number, &said.serial_number), (&known.system_uuid, &said.system_uuid));
        let (what, (was, is)) = if tells(serial.0) && tells(serial.1) && !serial.0.eq_ignore_ascii_case(serial.1) {
            ("serial number", serial)
        } else if uuid_tells(uuid.0) && uuid_tells(uuid.1) && !same_uuid(uuid.0, uuid.1) {
            ("system UUID", uuid)
        } else {
            return None;
        };
        Some(format!("the card {mac} is in another machine than the one that was approved: {what} {is}, not {was}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootNode {
    pub id: BootNodeId,
    pub mac: MacAddress,
    pub state: BootState,
    pub version: u64,
    /// What it is to be installed with; empty: nothing is assigned.
    pub workflow_id: String,
    /// The workflow of the attempts that failed last, until a reset.
    pub failed_workflow_id: String,
    /// Whose settings for promotion it follows.
    pub group: String,
    pub claims: Claims,
    /// Disks, cards and processors as a discovery boot has found them, as JSON; empty: none has been made.
    pub inventory: String,
    /// How often a discovery boot was handed out to it.
    pub looks: u32,
    /// Attempts that have failed since the last start from `pending`.
    pub install_attempts: u32,
    pub last_install_error: Option<String>,
    pub state_changed_at: Timestamp,
    pub machine_id: Option<MachineId>,
    /// What it may be, for whoever approves it to confirm.
    pub proposed_machine_id: Option<MachineId>,
    pub created_at: Timestamp,
    pub last_seen: Option<Timestamp>,
    /// The last one; an open one is what makes the boot service serve an installer.
    pub order: Option<InstallOrder>,
}

impl BootNode {
    /// One that has just come to be.
    pub fn new(id: BootNodeId, mac: MacAddress, now: Timestamp) -> Self {
        Self {
            id,
            mac,
            state: Discovered,
            version: 1,
            workflow_id: String::new(),
            failed_workflow_id: String::new(),
            group: String::new(),
            claims: Claims::default(),
            inventory: String::new(),
            looks: 0,
            install_attempts: 0,
            last_install_error: None,
            state_changed_at: now,
            machine_id: None,
            proposed_machine_id: None,
            created_at: now,
            last_seen: None,
            order: None,
        }
    }

    /// The order that is open, if one is.
    pub fn open_order(&self) -> Option<&InstallOrder> {
        self.order.as_ref().filter(|order| order.is_open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::allowed_next;

    #[test]
    fn retired_has_no_exit_and_everything_else_leads_there() {
        assert!(EDGES.iter().all(|e| e.from != Some(Retired)));
        for state in BootState::ALL.iter().filter(|s| **s != Retired) {
            assert!(allowed_next(Some(*state), Owner::Operator).contains(&Retired), "{state}");
        }
    }

    #[test]
    fn a_machine_by_itself_makes_three_moves_and_its_entry() {
        let mut made: Vec<_> = EDGES.iter().filter(|e| e.owner == Owner::Node).map(|e| (e.from, e.to)).collect();
        made.dedup();
        let three = [(Pending, Installing), (Installing, Installed), (Installing, InstallFailed)];
        let wanted: Vec<_> =
            std::iter::once((None, Discovered)).chain(three.map(|(from, to)| (Some(from), to))).collect();
        assert_eq!(made, wanted);
    }

    #[test]
    fn who_a_machine_is_changes_only_before_it_is_approved_and_while_it_moves() {
        let known = Claims { serial_number: "S-1".into(), ..Claims::default() };
        let said = Claims {
            serial_number: "S-2".into(),
            vendor: "Acme".into(),
            ip_address: "10.0.0.9".into(),
            ..Claims::default()
        };
        for state in BootState::ALL {
            let node = BootNode { claims: known.clone(), ..crate::testing::node(*state) };
            let kept = node.believes(&said);
            assert_eq!((kept.ip_address.as_str(), kept.vendor.as_str()), ("10.0.0.9", "Acme"), "{state}");
            let free = matches!(state, Discovered | Migrating);
            assert_eq!(kept.serial_number, if free { "S-2" } else { "S-1" }, "{state}");
        }
    }

    #[test]
    fn an_approved_card_in_another_machine_is_noticed() {
        let with = |serial: &str, uuid: &str| Claims {
            serial_number: serial.into(),
            system_uuid: uuid.into(),
            ..Claims::default()
        };
        let (uuid, swapped) = ("4d570000-0001-4002-8000-5254004d5800", "0000574d-0100-0240-8000-5254004d5800");
        let node = |state, claims: &Claims| BootNode { claims: claims.clone(), ..crate::testing::node(state) };
        let known = with("S-1", uuid);
        for agrees in [with("", ""), with("s-1", ""), with("To be filled by O.E.M.", ""), with("S-1", swapped)] {
            assert_eq!(node(Pending, &known).contradicts(&agrees), None, "{agrees:?}");
        }
        for other in [with("S-2", ""), with("", "4d570000-0001-4002-8000-5254004d5801")] {
            assert!(node(Pending, &known).contradicts(&other).is_some(), "{other:?}");
            assert_eq!(node(Discovered, &known).contradicts(&other), None, "nobody has approved it yet");
            assert_eq!(node(Migrating, &known).contradicts(&other), None, "it is expected to be another");
        }
        assert_eq!(
            node(Active, &with("0123456789", "")).contradicts(&with("S-2", "")),
            None,
            "it never said who it is"
        );
    }

    #[test]
    fn what_is_not_said_again_stays() {
        let before = Claims { vendor: "Acme".into(), hostname: "a".into(), ..Claims::default() };
        let after = Claims { hostname: "b".into(), ..Claims::default() }.over(&before);
        assert_eq!((after.vendor.as_str(), after.hostname.as_str()), ("Acme", "b"));
    }
}
