//! Which disk it is: by its name below `/dev/disk/by-id`, by its serial number, by its size; and never by a guess.

use crate::fixture::{Bench, MIB, OLD, assert_same, noise, read};
use testkit::qemu::{Disk, Plan};

struct Three {
    bench: Bench,
    image: Vec<u8>,
    files: [std::path::PathBuf; 3],
}

impl Three {
    fn new(changes: &[(&str, &str)]) -> Self {
        let bench = Bench::new();
        let image = noise(MIB);
        bench.install(&image, changes);
        let files = [bench.disk("virtio", 2 * MIB), bench.disk("nvme", 3 * MIB), bench.disk("sata", 3 * MIB)];
        Self { bench, image, files }
    }

    fn plan(&self) -> Plan {
        let [virtio, nvme, sata] = &self.files;
        let plan = self.bench.installer().disk(Disk::virtio(virtio, "VIRTIO1"));
        plan.disk(Disk::nvme(nvme, "NVME1")).disk(Disk::sata(sata, "SATA1", 0))
    }

    /// The image is on this one, and on no other.
    fn installed_on(self, number: usize) {
        let serial = self.bench.run_plan(self.plan());
        self.bench.completed(&serial);
        for (other, file) in self.files.iter().enumerate() {
            let after = read(file);
            if other == number {
                assert_same(&after[..MIB], &self.image, "the disk");
            } else {
                assert_same(&after, &vec![OLD; after.len()], "another disk");
            }
        }
    }
}

#[test]
fn the_smallest_that_is_large_enough_is_chosen() {
    Three::new(&[]).installed_on(0);
}

#[test]
fn an_nvme_disk_is_found_by_its_id() {
    Three::new(&[("disk", "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_NVME1")]).installed_on(1);
}

#[test]
fn a_sata_disk_is_found_by_its_id_and_its_serial_number() {
    Three::new(&[("disk", "/dev/disk/by-id/ata-QEMU_HARDDISK_SATA1"), ("disk_serial", "SATA1")]).installed_on(2);
}

/// Two of the same size: which of them is meant is not guessed.
#[test]
fn in_doubt_nothing_is_written() {
    let three = Three::new(&[]);
    // now only the two large ones are large enough
    let image = noise(2 * MIB + MIB / 2);
    three.bench.install(&image, &[]);
    let serial = three.bench.run_plan(three.plan());
    let error = three.bench.failure(&serial);
    assert!(
        error.starts_with("several disks could be meant by 'auto', say which by its serial number; the disks here: "),
        "{error}"
    );
    for (name, serial_number) in [("nvme0n1", "NVME1"), ("sda", "SATA1"), ("vda", "VIRTIO1")] {
        assert!(
            error.contains(&format!("{name}: ")) && error.contains(&format!("serial '{serial_number}'")),
            "{error}"
        );
    }
    for file in &three.files {
        let after = read(file);
        assert_same(&after, &vec![OLD; after.len()], "a disk");
    }
}
