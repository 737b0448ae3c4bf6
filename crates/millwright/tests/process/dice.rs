//! Random numbers that can be had again, and the settings that say how many and which.

use domain::stage::mix;
use std::time::Duration;
use store::{Ambient as _, SystemAmbient};

pub struct Dice(u64);

impl Dice {
    /// From `MILLWRIGHT_SEED`, or from the clock; printed, so that a failure can be looked at again.
    pub fn thrown(name: &str) -> Self {
        let seed = setting("MILLWRIGHT_SEED", now_micros().unsigned_abs());
        eprintln!("{name}: MILLWRIGHT_SEED={seed}");
        Self(mix(seed ^ name.len() as u64))
    }

    /// Others of their own.
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = mix(self.0);
        self.0
    }

    pub fn up_to(&mut self, most: u64) -> u64 {
        self.next() % (most + 1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.up_to(99) < chance
    }

    pub fn within(&mut self, span: Duration) -> Duration {
        Duration::from_micros(self.up_to(u64::try_from(span.as_micros()).expect("short")))
    }
}

pub fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => otherwise,
    }
}

/// The clock that the fleet dates its effects by.
pub fn now_micros() -> i64 {
    SystemAmbient::new().now().micros()
}
