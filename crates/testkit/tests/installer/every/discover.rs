//! What a machine says of itself, whatever its maker has put into its identity strings.

use crate::fixture::{Bench, MAC, MIB};
use serde_json::json;
use testkit::qemu::Disk;

const UUID: &str = "4d570000-0000-4000-8000-00000000c0de";
const OTHER_MAC: &str = "52:54:00:4d:57:02";

#[test]
fn a_machine_tells_its_facts_whatever_strings_it_has() {
    let bench = Bench::new();
    let (one, two) = (bench.disk("one", 2 * MIB), bench.disk("two", 3 * MIB));
    let hostile = "a\"b\\c\u{1}\u{7}d';$(reboot)`reboot`\u{e9}\u{1f600}\t{}";
    // a comma in a value is written twice
    let identity = format!("type=1,manufacturer=Mill,, \"Wright\",product=\\\",serial={hostile},uuid={UUID}");
    let plan = bench
        .booted(&format!("millwright.discover={}", bench.standin.url()))
        .smbios(&identity)
        .device("VGA")
        .device(&format!("e1000,mac={OTHER_MAC}"));
    let serial = bench.run_plan(plan.disk(Disk::virtio(&one, "D\"1\\x")).disk(Disk::sata(&two, "SATA1", 0)));
    let behaviour = bench.standin.behaviour();
    assert_eq!(behaviour.reports.len(), 1, "{serial}");
    let report = &behaviour.reports[0];
    assert_eq!(report["installation_status"], serde_json::Value::Null);
    assert_eq!((&report["mac_address"], &report["ip_address"]), (&json!(MAC), &json!("10.0.2.15")));
    assert_eq!((&report["vendor"], &report["model"]), (&json!("Mill, \"Wright\""), &json!("\\\"")));
    assert_eq!((&report["serial_number"], &report["system_uuid"]), (&json!(hostile), &json!(UUID)));
    let facts = &report["facts"];
    assert_eq!((&facts["serial"], &facts["uuid"], &facts["firmware"]), (&json!(hostile), &json!(UUID), &json!("bios")));
    assert_eq!(facts["cpus"], 1);
    let memory = facts["memory_bytes"].as_u64().expect("a number");
    assert!((400 << 20..=512 << 20).contains(&memory), "{memory}");
    let disks = facts["disks"].as_array().expect("disks");
    assert_eq!(disks.len(), 2, "{facts}");
    assert_eq!(
        disks[0],
        json!({"name": "sda", "bytes": 3 * MIB, "rotational": true, "model": "QEMU HARDDISK", "serial": "SATA1", "ids": ["ata-QEMU_HARDDISK_SATA1"]})
    );
    assert_eq!((&disks[1]["serial"], &disks[1]["bytes"]), (&json!("D\"1\\x"), &json!(2 * MIB)));
    let card = |mac: &str| {
        facts["nics"].as_array().expect("cards").iter().find(|n| n["mac"] == mac).expect("the card").clone()
    };
    assert_eq!((&card(MAC)["link"], &card(MAC)["driver"]), (&json!(true), &json!("virtio_net")));
    assert_eq!(card(OTHER_MAC)["driver"], "e1000");
    let gpus = facts["gpus"].as_array().expect("display controllers");
    assert_eq!(gpus.len(), 1, "{facts}");
    assert_eq!(
        (&gpus[0]["class"], &gpus[0]["vendor"], &gpus[0]["device"]),
        (&json!("0x030000"), &json!("0x1234"), &json!("0x1111"))
    );
    // it told, and left; nothing was asked for, and nothing written
    assert!(serial.contains("rebooting"), "{serial}");
    assert_eq!(behaviour.requests.len(), 1, "{:?}", behaviour.requests);
    drop(behaviour);
    for (file, bytes) in [(&one, 2 * MIB), (&two, 3 * MIB)] {
        crate::fixture::assert_same(&crate::fixture::read(file), &vec![crate::fixture::OLD; bytes], "a disk");
    }
}

/// Strings that are not even UTF-8 are told as well as they can be.
#[test]
fn bytes_that_are_no_text_make_a_report_that_is_one() {
    use std::os::unix::ffi::OsStrExt as _;
    let bench = Bench::new();
    // QEMU takes the structure's strings from its arguments, which need not be text; a file serves the same here
    let strings = bench.file("type1");
    let mut bytes = vec![1, 27, 0, 1, 1, 2, 0, 3];
    bytes.extend([0x11; 16]);
    bytes.extend([6, 0, 0]);
    bytes.extend_from_slice(b"Maker\xff\xfe\0Model\xc3\0\xf0\x9fS\xed\xa0\x80N\x80\0\0");
    std::fs::write(&strings, bytes).expect("written");
    assert!(!strings.as_os_str().as_bytes().contains(&b','));
    let plan = bench
        .booted(&format!("millwright.discover={}", bench.standin.url()))
        .smbios(&format!("file={}", strings.display()));
    let serial = bench.run_plan(plan);
    let behaviour = bench.standin.behaviour();
    assert_eq!(behaviour.reports.len(), 1, "{serial}");
    let report = &behaviour.reports[0];
    assert_eq!((&report["vendor"], &report["model"]), (&json!("Maker\u{fffd}\u{fffd}"), &json!("Model\u{fffd}")));
    let told = report["serial_number"].as_str().expect("a text");
    assert!(told.ends_with("N\u{fffd}") && told.contains('S'), "{told:?}");
}
