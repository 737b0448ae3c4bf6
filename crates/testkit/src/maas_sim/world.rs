//! Everything there is, behind one lock, with its own clock; and who finds what in it without looking through it all.

use super::auth::Accounts;
use super::catalogue::Catalogue;
use super::clock::Millis;
use super::events::{DEBUG, Event, ScriptSet};
use super::hardware::Hardware;
use super::log::{By, Kind, Log};
use super::machine::Machine;
use super::misbehave::Rule;
use super::network::Network;
use super::request::{Answer, Call};
use super::status;
use super::{FirstBoot, Pace};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The one rack controller.
pub(super) const RACK: &str = "nqbphr";

pub(super) struct World {
    pub pace: Pace,
    /// Its own time. Only tests, and steps that come early, move it.
    pub now: Millis,
    pub machines: BTreeMap<u64, Machine>,
    /// The number of the newest machine.
    pub created: u64,
    pub by_id: HashMap<String, u64>,
    pub by_name: HashMap<String, u64>,
    /// More than one where creates were racing.
    pub by_mac: HashMap<String, Vec<u64>>,
    pub by_uuid: HashMap<String, Vec<u64>>,
    pub hardware: Vec<Hardware>,
    pub by_bmc: HashMap<String, usize>,
    pub by_nic: HashMap<String, usize>,
    pub network: Network,
    pub catalogue: Catalogue,
    pub accounts: Accounts,
    pub events: Vec<Event>,
    pub sets: Vec<ScriptSet>,
    pub log: Log,
    pub rules: Vec<Rule>,
    /// What is under way, by time and in order: which machine.
    pub queue: BTreeSet<(Millis, u64, u64)>,
    /// What only time brings: time-outs, and the next hardware sync.
    pub late: BTreeSet<(Millis, u64, u64)>,
    pub turns: u64,
    /// Machines that have booted what was installed, and that nobody was told of yet.
    pub booted: Vec<FirstBoot>,
    pub nic_ids: u64,
    pub disk_ids: u64,
    pub partition_ids: u64,
    /// Somebody is there to press the buttons of machines without a BMC.
    pub buttons: bool,
}

impl World {
    pub fn new(pace: Pace, now: Millis) -> Self {
        Self {
            pace,
            now,
            machines: BTreeMap::new(),
            created: 0,
            by_id: HashMap::new(),
            by_name: HashMap::new(),
            by_mac: HashMap::new(),
            by_uuid: HashMap::new(),
            hardware: Vec::new(),
            by_bmc: HashMap::new(),
            by_nic: HashMap::new(),
            network: Network::standard(),
            catalogue: Catalogue::standard(),
            accounts: Accounts::default(),
            events: Vec::new(),
            sets: Vec::new(),
            log: Log::default(),
            rules: Vec::new(),
            queue: BTreeSet::new(),
            late: BTreeSet::new(),
            turns: 0,
            booted: Vec::new(),
            // the rack has the first
            nic_ids: 1,
            disk_ids: 0,
            partition_ids: 0,
            buttons: false,
        }
    }

    pub fn note(&mut self, by: By, kind: Kind) {
        self.log.add(self.now, by, kind);
    }

    /// To change it: what was written of it no longer holds.
    #[allow(clippy::expect_used, reason = "for tests only: keys come from the world itself")]
    pub fn touch(&mut self, key: u64) -> &mut Machine {
        let machine = self.machines.get_mut(&key).expect("a machine");
        machine.json = None;
        machine
    }

    pub fn set_status(&mut self, by: &By, key: u64, to: u8) {
        let machine = self.touch(key);
        let from = std::mem::replace(&mut machine.status, to);
        if from == to {
            return;
        }
        let system_id = machine.system_id.clone();
        self.note(by.clone(), Kind::Status { system_id, from, to });
        let text = format!("From '{}' to '{}'", status::name(from), status::name(to));
        self.event(key, DEBUG, "Node changed status", &text, "");
    }

    pub fn set_owner(&mut self, by: &By, key: u64, owner: Option<&str>) {
        let machine = self.touch(key);
        if machine.owner.as_deref() != owner {
            machine.owner = owner.map(str::to_owned);
            let (system_id, owner) = (machine.system_id.clone(), machine.owner.clone());
            self.note(by.clone(), Kind::Owner { system_id, owner });
        }
    }

    pub fn changed(&mut self, call: &Call, key: u64, what: &str) {
        let system_id = self.machines[&key].system_id.clone();
        self.note(call.by.clone(), Kind::Changed { system_id, what: what.to_owned() });
    }

    pub fn trap(&mut self, call: &Call, system_id: &str, what: impl Into<String>) {
        self.note(call.by.clone(), Kind::Trap { system_id: system_id.to_owned(), what: what.into() });
    }

    /// Whether the caller may change this one: its owner or an administrator, and only while it is not locked.
    pub fn editable(&self, call: &Call, key: u64) -> Result<(), Answer> {
        let machine = &self.machines[&key];
        let own = machine.owner.as_deref() == Some(call.account());
        if machine.locked || !(call.admin || own) { Err(Answer::forbidden()) } else { Ok(()) }
    }

    pub fn insert(&mut self, mut machine: Machine) -> u64 {
        self.created += 1;
        let key = self.created;
        machine.system_id = system_id(key);
        self.by_id.insert(machine.system_id.clone(), key);
        self.by_name.insert(machine.hostname.clone(), key);
        for nic in &machine.interfaces {
            self.by_mac.entry(nic.mac.clone()).or_default().push(key);
        }
        self.machines.insert(key, machine);
        key
    }

    pub fn remove(&mut self, key: u64) -> Option<Machine> {
        self.cancel(key);
        for nic in 0..self.machines.get(&key)?.interfaces.len() {
            self.drop_links(key, nic);
        }
        let machine = self.machines.remove(&key)?;
        self.by_id.remove(&machine.system_id);
        if self.by_name.get(&machine.hostname) == Some(&key) {
            self.by_name.remove(&machine.hostname);
        }
        for nic in &machine.interfaces {
            forget(&mut self.by_mac, &nic.mac, key);
        }
        if let Some(uuid) = &machine.uuid {
            forget(&mut self.by_uuid, uuid, key);
        }
        Some(machine)
    }

    /// What is known of its identity now.
    pub fn note_identity(&mut self, by: &By, key: u64) {
        let m = &self.machines[&key];
        let kind =
            Kind::Identity { system_id: m.system_id.clone(), macs: m.macs(), uuid: m.uuid.clone(), serial: m.serial() };
        self.note(by.clone(), kind);
    }
}

pub(super) fn forget(index: &mut HashMap<String, Vec<u64>>, word: &str, key: u64) {
    if let Some(keys) = index.get_mut(word) {
        keys.retain(|k| *k != key);
        if keys.is_empty() {
            index.remove(word);
        }
    }
}

/// Six characters that are not mistaken for each other, in no order that anybody could rely on.
fn system_id(number: u64) -> String {
    const LETTERS: &[u8] = b"34678abcdefghkmnpqrtwxy";
    const ALL: u64 = 23u64.pow(6);
    // prime to their number: every machine gets another
    let mut rest = number.wrapping_mul(57_885_161) % ALL;
    let mut text = String::with_capacity(6);
    for _ in 0..6 {
        text.push(char::from(LETTERS[usize::try_from(rest % 23).unwrap_or(0)]));
        rest /= 23;
    }
    text
}
