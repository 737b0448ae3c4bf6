//! One MAAS as stages and observers see it: what it says of machines, and what it can be asked to do. Every call ends
//! within the adapter's bounds. A call that changes something and whose outcome is not known says so: the machine is read
//! again before anything else.

use crate::{Keyring, ProviderError, ProviderResult};
use async_trait::async_trait;
use domain::Secret;
use domain::credential::Credential;
use domain::maas::MaasPower;
use domain::mac::MacAddress;
use domain::site::{Erase, Layout, LinkMode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How a site is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaasAccess {
    pub site: String,
    pub url: String,
    /// Empty: what the system trusts.
    pub ca_pem: String,
    /// `CONSUMER:TOKEN:SECRET`.
    pub key: Secret,
    /// Calls at a time.
    pub calls_max: u32,
}

/// Clients of sites, each with its own bounds: one that is slow or down keeps nobody else waiting.
#[async_trait]
pub trait MaasClients: Send + Sync {
    /// The client for this access: the same one as long as nothing of it has changed.
    fn client(&self, access: &MaasAccess) -> ProviderResult<Arc<dyn Maas>>;

    /// A client that has its turn at the site until it is dropped: what it is asked, one thing after the other, waits for
    /// nobody else's. Refused as busy where no turn comes within this time.
    async fn in_turn(&self, access: &MaasAccess, _within: Duration) -> ProviderResult<Arc<dyn Maas>> {
        self.client(access)
    }

    /// Whether the site of this name is left alone at the moment, because it does not answer.
    fn is_resting(&self, _site: &str) -> bool {
        false
    }
}

/// Who we are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaasAccount {
    pub username: String,
    pub is_admin: bool,
    /// Of the MAAS.
    pub version: String,
}

/// Which machines are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All: large.
    All,
    Ids(Vec<String>),
    Macs(Vec<MacAddress>),
}

