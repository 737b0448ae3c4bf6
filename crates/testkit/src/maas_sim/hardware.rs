//! What stands in the rack: hardware with its BMC, whatever MAAS believes of it. What was really done to it is counted
//! here.

use super::log::{By, Kind};
use super::request::Answer;
use super::world::World;

/// A machine as it is racked: what commissioning will find, and what goes wrong with it.
#[derive(Clone, Debug)]
pub struct Racked {
    pub nics: Vec<NicSpec>,
    pub uuid: String,
    pub serial: String,
    pub vendor: String,
    pub product: String,
    pub cpu_count: u32,
    /// MiB.
    pub memory: u64,
    pub disks: Vec<DiskSpec>,
    pub bmc_address: String,
    pub bmc_user: String,
    pub bmc_password: String,
    /// The address that it is given while it boots from the network; `None`: whichever is free.
    pub lease: Option<String>,
}

#[derive(Clone, Debug)]
pub struct NicSpec {
    pub name: String,
    pub mac: String,
    /// Mbit/s.
    pub speed: u32,
    /// The VLAN that it is cabled to; 0: none.
    pub vlan: u64,
}

#[derive(Clone, Debug)]
pub struct DiskSpec {
    pub name: String,
    pub model: String,
    pub serial: String,
    pub size: u64,
    pub tags: Vec<String>,
    pub id_path: String,
}

/// The VLAN from which machines boot.
pub const PXE_VLAN: u64 = 5001;

impl Racked {
    /// With one NIC on the VLAN from which machines boot, one disk of 250 GB, and a Redfish BMC at this address
    /// (user `u`, password `p`).
    pub fn new(mac: &str, bmc_address: &str) -> Self {
        let digits: String = mac.chars().filter(char::is_ascii_hexdigit).collect();
        Self {
            nics: vec![NicSpec { name: "eth0".into(), mac: mac.to_owned(), speed: 10_000, vlan: PXE_VLAN }],
            uuid: format!("4d570000-0000-4000-8000-{digits}"),
            serial: format!("SN{}", digits.to_uppercase()),
            vendor: "Harness".into(),
            product: "Simulated".into(),
            cpu_count: 4,
            memory: 8192,
            disks: vec![DiskSpec::new("sda", "", 250_000_000_000)],
            bmc_address: bmc_address.to_owned(),
            bmc_user: "u".into(),
            bmc_password: "p".into(),
            lease: None,
        }
    }

    #[must_use]
    pub fn nic(mut self, name: &str, mac: &str, vlan: u64) -> Self {
        self.nics.push(NicSpec { name: name.to_owned(), mac: mac.to_owned(), speed: 400_000, vlan });
        self
    }

    /// Instead of those it has.
    #[must_use]
    pub fn disks(mut self, disks: Vec<DiskSpec>) -> Self {
        self.disks = disks;
        self
    }

    #[must_use]
    pub fn known_as(mut self, uuid: &str, serial: &str) -> Self {
        self.uuid = uuid.to_owned();
        self.serial = serial.to_owned();
        self
    }

    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.bmc_user = user.to_owned();
        self.bmc_password = password.to_owned();
        self
    }

    #[must_use]
    pub fn lease(mut self, address: &str) -> Self {
        self.lease = Some(address.to_owned());
        self
    }
}

impl DiskSpec {
    pub fn new(name: &str, model: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            model: model.to_owned(),
            serial: String::new(),
            size,
            tags: vec!["ssd".into(), "sata".into()],
            id_path: format!("/dev/{name}"),
        }
    }
}

/// How a BMC takes what it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BmcMood {
    #[default]
    Fine,
    /// No rack can reach it: 503.
    Dead,
    /// It answers, and says no: 500 with the driver's words.
    Refuses,
}

/// What goes wrong the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    CommissioningFails,
    /// It never reports; MAAS gives up in time.
    CommissioningHangs,
    TestsFail,
    CurtinFails,
    /// What is installed cannot reach the metadata service: it stays Deploying until MAAS gives up.
    NoDatasource,
    /// It never even starts the installer.
    DeployHangs,
    /// Deployed, and then the payload fails: only an event tells.
    CloudInitFails,
    EraseFails,
    EraseHangs,
    /// The BMC took the order, and never says off.
    ReleaseHangs,
    /// Hardware sync never comes; it was set up all the same.
    SyncNeverMoves,
    /// The first sync reports no addresses: its links are gone.
    SyncLosesLinks,
}

/// Hardware as it really is.
#[derive(Clone, Debug)]
pub struct Hardware {
    pub racked: Racked,
    pub mood: BmcMood,
    pub on: bool,
    /// The series that is on its disks; `None`: nothing.
    pub installed: Option<String>,
    /// How often it was installed, and erased, ever.
    pub installs: u64,
    pub erases: u64,
    pub power_ons: u64,
    pub power_offs: u64,
    pub(super) troubles: Vec<(Trouble, usize)>,
}

