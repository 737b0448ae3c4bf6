//! A MAAS in memory, for those who only look at one: what it answers is in the test's hand, and every request is noted.
//! Whoever changes something there is refused.

use async_trait::async_trait;
use domain::maas::MaasPower;
use domain::maas::STATUSES;
use provider::{
    Changes, Commissioning, Deployment, Maas, MaasAccess, MaasAccount, MaasClients, MaasEvent, MaasInterface, MaasLink,
    MaasMachine, MaasSubnet, NewLink, NewMachine, ProviderError, ProviderResult, Release, ResultKind, ScriptResult,
    StorageLayout, Which,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    machines: BTreeMap<String, MaasMachine>,
    events: Vec<MaasEvent>,
    /// What every request is answered with, for as long as it is set.
    down: Option<ProviderError>,
    /// No request is answered at all.
    hangs: bool,
    asked: Vec<String>,
    is_admin: bool,
    images: Vec<(String, String)>,
    subnets: Vec<MaasSubnet>,
    pools: Option<Vec<String>>,
    clock_ahead_ms: Option<i64>,
}

#[derive(Default)]
pub struct PretendMaas(Mutex<State>);

/// The name that MAAS has for a status.
fn name_of(status: i64) -> String {
    STATUSES.iter().find(|(n, _, _)| *n == status).map_or("From the future", |(_, name, _)| name).to_owned()
}

impl PretendMaas {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { is_admin: true, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine that is deployed, with one card by which it has an address.
    pub fn add(&self, system_id: &str, number: u16) {
        let [high, low] = number.to_be_bytes();
        let links = vec![MaasLink { ip_address: format!("10.0.{high}.{low}"), ..MaasLink::default() }];
        let mac = format!("00:16:3e:00:{high:02x}:{low:02x}");
        let machine = MaasMachine {
            system_id: system_id.to_owned(),
            hostname: format!("host-{number}"),
            status: 6,
            status_name: name_of(6),
            power_state: "on".to_owned(),
            owner: "millwright".to_owned(),
            hardware_uuid: format!("4c4c4544-0033-3210-8053-{number:012x}"),
            serial: format!("SN-{number}"),
            architecture: "amd64/generic".to_owned(),
            osystem: "ubuntu".to_owned(),
            distro_series: "noble".to_owned(),
            interfaces: vec![MaasInterface { id: 7, mac, links, ..MaasInterface::default() }],
            boot_interface: Some(7),
            ip_addresses: vec![format!("10.0.{high}.{low}")],
            pool: "default".to_owned(),
            zone: "default".to_owned(),
            installation: Some(1),
            ..MaasMachine::default()
        };
        self.state().machines.insert(system_id.to_owned(), machine);
        self.tells(system_id, "Node created", "");
    }

    /// An event that says no more than this.
    pub fn tells(&self, system_id: &str, kind: &str, description: &str) {
        let mut state = self.state();
        let id = 100 + i64::try_from(state.events.len()).unwrap_or(0);
        let (level, kind, system_id) = ("DEBUG".to_owned(), kind.to_owned(), system_id.to_owned());
        state.events.push(MaasEvent { id, level, kind, description: description.to_owned(), system_id });
    }

    /// Somebody moves it, which MAAS tells of.
    pub fn moves(&self, system_id: &str, status: i64) {
        self.changes(system_id, |machine| {
            machine.status = status;
            machine.status_name = name_of(status);
        });
        self.tells(system_id, "Node changed status", "");
    }

    /// Somebody releases it and deploys the same system again.
    pub fn redeploys(&self, system_id: &str) {
        self.changes(system_id, |machine| machine.installation = machine.installation.map(|number| number + 1));
        self.moves(system_id, 6);
    }

    /// Somebody changes something of it, which MAAS does not tell of.
    pub fn changes(&self, system_id: &str, change: impl FnOnce(&mut MaasMachine)) {
        if let Some(machine) = self.state().machines.get_mut(system_id) {
            change(machine);
        }
    }

    pub fn deletes(&self, system_id: &str) {
        self.state().machines.remove(system_id);
    }

    /// From now on every request ends like this; `None`: it answers.
    pub fn is_down(&self, with: Option<ProviderError>) {
        self.state().down = with;
    }

    pub fn hangs(&self) {
        self.state().hangs = true;
    }

    pub fn offers(&self, images: &[(&str, &str)], subnets: &[(i64, &str, &str)], pools: &[&str]) {
        let mut state = self.state();
        state.images = images.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
        let subnet = |(id, name, cidr): &(i64, &str, &str)| MaasSubnet {
            id: *id,
            name: (*name).to_owned(),
            cidr: (*cidr).to_owned(),
            vlan: None,
        };
        state.subnets = subnets.iter().map(subnet).collect();
        state.pools = Some(pools.iter().map(|p| (*p).to_owned()).collect());
    }

    pub fn account_is(&self, is_admin: bool, clock_ahead_ms: i64) {
        let mut state = self.state();
        state.is_admin = is_admin;
        state.clock_ahead_ms = Some(clock_ahead_ms);
    }

    /// What was asked since the last time, in words.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state().asked)
    }

