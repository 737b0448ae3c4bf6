//! A bench for one test: the stand-in, disks in a folder, and machines that boot the installer.

use crate::standin::{StandIn, TOKEN};
use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::qemu::{self, Disk, Machine, Plan, Turn};

pub const MAC: &str = "52:54:00:4d:57:01";
/// What a disk is full of before anything happens to it.
pub const OLD: u8 = 0xa5;
pub const MIB: usize = 1 << 20;

pub struct Bench {
    pub standin: StandIn,
    folder: tempfile::TempDir,
    _turn: Turn,
}

impl Bench {
    pub fn new() -> Self {
        Self { standin: StandIn::start(), folder: testkit::scratch::folder(), _turn: qemu::turn() }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A disk full of old bytes.
    pub fn disk(&self, name: &str, bytes: usize) -> PathBuf {
        let file = self.file(name);
        std::fs::write(&file, vec![OLD; bytes]).expect("a disk");
        file
    }

    /// The order to install the image, and the image. What is changed is given as further pairs, the last of a name counts.
    pub fn install(&self, image: &[u8], changes: &[(&str, &str)]) {
        self.order(
            &[
                ("task", "install"),
                ("node", "it's a \"node\" \\ $(reboot) `reboot`"),
                ("attempt", "1"),
                ("image_url", &format!("{}/image", self.standin.url())),
                ("image_sha256", &sha256(image)),
                ("image_bytes", &image.len().to_string()),
                ("image_format", "raw"),
                ("disk", "auto"),
                ("disk_serial", ""),
                ("seed", "no"),
                ("reboot", "disk"),
            ],
            changes,
        );
        self.standin.behaviour().image = image.to_vec();
    }

    pub fn order(&self, usual: &[(&str, &str)], changes: &[(&str, &str)]) {
        let all = usual.iter().chain(changes).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.standin.behaviour().order = all.collect();
    }

    /// The installer, with the token of its order. Without pauses for people, and with few tries.
    pub fn installer(&self) -> Plan {
        self.booted(&format!("millwright.token={TOKEN} millwright.tries=4"))
    }

    pub fn booted(&self, words: &str) -> Plan {
        let built = testkit::installer::folder();
        let words = format!(
            "console=ttyS0 quiet no_timer_check millwright.url={} BOOTIF=01-{} millwright.pause=1 {words}",
            self.standin.url(),
            MAC.replace(':', "-")
        );
        Plan::new(MAC).kernel(&built.join("vmlinuz"), &built.join("initrd.gz"), &words)
    }

    /// One boot of the installer with one virtio disk, to its end; its console.
    pub fn run(&self, disk: &Path) -> String {
        self.run_plan(self.installer().disk(Disk::virtio(disk, "DISK0")))
    }

    pub fn run_plan(&self, plan: Plan) -> String {
        let mut machine = plan.start();
        machine.wait_for_exit();
        machine.serial()
    }

    /// The one failure that was reported; nothing was reported as complete.
    pub fn failure(&self, serial: &str) -> String {
        assert!(self.standin.reported("complete").is_empty(), "{serial}");
        let failed = self.standin.reported("failed");
        assert_eq!(failed.len(), 1, "{serial}");
        let error = failed[0]["installation_error"].as_str().expect("a text").to_owned();
        assert!(serial.contains(&format!("FAILED: {error}")), "the console says it too: {error}\n{serial}");
        error
    }

    /// It was reported as complete, once and at the end, and nothing as failed.
    pub fn completed(&self, serial: &str) -> Value {
        assert!(self.standin.reported("failed").is_empty(), "{:?}\n{serial}", self.standin.reported("failed"));
        let complete = self.standin.reported("complete");
        assert_eq!(complete.len(), 1, "{serial}");
        let behaviour = self.standin.behaviour();
        assert_eq!(behaviour.reports.last(), complete.first());
        let statuses = behaviour.reports.iter().map(|r| r["installation_status"].as_str().unwrap_or_default());
        assert_eq!(statuses.clone().next(), Some("started"));
        assert_eq!(statuses.filter(|s| *s == "started").count(), 1);
        let progress: Vec<i64> = behaviour.reports.iter().filter_map(|r| r["installation_progress"].as_i64()).collect();
        assert!(progress.is_sorted() && progress.iter().all(|p| (0..=100).contains(p)), "{progress:?}");
        for report in &behaviour.reports {
            assert_eq!(report["mac_address"], MAC);
        }
        complete[0].clone()
    }
}

/// By a program that nobody here wrote.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = pipe(Command::new("sha256sum"), bytes);
    String::from_utf8_lossy(&digest).split(' ').next().expect("a digest").to_owned()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    pipe(Command::new("gzip"), bytes)
}

fn pipe(mut command: Command, bytes: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    let bytes = bytes.to_vec();
    let feeder = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("fed").expect("written");
    assert!(output.status.success());
    output.stdout
}

/// Bytes that nothing else has: each part differs from the others, and none is what disks are full of.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x4d57_4d57_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(bytes).collect()
}

pub fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).expect("the disk")
}

/// Where two differ first, so that a failure does not print a whole disk.
pub fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    if one.len() != other.len() {
        return Some(one.len().min(other.len()));
    }
    one.iter().zip(other).position(|(a, b)| a != b)
}

pub fn assert_same(one: &[u8], other: &[u8], what: &str) {
    assert_eq!(difference(one, other), None, "{what} differs at this byte ({} and {} bytes)", one.len(), other.len());
}

/// Ends the machine in the middle of its writing: the image is held at a byte, and what came before it is on its way.
pub fn mid_write(bench: &Bench, machine: &mut Machine) {
    bench.standin.wait(machine, "a report of progress", |b| {
        b.reports.iter().any(|r| r["installation_progress"].as_i64().is_some_and(|p| (5..70).contains(&p)))
    });
}
