//! Records of machines: finding, making, changing and removing them.

use super::log::{Kind, Told};
use super::machine::Machine;
use super::network::Nic;
use super::request::{Answer, Call, FormErrors, JSON, Outcome, REQUIRED, no_such_choice, not_one_of};
use super::status;
use super::world::World;
use serde_json::{Value, json};

const FILTERS: [&str; 9] = ["mac_address", "hostname", "id", "status", "zone", "pool", "domain", "agent_name", "tags"];
const POWER_TYPES: [&str; 6] = ["manual", "redfish", "ipmi", "webhook", "virsh", "lxd"];

/// As MAAS checks them: any spelling is one, and only one spelling is found.
fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    parts.len() == 6 && parts.iter().all(|p| p.len() == 2 && p.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Fields of a power driver: those it needs, those it takes.
fn power_fields(kind: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        "redfish" => (&["power_address", "power_user", "power_pass"], &["node_id"]),
        "ipmi" => (
            &["power_address"],
            &[
                "power_driver",
                "power_boot_type",
                "power_user",
                "power_pass",
                "k_g",
                "cipher_suite_id",
                "privilege_level",
                "workaround_flags",
                "mac_address",
            ],
        ),
        "webhook" => (
            &["power_on_uri", "power_off_uri", "power_query_uri", "power_on_regex", "power_off_regex"],
            &["power_user", "power_pass", "power_token", "power_verify_ssl"],
        ),
        "virsh" => (&["power_address", "power_id"], &["power_pass"]),
        "lxd" => (&["power_address", "instance_name"], &["project", "password", "certificate", "key"]),
        _ => (&[], &[]),
    }
}

impl World {
    pub(super) fn list(&mut self, call: &Call) -> Outcome {
        let mut errors = FormErrors::default();
        for (name, _) in call.query.iter().filter(|(name, _)| name != "op") {
            if !FILTERS.contains(&name.as_str()) {
                errors.add(name, "No such constraint.");
            }
        }
        for mac in call.all("mac_address").into_iter().filter(|mac| !is_mac(mac)) {
            errors.add("mac_address", format!("'{mac}' is not a valid MAC address."));
        }
        let mut statuses = Vec::new();
        for word in call.all("status") {
            match status::by_word(word) {
                Some(number) => statuses.push(number),
                None => errors.add("status", no_such_choice(word)),
            }
        }
        let pools: Vec<Option<u64>> = call.all("pool").iter().map(|p| self.catalogue.pool_by_name(p)).collect();
        let unknown = |names: Vec<&str>, known: &dyn Fn(&str) -> bool| {
            names.into_iter().filter(|name| !known(name)).map(str::to_owned).collect::<Vec<String>>()
        };
        let strange = unknown(call.all("pool"), &|p| self.catalogue.pool_by_name(p).is_some());
        if !strange.is_empty() {
            errors.add("pool", format!("No such pool(s): {}.", strange.join(", ")));
        }
        let strange = unknown(call.all("zone"), &|z| self.catalogue.zones.contains_key(z));
        if !strange.is_empty() {
            errors.add("zone", format!("No such zone(s): {}.", strange.join(", ")));
        }
        let strange = unknown(call.all("tags"), &|t| self.catalogue.tags.contains_key(t));
        if !strange.is_empty() {
            let quoted: Vec<String> = strange.iter().map(|t| format!("'{t}'")).collect();
            errors.add("tags", format!("No such tag(s): {}.", quoted.join(", ")));
        }
        errors.check()?;
        for mac in call.all("mac_address") {
            let plain = mac.to_ascii_lowercase().replace('-', ":");
            if plain != mac && self.by_mac.contains_key(&plain) {
                self.trap(call, "", format!("looked for {mac}, which is stored as {plain}"));
            }
        }
        let (macs, names, ids) = (call.all("mac_address"), call.all("hostname"), call.all("id"));
        // the narrowest index first: only a list of everything looks at everything
        let mut keys: Vec<u64> = if !ids.is_empty() {
            ids.iter().filter_map(|id| self.by_id.get(*id).copied()).collect()
        } else if !macs.is_empty() {
            macs.iter().filter_map(|mac| self.by_mac.get(*mac)).flatten().copied().collect()
        } else if !names.is_empty() {
            names.iter().filter_map(|name| self.by_name.get(*name).copied()).collect()
        } else {
            self.machines.keys().copied().collect()
        };
        let any = |wanted: &[&str], fits: &dyn Fn(&str) -> bool| wanted.is_empty() || wanted.iter().any(|w| fits(w));
        let all_tags = call.all("tags");
        let filtered = call.query.iter().any(|(name, _)| name != "op");
        if filtered {
            keys.sort_unstable();
            keys.dedup();
            keys.retain(|key| {
                let m = &self.machines[key];
                any(&macs, &|mac| m.interfaces.iter().any(|nic| nic.mac == mac))
                    && any(&names, &|name| m.hostname == name)
                    && (statuses.is_empty() || statuses.contains(&m.status))
                    && (pools.is_empty() || pools.contains(&Some(m.pool)))
                    && any(&call.all("zone"), &|zone| m.zone == zone)
                    && any(&call.all("domain"), &|domain| domain == "maas")
                    && any(&call.all("agent_name"), &|agent| m.agent_name == agent)
                    && all_tags.iter().all(|tag| m.tags.contains(*tag))
            });
        }
        Ok(self.list_of(&keys, !filtered))
    }

