//! What the process takes from its surroundings: time and fresh ids. Injected, so that tests hold both.

use domain::Timestamp;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use uuid::Uuid;

pub trait Ambient: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    /// A fresh UUIDv7: sorts by time.
    fn uuid(&self) -> Uuid;
    /// Told once, when the database is opened, of the newest moment that is written in it.
    fn not_before(&self, _: Timestamp) {}
}

/// The machine's clock, kept from jumping: it follows the wall clock as long as the two agree within
/// [`JUMP`], and otherwise walks towards it, so that an administrator's `date -s` neither expires every
/// deadline at once nor freezes every timer for an hour. A restart is no way around that: it goes on from the
/// newest moment in the database where the wall clock is behind it.
pub struct SystemAmbient {
    last: Mutex<(Instant, i64)>,
}

/// A larger step of the wall clock is a jump.
const JUMP: i64 = 2_000_000;
/// How fast the clock walks back after a jump: one part in so many of the time that passes.
const SLEW: i64 = 20;

impl SystemAmbient {
    pub fn new() -> Self {
        Self { last: Mutex::new((Instant::now(), wall_micros())) }
    }
}

impl Default for SystemAmbient {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(clippy::disallowed_methods)] // the one place that reads the wall clock
fn wall_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Ambient for SystemAmbient {
    fn now(&self) -> Timestamp {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let instant = Instant::now();
        let passed = i64::try_from(instant.duration_since(last.0).as_micros()).unwrap_or(i64::MAX);
        let now = steady(last.1, passed, wall_micros());
        *last = (instant, now);
        Timestamp::from_micros(now)
    }

    fn uuid(&self) -> Uuid {
        let millis = u64::try_from(self.now().micros() / 1000).unwrap_or(0);
        let ts = uuid::Timestamp::from_unix(
            uuid::NoContext,
            millis / 1000,
            u32::try_from(millis % 1000).unwrap_or(0) * 1_000_000,
        );
        Uuid::new_v7(ts)
    }

    fn not_before(&self, newest: Timestamp) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let behind = newest.micros().saturating_sub(last.1);
        if behind > JUMP {
            tracing::warn!(
                seconds = behind / 1_000_000,
                newest = %newest,
                "the clock is behind what was written last: going on from there, and slowly back to the clock"
            );
        }
        if behind > 0 {
            *last = (Instant::now(), newest.micros());
        }
    }
}

/// The next reading, given the last one, the monotonic time passed since, and the wall clock.
fn steady(last: i64, passed: i64, wall: i64) -> i64 {
    let expected = last.saturating_add(passed);
    let off = wall.saturating_sub(expected);
    if off.abs() <= JUMP {
        return wall.max(last);
    }
    expected + off.signum() * (passed / SLEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_small_steps_and_walks_after_jumps() {
        assert_eq!(steady(1_000, 10, 1_011), 1_011, "follows the wall clock");
        assert_eq!(steady(1_000, 10, 500), 1_000, "never goes back");
        let hour = 3_600_000_000;
        assert_eq!(steady(hour, 1_000_000, 2 * hour), hour + 1_050_000, "an hour ahead: walks faster");
        assert_eq!(steady(2 * hour, 1_000_000, hour), 2 * hour + 950_000, "an hour behind: walks slower");
    }

    #[test]
    fn goes_on_from_what_was_written_last() {
        let ambient = SystemAmbient::new();
        let now = ambient.now();
        ambient.not_before(now.minus(std::time::Duration::from_secs(60)));
        assert!(ambient.now() >= now, "an older moment changes nothing");
        let later = now.plus(std::time::Duration::from_secs(3600));
        ambient.not_before(later);
        let again = ambient.now();
        assert!(again >= later && again.since(later) < std::time::Duration::from_secs(60), "{again}");
    }
}
