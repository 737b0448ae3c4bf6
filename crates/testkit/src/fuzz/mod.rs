//! A small fuzzer on stable Rust: inputs grow from a corpus in the repository by seeded mutation, and an input
//! that comes to something not seen before is kept and mutated further. (Coverage feedback needs flags and
//! `unsafe` that this workspace does without; what an input comes to, in words, stands in for it.)
//!
//! Each target runs in a process of its own, with a bound on its address space: a stack that overflows, memory
//! without end and a loop without end leave the input that did it behind, and the test says so. What uses more
//! than a second of processor time for one input, or grows by more than [`GROWTH_MAX`], has failed.
//!
//! | variable | |
//! |---|---|
//! | `MILLWRIGHT_FUZZ_SECONDS=N` | runs each target for so long, instead of its fixed number of inputs |
//! | `MILLWRIGHT_FUZZ_SEED=N` | other mutations; the default is always the same, so that the test is |
//! | `MILLWRIGHT_FUZZ_KEEP=1` | puts small inputs that came to something new into the corpus |
//! | `MILLWRIGHT_FUZZ_REPLAY=FILE` | runs one input and nothing else |
//!
//! An input that failed is made smaller and left in `target/fuzz/TARGET/`; once the cause is mended it belongs
//! into `crates/testkit/fuzz/corpus/TARGET/`, where every run begins with it.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout)] // for tests only: what cannot be set up is a failed test

mod inside;
mod mutate;
mod watch;

pub use mutate::Rng;

use std::path::PathBuf;

/// `Ok`: what the input came to, in a few words; `Err`: which promise it broke.
pub type Verdict = Result<String, String>;

/// What one input may grow the process by.
pub const GROWTH_MAX: u64 = 64 << 20;
/// Of one input, in bytes.
const LENGTH_MAX: usize = 32 * 1024;

/// One target: its name is that of the test function, of its corpus and of its failures.
pub struct Fuzz {
    name: &'static str,
    module: &'static str,
    words: Vec<String>,
    seeds: Vec<Vec<u8>>,
    inputs: u64,
}

impl Fuzz {
    /// The test function of that name in the module `module_path!()`.
    pub fn new(name: &'static str, module: &'static str) -> Self {
        Self { name, module, words: Vec::new(), seeds: Vec::new(), inputs: 2_000 }
    }

    /// Words that mean something to the target.
    pub fn words<W: AsRef<str>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Inputs to begin with, beside the corpus.
    pub fn seeds<S: AsRef<[u8]>>(mut self, seeds: impl IntoIterator<Item = S>) -> Self {
        self.seeds.extend(seeds.into_iter().map(|s| s.as_ref().to_vec()));
        self
    }

    /// How many inputs a run has when nobody says for how long.
    pub fn inputs(mut self, inputs: u64) -> Self {
        self.inputs = inputs;
        self
    }

    /// Runs the target; `make` sets it up, in the process where it runs.
    pub fn run<F: FnMut(&[u8]) -> Verdict>(self, make: impl FnOnce() -> F) {
        match std::env::var_os(watch::CHILD) {
            Some(place) => inside::run(&self, &PathBuf::from(place), make()),
            None => watch::run(&self),
        }
    }

    /// As the test harness spells it.
    fn test(&self) -> String {
        match self.module.split_once("::") {
            Some((_, below)) => format!("{below}::{}", self.name),
            None => self.name.to_owned(),
        }
    }

    fn corpus(&self) -> PathBuf {
        crate::golden::root().join("crates/testkit/fuzz/corpus").join(self.name)
    }

    /// Where failed inputs are left.
    fn failures(&self) -> PathBuf {
        crate::golden::root().join("target/fuzz").join(self.name)
    }
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number")))
}

/// A name for an input: the same input has the same one.
fn name_of(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// The same failure with less input: pieces are left out, large ones first, while it still fails.
fn smaller(input: &[u8], mut tries: usize, mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut piece = best.len().div_ceil(2);
    while piece > 0 && tries > 0 {
        let mut at = 0;
        while at < best.len() && tries > 0 {
            let end = (at + piece).min(best.len());
            let less = [&best[..at], &best[end..]].concat();
            tries -= 1;
            if fails(&less) {
                best = less;
            } else {
                at = end;
            }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_made_as_small_as_it_can_be() {
        let fails = |input: &[u8]| input.windows(2).any(|w| w == b"ab");
        assert_eq!(smaller(b"xxxxxxxxxxxxabyyyyyyyyyyyyyyy", 1_000, fails), b"ab");
    }

    // the fuzzer itself: each kind of failure must be found, or every other target proves nothing
    fn broken(name: &'static str, target: fn(&[u8]) -> Verdict) {
        let fuzz = Fuzz::new(name, module_path!()).words(["bang"]).seeds([b"quiet".as_slice()]).inputs(5_000);
        if std::env::var_os(watch::CHILD).is_some() {
            return fuzz.run(|| target);
        }
        let failed = watch::outcome(&fuzz).expect_err("the fault is found");
        assert!(failed.input.windows(4).any(|w| w == b"bang"), "{failed:?}");
        std::fs::remove_dir_all(fuzz.failures()).expect("removed");
    }

    fn bang(input: &[u8]) -> bool {
        input.windows(4).any(|w| w == b"bang")
    }

    #[test]
    fn a_panic_is_found() {
        broken("a_panic_is_found", |input| if bang(input) { panic!("on purpose") } else { Ok("fine".into()) });
    }

    #[test]
    fn a_broken_promise_is_found() {
        broken("a_broken_promise_is_found", |input| if bang(input) { Err("on purpose".into()) } else { Ok("".into()) });
    }

    #[test]
    fn a_loop_without_end_is_found() {
        broken("a_loop_without_end_is_found", |input| {
            while bang(std::hint::black_box(input)) {}
            Ok("fine".into())
        });
    }

    #[test]
    fn memory_without_end_is_found() {
        broken("memory_without_end_is_found", |input| {
            let mut much = Vec::new();
            while bang(input) {
                much.push(vec![1u8; 1 << 20]);
            }
            Ok("fine".into())
        });
    }

    #[test]
    fn too_much_memory_for_a_moment_is_found() {
        broken("too_much_memory_for_a_moment_is_found", |input| {
            let much = if bang(input) { GROWTH_MAX as usize * 2 } else { 0 };
            Ok(format!("{}", std::hint::black_box(vec![1u8; much]).is_empty()))
        });
    }

    #[test]
    fn a_stack_that_overflows_is_found() {
        fn deep(n: u64) -> u64 {
            let pad = std::hint::black_box([n; 64]);
            if n == u64::MAX { 0 } else { pad[0].max(deep(n + 1)) }
        }
        broken("a_stack_that_overflows_is_found", |input| Ok(if bang(input) { deep(0) } else { 0 }.to_string()));
    }
}
