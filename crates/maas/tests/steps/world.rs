//! A MAAS in memory, with what a repave and a power cycle meet there; a keyring that keeps pins; and one machine.

use async_trait::async_trait;
use domain::credential::Credential;
use domain::maas::{
    ALLOCATED, DEPLOYED, DEPLOYING, DISK_ERASING, FAILED_DEPLOYMENT, FAILED_DISK_ERASING, MaasPower, READY, RELEASING,
    STATUSES,
};
use domain::mac::MacAddress;
use domain::machine::{Labels, MachineSpec};
use domain::site::{Erase, Site, SitePolicy, SiteState};
use domain::stage::FailureClass;
use domain::{ExecutionId, MachineId, Reason, Secret, Timestamp};
use maas::{MaasProvider, SiteSource};
use provider::{
    Because, By, Changes, Commissioning, Deployment, Keyring, Maas, MaasAccess, MaasAccount, MaasClients, MaasEvent,
    MaasInterface, MaasMachine, MaasSubnet, NewLink, NewMachine, Notes, Operation, Pin, ProviderError, ProviderResult,
    Release, ResultKind, ScriptResult, StorageLayout, Swap, Target, Which,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub const MAC: &str = "52:54:00:83:8e:9e";
pub const UUID: &str = "71bbe021-b592-5d7c-b96d-bc2c32d8912b";
pub const ID: &str = "4g4aaq";

#[derive(Default)]
pub struct State {
    pub machines: Vec<MaasMachine>,
    /// What was told, in its order.
    pub told: Vec<String>,
    pub reads: usize,
    /// The next change is refused so.
    pub refuses: Option<ProviderError>,
    /// The answer to the change of this number is lost; with `true` after it was made.
    pub loses: Option<(usize, bool)>,
}

/// Everything that a provider meets.
#[derive(Clone, Default)]
pub struct World(Arc<Mutex<State>>, Arc<Mutex<BTreeMap<(MachineId, &'static str), String>>>);

impl World {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("whole")
    }

    /// With one machine in it.
    pub fn with_one(status: i64) -> Self {
        let world = Self::default();
        world.state().machines.push(machine(ID, MAC));
        world.set(status);
        world
    }

    pub fn set(&self, status: i64) {
        let mut state = self.state();
        let machine = &mut state.machines[0];
        set(machine, status);
        let deployed = [DEPLOYED, DEPLOYING, FAILED_DEPLOYMENT].contains(&status);
        machine.power_state = if status == READY { "off" } else { "on" }.to_owned();
        machine.owner = if status == READY { "" } else { "admin" }.to_owned();
        machine.osystem = if deployed { "ubuntu" } else { "" }.to_owned();
        machine.distro_series = if deployed { "noble" } else { "" }.to_owned();
        if status == READY {
            machine.annotations.clear();
        }
    }

    pub fn told(&self) -> Vec<String> {
        self.state().told.clone()
    }

    pub fn machine(&self) -> MaasMachine {
        self.state().machines[0].clone()
    }

    /// A server, as after every start.
    pub fn provider(&self) -> MaasProvider {
        let shared = Arc::new(self.clone());
        MaasProvider::new("oslo", shared.clone(), shared.clone(), shared, Duration::from_secs(60))
    }

    fn change(
        &self,
        id: &str,
        what: String,
        then: impl FnOnce(&mut MaasMachine) -> ProviderResult<()>,
    ) -> ProviderResult<()> {
        let mut state = self.state();
        let number = state.told.len();
        state.told.push(what);
        if let Some(no) = state.refuses.take() {
            return Err(no);
        }
        let lost = state.loses.filter(|(lost, _)| *lost == number).map(|(_, made)| made);
        let unknown = || Err(ProviderError::unknown("the answer was lost"));
        if lost == Some(false) {
            return unknown();
        }
        let gone = || ProviderError::because(Reason::WrongState, FailureClass::Conflict, "gone");
        then(state.machines.iter_mut().find(|machine| machine.system_id == id).ok_or_else(gone)?)?;
        if lost.is_some() { unknown() } else { Ok(()) }
    }
}

pub fn set(machine: &mut MaasMachine, status: i64) {
    machine.status = status;
    machine.status_name = STATUSES[usize::try_from(status).expect("small")].1.to_owned();
}

pub fn machine(id: &str, mac: &str) -> MaasMachine {
    MaasMachine {
        system_id: id.into(),
        hostname: format!("host-{id}"),
        power_state: "on".into(),
        power_type: "redfish".into(),
        hardware_uuid: UUID.into(),
        serial: "SN-1".into(),
        interfaces: vec![MaasInterface { id: 3, mac: mac.into(), ..MaasInterface::default() }],
        ..MaasMachine::default()
    }
}

pub fn target() -> Target {
    let spec = MachineSpec {
        mac_addresses: vec![MAC.into()],
        serial_number: "SN-1".into(),
        system_uuid: UUID.into(),
        ..MachineSpec::default()
    };
    Target {
        machine_id: MachineId::from_text("m-1"),
        labels: Labels::default(),
        spec,
        notes: Notes::default(),
        by: By::System,
    }
}

pub fn op(attempt: u32) -> Operation {
    Operation { execution: ExecutionId::from_text("exe_1"), stage: "repave".into(), attempt, fence: "1".into() }
}

#[async_trait]
impl SiteSource for World {
    async fn site(&self, name: &str) -> ProviderResult<Site> {
        Ok(Site {
            name: name.to_owned(),
            state: SiteState::Present,
            version: 1,
            url: "http://maas.example/MAAS".into(),
            ca_pem: String::new(),
            credentials_ref: "oslo".into(),
            policy: SitePolicy { erase: Erase::Secure, ..SitePolicy::default() },
            profiles: Vec::new(),
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
        })
    }
}

impl MaasClients for World {
    fn client(&self, _: &MaasAccess) -> ProviderResult<Arc<dyn Maas>> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Keyring for World {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        match name {
            "oslo" => Ok(Credential::Maas(Secret::new("a:b:c"))),
            "cloud" => Ok(Credential::UserData(Secret::new("#cloud-config"))),
            _ => Ok(Credential::Ca("x".into())),
        }
    }
    async fn replace(&self, _: &str, _: &Credential, _: &Credential) -> ProviderResult<Swap> {
        panic!("no credential is changed")
    }
    async fn pinned(&self, machine: &MachineId, pin: Pin, _: &str) -> ProviderResult<Option<String>> {
        Ok(self.1.lock().expect("whole").get(&(machine.clone(), pin.as_str())).cloned())
    }
    async fn pin(&self, _: &MachineId, _: Pin, _: &str, _: &str) -> ProviderResult<String> {
        panic!("nothing is pinned at first sight")
    }
    async fn repin(
        &self,
        machine: &MachineId,
        pin: Pin,
        _: &str,
        read: Option<&str>,
        value: &str,
        _: Because<'_>,
    ) -> ProviderResult<Swap> {
        let mut pins = self.1.lock().expect("whole");
        let key = (machine.clone(), pin.as_str());
        if pins.get(&key).map(String::as_str) != read {
            return Ok(Swap::Overtaken);
        }
        pins.insert(key, value.to_owned());
        Ok(Swap::Kept)
    }
    async fn forget(&self, _: &MachineId, _: &[Pin], _: Because<'_>) -> ProviderResult<()> {
        panic!("nothing is forgotten")
    }
}

fn wrong_state(machine: &MaasMachine) -> ProviderError {
    let message = format!("not in state {}", machine.status_name);
    ProviderError::because(Reason::WrongState, FailureClass::Conflict, message)
}

#[async_trait]
impl Maas for World {
    async fn account(&self) -> ProviderResult<MaasAccount> {
        Ok(MaasAccount { username: "admin".into(), is_admin: true, version: "3.7.3".into() })
    }
    async fn machines(&self, which: &Which) -> ProviderResult<Vec<MaasMachine>> {
        let mut state = self.state();
        state.reads += 1;
        let all = state.machines.iter();
        let has = |machine: &MaasMachine, macs: &[MacAddress]| {
            machine.interfaces.iter().any(|i| macs.iter().any(|mac| mac.as_str() == i.mac))
        };
        Ok(match which {
            Which::All => all.cloned().collect(),
            Which::Ids(ids) => all.filter(|m| ids.contains(&m.system_id)).cloned().collect(),
            Which::Macs(macs) => all.filter(|m| has(m, macs)).cloned().collect(),
        })
    }
    async fn machine(&self, id: &str) -> ProviderResult<Option<MaasMachine>> {
        let mut state = self.state();
        state.reads += 1;
        Ok(state.machines.iter().find(|machine| machine.system_id == id).cloned())
    }
    async fn deploy(&self, id: &str, d: &Deployment) -> ProviderResult<()> {
        let what = format!("deploy {id} {} data={} sync={}", d.series, d.user_data.reveal(), d.hardware_sync);
        self.change(id, what, |machine| {
            if ![READY, ALLOCATED].contains(&machine.status) {
                return Err(wrong_state(machine));
            }
            set(machine, DEPLOYING);
            machine.owner = "admin".into();
            machine.power_state = "on".into();
            machine.distro_series = d.series.clone();
            Ok(())
        })
    }
    async fn release(&self, id: &str, release: &Release) -> ProviderResult<()> {
        self.change(id, format!("release {id} erase={}", release.erase), |machine| {
            let from = [DEPLOYED, ALLOCATED, FAILED_DEPLOYMENT, FAILED_DISK_ERASING, DEPLOYING, READY, RELEASING, 13];
            if !from.contains(&machine.status) {
                return Err(wrong_state(machine));
            }
            machine.annotations.clear();
            set(machine, DISK_ERASING);
            Ok(())
        })
    }
    async fn abort(&self, id: &str, _: &str) -> ProviderResult<()> {
        self.change(id, format!("abort {id}"), |machine| {
            if machine.status != DEPLOYING {
                return Err(wrong_state(machine));
            }
            set(machine, ALLOCATED);
            Ok(())
        })
    }
    async fn power_on(&self, id: &str) -> ProviderResult<()> {
        self.change(id, format!("on {id}"), |machine| {
            machine.power_state = "on".into();
            Ok(())
        })
    }
    async fn power_off(&self, id: &str) -> ProviderResult<()> {
        self.change(id, format!("off {id}"), |machine| {
            machine.power_state = "off".into();
            Ok(())
        })
    }
    async fn power_now(&self, id: &str) -> ProviderResult<MaasPower> {
        let state = self.state();
        Ok(state.machines.iter().find(|m| m.system_id == id).map_or(MaasPower::Unknown, MaasMachine::power))
    }
    async fn annotate(&self, id: &str, annotations: &BTreeMap<String, String>) -> ProviderResult<()> {
        let names: Vec<&str> = annotations.iter().filter(|a| !a.1.is_empty()).map(|a| a.0.as_str()).collect();
        self.change(id, format!("annotate {id} {}", names.join(",")), |machine| {
            if machine.owner.is_empty() {
                return Err(wrong_state(machine));
            }
            for (name, text) in annotations {
                match text.as_str() {
                    "" => drop(machine.annotations.remove(name)),
                    text => drop(machine.annotations.insert(name.clone(), text.to_owned())),
                }
            }
            Ok(())
        })
    }
    async fn images(&self) -> ProviderResult<Vec<(String, String)>> {
        Ok(vec![("ubuntu/jammy".into(), "amd64/ga-22.04".into()), ("ubuntu/noble".into(), "amd64/ga-24.04".into())])
    }
    async fn create(&self, _: &NewMachine) -> ProviderResult<MaasMachine> {
        panic!("a run makes no machines")
    }
    async fn change(&self, _: &str, _: &Changes) -> ProviderResult<MaasMachine> {
        panic!("a run changes no records")
    }
    async fn allocate(&self, _: &str, _: &str, _: &str) -> ProviderResult<()> {
        panic!("a run allocates nothing by itself")
    }
    async fn commission(&self, _: &str, _: &Commissioning) -> ProviderResult<()> {
        panic!("a run commissions nothing")
    }
    async fn set_boot_disk(&self, _: &str, _: i64) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn set_storage_layout(&self, _: &str, _: &StorageLayout) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn set_mtu(&self, _: &str, _: i64, _: u32) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn link(&self, _: &str, _: i64, _: &NewLink) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn unlink(&self, _: &str, _: i64, _: i64) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn delete(&self, _: &str) -> ProviderResult<bool> {
        panic!("a run deletes nothing")
    }
    async fn tag(&self, _: &str, _: &str) -> ProviderResult<()> {
        panic!("not by a run")
    }
    async fn events(&self, _: Option<i64>, _: &str, _: &[String]) -> ProviderResult<Vec<MaasEvent>> {
        panic!("not by a run")
    }
    async fn results(&self, _: &str, _: ResultKind, _: bool) -> ProviderResult<Vec<ScriptResult>> {
        panic!("not by a run")
    }
    async fn subnets(&self) -> ProviderResult<Vec<MaasSubnet>> {
        panic!("not by a run")
    }
}
