//! Erasures of one disk among others, of one that fails, and after a power cut.

use crate::erase::{disk, order};
use crate::fixture::{Bench, MIB, assert_same, noise, read};
use serde_json::Value;
use testkit::qemu::Disk;

#[test]
fn only_the_disk_that_was_meant_is_erased() {
    let bench = Bench::new();
    let (meant, other) = (bench.file("meant"), bench.file("other"));
    for file in [&meant, &other] {
        std::fs::write(file, noise(MIB)).expect("a disk");
    }
    order(&bench, &[("disk_serial", "MEANT")]);
    let plan = bench.installer().disk(Disk::virtio(&other, "OTHER")).disk(Disk::virtio(&meant, "MEANT"));
    let serial = bench.run_plan(plan);
    bench.completed(&serial);
    assert_same(&read(&meant), &vec![0; MIB], "the disk");
    assert_same(&read(&other), &noise(MIB), "the other disk");
}

#[test]
fn a_disk_that_cannot_be_erased_is_a_failure_with_evidence() {
    let bench = Bench::new();
    let file = bench.file("disk");
    std::fs::write(&file, noise(2 * MIB)).expect("a disk");
    order(&bench, &[]);
    let serial = bench.run_plan(bench.installer().disk(Disk::failing(&file, "OLD1", "write", 2048)));
    let error = bench.failure(&serial);
    assert!(error.starts_with("overwriting vda from byte 0 failed: ") && error.contains("I/O error"), "{error}");
    let evidence = &bench.standin.reported("failed")[0]["evidence"];
    assert_eq!(
        (&disk(evidence, "vda")["verified"], &disk(evidence, "vda")["ranges"]),
        (&Value::from(false), &serde_json::json!([]))
    );
}

#[test]
fn an_erasure_that_was_cut_off_in_the_middle_is_done_again() {
    let bench = Bench::new();
    let file = bench.file("disk");
    let bytes = 64 * MIB;
    std::fs::write(&file, noise(bytes)).expect("a disk");
    order(&bench, &[]);
    let mut machine = bench.installer().disk(Disk::virtio(&file, "OLD1")).start();
    machine.wait_for_line("overwriting");
    machine.cut_power();
    bench.standin.behaviour().reports.clear();
    let serial = bench.run(&file);
    bench.completed(&serial);
    assert_same(&read(&file), &vec![0; bytes], "the disk");
}
