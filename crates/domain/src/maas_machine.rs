//! A machine as its MAAS last told of it, and how a MAAS itself was last seen. Only whoever observes writes this; it is
//! nobody's state, and a node is not moved by it.

use crate::maas::{MaasClass, MaasPower, Upstream, classify};
use crate::node::MaasRef;
use crate::time::Timestamp;

/// What MAAS says of a machine, as far as anything here asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// As it came, whatever it means.
    pub status: i64,
    pub status_name: String,
    pub power_state: String,
    pub hostname: String,
    /// Empty: nobody has it.
    pub owner: String,
    pub hardware_uuid: String,
    pub serial: String,
    pub pool: String,
    pub zone: String,
    pub osystem: String,
    pub series: String,
    pub architecture: String,
    pub netboot: bool,
    pub locked: bool,
    /// Lower case, in their order.
    pub macs: Vec<String>,
    pub boot_mac: String,
    pub addresses: Vec<String>,
    /// Where it is reached: the first address of the interface that it boots from. Empty: it has none.
    pub management_ip: String,
    pub tags: Vec<String>,
    /// As it came; empty: never.
    pub last_sync: String,
    /// The number of its last installation, which a system that is deployed anew does not share; `None`: there was none.
    pub installation: Option<i64>,
}

impl Told {
    pub fn class(&self) -> MaasClass {
        classify(self.status)
    }

    pub fn power(&self) -> MaasPower {
        MaasPower::read(&self.power_state)
    }

    /// The status as a person reads it.
    pub fn says(&self) -> String {
        format!("{} ({}), power {}", self.status_name, self.status, self.power_state)
    }

    /// What somebody must have changed on purpose.
    pub fn traits(&self) -> Traits {
        Traits {
            hostname: self.hostname.clone(),
            owner: self.owner.clone(),
            pool: self.pool.clone(),
            zone: self.zone.clone(),
            osystem: self.osystem.clone(),
            series: self.series.clone(),
            netboot: self.netboot,
            installation: self.installation,
        }
    }
}

/// What of a machine does not change by itself while nobody works on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    pub hostname: String,
    pub owner: String,
    pub pool: String,
    pub zone: String,
    pub osystem: String,
    pub series: String,
    pub netboot: bool,
    pub installation: Option<i64>,
}

impl Traits {
    /// Every difference, as `what: before → after`.
    pub fn changes(&self, after: &Traits) -> Vec<String> {
        let text = |on: bool| if on { "true" } else { "false" };
        let number = |n: Option<i64>| n.map_or_else(|| "none".to_owned(), |n| n.to_string());
        let pairs = [
            ("hostname", &*self.hostname, &*after.hostname),
            ("owner", &self.owner, &after.owner),
            ("pool", &self.pool, &after.pool),
            ("zone", &self.zone, &after.zone),
            ("osystem", &self.osystem, &after.osystem),
            ("series", &self.series, &after.series),
            ("netboot", text(self.netboot), text(after.netboot)),
            ("installation", &number(self.installation), &number(after.installation)),
        ];
        let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
        changed.map(|(what, before, after)| format!("{what}: {before:?} → {after:?}")).collect()
    }
}

/// A machine of a site, as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMachine {
    pub at: MaasRef,
    pub told: Told,
    /// How it was when nobody had anything to do with it last; `None`: not known, or a job is at it.
    pub settled: Option<Traits>,
    pub first_seen_at: Timestamp,
    /// Since when it has this status.
    pub status_since: Timestamp,
    /// When MAAS last said something new.
    pub changed_at: Timestamp,
    /// MAAS has answered, and it was not there. Never set because a call failed.
    pub absent_since: Option<Timestamp>,
}

impl ObservedMachine {
    pub fn upstream(&self) -> Upstream {
        match self.absent_since {
            Some(_) => Upstream::Absent,
            None => Upstream::There { class: self.told.class(), power: self.told.power() },
        }
    }
}

/// How a MAAS was last seen, as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Raised by every look that was written: who has read an older one writes nothing.
    pub round: u64,
    /// Which server looks.
    pub observer: String,
    pub last_poll_at: Option<Timestamp>,
    /// When everything was last listed. Unset: what is not known is not absent.
    pub last_list_at: Option<Timestamp>,
    /// The last event that was read.
    pub event_mark: Option<i64>,
    pub unreachable_since: Option<Timestamp>,
    /// In words; empty: it answers.
    pub unreachable_why: String,
}

/// What machines are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identifier {
    Mac,
    Uuid,
    Serial,
}

impl Identifier {
    pub const ALL: [Identifier; 3] = [Identifier::Mac, Identifier::Uuid, Identifier::Serial];

    pub const fn as_str(self) -> &'static str {
        match self {
            Identifier::Mac => "mac",
            Identifier::Uuid => "uuid",
            Identifier::Serial => "serial",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl Told {
    /// What tells it from others, folded; what vendors write where they have nothing to say tells nothing.
    pub fn identifiers(&self) -> Vec<(Identifier, String)> {
        let mut all: Vec<_> = self.macs.iter().map(|mac| (Identifier::Mac, mac.to_ascii_lowercase())).collect();
        if crate::identity::uuid_tells(&self.hardware_uuid) {
            all.push((Identifier::Uuid, self.hardware_uuid.to_ascii_lowercase()));
        }
        if crate::identity::tells(&self.serial) {
            all.push((Identifier::Serial, self.serial.to_ascii_lowercase()));
        }
        all.sort();
        all.dedup();
        all
    }
}
