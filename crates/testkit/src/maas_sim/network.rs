//! Fabrics, VLANs, subnets with their addresses, and the interfaces of machines with their links.

use super::hardware::PXE_VLAN;
use super::machine::Machine;
use super::request::{Answer, Call, FormErrors, JSON, Outcome, REQUIRED, not_one_of, with_raw};
use super::status;
use super::world::World;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

#[derive(Clone, Debug)]
pub(super) struct Vlan {
    pub fabric: u64,
    pub mtu: u32,
    text: String,
}

#[derive(Clone, Debug)]
pub(super) struct Subnet {
    pub id: u64,
    pub name: String,
    pub cidr: String,
    pub vlan: u64,
    pub gateway: Ipv4Addr,
    text: String,
    first: u32,
    last: u32,
    /// Leased to machines that boot from the network.
    dynamic: (u32, u32),
    next: u32,
    next_lease: u32,
    freed: BTreeSet<u32>,
    taken: BTreeSet<u32>,
}

impl Subnet {
    /// Addresses .100 to .199 of the first 256 are leased.
    fn new(id: u64, name: &str, cidr: &str, vlan: u64) -> Self {
        let (net, bits) = cidr.split_once('/').unwrap_or((cidr, "24"));
        let net = net.parse().map_or(0, Ipv4Addr::to_bits);
        let size = 1u32.checked_shl(32 - bits.parse::<u32>().unwrap_or(24).clamp(1, 32)).unwrap_or(u32::MAX);
        Self {
            id,
            name: name.to_owned(),
            cidr: cidr.to_owned(),
            vlan,
            gateway: Ipv4Addr::from_bits(net + 1),
            text: String::new(),
            first: net + 2,
            last: net + size.saturating_sub(2),
            dynamic: (net + 100, net + 199),
            next: net + 2,
            next_lease: net + 100,
            freed: BTreeSet::new(),
            taken: BTreeSet::new(),
        }
    }

    /// Leaves only so many addresses to claim.
    pub fn leave(&mut self, free: u32) {
        self.last = self.next.saturating_add(free).saturating_sub(1);
        self.freed.clear();
    }

    fn usable(&self, address: u32) -> bool {
        address <= self.last && !(self.dynamic.0..=self.dynamic.1).contains(&address) && !self.taken.contains(&address)
    }

    pub fn claim(&mut self) -> Option<String> {
        let freed = self.freed.first().copied().filter(|a| self.usable(*a));
        let address = match freed {
            Some(address) => {
                self.freed.remove(&address);
                address
            }
            None => {
                while self.next <= self.last && !self.usable(self.next) {
                    self.next += 1;
                }
                if self.next > self.last {
                    return None;
                }
                self.next += 1;
                self.next - 1
            }
        };
        self.taken.insert(address);
        Some(Ipv4Addr::from_bits(address).to_string())
    }

    pub fn has_free(&self) -> bool {
        self.freed.iter().any(|a| self.usable(*a)) || (self.next..=self.last).any(|a| self.usable(a))
    }

    fn take(&mut self, address: &str) -> bool {
        let Ok(ip) = address.parse::<Ipv4Addr>() else { return false };
        let ip = ip.to_bits();
        (self.first..=self.last).contains(&ip) && self.taken.insert(ip)
    }

    pub fn give_back(&mut self, address: &str) {
        if let Ok(ip) = address.parse::<Ipv4Addr>()
            && self.taken.remove(&ip.to_bits())
            && ip.to_bits() < self.next
        {
            self.freed.insert(ip.to_bits());
        }
    }

