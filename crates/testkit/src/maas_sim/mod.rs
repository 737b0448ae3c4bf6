//! A MAAS of our own: its API 2.0 as version 3.7.3 was seen to answer, over records, hardware and BMCs that are as
//! stateful as the real ones and whose time only tests move. It keeps MAAS's traps (checkboxes that take `0` for yes,
//! creates that race into two machines, Deployed that proves nothing, messages that are stale), misbehaves on demand, and
//! writes a log of its own, by which an [`auditor`] judges. It shares no code with our client.
//!
//! What the recorded conversation shows is proven by replaying it. The rest is chosen: how long steps take, texts of
//! refusals that were not recorded, rescue mode, tests outside of commissioning, what a BMC says when it refuses, and a
//! BMC that fails after an erase. No verdict should rest on those.
//!
//! Nothing here waits for a real clock. In an instant world everything that was started has ended when its answer is
//! out; in a manual one it goes on by [`MaasSim::advance`], [`MaasSim::step`] and [`MaasSim::finish`]. Time-outs and
//! further hardware syncs come by [`MaasSim::advance`] in both.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

pub mod auditor;
mod auth;
mod catalogue;
mod clock;
mod events;
mod hardware;
mod lifecycle;
pub mod log;
mod machine;
mod misbehave;
mod network;
mod progress;
mod records;
mod request;
mod router;
mod server;
mod somebody;
pub mod status;
mod storage;
mod world;

pub use hardware::{BmcMood, DiskSpec, Hardware, NicSpec, PXE_VLAN, Racked, Trouble};
pub use misbehave::{Calls, Misbehaviour};
pub use somebody::Somebody;

use crate::tls::Pair;
use catalogue::Image;
use log::{By, Entry, Kind};
use misbehave::Rule;
use serde_json::Value;
use server::{Listener, Shared};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use world::World;

/// Of the description of the API: in every answer.
const API_HASH: &str = "5f0a3b1c9d7e42688b0c6a1de9f3574c2b8d6e10";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// What an answer starts has ended when it is out.
    #[default]
    Instant,
    /// Only tests move time.
    Manual,
}

#[derive(Clone)]
pub struct Options {
    pub pace: Pace,
    /// The name of our account, which is an administrator's.
    pub account: String,
    /// Seconds since 1970, by which timestamps of requests are judged: the clock of whoever asks, if that is not the
    /// machine's own. The simulator's own time begins there.
    pub time: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self { pace: Pace::Instant, account: "admin".into(), time: Arc::new(machines_own) }
    }
}

#[allow(clippy::disallowed_methods, reason = "clients that are not given a clock sign with the machine's own")]
fn machines_own() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |passed| passed.as_secs())
}

/// A machine that has booted what was installed, and asked for its user-data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstBoot {
    pub system_id: String,
    pub hostname: String,
    pub macs: Vec<String>,
    pub serial: String,
    pub addresses: Vec<String>,
    /// Decoded, as it was served.
    pub user_data: Vec<u8>,
}

/// A record as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub system_id: String,
    pub hostname: String,
    pub status: u8,
    pub status_name: &'static str,
    pub owner: Option<String>,
    pub power_state: &'static str,
    pub osystem: String,
    pub distro_series: String,
    pub netboot: bool,
    pub locked: bool,
    pub error_description: String,
    pub agent_name: String,
    pub uuid: Option<String>,
    pub serial: String,
    pub macs: Vec<String>,
    pub addresses: Vec<String>,
    /// By the name of the interface: the modes of its links.
    pub links: BTreeMap<String, Vec<String>>,
    pub boot_disk: Option<u64>,
    pub pool: String,
    pub zone: String,
    pub tags: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub last_sync: Option<u64>,
    pub syncs: u64,
}

/// Dropped: it is gone, with all its connections.
pub struct MaasSim {
    shared: Arc<Shared>,
    listener: Listener,
    account: String,
}

impl MaasSim {
    /// At a port of its own on the loopback interface. Must be called in a runtime.
    pub async fn start(options: Options) -> Self {
        Self::start_with(options, None).await
    }

    /// Over TLS, with this certificate.
    pub async fn start_with(options: Options, tls: Option<&Pair>) -> Self {
        let mut world = World::new(options.pace, (options.time)() * 1000);
        world.accounts.add(&options.account, true);
        let shared = Arc::new(Shared::new(world, options.time));
        let listener = Listener::new(tls);
        listener.open(&shared);
        Self { shared, listener, account: options.account }
    }

    /// What a site is configured with: `http://localhost:PORT/MAAS`.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Our account's, as `CONSUMER:TOKEN:SECRET`.
    pub fn key(&self) -> String {
        let world = self.shared.lock();
        let key = world.accounts.by_token.values().find(|a| a.name == self.account).map(auth::Account::key);
        key.expect("our account has a key")
    }

    pub fn account(&self) -> &str {
        &self.account
    }

    /// Another account with a key.
    pub fn add_account(&self, name: &str, admin: bool) -> String {
        self.shared.lock().accounts.add(name, admin).key()
    }

