//! What other people do at the same MAAS. Most of it goes the way of a request, so that it is refused where theirs would
//! be; what no request can do is said to be forced.

use super::log::{Answered, By};
use super::machine::Facts;
use super::request::Call;
use super::server::Shared;
use std::sync::Arc;

pub struct Somebody<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) account: String,
}

impl Somebody<'_> {
    /// Any request, as an administrator: its status and body.
    pub fn ask(&self, method: &str, path: &str, op: &str, form: &[(&str, &str)]) -> (u16, String) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut query: Vec<(String, String)> = Vec::new();
        if !op.is_empty() {
            query.push(("op".to_owned(), op.to_owned()));
        }
        let mut call = Call {
            method: method.to_owned(),
            path: format!("/MAAS/api/2.0/{path}"),
            query,
            form: form.iter().map(own).collect(),
            json: Vec::new(),
            authorization: String::new(),
            by: By::Scenery(self.account.clone()),
            admin: true,
            arrived: u64::MAX,
        };
        let answer = self.shared.handle(&mut call, Answered::Properly);
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// An operation on a machine; what is refused is a mistake of the test.
    pub fn tell(&self, system_id: &str, op: &str, form: &[(&str, &str)]) {
        let (status, body) = self.ask("POST", &format!("machines/{system_id}/"), op, form);
        assert!(status < 300, "somebody's {op} of {system_id} was answered with {status}: {body}");
    }

    /// Makes a record; its system id.
    pub fn create(&self, hostname: &str, mac: &str, bmc_address: &str) -> String {
        let form = [
            ("hostname", hostname),
            ("architecture", "amd64/generic"),
            ("mac_addresses", mac),
            ("power_type", "redfish"),
            ("power_parameters_power_address", bmc_address),
            ("power_parameters_power_user", "u"),
            ("power_parameters_power_pass", "p"),
            ("commission", "false"),
        ];
        let (status, body) = self.ask("POST", "machines/", "", &form);
        assert_eq!(status, 200, "{body}");
        let value: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        value["system_id"].as_str().expect("an id").to_owned()
    }

    pub fn commission(&self, system_id: &str) {
        self.tell(system_id, "commission", &[("testing_scripts", "none")]);
    }

    pub fn deploy(&self, system_id: &str, series: &str) {
        self.tell(system_id, "deploy", &[("distro_series", series)]);
    }

    pub fn release(&self, system_id: &str) {
        self.tell(system_id, "release", &[]);
    }

    pub fn power_off(&self, system_id: &str) {
        self.tell(system_id, "power_off", &[]);
    }

    /// With the account of whoever owns it: nobody else may.
    pub fn mark_broken(&self, system_id: &str, comment: &str) {
        let owner = self.with(system_id, |world, key| world.machines[&key].owner.clone());
        let owner = Somebody { shared: self.shared, account: owner.unwrap_or_default() };
        owner.tell(system_id, "mark_broken", &[("comment", comment)]);
    }

    pub fn mark_fixed(&self, system_id: &str) {
        self.tell(system_id, "mark_fixed", &[]);
    }

    pub fn delete(&self, system_id: &str) {
        let (status, body) = self.ask("DELETE", &format!("machines/{system_id}/"), "", &[]);
        assert_eq!(status, 204, "somebody's removal of {system_id}: {body}");
    }

    pub fn rename(&self, system_id: &str, hostname: &str) {
        self.put(system_id, &[("hostname", hostname)]);
    }

    /// Makes the pool where it is missing.
    pub fn move_to_pool(&self, system_id: &str, pool: &str) {
        self.ask("POST", "resourcepools/", "", &[("name", pool)]);
        self.put(system_id, &[("pool", pool)]);
    }

    fn put(&self, system_id: &str, form: &[(&str, &str)]) {
        let (status, body) = self.ask("PUT", &format!("machines/{system_id}/"), "", form);
        assert_eq!(status, 200, "{body}");
    }

    /// By force: as if it had gone there by itself.
    pub fn set_status(&self, system_id: &str, status: u8) {
        let by = By::Scenery(self.account.clone());
        self.with(system_id, |world, key| {
            world.cancel(key);
            world.set_status(&by, key, status);
        });
    }

    /// By force.
    pub fn set_owner(&self, system_id: &str, owner: Option<&str>) {
        let by = By::Scenery(self.account.clone());
        self.with(system_id, |world, key| world.set_owner(&by, key, owner));
    }

    /// By force: another board in the same chassis, or another chassis at the same cable.
    pub fn change_identity(&self, system_id: &str, uuid: Option<&str>, serial: &str) {
        let by = By::Scenery(self.account.clone());
        self.with(system_id, |world, key| {
            let machine = world.touch(key);
            machine.uuid = uuid.map(str::to_owned);
            let (cpus, memory) = machine.facts.as_ref().map_or((0, 0), |f| (f.cpu_count, f.memory));
            machine.facts = Some(Facts::new("Harness", "Simulated", serial, cpus, memory));
            world.note_identity(&by, key);
        });
    }

    /// By force: its first card has a MAC that another record may have, too.
    pub fn give_mac(&self, system_id: &str, mac: &str) {
        let by = By::Scenery(self.account.clone());
        self.with(system_id, |world, key| {
            let Some(old) = world.machines[&key].interfaces.first().map(|nic| nic.mac.clone()) else { return };
            super::world::forget(&mut world.by_mac, &old, key);
            mac.clone_into(&mut world.touch(key).interfaces[0].mac);
            world.by_mac.entry(mac.to_owned()).or_default().push(key);
            world.note_identity(&by, key);
        });
    }

    fn with<T>(&self, system_id: &str, change: impl FnOnce(&mut super::world::World, u64) -> T) -> T {
        self.shared.with(|world| {
            let key = *world.by_id.get(system_id).unwrap_or_else(|| panic!("no machine is called {system_id}"));
            change(world, key)
        })
    }
}
