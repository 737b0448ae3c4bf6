//! The part of the fuzzer that runs inside the target's own process.

use super::mutate::{Rng, mutated};
use super::{Fuzz, GROWTH_MAX, Verdict, name_of, number, smaller, watch};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Inputs kept in memory because they came to something new.
const KEPT_MAX: usize = 5_000;
/// What goes into the repository is small and not too much.
const CORPUS_FILE_MAX: usize = 2_048;
const CORPUS_FILES_MAX: usize = 60;
const TRIES: usize = 3_000;

type Panics = Arc<Mutex<Vec<String>>>;

/// Panics on any thread, those that somebody catches too: a request that makes a task panic has failed.
fn listen_for_panics() -> Panics {
    let heard = Panics::default();
    let told = heard.clone();
    std::panic::set_hook(Box::new(move |info| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
    }));
    heard
}

struct Inside<'a, F> {
    fuzz: &'a Fuzz,
    target: F,
    panics: Panics,
    /// The input in hand, for whoever watches.
    current: File,
    count: u64,
    /// Of one input.
    growth: u64,
}

pub(super) fn run<F: FnMut(&[u8]) -> Verdict>(fuzz: &Fuzz, place: &Path, target: F) {
    let current = File::create(place.join(watch::INPUT)).expect("the input's file");
    let mut inside = Inside { fuzz, target, panics: listen_for_panics(), current, count: 0, growth: 0 };
    let ended = match std::env::var_os(watch::REPLAY) {
        Some(file) => inside.one(&std::fs::read(file).expect("the input to replay")).map(|shape| shape + "\n"),
        None => inside.explore(),
    };
    let report = match &ended {
        Ok(report) => report.clone(),
        Err(why) => why.clone(),
    };
    std::fs::write(place.join(watch::REPORT), report).expect("written");
    // nothing is unwound and nobody is waited for: whoever watches has the report
    std::process::exit(if ended.is_ok() { 0 } else { watch::FAILED });
}

impl<F: FnMut(&[u8]) -> Verdict> Inside<'_, F> {
    /// Everything that is known, then what comes of it.
    fn explore(&mut self) -> Result<String, String> {
        let mut pool = self.fuzz.seeds.clone();
        let known = corpus(&self.fuzz.corpus());
        pool.extend(known.iter().cloned());
        if pool.is_empty() {
            pool.push(Vec::new());
        }
        let mut seen: HashSet<String> = HashSet::new();
        let mut fresh: Vec<Vec<u8>> = Vec::new();
        for input in pool.clone() {
            seen.insert(self.checked(&input)?);
        }
        let mut rng = Rng::new(number("MILLWRIGHT_FUZZ_SEED").unwrap_or(1));
        let begun = Instant::now();
        let long = number("MILLWRIGHT_FUZZ_SECONDS").map(Duration::from_secs);
        while long.map_or(self.count < self.fuzz.inputs, |long| begun.elapsed() < long) {
            let input = mutated(&mut rng, &pool, &self.fuzz.words);
            let shape = self.checked(&input)?;
            if seen.len() < KEPT_MAX && seen.insert(shape) {
                fresh.push(input.clone());
                pool.push(input);
            }
        }
        if number("MILLWRIGHT_FUZZ_KEEP").is_some() {
            keep(&self.fuzz.corpus(), &self.fuzz.seeds, &fresh);
        }
        Ok(format!(
            "{} inputs ({} from the corpus) came to {} different ends; the largest growth was {} KiB\n",
            self.count,
            known.len(),
            seen.len(),
            self.growth >> 10
        ))
    }

    /// The same; an input that fails is made smaller and left for whoever watches.
    fn checked(&mut self, input: &[u8]) -> Result<String, String> {
        let why = match self.one(input) {
            Ok(shape) => return Ok(shape),
            Err(why) => why,
        };
        let least = smaller(input, TRIES, |less| self.one(less).is_err());
        match self.one(&least) {
            Err(why) => Err(why),
            // it depends on what went before
            Ok(_) => {
                self.announce(input);
                Err(format!("{why}\n(this input alone does not do it again)"))
            }
        }
    }

    fn one(&mut self, input: &[u8]) -> Verdict {
        self.announce(input);
        let before = memory("VmRSS:");
        // forgets the peak so far
        std::fs::write("/proc/self/clear_refs", "5").expect("our own memory");
        let verdict = catch_unwind(AssertUnwindSafe(|| (self.target)(input)));
        let panics = std::mem::take(&mut *self.panics.lock().unwrap_or_else(PoisonError::into_inner));
        if !panics.is_empty() || verdict.is_err() {
            return Err(format!("a panic: {}", panics.join("\n")));
        }
        let growth = memory("VmHWM:").saturating_sub(before);
        if growth > GROWTH_MAX {
            return Err(format!("one input made the process grow by {} MiB", growth >> 20));
        }
        self.growth = self.growth.max(growth);
        verdict.unwrap_or_else(|_| Err("a panic".to_owned()))
    }

    fn announce(&mut self, input: &[u8]) {
        self.count += 1;
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend((input.len() as u64).to_le_bytes());
        bytes.extend(input);
        self.current.write_all_at(&bytes, 0).expect("the input is on record");
    }
}

/// Bytes, by the name that the kernel gives them.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a known name");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// The inputs in the repository, always in the same order.
fn corpus(folder: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a file of the corpus")).collect()
}

fn keep(folder: &Path, seeds: &[Vec<u8>], fresh: &[Vec<u8>]) {
    std::fs::create_dir_all(folder).expect("the corpus");
    let there = std::fs::read_dir(folder).expect("the corpus").count();
    let small = fresh.iter().filter(|input| input.len() <= CORPUS_FILE_MAX);
    for input in seeds.iter().chain(small.take(CORPUS_FILES_MAX.saturating_sub(there))) {
        std::fs::write(folder.join(name_of(input)), input).expect("written");
    }
}
