//! Real machines, emulated, on a network of their own: they boot from their own card by our DHCP, TFTP and HTTP, are written
//! down, approved and installed, and boot what was installed. Verdicts come from the bytes of their disks, looked at from
//! outside, and from what the installed system says on its console. Power cuts, a killed server, an erasure.
//!
//! Needs root for the namespaces; two machines at a time.

use crate::boot_site::{Serving, Site};
use crate::fleet::text;
use crate::process::Process;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use testkit::qemu::{self, Disk, Machine, Plan, Turn};

const CARD: &str = "52:54:00:4d:b0:01";
const MIB: usize = 1 << 20;
/// What a disk is full of before anything happens to it.
const OLD: u8 = 0xa5;
/// With room for the seed's partition behind the image.
const DISK_BYTES: usize = 112 * MIB;

/// An emulated timer on a busy host does not pass the kernel's check; its console is read here.
const CMDLINE: &str = "console=ttyS0 no_timer_check millwright.pause=1";

fn site(more: &str) -> Site {
    Site::new(1, &format!("installer_cmdline = '{CMDLINE}'\n{more}"))
}

/// A machine that is switched on and off, what it is made of, and who may have one now.
struct Rack<'a> {
    site: &'a Site,
    uefi: bool,
    _turn: Turn,
}

impl<'a> Rack<'a> {
    fn new(site: &'a Site, uefi: bool) -> Self {
        let rack = Self { site, uefi, _turn: qemu::turn() };
        std::fs::write(rack.file("disk"), vec![OLD; DISK_BYTES]).expect("a disk");
        rack
    }

    fn file(&self, name: &str) -> PathBuf {
        self.site.home.path(name)
    }

    fn on(&self) -> Machine {
        let plan = Plan::new(CARD).tap(&self.site.network, "tap0").from_network().reboots();
        let plan = plan.disk(Disk::virtio(&self.file("disk"), "DISK0"));
        let plan = plan.smbios("type=1,manufacturer=Test,product=Node,serial=SN-4D-1");
        if self.uefi { plan.uefi(&self.file("variables")).start() } else { plan.start() }
    }

    fn disk(&self) -> Vec<u8> {
        std::fs::read(self.file("disk")).expect("the disk")
    }

    /// The disk holds the image, byte for byte. One entry of its partition table was free, and is the seed's now.
    fn holds(&self, image: &[u8]) {
        let disk = self.disk();
        let entries = 446 + 16..510;
        let other = disk.iter().zip(image).enumerate().position(|(at, (a, b))| a != b && !entries.contains(&at));
        assert_eq!(other, None, "the disk differs from the image at this byte");
    }
}

/// What machines boot and write: the installer, the loaders, an image that boots, and another that does.
fn images(site: &Site, server: &Serving<'_>) -> [Vec<u8>; 2] {
    let built = testkit::installer::folder();
    for (file, name) in [
        ("vmlinuz", "installer-vmlinuz"),
        ("initrd.gz", "installer-initrd"),
        ("undionly.kpxe", "undionly.kpxe"),
        ("snponly.efi", "snponly.efi"),
    ] {
        server.add_image(&built.join(file), name);
    }
    let system = std::fs::read(testkit::installer::boot_image()).expect("the image");
    // long enough that there is a middle to be cut off in
    let made = ["first", "second"].map(|name| {
        let tail = (0u32..(36 * MIB / 4) as u32).map(|n| n.wrapping_mul(0x9e37_79b9) ^ name.len() as u32);
        let image: Vec<u8> = system.iter().copied().chain(tail.flat_map(u32::to_le_bytes)).collect();
        let file = site.home.path(name);
        std::fs::write(&file, &image).expect("an image");
        server.add_image(&file, &format!("{name}.raw"));
        server.workflow(&format!(
            "id: {name}\nname: {name}\nkernel: installer-vmlinuz\ninitrd: installer-initrd\n\
             cmdline: {CMDLINE}\nimage: {name}.raw\n"
        ));
        image
    });
    assert_ne!(made[0], made[1]);
    made
}

/// The boot node, once it is as the test wants it.
fn node(server: &Serving<'_>, machine: &mut Machine, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    machine.wait(what, |_| {
        // emulation needs the processor more than we do
        std::thread::park_timeout(Duration::from_millis(400));
        let nodes = server.json(&["boot", "list"]);
        let nodes = nodes["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|n| n["mac_address"] == CARD && is(n))
    })
}

fn in_state(server: &Serving<'_>, machine: &mut Machine, state: &str) -> Value {
    node(server, machine, state, |n| n["state"] == state)
}

fn mid_write(server: &Serving<'_>, machine: &mut Machine) {
    node(server, machine, "the middle of an installation", |n| {
        n["state"] == "installing" && n["install_progress"].as_i64().is_some_and(|p| (3..80).contains(&p))
    });
}

fn ends(machine: &mut Machine, mut process: Process) -> String {
    machine.wait("the end of a command", |_| process.is_over().then_some(()));
    process.end().with(0).out
}