    pub(super) fn list_of(&mut self, keys: &[u64], everything: bool) -> Answer {
        let mut body = Vec::with_capacity(2 + keys.len() * 10_500);
        body.push(b'[');
        for (number, key) in keys.iter().enumerate() {
            if number > 0 {
                body.extend_from_slice(b", ");
            }
            let json = self.written(*key);
            body.extend_from_slice(&json);
        }
        body.push(b']');
        let mut answer = Answer::new(200, JSON, body);
        answer.told = match everything {
            true => Told::Everything,
            false => Told::Machines(keys.iter().map(|key| self.machines[key].system_id.clone()).collect()),
        };
        answer
    }

    pub(super) fn is_registered(&self, call: &Call) -> Outcome {
        let mac = call.get("mac_address").unwrap_or_default();
        if mac.is_empty() {
            return Err(Answer::text(400, "No provided mac_address!"));
        }
        Ok(Answer::json(&Value::Bool(self.by_mac.contains_key(&mac.to_ascii_lowercase()))))
    }

    pub(super) fn create(&mut self, call: &mut Call) -> Outcome {
        call.with_json();
        let call = &*call;
        let mut errors = FormErrors::default();
        let architecture = call.get("architecture").unwrap_or_default();
        let known = self.catalogue.architectures();
        if architecture.is_empty() {
            errors.add("architecture", REQUIRED);
        } else if !known.iter().any(|a| a == architecture) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            errors.add("architecture", not_one_of(architecture, "architecture", &known));
        }
        let macs = call.all("mac_addresses");
        if macs.is_empty() {
            errors.add("mac_addresses", REQUIRED);
        }
        for mac in &macs {
            if !is_mac(mac) {
                errors.add("mac_addresses", format!("'{mac}' is not a valid MAC address."));
                continue;
            }
            // checked against what was committed when it came, and never again: nothing else keeps a MAC from being
            // on two records
            let plain = mac.to_ascii_lowercase().replace('-', ":");
            let holder = self.by_mac.get(&plain).into_iter().flatten().find(|key| **key <= call.arrived);
            if let Some(machine) = holder.and_then(|key| self.machines.get(key)) {
                let text = format!("MAC address {plain} already in use on {}.", machine.hostname);
                errors.add("mac_addresses", text);
            }
        }
        let hostname = call.get("hostname").unwrap_or_default();
        if let Some(error) = self.bad_hostname(hostname, call.arrived, None) {
            errors.add("hostname", error);
        }
        let kind = call.get("power_type").unwrap_or_default();
        self.check_power(call, kind, &mut errors);
        if errors.has("mac_addresses") && !kind.is_empty() && kind != "manual" && !macs.is_empty() && is_mac(macs[0]) {
            errors.add("power_type", format!("Can't set power type to {kind} without network interfaces"));
        }
        let mut place = Machine::default();
        self.check_place(call, &mut place, &mut errors);
        errors.check()?;