/// A machine as MAAS tells of it. `status` alone decides; what is said beside it is often stale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MaasMachine {
    pub system_id: String,
    pub hostname: String,
    pub fqdn: String,
    pub description: String,
    pub status: i64,
    pub status_name: String,
    /// For people.
    pub status_message: String,
    pub power_state: String,
    pub power_type: String,
    /// Empty: nobody has it.
    pub owner: String,
    pub locked: bool,
    /// Empty: not known, or shared by two.
    pub hardware_uuid: String,
    pub serial: String,
    pub architecture: String,
    pub osystem: String,
    pub distro_series: String,
    pub netboot: bool,
    pub hardware_sync: HardwareSync,
    pub interfaces: Vec<MaasInterface>,
    /// By number.
    pub boot_interface: Option<i64>,
    pub disks: Vec<MaasDisk>,
    pub boot_disk: Option<i64>,
    pub ip_addresses: Vec<String>,
    pub pool: String,
    pub zone: String,
    pub tags: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    /// Of the last installation there was: another one has another number.
    pub installation: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareSync {
    pub enabled: bool,
    pub interval_seconds: u64,
    /// As it came, RFC 3339; empty: never.
    pub last_sync: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaasInterface {
    pub id: i64,
    pub name: String,
    pub mac: String,
    pub kind: String,
    pub enabled: bool,
    pub link_connected: bool,
    pub mtu: u32,
    pub tags: Vec<String>,
    pub vlan: Option<i64>,
    pub links: Vec<MaasLink>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaasLink {
    pub id: i64,
    pub mode: String,
    pub subnet: Option<i64>,
    pub subnet_name: String,
    pub cidr: String,
    /// Empty until one is claimed.
    pub ip_address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaasDisk {
    pub id: i64,
    pub name: String,
    pub path: String,
    pub model: String,
    pub serial: String,
    pub size: u64,
    pub tags: Vec<String>,
}

impl MaasDisk {
    /// For people.
    pub fn told(&self) -> String {
        let model = if self.model.is_empty() { "model unknown" } else { self.model.as_str() };
        format!("{} ({model}, {} bytes)", self.name, self.size)
    }
}

impl MaasMachine {
    pub fn class(&self) -> domain::maas::MaasClass {
        domain::maas::classify(self.status)
    }

    pub fn power(&self) -> MaasPower {
        MaasPower::read(&self.power_state)
    }

    /// The status as a person reads it.
    pub fn says(&self) -> String {
        format!("{} ({}), power {}", self.status_name, self.status, self.power_state)
    }
}

/// How MAAS drives a machine's power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerAccess {
    /// `redfish`, `ipmi`, `manual`, `webhook` …
    pub kind: String,
    /// Names as MAAS has them, such as `power_address`; `power_pass` among them.
    pub parameters: BTreeMap<String, Secret>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMachine {
    pub architecture: String,
    pub macs: Vec<MacAddress>,
    /// Empty: MAAS makes one up.
    pub hostname: String,
    pub description: String,
    pub power: PowerAccess,
    pub pool: String,
    pub zone: String,
}

/// What of a record is to be changed; `None`: stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub hostname: Option<String>,
    pub pool: Option<String>,
    pub zone: Option<String>,
    pub power: Option<PowerAccess>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commissioning {
    /// By name or tag; empty: MAAS's own choice.
    pub testing_scripts: Vec<String>,
    /// The BMC keeps the login it has; otherwise MAAS makes one of its own there.
    pub keep_bmc_login: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageLayout {
    pub layout: Layout,
    /// Empty: all that is there.
    pub root_size: String,
    /// The disk to lay it on; `None`: the boot disk.
    pub root_device: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLink {
    pub mode: LinkMode,
    /// A number, `cidr:…` or `name:…`; empty: none (link up only).
    pub subnet: String,
    /// Takes the place of all links that are there, and moves the interface to the subnet's VLAN.
    pub force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    pub series: String,
    pub kernel: String,
    /// As it is; encoded on the wire.
    pub user_data: Secret,
    pub hardware_sync: bool,
    /// Ours: who finds it on the machine knows whose it is.
    pub agent_name: String,
    pub comment: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub erase: Erase,
    pub comment: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaasEvent {
    pub id: i64,
    pub level: String,
    pub kind: String,
    pub description: String,
    pub system_id: String,
}

/// What a script of a commissioning, a test, an installation or a release came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptResult {
    pub name: String,
    /// As MAAS numbers them: 2 passed, 3 failed, 4 timed out …
    pub status: i64,
    pub status_name: String,
    pub exit_status: Option<i64>,
    /// The last of what it printed; empty unless it was asked for.
    pub output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    Commissioning,
    Testing,
    Installation,
    Release,
}

/// Something that a machine is deployed with, or linked to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaasSubnet {
    pub id: i64,
    pub name: String,
    pub cidr: String,
    pub vlan: Option<i64>,
}

#[async_trait]
pub trait Maas: Send + Sync {
    /// Whether this client may have sent anything that changes something. Where nobody keeps count, it may.
    fn may_have_changed_anything(&self) -> bool {
        true
    }

    /// Whether our key is taken, and what it may do.
    async fn account(&self) -> ProviderResult<MaasAccount>;

    async fn machines(&self, which: &Which) -> ProviderResult<Vec<MaasMachine>>;

    /// `None`: it is not there, or no more.
    async fn machine(&self, system_id: &str) -> ProviderResult<Option<MaasMachine>>;

    /// One at a time per MAC, by whoever asks: MAAS itself makes two of one.
    async fn create(&self, new: &NewMachine) -> ProviderResult<MaasMachine>;

    async fn change(&self, system_id: &str, changes: &Changes) -> ProviderResult<MaasMachine>;

    /// Has it for us, without anything being put on it. Only what is Ready can be had.
    async fn allocate(&self, system_id: &str, agent_name: &str, comment: &str) -> ProviderResult<()>;

    async fn commission(&self, system_id: &str, how: &Commissioning) -> ProviderResult<()>;

    async fn set_boot_disk(&self, system_id: &str, disk: i64) -> ProviderResult<()>;

    async fn set_storage_layout(&self, system_id: &str, layout: &StorageLayout) -> ProviderResult<()>;

    async fn set_mtu(&self, system_id: &str, interface: i64, mtu: u32) -> ProviderResult<()>;

    async fn link(&self, system_id: &str, interface: i64, link: &NewLink) -> ProviderResult<()>;

    async fn unlink(&self, system_id: &str, interface: i64, link: i64) -> ProviderResult<()>;

    async fn deploy(&self, system_id: &str, deployment: &Deployment) -> ProviderResult<()>;

    async fn release(&self, system_id: &str, release: &Release) -> ProviderResult<()>;

    async fn abort(&self, system_id: &str, comment: &str) -> ProviderResult<()>;

    async fn power_on(&self, system_id: &str) -> ProviderResult<()>;

    async fn power_off(&self, system_id: &str) -> ProviderResult<()>;

    /// Asks the BMC now. Slow, and it holds one of MAAS's threads meanwhile.
    async fn power_now(&self, system_id: &str) -> ProviderResult<MaasPower>;

    /// Whether something was there to be removed.
    async fn delete(&self, system_id: &str) -> ProviderResult<bool>;

    /// An empty value removes a key. Only the owner may.
    async fn annotate(&self, system_id: &str, annotations: &BTreeMap<String, String>) -> ProviderResult<()>;

    /// Makes the tag where it is missing.
    async fn tag(&self, system_id: &str, tag: &str) -> ProviderResult<()>;

    /// After an event's number, oldest first, at most a page; of some machines, or of all.
    async fn events(&self, after: Option<i64>, level: &str, ids: &[String]) -> ProviderResult<Vec<MaasEvent>>;

    /// Of the last time; empty: there was none.
    async fn results(&self, system_id: &str, kind: ResultKind, output: bool) -> ProviderResult<Vec<ScriptResult>>;

    async fn subnets(&self) -> ProviderResult<Vec<MaasSubnet>>;

    /// The names of what can be deployed, such as `ubuntu/noble`, with their architectures.
    async fn images(&self) -> ProviderResult<Vec<(String, String)>>;

    /// The names of its resource pools. `None`: this client cannot ask.
    async fn pools(&self) -> ProviderResult<Option<Vec<String>>> {
        Ok(None)
    }

    /// The names of its zones. `None`: this client cannot ask.
    async fn zones(&self) -> ProviderResult<Option<Vec<String>>> {
        Ok(None)
    }

    /// Its clock minus ours, as of its last answer. `None`: not known.
    async fn clock_ahead_ms(&self) -> ProviderResult<Option<i64>> {
        Ok(None)
    }
}

/// How a site is reached, with the key that its credential holds by now.
pub async fn access_to(site: &domain::site::Site, keyring: &dyn Keyring) -> ProviderResult<MaasAccess> {
    let key = match keyring.credential(&site.credentials_ref).await? {
        Credential::Maas(key) => key,
        other => {
            let message = format!(
                "credential {:?} of site {} is of kind {}, not maas; set the right one, or name another",
                site.credentials_ref,
                site.name,
                other.kind()
            );
            return Err(ProviderError::credential_missing(message));
        }
    };
    Ok(MaasAccess {
        site: site.name.clone(),
        url: site.url.clone(),
        ca_pem: site.ca_pem.clone(),
        key,
        calls_max: site.policy.calls_max,
    })
}

/// The client of a site.
pub async fn reach(
    site: &domain::site::Site,
    keyring: &dyn Keyring,
    clients: &dyn MaasClients,
) -> ProviderResult<Arc<dyn Maas>> {
    clients.client(&access_to(site, keyring).await?)
}

/// Where no MAAS is configured at all.
pub struct NoMaas;

impl MaasClients for NoMaas {
    fn client(&self, access: &MaasAccess) -> ProviderResult<Arc<dyn Maas>> {
        Err(ProviderError::capability_missing(&format!("site {}", access.site), "a MAAS client"))
    }
}