impl Hardware {
    pub(super) fn new(racked: Racked) -> Self {
        Self {
            racked,
            mood: BmcMood::Fine,
            on: false,
            installed: None,
            installs: 0,
            erases: 0,
            power_ons: 0,
            power_offs: 0,
            troubles: Vec::new(),
        }
    }

    /// Whether it is time for this.
    pub(super) fn trouble(&mut self, trouble: Trouble) -> bool {
        let Some(at) = self.troubles.iter().position(|(t, left)| *t == trouble && *left > 0) else { return false };
        self.troubles[at].1 -= 1;
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    On,
    Off,
    Query,
}

impl Power {
    fn word(self) -> &'static str {
        match self {
            Power::On => "on",
            Power::Off => "off",
            Power::Query => "query",
        }
    }
}

/// Why power was not driven.
pub(super) enum NoPower {
    /// By hand only.
    Manual,
    /// In the driver's or the rack's words.
    Failed(u16, String),
}

impl NoPower {
    pub fn answer(self) -> Answer {
        match self {
            NoPower::Manual => Answer::text(503, "Power cannot be driven."),
            NoPower::Failed(status, text) => Answer::text(status, text),
        }
    }
}

impl World {
    /// The hardware that a record's power parameters lead to.
    pub(super) fn hardware_of(&self, key: u64) -> Option<usize> {
        let address = self.machines.get(&key)?.power_parameters.get("power_address")?;
        self.by_bmc.get(address).copied()
    }

    /// The hardware that boots as this record: the one with its MACs.
    pub(super) fn hardware_by_mac(&self, key: u64) -> Option<usize> {
        self.machines.get(&key)?.interfaces.iter().find_map(|nic| self.by_nic.get(&nic.mac).copied())
    }

    pub(super) fn trouble(&mut self, key: u64, trouble: Trouble) -> bool {
        let at = self.hardware_by_mac(key);
        at.is_some_and(|at| self.hardware[at].trouble(trouble))
    }

    /// Whether the BMC that the record names would do it: which hardware that is.
    fn ask_bmc(&self, key: u64, power: Power) -> Result<usize, NoPower> {
        let Some(machine) = self.machines.get(&key) else { return Err(NoPower::Manual) };
        if matches!(machine.power_type.as_str(), "manual" | "") {
            return Err(NoPower::Manual);
        }
        let given = |name: &str| machine.power_parameters.get(name).map_or("", String::as_str);
        let at = self.hardware_of(key).filter(|at| self.hardware[*at].mood != BmcMood::Dead);
        let Some(at) = at else {
            let text = format!("No rack controllers can access the BMC of node {}", machine.hostname);
            return Err(NoPower::Failed(503, text));
        };
        let hardware = &self.hardware[at];
        if hardware.mood == BmcMood::Refuses {
            return Err(NoPower::Failed(500, format!("Failed to power {}: the BMC refused.", power.word())));
        }
        if given("power_user") != hardware.racked.bmc_user || given("power_pass") != hardware.racked.bmc_password {
            return Err(NoPower::Failed(500, "Incorrect username or password.".to_owned()));
        }
        Ok(at)
    }

    /// Whether orders would be taken, and whether it is on now; what is on record of it stays, unless they would not.
    pub(super) fn reachable(&mut self, key: u64) -> Result<bool, NoPower> {
        match self.ask_bmc(key, Power::Query) {
            Ok(at) => Ok(self.hardware[at].on),
            Err(NoPower::Manual) => Err(NoPower::Manual),
            Err(failure) => {
                drop(self.drive(key, Power::Query));
                Err(failure)
            }
        }
    }

    /// Asks the BMC that the record names, now. `Ok`: whether it is on after it.
    pub(super) fn drive(&mut self, key: u64, power: Power) -> Result<bool, NoPower> {
        let system_id = self.machines.get(&key).map(|m| m.system_id.clone()).unwrap_or_default();
        let outcome = match self.ask_bmc(key, power) {
            Err(NoPower::Manual) => return Err(NoPower::Manual),
            Err(failure) => Err(failure),
            Ok(at) => {
                let hardware = &mut self.hardware[at];
                match power {
                    Power::On => (hardware.on, hardware.power_ons) = (true, hardware.power_ons + 1),
                    Power::Off => (hardware.on, hardware.power_offs) = (false, hardware.power_offs + 1),
                    Power::Query => {}
                }
                Ok(hardware.on)
            }
        };
        let (state, failure) = match &outcome {
            Ok(true) => ("on", String::new()),
            Ok(false) => ("off", String::new()),
            Err(NoPower::Failed(_, text)) => ("error", text.clone()),
            Err(NoPower::Manual) => ("unknown", String::new()),
        };
        if !failure.is_empty() && power != Power::Query {
            let kind = if power == Power::On { "Failed to power on node" } else { "Failed to power off node" };
            self.event(key, super::events::ERROR, kind, &failure, "");
        }
        self.note(By::Itself, Kind::Power { system_id, action: power.word().to_owned(), failure });
        self.touch(key).power_state = state;
        outcome
    }
}
