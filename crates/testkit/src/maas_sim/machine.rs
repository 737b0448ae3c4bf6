//! A machine as MAAS has it on record, and how it is written.

use super::clock::{self, Millis};
use super::network::Nic;
use super::progress::Step;
use super::request::{Answer, Outcome, with_raw};
use super::status;
use super::storage::{Disk, Volume};
use super::world::World;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, LazyLock};

/// What commissioning has found.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub serial: String,
    pub cpu_count: u32,
    pub memory: u64,
    /// As it is written.
    text: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sync {
    pub enabled: bool,
    pub interval: Option<u64>,
    pub last: Option<Millis>,
    /// It is set up on the machine, and comes.
    pub comes: bool,
    pub loses_links: bool,
    /// How often it came since it was deployed.
    pub times: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub system_id: String,
    pub hostname: String,
    pub description: String,
    pub architecture: String,
    pub min_hwe_kernel: String,
    pub status: u8,
    /// Before it was tested, rescued or broken.
    pub before: u8,
    pub owner: Option<String>,
    pub power_type: String,
    pub power_parameters: BTreeMap<String, String>,
    pub power_state: &'static str,
    pub osystem: String,
    pub distro_series: String,
    pub hwe_kernel: Option<String>,
    pub netboot: bool,
    pub ephemeral: bool,
    pub sync: Sync,
    pub locked: bool,
    pub error_description: String,
    pub agent_name: String,
    pub annotations: BTreeMap<String, String>,
    pub pool: u64,
    pub zone: String,
    pub tags: BTreeSet<String>,
    pub uuid: Option<String>,
    pub facts: Option<Facts>,
    pub interfaces: Vec<Nic>,
    pub disks: Vec<Disk>,
    pub volumes: Vec<Volume>,
    pub boot_disk: Option<u64>,
    pub specials: Vec<(String, String)>,
    pub user_data: String,
    /// Sets of script results, and how the last of each stands.
    pub commissioning: Option<u64>,
    pub testing: Option<u64>,
    pub installation: Option<u64>,
    pub releasing: Option<u64>,
    pub sets: Vec<u64>,
    pub commissioning_status: i64,
    pub testing_status: i64,
    /// The newest event that counts: its type, its description, its action.
    pub newest: Option<(&'static str, String, &'static str)>,
    pub events: Vec<u64>,
    /// What is still to come, and when the first of it is due.
    pub plan: VecDeque<Step>,
    pub due: Option<(Millis, u64)>,
    pub sync_due: Option<(Millis, u64)>,
    /// As it was written last; `None`: it has changed since.
    pub json: Option<Arc<[u8]>>,
}

impl Machine {
    pub fn macs(&self) -> Vec<String> {
        self.interfaces.iter().map(|nic| nic.mac.clone()).collect()
    }

    pub fn serial(&self) -> String {
        self.facts.as_ref().map(|f| f.serial.clone()).unwrap_or_default()
    }

    /// Those that were claimed; without any, those that were leased.
    pub fn addresses(&self) -> Vec<&str> {
        let links = self.interfaces.iter().flat_map(|nic| &nic.links);
        let claimed: Vec<&str> = links.filter_map(|l| l.address.as_deref()).collect();
        if claimed.is_empty() {
            return self.interfaces.iter().filter_map(|nic| nic.discovered.as_ref()).map(|(_, a)| a.as_str()).collect();
        }
        claimed
    }

    /// What was deployed is on record no more.
    pub fn strip(&mut self) {
        self.osystem.clear();
        self.distro_series.clear();
        self.hwe_kernel = None;
        self.sync = Sync::default();
        self.netboot = true;
        self.ephemeral = false;
        self.agent_name.clear();
        self.user_data.clear();
    }

    pub fn storage_mb(&self) -> f64 {
        self.disks.iter().map(|d| d.size).sum::<u64>() as f64 / 1e6
    }
}

