//! Which disk it is: by its name below `/dev/disk/by-id`, by its serial number, by its size; and never by a guess.

use crate::fixture::{Bench, MIB, OLD, assert_same, noise, read};
use testkit::qemu::{Disk, Plan};

pub struct Three {
    pub bench: Bench,
    pub files: [std::path::PathBuf; 3],
}

impl Three {
    pub fn new(image: &[u8], changes: &[(&str, &str)]) -> Self {
        let bench = Bench::new();
        bench.install(image, changes);
        let files = [bench.disk("virtio", 2 * MIB), bench.disk("nvme", 3 * MIB), bench.disk("sata", 3 * MIB)];
        Self { bench, files }
    }

    pub fn plan(&self) -> Plan {
        let [virtio, nvme, sata] = &self.files;
        let plan = self.bench.installer().disk(Disk::virtio(virtio, "VIRTIO1"));
        plan.disk(Disk::nvme(nvme, "NVME1")).disk(Disk::sata(sata, "SATA1", 0))
    }
}

/// Two of the same size: which of them is meant is not guessed.
#[test]
fn in_doubt_nothing_is_written() {
    // only the two large ones are large enough
    let three = Three::new(&noise(2 * MIB + MIB / 2), &[]);
    let serial = three.bench.run_plan(three.plan());
    let error = three.bench.failure(&serial);
    assert!(
        error.starts_with("several disks could be meant by 'auto', say which by its serial number; the disks here: "),
        "{error}"
    );
    for (name, serial_number) in [("nvme0n1", "NVME1"), ("sda", "SATA1"), ("vda", "VIRTIO1")] {
        assert!(
            error.contains(&format!("{name}: ")) && error.contains(&format!("serial '{serial_number}'")),
            "{error}"
        );
    }
    for file in &three.files {
        let after = read(file);
        assert_same(&after, &vec![OLD; after.len()], "a disk");
    }
}
