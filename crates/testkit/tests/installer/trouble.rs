//! Installs that fail: the report has the real cause.

use crate::fixture::{Bench, MIB, noise};
use testkit::qemu::Disk;

#[test]
fn a_wrong_digest_is_a_failed_install() {
    let bench = Bench::new();
    let image = noise(MIB);
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&image, &[]);
    // one bit on the way
    bench.standin.behaviour().image[MIB / 2] ^= 1;
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    let (came, ordered) = (crate::fixture::sha256(&bench.standin.behaviour().image), crate::fixture::sha256(&image));
    assert_eq!(error, format!("wrong digest: the image that came has SHA-256 {came}, ordered is {ordered}"));
}

/// It takes everything and gives back nothing.
#[test]
fn a_disk_that_cannot_be_read_again_is_a_failed_install() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 4 * MIB);
    bench.install(&noise(2 * MIB), &[]);
    let plan = bench.installer().disk(Disk::failing(&disk, "DISK0", "read", 3000));
    let serial = bench.run_plan(plan);
    let error = bench.failure(&serial);
    assert!(
        error.starts_with("the disk vda does not hold what was written: ") && error.contains("I/O error"),
        "{error}"
    );
}
