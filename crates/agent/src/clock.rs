//! What time it is, on a machine whose clock may be a day or half a century off. The server's word, heard over a
//! connection that was verified, is worth more than the machine's own clock; between two words the monotonic clock
//! counts. Intervals never come from the wall clock at all.

use domain::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The machine's own clock, as something that tests can set.
pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Clone)]
pub struct Clock {
    wall: Wall,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    /// It is later than this: a server has said so, now or before a restart.
    at_least: Timestamp,
    /// What the server's clock said, and when that was.
    heard: Option<(Timestamp, Instant)>,
}

/// The best that is known of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub now: Timestamp,
    /// From the server's word, and not from a clock that may be wrong.
    pub proven: bool,
    /// It is no earlier than this, however wrong the machine's clock is.
    pub at_least: Timestamp,
}

impl Clock {
    pub fn new(wall: Wall) -> Self {
        Self { wall, told: Arc::default() }
    }

    pub fn system() -> Self {
        Self::new(Arc::new(wall))
    }

    /// What the machine believes.
    pub fn wall(&self) -> Timestamp {
        (self.wall)()
    }

    /// The server's clock, as told over a verified connection just now.
    pub fn hear(&self, server: Timestamp) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.heard = Some((server, Instant::now()));
        told.at_least = told.at_least.max(server);
    }

    /// What a server said before the agent was started anew.
    pub fn remember(&self, server: Timestamp) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.at_least = told.at_least.max(server);
    }

    pub fn estimate(&self) -> Estimate {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told.heard {
            Some((server, when)) => {
                Estimate { now: server.plus(when.elapsed()), proven: true, at_least: told.at_least }
            }
            None => Estimate { now: self.wall().max(told.at_least), proven: false, at_least: told.at_least },
        }
    }
}

#[allow(clippy::disallowed_methods)] // the one place that reads the wall clock
fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Anything from nothing to `most`, so that ten thousand agents do not do the same thing at the same moment.
pub fn jitter(most: Duration) -> Duration {
    let mut bytes = [0u8; 8];
    // without randomness the middle: late, but not together with everybody else who has it
    let share = match ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes) as f64 / u64::MAX as f64,
        Err(ring::error::Unspecified) => 0.5,
    };
    most.mul_f64(share)
}

pub fn to_wire(at: Timestamp) -> prost_types::Timestamp {
    let (seconds, micros) = (at.micros().div_euclid(1_000_000), at.micros().rem_euclid(1_000_000));
    prost_types::Timestamp { seconds, nanos: i32::try_from(micros * 1000).unwrap_or(0) }
}

pub fn from_wire(at: &prost_types::Timestamp) -> Timestamp {
    Timestamp::from_micros(at.seconds.saturating_mul(1_000_000).saturating_add(i64::from(at.nanos) / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck_at(seconds: i64) -> Clock {
        Clock::new(Arc::new(move || Timestamp::from_micros(seconds * 1_000_000)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_word_counts_more_than_the_clock_and_goes_on_by_itself() {
        let clock = stuck_at(1_000);
        assert_eq!(clock.estimate().now.micros(), 1_000_000_000);
        assert!(!clock.estimate().proven);
        clock.hear(Timestamp::from_micros(5_000_000_000));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.estimate().now.micros(), 5_007_000_000);
        assert!(clock.estimate().proven);
    }

    #[test]
    fn a_clock_that_went_back_does_not_go_behind_what_a_server_said() {
        let clock = stuck_at(0);
        clock.remember(Timestamp::from_micros(9_000_000));
        clock.remember(Timestamp::from_micros(4_000_000));
        assert_eq!(clock.estimate().now.micros(), 9_000_000);
    }

    #[test]
    fn jitter_stays_within_its_bound_and_differs() {
        let some: Vec<_> = (0..100).map(|_| jitter(Duration::from_secs(20))).collect();
        assert!(some.iter().all(|d| *d <= Duration::from_secs(20)));
        assert!(some.iter().any(|d| *d > Duration::from_secs(10)) && some.iter().any(|d| *d < Duration::from_secs(10)));
    }

    #[test]
    fn times_come_back_from_the_wire_as_they_were() {
        for micros in [0, 1, -1, 1_700_000_000_123_456] {
            let at = Timestamp::from_micros(micros);
            assert_eq!(from_wire(&to_wire(at)), at);
        }
    }
}
