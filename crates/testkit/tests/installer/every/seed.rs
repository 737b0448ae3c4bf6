//! Seeds beside a GPT, and where there is no place for one.

use crate::fixture::{Bench, MIB, assert_same, noise, read};
use crate::seed::{META_DATA, USER_DATA, check_seed, output, partitions};
use testkit::qemu::Disk;

/// On NVMe, whose partitions are named in another way.
#[test]
fn a_gpt_image_gets_its_seed_and_a_whole_table() {
    let bench = Bench::new();
    let file = bench.file("image");
    std::fs::write(&file, noise(6 * MIB)).expect("an image");
    let script = "label: gpt\nlabel-id: 4d570000-0000-4000-8000-000000000001\n2048,4096,L\n6144,4096,L\n";
    let table = bench.file("table");
    std::fs::write(&table, script).expect("a table");
    output("sh", &["-c", "sfdisk -q \"$1\" <\"$2\"", "sh", &file.display().to_string(), &table.display().to_string()]);
    let image = read(&file);
    let disk = bench.disk("disk", 64 * MIB);
    bench.install(&image, &[("seed", "yes")]);
    let network = "version: 2\nethernets: {}\n";
    let files = [("user-data", USER_DATA), ("meta-data", META_DATA), ("network-config", network)];
    bench.standin.behaviour().seed = files.map(|(name, text)| (name, text.to_owned())).to_vec();
    let serial = bench.run_plan(bench.installer().disk(Disk::nvme(&disk, "NVME1")));
    bench.completed(&serial);
    // its partitions are as they were
    assert_same(&read(&disk)[MIB..5 * MIB], &image[MIB..5 * MIB], "the partitions");
    let found = partitions(&disk);
    assert_eq!(found[..2], [(2048, 4096), (6144, 4096)]);
    assert_eq!(found.len(), 3);
    check_seed(&disk, found[2], Some(network));
    // both copies of the table, each by its own: whole, and where they belong
    let verdict = output("sfdisk", &["--verify", &disk.display().to_string()]);
    assert!(verdict.contains("No errors detected"), "{verdict}");
    let mut bytes = read(&disk);
    bytes[512..1024].fill(0);
    std::fs::write(&disk, bytes).expect("written");
    assert_eq!(partitions(&disk), found, "the second copy at the disk's end says the same");
}

#[test]
fn an_image_without_a_partition_table_has_no_place_for_a_seed() {
    let bench = Bench::new();
    let disk = bench.disk("disk", 64 * MIB);
    bench.install(&vec![1; MIB], &[("seed", "yes")]);
    bench.standin.behaviour().seed = vec![("user-data", USER_DATA.into()), ("meta-data", META_DATA.into())];
    let serial = bench.run(&disk);
    let error = bench.failure(&serial);
    assert!(error.starts_with("no place for the seed: the image has no partition table"), "{error}");
}
