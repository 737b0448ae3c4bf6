//! Planted machines: whole ones, makers' junk, and trees that somebody has spoiled on purpose.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

struct Planted(tempfile::TempDir);

impl Planted {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn host(&self) -> Host {
        Host::new(self.0.path())
    }

    fn at(&self, path: &str) -> PathBuf {
        let at = self.0.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        at
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        fs::write(self.at(path), content).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.at(path)).unwrap();
        self
    }

    fn nic(&self, name: &str, mac: &str) -> &Self {
        self.put(&format!("/sys/class/net/{name}/address"), format!("{mac}\n"));
        self.put(&format!("/sys/class/net/{name}/device/vendor"), "0x15b3\n")
    }

    fn disk(&self, name: &str, sectors: u64) -> &Self {
        self.put(&format!("/sys/block/{name}/size"), format!("{sectors}\n"));
        self.put(&format!("/sys/block/{name}/device/model"), format!("MODEL-{name}   \n"))
    }

    fn cpu(&self, number: u32, socket: u32, siblings: &str) -> &Self {
        let topology = format!("/sys/devices/system/cpu/cpu{number}/topology");
        self.put(&format!("{topology}/physical_package_id"), format!("{socket}\n"));
        self.put(&format!("{topology}/core_cpus_list"), format!("{siblings}\n"))
    }
}

const BOOT: &str = "8f0d1c1e-0000-4000-8000-00000000b001";

