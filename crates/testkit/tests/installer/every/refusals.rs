//! What is refused before anything is written.

use crate::fixture::{Bench, MIB, OLD, assert_same, mid_write, noise, read};
use crate::refusals::stopped_in_the_middle;
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

#[test]
fn an_order_that_is_closed_in_the_middle_stops_the_writing() {
    stopped_in_the_middle(r#"{"applied": false, "state": "pending", "reason": "ORDER_CLOSED"}"#);
}

#[test]
fn an_attempt_that_has_ended_touches_nothing() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[]);
    let ended = r#"{"applied": false, "state": "installing", "reason": "ATTEMPT_ENDED"}"#;
    bench.standin.behaviour().answers = vec![("started", ended)];
    let serial = bench.run(&disk);
    assert!(serial.contains("FAILED: the server has closed this order"), "{serial}");
    untouched(&bench, &disk, 2 * MIB);
}

/// The first report of it has counted, and its answer was lost.
#[test]
fn a_completion_that_has_counted_before_is_a_success() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[]);
    let counted = r#"{"applied": false, "state": "installed", "reason": "ORDER_CLOSED"}"#;
    bench.standin.behaviour().answers = vec![("complete", counted)];
    let serial = bench.run(&disk);
    bench.completed(&serial);
    assert!(serial.contains("rebooting") && !serial.contains("FAILED"), "{serial}");
}

#[test]
fn an_image_whose_size_nobody_says_is_left_where_it_is() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[("image_bytes", "0")]);
    bench.standin.behaviour().image_errors = (usize::MAX, 404);
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    let wanted = "how large the image is cannot be known: server returned error: HTTP/1.1 404";
    assert!(error.starts_with(wanted), "{error}");
    assert_same(&read(&disk), &vec![OLD; 2 * MIB], "the disk");
}
