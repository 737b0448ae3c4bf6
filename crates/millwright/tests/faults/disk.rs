//! The disk fills up, fails and becomes read-only under a load, one after the other on the same server.

use crate::process::until;
use crate::site::Site;
use std::time::Duration;
use testkit::below::Fault;

const WRITERS: usize = 3;
/// Refusals that are seen before a fault is over, and successes after it.
const ENOUGH: u64 = 30;
const FAULTS: [Fault; 6] =
    [Fault::Full, Fault::FullForAll, Fault::WriteError, Fault::SyncError, Fault::ReadOnly, Fault::DeadDisk];
/// Longer than the server's lease, and than the steps that are in hand may take.
const LONG: Duration = Duration::from_secs(8);
const STEP_SECONDS: i32 = 6;

#[test]
fn a_disk_that_fails_is_told_and_when_it_works_again_so_does_everything() {
    let rounds: usize = std::env::var("MILLWRIGHT_FAULT_ROUNDS").map_or(1, |text| text.parse().expect("a number"));
    let (mut site, mut server) = Site::start();
    site.strict_plan(&server, "strict", STEP_SECONDS);
    let mut writers = site.writers(&server, WRITERS);
    for round in 1..=rounds {
        for fault in FAULTS {
            let last = fault == Fault::DeadDisk;
            let machines = [1, 2].map(|n| format!("m-{round}-{fault:?}-{n}").to_lowercase());
            for machine in &machines {
                site.run(&server, machine, &["sim.latency_ms=300"], Some("strict"));
                site.under_way(machine);
            }
            let before = site.below.faults();
            site.below.begin(fault);
            let stretch = site.tally.begin();
            let held = tokio::time::Instant::now();
            site.tally.wait_for(stretch, "writes are refused", |answers| {
                answers.refused() >= ENOUGH && (!last || held.elapsed() >= LONG)
            });
            let healthy = site.tally.begin();
            site.below.end();
            let answers = site.tally.of(stretch);
            println!("{fault:?}: {answers:?}, {} errors", site.below.faults() - before);
            assert!(site.below.faults() > before, "{fault:?} was never met");
            answers.refusals_are_honest();
            match fault {
                Fault::Full | Fault::FullForAll => assert!(answers.refused_because("STORAGE_FULL") > 0, "{answers:?}"),
                Fault::SyncError => assert!(answers.refused_because("OUTCOME_UNKNOWN") > 0, "{answers:?}"),
                Fault::WriteError | Fault::ReadOnly | Fault::DeadDisk | Fault::DatabaseFile => {}
            }
            // what is overwritten finds its room; everything else cannot have been kept
            assert!(fault == Fault::Full || answers.written == 0, "{fault:?}: acknowledged and not kept: {answers:?}");
            site.tally.wait_for(healthy, "writes go on", |answers| answers.written >= ENOUGH);
            site.all_succeed(&server);
        }
        writers.stop();
        server = site.survives_a_kill(server);
        writers = site.writers(&server, WRITERS);
    }
    site.all_succeed(&server);
    writers.stop();
    site.ends_whole(server);
}

#[test]
fn what_was_in_doubt_when_the_process_died_is_there_whole_or_not_at_all() {
    let (mut site, server) = Site::start();
    let writers = site.writers(&server, WRITERS);
    site.run(&server, "m-1", &["sim.latency_ms=300"], None);
    site.under_way("m-1");
    site.below.begin(Fault::SyncError);
    let stretch = site.tally.begin();
    site.tally.wait_for(stretch, "writes are in doubt", |answers| answers.refused_because("OUTCOME_UNKNOWN") >= ENOUGH);
    writers.stop();
    // the last of them lies whole in the log, and nobody knows it
    server.kill();
    site.below.end();
    let server = site.start_again();
    site.everything_is_there(&server);
    site.all_succeed(&server);
    site.ends_whole(server);
}

#[test]
fn what_cannot_be_taken_into_the_database_stays_in_its_log() {
    let (mut site, server) = Site::start();
    let writers = site.writers(&server, WRITERS);
    site.run(&server, "m-1", &["sim.latency_ms=300"], None);
    site.below.begin(Fault::DatabaseFile);
    let stretch = site.tally.begin();
    until("the log is tried to be taken in", || (site.below.faults() >= 3).then_some(()));
    let answers = site.tally.of(stretch);
    assert!(answers.refused() == 0 && answers.written > 0, "the log has it: {answers:?}");
    writers.stop();
    server.kill();
    site.below.end();
    let server = site.start_again();
    site.everything_is_there(&server);
    site.all_succeed(&server);
    site.ends_whole(server);
}