    /// Its key is taken no more.
    pub fn revoke(&self, account: &str) {
        self.shared.lock().accounts.remove(account);
    }

    // ---- scenery ----

    /// Puts hardware into the rack. MAAS knows nothing of it yet.
    pub fn rack(&self, racked: Racked) {
        let mut world = self.shared.lock();
        let at = world.hardware.len();
        world.by_bmc.insert(racked.bmc_address.clone(), at);
        for nic in &racked.nics {
            world.by_nic.insert(nic.mac.clone(), at);
        }
        world.hardware.push(Hardware::new(racked));
    }

    /// A fabric with one VLAN and one subnet on it: the numbers of both.
    pub fn add_subnet(&self, name: &str, cidr: &str) -> (u64, u64) {
        let mut world = self.shared.lock();
        let vlan = world.network.fabric(&format!("fabric-{name}"), false);
        (vlan, world.network.subnet(name, cidr, vlan))
    }

    /// The subnet from which machines boot has these addresses instead of 10.20.0.0/24. Before any machine.
    pub fn resize_pxe(&self, cidr: &str) {
        self.shared.lock().network.put_subnet(1, "pxe", cidr, PXE_VLAN);
    }

    /// Leaves only so many addresses of a subnet to claim.
    pub fn leave_addresses(&self, subnet: u64, free: u32) {
        self.shared.lock().network.subnets.get_mut(&subnet).expect("a subnet").leave(free);
    }

    /// Such as `custom/ours`, for `amd64`.
    pub fn add_image(&self, name: &str, architecture: &str, version: &str) {
        let kernel = format!("ga-{version}");
        let image = Image { name: name.into(), architecture: architecture.into(), kernel, version: version.into() };
        self.shared.lock().catalogue.images.push(image);
    }

    pub fn remove_images(&self) {
        self.shared.lock().catalogue.images.clear();
    }

    /// A setting of the site.
    pub fn configure(&self, name: &str, value: Value) {
        self.shared.lock().catalogue.config.insert(name.to_owned(), value);
    }

    /// Somebody is there to press the buttons of machines without a BMC.
    pub fn press_buttons(&self, there: bool) {
        self.shared.lock().buttons = there;
    }

    /// What the hardware with this MAC is in for, the next so many times.
    pub fn trouble(&self, mac: &str, trouble: Trouble, times: usize) {
        self.with_hardware(mac, |hardware| hardware.troubles.push((trouble, times)));
    }

    /// Nothing is wrong with it any more.
    pub fn cure(&self, mac: &str) {
        self.with_hardware(mac, |hardware| hardware.troubles.clear());
    }

    pub fn bmc(&self, mac: &str, mood: BmcMood) {
        self.with_hardware(mac, |hardware| hardware.mood = mood);
    }

    /// The hardware with this MAC, as it really is.
    pub fn hardware(&self, mac: &str) -> Hardware {
        self.with_hardware(mac, |hardware| hardware.clone())
    }

    fn with_hardware<T>(&self, mac: &str, change: impl FnOnce(&mut Hardware) -> T) -> T {
        let mut world = self.shared.lock();
        let at = *world.by_nic.get(mac).unwrap_or_else(|| panic!("nothing in the rack has {mac}"));
        change(&mut world.hardware[at])
    }

    /// Called with every machine that boots what was installed on it, when it asks for its user-data. It must not wait.
    pub fn on_first_boot(&self, hook: impl Fn(FirstBoot) + Send + Sync + 'static) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    // ---- time ----

    pub fn advance(&self, span: Duration) {
        self.shared.with(|world| world.advance(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)));
    }

    /// The next step of what is under way with a machine; `false`: there is none.
    pub fn step(&self, system_id: &str) -> bool {
        self.shared.with(|world| world.by_id.get(system_id).copied().is_some_and(|key| world.step(key)))
    }

    /// What is under way with a machine comes to its end, unless it hangs.
    pub fn finish(&self, system_id: &str) {
        while self.step(system_id) {}
    }

    /// One hardware sync, now.
    pub fn sync(&self, system_id: &str) {
        self.shared.with(|world| {
            let key = *world.by_id.get(system_id).expect("a machine");
            world.now += 1000;
            world.sync(key);
        });
    }

    /// MAAS asks its BMC, as it does every few minutes, and tells of it.
    pub fn asks_bmc(&self, system_id: &str) {
        self.shared.with(|world| {
            let key = *world.by_id.get(system_id).expect("a machine");
            let text = format!("Power state queried: {}", world.machines[&key].power_state);
            world.event(key, events::DEBUG, "Queried node's BMC", &text, "");
        });
    }

    /// Milliseconds since 1970.
    pub fn now(&self) -> u64 {
        self.shared.lock().now
    }

    // ---- what there is ----

    pub fn machine(&self, system_id: &str) -> Option<Seen> {
        let world = self.shared.lock();
        world.by_id.get(system_id).map(|key| seen(&world, *key))
    }

    /// All that have this MAC: more than one is a race that somebody lost.
    pub fn with_mac(&self, mac: &str) -> Vec<Seen> {
        let world = self.shared.lock();
        world.by_mac.get(mac).into_iter().flatten().map(|key| seen(&world, *key)).collect()
    }