/// Before commissioning.
static NOTHING_KNOWN: LazyLock<String> = LazyLock::new(|| hardware_info(None).to_string());

/// What never changes here.
static ALWAYS: LazyLock<String> = LazyLock::new(|| {
    let tests = ["cpu", "interface", "memory", "network", "other"];
    let mut value = json!({
        "address_ttl": null, "bcaches": [], "bios_boot_method": null, "cache_sets": [], "cpu_speed": 0,
        "disable_ipv4": false, "domain": domain_json(), "enable_kernel_crash_dump": false, "is_dpu": false,
        "node_type": 0, "node_type_name": "Machine", "parent": null, "pod": null, "raids": [], "swap_size": null,
        "virtualmachine_id": null, "volume_groups": [],
    });
    for test in tests {
        value[format!("{test}_test_status")] = json!(-1);
        value[format!("{test}_test_status_name")] = json!("Unknown");
    }
    value.to_string()
});

impl Facts {
    pub fn new(vendor: &str, product: &str, serial: &str, cpu_count: u32, memory: u64) -> Self {
        let text = hardware_info(Some([vendor, product, serial])).to_string();
        Self { serial: serial.to_owned(), cpu_count, memory, text }
    }
}

fn hardware_info(facts: Option<[&str; 3]>) -> Value {
    let unknown = "Unknown";
    let known = |text: &'static str| if facts.is_some() { text } else { unknown };
    let [vendor, product, serial] = facts.unwrap_or([unknown; 3]);
    json!({
        "chassis_serial": unknown, "chassis_type": known("Desktop"), "chassis_vendor": vendor,
        "chassis_version": unknown, "cpu_model": unknown, "mainboard_firmware_date": known("01/01/2026"),
        "mainboard_firmware_vendor": vendor, "mainboard_firmware_version": known("1.0"),
        "mainboard_product": known("Board"), "mainboard_serial": unknown, "mainboard_vendor": vendor,
        "mainboard_version": unknown, "system_family": unknown, "system_product": product,
        "system_serial": serial, "system_sku": unknown, "system_vendor": vendor, "system_version": known("1"),
    })
}

pub(super) fn domain_json() -> Value {
    json!({
        "authoritative": true, "id": 0, "is_default": true, "name": "maas", "resource_record_count": 0,
        "resource_uri": "/MAAS/api/2.0/domains/0/", "ttl": null,
    })
}

impl World {
    /// The answer that most calls give: the machine, whole.
    pub(super) fn whole(&mut self, key: u64) -> Outcome {
        let json = self.written(key);
        let mut answer = Answer::new(200, super::request::JSON, json.to_vec());
        answer.told = super::log::Told::Machines(vec![self.machines[&key].system_id.clone()]);
        Ok(answer)
    }

    /// As JSON; written once for every change.
    pub(super) fn written(&mut self, key: u64) -> Arc<[u8]> {
        if let Some(json) = &self.machines[&key].json {
            return json.clone();
        }
        let json: Arc<[u8]> = self.machine_text(key).into_bytes().into();
        if let Some(machine) = self.machines.get_mut(&key) {
            machine.json = Some(json.clone());
        }
        json
    }

