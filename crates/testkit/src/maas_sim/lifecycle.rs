//! What a machine can be told to do. Each checks what MAAS checks, changes what MAAS changes before it answers, and
//! leaves the rest to the steps that follow.

use super::events::{INFO, SetKind};
use super::hardware::{NoPower, Power, Trouble};
use super::log::{By, Kind};
use super::progress::{Step, What, minutes, seconds};
use super::request::{Answer, Call, FormErrors, Outcome, no_such_choice, not_one_of};
use super::status::{self, name};
use super::world::World;
use serde_json::{Value, json};

/// Scripts and tags of scripts that there are.
const SCRIPTS: [&str; 10] = [
    "none",
    "smartctl-validate",
    "memtester",
    "stress-ng-cpu-short",
    "internet-connectivity",
    "20-maas-01-install-lldpd",
    "commissioning",
    "storage",
    "cpu",
    "update_firmware",
];

fn check_scripts(call: &Call, errors: &mut FormErrors) {
    for field in ["commissioning_scripts", "testing_scripts"] {
        for name in call.get(field).into_iter().flat_map(|list| list.split(',')) {
            if !SCRIPTS.contains(&name) {
                errors.add(field, no_such_choice(name));
            }
        }
    }
}

impl World {
    /// `0` and `no` mean yes: whoever sends them has fallen for it.
    fn checkbox(&mut self, call: &Call, key: u64, name: &str) -> bool {
        let yes = call.checkbox(name);
        if yes && call.get(name) != Some("true") {
            let system_id = self.machines[&key].system_id.clone();
            self.trap(call, &system_id, format!("{name}={} means yes", call.get(name).unwrap_or_default()));
        }
        yes
    }

