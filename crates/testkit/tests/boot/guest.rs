//! A machine that exists only here. Its BMC is our Redfish responder; what that boots, it boots: from the network it
//! asks for a script and plays the installer that it is given, over plain HTTP as the real one does; else its disk.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::redfish_responder::{Options, Responder, What};
use testkit::sshd::SshHost;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// What one boot into the installer comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    Installs,
    /// Says so, twice, and boots again.
    Fails(&'static str),
    /// Boots again in the middle of it, without a word.
    Dies,
    /// Goes on saying how far it is, until it is released or told to stop.
    Stalls(u8),
}

/// One report, and what was answered: whether it counted, the state, why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub status: String,
    pub applied: bool,
    pub state: String,
    pub reason: String,
}

pub struct Guest {
    pub responder: Responder,
    /// The system on its disk, where it has one that can be reached.
    pub host: Option<SshHost>,
    mac: String,
    url: Mutex<String>,
    manners: Mutex<VecDeque<Manner>>,
    released: AtomicBool,
    /// Its firmware asks the network before it boots its disk.
    pub network_first: AtomicBool,
    disk_boots: AtomicUsize,
    written: AtomicUsize,
    said: Mutex<Vec<Said>>,
    tokens: Mutex<Vec<String>>,
    installers: Mutex<Vec<String>>,
    orders: Mutex<Vec<String>>,
    seeds: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Dropped: nothing of it goes on.
pub struct Powered(JoinHandle<()>);

impl Drop for Powered {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Guest {
    pub async fn new(mac: &str, number: usize, with_system: bool) -> Arc<Self> {
        let responder = Responder::start(Options::default()).await;
        responder.change(1, |s| {
            s.uuid = format!("4d570000-b007-4000-8000-{number:012x}");
            s.serial = format!("SN-BOOT-{number}");
            s.on = true;
        });
        let host = match with_system {
            true => Some(tokio::task::spawn_blocking(SshHost::start).await.expect("a host")),
            false => None,
        };
        let system = responder.system(1);
        if let Some(host) = &host {
            let inside = |path: &str, text: &str| std::fs::write(host.inside(path), text).expect("writes");
            inside("/sys/class/dmi/id/product_serial", &system.serial);
            inside("/sys/class/dmi/id/product_uuid", &system.uuid);
            inside("/etc/machine-id", &format!("{}\n", uuid::Uuid::now_v7().simple()));
        }
        Arc::new(Self {
            responder,
            host,
            mac: mac.to_owned(),
            url: Mutex::default(),
            manners: Mutex::default(),
            released: AtomicBool::new(false),
            network_first: AtomicBool::new(false),
            disk_boots: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            said: Mutex::default(),
            tokens: Mutex::default(),
            installers: Mutex::default(),
            orders: Mutex::default(),
            seeds: Mutex::default(),
        })
    }

    /// From now on what happens to its BMC happens to it.
    pub fn plugged_in(self: &Arc<Self>) -> Powered {
        let guest = self.clone();
        Powered(tokio::spawn(async move { guest.follow().await }))
    }

    /// Where the boot service is now.
    pub fn served_at(&self, url: &str) {
        url.clone_into(&mut lock(&self.url));
    }

    /// What its next boots into an installer come to; after those it installs.
    pub fn will(&self, manners: &[Manner]) {
        lock(&self.manners).extend(manners.iter().cloned());
    }

    /// What stalls goes on to its end.
    pub fn release(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub fn disk_boots(&self) -> usize {
        self.disk_boots.load(Ordering::Acquire)
    }

    /// How often a whole image was written.
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Acquire)
    }

    pub fn said(&self) -> Vec<Said> {
        lock(&self.said).clone()
    }

    /// The tokens it was given, one for each boot into an installer.
    pub fn tokens(&self) -> Vec<String> {
        lock(&self.tokens).clone()
    }

    /// The scripts that had a token in them.
    pub fn installers(&self) -> Vec<String> {
        lock(&self.installers).clone()
    }

    pub fn orders(&self) -> Vec<String> {
        lock(&self.orders).clone()
    }

    pub fn seeds(&self) -> Vec<String> {
        lock(&self.seeds).clone()
    }

    /// The resets that its BMC was told.
    pub fn resets(&self) -> usize {
        self.responder.done_to(1).iter().filter(|what| matches!(what, What::Power { .. })).count()
    }

    /// Where its BMC had it boot from.
    pub fn told_to_boot_from(&self) -> Vec<String> {
        let from = |what| if let What::Booted { from } = what { Some(from) } else { None };
        self.responder.done_to(1).into_iter().filter_map(from).collect()
    }

