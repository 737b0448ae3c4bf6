//! A server that drives one machine for real: the provider of real machines over a Redfish responder, with a guest
//! that boots from what the server serves.

use crate::client::Http;
use crate::guest::{Guest, Manner, Powered};
use crate::site::{MAC, Site};
use datacenter::{Datacenter, Image};
use domain::{RunId, Secret};
use engine::EngineOptions;
use serde_json::{Value, json};
use service::{NetbootOrders, NewCredential};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, eventually, vault};
use testkit::server::TestServer;

pub const MACHINE: &str = "rack-1";
/// Installed from virtual media, by the same provider.
pub const MEDIA_IMAGE: &str = "by-media";
/// Of one call; a crash in the middle of an act waits it out.
const CALL: Duration = Duration::from_secs(4);

pub struct Plant {
    pub site: Site,
    pub guest: Arc<Guest>,
    /// What the machine is known as to network boot.
    pub node: String,
    _power: Powered,
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(16),
        call_timeout: CALL,
        poll: Duration::from_millis(50),
        ..EngineOptions::new("plant")
    }
}

fn options() -> datacenter::Options {
    datacenter::Options {
        call_timeout: CALL * 8 / 10,
        connect_timeout: CALL / 2,
        host_rest: Duration::from_millis(50),
        host_rest_max: Duration::from_millis(200),
        images: BTreeMap::from([(MEDIA_IMAGE.to_owned(), Image::Media { url: "http://127.0.0.1/x.iso".to_owned() })]),
        ..datacenter::Options::default()
    }
}

pub fn provider(fleet: &Fleet) -> Datacenter {
    let netboot = Arc::new(NetbootOrders::new(fleet.store.clone()));
    Datacenter::with_netboot(options(), Arc::new(vault(&fleet.store)), netboot)
}

async fn serving(fleet: Fleet, guest: &Guest) -> Site {
    let server = TestServer::start_with(fleet, engine_options()).await;
    guest.served_at(&server.url);
    let http = Http { url: server.url.clone(), token: server.token.clone() };
    Site { server, http }
}

impl Plant {
    /// A machine whose boot node is `active`.
    pub async fn new(database: Database) -> Self {
        let plant = Self::unlinked(database, false).await;
        plant.linked().await
    }

    /// One with a system that can be logged in on.
    pub async fn with_system(database: Database) -> Self {
        let plant = Self::unlinked(database, true).await;
        plant.linked().await
    }

