//! Installs by UEFI, without trouble, and after a power cut.

use crate::fixture::{Bench, MIB, assert_same, gzip, mid_write, noise, read};
use testkit::qemu::{Disk, Plan};

#[test]
fn the_same_image_boots_by_uefi() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 16 * MIB);
    std::fs::copy(testkit::installer::boot_image(), &disk).expect("copied");
    let plan = Plan::new(crate::fixture::MAC).uefi(&bench.file("variables"));
    let mut machine = plan.disk(Disk::virtio(&disk, "DISK0")).start();
    machine.wait_for_line("installed-system boot=");
}

#[test]
fn a_packed_image_is_unpacked_on_the_way() {
    let bench = Bench::new();
    // no whole number of sectors, and a long stretch that packs well
    let mut image = noise(2 * MIB + 700);
    image.extend(vec![0; 3 * MIB]);
    image.extend(noise(333));
    let packed = gzip(&image);
    assert!(packed.len() < image.len() / 2);
    let disk = bench.disk("disk", 8 * MIB);
    bench.install(&packed, &[("image_format", "raw.gz"), ("reboot", "poweroff")]);
    let serial = bench.run(&disk);
    bench.completed(&serial);
    assert!(serial.contains("switching off"), "{serial}");
    assert_same(&read(&disk)[..image.len()], &image, "the disk");
}

#[test]
fn an_install_that_was_cut_off_in_the_middle_is_done_again() {
    let bench = Bench::new();
    let image = noise(3 * MIB);
    let disk = bench.disk("disk", 6 * MIB);
    bench.install(&image, &[]);
    bench.standin.behaviour().hold_at = Some(MIB);
    let mut machine = bench.installer().disk(Disk::virtio(&disk, "DISK0")).start();
    mid_write(&bench, &mut machine);
    machine.cut_power();
    let half = read(&disk);
    assert!(half[..image.len()] != image[..], "it was in the middle");
    {
        let mut behaviour = bench.standin.behaviour();
        behaviour.hold_at = None;
        behaviour.reports.clear();
    }
    let serial = bench.run(&disk);
    bench.completed(&serial);
    assert_same(&read(&disk)[..image.len()], &image, "the disk");
}