        let mut machine = Machine {
            hostname: hostname.to_owned(),
            description: call.get("description").unwrap_or_default().to_owned(),
            architecture: architecture.to_owned(),
            min_hwe_kernel: call.get("min_hwe_kernel").unwrap_or_default().to_owned(),
            power_type: if kind.is_empty() { "manual".to_owned() } else { kind.to_owned() },
            power_state: "unknown",
            netboot: true,
            pool: place.pool,
            zone: if place.zone.is_empty() { "default".into() } else { place.zone },
            commissioning_status: -1,
            testing_status: -1,
            ..Machine::default()
        };
        self.fill_power(call, kind, &mut machine);
        for (number, mac) in macs.iter().enumerate() {
            self.nic_ids += 1;
            machine.interfaces.push(Nic {
                id: self.nic_ids,
                name: format!("eth{number}"),
                mac: mac.to_ascii_lowercase().replace('-', ":"),
                vlan: None,
                links: Vec::new(),
                discovered: None,
                speed: 0,
                mtu: None,
                tags: Vec::new(),
                found: false,
            });
        }
        if machine.hostname.is_empty() {
            machine.hostname = format!("sim-{:06}", self.created + 1);
        }
        let key = self.insert(machine);
        let m = &self.machines[&key];
        let kind = Kind::Created { system_id: m.system_id.clone(), macs: m.macs() };
        self.note(call.by.clone(), kind);
        // for an administrator, commissioning is what happens unless it is declined
        let commission = call.admin && call.boolean("commission").unwrap_or(true);
        if call.boolean("deployed") == Some(true) {
            let name = call.account().to_owned();
            self.set_owner(&call.by, key, Some(&name));
            self.set_status(&call.by, key, status::DEPLOYED);
        } else if commission {
            match self.commission(call, key) {
                // a form that is not taken leaves it New, and is not spoken of
                Err(answer) if answer.status == 400 => {}
                Err(answer) => return Err(answer),
                Ok(_) => {}
            }
        }
        self.whole(key)
    }

    fn bad_hostname(&self, hostname: &str, arrived: u64, own: Option<u64>) -> Option<&'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !hostname.chars().all(plain) || hostname.starts_with('-') || hostname.ends_with('-') || hostname.len() > 63 {
            return Some("Invalid hostname.");
        }
        let holder = self.by_name.get(hostname).copied()?;
        (holder <= arrived && Some(holder) != own).then_some("Node with this Hostname already exists.")
    }

    fn check_power(&self, call: &Call, kind: &str, errors: &mut FormErrors) {
        if kind.is_empty() {
            return;
        }
        if !POWER_TYPES.contains(&kind) {
            errors.add("power_type", no_such_choice(kind));
            return;
        }
        if call.boolean("power_parameters_skip_check") == Some(true) {
            return;
        }
        let (needed, taken) = power_fields(kind);
        for name in needed {
            if call.get(&format!("power_parameters_{name}")).is_none_or(str::is_empty)
                && !errors.has("power_parameters")
            {
                errors.add("power_parameters", REQUIRED);
            }
        }
        for (field, _) in &call.form {
            if let Some(name) = field.strip_prefix("power_parameters_")
                && name != "skip_check"
                && !needed.contains(&name)
                && !taken.contains(&name)
            {
                errors.add("power_parameters", format!("Unknown parameter(s): {name}."));
            }
        }
    }

    fn fill_power(&self, call: &Call, kind: &str, machine: &mut Machine) {
        let (needed, taken) = power_fields(kind);
        for name in needed.iter().chain(taken) {
            let given = call.get(&format!("power_parameters_{name}")).unwrap_or_default();
            machine.power_parameters.insert((*name).to_owned(), given.to_owned());
        }
    }

    fn check_place(&self, call: &Call, place: &mut Machine, errors: &mut FormErrors) {
        const NONE: &str = "Select a valid choice. That choice is not one of the available choices.";
        if let Some(pool) = call.get("pool").filter(|p| !p.is_empty()) {
            match self.catalogue.pool_by_name(pool) {
                Some(id) => place.pool = id,
                None => errors.add("pool", NONE),
            }
        }
        if let Some(zone) = call.get("zone").filter(|z| !z.is_empty()) {
            match self.catalogue.zones.contains_key(zone) {
                true => place.zone = zone.to_owned(),
                false => errors.add("zone", NONE),
            }
        }
    }

    /// Fields it does not know are passed over.
    pub(super) fn put(&mut self, call: &mut Call, key: u64) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        self.editable(call, key)?;
        call.with_json();
        let call = &*call;
        let mut errors = FormErrors::default();
        let hostname = call.get("hostname").filter(|h| !h.is_empty()).map(str::to_owned);
        if let Some(error) = hostname.as_ref().and_then(|h| self.bad_hostname(h, u64::MAX, Some(key))) {
            errors.add("hostname", error);
        }
        let mut place = Machine { pool: self.machines[&key].pool, ..Machine::default() };
        place.zone = self.machines[&key].zone.clone();
        self.check_place(call, &mut place, &mut errors);
        let kind = call.get("power_type").unwrap_or(&self.machines[&key].power_type).to_owned();
        let power =
            call.form.iter().any(|(name, _)| name.starts_with("power_parameters_")) || call.get("power_type").is_some();
        if power {
            self.check_power(call, &kind, &mut errors);
        }
        errors.check()?;
        if power {
            let mut machine = std::mem::take(self.touch(key));
            machine.power_type.clone_from(&kind);
            machine.power_parameters.clear();
            self.fill_power(call, &kind, &mut machine);
            *self.touch(key) = machine;
        }
        if let Some(hostname) = hostname {
            self.rename(key, &hostname);
        }
        let machine = self.touch(key);
        (machine.pool, machine.zone) = (place.pool, place.zone);
        if let Some(description) = call.get("description") {
            machine.description = description.to_owned();
        }
        self.changed(call, key, "its record");
        self.whole(key)
    }

    pub(super) fn rename(&mut self, key: u64, hostname: &str) {
        let old = std::mem::replace(&mut self.touch(key).hostname, hostname.to_owned());
        if self.by_name.get(&old) == Some(&key) {
            self.by_name.remove(&old);
        }
        self.by_name.insert(hostname.to_owned(), key);
    }

    /// Power is left as it is.
    pub(super) fn delete(&mut self, call: &Call, key: u64) -> Outcome {
        if !call.admin || self.machines[&key].locked {
            return Err(Answer::forbidden());
        }
        let running = self.hardware_of(key).is_some_and(|at| self.hardware[at].on);
        if let Some(machine) = self.remove(key) {
            self.note(call.by.clone(), Kind::Deleted { system_id: machine.system_id, running });
        }
        Ok(Answer::gone())
    }

    pub(super) fn power_parameters(&self, call: &Call, key: u64) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        Ok(Answer::json(&json!(self.machines[&key].power_parameters)))
    }

    pub(super) fn all_power_parameters(&self, call: &Call) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        let wanted = call.all("id");
        let all = self.machines.values().filter(|m| wanted.is_empty() || wanted.contains(&m.system_id.as_str()));
        let all: serde_json::Map<String, Value> =
            all.map(|m| (m.system_id.clone(), json!(m.power_parameters))).collect();
        Ok(Answer::json(&Value::Object(all)))
    }

    pub(super) fn list_allocated(&mut self, call: &Call) -> Outcome {
        let own = |m: &Machine| m.owner.as_deref() == Some(call.account());
        let keys: Vec<u64> = self.machines.iter().filter(|(_, m)| own(m)).map(|(key, _)| *key).collect();
        Ok(self.list_of(&keys, false))
    }

    pub(super) fn annotate(&mut self, call: &Call, key: u64) -> Outcome {
        if self.machines[&key].owner.as_deref() != Some(call.account()) {
            return Err(Answer::text(409, "Can only set workload annotations on a machine that you own."));
        }
        self.editable(call, key)?;
        for (name, value) in &call.form {
            if name == "op" {
                continue;
            }
            let annotations = &mut self.touch(key).annotations;
            if value.is_empty() {
                annotations.remove(name);
            } else {
                annotations.insert(name.clone(), value.clone());
            }
        }
        self.changed(call, key, "annotations");
        self.whole(key)
    }
}
