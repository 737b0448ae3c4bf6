//! What every part of a simulated world shares: the dice of its seed, the faults that rage in it, what was
//! counted and noted, and what was found to be wrong.

use domain::stage::mix;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Everything that the default seeds must have seen at least once.
pub const KINDS: &[&str] = &[
    "store: connection closed",
    "store: away",
    "store: full",
    "store: conflict",
    "store: commit lost",
    "store: answer lost",
    "store: slow",
    "device: refused",
    "device: request lost",
    "device: answer lost",
    "device: late",
    "device: stuck",
    "device: look failed",
    "device: look stuck",
    "device: stale look",
    "device: fault rule",
    "process: killed",
    "process: stopped for a while",
    "process: stopped past its lease",
    "process: handed over",
    "process: restarted",
    "clock: set forward",
    "clock: set back",
    "brake: frozen",
    "client: answered",
    "client: refused",
    "client: asked again",
    "client: gave up waiting",
    "client: replayed",
    "watcher: resumed",
    "run: SUCCEEDED",
    "run: FAILED",
    "run: CANCELED",
    "execution: terminated",
    "execution: lost its holder",
    "execution: went on after a lost holder",
];

pub struct Nature {
    dice: Mutex<u64>,
    raging: AtomicBool,
    /// Faults in a thousand calls, to the database and to devices.
    store: AtomicU64,
    device: AtomicU64,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    notes: Mutex<Vec<(Duration, String)>>,
    problems: Mutex<Vec<String>>,
    start: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nature {
    pub fn new(seed: u64) -> Self {
        Self {
            dice: Mutex::new(mix(seed ^ 0x6d69_6c6c)),
            raging: AtomicBool::new(false),
            store: AtomicU64::new(0),
            device: AtomicU64::new(0),
            counts: Mutex::default(),
            notes: Mutex::default(),
            problems: Mutex::default(),
            start: Instant::now(),
        }
    }

    fn roll(&self) -> u64 {
        let mut state = lock(&self.dice);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(*state)
    }

    /// A number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }

    pub fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub fn millis(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub fn chance(&self, in_a_thousand: u64) -> bool {
        self.below(1000) < in_a_thousand
    }

    pub fn pick<'a, T>(&self, list: &'a [T]) -> &'a T {
        &list[usize::try_from(self.below(list.len() as u64)).unwrap_or(0)]
    }

    pub fn rage(&self) {
        self.raging.store(true, Ordering::Relaxed);
    }

    pub fn calm(&self) {
        self.raging.store(false, Ordering::Relaxed);
        self.set_store_faults(0);
        self.set_device_faults(0);
    }

    pub fn rages(&self) -> bool {
        self.raging.load(Ordering::Relaxed)
    }

    pub fn set_store_faults(&self, in_a_thousand: u64) {
        self.store.store(in_a_thousand, Ordering::Relaxed);
    }

    pub fn set_device_faults(&self, in_a_thousand: u64) {
        self.device.store(in_a_thousand, Ordering::Relaxed);
    }

    pub fn store_fails(&self) -> bool {
        self.chance(self.store.load(Ordering::Relaxed))
    }

    pub fn device_fails(&self) -> bool {
        self.chance(self.device.load(Ordering::Relaxed))
    }

    pub fn passed(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    pub fn count_many(&self, what: &'static str, many: u64) {
        *lock(&self.counts).entry(what).or_default() += many;
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.counts).clone()
    }

    /// For the reader of a failure.
    pub fn note(&self, what: impl Into<String>) {
        lock(&self.notes).push((self.passed(), what.into()));
    }

    pub fn notes(&self) -> Vec<(Duration, String)> {
        lock(&self.notes).clone()
    }

    /// Something that must not be.
    pub fn wrong(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("WRONG: {what}"));
        lock(&self.problems).push(what);
    }

    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }
}