    async fn follow(self: Arc<Self>) {
        let mut followed = self.responder.done_to(1).len();
        let mut running: Option<Powered> = None;
        loop {
            let all = self.responder.done_to(1);
            for what in &all[followed..] {
                match what {
                    What::Booted { from } => {
                        drop(running.take());
                        let (guest, from) = (self.clone(), from.clone());
                        running = Some(Powered(tokio::spawn(async move { guest.boots(from).await })));
                    }
                    What::Power { on: false, .. } => drop(running.take()),
                    _ => {}
                }
            }
            followed = all.len();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A boot of its own accord, which its BMC hears nothing of: what is set for the next boot is used up all the same.
    fn firmware(&self) -> String {
        let mut from = String::new();
        self.responder.change(1, |s| {
            from = if s.boot_enabled == "Disabled" { "Hdd".to_owned() } else { s.boot_target.clone() };
            if s.boot_enabled == "Once" {
                (s.boot_enabled, s.boot_target) = ("Disabled".into(), "None".into());
            }
        });
        from
    }

    async fn on_host(&self, does: impl FnOnce(&SshHost) + Send) {
        if let Some(host) = &self.host {
            tokio::task::block_in_place(|| does(host));
        }
    }

    async fn boots(&self, from: String) {
        let mut from = from;
        self.on_host(SshHost::power_off).await;
        loop {
            let network = from != "Hdd" || self.network_first.load(Ordering::Acquire);
            if network && let Some(token) = self.ask().await {
                lock(&self.tokens).push(token.clone());
                self.install(&token).await;
                from = self.firmware();
                continue;
            }
            self.on_host(SshHost::power_on).await;
            self.disk_boots.fetch_add(1, Ordering::AcqRel);
            return;
        }
    }

    /// What it would be given now, if it asked.
    pub async fn ask_again(&self) -> Option<String> {
        self.ask().await
    }

    /// The token of the installer that the boot service has for it; else its disk.
    async fn ask(&self) -> Option<String> {
        let system = self.responder.system(1);
        let path = format!("/api/v1/boot?mac={}&uuid={}&serial={}&arch=x86_64", self.mac, system.uuid, system.serial);
        let script = self.must("GET", &path, None, "").await;
        assert!(script.starts_with("#!ipxe\n"), "{script}");
        let token =
            script.split_whitespace().find_map(|word| word.strip_prefix("millwright.token=")).map(str::to_owned);
        if token.is_some() {
            lock(&self.installers).push(script);
        }
        token
    }

    async fn install(&self, token: &str) {
        let manner = lock(&self.manners).pop_front().unwrap_or(Manner::Installs);
        self.says(token, "started", json!({})).await;
        let order = self.must("GET", "/api/v1/boot/order", Some(token), "").await;
        lock(&self.orders).push(order);
        let seed = self.must("GET", "/api/v1/boot/seed/user-data", Some(token), "").await;
        lock(&self.seeds).push(seed);
        let lines = json!({ "installation_progress": 10, "log_lines": ["installer: writing to /dev/vda"] });
        self.says(token, "progress", lines).await;
        match manner {
            Manner::Installs => {}
            Manner::Dies => return,
            Manner::Fails(error) => {
                for _ in 0..2 {
                    self.says(token, "failed", json!({ "installation_error": error })).await;
                }
                return;
            }
            Manner::Stalls(percent) => {
                loop {
                    // looked at before it is asked: one that is released is told once more whether to go on
                    let released = self.released.load(Ordering::Acquire);
                    let answer = self.says(token, "progress", json!({ "installation_progress": percent })).await;
                    if answer.state == "install_failed" || answer.reason == "ORDER_CLOSED" {
                        return;
                    }
                    if released {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        self.on_host(SshHost::change_host_key).await;
        self.on_host(SshHost::power_off).await;
        self.written.fetch_add(1, Ordering::AcqRel);
        let lines = json!({ "log_lines": ["installer: written and read back"] });
        self.says(token, "complete", lines).await;
        // it may not know that it was heard
        self.says(token, "complete", json!({})).await;
    }

    pub async fn says(&self, token: &str, status: &str, more: Value) -> Said {
        let mut body = json!({ "mac_address": self.mac, "installation_status": status });
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let answer = self.must("POST", "/api/v1/report", Some(token), &body.to_string()).await;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let applied = answer["applied"] == true;
        let said = Said { status: status.to_owned(), applied, state: text("state"), reason: text("reason") };
        lock(&self.said).push(said.clone());
        said
    }

    /// Asks until it is answered with 200, as firmware and installers do: the server may be away for a while.
    async fn must(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> String {
        let mut last = String::new();
        for _ in 0..600 {
            match self.http(method, path, token, body).await {
                Ok((200, body)) => return body,
                Ok((status, body)) => last = format!("{status}: {body}"),
                Err(e) => last = e.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{method} {path} was never answered: {last}");
    }

    pub async fn http(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> std::io::Result<(u16, String)> {
        let address = lock(&self.url).trim_start_matches("http://").to_owned();
        let mut wire = TcpStream::connect(&address).await?;
        let bearer = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        wire.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        wire.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("cut short"))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok((status, body.to_owned()))
    }
}
