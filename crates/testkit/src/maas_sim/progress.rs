//! What happens after an answer: machines boot, report, fail, run out of time. Each step waits for its time (or, in an
//! instant world, only for the answer to be out), and nothing ever waits for a real clock.

use super::FirstBoot;
use super::clock::Millis;
use super::events::{ERROR, INFO};
use super::hardware::{NoPower, Power, Trouble};
use super::log::{By, Kind};
use super::machine::Facts;
use super::network::Nic;
use super::status;
use super::storage::Disk;
use super::world::{World, forget};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

pub(super) fn seconds(n: u64) -> Millis {
    n * 1000
}

pub(super) fn minutes(n: u64) -> Millis {
    n * 60_000
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    PowerOn,
    PowerOff,
    Commissioned {
        skip_storage: bool,
        skip_networking: bool,
        tests: bool,
    },
    CommissioningFailed,
    Tested {
        passed: bool,
    },
    /// Claims its addresses and is powered on.
    StartDeployment,
    CurtinDone,
    CurtinFailed,
    AsksUserData,
    CloudInitFailed,
    Released,
    Erased {
        done: bool,
    },
    Aborted {
        to: u8,
    },
    Rescued,
    OutOfRescue,
    TimedOut,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    after: Millis,
    what: What,
}

impl Step {
    pub fn work(after: Millis, what: What) -> Self {
        Self { after, what }
    }

    /// Nothing more is heard of it until MAAS gives up.
    pub fn timeout(after: Millis) -> Self {
        Self { after, what: What::TimedOut }
    }
}

impl World {
    pub(super) fn plan(&mut self, key: u64, steps: Vec<Step>) {
        self.unschedule(key);
        self.touch(key).plan = steps.into();
        self.schedule(key);
    }

    fn schedule(&mut self, key: u64) {
        let Some((after, late)) = self.machines[&key].plan.front().map(|s| (s.after, s.what == What::TimedOut)) else {
            return;
        };
        self.turns += 1;
        let due = (self.now + after, self.turns);
        self.touch(key).due = Some(due);
        let queue = if late { &mut self.late } else { &mut self.queue };
        queue.insert((due.0, due.1, key));
    }

    fn unschedule(&mut self, key: u64) {
        if let Some((at, turn)) = self.touch(key).due.take() {
            self.queue.remove(&(at, turn, key));
            self.late.remove(&(at, turn, key));
        }
        self.touch(key).plan.clear();
    }

    /// Nothing that was planned happens any more.
    pub(super) fn cancel(&mut self, key: u64) {
        self.unschedule(key);
        if let Some((at, turn)) = self.touch(key).sync_due.take() {
            self.late.remove(&(at, turn, key));
        }
    }

    /// In an instant world: everything that is under way comes to its end. What waits for a time-out goes on waiting.
    pub(super) fn settle(&mut self) {
        while let Some((_, _, key)) = self.queue.pop_first() {
            self.now += 1;
            self.take_step(key);
        }
    }

    pub(super) fn advance(&mut self, span: Millis) {
        let until = self.now + span;
        loop {
            let first = [self.queue.first(), self.late.first()].into_iter().flatten().min().copied();
            let Some((at, turn, key)) = first.filter(|(at, ..)| *at <= until) else { break };
            self.queue.remove(&(at, turn, key));
            self.late.remove(&(at, turn, key));
            self.now = self.now.max(at);
            if self.machines[&key].sync_due == Some((at, turn)) {
                self.sync(key);
            } else {
                self.take_step(key);
            }
        }
        self.now = until;
    }

    /// The next step of a machine, now; `false`: nothing is under way, or it waits for a time-out.
    pub(super) fn step(&mut self, key: u64) -> bool {
        let Some((at, turn)) = self.machines[&key].due else { return false };
        if !self.queue.remove(&(at, turn, key)) {
            return false;
        }
        self.now = self.now.max(at);
        self.take_step(key);
        true
    }

    fn take_step(&mut self, key: u64) {
        let machine = self.touch(key);
        machine.due = None;
        let Some(step) = machine.plan.pop_front() else { return };
        self.perform(key, &step.what);
        if self.machines.get(&key).is_some_and(|m| m.due.is_none()) {
            self.schedule(key);
        }
    }

