//! What is refused before anything is written, and what is stopped because the server says so. The disk tells.

use crate::fixture::{Bench, MIB, OLD, assert_same, mid_write, noise, read};
use testkit::qemu::Disk;

fn untouched(bench: &Bench, disk: &std::path::Path, bytes: usize) {
    assert_same(&read(disk), &vec![OLD; bytes], "the disk");
    let behaviour = bench.standin.behaviour();
    assert!(
        !behaviour.requests.iter().any(|r| r.contains("/image ") && r.ends_with("bytes=0-")),
        "the image was asked for"
    );
}

#[test]
fn a_disk_that_is_too_small_is_left_alone() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(2 * MIB + 512), &[]);
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    assert!(
        error.starts_with("disk too small: 2097664 bytes are needed for 'auto'; the disks here: vda: 2097152 bytes"),
        "{error}"
    );
    untouched(&bench, &disk, 2 * MIB);
}

/// A packed image says at its end how large it is.
#[test]
fn a_disk_too_small_for_a_packed_image_is_left_alone() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&crate::fixture::gzip(&vec![7; 3 * MIB]), &[("image_format", "raw.gz")]);
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    assert!(error.starts_with("disk too small: 3145728 bytes are needed"), "{error}");
    untouched(&bench, &disk, 2 * MIB);
}

#[test]
fn a_machine_without_a_disk_says_so() {
    let bench = Bench::new();
    bench.install(&noise(MIB), &[]);
    let serial = bench.run_plan(bench.installer());
    assert_eq!(bench.failure(&serial), "there is no disk for 'auto'; the disks here: none");
}

#[test]
fn an_order_that_makes_no_sense_is_not_followed() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[("image_sha256", "$(reboot)")]);
    let serial = bench.run(&disk);
    assert_eq!(bench.failure(&serial), "the order's image has no SHA-256 digest: '$(reboot)'");
    untouched(&bench, &disk, 2 * MIB);
}

#[test]
fn without_an_order_nothing_is_touched() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[]);
    let plan = bench.booted("millwright.token=of-somebody-else millwright.tries=4");
    let serial = bench.run_plan(plan.disk(Disk::virtio(&disk, "DISK0")));
    assert!(
        serial.contains("FAILED: the server does not say what to do: server returned error: HTTP/1.1 401"),
        "{serial}"
    );
    assert!(serial.contains("rebooting"), "{serial}");
    untouched(&bench, &disk, 2 * MIB);
    let behaviour = bench.standin.behaviour();
    assert_eq!(
        behaviour.requests.iter().filter(|r| r.contains("/boot/order")).count(),
        3,
        "it asks a few times, not for ever"
    );
}

#[test]
fn an_order_that_is_closed_in_the_middle_stops_the_writing() {
    let bench = Bench::new();
    let image = noise(8 * MIB);
    let disk = bench.disk("disk", 12 * MIB);
    bench.install(&image, &[]);
    bench.standin.behaviour().hold_at = Some(MIB);
    let mut machine = bench.installer().disk(Disk::virtio(&disk, "DISK0")).start();
    mid_write(&bench, &mut machine);
    {
        let mut behaviour = bench.standin.behaviour();
        behaviour.answer = Some(r#"{"applied": false, "state": "pending", "reason": "ORDER_CLOSED"}"#);
        behaviour.reports.clear();
    }
    bench.standin.wait(&mut machine, "the report that is answered so", |b| !b.reports.is_empty());
    // from here on it could have everything
    bench.standin.behaviour().hold_at = None;
    machine.wait_for_exit();
    let serial = machine.serial();
    assert!(serial.contains("FAILED: the server has closed this order"), "{serial}");
    assert!(
        bench.standin.reported("failed").is_empty() && bench.standin.reported("complete").is_empty(),
        "nothing is reported to a closed order"
    );
    // what was in the pipes may have come to the disk; the image did not
    let after = read(&disk);
    assert_same(&after[4 * MIB..], &vec![OLD; 8 * MIB], "the rest of the disk");
}

#[test]
fn a_server_that_knows_us_no_more_stops_the_writing() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 12 * MIB);
    bench.install(&noise(8 * MIB), &[]);
    bench.standin.behaviour().hold_at = Some(MIB);
    let mut machine = bench.installer().disk(Disk::virtio(&disk, "DISK0")).start();
    mid_write(&bench, &mut machine);
    bench.standin.behaviour().report_status = Some(401);
    machine.wait_for_exit();
    let serial = machine.serial();
    assert!(serial.contains("FAILED: the server refuses the reports: server returned error: HTTP/1.1 401"), "{serial}");
    assert_same(&read(&disk)[4 * MIB..], &vec![OLD; 8 * MIB], "the rest of the disk");
}
