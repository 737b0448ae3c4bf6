//! What a site has beside its machines: pools, zones, tags, images, settings; and who asks.

use super::request::{Answer, Call, JSON, Outcome, REQUIRED};
use super::world::{RACK, World};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Image {
    /// `ubuntu/noble`.
    pub name: String,
    /// `amd64`.
    pub architecture: String,
    /// `ga-24.04`.
    pub kernel: String,
    /// `24.04`.
    pub version: String,
}

pub(super) struct Catalogue {
    pub pools: BTreeMap<u64, (String, String)>,
    pub zones: BTreeMap<String, (u64, String)>,
    pub tags: BTreeMap<String, [String; 3]>,
    pub images: Vec<Image>,
    pub config: BTreeMap<String, Value>,
    pool_ids: u64,
    zone_ids: u64,
}

impl Catalogue {
    pub fn standard() -> Self {
        let image = |name: &str, version: &str| Image {
            name: name.to_owned(),
            architecture: "amd64".into(),
            kernel: format!("ga-{version}"),
            version: version.to_owned(),
        };
        let config = [
            ("hardware_sync_interval", json!("15m")),
            ("default_distro_series", json!("noble")),
            ("default_osystem", json!("ubuntu")),
            ("default_storage_layout", json!("flat")),
            ("enable_disk_erasing_on_release", json!(false)),
            ("node_timeout", json!(30)),
            ("maas_name", json!("simulated")),
        ];
        Self {
            pools: BTreeMap::from([(0, ("default".to_owned(), "Default pool".to_owned()))]),
            zones: BTreeMap::from([("default".to_owned(), (1, String::new()))]),
            tags: BTreeMap::new(),
            images: vec![image("ubuntu/jammy", "22.04"), image("ubuntu/noble", "24.04")],
            config: config.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            pool_ids: 0,
            zone_ids: 1,
        }
    }

    pub fn add_pool(&mut self, name: &str, description: &str) -> u64 {
        self.pool_ids += 1;
        self.pools.insert(self.pool_ids, (name.to_owned(), description.to_owned()));
        self.pool_ids
    }

    pub fn add_zone(&mut self, name: &str, description: &str) {
        self.zone_ids += 1;
        self.zones.insert(name.to_owned(), (self.zone_ids, description.to_owned()));
    }

    pub fn pool_by_name(&self, name: &str) -> Option<u64> {
        self.pools.iter().find(|(_, (n, _))| n == name).map(|(id, _)| *id)
    }

    pub fn pool_json(&self, id: u64) -> Value {
        let Some((name, description)) = self.pools.get(&id) else { return Value::Null };
        let uri = format!("/MAAS/api/2.0/resourcepool/{id}/");
        json!({"description": description, "id": id, "name": name, "resource_uri": uri})
    }

    pub fn zone_json(&self, name: &str) -> Value {
        let Some((id, description)) = self.zones.get(name) else { return Value::Null };
        let uri = format!("/MAAS/api/2.0/zones/{name}/");
        json!({"description": description, "id": id, "name": name, "resource_uri": uri})
    }

    fn tag_json(&self, name: &str) -> Value {
        let Some([comment, definition, kernel_opts]) = self.tags.get(name) else { return Value::Null };
        json!({
            "comment": comment, "definition": definition, "kernel_opts": kernel_opts, "name": name,
            "resource_uri": format!("/MAAS/api/2.0/tags/{name}/"),
        })
    }

