//! Time and ids that a test holds in its hand: the clock follows tokio's (paused or not) and can be
//! pushed forward, and the ids come out the same for the same seed.

use domain::Timestamp;
use domain::stage::mix;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::Ambient;
use tokio::runtime::Handle;
use tokio::time::Instant;
use uuid::Uuid;

/// 2026-01-01T00:00:00Z, in microseconds.
const BASE: i64 = 1_767_225_600_000_000;

pub struct VirtualAmbient {
    /// Whose clock it is. The store asks from threads of its own, which see no paused time otherwise.
    clock: Option<Handle>,
    start: Instant,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How far it is ahead of the clock it follows, in microseconds.
    ahead: i64,
    /// What was read last: it may stand still, but never goes back.
    last: i64,
    ids: u64,
    last_millis: u64,
}

impl VirtualAmbient {
    /// On the clock of the runtime this is called in; outside of any, on the machine's monotonic one.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::on(Handle::try_current().ok(), seed)
    }

    pub fn on(clock: Option<Handle>, seed: u64) -> Arc<Self> {
        let start = instant(clock.as_ref());
        Arc::new(Self { clock, start, seed, state: Mutex::default() })
    }

    /// Pushes the clock forward, without waiting and without waking timers.
    pub fn skip(&self, span: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ahead += i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    }

    /// Sets how far the clock is ahead (or behind), in microseconds. Set back, it stands still until the
    /// time it has shown is reached again.
    pub fn set_ahead(&self, micros: i64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ahead = micros;
    }

    fn at(&self, state: &mut State) -> Timestamp {
        let passed = instant(self.clock.as_ref()).duration_since(self.start);
        let now = Timestamp::from_micros(BASE).plus(passed).micros().saturating_add(state.ahead);
        state.last = state.last.max(now);
        Timestamp::from_micros(state.last)
    }
}

fn instant(clock: Option<&Handle>) -> Instant {
    let _inside = clock.map(Handle::enter);
    Instant::now()
}

impl Ambient for VirtualAmbient {
    fn now(&self) -> Timestamp {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.at(&mut state)
    }

    /// A UUIDv7 larger than every one before: the time, then a counter, then bits of the seed, so that
    /// two sources with different seeds do not meet.
    fn uuid(&self) -> Uuid {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = u64::try_from(self.at(&mut state).micros() / 1000).unwrap_or(0).max(state.last_millis);
        state.last_millis = millis;
        state.ids += 1;
        let (high, middle) = ((state.ids >> 30) & 0xfff, state.ids & 0x3fff_ffff);
        let low = mix(self.seed ^ mix(state.ids)) & 0xffff_ffff;
        let top = (millis << 16) | 0x7000 | high;
        let bottom = (0b10 << 62) | (middle << 32) | low;
        Uuid::from_u64_pair(top, bottom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_paused_clock_drives_it_on_every_thread() {
        let ambient = VirtualAmbient::new(7);
        let before = ambient.now();
        assert_eq!(before.micros(), BASE);
        tokio::time::advance(Duration::from_secs(5)).await;
        ambient.skip(Duration::from_secs(1));
        let elsewhere = ambient.clone();
        let seen = std::thread::spawn(move || elsewhere.now()).join().expect("no panic");
        assert_eq!(seen.since(before), Duration::from_secs(6));
        assert_eq!(ambient.now(), seen);
    }

    #[tokio::test(start_paused = true)]
    async fn ids_rise_and_repeat_with_their_seed() {
        let take = |seed| {
            let ambient = VirtualAmbient::new(seed);
            (0..2000).map(|_| ambient.uuid()).collect::<Vec<Uuid>>()
        };
        let (first, again, other) = (take(1), take(1), take(2));
        assert!(first.is_sorted() && first.windows(2).all(|w| w[0] != w[1]));
        assert_eq!(first, again);
        assert!(first.iter().all(|id| !other.contains(id)));
        assert!(first.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
    }
}
