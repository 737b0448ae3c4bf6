//! Disks of every kind, by every name.

use crate::choice::Three;
use crate::fixture::{MIB, OLD, assert_same, noise, read};

/// The image is on this one, and on no other.
fn installed_on(number: usize, changes: &[(&str, &str)]) {
    let image = noise(MIB);
    let three = Three::new(&image, changes);
    let serial = three.bench.run_plan(three.plan());
    three.bench.completed(&serial);
    for (other, file) in three.files.iter().enumerate() {
        let after = read(file);
        if other == number {
            assert_same(&after[..MIB], &image, "the disk");
        } else {
            assert_same(&after, &vec![OLD; after.len()], "another disk");
        }
    }
}

#[test]
fn the_smallest_that_is_large_enough_is_chosen() {
    installed_on(0, &[]);
}

#[test]
fn an_nvme_disk_is_found_by_its_id() {
    installed_on(1, &[("disk", "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_NVME1")]);
}

#[test]
fn a_sata_disk_is_found_by_its_id_and_its_serial_number() {
    installed_on(2, &[("disk", "/dev/disk/by-id/ata-QEMU_HARDDISK_SATA1"), ("disk_serial", "SATA1")]);
}