fn server() -> Planted {
    let p = Planted::new();
    p.put("/sys/class/dmi/id/product_uuid", "4D570000-0001-4002-8000-5254004D5800\n")
        .put("/sys/class/dmi/id/product_serial", "CZ3-0001\n")
        .put("/sys/class/dmi/id/sys_vendor", "Supermicro\n")
        .put("/sys/class/dmi/id/product_name", "SYS-821GE-TNHR\n")
        .put("/proc/sys/kernel/hostname", "gpu-7\n")
        .put("/proc/sys/kernel/random/boot_id", format!("{BOOT}\n"))
        .put("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        .put("/proc/sys/kernel/arch", "x86_64\n")
        .put("/etc/os-release", "# a comment\nNAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.1 \\\"LTS\\\"\"\n")
        .put("/proc/meminfo", "MemTotal:       1056000 kB\nMemFree: 1 kB\nMemAvailable:    900000 kB\n")
        .put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon 8480C\n\nprocessor\t: 1\nmodel name\t: Xeon 8480C\n")
        .put("/sys/devices/system/cpu/online", "0-3\n")
        .put("/sys/devices/system/cpu/cpufreq/x", "");
    p.cpu(0, 0, "0,2").cpu(1, 1, "1,3").cpu(2, 0, "0,2").cpu(3, 1, "1,3");
    fs::create_dir_all(p.at("/sys/devices/system/cpu/cpu4/x")).unwrap();
    p.nic("eno1", "B8:3F:D2:00:00:02").nic("eno2", "b8:3f:d2:00:00:01");
    p.put("/sys/class/net/eno1/operstate", "up\n").put("/sys/class/net/eno1/speed", "25000\n");
    p.put("/sys/class/net/eno2/operstate", "down\n").put("/sys/class/net/eno2/speed", "-1\n");
    p.link("/sys/class/net/eno1/device/driver", "../../../../bus/pci/drivers/mlx5_core");
    p.disk("nvme0n1", 7_501_476_528).put("/sys/block/nvme0n1/device/serial", "S6XX-1 \n");
    p.put("/sys/block/nvme0n1/queue/rotational", "0\n");
    p.disk("sda", 1000).put("/sys/block/sda/device/vpd_pg80", b"\x00\x80\x00\x09  WD-0017trailing");
    p.put("/sys/block/sda/queue/rotational", "1\n");
    p
}

#[test]
fn a_server_is_told_whole() {
    let p = server();
    let told = inventory(&p.host());
    let facts = told.facts.clone().unwrap();
    assert_eq!(facts, super::facts(&p.host()));
    assert_eq!(facts.system_uuid, "4d570000-0001-4002-8000-5254004d5800");
    assert_eq!((facts.serial_number.as_str(), facts.vendor.as_str()), ("CZ3-0001", "Supermicro"));
    assert_eq!((facts.model.as_str(), facts.hostname.as_str()), ("SYS-821GE-TNHR", "gpu-7"));
    assert_eq!(facts.mac_addresses, ["b8:3f:d2:00:00:01", "b8:3f:d2:00:00:02"]);
    assert_eq!((facts.boot_id.as_str(), boot_id(&p.host()).as_str()), (BOOT, BOOT));
    assert_eq!((told.os.as_str(), told.kernel.as_str()), ("Ubuntu 24.04.1 \"LTS\"", "6.8.0-45-generic"));
    assert_eq!((told.architecture.as_str(), told.cpu_model.as_str()), ("x86_64", "Xeon 8480C"));
    assert_eq!((told.cpu_sockets, told.cpu_cores, told.cpu_threads), (2, 2, 4));
    assert_eq!(told.memory_bytes, 1_056_000 * 1024);
    let disks: Vec<_> = told.disks.iter().map(|d| (d.name.as_str(), d.serial_number.as_str(), d.bytes)).collect();
    assert_eq!(disks, [("nvme0n1", "S6XX-1", 7_501_476_528 * 512), ("sda", "WD-0017", 512_000)]);
    assert_eq!(told.disks[1].model, "MODEL-sda");
    assert!(!told.disks[0].rotational && told.disks[1].rotational);
    let nics: Vec<_> = told.nics.iter().map(|n| (n.name.as_str(), n.speed_mbps, n.up, n.driver.as_str())).collect();
    assert_eq!(nics, [("eno1", 25_000, true, "mlx5_core"), ("eno2", 0, false, "")]);
    assert_eq!(told.nics[0].mac_address, "b8:3f:d2:00:00:02");
    assert!(told.gpus.is_empty() && told.gpu_driver.is_empty() && told.gpu_note.contains("not the machine itself"));
}

#[test]
fn what_makers_leave_blank_is_no_identity() {
    for (file, junk) in [
        ("product_uuid", "03000200-0400-0500-0006-000700080009"),
        ("product_uuid", "not settable"),
        ("product_serial", "To be filled by O.E.M."),
        ("product_serial", "0000000000"),
        ("product_serial", "\u{0}\u{1}"),
        ("sys_vendor", "Default string"),
        ("product_name", "System Product Name\u{7}"),
    ] {
        let p = server();
        p.put(&format!("/sys/class/dmi/id/{file}"), junk);
        let facts = super::facts(&p.host());
        let told = [&facts.system_uuid, &facts.serial_number, &facts.vendor, &facts.model];
        let blank = told.iter().filter(|value| value.is_empty()).count();
        let kept = file == "product_name";
        assert_eq!(blank, usize::from(!kept), "{file}: {junk}: {facts:?}");
        assert!(told.iter().all(|value| !value.chars().any(char::is_control)));
    }
}

#[test]
fn only_cards_that_are_hardware_name_the_machine() {
    let p = server();
    // made by the kernel: no device
    p.put("/sys/class/net/lo/address", "00:00:00:00:00:00\n").put("/sys/class/net/br0/address", "b8:3f:d2:00:00:03\n");
    // a part of a card, a wire to the controller, a made-up address, one that was never set, InfiniBand, rubbish
    p.nic("eno1v0", "b8:3f:d2:00:00:04").put("/sys/class/net/eno1v0/device/physfn/x", "");
    p.nic("usb0", "02:11:22:33:44:55").link("/sys/class/net/usb0/device/subsystem", "../../bus/usb");
    p.nic("dummy9", "b8:3f:d2:00:00:05").put("/sys/class/net/dummy9/addr_assign_type", "1\n");
    p.nic("eno8", "00:00:00:00:00:00").nic("eno9", "nonsense:\u{1}");
    p.nic("ib0", "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:06");
    // a virtual machine's card is hardware enough; one in a bond has its own address beside
    p.nic("ens3", "52:54:00:4D:58:00").link("/sys/class/net/ens3/device/subsystem", "../../bus/virtio");
    p.nic("eno3", "b8:3f:d2:00:00:01").put("/sys/class/net/eno3/bonding_slave/perm_hwaddr", "b8:3f:d2:00:00:07\n");
    let expected = ["52:54:00:4d:58:00", "b8:3f:d2:00:00:01", "b8:3f:d2:00:00:02", "b8:3f:d2:00:00:07"];
    assert_eq!(super::facts(&p.host()).mac_addresses, expected);
    let names: Vec<String> = inventory(&p.host()).nics.into_iter().map(|nic| nic.name).collect();
    assert_eq!(names, ["dummy9", "eno1", "eno2", "eno3", "eno8", "eno9", "ens3", "ib0", "usb0"]);
}

#[test]
fn only_disks_that_could_be_pulled_out_are_disks() {
    let p = server();
    for made in ["loop0", "ram0", "dm-0", "zram0", "md127", "sr0", "nbd0", "mmcblk0boot0"] {
        p.disk(made, 8);
    }
    p.disk("sdb", 0).disk("nvme0c0n1", 8).put("/sys/block/nvme0c0n1/hidden", "1\n");
    p.put("/sys/block/sdc/size", "8\n").disk("sdd", u64::MAX);
    p.disk("vda", 8).put("/sys/block/vda/serial", "virtio-1\n").put("/sys/block/vda/device/serial", "None\n");
    p.disk("sde", 8).put("/sys/block/sde/device/vpd_pg80", b"\x00\x80\xff\xff\xff");
    let disks = inventory(&p.host()).disks;
    let names: Vec<_> = disks.iter().map(|disk| (disk.name.as_str(), disk.serial_number.as_str())).collect();
    assert_eq!(names, [("nvme0n1", "S6XX-1"), ("sda", "WD-0017"), ("sde", ""), ("vda", "virtio-1")]);
}

#[test]
fn a_spoiled_tree_is_read_to_its_end_and_says_little() {
    let p = Planted::new();
    for path in ["/sys/class/dmi/id", "/sys/class/net", "/sys/block", "/proc/sys/kernel", "/sys/fs/ext4"] {
        p.link(path, "loop-to-nowhere");
    }
    for huge in ["/proc/cpuinfo", "/proc/meminfo", "/etc/os-release"] {
        fs::File::create(p.at(huge)).unwrap().set_len(1 << 40).unwrap();
    }
    p.link("/sys/devices/system/cpu", "cpu");
    let told = inventory(&p.host());
    assert_eq!(told.facts, Some(Facts::default()));
    assert_eq!((told.cpu_threads, told.memory_bytes, told.os.as_str()), (0, 0, ""));
    assert!(told.disks.is_empty() && told.nics.is_empty());
    assert_eq!(health(&p.host()).probes.len(), 7);

    let p = server();
    p.put("/etc/os-release", b"PRETTY_NAME=\"\xff\xfe\x1b[31m").put("/proc/cpuinfo", [0xff; 10_000]);
    p.put("/sys/class/dmi/id/product_name", "AB".repeat(1 << 20));
    p.put("/proc/meminfo", "MemTotal: 99999999999999999999999 kB\nMemAvailable: x\n");
    let told = inventory(&p.host());
    assert_eq!(told.os, "\"\u{fffd}\u{fffd}[31m");
    assert_eq!(told.facts.unwrap().model.len(), 256);
    assert_eq!((told.memory_bytes, told.cpu_model.as_str()), (0, ""));
    assert_eq!(inventory(&Host::new("/nowhere")).cpu_threads, 0);
}

#[test]
fn a_machine_without_topology_counts_its_processors() {
    let p = Planted::new();
    p.put("/proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\nBogoMIPS\t: 50\n");
    let told = inventory(&p.host());
    assert_eq!((told.cpu_sockets, told.cpu_cores, told.cpu_threads), (0, 0, 2));
    p.put("/usr/lib/os-release", "NAME=Alpine\n").put("/etc/hostname", "later\n");
    assert_eq!((inventory(&p.host()).os.as_str(), super::facts(&p.host()).hostname.as_str()), ("Alpine", "later"));
}

#[test]
fn the_digest_changes_with_the_machine_and_not_with_the_hour() {
    let p = server();
    let before = digest(&inventory(&p.host()));
    assert_eq!(before.len(), 64);
    assert!(before.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    p.put("/proc/sys/kernel/random/boot_id", "8f0d1c1e-0000-4000-8000-00000000b002\n");
    p.put("/sys/class/net/eno1/operstate", "down\n").put("/sys/class/net/eno1/speed", "10\n");
    p.put("/proc/meminfo", "MemTotal:       1056000 kB\nMemAvailable: 1 kB\n");
    assert_eq!(digest(&inventory(&p.host())), before, "a reboot and a cable");
    p.disk("sdz", 8);
    let disk = digest(&inventory(&p.host()));
    p.put("/proc/sys/kernel/hostname", "gpu-8\n");
    let name = digest(&inventory(&p.host()));
    assert!(before != disk && disk != name);
}

#[test]
fn this_very_machine_can_be_asked() {
    let host = Host::new("/");
    let told = inventory(&host);
    assert!(told.cpu_threads > 0 && told.memory_bytes > 0 && !told.kernel.is_empty());
    let facts = told.facts.clone().unwrap();
    assert_eq!(facts.boot_id.len(), 36);
    // the driver's word on GPUs, or why there is none
    assert_eq!(told.gpus.is_empty(), !told.gpu_note.is_empty(), "{}", told.gpu_note);
    assert_eq!(digest(&told), digest(&inventory(&host)));
    assert_eq!(health(&host).gpus.len(), told.gpus.len());
}
