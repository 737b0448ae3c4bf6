//! What is stopped because the server says so. The disk tells.

use crate::fixture::{Bench, MIB, OLD, assert_same, mid_write, noise, read};
use testkit::qemu::Disk;

/// The disk after a report in the middle of the writing was answered so.
pub fn stopped_in_the_middle(answer: &'static str) {
    let bench = Bench::new();
    let image = noise(8 * MIB);
    let disk = bench.disk("disk", 12 * MIB);
    bench.install(&image, &[]);
    bench.standin.behaviour().hold_at = Some(MIB);
    let mut machine = bench.installer().disk(Disk::virtio(&disk, "DISK0")).start();
    mid_write(&bench, &mut machine);
    {
        let mut behaviour = bench.standin.behaviour();
        behaviour.answers = vec![("progress", answer)];
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

/// Another one may be under way by now, on the same disk.
#[test]
fn an_attempt_that_has_ended_stops_the_writing() {
    stopped_in_the_middle(r#"{"applied": false, "state": "installing", "reason": "ATTEMPT_ENDED"}"#);
}

/// Everything is written, and the server says that it was not this attempt's to write.
#[test]
fn a_completion_that_does_not_count_is_no_success() {
    let bench = Bench::new();
    let image = noise(MIB);
    let disk = bench.disk("disk", 2 * MIB);
    bench.install(&image, &[]);
    let ended = r#"{"applied": false, "state": "installing", "reason": "ATTEMPT_ENDED"}"#;
    bench.standin.behaviour().answers = vec![("complete", ended)];
    let serial = bench.run(&disk);
    assert_eq!(bench.standin.reported("complete").len(), 1, "{serial}");
    let said = "FAILED: it is done, but for the server it does not count: ATTEMPT_ENDED (this machine is installing)";
    assert!(serial.contains(said), "{serial}");
    assert!(bench.standin.reported("failed").is_empty(), "what does not count is not reported as failed either");
}
