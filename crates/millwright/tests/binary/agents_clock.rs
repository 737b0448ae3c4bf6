//! Clocks that are wrong, and hours that go by: the processes are real, and what they are told of the time is moved by a
//! small library before the system's own. A day ahead, half the life of a certificate, ten hours without a server.

use crate::agents_site::{Machine, QUICK, Site, eventually, said};
use crate::fleet::{list, text};
use crate::process::Process;
use crate::server::Launch;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Adds as many seconds as a file says to the time of day, and to the clock that intervals are measured by: as if they had
/// gone by.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long leap(void) {
    const char *path = getenv("LEAP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    char text[32] = {0};
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    return n > 0 ? atol(text) : 0;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_MONOTONIC)) at->tv_sec += leap();
    return failed;
}
"#;

fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, path) = (folder.path().join("leap.c"), folder.path().join("leap.so"));
        std::fs::write(&source, SOURCE).expect("written");
        // the linker of every build here
        said(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(&source));
        (folder, path)
    });
    path
}

/// The time of one process.
pub struct Leaping {
    file: PathBuf,
}

impl Leaping {
    pub fn new(site: &Site, name: &str) -> Self {
        let leaping = Self { file: site.path(&format!("{name}.leap")) };
        leaping.set(0);
        leaping
    }

    fn set(&self, seconds: i64) {
        let beside = self.file.with_extension("new");
        std::fs::write(&beside, seconds.to_string()).expect("written");
        std::fs::rename(&beside, &self.file).expect("whole");
    }

    /// So many more seconds go by at once.
    pub fn leap(&self, seconds: i64) {
        let now: i64 = std::fs::read_to_string(&self.file).expect("there").parse().expect("a number");
        self.set(now + seconds);
    }

    fn variables(&self) -> [(&'static str, &str); 2] {
        [("LEAP", self.file.to_str().expect("a plain path")), ("LD_PRELOAD", library().to_str().expect("a plain path"))]
    }

    /// A server that lives in this time.
    pub fn under(&self, launch: &Launch) -> Launch {
        self.variables().iter().fold(launch.clone(), |launch, (name, value)| launch.env(name, value))
    }

    /// An agent that does.
    fn agent(&self, machine: &Machine) -> Process {
        let mut command = machine.command(&["run"]);
        Process::spawn(command.envs(self.variables()))
    }
}

const HOUR: i64 = 3600;

fn until_of(node: &Value) -> String {
    text(&node["agent"], "certificate_until").to_owned()
}

#[test]
fn a_clock_that_is_a_day_ahead_is_a_finding_and_nothing_else() {
    let site = Site::new();
    let server = site.start();
    let time = Leaping::new(&site, "agent");
    time.leap(24 * HOUR);
    let machine = site.machine("gpu-1");
    machine.give(&site.create(&server, "gpu-1"));
    let agent = time.agent(&machine);
    let node = server.node_is("gpu-1", "active");
    let skew = text(&node["agent"], "clock_skew_ms").parse::<i64>().expect("a number");
    assert!((23 * HOUR..25 * HOUR).contains(&(skew / 1000)), "{node:#}");
    let found = eventually("a finding", || {
        list(&server.get("findings"), "findings")
            .into_iter()
            .find(|f| f["kind"] == "CLOCK_SKEW" && f["state"] != "resolved")
    });
    assert_eq!((text(&found, "subject"), text(&found, "kind")), (text(&node, "id"), "CLOCK_SKEW"));
    // what it has to do it does
    assert!(server.ok(&["node", "check-clean", "gpu-1"]).contains("tsk_"));
    drop(agent);
    time.set(0);
    let _agent = time.agent(&machine);
    eventually("its clock is right again", || {
        let open = list(&server.get("findings"), "findings");
        open.iter().all(|f| f["kind"] != "CLOCK_SKEW" || f["state"] == "resolved").then_some(())
    });
}

#[test]
fn certificates_are_renewed_at_half_life_and_after_ten_hours_without_a_server() {
    let site = Site::with(&format!("{QUICK}certificate_hours = 1\n"));
    let [server_time, agent_time] = ["server", "agent"].map(|name| Leaping::new(&site, name));
    let mut launch = server_time.under(&site.launch);
    let server = launch.start_at_a_fixed_address();
    let machine = site.machine("gpu-1");
    machine.give(&site.create(&server, "gpu-1"));
    let mut agent = agent_time.agent(&machine);
    let first = server.node_is("gpu-1", "active");
    let key = text(&machine.identity(), "key_sha256").to_owned();

    // not before half of its hour, which the agent counts by the clock of intervals
    agent_time.leap(28 * 60);
    for _ in 0..3 {
        let heard = |node: &Value| text(&node["agent"], "last_heartbeat").to_owned();
        let last = heard(&server.node("gpu-1"));
        let node = eventually("a heartbeat", || Some(server.node("gpu-1")).filter(|node| heard(node) != last));
        assert_eq!(until_of(&node), until_of(&first), "too early");
    }
    let mut looks = 0;
    let renewed = eventually("it is renewed", || {
        // and a part of the rest that agents are spread over; one that was cut off by a leap has begun to count anew
        if looks % 50 == 0 {
            agent_time.leap(34 * 60);
        }
        looks += 1;
        Some(server.node("gpu-1")).filter(|node| until_of(node) != until_of(&first))
    });
    assert!(until_of(&renewed) > until_of(&first));

    server.kill();
    for time in [&server_time, &agent_time] {
        time.leap(10 * HOUR);
    }
    let server = launch.start();
    // the certificate has ended nine hours ago, and is good for its own renewal
    let back = eventually("it is back", || {
        let node = server.node("gpu-1");
        (until_of(&node) > until_of(&renewed) && node["status"] == "active" && node["agent"]["connected"] == true)
            .then_some(node)
    });
    assert_eq!((text(&back, "id"), text(&machine.identity(), "key_sha256")), (text(&first, "id"), key.as_str()));
    assert!(!agent.is_over(), "nobody had to start it again");
}
