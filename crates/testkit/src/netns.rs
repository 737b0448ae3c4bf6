//! A network of its own for tests: a namespace with a bridge and taps for machines on it, and no way out. It has no name and
//! lives as long as a process in it does, so it is gone when dropped or when the test process ends, however it ends.
//!
//! ```text
//! let network = Netns::start(2);                  bridge br0 with 10.77.0.1/24 and fd77::1/64, tap0 and tap1 on it
//! network.command("millwright").args(…)           a program that runs in there
//! ```
//!
//! Needs root for the namespace, and says so.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

pub const BRIDGE: &str = "br0";
/// Of this side, on the bridge.
pub const ADDRESS: &str = "10.77.0.1";
const INSTALL: &str = "apt-get install -y --no-install-recommends iproute2 util-linux";

/// Makes the network and stays in it until its input ends. Argument: how many taps.
const GUARD: &str = r#"
set -e
ip link set lo up
# with its usual delay, whoever boots would wait ten seconds for the bridge
ip link add br0 type bridge forward_delay 0 stp_state 0
ip addr add 10.77.0.1/24 dev br0
ip addr add fd77::1/64 dev br0 nodad
ip link set br0 up
for number in $(seq 0 $(($1 - 1))); do
    # for whoever runs a machine without being root
    ip tuntap add dev "tap$number" mode tap user nobody
    ip link set "tap$number" master br0 up
done
echo ready
while read -r _; do :; done
"#;

/// Dropped: gone, once the programs in it have ended.
pub struct Netns {
    guard: Child,
}

impl Netns {
    /// With so many taps: `tap0` and on.
    pub fn start(taps: usize) -> Self {
        let root = Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0");
        assert!(root, "a network for tests is a namespace of its own (unshare --net): run the tests as root");
        let mut guard = Command::new("unshare")
            .args(["--net", "sh", "-c", GUARD, "netns-guard", &taps.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("unshare does not run ({e}); install it: {INSTALL}"));
        let mut line = String::new();
        let read = BufReader::new(guard.stdout.take().expect("a pipe")).read_line(&mut line);
        if read.is_err() || line != "ready\n" {
            let output = guard.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr);
            panic!("the network for tests cannot be made: {said}; is everything installed? {INSTALL}");
        }
        Self { guard }
    }

    /// Ready to be given arguments and started: it becomes a process in this network, with the id that `spawn` tells.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.flag()).arg("--").arg(program);
        command
    }

    /// What makes `nsenter` enter it.
    pub fn flag(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.guard.id())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}