    fn perform(&mut self, key: u64, what: &What) {
        let by = By::Itself;
        match what {
            What::PowerOn => self.power_up(key),
            What::StartDeployment => {
                if self.claim_addresses(key) {
                    self.power_up(key);
                } else {
                    self.mark_failed(key, "No more IPs available.");
                }
            }
            What::PowerOff => drop(self.drive(key, Power::Off)),
            What::Commissioned { skip_storage, skip_networking, tests } => {
                self.found(key, *skip_storage, *skip_networking);
                let set = self.machines[&key].commissioning;
                self.end_set(set, 2);
                self.touch(key).commissioning_status = 2;
                if *tests {
                    self.touch(key).before = status::READY;
                    self.set_status(&by, key, status::TESTING);
                    self.event(key, INFO, "Testing", "", "");
                } else {
                    self.ready(key);
                }
            }
            What::CommissioningFailed => {
                let (now, id) = (self.now, self.machines[&key].commissioning);
                if let Some(set) = self.set_mut(id) {
                    // the set was aborted; the one that failed is in it
                    (set.status, set.started) = (5, Some(now));
                    set.scripts.fill(5);
                    set.scripts[0] = 3;
                }
                self.touch(key).commissioning_status = 3;
                self.set_status(&by, key, status::FAILED_COMMISSIONING);
                self.event(key, INFO, "Failed commissioning", "", "");
            }
            What::Tested { passed } => {
                let set = self.machines[&key].testing;
                self.end_set(set, if *passed { 2 } else { 3 });
                self.touch(key).testing_status = if *passed { 2 } else { 3 };
                let before = self.machines[&key].before;
                match (passed, before) {
                    (true, status::READY) => self.ready(key),
                    (true, before) => self.set_status(&by, key, before),
                    (false, _) => {
                        self.shut_down(key);
                        self.set_status(&by, key, status::FAILED_TESTING);
                        self.event(key, INFO, "Failed testing", "", "");
                    }
                }
            }
            What::CurtinFailed => {
                let set = self.machines[&key].installation;
                self.end_set(set, 3);
                self.event(key, ERROR, "Node installation failure", "'curtin' cmd-install", "");
                self.mark_failed(key, "Installation failed (refer to the installation log for more information).");
            }
            What::CurtinDone => self.installed(key),
            What::AsksUserData => self.deployed(key),
            What::CloudInitFailed => {
                self.event(key, ERROR, "Node post-installation failure", "'cloud-init' modules-final", "");
            }
            What::Released => self.end_release(&by, key),
            What::Erased { done } => self.erased(key, *done),
            What::Aborted { to } => {
                let m = &self.machines[&key];
                let set = match m.status {
                    status::COMMISSIONING => m.commissioning,
                    status::TESTING => m.testing,
                    status::DISK_ERASING => m.releasing,
                    _ => m.installation,
                };
                self.end_set(set, 5);
                self.set_status(&by, key, *to);
            }
            What::Rescued => self.set_status(&by, key, status::RESCUE_MODE),
            What::OutOfRescue => {
                let before = self.machines[&key].before;
                if !matches!(before, status::DEPLOYED) {
                    self.shut_down(key);
                }
                self.set_status(&by, key, before);
            }
            What::TimedOut => {
                let m = &self.machines[&key];
                let minutes = match m.status {
                    status::DEPLOYING => 60,
                    status::RELEASING | status::EXITING_RESCUE_MODE => 5,
                    _ => 30,
                };
                let text = format!("Node operation '{}' timed out after {minutes} minutes.", status::name(m.status));
                self.mark_failed(key, &text);
            }
        }
    }

    fn power_up(&mut self, key: u64) {
        match self.drive(key, Power::On) {
            Ok(_) => self.netboot(key),
            Err(NoPower::Manual) => {}
            Err(NoPower::Failed(_, text)) => self.mark_failed(key, &text),
        }
    }

    /// What boots may be another machine than the record means: nobody knows it, and it enlists itself.
    fn netboot(&mut self, key: u64) {
        let Some(at) = self.hardware_of(key) else { return };
        let nics: Vec<String> = self.hardware[at].racked.nics.iter().map(|nic| nic.mac.clone()).collect();
        if !nics.iter().any(|mac| self.by_mac.contains_key(mac)) {
            self.enlist(&nics);
        }
    }

    /// The hardware behind its BMC is not the one with its MACs, or there is none.
    pub(super) fn boots_elsewhere(&self, key: u64) -> bool {
        let by_mac = self.hardware_by_mac(key);
        if matches!(self.machines[&key].power_type.as_str(), "manual" | "") {
            return by_mac.is_none();
        }
        by_mac.is_none() || by_mac != self.hardware_of(key)
    }

    /// Nobody but a person can turn it on, and nobody does.
    pub(super) fn by_hand(&self, key: u64) -> bool {
        !self.buttons && matches!(self.machines[&key].power_type.as_str(), "manual" | "")
    }

