//! Network boot of a machine that a BMC drives: QEMU behind a Redfish service that nobody here wrote, on a network where
//! our server is all there is (DHCP, TFTP, HTTP). It is found, installed, repaved by runs, cut off from its power in the
//! middle, and let go in the middle.
//!
//! Judged from outside: by the bytes of its disk, by what the system on the disk says on its serial console (which boot,
//! and by whose order it was installed), and by the emulator's own word on its power. Needs root for the namespace.

use crate::boot_site::{Serving, Site};
use crate::fleet::{list, text};
use crate::process::run;
use serde_json::Value;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use testkit::canary::plant;
use testkit::qemu::{self, PATIENCE};
use testkit::redfish_vm::{MAC, RedfishVm, UUID};
use testkit::sushy::USERNAME;
use tokio::time::Instant;

const MACHINE: &str = "vm-1";
const MIB: usize = 1 << 20;
/// Room for the larger image and the seed behind it.
const DISK: usize = 112 * MIB;
/// What the disk is full of before it is written: no part of an image.
const OLD: u8 = 0xa5;
/// Appended to an image, so that its installation has a middle, on a wire that is slow then.
const NOISE: usize = 20 * MIB;
/// Of the partition table, the entry that the installer adds for the seed; the image itself has one partition.
const SEED_ENTRY: std::ops::Range<usize> = 462..478;
const SLOW: [&str; 8] = ["root", "tbf", "rate", "8mbit", "burst", "64k", "latency", "400ms"];
const TAP: &str = "tap0";
const WORKFLOW: &str = "system";
const LARGE: &str = "large.img";
const PLAN: &str = "repave-by-network";
/// The same, with a reboot before it.
const REBOOTS: &str = "reboot-and-repave";

/// Looks until there is something. Each look is a process: not more often than that is worth.
fn wait<T>(what: &str, rack: &Rack<'_>, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}; on the console:\n{}", rack.vm.console());
        std::thread::park_timeout(Duration::from_millis(250));
    }
}

/// Bytes that do not repeat.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x4d57_4d57_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(bytes).collect()
}

struct Rack<'a> {
    site: &'a Site,
    server: Serving<'a>,
    vm: RedfishVm,
    /// What curl logs in with at the BMC.
    login: String,
    small: Vec<u8>,
    large: Vec<u8>,
}

impl<'a> Rack<'a> {
    /// A server with an installer, two images and two plans, and a machine of its inventory that is off.
    fn new(site: &'a Site) -> Self {
        let (home, password) = (&site.home, plant("bmc"));
        let vm = RedfishVm::on_tap(&password, &site.network, TAP, DISK as u64);
        let server = site.serve();
        let file = home.file("vm.key", &password).display().to_string();
        server.ok(&["credential", "set", "vm", "--kind", "bmc", "--username", USERNAME, "--password-file", &file]);
        server.ok(&["machine", "register", MACHINE, "--bmc", &vm.endpoint(), "--credentials", "vm", "--discover"]);
        let small = std::fs::read(testkit::installer::boot_image()).expect("the image");
        let large = [small.clone(), noise(NOISE)].concat();
        std::fs::write(home.path(LARGE), &large).expect("written");
        let built = testkit::installer::folder();
        server.add_image(&built.join("vmlinuz"), "installer-vmlinuz");
        server.add_image(&built.join("initrd.gz"), "installer-initrd");
        server.add_image(&built.join("undionly.kpxe"), "undionly.kpxe");
        server.add_image(&testkit::installer::boot_image(), "small.img");
        server.add_image(&home.path(LARGE), LARGE);
        // no_timer_check: on a busy host an emulated timer does not pass the kernel's check
        server.workflow(&format!(
            "id: {WORKFLOW}\nname: System\nkernel: installer-vmlinuz\ninitrd: installer-initrd\nimage: small.img\n\
             cmdline: console=ttyS0 quiet no_timer_check millwright.pause=2\n"
        ));
        let (netboot, reboot) =
            ("- {name: set-netboot, netboot: {mode: PXE}}", "- {name: reboot, reboot: {mode: force}}");
        let repave =
            format!("- {{name: repave, timeout_seconds: 3600, max_retries: 0, repave: {{image: {WORKFLOW}}}}}");
        for (plan, steps) in [(PLAN, vec![netboot, &repave]), (REBOOTS, vec![netboot, reboot, &repave])] {
            let document = format!("plan_id: {plan}\ndisplay_name: Repave\nsteps:\n{}\n", steps.join("\n"));
            server.ok(&["plan", "create", "-f", &home.file("plan.yaml", &document).display().to_string()]);
        }
        let login = home.file("curl.key", &format!("user = \"{USERNAME}:{password}\"\n")).display().to_string();
        Self { site, server, vm, login, small, large }
    }

