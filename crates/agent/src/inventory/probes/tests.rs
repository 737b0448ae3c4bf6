//! Each probe's verdict on planted trees and on GPUs that are made up.

use super::*;
use gpu::pci::OnBus;
use gpu::{Gpu, Gpus};
use std::fs;

fn put(host: &Host, path: &str, content: &str) {
    let at = host.path(path);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, content).unwrap();
}

fn planted() -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new(folder.path());
    (folder, host)
}

#[test]
fn every_probe_has_a_name_and_a_message_and_an_empty_tree_is_not_held_against_it() {
    let (folder, host) = planted();
    let probes = probes(&host, folder.path(), &Seen::default());
    let names: Vec<_> = probes.iter().map(|probe| probe.name.as_str()).collect();
    let expected = ["disk_space", "disk_errors", "memory", "clock", "gpu_present", "gpu_ecc", "gpu_remapped_rows"];
    assert_eq!(names, expected);
    assert!(probes.iter().all(|probe| !probe.message.is_empty()));
    // that the disk under this test is full is somebody's to know
    assert!(probes.iter().skip(1).all(|probe| probe.ok), "{probes:?}");
}

#[test]
fn room_runs_out_by_bytes_by_share_and_by_files() {
    const GIB: u64 = 1 << 30;
    assert!(space("root", 10 * GIB, 100 * GIB, 500, 1000).is_ok());
    assert!(space("root", 10 * GIB, 100 * GIB, 0, 0).is_ok(), "some do not count files");
    assert!(space("root", 0, 0, 0, 0).is_ok(), "some do not count at all");
    assert!(space("root", GIB, 100 * GIB, 500, 1000).is_err());
    assert!(space("root", 200 << 20, GIB, 500, 1000).is_err());
    assert!(space("root", 10 * GIB, 100 * GIB, 9, 1000).is_err());
    let (folder, host) = planted();
    let told = disk_space(&host, &folder.path().join("missing"));
    assert!(told.is_err() || told.is_ok_and(|told| told.contains("state: not known")));
}

#[test]
fn noted_errors_of_disks_and_memory_are_told() {
    let (_folder, host) = planted();
    put(&host, "/sys/fs/ext4/sda1/errors_count", "0\n");
    put(&host, "/sys/fs/ext4/features/x", "");
    put(&host, "/sys/block/md0/md/degraded", "0\n");
    assert!(disk_errors(&host).is_ok());
    put(&host, "/sys/block/md0/md/degraded", "1\n");
    assert!(disk_errors(&host).is_err_and(|why| why.contains("md0")));
    put(&host, "/sys/fs/ext4/sda1/errors_count", "3\n");
    assert!(disk_errors(&host).is_err_and(|why| why.contains("sda1")));

    put(&host, "/proc/meminfo", "MemTotal: 100000 kB\nMemAvailable: 50000 kB\n");
    put(&host, "/sys/devices/system/edac/mc/mc0/ce_count", "7\n");
    put(&host, "/sys/devices/system/edac/mc/mc0/ue_count", "0\n");
    assert_eq!(memory(&host), Ok("48 MiB available, 7 corrected error(s)".to_owned()));
    put(&host, "/proc/meminfo", "MemTotal: 100000 kB\nMemAvailable: 1000 kB\n");
    assert!(memory(&host).is_err());
    put(&host, "/proc/meminfo", "rubbish");
    assert!(memory(&host).is_ok());
    put(&host, "/sys/devices/system/edac/mc/mc1/ue_count", "1\n");
    assert!(memory(&host).is_err_and(|why| why.contains("mc1")));
}

#[test]
fn a_clock_is_only_wrong_by_the_word_of_its_keeper() {
    let (_folder, host) = planted();
    assert!(clock(&host).is_ok_and(|told| told.contains("nobody")));
    put(&host, "/run/chrony/chronyd.pid", "1");
    assert!(clock(&host).is_ok_and(|told| told.contains("chronyd")));
    fs::create_dir_all(host.path("/run/systemd/timesync")).unwrap();
    assert!(clock(&host).is_err());
    put(&host, "/run/systemd/timesync/synchronized", "");
    assert!(clock(&host).is_ok_and(|told| told.starts_with("synchronised")));
}

fn one(change: impl FnOnce(&mut Gpu)) -> Seen {
    let mut gpu = Gpu { pci_bus_id: Some("0000:1b:00.0".to_owned()), ..Gpu::default() };
    gpu.health.ecc_uncorrected = Some(2);
    gpu.health.ecc_uncorrected_since_reset = Some(0);
    gpu.health.remapping_failed = Some(false);
    gpu.health.remapping_pending = Some(false);
    change(&mut gpu);
    Seen { gpus: Gpus { driver: Some("580".to_owned()), gpus: vec![gpu], note: None }, ..Seen::default() }
}

#[test]
fn a_gpu_is_well_until_it_says_otherwise() {
    let well = one(|_| ());
    assert!(gpu_present(&well).is_ok() && gpu_ecc(&well).is_ok() && gpu_remapped_rows(&well).is_ok());
    assert!(gpu_ecc(&one(|gpu| gpu.health.ecc_uncorrected_since_reset = Some(1))).is_err());
    assert!(gpu_remapped_rows(&one(|gpu| gpu.health.remapping_failed = Some(true))).is_err());
    assert!(gpu_remapped_rows(&one(|gpu| gpu.health.remapping_pending = Some(true))).is_err());
    assert!(gpu_present(&one(|gpu| gpu.fault = Some("lost".to_owned()))).is_err());
    let silent = one(|gpu| gpu.health = gpu::Health::default());
    assert!(gpu_ecc(&silent).is_ok_and(|told| told.contains("not known")));
    assert!(gpu_remapped_rows(&silent).is_ok_and(|told| told.contains("not known")));
}

#[test]
fn a_gpu_that_is_there_and_not_seen_is_missed() {
    let on =
        |address: &str, driver: Option<&str>| OnBus { address: address.to_owned(), driver: driver.map(str::to_owned) };
    let none = Seen::default();
    assert!(gpu_present(&none).is_ok());
    let undriven = Seen { on_bus: vec![on("0000:1b:00.0", None)], ..Seen::default() };
    assert!(gpu_present(&undriven).is_err());
    let seen = Seen { on_bus: vec![on("0000:1b:00.0", Some("nvidia"))], ..one(|_| ()) };
    assert!(gpu_present(&seen).is_ok());
    let second = Seen { on_bus: vec![on("0000:2b:00.0", Some("nvidia"))], ..seen.clone() };
    assert!(gpu_present(&second).is_err_and(|why| why.contains("0000:2b:00.0")));
    let given = Seen { on_bus: vec![on("0000:2b:00.0", Some("vfio-pci"))], ..seen.clone() };
    assert!(gpu_present(&given).is_ok());
    let hangs = Seen { unanswered: true, ..Seen::default() };
    assert!(gpu_present(&hangs).is_err() && gpu_ecc(&hangs).is_err() && gpu_remapped_rows(&hangs).is_err());
    let gone = Seen { missing: vec!["GPU 1 (x)".to_owned()], ..seen };
    assert!(gpu_present(&gone).is_err_and(|why| why.contains("GPU 1 (x)")));
}