    /// A machine that network boot has never heard of.
    pub async fn unlinked(database: Database, with_system: bool) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let guest = Guest::new(MAC, NUMBER.fetch_add(1, Ordering::Relaxed), with_system).await;
        let mut fleet = tokio::task::spawn_blocking(move || Fleet::new(database, 1)).await.expect("a fleet");
        fleet.provide("datacenter", Arc::new(provider(&fleet)));
        let site = serving(fleet, &guest).await;
        for id in ["debian", "other"] {
            let workflow = json!({ "id": id, "name": id, "kernel": "vmlinuz", "initrd": "initrd", "cmdline": "quiet" });
            site.http.post("/api/v1/workflows", &workflow).await.ok();
        }
        let bmc = NewCredential {
            name: "bmc".into(),
            kind: "bmc".into(),
            username: "operator".into(),
            password: Secret::new("correct horse"),
            ..NewCredential::default()
        };
        site.server.service.set_credential(&admin(), bmc).await.expect("is set");
        let system = guest.responder.system(1);
        let mut spec = json!({
            "provider": "datacenter", "bmc_endpoint": guest.responder.endpoint(1), "credentials_ref": "bmc",
            "serial_number": system.serial, "system_uuid": system.uuid, "mac_addresses": [MAC],
        });
        if let Some(host) = &guest.host {
            let login = host.login();
            let ssh = NewCredential {
                name: "ssh".into(),
                kind: "ssh".into(),
                username: login.username.clone(),
                private_key: login.private_key.clone(),
                ..NewCredential::default()
            };
            site.server.service.set_credential(&admin(), ssh).await.expect("is set");
            spec["ssh_endpoint"] = json!(host.at().to_string());
            spec["credentials_ref"] = json!("bmc,ssh");
        }
        let machine = json!({ "machine": { "machine_id": MACHINE, "spec": spec } });
        site.http.post("/api/v1/machines", &machine).await.ok();
        let power = guest.plugged_in();
        Self { site, guest, node: String::new(), _power: power }
    }

    async fn linked(mut self) -> Self {
        let new = json!({ "mac_address": MAC, "machine_id": MACHINE });
        self.site.http.post("/api/v1/nodes", &new).await.ok();
        self.node = self.site.active(MAC).await;
        self
    }

    /// The same database and machine, and another server.
    pub async fn served_again(self, killed: bool) -> Self {
        let Self { site, guest, node, _power } = self;
        if killed {
            site.server.engine.kill();
        }
        let fleet = site.server.stop().await;
        let site = serving(fleet, &guest).await;
        Self { site, guest, node, _power }
    }

    pub async fn starts(&self, request: &str, parameters: Value) -> Result<String, Value> {
        let body = json!({
            "request_id": request, "machine_id": MACHINE, "type": "REPAVE", "parameters": parameters,
        });
        let answer = self.site.http.post("/api/v1/runs", &body).await;
        match answer.status() {
            200 => Ok(answer.json()["run_id"].as_str().expect("an id").to_owned()),
            _ => Err(answer.json()["error"].clone()),
        }
    }

    /// A repave with what boot workflow `debian` installs.
    pub async fn repave(&self, request: &str) -> String {
        self.starts(request, json!({ "image": "debian" })).await.expect("starts")
    }

    /// A run of these steps.
    pub async fn carries_out(&self, steps: &[Value]) -> String {
        let plan = json!({ "plan": { "plan_id": "of-the-test", "steps": steps } });
        let made = self.site.http.post("/api/v1/plans", &plan).await;
        assert_eq!(made.status(), 200, "{}", made.text());
        let body = json!({ "request_id": "of-the-test", "machine_id": MACHINE, "plan_id": "of-the-test" });
        let run = self.site.http.post("/api/v1/runs", &body).await.ok();
        run["run_id"].as_str().expect("an id").to_owned()
    }

    pub async fn run(&self, id: &str) -> Value {
        self.site.http.get(&format!("/api/v1/runs/{id}")).await.ok()
    }

    /// The run once it has ended, which must be as `phase`.
    pub async fn ended(&self, id: &str, phase: &str) -> Value {
        let run = eventually("the run ends", || async {
            let run = self.run(id).await;
            let ended = matches!(run["phase"].as_str(), Some("SUCCEEDED" | "FAILED" | "CANCELED"));
            ended.then_some(run)
        })
        .await;
        assert_eq!(run["phase"], phase, "{run:#}");
        run
    }

    pub async fn why(&self, path: &str) -> String {
        self.site.http.get(&format!("/api/v1/{path}/why")).await.ok().to_string()
    }

    pub async fn why_says(&self, path: &str, words: &str) {
        eventually(&format!("why of {path} says {words:?}"), || async {
            self.why(path).await.contains(words).then_some(())
        })
        .await;
    }

    pub async fn guest_says(&self, status: &str, times: usize) {
        eventually("the guest says so", || async {
            let said = self.guest.said().iter().filter(|said| said.status == status).count();
            (said >= times).then_some(())
        })
        .await;
    }

    pub async fn state(&self) -> String {
        self.site.state(&self.node).await
    }

    /// Every move since the node was first active: from, to, by what, and whom.
    pub async fn moves(&self) -> Vec<(String, String, String, String)> {
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("-").to_owned();
        let mut rows = self.site.history(&self.node).await;
        rows.reverse();
        let first = rows.iter().position(|row| row["to_state"] == "active").expect("was active");
        let read =
            |r: &Value| (text(r, "from_state"), text(r, "to_state"), text(r, "triggered_by"), text(r, "user_id"));
        rows[first + 1..].iter().map(read).collect()
    }

    /// What is in the log of a step.
    pub async fn log(&self, run: &str, step: &str) -> String {
        let id = RunId::from_text(run.to_owned());
        let store = &self.site.server.fleet.store;
        let chunks = store.read(move |tx| store::step_log::after(tx, &id, 0, 10_000)).await.expect("a log");
        let of = chunks.iter().filter(|chunk| chunk.step == step).flat_map(|chunk| chunk.data.clone());
        String::from_utf8_lossy(&of.collect::<Vec<_>>()).into_owned()
    }

    /// Nothing is left of a network boot that was set.
    pub fn boots_its_disk_next(&self) {
        let system = self.guest.responder.system(1);
        assert_eq!((system.boot_enabled.as_str(), system.boot_target.as_str()), ("Disabled", "None"));
    }

    /// A second repave is as good as a first.
    pub async fn works_again(&self, request: &str) {
        self.guest.release();
        let (written, run) = (self.guest.written(), self.repave(request).await);
        self.ended(&run, "SUCCEEDED").await;
        assert_eq!((self.guest.written(), self.state().await.as_str()), (written + 1, "active"));
        self.boots_its_disk_next();
    }

    /// A repave that stands at 43 percent.
    pub async fn halfway(&self, request: &str) -> String {
        self.guest.will(&[Manner::Stalls(43)]);
        let run = self.repave(request).await;
        self.guest_says("progress", 2).await;
        run
    }
}
