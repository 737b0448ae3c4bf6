//! Answers as MAAS 3.7 gives them, cut down to what is read and a little beside it, so that reading passes over the rest.

use domain::Secret;
use domain::mac::MacAddress;
use maas::{Clients, Options};
use provider::{Maas, MaasAccess, MaasClients as _};
use std::sync::Arc;
use std::time::Duration;

pub const ID: &str = "4g4aaq";
pub const MAC: &str = "52:54:00:83:8e:9e";
pub const CONSUMER: &str = "ConsumerKeyOf18Chr";
pub const TOKEN: &str = "TokenKeyOf18Charac";
pub const SECRET: &str = "cnrySecretOfThirtyTwoCharacters1";

pub fn machine() -> String {
    machine_at(6, "Deployed")
}

pub fn machine_at(status: i64, name: &str) -> String {
    format!(
        r#"{{"address_ttl": null, "architecture": "amd64/generic", "bcaches": [], "blockdevice_set": [{{"id": 1, "type": "physical"}}],
        "boot_disk": {{"id": 1, "name": "sda", "partitions": [{{"id": 12, "filesystem": {{"fstype": "ext4"}}}}]}},
        "boot_interface": {{"id": 3, "links": []}}, "cpu_count": 4, "current_testing_result_id": null, "description": "rack 4",
        "distro_series": "noble", "domain": {{"id": 0, "name": "maas"}}, "enable_hw_sync": true, "error_description": "Installation failed",
        "fqdn": "one.maas", "hardware_info": {{"system_serial": "SN-4g4aaq", "cpu_model": "Unknown"}},
        "hardware_uuid": "71bbe021-b592-5d7c-b96d-bc2c32d8912b", "hostname": "one", "hwe_kernel": "ga-24.04",
        "interface_set": [{{"id": 3, "name": "eth0", "mac_address": "{MAC}", "type": "physical", "enabled": true, "link_connected": true,
            "effective_mtu": 1500, "tags": ["pxe"], "vlan": {{"id": 5001, "vid": 0}}, "numa_node": 0,
            "links": [{{"id": 8, "mode": "auto", "ip_address": "10.20.0.2",
                "subnet": {{"id": 1, "name": "pxe", "cidr": "10.20.0.0/24", "vlan": {{"id": 5001}}}}}}, {{"id": 9, "mode": "link_up"}}]}}],
        "ip_addresses": ["10.20.0.2"], "last_sync": "2026-11-15T07:57:39.030Z", "locked": false, "memory": 8192, "netboot": false,
        "next_sync": "2026-11-15T08:12:39.030Z", "numanode_set": [{{"cores": [0, 1]}}], "osystem": "ubuntu", "owner": "admin",
        "owner_data": {{}}, "physicalblockdevice_set": [{{"id": 1, "name": "sda", "path": "/dev/disk/by-dname/sda", "model": "BOSS-N1",
            "serial": "D1", "size": 250000000000, "tags": ["ssd"], "partitions": []}}],
        "pool": {{"id": 0, "name": "default"}}, "power_state": "on", "power_type": "redfish", "status": {status},
        "status_message": null, "status_name": "{name}", "storage": 250000.0, "swap_size": null, "sync_interval": 900,
        "system_id": "{ID}", "tag_names": ["gpu"], "workload_annotations": {{"mw": "1"}}, "zone": {{"id": 1, "name": "az1"}}}}"#
    )
}

/// As it stands before it was ever commissioned: much is null.
pub fn new_machine() -> String {
    format!(
        r#"{{"system_id": "{ID}", "status": 0, "status_name": "New", "status_message": null, "hostname": "one", "fqdn": "one.maas",
        "boot_disk": null, "boot_interface": null, "hardware_uuid": null, "owner": null, "osystem": "", "distro_series": "",
        "last_sync": null, "sync_interval": null, "hardware_info": {{"system_serial": "Unknown"}}, "power_state": "unknown",
        "power_type": "redfish", "interface_set": [{{"id": 3, "mac_address": "{MAC}", "vlan": null, "links": []}}],
        "physicalblockdevice_set": [], "pool": {{"name": "default"}}, "zone": {{"name": "default"}}, "tag_names": [],
        "workload_annotations": {{}}, "ip_addresses": []}}"#
    )
}

pub const WHO: &str = r#"{"email": "a@example.invalid", "is_local": true, "is_superuser": true, "username": "admin"}"#;
pub const VERSION: &str = r#"{"capabilities": ["networks-management"], "version": "3.7.3", "subversion": ""}"#;
pub const NOT_THERE: &str = "No Machine matches the given query.";
pub const STATE_REFUSAL: &str =
    r#"{"__all__": ["Commission is not available because of the current state of the node."]}"#;

pub fn mac() -> MacAddress {
    MacAddress::parse("52-54-00-83-8E-9E").expect("a MAC")
}

/// Long enough for a busy machine.
pub fn options() -> Options {
    Options { pause: Duration::from_millis(5), ..Options::default() }
}

/// For whoever will not answer.
pub fn impatient() -> Options {
    let second = Duration::from_secs(1);
    Options { read: second, change: second, ..options() }
}

pub fn access(site: &str, url: &str) -> MaasAccess {
    MaasAccess {
        site: site.to_owned(),
        url: url.to_owned(),
        ca_pem: String::new(),
        key: Secret::new(format!("{CONSUMER}:{TOKEN}:{SECRET}")),
        calls_max: 4,
    }
}

pub fn client(url: &str) -> Arc<dyn Maas> {
    Clients::new(options()).client(&access("oslo", url)).expect("a client")
}

/// Everything that must be in no message.
#[track_caller]
pub fn assert_no_secret(text: &str, others: &[&str]) {
    for secret in [CONSUMER, TOKEN, SECRET].iter().chain(others) {
        assert!(!text.contains(secret), "{secret} is in: {text}");
    }
}