    fn machine_text(&self, key: u64) -> String {
        let m = &self.machines[&key];
        let nics: Vec<String> = m.interfaces.iter().map(|n| self.network.nic_text(n, &m.system_id)).collect();
        let (disks, volumes) = (m.disk_texts(), m.volume_texts());
        let boot_disk = m.disks.iter().position(|d| Some(d.id) == m.boot_disk).map_or("null", |at| &disks[at]);
        let (disk_list, volume_list) = (disks.join(", "), volumes.join(", "));
        let both = if volumes.is_empty() { disk_list.clone() } else { format!("{disk_list}, {volume_list}") };
        let gateway = m.interfaces.iter().flat_map(|n| &n.links).find_map(|l| l.subnet);
        let gateway = gateway.and_then(|s| self.network.subnets.get(&s)).map(|s| s.gateway.to_string());
        let (message, action) = match &m.newest {
            None => (Value::Null, Value::Null),
            Some((kind, description, action)) if description.is_empty() => (json!(kind), json!(action)),
            Some((kind, description, action)) => (json!(format!("{kind} - {description}")), json!(action)),
        };
        let cores: Vec<u32> = (0..m.facts.as_ref().map_or(0, |f| f.cpu_count)).collect();
        let memory = m.facts.as_ref().map_or(0, |f| f.memory);
        let next_sync = m.sync.last.zip(m.sync.interval).map(|(last, interval)| clock::rfc3339(last + interval * 1000));
        let specials: Vec<Value> =
            m.specials.iter().map(|(t, at)| json!({"fstype": t, "mount_point": at, "mount_options": null})).collect();
        let testing = status::script_status(m.testing_status);
        let value = json!({
            "architecture": m.architecture, "commissioning_status": m.commissioning_status,
            "commissioning_status_name": status::script_status(m.commissioning_status), "cpu_count": cores.len(),
            "current_commissioning_result_id": m.commissioning, "current_installation_result_id": m.installation,
            "current_testing_result_id": m.testing,
            "default_gateways": {
                "ipv4": {"gateway_ip": gateway, "link_id": null}, "ipv6": {"gateway_ip": null, "link_id": null},
            },
            "description": m.description, "distro_series": m.distro_series, "enable_hw_sync": m.sync.enabled,
            "ephemeral_deploy": m.ephemeral, "error_description": m.error_description,
            "fqdn": format!("{}.maas", m.hostname), "hardware_uuid": m.uuid, "hostname": m.hostname,
            "hwe_kernel": m.hwe_kernel, "ip_addresses": m.addresses(), "last_sync": m.sync.last.map(clock::rfc3339),
            "locked": m.locked, "memory": memory, "min_hwe_kernel": m.min_hwe_kernel, "netboot": m.netboot,
            "next_sync": next_sync,
            "numanode_set": [{"cores": cores, "hugepages_set": [], "index": 0, "memory": memory}],
        });
        let rest = json!({
            "osystem": m.osystem, "owner": m.owner, "owner_data": m.annotations,
            "pool": self.catalogue.pool_json(m.pool), "power_state": m.power_state, "power_type": m.power_type,
            "resource_uri": format!("/MAAS/api/2.0/machines/{}/", m.system_id), "special_filesystems": specials,
            "status": m.status, "status_action": action, "status_message": message,
            "status_name": status::name(m.status), "storage": m.storage_mb(), "storage_test_status": m.testing_status,
            "storage_test_status_name": testing, "sync_interval": m.sync.interval, "system_id": m.system_id,
            "tag_names": m.tags, "testing_status": m.testing_status, "testing_status_name": testing,
            "workload_annotations": m.annotations, "zone": self.catalogue.zone_json(&m.zone),
        });
        let list = |text: &str| format!("[{text}]");
        let mut text = with_raw(
            &value,
            &[
                ("blockdevice_set", &list(&both)),
                ("boot_disk", boot_disk),
                ("boot_interface", nics.first().map_or("null", String::as_str)),
                ("hardware_info", m.facts.as_ref().map_or(NOTHING_KNOWN.as_str(), |f| &f.text)),
                ("interface_set", &list(&nics.join(", "))),
                ("physicalblockdevice_set", &list(&disk_list)),
                ("virtualblockdevice_set", &list(&volume_list)),
            ],
        );
        for part in [&rest.to_string(), ALWAYS.as_str()] {
            text.pop();
            text.push(',');
            text.push_str(&part[1..]);
        }
        text
    }

    /// To look into.
    pub(super) fn machine_json(&self, key: u64) -> Value {
        serde_json::from_str(&self.machine_text(key)).unwrap_or_default()
    }
}