    async fn answer<T>(&self, what: String, answer: impl FnOnce(&State) -> T) -> ProviderResult<T> {
        let hangs = {
            let mut state = self.state();
            state.asked.push(what);
            state.hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        let state = self.state();
        match &state.down {
            Some(error) => Err(error.clone()),
            None => Ok(answer(&state)),
        }
    }
}

fn never<T>() -> ProviderResult<T> {
    Err(ProviderError::transient("nobody changes anything here"))
}

#[async_trait]
impl Maas for PretendMaas {
    async fn account(&self) -> ProviderResult<MaasAccount> {
        self.answer("account".into(), |state| MaasAccount {
            username: "millwright".to_owned(),
            is_admin: state.is_admin,
            version: "3.7.3".to_owned(),
        })
        .await
    }

    async fn machines(&self, which: &Which) -> ProviderResult<Vec<MaasMachine>> {
        match which {
            Which::All => self.answer("list".into(), |state| state.machines.values().cloned().collect()).await,
            Which::Ids(ids) => {
                let find = |state: &State| ids.iter().filter_map(|id| state.machines.get(id).cloned()).collect();
                self.answer(format!("ids {}", ids.join(",")), find).await
            }
            Which::Macs(_) => never(),
        }
    }

    async fn machine(&self, system_id: &str) -> ProviderResult<Option<MaasMachine>> {
        self.answer(format!("id {system_id}"), |state| state.machines.get(system_id).cloned()).await
    }

    async fn create(&self, _: &NewMachine) -> ProviderResult<MaasMachine> {
        never()
    }

    async fn change(&self, _: &str, _: &Changes) -> ProviderResult<MaasMachine> {
        never()
    }

    async fn allocate(&self, _: &str, _: &str, _: &str) -> ProviderResult<()> {
        never()
    }

    async fn commission(&self, _: &str, _: &Commissioning) -> ProviderResult<()> {
        never()
    }

    async fn set_boot_disk(&self, _: &str, _: i64) -> ProviderResult<()> {
        never()
    }

    async fn set_storage_layout(&self, _: &str, _: &StorageLayout) -> ProviderResult<()> {
        never()
    }

    async fn set_mtu(&self, _: &str, _: i64, _: u32) -> ProviderResult<()> {
        never()
    }

    async fn link(&self, _: &str, _: i64, _: &NewLink) -> ProviderResult<()> {
        never()
    }

    async fn unlink(&self, _: &str, _: i64, _: i64) -> ProviderResult<()> {
        never()
    }

    async fn deploy(&self, _: &str, _: &Deployment) -> ProviderResult<()> {
        never()
    }

    async fn release(&self, _: &str, _: &Release) -> ProviderResult<()> {
        never()
    }

    async fn abort(&self, _: &str, _: &str) -> ProviderResult<()> {
        never()
    }

    async fn power_on(&self, _: &str) -> ProviderResult<()> {
        never()
    }

    async fn power_off(&self, _: &str) -> ProviderResult<()> {
        never()
    }

    async fn power_now(&self, _: &str) -> ProviderResult<MaasPower> {
        never()
    }

    async fn delete(&self, _: &str) -> ProviderResult<bool> {
        never()
    }

    async fn annotate(&self, _: &str, _: &BTreeMap<String, String>) -> ProviderResult<()> {
        never()
    }

    async fn tag(&self, _: &str, _: &str) -> ProviderResult<()> {
        never()
    }

    async fn events(&self, after: Option<i64>, _: &str, _: &[String]) -> ProviderResult<Vec<MaasEvent>> {
        let since = |state: &State| {
            let newer = state.events.iter().filter(|event| after.is_none_or(|after| event.id > after));
            match after {
                // a page has the oldest of those that are newer
                Some(_) => newer.take(100).cloned().collect::<Vec<_>>(),
                None => state.events.iter().rev().take(100).rev().cloned().collect(),
            }
        };
        self.answer("events".into(), since).await
    }

    async fn results(&self, _: &str, _: ResultKind, _: bool) -> ProviderResult<Vec<ScriptResult>> {
        never()
    }

    async fn subnets(&self) -> ProviderResult<Vec<MaasSubnet>> {
        self.answer("subnets".into(), |state| state.subnets.clone()).await
    }

    async fn images(&self) -> ProviderResult<Vec<(String, String)>> {
        self.answer("images".into(), |state| state.images.clone()).await
    }

    async fn pools(&self) -> ProviderResult<Option<Vec<String>>> {
        self.answer("pools".into(), |state| state.pools.clone()).await
    }

    async fn clock_ahead_ms(&self) -> ProviderResult<Option<i64>> {
        self.answer("clock".into(), |state| state.clock_ahead_ms).await
    }
}

/// One for each site, by its name.
#[derive(Default)]
pub struct PretendClients(Mutex<HashMap<String, Arc<PretendMaas>>>);

impl PretendClients {
    pub fn with(sites: &[(&str, &Arc<PretendMaas>)]) -> Arc<Self> {
        let all = sites.iter().map(|(name, maas)| ((*name).to_owned(), (*maas).clone()));
        Arc::new(Self(Mutex::new(all.collect())))
    }
}

impl MaasClients for PretendClients {
    fn client(&self, access: &MaasAccess) -> ProviderResult<Arc<dyn Maas>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&access.site) {
            Some(maas) => Ok(maas.clone()),
            None => Err(ProviderError::unreachable(&format!("site {}", access.site), "there is none")),
        }
    }
}
