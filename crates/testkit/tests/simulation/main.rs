//! Deterministic simulation: the store in memory, one to three servers (doors' use cases, engine, reconciler),
//! clients, watchers and the simulated fleet, on one thread with a virtual clock, all from one seed.
//!
//! Faults rage for a while: at the database, among the devices, to the processes and their clocks. Then they
//! end, and everything must come to rest: no run open, no machine held, nothing that was answered with yes
//! missing or doubled, conditions as the fleet is, the log whole. The fleet's journal of effects is judged by
//! itself (`judge`).
//!
//! - `MILLWRIGHT_SIM_SEEDS=N`: so many seeds (300 by default).
//! - `MILLWRIGHT_SIM_FIRST=S`: from this seed on (0 by default).
//! - `MILLWRIGHT_SIM_SEED=S`: this one, twice, with everything that happened in it.
//!
//! The same seed gives the same log: some are run twice and compared. A failure prints the seed, the last that
//! happened, and the command that replays it.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod chaos;
mod clients;
mod judge;
mod link;
mod nature;
mod rest;
mod scenario;
mod watcher;
mod wire;
mod world;

use nature::KINDS;
use scenario::{Report, play};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const SEEDS: u64 = 300;
/// One seed in so many is run twice.
const TWICE: u64 = 20;
/// A bound, not a verdict about speed: what takes longer goes in circles without the clock moving.
const STUCK: Duration = Duration::from_secs(600);
/// Lines of a failure's story, unless its seed was asked for.
const STORY: usize = 120;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn replay(seed: u64) -> String {
    format!("MILLWRIGHT_SIM_SEED={seed} cargo test -p millwright-testkit --test simulation -- --nocapture")
}

/// Plays one seed; again, if it is to be compared. Answers what went wrong, or what happened.
fn one(seed: u64, twice: bool) -> Result<Report, String> {
    let report = play(seed);
    if !report.problems.is_empty() {
        let from = if number("MILLWRIGHT_SIM_SEED").is_some() { 0 } else { report.story.len().saturating_sub(STORY) };
        let story = report.story.get(from..).unwrap_or_default().join("\n");
        let problems = report.problems.join("\n  ");
        return Err(format!("{story}\n\nseed {seed} has failed:\n  {problems}\nto replay it:\n  {}", replay(seed)));
    }
    if twice {
        let again = play(seed);
        if again.digest != report.digest {
            let differ = report.story.iter().zip(&again.story).position(|(a, b)| a != b);
            let n = differ.unwrap_or(report.story.len().min(again.story.len()));
            let (a, b) = (report.story.get(n), again.story.get(n));
            let (first, second) = (&report.digest, &again.digest);
            return Err(format!(
                "seed {seed} gave two logs, {first} and {second}; first they differ in\n  {a:?}\n  {b:?}\nto replay it:\n  {}",
                replay(seed)
            ));
        }
    }
    Ok(report)
}

#[test]
fn everything_comes_to_rest_whatever_the_seed() {
    if let Some(seed) = number("MILLWRIGHT_SIM_SEED") {
        let report = one(seed, true).unwrap_or_else(|e| panic!("{e}"));
        println!("{}\nseed {seed}: log {}, {:#?}", report.story.join("\n"), report.digest, report.counts);
        return;
    }
    let (first, count) = (number("MILLWRIGHT_SIM_FIRST").unwrap_or(0), number("MILLWRIGHT_SIM_SEEDS").unwrap_or(SEEDS));
    let next = AtomicU64::new(first);
    let total: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..threads {
            let (next, total, tell) = (&next, &total, tell.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    // one that panics is told like any other that fails
                    let play = std::panic::AssertUnwindSafe(|| one(seed, seed % TWICE == 0));
                    let panicked = |_| Err(format!("seed {seed} panicked\nto replay it:\n  {}", replay(seed)));
                    let played = std::panic::catch_unwind(play).unwrap_or_else(panicked);
                    if let Ok(report) = &played {
                        let mut total = total.lock().expect("nobody panics here");
                        report.counts.iter().for_each(|(k, n)| *total.entry(k).or_default() += n);
                    }
                    if tell.send((seed, played.map(drop))).is_err() {
                        return;
                    }
                }
            });
        }
        for _ in 0..count {
            let heard = told.recv_timeout(STUCK);
            let failed = match heard {
                Ok((_, Ok(()))) => continue,
                Ok((_, Err(e))) => e,
                Err(_) => {
                    // not a panic: that would wait for the very threads that do not end
                    let last = next.load(Ordering::Relaxed).saturating_sub(1);
                    eprintln!(
                        "no seed has ended for {STUCK:?}; the last begun are {} and below",
                        last.min(first + count)
                    );
                    std::process::exit(1);
                }
            };
            next.store(u64::MAX / 2, Ordering::Relaxed);
            panic!("{failed}");
        }
    });
    let total = total.into_inner().expect("nobody panics here");
    println!("{count} seeds from {first}: {total:#?}");
    if count >= SEEDS {
        let never: Vec<&&str> = KINDS.iter().filter(|k| total.get(**k).copied().unwrap_or(0) == 0).collect();
        assert!(never.is_empty(), "never happened in {count} seeds: {never:?}");
    }
}