    pub(super) fn mark_failed(&mut self, key: u64, why: &str) {
        let Some(to) = status::failed(self.machines[&key].status) else { return };
        self.unschedule(key);
        self.touch(key).error_description = why.to_owned();
        self.set_status(&By::Itself, key, to);
        self.event(key, ERROR, "Marking node failed", why, "mark_failed");
    }

    fn shut_down(&mut self, key: u64) {
        if let Some(at) = self.hardware_by_mac(key) {
            self.hardware[at].on = false;
        }
        self.touch(key).power_state = "off";
    }

    fn ready(&mut self, key: u64) {
        self.shut_down(key);
        self.set_owner(&By::Itself, key, None);
        self.set_status(&By::Itself, key, status::READY);
        self.event(key, INFO, "Ready", "", "");
    }

    /// What commissioning finds.
    fn found(&mut self, key: u64, skip_storage: bool, skip_networking: bool) {
        let Some(at) = self.hardware_by_mac(key) else { return };
        let racked = self.hardware[at].racked.clone();
        let machine = self.touch(key);
        let facts = Facts::new(&racked.vendor, &racked.product, &racked.serial, racked.cpu_count, racked.memory);
        machine.facts = Some(facts);
        self.found_uuid(key, &racked.uuid);
        if !skip_storage {
            let mut disks = Vec::new();
            for spec in racked.disks {
                let known = self.machines[&key].disks.iter().find(|d| d.name == spec.name).map(|d| d.id);
                let id = known.unwrap_or_else(|| {
                    self.disk_ids += 1;
                    self.disk_ids
                });
                disks.push(Disk {
                    id,
                    name: spec.name,
                    model: spec.model,
                    serial: spec.serial,
                    size: spec.size,
                    tags: spec.tags,
                    id_path: spec.id_path,
                    partitions: Vec::new(),
                    filesystem: None,
                    in_group: false,
                });
            }
            let machine = self.touch(key);
            let kept = machine.boot_disk.filter(|id| disks.iter().any(|d| d.id == *id));
            machine.boot_disk = kept.or(disks.first().map(|d| d.id));
            machine.disks = disks;
            machine.volumes.clear();
            let target = machine.boot_disk;
            let layout =
                self.catalogue.config.get("default_storage_layout").and_then(|l| l.as_str()).map(str::to_owned);
            let whole = [String::new(), String::new()];
            drop(self.lay_out(key, layout.as_deref().unwrap_or("flat"), target, &whole));
        }
        for (number, spec) in racked.nics.iter().enumerate() {
            let at = match self.machines[&key].interfaces.iter().position(|nic| nic.mac == spec.mac) {
                Some(at) => at,
                None => {
                    self.nic_ids += 1;
                    let nic = Nic {
                        id: self.nic_ids,
                        name: spec.name.clone(),
                        mac: spec.mac.clone(),
                        vlan: None,
                        links: Vec::new(),
                        discovered: None,
                        speed: 0,
                        mtu: None,
                        tags: Vec::new(),
                        found: true,
                    };
                    self.by_mac.entry(spec.mac.clone()).or_default().push(key);
                    self.touch(key).interfaces.push(nic);
                    self.machines[&key].interfaces.len() - 1
                }
            };
            let nic = &mut self.touch(key).interfaces[at];
            nic.name.clone_from(&spec.name);
            (nic.speed, nic.found) = (spec.speed, true);
            if skip_networking {
                continue;
            }
            self.drop_links(key, at);
            let vlan = (spec.vlan != 0).then_some(spec.vlan);
            let subnet = vlan.and_then(|vlan| self.network.on_vlan(vlan)).filter(|_| number == 0);
            let link = self.network.link(if subnet.is_some() { "auto" } else { "link_up" }, subnet, None);
            let lease = match &racked.lease {
                Some(lease) => Some(lease.clone()),
                None => subnet.and_then(|s| self.network.subnets.get_mut(&s)).map(super::network::Subnet::lease),
            };
            let nic = &mut self.touch(key).interfaces[at];
            nic.vlan = vlan;
            nic.mtu = None;
            nic.links = vec![link];
            nic.discovered = subnet.zip(lease);
        }
        self.note_identity(&By::Itself, key);
    }

    /// If two have one UUID, neither has it.
    fn found_uuid(&mut self, key: u64, uuid: &str) {
        if let Some(old) = self.touch(key).uuid.take() {
            forget(&mut self.by_uuid, &old, key);
        }
        let others = self.by_uuid.get(uuid).cloned().unwrap_or_default();
        self.by_uuid.entry(uuid.to_owned()).or_default().push(key);
        if others.is_empty() {
            self.touch(key).uuid = Some(uuid.to_owned());
        }
        for other in others.into_iter().filter(|other| *other != key) {
            if self.touch(other).uuid.take().is_some() {
                self.note_identity(&By::Itself, other);
            }
        }
    }

