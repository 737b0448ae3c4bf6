//! The simulator's own log: what was asked, what was done and what became of it, each with its number. Who judges the
//! product reads this and nothing else.

use super::clock::Millis;
use std::collections::BTreeSet;

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Over the wire, with this account's key.
    Account(String),
    /// Over the wire, without a key that was taken.
    Nobody,
    /// A test, as somebody else with this account.
    Scenery(String),
    /// MAAS itself, or the machine.
    Itself,
}

/// Which machines an answer told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    Machines(Vec<String>),
    /// All there were.
    Everything,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    Properly,
    /// It never came.
    Lost,
    /// It came, and was not what was meant.
    Garbled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Request {
        method: String,
        /// Without its query.
        path: String,
        op: String,
        /// The machine it is about, if one.
        system_id: String,
        /// Names of fields, not what was in them.
        fields: Vec<String>,
        status: u16,
        /// Something was changed by it: what stands between `since` and this.
        done: bool,
        /// The number of the last entry before it.
        since: u64,
        answered: Answered,
        told: Told,
    },
    Created {
        system_id: String,
        macs: Vec<String>,
    },
    Deleted {
        system_id: String,
        /// The hardware was left running.
        running: bool,
    },
    Status {
        system_id: String,
        from: u8,
        to: u8,
    },
    Owner {
        system_id: String,
        owner: Option<String>,
    },
    /// What it is known by: its MACs, its UUID, its serial number.
    Identity {
        system_id: String,
        macs: Vec<String>,
        uuid: Option<String>,
        serial: String,
    },
    /// Its name, pool, zone, lock or storage: nothing that says which machine it is.
    Changed {
        system_id: String,
        what: String,
    },
    Power {
        system_id: String,
        /// `on`, `off`, `query`.
        action: String,
        /// What the BMC said when it did not.
        failure: String,
    },
    /// The disks of the hardware with this serial number were erased.
    Erased {
        system_id: String,
        serial: String,
    },
    /// A system was written to the disks of the hardware with this serial number.
    Installed {
        system_id: String,
        serial: String,
        system: String,
    },
    /// A deployment begins: where its system goes, and how many links the interface has that it boots from.
    Deploys {
        system_id: String,
        root_on_boot_disk: bool,
        boot_links: usize,
    },
    /// A caller fell for one of MAAS's traps.
    Trap {
        system_id: String,
        what: String,
    },
    /// A test says whose the machine is from here on.
    Claim {
        system_id: String,
        ours: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// From 1, without gaps.
    pub number: u64,
    /// The simulator's time, in milliseconds.
    pub at: Millis,
    pub by: By,
    pub kind: Kind,
}

impl Kind {
    /// The machine it is about; empty: none.
    pub fn system_id(&self) -> &str {
        match self {
            Kind::Request { system_id, .. }
            | Kind::Created { system_id, .. }
            | Kind::Deleted { system_id, .. }
            | Kind::Status { system_id, .. }
            | Kind::Owner { system_id, .. }
            | Kind::Identity { system_id, .. }
            | Kind::Changed { system_id, .. }
            | Kind::Power { system_id, .. }
            | Kind::Erased { system_id, .. }
            | Kind::Installed { system_id, .. }
            | Kind::Deploys { system_id, .. }
            | Kind::Trap { system_id, .. }
            | Kind::Claim { system_id, .. } => system_id,
        }
    }
}

/// A log in the making.
#[derive(Default)]
pub(super) struct Log {
    pub entries: Vec<Entry>,
    /// Changes of the request that is being handled, and where it began.
    changes: usize,
    since: u64,
}

impl Log {
    pub fn add(&mut self, at: Millis, by: By, kind: Kind) {
        // what was looked at or fallen for is no change
        let looked = matches!(&kind, Kind::Request { .. } | Kind::Trap { .. } | Kind::Claim { .. })
            || matches!(&kind, Kind::Power { action, .. } if action == "query");
        self.changes += usize::from(!looked);
        let number = self.entries.len() as u64 + 1;
        self.entries.push(Entry { number, at, by, kind });
    }

    pub fn begin(&mut self) {
        self.changes = 0;
        self.since = self.entries.len() as u64;
    }

    /// The number of the last entry before [`Log::begin`].
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Something changed since [`Log::begin`].
    pub fn changed(&self) -> bool {
        self.changes > 0
    }
}

/// Names of fields in the order they came, each once.
pub(super) fn field_names(form: &[(String, String)]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    form.iter().filter(|(name, _)| seen.insert(name.as_str())).map(|(name, _)| name.clone()).collect()
}
