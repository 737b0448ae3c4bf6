//! The seed for cloud-init: on a partition of its own behind the image, found by its label, read here by mtools, sfdisk and
//! blkid, and by the installed system.

use crate::fixture::{Bench, MAC, MIB, assert_same, difference, read};
use std::path::Path;
use std::process::Command;
use testkit::qemu::{Disk, Plan};

const INSTALL: &str = "apt-get install -y --no-install-recommends mtools fdisk util-linux (or run scripts/test)";
pub const USER_DATA: &str = "#cloud-config\nhostname: \"it's; a $(name) \\ ünïcode\"\n";
pub const META_DATA: &str = "instance-id: order-17\nlocal-hostname: node-17\n";

pub fn output(program: &str, arguments: &[&str]) -> String {
    // sfdisk and blkid are for root by their place, not by what they do here
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let out = Command::new(program).env("PATH", path).args(arguments).output();
    let out = out.unwrap_or_else(|e| panic!("{program} does not run ({e}); install it: {INSTALL}"));
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// The partitions, as sfdisk tells them: first sector and size of each.
pub fn partitions(disk: &Path) -> Vec<(usize, usize)> {
    let table: serde_json::Value =
        serde_json::from_str(&output("sfdisk", &["--json", &disk.display().to_string()])).expect("JSON");
    let listed = table["partitiontable"]["partitions"].as_array().expect("partitions");
    let number = |v: &serde_json::Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
    listed.iter().map(|p| (number(&p["start"]), number(&p["size"]))).collect()
}

pub fn check_seed(disk: &Path, (start, _): (usize, usize), network: Option<&str>) {
    let at = (start * 512).to_string();
    let probed = output("blkid", &["-p", "-o", "export", "-O", &at, &disk.display().to_string()]);
    assert!(probed.contains("\nLABEL=CIDATA\n") && probed.contains("\nTYPE=vfat\n"), "{probed}");
    let drive = format!("{}@@{at}", disk.display());
    let file = |name: &str| output("mtype", &["-i", &drive, &format!("::{name}")]);
    assert_eq!((file("user-data").as_str(), file("meta-data").as_str()), (USER_DATA, META_DATA));
    let names = output("mdir", &["-b", "-i", &drive, "::"]);
    assert_eq!(names.contains("network-config"), network.is_some(), "{names}");
    if let Some(network) = network {
        assert_eq!(file("network-config"), network);
    }
}

#[test]
fn an_installed_system_finds_its_seed() {
    let bench = Bench::new();
    let image = std::fs::read(testkit::installer::boot_image()).expect("the image");
    let disk = bench.disk("disk", 80 * MIB);
    bench.install(&image, &[("seed", "yes")]);
    bench.standin.behaviour().seed = vec![("user-data", USER_DATA.into()), ("meta-data", META_DATA.into())];
    let serial = bench.run(&disk);
    bench.completed(&serial);
    let after = read(&disk);
    // but for its entry in the table, the image is what it was
    assert_same(&after[512..image.len()], &image[512..], "the image on the disk");
    let changed = difference(&after[..512], &image[..512]);
    assert!(changed.is_some_and(|at| (462..478).contains(&at)), "the second entry: {changed:?}");
    let found = partitions(&disk);
    assert_eq!(found.len(), 2);
    check_seed(&disk, found[1], None);

    let mut machine = Plan::new(MAC).disk(Disk::virtio(&disk, "DISK0")).start();
    let line = machine.wait_for_line("installed-system boot=");
    assert!(line.trim_end().ends_with("instance=order-17"), "{line}");
}
