//! Which handler answers what; and what is answered where there is none.

use super::log::{Answered, By, Kind, Told, field_names};
use super::request::{Answer, Call, Outcome};
use super::world::World;
use serde_json::json;

const BASE: &str = "/MAAS/api/2.0/";

enum Resource {
    Version,
    Describe,
    Users,
    Account,
    Machines,
    Machine(String),
    Nodes,
    Interfaces(String),
    Interface(String, String),
    BlockDevices(String),
    BlockDevice(String, String),
    Results(String),
    Result(String, String),
    Events,
    Tags,
    Tag(String),
    Pools,
    Pool(String),
    Zones,
    Zone(String),
    Subnets,
    Subnet(String),
    Fabrics,
    Images,
    Racks,
    Discoveries,
    Config,
}

fn resource(path: &str) -> Option<Resource> {
    let path = path.strip_prefix(BASE)?.strip_suffix('/')?;
    let parts: Vec<&str> = path.split('/').collect();
    let own = |text: &&str| (*text).to_owned();
    Some(match parts.as_slice() {
        ["version"] => Resource::Version,
        ["describe"] => Resource::Describe,
        ["users"] => Resource::Users,
        ["account"] => Resource::Account,
        ["machines"] => Resource::Machines,
        ["machines", id] => Resource::Machine(own(id)),
        ["nodes"] => Resource::Nodes,
        ["nodes", id, "interfaces"] => Resource::Interfaces(own(id)),
        ["nodes", id, "interfaces", one] => Resource::Interface(own(id), own(one)),
        ["nodes", id, "blockdevices"] => Resource::BlockDevices(own(id)),
        ["nodes", id, "blockdevices", one] => Resource::BlockDevice(own(id), own(one)),
        ["nodes", id, "results"] => Resource::Results(own(id)),
        ["nodes", id, "results", one] => Resource::Result(own(id), own(one)),
        ["events"] => Resource::Events,
        ["tags"] => Resource::Tags,
        ["tags", name] => Resource::Tag(own(name)),
        ["resourcepools"] => Resource::Pools,
        ["resourcepool", id] => Resource::Pool(own(id)),
        ["zones"] => Resource::Zones,
        ["zones", name] => Resource::Zone(own(name)),
        ["subnets"] => Resource::Subnets,
        ["subnets", id] => Resource::Subnet(own(id)),
        ["fabrics"] => Resource::Fabrics,
        ["boot-resources"] => Resource::Images,
        ["rackcontrollers"] => Resource::Racks,
        ["discovery"] => Resource::Discoveries,
        ["maas"] => Resource::Config,
        _ => return None,
    })
}

/// Operations by method; an empty word is the method by itself.
fn operations(resource: &Resource) -> &'static [(&'static str, &'static [&'static str])] {
    match resource {
        Resource::Version | Resource::Describe | Resource::Images | Resource::Racks => &[("GET", &[""])],
        Resource::Users => &[("GET", &["", "whoami"])],
        Resource::Account => &[("GET", &["list_authorisation_tokens"])],
        Resource::Machines => &[
            ("GET", &["", "is_registered", "list_allocated", "power_parameters"]),
            ("POST", &["", "allocate", "release"]),
        ],
        Resource::Machine(_) => &[
            ("GET", &["", "query_power_state", "power_parameters", "details"]),
            ("PUT", &[""]),
            ("DELETE", &[""]),
            (
                "POST",
                &[
                    "commission",
                    "test",
                    "deploy",
                    "release",
                    "abort",
                    "power_on",
                    "power_off",
                    "rescue_mode",
                    "exit_rescue_mode",
                    "lock",
                    "unlock",
                    "mark_broken",
                    "mark_fixed",
                    "override_failed_testing",
                    "set_storage_layout",
                    "mount_special",
                    "unmount_special",
                    "set_workload_annotations",
                ],
            ),
        ],
        Resource::Nodes => &[("GET", &["is_registered"])],
        Resource::Interfaces(_) | Resource::BlockDevices(_) | Resource::Results(_) => &[("GET", &[""])],
        Resource::Interface(..) => &[
            ("GET", &[""]),
            ("PUT", &[""]),
            ("POST", &["link_subnet", "unlink_subnet", "disconnect", "set_default_gateway", "add_tag", "remove_tag"]),
        ],
        Resource::BlockDevice(..) => &[
            ("GET", &[""]),
            ("POST", &["set_boot_disk", "format", "unformat", "mount", "unmount", "add_tag", "remove_tag"]),
        ],
        Resource::Result(..) | Resource::Subnets | Resource::Subnet(_) => &[("GET", &[""])],
        Resource::Events => &[("GET", &["query"])],
        Resource::Tags | Resource::Pools | Resource::Zones | Resource::Fabrics => &[("GET", &[""]), ("POST", &[""])],
        Resource::Tag(_) => &[("GET", &["", "machines", "nodes"]), ("POST", &["update_nodes"]), ("DELETE", &[""])],
        Resource::Pool(_) | Resource::Zone(_) => &[("GET", &[""]), ("DELETE", &[""])],
        Resource::Discoveries => &[("GET", &["", "by_unknown_mac", "by_unknown_ip", "by_unknown_ip_and_mac"])],
        Resource::Config => &[("GET", &["get_config"]), ("POST", &["set_config"])],
    }
}