    fn node(&self) -> Value {
        self.server.json(&["boot", "show", MAC])
    }

    fn state(&self) -> String {
        text(&self.node(), "state").to_owned()
    }

    /// Tells the BMC itself, past the server: what happens in a machine room.
    fn bmc(&self, reset: &str) {
        let url = format!("{}/Actions/ComputerSystem.Reset", self.vm.endpoint());
        let reset = format!("{{\"ResetType\":\"{reset}\"}}");
        self.site.curl(&["-f", "--config", &self.login, "-H", "Content-Type: application/json", "-d", &reset, &url]);
    }

    /// Every byte from there on is old again. The systems here run in memory: whoever is up goes on.
    fn dirty(&self, from: usize) {
        let disk = std::fs::OpenOptions::new().write(true).open(self.vm.disk()).expect("the disk");
        disk.write_all_at(&vec![OLD; DISK - from], from as u64).expect("written");
    }

    fn disk(&self) -> Vec<u8> {
        std::fs::read(self.vm.disk()).expect("the disk")
    }

    /// The disk begins with the image, but for the seed's partition.
    fn holds(&self, image: &[u8]) {
        let (mut disk, mut image) = (self.disk(), image.to_vec());
        assert_eq!(disk.len(), DISK);
        assert_ne!(disk[SEED_ENTRY], image[SEED_ENTRY], "there is a seed");
        for bytes in [&mut disk, &mut image] {
            bytes[SEED_ENTRY].fill(0);
        }
        let differs = image.iter().zip(&disk).position(|(wanted, there)| wanted != there);
        assert_eq!(differs, None, "the disk differs from the image of {} bytes at this one", image.len());
    }

    /// The order that is open or was the last.
    fn order(&self) -> Value {
        self.node()["order"].clone()
    }

    /// The next boot from disk, after those that were: by whose order it was installed, as its seed says.
    fn boots_from_disk(&self, before: usize) -> String {
        let boots = wait("it boots from its disk", self, || Some(self.vm.disk_boots()).filter(|b| b.len() > before));
        assert_eq!(boots.len(), before + 1, "{boots:?}");
        assert!(boots[..before].iter().all(|(id, _)| *id != boots[before].0), "another boot, by the kernel's own word");
        boots[before].1.clone()
    }

    /// A run of the plan, with what has this name.
    fn starts(&self, plan: &str, image: &str) -> String {
        let image = format!("image={image}");
        let words = ["run", "start", MACHINE, "--type", "REPAVE", "--plan", plan, "--param", &image, "-o", "name"];
        self.server.ok(&words).trim().to_owned()
    }

    fn run(&self, id: &str) -> Value {
        self.server.json(&["run", "show", id])
    }

    /// The run, once it has ended; it must have ended like this.
    fn ended(&self, id: &str, phase: &str) -> Value {
        let ended = |run: &Value| matches!(text(run, "phase"), "SUCCEEDED" | "FAILED" | "CANCELED");
        let run = wait("the run ends", self, || Some(self.run(id)).filter(ended));
        let logs = || self.server.ok(&["run", "logs", id]);
        assert_eq!(text(&run, "phase"), phase, "{run:#}\n{}\n{}", logs(), self.vm.console());
        run
    }

    /// Until the installer is in the middle of its writing, as it reports itself; then `act` happens. Meanwhile the image
    /// comes so slowly that there is time for that.
    fn mid_install(&self, act: impl FnOnce()) {
        let wire = |what: &str, words: &[&str]| {
            run(self.site.network.command("tc").args(["qdisc", what, "dev", TAP]).args(words)).with(0);
        };
        wait("the installer begins", self, || (self.state() == "installing").then_some(()));
        wire("add", &SLOW);
        wait("it is in the middle of its installation", self, || {
            let node = self.node();
            let percent = node["install_progress"].as_u64().unwrap_or_default();
            assert!(percent < 50, "nobody looked in time: {node:#}");
            (percent >= 5).then_some(())
        });
        act();
        wire("del", &["root"]);
    }

