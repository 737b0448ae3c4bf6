//! Installs that succeed: the disk holds the image, byte for byte, and boots.

use crate::fixture::{Bench, MIB, OLD, assert_same, gzip, noise, read};
use testkit::qemu::{Disk, Plan};

#[test]
fn an_image_is_written_byte_by_byte_and_boots() {
    let bench = Bench::new();
    let image = std::fs::read(testkit::installer::boot_image()).expect("the image");
    let disk = bench.disk("disk", 24 * MIB);
    bench.install(&image, &[]);
    let serial = bench.run(&disk);
    let complete = bench.completed(&serial);
    assert_eq!(complete["installation_progress"], 100);
    assert!(serial.contains("rebooting"), "{serial}");
    let after = read(&disk);
    assert_same(&after[..image.len()], &image, "the disk");
    // what is behind the image is left alone, but for marks of what was there before, at the very end
    assert_same(&after[image.len()..23 * MIB], &vec![OLD; 23 * MIB - image.len()], "the rest of the disk");
    assert_same(&after[23 * MIB..], &vec![0; MIB], "the disk's end");

    // the installer's own lines came along, in order and once
    let lines = bench
        .standin
        .behaviour()
        .reports
        .iter()
        .flat_map(|r| r["log_lines"].as_array().expect("lines").clone())
        .collect::<Vec<_>>();
    let told: Vec<&str> = lines.iter().filter_map(|l| l.as_str()).collect();
    let of = |text: &str| told.iter().filter(|l| l.contains(text)).count();
    assert_eq!(
        (of("order of it's a \"node\" \\ $(reboot) `reboot`, attempt 1: install"), of("read back: the same")),
        (1, 1),
        "{told:?}"
    );

    let firstboot = format!("type=3,asset={}/firstboot", bench.standin.url());
    let mut machine = Plan::new(crate::fixture::MAC).disk(Disk::virtio(&disk, "DISK0")).smbios(&firstboot).start();
    let line = machine.wait_for_line("installed-system boot=");
    bench.standin.wait(&mut machine, "the installed system's word", |b| {
        b.reports.iter().any(|r| r["installed_system"].as_str().is_some_and(|said| line.contains(said)))
    });
}

#[test]
fn a_broken_stream_goes_on_where_it_broke() {
    let bench = Bench::new();
    let image = noise(3 * MIB);
    let disk = bench.disk("disk", 4 * MIB);
    bench.install(&image, &[]);
    {
        let mut behaviour = bench.standin.behaviour();
        // the server is in trouble at first, then breaks off twice, once before a byte
        behaviour.image_errors = (2, 503);
        behaviour.cuts = vec![MIB, 0, MIB + 12_345];
    }
    let serial = bench.run(&disk);
    bench.completed(&serial);
    assert_same(&read(&disk)[..image.len()], &image, "the disk");
    let behaviour = bench.standin.behaviour();
    let asked: Vec<&str> =
        behaviour.requests.iter().filter(|r| r.contains("/image")).filter_map(|r| r.split("bytes=").nth(1)).collect();
    let second = format!("{MIB}-");
    let third = format!("{}-", 2 * MIB + 12_345);
    assert_eq!(asked, ["0-", "0-", "0-", &second, &second, &third], "nothing is asked for twice");
}

/// The order of an image by its URL has no size: whoever serves it says it. Packed, so that its end is looked for, too.
#[test]
fn an_image_from_elsewhere_is_as_large_as_its_server_says() {
    let bench = Bench::new();
    // no whole number of sectors, and a long stretch that packs well
    let mut image = noise(2 * MIB + 700);
    image.extend(vec![0; 3 * MIB]);
    image.extend(noise(333));
    let disk = bench.disk("disk", 8 * MIB);
    bench.install(&gzip(&image), &[("image_bytes", "0"), ("image_format", "raw.gz"), ("reboot", "poweroff")]);
    let serial = bench.run(&disk);
    bench.completed(&serial);
    assert!(serial.contains("switching off"), "{serial}");
    assert_same(&read(&disk)[..image.len()], &image, "the disk");
}