    pub(super) fn commission(&mut self, call: &Call, key: u64) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        self.editable(call, key)?;
        let mut errors = FormErrors::default();
        if !status::may_commission(self.machines[&key].status) {
            errors.add("__all__", "Commission is not available because of the current state of the node.");
        }
        check_scripts(call, &mut errors);
        errors.check()?;
        let skip_storage = self.checkbox(call, key, "skip_storage");
        let skip_networking = self.checkbox(call, key, "skip_networking");
        self.checkbox(call, key, "skip_bmc_config");
        self.checkbox(call, key, "enable_ssh");
        let tests = call.get("testing_scripts") != Some("none");
        let set = self.script_set(key, SetKind::Commissioning);
        self.touch(key).commissioning = Some(set);
        if tests {
            let set = self.script_set(key, SetKind::Testing);
            self.touch(key).testing = Some(set);
        }
        // the order goes out before the answer does: what cannot be reached stays as it was
        self.takes_orders(key)?;
        let machine = self.touch(key);
        machine.commissioning_status = 0;
        machine.testing_status = if tests { 0 } else { -1 };
        let account = call.account().to_owned();
        self.set_owner(&call.by, key, Some(&account));
        self.set_status(&call.by, key, status::COMMISSIONING);
        self.event(key, INFO, "Commissioning", "", "");
        let mut plan = vec![Step::work(seconds(30), What::PowerOn)];
        if self.trouble(key, Trouble::CommissioningHangs) || self.boots_elsewhere(key) || self.by_hand(key) {
            plan.push(Step::timeout(minutes(30)));
        } else if self.trouble(key, Trouble::CommissioningFails) {
            plan.push(Step::work(minutes(5), What::CommissioningFailed));
        } else {
            plan.push(Step::work(minutes(10), What::Commissioned { skip_storage, skip_networking, tests }));
            if tests {
                let fails = self.trouble(key, Trouble::TestsFail);
                plan.push(Step::work(minutes(5), What::Tested { passed: !fails }));
            }
        }
        self.plan(key, plan);
        self.whole(key)
    }

    /// Whether its BMC takes orders; nothing is ordered by this.
    fn takes_orders(&mut self, key: u64) -> Result<(), Answer> {
        match self.reachable(key) {
            Ok(_) | Err(NoPower::Manual) => Ok(()),
            Err(failure) => Err(failure.answer()),
        }
    }

    pub(super) fn test(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let mut errors = FormErrors::default();
        if !status::may_test(self.machines[&key].status) {
            errors.add("__all__", "Test is not available because of the current state of the node.");
        }
        check_scripts(call, &mut errors);
        errors.check()?;
        self.takes_orders(key)?;
        let set = self.script_set(key, SetKind::Testing);
        let machine = self.touch(key);
        machine.testing = Some(set);
        machine.testing_status = 0;
        machine.before = machine.status;
        self.set_status(&call.by, key, status::TESTING);
        self.event(key, INFO, "Testing", "", "");
        let fails = self.trouble(key, Trouble::TestsFail);
        let plan = [Step::work(seconds(30), What::PowerOn), Step::work(minutes(5), What::Tested { passed: !fails })];
        self.plan(key, plan.into());
        self.whole(key)
    }

    pub(super) fn allocate(&mut self, call: &Call) -> Outcome {
        let wanted = call.get("system_id").filter(|id| !id.is_empty());
        let key = match wanted {
            Some(id) => {
                let key = self.by_id.get(id).copied().filter(|key| self.free(*key));
                key.ok_or_else(|| Answer::text(409, format!("No machine with system ID {id} available.")))?
            }
            None => self.any_free(call)?,
        };
        let account = call.account().to_owned();
        self.set_owner(&call.by, key, Some(&account));
        self.set_status(&call.by, key, status::ALLOCATED);
        self.touch(key).agent_name = call.get("agent_name").unwrap_or_default().to_owned();
        let mut value = self.machine_json(key);
        value["constraints_by_type"] = json!({});
        Ok(Answer::json(&value))
    }

    fn free(&self, key: u64) -> bool {
        let machine = &self.machines[&key];
        machine.status == status::READY && machine.owner.is_none() && !machine.locked
    }

    fn any_free(&self, call: &Call) -> Result<u64, Answer> {
        let number = |name: &str| call.get(name).and_then(|n| n.parse::<f64>().ok());
        let fits = |key: &u64| {
            let machine = &self.machines[key];
            let facts = machine.facts.as_ref();
            self.free(*key)
                && number("mem").is_none_or(|mem| facts.is_some_and(|f| f.memory as f64 >= mem))
                && number("cpu_count").is_none_or(|n| facts.is_some_and(|f| f64::from(f.cpu_count) >= n))
                && call.get("name").is_none_or(|name| machine.hostname == name)
                && call.all("tags").iter().all(|tag| machine.tags.contains(*tag))
        };
        if let Some(key) = self.machines.keys().find(|key| fits(key)) {
            return Ok(*key);
        }
        let asked: Vec<&(String, String)> = call.form.iter().filter(|(name, _)| name != "op").collect();
        if asked.is_empty() {
            return Err(Answer::text(409, "No machine available."));
        }
        let constraints: Vec<String> = asked.iter().map(|(name, value)| format!("('{name}', ['{value}'])")).collect();
        let resolved: Vec<String> = asked
            .iter()
            .map(|(name, value)| match value.parse::<f64>() {
                Ok(number) => format!("{name}={number:.1}"),
                Err(_) => format!("{name}={value}"),
            })
            .collect();
        Err(Answer::text(
            409,
            format!(
                "No available machine matches constraints: [{}] (resolved to \"{}\")",
                constraints.join(", "),
                resolved.join(" ")
            ),
        ))
    }

    pub(super) fn deploy(&mut self, call: &Call, key: u64) -> Outcome {
        let machine = &self.machines[&key];
        if machine.locked || (machine.owner.is_some() && self.editable(call, key).is_err()) {
            return Err(Answer::forbidden());
        }
        if !call.json.is_empty() {
            let system_id = machine.system_id.clone();
            self.trap(call, &system_id, "deploy does not look at JSON");
        }
        let machine = &self.machines[&key];
        if !matches!(machine.status, status::READY | status::ALLOCATED) {
            let text = format!("Can't deploy a machine that is in the '{}' state", name(machine.status));
            return Err(Answer::text(409, text));
        }
        if call.boolean("install_rackd") == Some(true) {
            let text = "Deploying a machine as a rackd has been disabled and it's not supported anymore.";
            return Err(Answer::text(400, text));
        }
        let ephemeral = call.boolean("ephemeral_deploy") == Some(true);
        if ephemeral && (call.boolean("install_kvm") == Some(true) || call.boolean("register_vmhost") == Some(true)) {
            return Err(Answer::text(400, "A machine can not be a VM host if it is deployed to memory."));
        }
        let series = call.get("distro_series").unwrap_or_default();
        let Some(image) = self.catalogue.image(series).cloned() else {
            let mut names: Vec<&str> = self.catalogue.images.iter().map(|i| i.name.as_str()).collect();
            names.sort_unstable();
            names.insert(0, "");
            return Err(Answer::field("distro_series", not_one_of(series, "distro_series", &names)));
        };
        let kernel = call.get("hwe_kernel").filter(|k| !k.is_empty()).unwrap_or(&image.kernel).to_owned();
        if kernel != image.kernel && kernel != image.kernel.replace("ga-", "hwe-") {
            let text = format!("{kernel} is not available for {} on {}.", image.name, machine.architecture);
            return Err(Answer::field("hwe_kernel", text));
        }
        let refuse = |field: &str, text: &str| Answer::new(400, "application/json", json!({field: [text]}).to_string());
        if !machine.interfaces.iter().flat_map(|nic| &nic.links).any(|l| l.subnet.is_some()) {
            return Err(refuse("network", "Node has no address family in common with the server"));
        }
        if machine.disks.is_empty() && !ephemeral {
            return Err(refuse("storage", "Specify a storage device to be able to deploy this node."));
        }
        if !machine.has_root() && !ephemeral {
            return Err(refuse("storage", "Mount the root '/' filesystem to be able to deploy this node."));
        }
        for subnet in self.unclaimed(key) {
            let subnet = &self.network.subnets[&subnet];
            if !subnet.has_free() {
                return Err(Answer::text(503, format!("No more IPs available in subnet: {}.", subnet.cidr)));
            }
        }
        let account = call.account().to_owned();
        if self.machines[&key].status == status::READY {
            self.set_owner(&call.by, key, Some(&account));
            self.set_status(&call.by, key, status::ALLOCATED);
        }
        let interval = self.catalogue.sync_interval();
        let machine = self.touch(key);
        if let Some(agent) = call.get("agent_name") {
            machine.agent_name = agent.to_owned();
        }
        machine.sync.enabled = call.boolean("enable_hw_sync") == Some(true);
        if machine.sync.enabled {
            machine.sync.interval = Some(interval);
        }
        machine.ephemeral = ephemeral;
        let (osystem, series) = image.name.split_once('/').unwrap_or(("ubuntu", &image.name));
        machine.osystem = osystem.to_owned();
        machine.distro_series = series.to_owned();
        machine.hwe_kernel = Some(kernel);
        let machine = &self.machines[&key];
        let boots = machine.interfaces.first();
        let kind = Kind::Deploys {
            system_id: machine.system_id.clone(),
            root_on_boot_disk: machine.boots_from_root(),
            boot_links: boots.map_or(0, |nic| nic.links.len()),
        };
        self.note(call.by.clone(), kind);
        self.start_deployment(call, key);
        self.whole(key)
    }

    /// Also what `power_on` does on an allocated machine.
    fn start_deployment(&mut self, call: &Call, key: u64) {
        let user_data = call.get("user_data").unwrap_or_default().to_owned();
        let set = self.script_set(key, SetKind::Installation);
        let machine = self.touch(key);
        machine.installation = Some(set);
        machine.user_data = user_data;
        machine.netboot = true;
        machine.sync.last = None;
        self.set_status(&call.by, key, status::DEPLOYING);
        self.event(key, INFO, "Deploying", "", "");
        let mut plan = vec![Step::work(seconds(30), What::StartDeployment)];
        if self.trouble(key, Trouble::DeployHangs) || self.boots_elsewhere(key) || self.by_hand(key) {
            plan.push(Step::timeout(minutes(60)));
        } else if self.trouble(key, Trouble::CurtinFails) {
            plan.push(Step::work(minutes(5), What::CurtinFailed));
        } else {
            plan.push(Step::work(minutes(10), What::CurtinDone));
            if self.trouble(key, Trouble::NoDatasource) {
                plan.push(Step::timeout(minutes(50)));
            } else {
                plan.push(Step::work(minutes(3), What::AsksUserData));
                if self.trouble(key, Trouble::CloudInitFails) {
                    plan.push(Step::work(minutes(1), What::CloudInitFailed));
                }
            }
        }
        self.plan(key, plan);
    }

    pub(super) fn release(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let boxes = ["erase", "secure_erase", "quick_erase"].map(|name| self.checkbox(call, key, name));
        self.checkbox(call, key, "force");
        let always = self.catalogue.config.get("enable_disk_erasing_on_release") == Some(&Value::Bool(true));
        let machine = &self.machines[&key];
        if matches!(machine.status, status::READY | status::RELEASING) {
            return self.whole(key);
        }
        if !status::may_release(machine.status) {
            let text = format!("Machine cannot be released in its current state ('{}').", name(machine.status));
            return Err(Answer::text(409, text));
        }
        if boxes.contains(&true) || always {
            return self.erase(call, key);
        }
        self.begin_release(&call.by.clone(), key)?;
        self.whole(key)
    }

    fn erase(&mut self, call: &Call, key: u64) -> Outcome {
        self.cancel(key);
        let set = self.script_set(key, SetKind::Release);
        self.touch(key).releasing = Some(set);
        self.set_status(&call.by, key, status::DISK_ERASING);
        if let Err(failure) = self.drive(key, Power::On) {
            if let NoPower::Failed(..) = failure {
                self.set_status(&By::Itself, key, status::FAILED_DISK_ERASING);
                return Err(failure.answer());
            }
            self.plan(key, vec![Step::timeout(minutes(30))]);
            return self.whole(key);
        }
        let step = if self.trouble(key, Trouble::EraseHangs) || self.boots_elsewhere(key) {
            Step::timeout(minutes(30))
        } else {
            let fails = self.trouble(key, Trouble::EraseFails);
            Step::work(minutes(10), What::Erased { done: !fails })
        };
        self.plan(key, vec![step]);
        self.whole(key)
    }

    /// Everything of the deployment goes at once; the machine itself when its BMC says off.
    pub(super) fn begin_release(&mut self, by: &By, key: u64) -> Result<(), Answer> {
        self.cancel(key);
        let was = self.machines[&key].status;
        self.touch(key).strip();
        self.set_status(by, key, status::RELEASING);
        self.event(key, INFO, "Releasing", "", "");
        let off = matches!(self.machines[&key].power_state, "off" | "unknown");
        match self.reachable(key) {
            // nothing to wait for
            Ok(false) if off => self.end_release(by, key),
            Err(NoPower::Manual) => self.end_release(by, key),
            Ok(_) if self.trouble(key, Trouble::ReleaseHangs) => self.plan(key, vec![Step::timeout(minutes(5))]),
            Ok(_) => {
                self.plan(key, vec![Step::work(seconds(30), What::PowerOff), Step::work(seconds(5), What::Released)])
            }
            Err(failure) => {
                // it is found out after the commit: half of it is gone
                self.touch(key).annotations.clear();
                // erased it is, and there is nothing to go back to
                let back = if was == status::DISK_ERASING { status::FAILED_RELEASING } else { was };
                self.set_status(&By::Itself, key, back);
                return Err(failure.answer());
            }
        }
        Ok(())
    }

    pub(super) fn abort(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let machine = &self.machines[&key];
        let (event, to) = match machine.status {
            status::COMMISSIONING => ("Aborted commissioning", status::NEW),
            status::DEPLOYING => ("Aborted deployment", status::ALLOCATED),
            status::DISK_ERASING => ("Aborted disk erasing", status::FAILED_DISK_ERASING),
            status::TESTING => ("Aborted testing", machine.before),
            other => {
                let text = "Cannot abort in current state: node";
                return Err(Answer::text(409, format!("{text} {} is in state {}.", machine.system_id, name(other))));
            }
        };
        let commissioning = machine.status == status::COMMISSIONING;
        self.takes_orders(key)?;
        self.cancel(key);
        self.event(key, INFO, event, "", "");
        if commissioning {
            self.set_owner(&call.by, key, None);
        }
        self.plan(key, vec![Step::work(seconds(30), What::PowerOff), Step::work(seconds(1), What::Aborted { to })]);
        self.whole(key)
    }

    pub(super) fn power_on(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        if self.machines[&key].owner.is_none() {
            return Err(Answer::text(409, "Can't start node: it hasn't been allocated."));
        }
        let shown = self.whole(key);
        if self.machines[&key].status == status::ALLOCATED {
            if self.machines[&key].osystem.is_empty()
                && let Some(image) = self.catalogue.image("").cloned()
            {
                let machine = self.touch(key);
                let (osystem, series) = image.name.split_once('/').unwrap_or_default();
                machine.osystem = osystem.to_owned();
                machine.distro_series = series.to_owned();
                machine.hwe_kernel = Some(image.kernel.clone());
            }
            self.start_deployment(call, key);
            return self.whole(key);
        }
        match self.drive(key, Power::On) {
            Err(failure @ NoPower::Failed(..)) => Err(failure.answer()),
            _ => shown,
        }
    }

    pub(super) fn power_off(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let shown = self.whole(key);
        match self.drive(key, Power::Off) {
            Ok(_) => shown,
            // nothing was sent, and nothing is said
            Err(NoPower::Manual) => Ok(Answer::json(&Value::Null)),
            Err(failure) => Err(failure.answer()),
        }
    }

    pub(super) fn query_power(&mut self, key: u64) -> Outcome {
        match self.drive(key, Power::Query) {
            Ok(on) => Ok(Answer::json(&json!({"state": if on { "on" } else { "off" }}))),
            Err(NoPower::Manual) => Ok(Answer::json(&json!({"state": "unknown"}))),
            Err(failure) => Err(failure.answer()),
        }
    }

    pub(super) fn lock(&mut self, call: &Call, key: u64, lock: bool) -> Outcome {
        let machine = &self.machines[&key];
        if !(call.admin || machine.owner.as_deref() == Some(call.account())) {
            return Err(Answer::forbidden());
        }
        if lock && !matches!(machine.status, status::DEPLOYED | status::DEPLOYING) {
            return Err(Answer::text(409, "Can't lock, node is not deployed or deploying"));
        }
        if machine.locked == lock {
            let text = if lock { "Already locked." } else { "Already unlocked." };
            return Err(Answer::text(409, text));
        }
        self.touch(key).locked = lock;
        self.changed(call, key, "its lock");
        self.whole(key)
    }

    /// Only its owner may, administrator or not.
    pub(super) fn mark_broken(&mut self, call: &Call, key: u64) -> Outcome {
        let machine = &self.machines[&key];
        if machine.locked || machine.owner.as_deref() != Some(call.account()) {
            return Err(Answer::forbidden());
        }
        let was = machine.status;
        let comment = call.get("comment").unwrap_or_default().to_owned();
        if was == status::DEPLOYED {
            let owner = machine.owner.clone();
            self.begin_release(&call.by, key)
                .or_else(|answer| if answer.status < 500 { Err(answer) } else { Ok(()) })?;
            self.cancel(key);
            drop(self.drive(key, Power::Off));
            self.set_owner(&call.by, key, owner.as_deref());
        }
        self.cancel(key);
        let machine = self.touch(key);
        machine.strip();
        machine.before = was;
        machine.error_description = comment;
        self.set_status(&call.by, key, status::BROKEN);
        self.whole(key)
    }

    pub(super) fn mark_fixed(&mut self, call: &Call, key: u64) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        let machine = &self.machines[&key];
        if machine.status != status::BROKEN {
            return Err(Answer::text(409, "Can't mark a non-broken node as 'Ready'."));
        }
        let deployed = machine.before == status::DEPLOYED;
        self.touch(key).error_description.clear();
        if !deployed {
            self.set_owner(&call.by, key, None);
        }
        self.set_status(&call.by, key, if deployed { status::DEPLOYED } else { status::READY });
        self.whole(key)
    }

    pub(super) fn override_failed_testing(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let machine = &self.machines[&key];
        if machine.status != status::FAILED_TESTING {
            return Err(Answer::text(409, "Unable to override node status. Node is not in 'Failed testing' status."));
        }
        if machine.osystem.is_empty() {
            self.set_owner(&call.by, key, None);
            self.set_status(&call.by, key, status::READY);
        } else {
            self.set_status(&call.by, key, status::DEPLOYED);
        }
        self.whole(key)
    }

    pub(super) fn rescue(&mut self, call: &Call, key: u64, enter: bool) -> Outcome {
        self.editable(call, key)?;
        let was = self.machines[&key].status;
        let allowed = if enter { status::may_rescue(was) } else { was == status::RESCUE_MODE };
        if !allowed {
            let doing = if enter { "enter" } else { "exit" };
            let text = format!("Machine cannot {doing} rescue mode because it is in '{}' state.", name(was));
            return Err(Answer::text(409, text));
        }
        self.takes_orders(key)?;
        if enter {
            self.touch(key).before = was;
            self.set_status(&call.by, key, status::ENTERING_RESCUE_MODE);
            let plan = [Step::work(seconds(30), What::PowerOn), Step::work(minutes(2), What::Rescued)];
            self.plan(key, plan.into());
        } else {
            self.set_status(&call.by, key, status::EXITING_RESCUE_MODE);
            self.plan(key, vec![Step::work(minutes(1), What::OutOfRescue)]);
        }
        self.whole(key)
    }
}