    /// The moves since so many rows, the oldest first: from, to, and what moved it.
    fn moves(&self, since: usize) -> Vec<(String, String, String)> {
        let mut rows = list(&self.server.json(&["boot", "history", MAC]), "data");
        rows.reverse();
        let row = |row: &Value| {
            let word = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
            (word("from_state"), word("to_state"), word("triggered_by"))
        };
        rows[since..].iter().map(row).collect()
    }

    /// Where the BMC has it boot from next, if that is not its disk.
    fn boot_override(&self) -> String {
        self.server.json(&["machine", "inspect", MACHINE])["boot"].to_string()
    }
}

fn moved(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(from, to, by)| ((*from).into(), (*to).into(), (*by).into())).collect()
}

const REPAVED: [(&str, &str, &str); 5] = [
    ("active", "reprovision", "system"),
    ("reprovision", "pending", "system"),
    ("pending", "installing", "node_report"),
    ("installing", "installed", "node_report"),
    ("installed", "active", "system"),
];

#[test]
fn a_machine_behind_redfish_is_installed_and_repaved_over_the_network() {
    let _turn = qemu::turn();
    // what it is made of is another test's matter
    let site = Site::new(1, "discover = false\n");
    let rack = Rack::new(&site);
    is_found_and_installed(&rack);
    is_not_touched_where_a_reboot_could_not_be_proven(&rack);
    is_repaved_although_its_power_is_cut(&rack);
    boots_its_disk_after_a_cancel(&rack);
    is_repaved_once_more(&rack);
    rack.server.terminate();
}

/// By a person: switched on, approved, verified.
fn is_found_and_installed(rack: &Rack<'_>) {
    rack.dirty(0);
    rack.server.ok(&["machine", "boot", MACHINE, "pxe"]);
    rack.server.ok(&["machine", "power", MACHINE, "on"]);
    wait("it has booted from the network", rack, || {
        list(&rack.server.json(&["boot", "list"]), "nodes").iter().any(|n| text(n, "mac_address") == MAC).then_some(())
    });
    let node = rack.node();
    assert_eq!((text(&node, "state"), text(&node, "proposed_machine_id")), ("discovered", MACHINE), "{node:#}");
    assert_eq!((text(&node, "system_uuid"), text(&node, "serial_number")), (UUID, "SN-VM-1"), "{node:#}");
    assert!(rack.disk().iter().all(|byte| *byte == OLD), "nobody has approved it: its disk is as it was");
    rack.server.ok(&["boot", "approve", MAC, "--workflow", WORKFLOW, "--link"]);
    assert_eq!(text(&rack.node(), "machine_id"), MACHINE);
    rack.server.ok(&["machine", "power", MACHINE, "restart", "--force"]);
    wait("it is installed", rack, || (rack.state() == "installed").then_some(()));
    rack.holds(&rack.small);
    assert_eq!(rack.boots_from_disk(0), text(&rack.order(), "id"), "what boots is what was ordered");
    rack.server.ok(&["boot", "verify", MAC]);
    let first = [
        ("", "discovered", "node_report"),
        ("discovered", "pending", "admin"),
        ("pending", "installing", "node_report"),
        ("installing", "installed", "node_report"),
        ("installed", "active", "admin"),
    ];
    assert_eq!(rack.moves(0), moved(&first));
    // from here on it boots its disk, unless a run says otherwise
    rack.server.ok(&["machine", "boot", MACHINE, "disk"]);
}

/// This BMC does not tell when it last reset the machine, and there is no system to log in on: a run that reboots it says
/// so, and nothing is overwritten.
fn is_not_touched_where_a_reboot_could_not_be_proven(rack: &Rack<'_>) {
    let rows = rack.moves(0).len();
    let run = rack.ended(&rack.starts(REBOOTS, WORKFLOW), "FAILED");
    assert_eq!(text(&run["error"], "code"), "CAPABILITY_MISSING", "{run:#}");
    assert_eq!((rack.state().as_str(), rack.moves(rows)), ("active", vec![]));
    assert_eq!(rack.vm.disk_boots().len(), 1, "it was not rebooted");
}

