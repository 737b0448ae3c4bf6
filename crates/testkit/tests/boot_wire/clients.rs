//! busybox' DHCP client on another host, and what it was told.

use crate::network::{Host, output, program, until};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use tokio::process::Child;

/// Called for each event: leaves all that the client was told, and sets the address as a system would.
const SCRIPT: &str = r#"#!/bin/sh
folder=${0%/*}
case $1 in
    deconfig) ip address flush dev "$interface" ;;
    bound | renew)
        ip address flush dev "$interface"
        ip address add "$ip/$mask" dev "$interface"
        [ -z "$router" ] || ip route replace default via "$router" dev "$interface"
        ;;
esac
env >"$folder/$1.new"
mv "$folder/$1.new" "$folder/$1"
echo "$1" >>"$folder/events"
"#;

/// What a client was told, by the names that it has for it.
pub type Told = BTreeMap<String, String>;

pub struct Udhcpc<'a> {
    host: &'a Host,
    card: String,
    folder: tempfile::TempDir,
}

impl<'a> Udhcpc<'a> {
    pub fn new(host: &'a Host, card: &str) -> Self {
        let folder = testkit::scratch::folder();
        let script = folder.path().join("script");
        std::fs::write(&script, SCRIPT).expect("written");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("ours");
        Self { host, card: card.to_owned(), folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments<'b>(&'b self, script: &'b str, extra: &[&'b str]) -> Vec<&'b str> {
        let mut all = vec!["udhcpc", "-f", "-i", &self.card, "-s", script, "-T", "1", "-t", "20"];
        all.extend(extra);
        all
    }

    /// Asks once: what it was told, or its own words if it got nothing.
    pub async fn asks(&self, extra: &[&str]) -> Result<Told, String> {
        drop(std::fs::remove_file(self.file("bound")));
        let script = self.file("script").display().to_string();
        let once = [&["-n", "-q"], extra].concat();
        let busybox = program("busybox", "apt-get install -y --no-install-recommends busybox-static");
        let ended = output(self.host.command(&busybox, &self.arguments(&script, &once))).await;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        if ended.status.success() { Ok(self.told("bound")) } else { Err(said) }
    }

    /// Goes on; see [`Udhcpc::events`].
    pub fn stays(&self, extra: &[&str]) -> Child {
        let script = self.file("script").display().to_string();
        let busybox = program("busybox", "apt-get install -y --no-install-recommends busybox-static");
        let mut command = self.host.command(&busybox, &self.arguments(&script, extra));
        command.stderr(std::process::Stdio::null()).spawn().expect("udhcpc starts")
    }

    pub fn events(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file("events")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// What it was told with the last event of this name.
    pub fn told(&self, event: &str) -> Told {
        let text = std::fs::read_to_string(self.file(event)).expect("the event has come");
        text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    pub async fn until(&self, event: &str, times: usize) {
        let come = || self.events().iter().filter(|e| *e == event).count() >= times;
        until(&format!("{event}, {times} times"), come).await;
    }
}

pub async fn signal(child: &Child, name: &str) {
    let id = child.id().expect("it runs").to_string();
    let sent = output(crate::network::command("kill", &[name, &id])).await;
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
}