    pub fn lease(&mut self) -> String {
        let address = self.next_lease;
        self.next_lease = if address >= self.dynamic.1 { self.dynamic.0 } else { address + 1 };
        Ipv4Addr::from_bits(address).to_string()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub id: u64,
    pub mode: String,
    pub subnet: Option<u64>,
    pub address: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Nic {
    pub id: u64,
    pub name: String,
    pub mac: String,
    pub vlan: Option<u64>,
    pub links: Vec<Link>,
    /// What it was leased when it booted last.
    pub discovered: Option<(u64, String)>,
    pub speed: u32,
    pub mtu: Option<u32>,
    pub tags: Vec<String>,
    /// Found by commissioning, and not only told.
    pub found: bool,
}

#[derive(Default)]
pub(super) struct Network {
    pub fabrics: BTreeMap<u64, String>,
    pub vlans: BTreeMap<u64, Vlan>,
    pub subnets: BTreeMap<u64, Subnet>,
    links: u64,
}

impl Network {
    pub fn standard() -> Self {
        let mut network = Self { links: 2, ..Self::default() };
        network.fabric("fabric-0", true);
        network.subnet("pxe", "10.20.0.0/24", PXE_VLAN);
        network
    }

    /// With an untagged VLAN of its own; the VLAN's number.
    pub fn fabric(&mut self, name: &str, dhcp: bool) -> u64 {
        let fabric = self.fabrics.len() as u64;
        self.fabrics.insert(fabric, name.to_owned());
        let id = PXE_VLAN + self.vlans.len() as u64;
        let rack = if dhcp { json!(super::world::RACK) } else { Value::Null };
        let text = json!({
            "dhcp_on": dhcp, "external_dhcp": null, "fabric": name, "fabric_id": fabric, "id": id, "mtu": 1500,
            "name": "untagged", "primary_rack": rack, "relay_vlan": null,
            "resource_uri": format!("/MAAS/api/2.0/vlans/{id}/"), "secondary_rack": null, "space": "undefined", "vid": 0,
        });
        self.vlans.insert(id, Vlan { fabric, mtu: 1500, text: text.to_string() });
        id
    }

    pub fn subnet(&mut self, name: &str, cidr: &str, vlan: u64) -> u64 {
        let id = self.subnets.len() as u64 + 1;
        self.put_subnet(id, name, cidr, vlan);
        id
    }

    pub fn put_subnet(&mut self, id: u64, name: &str, cidr: &str, vlan: u64) {
        let mut subnet = Subnet::new(id, name, cidr, vlan);
        let gateway = subnet.gateway.to_string();
        let value = json!({
            "active_discovery": false, "allow_dns": true, "allow_proxy": true, "cidr": cidr, "description": "",
            "disabled_boot_architectures": [], "dns_servers": [gateway], "gateway_ip": gateway, "id": id,
            "managed": true, "name": name, "rdns_mode": 2, "resource_uri": format!("/MAAS/api/2.0/subnets/{id}/"),
            "space": "undefined",
        });
        subnet.text = with_raw(&value, &[("vlan", self.vlan_text(vlan))]);
        self.subnets.insert(id, subnet);
    }

    pub fn on_vlan(&self, vlan: u64) -> Option<u64> {
        self.subnets.values().find(|s| s.vlan == vlan).map(|s| s.id)
    }

    pub fn link(&mut self, mode: &str, subnet: Option<u64>, address: Option<String>) -> Link {
        self.links += 1;
        Link { id: self.links, mode: mode.to_owned(), subnet, address }
    }

    /// Written once: what they hold does not change.
    pub fn vlan_text(&self, id: u64) -> &str {
        self.vlans.get(&id).map_or("null", |vlan| &vlan.text)
    }

    pub fn subnet_text(&self, id: u64) -> &str {
        self.subnets.get(&id).map_or("null", |subnet| &subnet.text)
    }

    pub fn fabric_text(&self, id: u64) -> String {
        let vlans: Vec<&str> = self.vlans.values().filter(|v| v.fabric == id).map(|v| v.text.as_str()).collect();
        let uri = format!("/MAAS/api/2.0/fabrics/{id}/");
        let value = json!({"class_type": null, "id": id, "name": self.fabrics.get(&id), "resource_uri": uri});
        with_raw(&value, &[("vlans", &format!("[{}]", vlans.join(", ")))])
    }

    pub fn nic_text(&self, nic: &Nic, system_id: &str) -> String {
        let link = |link: &Link| {
            let mut value = json!({"id": link.id, "mode": link.mode});
            if let Some(address) = &link.address {
                value["ip_address"] = json!(address);
            }
            match link.subnet {
                Some(subnet) => with_raw(&value, &[("subnet", self.subnet_text(subnet))]),
                None => value.to_string(),
            }
        };
        let links: Vec<String> = nic.links.iter().map(link).collect();
        let discovered = nic.discovered.as_ref().map_or("null".to_owned(), |(subnet, address)| {
            format!("[{{\"ip_address\": \"{address}\", \"subnet\": {}}}]", self.subnet_text(*subnet))
        });
        let params = nic.mtu.map_or(json!({}), |mtu| json!({"mtu": mtu}));
        let found = |text: &str| if nic.found { json!(text) } else { Value::Null };
        let mtu = nic.mtu.or_else(|| self.vlans.get(&nic.vlan?).map(|v| v.mtu)).unwrap_or(1500);
        let value = json!({
            "children": [], "effective_mtu": mtu, "enabled": true, "firmware_version": found("1.63, 0x800009fa"),
            "id": nic.id, "interface_speed": nic.speed, "link_connected": true, "link_speed": nic.speed,
            "mac_address": nic.mac, "name": nic.name, "numa_node": 0, "params": params, "parents": [],
            "product": found("My Gigabit Network Connection"),
            "resource_uri": format!("/MAAS/api/2.0/nodes/{system_id}/interfaces/{}/", nic.id), "sriov_max_vf": 0,
            "system_id": system_id, "tags": nic.tags, "type": "physical", "vendor": found("My Corporation"),
        });
        let links = format!("[{}]", links.join(", "));
        let vlan = nic.vlan.map_or("null", |vlan| self.vlan_text(vlan));
        with_raw(&value, &[("discovered", &discovered), ("links", &links), ("vlan", vlan)])
    }

    pub fn give_back(&mut self, link: &Link) {
        if let (Some(subnet), Some(address)) = (link.subnet, &link.address)
            && let Some(subnet) = self.subnets.get_mut(&subnet)
        {
            subnet.give_back(address);
        }
    }

    /// By number, `cidr:…` or `name:…`.
    fn find(&self, spec: &str) -> Option<u64> {
        let by = |fits: &dyn Fn(&Subnet) -> bool| self.subnets.values().find(|s| fits(s)).map(|s| s.id);
        match spec.split_once(':') {
            Some(("cidr", cidr)) => by(&|s| s.cidr == cidr),
            Some(("name", name)) => by(&|s| s.name == name),
            _ => by(&|s| s.id.to_string() == spec || s.cidr == spec || s.name == spec),
        }
    }
}

fn position(machine: &Machine, id: &str) -> Option<usize> {
    machine.interfaces.iter().position(|nic| nic.id.to_string() == id || nic.name == id)
}

impl World {
    pub(super) fn interfaces(&self, key: u64) -> Outcome {
        let machine = &self.machines[&key];
        let all: Vec<String> =
            machine.interfaces.iter().map(|n| self.network.nic_text(n, &machine.system_id)).collect();
        Ok(Answer::new(200, JSON, format!("[{}]", all.join(", "))))
    }

    pub(super) fn interface(&mut self, call: &Call, key: u64, id: &str) -> Outcome {
        let Some(at) = position(&self.machines[&key], id) else { return Err(Answer::missing("Interface")) };
        let doing = match (call.method.as_str(), call.op()) {
            ("GET", _) => "",
            ("PUT", _) => "update interface",
            (_, Some("link_subnet")) => "link subnet interface",
            (_, Some("unlink_subnet")) => "unlink subnet interface",
            (_, Some("disconnect")) => "disconnect interface",
            _ => "change interface",
        };
        if !doing.is_empty() {
            self.editable(call, key)?;
            if !status::may_edit_network(self.machines[&key].status) {
                let why = "because the machine is not New, Ready, Allocated, or Broken.";
                return Err(Answer::text(409, format!("Cannot {doing} {why}")));
            }
        }
        match (call.method.as_str(), call.op()) {
            ("PUT", _) => self.put_interface(call, key, at)?,
            (_, Some("link_subnet")) => self.link_subnet(call, key, at)?,
            (_, Some("unlink_subnet")) => {
                let id = call.get("id").unwrap_or_default();
                let links = &self.machines[&key].interfaces[at].links;
                let Some(link) = links.iter().position(|l| l.id.to_string() == id) else {
                    return Err(Answer::field(
                        "id",
                        "Select a valid choice. That choice is not one of the available choices.",
                    ));
                };
                let link = self.touch(key).interfaces[at].links.remove(link);
                self.network.give_back(&link);
                self.changed(call, key, "links");
            }
            (_, Some("disconnect")) => {
                self.drop_links(key, at);
                let nic = &mut self.touch(key).interfaces[at];
                nic.vlan = None;
                nic.discovered = None;
                self.changed(call, key, "links");
            }
            (_, Some(op @ ("add_tag" | "remove_tag"))) => {
                let tag = call.get("tag").unwrap_or_default().to_owned();
                let nic = &mut self.touch(key).interfaces[at];
                nic.tags.retain(|t| *t != tag);
                if op == "add_tag" {
                    nic.tags.push(tag);
                }
            }
            // a read, or the default gateway, which nobody looks at here
            _ => {}
        }
        let machine = &self.machines[&key];
        Ok(Answer::new(200, JSON, self.network.nic_text(&machine.interfaces[at], &machine.system_id)))
    }

    pub(super) fn drop_links(&mut self, key: u64, at: usize) {
        for link in std::mem::take(&mut self.touch(key).interfaces[at].links) {
            self.network.give_back(&link);
        }
    }

    fn put_interface(&mut self, call: &Call, key: u64, at: usize) -> Result<(), Answer> {
        if let Some(vlan) = call.get("vlan") {
            let vlan = vlan.parse().ok().filter(|v| self.network.vlans.contains_key(v));
            let Some(vlan) = vlan else {
                let text = "Select a valid choice. That choice is not one of the available choices.";
                return Err(Answer::field("vlan", text));
            };
            if self.machines[&key].interfaces[at].vlan != Some(vlan) {
                self.drop_links(key, at);
                self.touch(key).interfaces[at].vlan = Some(vlan);
            }
        }
        if let Some(mtu) = call.get("mtu") {
            let mtu = mtu.parse().ok().filter(|mtu| (552..=65535).contains(mtu));
            let Some(mtu) = mtu else { return Err(Answer::field("mtu", "Enter a whole number.")) };
            self.touch(key).interfaces[at].mtu = Some(mtu);
        }
        if let Some(name) = call.get("name").filter(|n| !n.is_empty()) {
            self.touch(key).interfaces[at].name = name.to_owned();
        }
        self.changed(call, key, "an interface");
        Ok(())
    }

    fn link_subnet(&mut self, call: &Call, key: u64, at: usize) -> Result<(), Answer> {
        let force = call.boolean("force").unwrap_or(false);
        let mode = call.get("mode").unwrap_or_default().to_ascii_lowercase();
        let mut errors = FormErrors::default();
        if mode.is_empty() {
            errors.add("mode", REQUIRED);
        } else if !["auto", "dhcp", "static", "link_up"].contains(&mode.as_str()) {
            errors.add("mode", not_one_of(&mode, "mode", &["auto", "dhcp", "static", "link_up"]));
        }
        let vlan = self.machines[&key].interfaces[at].vlan;
        let asked = call.get("subnet").filter(|s| !s.is_empty());
        let mut subnet = asked.and_then(|spec| self.network.find(spec));
        if !force && subnet.is_some_and(|s| vlan != Some(self.network.subnets[&s].vlan)) {
            subnet = None;
        }
        if let (Some(asked), None) = (asked, subnet) {
            errors.add("subnet", format!("None found with id={asked}."));
        }
        if subnet.is_none() && matches!(mode.as_str(), "auto" | "static") {
            errors.add("subnet", REQUIRED);
        }
        errors.check()?;
        if force {
            self.drop_links(key, at);
            if let Some(subnet) = subnet {
                let vlan = self.network.subnets[&subnet].vlan;
                self.touch(key).interfaces[at].vlan = Some(vlan);
            }
        }
        let mut address = None;
        if mode == "static"
            && let Some(subnet) = subnet.and_then(|s| self.network.subnets.get_mut(&s))
        {
            address = match call.get("ip_address").filter(|a| !a.is_empty()) {
                Some(asked) if subnet.take(asked) => Some(asked.to_owned()),
                Some(_) => return Err(Answer::field("ip_address", "IP address is already in use.")),
                None => subnet.claim(),
            };
        }
        let link = self.network.link(&mode, subnet, address);
        // a link of the same kind to the same subnet is simply another one
        self.touch(key).interfaces[at].links.push(link);
        self.changed(call, key, "links");
        Ok(())
    }

    /// The subnets of which an address is still to be claimed.
    pub(super) fn unclaimed(&self, key: u64) -> Vec<u64> {
        let links = self.machines[&key].interfaces.iter().flat_map(|nic| &nic.links);
        links.filter(|l| l.mode == "auto" && l.address.is_none()).filter_map(|l| l.subnet).collect()
    }

    /// Claims them; `false`: one has none left.
    pub(super) fn claim_addresses(&mut self, key: u64) -> bool {
        let network = &mut self.network;
        let Some(machine) = self.machines.get_mut(&key) else { return false };
        machine.json = None;
        for link in machine.interfaces.iter_mut().flat_map(|nic| &mut nic.links) {
            if link.mode == "auto" && link.address.is_none() {
                let subnet = link.subnet.and_then(|s| network.subnets.get_mut(&s));
                match subnet.and_then(Subnet::claim) {
                    Some(address) => link.address = Some(address),
                    None => return false,
                }
            }
        }
        true
    }

    /// Those that were claimed for a deployment go back; others stay.
    pub(super) fn free_addresses(&mut self, key: u64) {
        let network = &mut self.network;
        let Some(machine) = self.machines.get_mut(&key) else { return };
        machine.json = None;
        for link in machine.interfaces.iter_mut().flat_map(|nic| &mut nic.links).filter(|l| l.mode == "auto") {
            network.give_back(link);
            link.address = None;
        }
    }
}