    pub fn machines(&self) -> Vec<Seen> {
        let world = self.shared.lock();
        world.machines.keys().map(|key| seen(&world, *key)).collect()
    }

    /// As the API shows it.
    pub fn json(&self, system_id: &str) -> Option<Value> {
        let world = self.shared.lock();
        world.by_id.get(system_id).map(|key| world.machine_json(*key))
    }

    /// What was passed as user-data to the deployment that is under way or over, as it came.
    pub fn user_data(&self, system_id: &str) -> String {
        let world = self.shared.lock();
        world.by_id.get(system_id).map(|key| world.machines[key].user_data.clone()).unwrap_or_default()
    }

    // ---- behind our back ----

    /// Another administrator, who does not know of us.
    pub fn as_somebody(&self) -> Somebody<'_> {
        self.as_account("somebody")
    }

    /// A person at MAAS's own console with this account; our own one, perhaps.
    pub fn as_account(&self, account: &str) -> Somebody<'_> {
        Somebody { shared: &self.shared, account: account.to_owned() }
    }

    /// From here on the machine is (or is not) ours, whatever its record says: auditors are told.
    pub fn claim(&self, system_id: &str, ours: bool) {
        let kind = Kind::Claim { system_id: system_id.to_owned(), ours };
        self.shared.lock().note(By::Scenery(String::new()), kind);
    }

    // ---- misbehaviour ----

    /// The next `times` calls of these go wrong. What it answers asks how often it came ([`MaasSim::hits`]).
    pub fn misbehave(&self, calls: Calls, what: Misbehaviour, times: usize) -> usize {
        self.misbehave_after(calls, 0, what, times)
    }

    /// The first so many of them go well.
    pub fn misbehave_after(&self, calls: Calls, first: usize, what: Misbehaviour, times: usize) -> usize {
        let mut world = self.shared.lock();
        world.rules.push(Rule::new(calls, what, first, times));
        world.rules.len() - 1
    }

    /// How often it went wrong so.
    pub fn hits(&self, rule: usize) -> usize {
        self.shared.lock().rules.get(rule).map_or(0, Rule::hits)
    }

    /// Nothing goes wrong any more.
    pub fn behave(&self) {
        self.shared.lock().rules.clear();
    }

    /// Connections are refused until [`MaasSim::up`]. Machines go on.
    pub async fn down(&self) {
        self.listener.close().await;
    }

    pub fn up(&self) {
        self.listener.open(&self.shared);
    }

    /// Everything is taken and nothing is answered nor done.
    pub fn hang(&self, hanging: bool) {
        self.shared.hanging.store(hanging, Ordering::Release);
    }

    // ---- its log ----

    pub fn log(&self) -> Vec<Entry> {
        self.shared.lock().log.entries.clone()
    }

    /// Entries so far: those from here on are new.
    pub fn log_len(&self) -> usize {
        self.shared.lock().log.entries.len()
    }

    /// How often each call came over the wire: by method, kind of path and operation.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for entry in &self.shared.lock().log.entries {
            if let (Kind::Request { method, path, op, .. }, By::Account(_) | By::Nobody) = (&entry.kind, &entry.by) {
                *counts.entry(kind_of_call(method, path, op)).or_default() += 1;
            }
        }
        counts
    }
}

/// Without what names one thing.
fn kind_of_call(method: &str, path: &str, op: &str) -> String {
    let parts: Vec<&str> = path.trim_start_matches("/MAAS/api/2.0/").trim_end_matches('/').split('/').collect();
    let kept: Vec<&str> = parts.iter().enumerate().map(|(n, p)| if n % 2 == 0 { *p } else { "*" }).collect();
    let op = if op.is_empty() { String::new() } else { format!(" {op}") };
    format!("{method} {}{op}", kept.join("/"))
}

fn seen(world: &World, key: u64) -> Seen {
    let m = &world.machines[&key];
    let modes = |nic: &network::Nic| (nic.name.clone(), nic.links.iter().map(|l| l.mode.clone()).collect());
    Seen {
        system_id: m.system_id.clone(),
        hostname: m.hostname.clone(),
        status: m.status,
        status_name: status::name(m.status),
        owner: m.owner.clone(),
        power_state: m.power_state,
        osystem: m.osystem.clone(),
        distro_series: m.distro_series.clone(),
        netboot: m.netboot,
        locked: m.locked,
        error_description: m.error_description.clone(),
        agent_name: m.agent_name.clone(),
        uuid: m.uuid.clone(),
        serial: m.serial(),
        macs: m.macs(),
        addresses: m.addresses().into_iter().map(str::to_owned).collect(),
        links: m.interfaces.iter().map(modes).collect(),
        boot_disk: m.boot_disk,
        pool: world.catalogue.pools.get(&m.pool).map(|p| p.0.clone()).unwrap_or_default(),
        zone: m.zone.clone(),
        tags: m.tags.iter().cloned().collect(),
        annotations: m.annotations.clone(),
        last_sync: m.sync.last,
        syncs: m.sync.times,
    }
}