/// The states that it went through, the oldest first.
fn path(server: &Serving<'_>, node: &Value) -> Vec<String> {
    let history = server.json(&["boot", "history", text(node, "id")]);
    let rows = history["data"].as_array().expect("a list");
    rows.iter().rev().map(|row| text(row, "to_state").to_owned()).collect()
}

fn serial_says(machine: &mut Machine, order: &Value) {
    // the seed came with it: cloud-init would know this boot as this order's
    machine.wait_for_line(&format!("instance={}", text(order, "id")));
}

#[test]
fn a_machine_that_nobody_has_touched_is_discovered_installed_and_at_the_end_erased() {
    let site = site("strangers = 'wait'\n");
    let server = site.serve();
    let [image, _] = images(&site, &server);
    let rack = Rack::new(&site, false);
    let mut machine = rack.on();
    let found = node(&server, &mut machine, "what it is made of", |n| !n["inventory"].is_null());
    assert_eq!((text(&found, "state"), text(&found, "serial_number")), ("discovered", "SN-4D-1"));
    let disks = found["inventory"]["disks"].as_array().expect("disks");
    assert_eq!((disks.len(), text(&disks[0], "serial")), (1, "DISK0"), "{found}");
    let known = server.json(&["machine", "show", text(&found, "machine_id")]);
    assert_eq!(text(&known["spec"], "serial_number"), "SN-4D-1", "a machine was made with it: {known}");
    assert!(rack.disk().iter().all(|b| *b == OLD), "nobody approved anything");

    // it waits, and needs no push
    let approval = server.spawn(&["boot", "approve", CARD, "--workflow", "first", "--wait"]);
    let said = ends(&mut machine, approval);
    assert!(said.contains("installed"), "{said}");
    let installed = in_state(&server, &mut machine, "installed");
    serial_says(&mut machine, &installed["order"]);
    rack.holds(&image);
    server.ok(&["boot", "verify", CARD]);
    assert_eq!(path(&server, &installed), ["discovered", "pending", "installing", "installed", "active"]);

    // back to whom it belongs
    server.ok(&["boot", "erase", CARD, "--comment", "goes back"]);
    machine.cut_power();
    let mut machine = rack.on();
    let erased = in_state(&server, &mut machine, "retired");
    machine.cut_power();
    assert!(rack.disk().iter().all(|b| *b == 0), "nothing of it is left");
    let evidence = &erased["order"]["evidence"]["disks"][0];
    assert_eq!((text(evidence, "serial"), text(evidence, "method")), ("DISK0", "overwrite"), "{erased}");
    assert_eq!(path(&server, &erased)[5..], ["deprovisioning", "retired"]);
    server.terminate();
}

#[test]
fn a_uefi_machine_is_installed_though_the_server_is_killed_meanwhile() {
    let site = site("");
    let server = site.serve();
    let [image, _] = images(&site, &server);
    // known before it comes: its first boot installs
    server.ok(&["boot", "register", CARD, "--workflow", "first"]);
    server.ok(&["boot", "approve", CARD]);
    let rack = Rack::new(&site, true);
    let mut machine = rack.on();
    mid_write(&server, &mut machine);
    server.kill();
    let server = site.serve();
    let installed = in_state(&server, &mut machine, "installed");
    assert_eq!(installed["install_attempts"], 0, "no attempt was lost: {installed}");
    serial_says(&mut machine, &installed["order"]);
    rack.holds(&image);
    server.ok(&["boot", "verify", CARD]);
    assert_eq!(path(&server, &installed), ["discovered", "pending", "installing", "installed", "active"]);
    server.terminate();
}

#[test]
fn three_power_cuts_fail_an_installation_and_another_workflow_mends_it() {
    let site = site("");
    let server = site.serve();
    let [_, other] = images(&site, &server);
    server.ok(&["boot", "register", CARD, "--workflow", "first"]);
    server.ok(&["boot", "approve", CARD]);
    let rack = Rack::new(&site, false);
    let mut machine = rack.on();
    for cut in 1..=3 {
        mid_write(&server, &mut machine);
        machine.cut_power();
        machine = rack.on();
        node(&server, &mut machine, "the failed attempt", |n| n["install_attempts"] == cut);
    }
    let failed = in_state(&server, &mut machine, "install_failed");
    assert!(text(&failed, "last_install_error").contains("booted again"), "{failed}");
    // on its own console, too
    machine.wait_for_line("installation failed");
    let findings = server.json(&["finding", "list"]);
    let about =
        findings["findings"].as_array().expect("a list").iter().find(|f| text(f, "subject") == text(&failed, "id"));
    assert_eq!(about.map(|f| text(f, "kind")), Some("INSTALL_FAILED"), "{findings}");

    server.ok(&["boot", "retry", CARD, "--workflow", "second"]);
    machine.cut_power();
    let mut machine = rack.on();
    let installed = in_state(&server, &mut machine, "installed");
    serial_says(&mut machine, &installed["order"]);
    rack.holds(&other);
    server.ok(&["boot", "verify", CARD]);
    let walked = path(&server, &installed);
    assert_eq!(walked.last().map(String::as_str), Some("active"), "{walked:?}");
    assert!(walked.windows(2).any(|pair| pair == ["install_failed", "pending"]), "{walked:?}");
    server.terminate();
}