    /// Architectures as a machine has them.
    pub fn architectures(&self) -> Vec<String> {
        let mut all: Vec<String> = self.images.iter().map(|i| format!("{}/generic", i.architecture)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// `noble`, `ubuntu/noble` or `24.04`; nothing: the default.
    pub fn image(&self, series: &str) -> Option<&Image> {
        let default = self.config.get("default_distro_series").and_then(Value::as_str).unwrap_or_default();
        let series = if series.is_empty() { default } else { series };
        let short = |i: &Image| i.name.split('/').nth(1).unwrap_or_default().to_owned();
        self.images.iter().find(|i| i.name == series || short(i) == series || i.version == series)
    }

    /// In seconds.
    pub fn sync_interval(&self) -> u64 {
        let text = self.config.get("hardware_sync_interval").and_then(Value::as_str).unwrap_or("15m");
        let digits: u64 = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap_or(15);
        match text.chars().last() {
            Some('s') => digits,
            Some('h') => digits * 3600,
            _ => digits * 60,
        }
    }
}

fn named(call: &Call) -> Result<String, Answer> {
    let name = call.get("name").unwrap_or_default();
    if name.is_empty() {
        return Err(Answer::field("name", REQUIRED));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' ' | '.');
    if !name.chars().all(plain) || name.starts_with(' ') {
        return Err(Answer::field("name", "Enter a valid value."));
    }
    Ok(name.to_owned())
}

fn admin(call: &Call) -> Result<(), Answer> {
    if call.admin { Ok(()) } else { Err(Answer::forbidden()) }
}

impl World {
    pub(super) fn pools(&mut self, call: &Call) -> Outcome {
        if call.method == "GET" {
            let all = self.catalogue.pools.keys().map(|id| self.catalogue.pool_json(*id)).collect();
            return Ok(Answer::json(&Value::Array(all)));
        }
        admin(call)?;
        let name = named(call)?;
        if self.catalogue.pool_by_name(&name).is_some() {
            return Err(Answer::field("name", "Resource pool with this Name already exists."));
        }
        let id = self.catalogue.add_pool(&name, call.get("description").unwrap_or_default());
        Ok(Answer::json(&self.catalogue.pool_json(id)))
    }

    pub(super) fn pool(&mut self, call: &Call, id: &str) -> Outcome {
        let id = id.parse().ok().filter(|id| self.catalogue.pools.contains_key(id));
        let Some(id) = id else { return Err(Answer::missing("ResourcePool")) };
        if call.method == "DELETE" {
            admin(call)?;
            if id == 0 {
                return Err(Answer::text(400, "This is the default pool, it cannot be deleted."));
            }
            if self.machines.values().any(|m| m.pool == id) {
                return Err(Answer::text(400, "Pool has machines in it, it cannot be deleted."));
            }
            self.catalogue.pools.remove(&id);
            return Ok(Answer::gone());
        }
        Ok(Answer::json(&self.catalogue.pool_json(id)))
    }

    pub(super) fn zones(&mut self, call: &Call) -> Outcome {
        if call.method == "GET" {
            let all = self.catalogue.zones.keys().map(|name| self.catalogue.zone_json(name)).collect();
            return Ok(Answer::json(&Value::Array(all)));
        }
        admin(call)?;
        let name = named(call)?;
        if self.catalogue.zones.contains_key(&name) {
            return Err(Answer::field("name", "Physical zone with this Name already exists."));
        }
        self.catalogue.add_zone(&name, call.get("description").unwrap_or_default());
        Ok(Answer::json(&self.catalogue.zone_json(&name)))
    }

    /// Machines of a zone that goes move to the default one.
    pub(super) fn zone(&mut self, call: &Call, name: &str) -> Outcome {
        if !self.catalogue.zones.contains_key(name) {
            return Err(Answer::missing("Zone"));
        }
        if call.method == "DELETE" {
            admin(call)?;
            if name == "default" {
                return Err(Answer::text(400, "This zone is the default zone, it cannot be deleted."));
            }
            self.catalogue.zones.remove(name);
            let there: Vec<u64> = self.machines.iter().filter(|(_, m)| m.zone == name).map(|(key, _)| *key).collect();
            for key in there {
                self.touch(key).zone = "default".into();
                self.changed(call, key, "its zone");
            }
            return Ok(Answer::gone());
        }
        Ok(Answer::json(&self.catalogue.zone_json(name)))
    }

    pub(super) fn tags(&mut self, call: &Call) -> Outcome {
        if call.method == "GET" {
            let all = self.catalogue.tags.keys().map(|name| self.catalogue.tag_json(name)).collect();
            return Ok(Answer::json(&Value::Array(all)));
        }
        admin(call)?;
        let name = named(call)?;
        if name.contains([' ', '.']) {
            return Err(Answer::field("name", "Enter a valid value."));
        }
        if self.catalogue.tags.contains_key(&name) {
            return Err(Answer::field("name", "Tag with this Name already exists."));
        }
        let given = |name: &str| call.get(name).unwrap_or_default().to_owned();
        let tag = [given("comment"), given("definition"), given("kernel_opts")];
        self.catalogue.tags.insert(name.clone(), tag);
        Ok(Answer::json(&self.catalogue.tag_json(&name)))
    }

    pub(super) fn tag(&mut self, call: &Call, name: &str) -> Outcome {
        if !self.catalogue.tags.contains_key(name) {
            return Err(Answer::missing("Tag"));
        }
        match (call.method.as_str(), call.op()) {
            ("DELETE", _) => {
                admin(call)?;
                self.catalogue.tags.remove(name);
                for key in self.tagged(name) {
                    self.touch(key).tags.remove(name);
                }
                Ok(Answer::gone())
            }
            ("GET", Some("machines" | "nodes")) => {
                let keys = self.tagged(name);
                Ok(self.list_of(&keys, false))
            }
            (_, Some("update_nodes")) => {
                admin(call)?;
                // ids that nobody has are passed over in silence
                let of = |field: &str| -> Vec<u64> {
                    call.all(field).iter().filter_map(|id| self.by_id.get(*id).copied()).collect()
                };
                let (add, remove) = (of("add"), of("remove"));
                let (mut added, mut removed) = (0, 0);
                for key in add {
                    added += u64::from(self.touch(key).tags.insert(name.to_owned()));
                    self.changed(call, key, "tags");
                }
                for key in remove {
                    removed += u64::from(self.touch(key).tags.remove(name));
                    self.changed(call, key, "tags");
                }
                Ok(Answer::json(&json!({"added": added, "removed": removed})))
            }
            _ => Ok(Answer::json(&self.catalogue.tag_json(name))),
        }
    }

    fn tagged(&self, name: &str) -> Vec<u64> {
        self.machines.iter().filter(|(_, m)| m.tags.contains(name)).map(|(key, _)| *key).collect()
    }

    pub(super) fn subnets(&mut self, id: Option<&str>) -> Outcome {
        let Some(id) = id else {
            let all: Vec<&str> = self.network.subnets.keys().map(|id| self.network.subnet_text(*id)).collect();
            return Ok(Answer::new(200, JSON, format!("[{}]", all.join(", "))));
        };
        match id.parse().map(|id| self.network.subnet_text(id)) {
            Ok(text) if text != "null" => Ok(Answer::new(200, JSON, text)),
            _ => Err(Answer::missing("Subnet")),
        }
    }

    pub(super) fn fabrics(&mut self, call: &Call) -> Outcome {
        if call.method == "GET" {
            let all: Vec<String> = self.network.fabrics.keys().map(|id| self.network.fabric_text(*id)).collect();
            return Ok(Answer::new(200, JSON, format!("[{}]", all.join(", "))));
        }
        admin(call)?;
        let name = named(call)?;
        let vlan = self.network.fabric(&name, false);
        let fabric = self.network.vlans[&vlan].fabric;
        Ok(Answer::new(200, JSON, self.network.fabric_text(fabric)))
    }

    pub(super) fn images(&self) -> Outcome {
        let mut all: Vec<(usize, &Image)> = self.catalogue.images.iter().enumerate().collect();
        all.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        let image = |(number, i): &(usize, &Image)| {
            let id = number + 1;
            json!({
                "architecture": format!("{}/{}", i.architecture, i.kernel), "id": id, "last_deployed": null,
                "name": i.name, "platform": "generic", "resource_uri": format!("/MAAS/api/2.0/boot-resources/{id}/"),
                "subarches": format!("generic,hwe-{0},ga-{0}", i.version), "supported_platforms": "generic",
                "type": "Synced",
            })
        };
        Ok(Answer::json(&Value::Array(all.iter().map(image).collect())))
    }

    pub(super) fn racks(&self) -> Outcome {
        Ok(Answer::json(&json!([{
            "architecture": "amd64/generic", "domain": super::machine::domain_json(), "fqdn": "region-rack.maas",
            "hostname": "region-rack", "interface_set": [], "ip_addresses": [], "node_type": 4,
            "node_type_name": "Region and rack controller", "power_state": "unknown", "power_type": "",
            "resource_uri": format!("/MAAS/api/2.0/rackcontrollers/{RACK}/"), "status_action": null,
            "system_id": RACK, "tag_names": [], "version": "3.7.3", "zone": self.catalogue.zone_json("default"),
        }])))
    }

    pub(super) fn config(&mut self, call: &Call) -> Outcome {
        admin(call)?;
        let name = call.get("name").unwrap_or_default().to_owned();
        let Some(value) = self.catalogue.config.get(&name).cloned() else {
            return Err(Answer::field("name", format!("{name} is not a valid config setting.")));
        };
        if call.op() == Some("set_config") {
            let given = call.get("value").unwrap_or_default();
            let value = serde_json::from_str(given).unwrap_or_else(|_| json!(given));
            self.catalogue.config.insert(name, value);
            return Ok(Answer::bare(200, "OK"));
        }
        Ok(Answer::new(200, "application/json", value.to_string()))
    }

    pub(super) fn whoami(&self, call: &Call) -> Outcome {
        let name = call.account();
        Ok(Answer::json(&json!({
            "email": format!("{name}@example.invalid"), "is_local": true, "is_superuser": call.admin,
            "resource_uri": format!("/MAAS/api/2.0/users/{name}/"), "username": name,
        })))
    }

    pub(super) fn tokens(&self, call: &Call) -> Outcome {
        let own = self.accounts.by_token.values().filter(|a| a.name == call.account());
        let all: Vec<Value> = own.map(|a| json!({"name": "MAAS consumer", "token": a.key()})).collect();
        Ok(Answer::json(&Value::Array(all)))
    }

    pub(super) fn version(&self) -> Outcome {
        Ok(Answer::json(&json!({
            "capabilities": [
                "networks-management", "static-ipaddresses", "ipv6-deployment-ubuntu", "devices-management",
                "storage-deployment-ubuntu", "network-deployment-ubuntu", "bridging-interface-ubuntu",
                "bridging-automatic-ubuntu", "authenticate-api",
            ],
            "subversion": "", "version": "3.7.3",
        })))
    }
}