/// Somebody trips over the cable in the middle of it: the attempt counts, and the next boot makes another one.
fn is_repaved_although_its_power_is_cut(rack: &Rack<'_>) {
    let (rows, boots) = (rack.moves(0).len(), rack.vm.disk_boots().len());
    rack.dirty(0);
    let run = rack.starts(PLAN, LARGE);
    rack.mid_install(|| rack.bmc("ForceOff"));
    wait("it is off", rack, || {
        (text(&rack.server.json(&["machine", "inspect", MACHINE]), "power") == "off").then_some(())
    });
    assert_eq!(rack.disk()[rack.large.len() - 1], OLD, "it was not done");
    assert_eq!(text(&rack.run(&run), "phase"), "RUNNING");
    rack.bmc("On");
    let node = wait("it makes another attempt", rack, || {
        let begun = |node: &Value| node["order"]["attempt"] == 2 && !node["order"]["started_at"].is_null();
        Some(rack.node()).filter(begun)
    });
    assert_eq!((text(&node, "state"), &node["install_attempts"]), ("installing", &Value::from(1)), "{node:#}");
    let ended = rack.ended(&run, "SUCCEEDED");
    let order = rack.order();
    assert_eq!((order["attempt"].as_u64(), text(&order, "run_id")), (Some(2), run.as_str()), "{order:#}");
    let steps = list(&ended, "steps");
    let repave = steps.iter().find(|step| step["name"] == "repave").expect("the step");
    assert_eq!(repave["retry_count"].as_u64().unwrap_or_default(), 0, "both are within one attempt of the step");
    rack.holds(&rack.large);
    assert_eq!(rack.boots_from_disk(boots), text(&order, "id"), "what boots is what was ordered");
    assert_eq!(rack.moves(rows), moved(&REPAVED));
    // the installer's own lines, and beside them what was made of it
    let log = rack.server.spawn(&["run", "logs", &run, "--step", "repave"]).end().with(0);
    for words in ["attempt 1: install", "attempt 2: install", "read back: the same", "seed: on /dev/vda2"] {
        assert!(log.out.contains(words), "{words:?} is not in {}", log.out);
    }
    for words in ["is installed by network boot", "first boot from disk is proven: it has asked the boot service"] {
        assert!(log.err.contains(words), "{words:?} is not in {}", log.err);
    }
    assert_eq!(rack.boot_override(), "null", "what was set for its sake is taken back");
}

/// The order is closed, the installer stops, and what is booted is the disk, whatever is on it by then.
fn boots_its_disk_after_a_cancel(rack: &Rack<'_>) {
    let (rows, boots) = (rack.moves(0).len(), rack.vm.disk_boots().len());
    // what is behind the part that boots, so that what is written can be told from before
    rack.dirty(rack.small.len());
    let run = rack.starts(PLAN, LARGE);
    rack.mid_install(|| {
        rack.server.ok(&["run", "cancel", &run]);
        rack.ended(&run, "CANCELED");
    });
    let mut canceled = REPAVED[..3].to_vec();
    canceled.push(("installing", "install_failed", "system"));
    assert_eq!(rack.moves(rows), moved(&canceled));
    assert_eq!(text(&rack.order(), "closed_because"), "canceled");
    assert_eq!(rack.boots_from_disk(boots), "none", "a disk that was left half written has no seed");
    assert_eq!(rack.disk()[rack.large.len() - 1], OLD, "the installer has stopped");
    assert_eq!(rack.boot_override(), "null", "what was set for its sake is taken back");
    // and so does every boot after that
    rack.server.ok(&["machine", "power", MACHINE, "restart", "--force"]);
    rack.boots_from_disk(boots + 1);
}

/// What a cancel has left can be installed again; by the workflow's own name, too.
fn is_repaved_once_more(rack: &Rack<'_>) {
    let (rows, boots) = (rack.moves(0).len(), rack.vm.disk_boots().len());
    rack.dirty(0);
    let run = rack.starts(PLAN, WORKFLOW);
    rack.ended(&run, "SUCCEEDED");
    rack.holds(&rack.small);
    assert_eq!(rack.boots_from_disk(boots), text(&rack.order(), "id"), "what boots is what was ordered");
    let mut again = vec![("install_failed", "pending", "system")];
    again.extend(&REPAVED[2..]);
    assert_eq!(rack.moves(rows), moved(&again));
}
