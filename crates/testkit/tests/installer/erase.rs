//! The erasure: known bytes before, none after, and evidence that says how.

use crate::fixture::{Bench, MIB, assert_same, noise, read};
use serde_json::Value;
use testkit::qemu::Disk;

pub fn order(bench: &Bench, changes: &[(&str, &str)]) {
    bench.order(
        &[("task", "erase"), ("node", "old"), ("attempt", "1"), ("disk", "auto"), ("reboot", "poweroff")],
        changes,
    );
}

pub fn disk<'a>(evidence: &'a Value, name: &str) -> &'a Value {
    evidence["disks"].as_array().expect("disks").iter().find(|d| d["disk"] == name).expect("the disk")
}

#[test]
fn every_disk_is_erased_and_the_evidence_says_how() {
    let bench = Bench::new();
    // no whole number of MiB, nor of samples
    let bytes = 3 * MIB + 512 * 7;
    let (virtio, nvme) = (bench.file("virtio"), bench.file("nvme"));
    std::fs::write(&virtio, noise(bytes)).expect("a disk");
    std::fs::write(&nvme, noise(2 * MIB)).expect("a disk");
    order(&bench, &[]);
    let plan = bench.installer().disk(Disk::virtio(&virtio, "OLD1")).disk(Disk::nvme(&nvme, "OLD2"));
    let serial = bench.run_plan(plan);
    let complete = bench.completed(&serial);
    assert!(serial.contains("switching off"), "{serial}");
    assert_same(&read(&virtio), &vec![0; bytes], "the virtio disk");
    assert_same(&read(&nvme), &vec![0; 2 * MIB], "the NVMe disk");

    let evidence = &complete["evidence"];
    assert_eq!(evidence["disks"].as_array().map(Vec::len), Some(2), "{evidence}");
    let overwritten = disk(evidence, "vda");
    assert_eq!((&overwritten["serial"], &overwritten["bytes"]), (&Value::from("OLD1"), &Value::from(bytes)));
    assert_eq!(
        (&overwritten["method"], &overwritten["verified"]),
        (&Value::from("overwrite"), &Value::from(true)),
        "{evidence}"
    );
    assert_eq!(overwritten["ranges"], serde_json::json!([{"from": 0, "bytes": bytes}]));
    // the device's own way was tried first, and its answer is on record
    assert_eq!(overwritten["sanitize"][0]["method"], "secure discard");
    assert!(overwritten["sanitize"][0]["result"].as_str().is_some_and(|r| r != "ok" && !r.is_empty()), "{evidence}");
    let samples = overwritten["samples"].as_array().expect("samples");
    assert!(samples.len() > 4, "{evidence}");
    assert_eq!(
        (&samples[0]["offset"], samples.last().map(|s| &s["bytes"])),
        (&Value::from(0), Some(&Value::from(512 * 7)))
    );
    for sample in samples {
        let number = |name: &str| usize::try_from(sample[name].as_u64().expect("a number")).expect("small");
        let (offset, length) = (number("offset"), number("bytes"));
        assert_eq!(sample["before"], crate::fixture::sha256(&noise(bytes)[offset..offset + length]), "{sample}");
        assert_eq!(sample["after"], crate::fixture::sha256(&vec![0; length]), "{sample}");
        assert_eq!(sample["zero"], true);
    }
    // QEMU's NVMe has no sanitize, but a format that erases
    let formatted = disk(evidence, "nvme0n1");
    assert_eq!(formatted["verified"], true, "{evidence}");
    let tried: Vec<&str> =
        formatted["sanitize"].as_array().expect("tried").iter().filter_map(|s| s["method"].as_str()).collect();
    assert_eq!(tried[..2], ["nvme sanitize", "nvme format, user data erase"], "{evidence}");
}