    fn installed(&mut self, key: u64) {
        let set = self.machines[&key].installation;
        self.end_set(set, 2);
        let machine = self.touch(key);
        machine.netboot = false;
        let (system_id, serial) = (machine.system_id.clone(), machine.serial());
        let system = format!("{}/{}", machine.osystem, machine.distro_series);
        if let Some(at) = self.hardware_by_mac(key) {
            let hardware = &mut self.hardware[at];
            hardware.installed = Some(system.clone());
            hardware.installs += 1;
        }
        self.note(By::Itself, Kind::Installed { system_id, serial, system });
    }

    /// What was installed asks for its user-data: that is all that Deployed means.
    fn deployed(&mut self, key: u64) {
        let never = self.machines[&key].sync.enabled && self.trouble(key, Trouble::SyncNeverMoves);
        let loses_links = self.machines[&key].sync.enabled && self.trouble(key, Trouble::SyncLosesLinks);
        let now = self.now;
        let machine = self.touch(key);
        if machine.sync.enabled {
            machine.sync.last = Some(now);
            machine.sync.comes = !never;
            machine.sync.loses_links = loses_links;
            machine.sync.times = 0;
        }
        // not base64: it is passed on as it stands
        let user_data = BASE64.decode(machine.user_data.trim()).unwrap_or_else(|_| machine.user_data.clone().into());
        let boot = FirstBoot {
            system_id: machine.system_id.clone(),
            hostname: machine.hostname.clone(),
            macs: machine.macs(),
            serial: machine.serial(),
            addresses: machine.addresses().into_iter().map(str::to_owned).collect(),
            user_data,
        };
        self.booted.push(boot);
        self.set_status(&By::Itself, key, status::DEPLOYED);
        self.event(key, INFO, "Deployed", "", "");
        self.schedule_sync(key);
    }

    fn schedule_sync(&mut self, key: u64) {
        let sync = &self.machines[&key].sync;
        let (true, Some(interval)) = (sync.comes, sync.interval) else { return };
        self.turns += 1;
        let due = (self.now + seconds(interval), self.turns);
        self.touch(key).sync_due = Some(due);
        self.late.insert((due.0, due.1, key));
    }

    /// The machine reports what it has, and MAAS takes it all.
    pub(super) fn sync(&mut self, key: u64) {
        if let Some((at, turn)) = self.touch(key).sync_due.take() {
            self.late.remove(&(at, turn, key));
        }
        let now = self.now;
        let machine = self.touch(key);
        machine.sync.last = Some(now);
        machine.sync.times += 1;
        if machine.sync.times == 1 {
            if machine.sync.loses_links {
                for at in 0..self.machines[&key].interfaces.len() {
                    self.drop_links(key, at);
                }
            } else {
                // its addresses are its own from now on: they stay when it is released
                let links = machine.interfaces.iter_mut().flat_map(|nic| &mut nic.links);
                links.filter(|l| l.address.is_some()).for_each(|l| l.mode = "static".into());
            }
            let machine = &self.machines[&key];
            if let Some(disk) = machine.disks.first() {
                let text = format!("block device {} was updated on node {}", disk.name, machine.system_id);
                self.event(key, INFO, "Node Block Device hardware sync state change", &text, "updated");
            }
        }
        self.schedule_sync(key);
    }

    fn erased(&mut self, key: u64, done: bool) {
        let set = self.machines[&key].releasing;
        self.end_set(set, if done { 2 } else { 3 });
        if !done {
            self.mark_failed(key, "Failed to erase disks.");
            return;
        }
        let m = &self.machines[&key];
        let (system_id, serial) = (m.system_id.clone(), m.serial());
        if let Some(at) = self.hardware_by_mac(key) {
            let hardware = &mut self.hardware[at];
            hardware.erases += 1;
            hardware.installed = None;
        }
        self.note(By::Itself, Kind::Erased { system_id, serial });
        self.shut_down(key);
        drop(self.begin_release(&By::Itself, key));
    }

    pub(super) fn end_release(&mut self, by: &By, key: u64) {
        self.free_addresses(key);
        let machine = self.touch(key);
        machine.annotations.clear();
        self.set_owner(by, key, None);
        self.set_status(by, key, status::READY);
        self.event(key, INFO, "Released", "", "");
    }
}