/// What everybody may ask without a key.
fn anonymous(resource: &Resource, call: &Call) -> bool {
    match resource {
        Resource::Version | Resource::Describe => true,
        Resource::Machines => call.method == "POST" && call.op().is_none(),
        Resource::Nodes => true,
        _ => false,
    }
}

fn unrecognised(call: &Call) -> Answer {
    let op = call.op().unwrap_or("None");
    Answer::text(400, format!("Unrecognised signature: method={} op={op}", call.method))
}

impl World {
    /// Checks who asks (unless that is known), does what is asked, and writes down what became of it.
    pub(super) fn request(&mut self, call: &mut Call, now: u64, answered: Answered) -> Answer {
        self.log.begin();
        let outcome = match self.identify(call, now) {
            Ok(()) => self.dispatch(call),
            Err(answer) => Err(answer),
        };
        let answer = outcome.unwrap_or_else(|refusal| refusal);
        self.note_request(call, &answer, answered);
        answer
    }

    pub(super) fn note_request(&mut self, call: &Call, answer: &Answer, answered: Answered) {
        let kind = Kind::Request {
            method: call.method.clone(),
            path: call.path.clone(),
            op: call.op().unwrap_or_default().to_owned(),
            system_id: about(call),
            fields: field_names(if call.method == "GET" { &call.query } else { &call.form }),
            status: answer.status,
            done: self.log.changed(),
            since: self.log.since(),
            answered,
            told: answer.told.clone(),
        };
        self.note(call.by.clone(), kind);
    }

    pub(super) fn identify(&mut self, call: &mut Call, now: u64) -> Result<(), Answer> {
        if !matches!(call.by, By::Nobody) {
            return Ok(());
        }
        if let Some(account) = self.accounts.check(call, now)? {
            call.by = By::Account(account.name);
            call.admin = account.admin;
        }
        Ok(())
    }

    fn dispatch(&mut self, call: &mut Call) -> Outcome {
        if call.path.starts_with("/MAAS/api/1.0/") {
            return Err(Answer::bare(410, "The 1.0 API is no longer available. Please use API version 2.0."));
        }
        let Some(resource) = resource(&call.path) else {
            return Err(Answer::text(404, format!("Unknown API endpoint: {}.", call.path)));
        };
        if call.by == By::Nobody && !anonymous(&resource, call) {
            return Err(match resource {
                // there is a handler for those without a key, and it has no such thing
                Resource::Machines => unrecognised(call),
                _ => Answer::bare(401, "Forbidden"),
            });
        }
        let operations = operations(&resource);
        match operations.iter().find(|(method, _)| *method == call.method) {
            None => {
                let mut answer = Answer::new(405, "text/html; charset=utf-8", "");
                let allowed: Vec<&str> = operations.iter().map(|(method, _)| *method).collect();
                answer.headers.push(("Allow", allowed.join(", ")));
                return Err(answer);
            }
            Some((_, ops)) if !ops.contains(&call.op().unwrap_or_default()) => return Err(unrecognised(call)),
            Some(_) => {}
        }
        match &resource {
            Resource::Version => self.version(),
            Resource::Describe => Ok(Answer::json(&json!({"hash": super::API_HASH}))),
            Resource::Users if call.op().is_none() => {
                self.whoami(call).map(|a| Answer::new(200, a.kind, listed(&a.body)))
            }
            Resource::Users => self.whoami(call),
            Resource::Account => self.tokens(call),
            Resource::Machines => self.of_machines(call),
            Resource::Machine(id) => {
                let key = self.by_id.get(id).copied().ok_or_else(|| Answer::missing("Machine"))?;
                self.of_machine(call, key)
            }
            Resource::Nodes => self.is_registered(call),
            Resource::Interfaces(id) => self.interfaces(self.node(id)?),
            Resource::Interface(id, one) => self.interface(call, self.node(id)?, one),
            Resource::BlockDevices(id) => self.block_devices(self.node(id)?),
            Resource::BlockDevice(id, one) => self.block_device(call, self.node(id)?, one),
            Resource::Results(id) => self.results(call, self.node(id)?),
            Resource::Result(id, one) => self.result(call, self.node(id)?, one),
            Resource::Events => self.query_events(call),
            Resource::Tags => self.tags(call),
            Resource::Tag(name) => self.tag(call, name),
            Resource::Pools => self.pools(call),
            Resource::Pool(id) => self.pool(call, id),
            Resource::Zones => self.zones(call),
            Resource::Zone(name) => self.zone(call, name),
            Resource::Subnets => self.subnets(None),
            Resource::Subnet(id) => self.subnets(Some(id)),
            Resource::Fabrics => self.fabrics(call),
            Resource::Images => self.images(),
            Resource::Racks => self.racks(),
            Resource::Discoveries => Ok(Answer::json(&json!([]))),
            Resource::Config => self.config(call),
        }
    }

