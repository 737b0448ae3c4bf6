//! When to try again: soon, never together with everybody else, and never more rarely than [`LONGEST`].

use crate::clock::jitter;
use std::time::Duration;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// After a connection is lost, everybody has lost theirs at the same moment.
const SPREAD: Duration = Duration::from_secs(20);
/// Even the luckiest draw leaves the server a moment.
const LEAST: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It was connected, and is no more.
    pub fn lost(&mut self) -> Duration {
        // who comes too early is among thousands, and does not hurry either
        self.failures = 3;
        LEAST + jitter(SPREAD)
    }

    /// It could not connect. Full jitter under a ceiling that doubles.
    pub fn failed(&mut self) -> Duration {
        let ceiling = SHORTEST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        LEAST + jitter(ceiling - LEAST)
    }

    /// The server said when; those who were told the same are spread after it.
    pub fn told(&mut self, after: Duration) -> Duration {
        self.failures = 0;
        after + LEAST + jitter(SPREAD.min(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_who_lose_their_server_come_back_spread_and_in_time() {
        let mut per_second = [0u32; 60];
        for _ in 0..10_000 {
            let mut backoff = Backoff::default();
            let mut at = backoff.lost();
            // the server is back after eight seconds
            while at < Duration::from_secs(8) {
                at += backoff.failed();
            }
            per_second[usize::try_from(at.as_secs()).expect("a second")] += 1; // out of bounds: later than a minute
        }
        // 500 a second is the even spread over twenty; those who came too early are added to the first
        assert!(per_second.iter().all(|n| *n < 1_500), "{per_second:?}");
    }

    #[test]
    fn waits_stay_within_their_bounds_however_often_it_fails() {
        let mut backoff = Backoff::default();
        for n in 0..10_000 {
            let wait = backoff.failed();
            assert!(wait >= LEAST && wait <= LONGEST, "{n}: {wait:?}");
            if n == 0 {
                assert!(wait <= SHORTEST, "{wait:?}");
            }
        }
        assert!(backoff.lost() <= SPREAD + LEAST);
        for after in [1, 5, 600] {
            let after = Duration::from_secs(after);
            let wait = backoff.told(after);
            assert!(wait > after && wait <= after + SPREAD + LEAST, "{wait:?}");
        }
        assert!(backoff.failed() <= SHORTEST, "it begins anew");
    }
}
