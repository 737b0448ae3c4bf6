//! Power cuts. A load on the real server is recorded, its first start included: every write and sync of its
//! files, and beside it a ledger of what was acknowledged, with how far the recording had come by then. For
//! every sync an image is made of what a disk may hold if the power goes just before it, with what was not
//! synced dropped, kept, torn or scattered. The binary is started on every image: the database must be whole,
//! and everything must be there that was acknowledged before the cut.
//!
//! `MILLWRIGHT_IMAGES=N` makes N images at every sync (two unless said), each torn in another way.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

#[allow(dead_code)]
#[path = "../binary/audit.rs"]
mod audit;
#[allow(dead_code)]
#[path = "../binary/fleet.rs"]
mod fleet;
mod images;
mod inside;
mod ledger;
mod load;
#[allow(dead_code)]
#[path = "../binary/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../binary/server.rs"]
mod server;

use images::{Cut, judge};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::power::Fate;

/// Images judged at the same time.
const JUDGES: usize = 4;
/// Every so many images, the work found in one goes on until it is done.
const FINISH_EVERY: usize = 50;

#[test]
fn whatever_a_power_cut_leaves_opens_whole_and_has_everything_acknowledged() {
    let per_sync: u64 = std::env::var("MILLWRIGHT_IMAGES").map_or(2, |text| text.parse().expect("a number"));
    let recorded = load::record();
    let cuts = images::cuts(&recorded, per_sync);
    let (syncs, facts) = (cuts.len(), recorded.ledger.len());
    assert!(recorded.checkpoints() >= 2, "the load was too small: the log was never taken into the database");
    let all: Vec<(&Cut, Fate)> = cuts.iter().flat_map(|cut| cut.fates.iter().map(move |fate| (cut, *fate))).collect();
    let next = AtomicUsize::new(0);
    let (due, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..JUDGES {
            scope.spawn(|| {
                while let Some((number, (cut, fate))) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, *all.get(n)?)))
                {
                    let finish = number % FINISH_EVERY == FINISH_EVERY - 1;
                    let verdict = catch_unwind(AssertUnwindSafe(|| judge(&recorded, cut, fate, finish)));
                    match verdict.unwrap_or_else(|_| Err("a wait came to nothing; see above".to_owned())) {
                        Ok(checked) => drop(due.fetch_add(checked, Ordering::Relaxed)),
                        Err(why) => failed.lock().expect("no panic").push(format!("{} {fate:?}: {why}", cut.name)),
                    }
                    finished.fetch_add(usize::from(finish), Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    println!(
        "{syncs} syncs, {} images, {} of them worked on to the end; {facts} acknowledgements, looked for {} times",
        all.len(),
        finished.into_inner(),
        due.into_inner()
    );
    assert!(failed.is_empty(), "{} of {} images:\n{}", failed.len(), all.len(), failed.join("\n"));
}
