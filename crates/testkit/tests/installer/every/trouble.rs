//! Images and disks that do not do what they should.

use crate::fixture::{Bench, MIB, noise};
use testkit::qemu::Disk;

#[test]
fn an_image_that_is_not_there_is_a_failed_install() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&noise(MIB), &[]);
    bench.standin.behaviour().image_errors = (usize::MAX, 404);
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    assert!(error.starts_with("the image did not come: server returned error: HTTP/1.1 404"), "{error}");
    let behaviour = bench.standin.behaviour();
    assert_eq!(behaviour.requests.iter().filter(|r| r.contains("/image")).count(), 1, "a no is not asked for again");
}

#[test]
fn something_that_is_no_packed_image_is_a_failed_install() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 4 * MIB);
    let mut broken = crate::fixture::gzip(&noise(2 * MIB));
    let middle = broken.len() / 2;
    broken.truncate(middle);
    bench.install(&broken, &[("image_format", "raw.gz"), ("image_raw_bytes", "2097152")]);
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    assert!(error.starts_with("the image cannot be unpacked: "), "{error}");
}

#[test]
fn a_disk_that_cannot_be_written_is_a_failed_install() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 4 * MIB);
    bench.install(&noise(2 * MIB), &[]);
    let plan = bench.installer().disk(Disk::failing(&disk, "DISK0", "write", 2048));
    let serial = bench.run_plan(plan);
    let error = bench.failure(&serial);
    assert!(error.starts_with("writing to vda failed: ") && error.contains("I/O error"), "{error}");
}
