//! A provisioning network of its own with the server on it, and the command line as its client.

use crate::process::{Process, program, until};
use crate::server::{Home, after};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::netns::{BRIDGE, Netns};

pub struct Site {
    pub home: Home,
    pub network: Netns,
    config: PathBuf,
}

impl Site {
    /// With so many taps, and these further settings of network boot.
    pub fn new(taps: usize, settings: &str) -> Self {
        let home = Home::new();
        let config = format!("[netboot]\nmode = 'authoritative'\nrange = '10.77.0.100-10.77.0.110'\n{settings}");
        let config = home.file("millwright.toml", &config);
        Self { home, network: Netns::start(taps), config }
    }

    /// The program, in the network.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.network.command(env!("CARGO_BIN_EXE_millwright"));
        let own = program(&self.home.path(""));
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?)))).args(words);
        command.current_dir(self.home.path(""));
        command
    }

    pub fn serve(&self) -> Serving<'_> {
        let data = self.home.path("data").display().to_string();
        let config = self.config.display().to_string();
        let words = ["serve", "--listen", "127.0.0.1:0", "--data", &data, "--netboot", BRIDGE, "--config", &config];
        let mut process = Process::spawn(&mut self.command(&words));
        let url = until("the server serves", || {
            assert!(!process.is_over(), "{}\n{}", process.out(), process.err());
            let ready = process.out().contains("administrator token: ");
            ready.then(|| after(&process.out(), "listens on ")).flatten()
        });
        assert!(
            process.out().contains("network boot on br0, machines come to http://10.77.0.1:7702"),
            "{}",
            process.out()
        );
        Serving { site: self, process, url }
    }

    /// What curl gets from there.
    pub fn curl(&self, words: &[&str]) -> String {
        crate::process::run(self.network.command("curl").arg("-sS").args(words)).with(0).out
    }
}

/// The server on its network. Dropped: killed.
pub struct Serving<'a> {
    site: &'a Site,
    process: Process,
    pub url: String,
}

impl Serving<'_> {
    fn client(&self, words: &[&str]) -> Command {
        let token = self.site.home.path("data/admin.token").display().to_string();
        self.site.command(&[words, &["--server", &self.url, "--token-file", &token]].concat())
    }

    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        self.spawn(words).end().with(0).out
    }

    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let out = self.ok(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words:?}: {e}\n{out}"))
    }

    /// Leaves it running.
    pub fn spawn(&self, words: &[&str]) -> Process {
        Process::spawn(&mut self.client(words))
    }

    pub fn add_image(&self, file: &Path, name: &str) {
        self.ok(&["image", "add", &file.display().to_string(), "--name", name]);
    }

    /// A workflow of this document.
    pub fn workflow(&self, document: &str) {
        let file = self.site.home.file("workflow.yaml", document).display().to_string();
        self.ok(&["workflow", "create", "-f", &file]);
    }

    pub fn kill(self) {
        assert_eq!(self.process.kill().code, None, "ended by the signal");
    }

    pub fn terminate(self) {
        self.process.signal("TERM");
        self.process.end().with(0);
    }
}