    fn node(&self, id: &str) -> Result<u64, Answer> {
        self.by_id.get(id).copied().ok_or_else(|| Answer::missing("Node"))
    }

    fn of_machines(&mut self, call: &mut Call) -> Outcome {
        match (call.method.as_str(), call.op()) {
            ("GET", Some("is_registered")) => self.is_registered(call),
            ("GET", Some("list_allocated")) => self.list_allocated(call),
            ("GET", Some("power_parameters")) => self.all_power_parameters(call),
            ("GET", _) => self.list(call),
            (_, Some("allocate")) => self.allocate(call),
            (_, Some("release")) => {
                let mut released = Vec::new();
                for id in call.all("machines") {
                    let key = self.by_id.get(id).copied().ok_or_else(|| Answer::missing("Machine"))?;
                    self.release(call, key)?;
                    released.push(id.to_owned());
                }
                Ok(Answer::json(&json!(released)))
            }
            _ => self.create(call),
        }
    }

    fn of_machine(&mut self, call: &mut Call, key: u64) -> Outcome {
        let op = call.op().unwrap_or_default().to_owned();
        match (call.method.as_str(), op.as_str()) {
            ("GET", "query_power_state") => self.query_power(key),
            ("GET", "power_parameters") => self.power_parameters(call, key),
            // the smallest document there is
            ("GET", "details") => Ok(Answer::new(200, "application/bson", vec![5, 0, 0, 0, 0])),
            ("GET", _) => self.whole(key),
            ("PUT", _) => self.put(call, key),
            ("DELETE", _) => self.delete(call, key),
            (_, "commission") => self.commission(call, key),
            (_, "test") => self.test(call, key),
            (_, "deploy") => self.deploy(call, key),
            (_, "release") => self.release(call, key),
            (_, "abort") => self.abort(call, key),
            (_, "power_on") => self.power_on(call, key),
            (_, "power_off") => self.power_off(call, key),
            (_, "rescue_mode") => self.rescue(call, key, true),
            (_, "exit_rescue_mode") => self.rescue(call, key, false),
            (_, "lock") => self.lock(call, key, true),
            (_, "unlock") => self.lock(call, key, false),
            (_, "mark_broken") => self.mark_broken(call, key),
            (_, "mark_fixed") => self.mark_fixed(call, key),
            (_, "override_failed_testing") => self.override_failed_testing(call, key),
            (_, "set_storage_layout") => self.set_storage_layout(call, key),
            (_, "mount_special" | "unmount_special") => self.mount_special(call, key),
            (_, "set_workload_annotations") => self.annotate(call, key),
            _ => Err(unrecognised(call)),
        }
    }

    /// An unknown machine that booted from the network.
    pub(super) fn enlist(&mut self, macs: &[String]) {
        let architecture = self.catalogue.architectures().into_iter().next().unwrap_or_default();
        let mut form = vec![("architecture".to_owned(), architecture)];
        form.extend(macs.iter().map(|mac| ("mac_addresses".to_owned(), mac.clone())));
        let mut call = Call {
            method: "POST".into(),
            path: format!("{BASE}machines/"),
            query: Vec::new(),
            form,
            json: Vec::new(),
            authorization: String::new(),
            by: By::Nobody,
            admin: false,
            arrived: u64::MAX,
        };
        drop(self.create(&mut call));
    }

    /// In an instant world a hardware sync comes after somebody has seen it Deployed: that it moves can be seen.
    pub(super) fn sync_seen(&mut self, told: &Told) {
        let Told::Machines(ids) = told else { return };
        for id in ids {
            let Some(key) = self.by_id.get(id).copied() else { continue };
            let machine = &self.machines[&key];
            if machine.status == super::status::DEPLOYED && machine.sync.comes && machine.sync.times == 0 {
                self.now += 1;
                self.sync(key);
            }
        }
    }
}

/// The machine that a request is about.
fn about(call: &Call) -> String {
    let rest = call.path.strip_prefix(BASE).unwrap_or_default();
    let mut parts = rest.split('/');
    match (parts.next(), parts.next()) {
        (Some("machines" | "nodes"), Some(id)) if !id.is_empty() => id.to_owned(),
        (Some("machines"), _) if call.method == "POST" => call.get("system_id").unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

fn listed(one: &[u8]) -> Vec<u8> {
    [b"[", one, b"]"].concat()
}
