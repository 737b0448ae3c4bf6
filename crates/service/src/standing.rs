//! How a caller stands at this moment: what it has used of its share, and whether it is still welcome.

use domain::{Error, Reason};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What one caller may use.
#[derive(Clone, Copy, Debug)]
pub struct CallerLimits {
    pub calls_per_second: u32,
    /// Calls at once after a pause.
    pub burst: u32,
    /// Streams open at the same time.
    pub streams: usize,
}

impl Default for CallerLimits {
    fn default() -> Self {
        Self { calls_per_second: 2_000, burst: 4_000, streams: 1_000 }
    }
}

/// Refusals of one caller that are put on record one by one; beyond that one stands for many.
const REFUSALS_PER_SECOND: u32 = 10;
const REFUSALS_AT_ONCE: u32 = 100;

/// A bucket that fills by itself.
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn full(size: u32) -> Self {
        Self { level: f64::from(size), at: Instant::now() }
    }

    /// Takes one, or says how long until there is one.
    fn take(&mut self, per_second: u32, size: u32) -> Result<(), Duration> {
        let now = Instant::now();
        let rate = f64::from(per_second.max(1));
        self.level = (self.level + now.duration_since(self.at).as_secs_f64() * rate).min(f64::from(size.max(1)));
        self.at = now;
        if self.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.level) / rate));
        }
        self.level -= 1.0;
        Ok(())
    }
}

/// Which refusals are put on record: all at an ordinary rate, beyond that some, with the count of those
/// they stand for. So nobody can fill the disk by being refused.
pub(crate) struct Sampler {
    per_second: u32,
    burst: u32,
    state: Mutex<(Bucket, u64)>,
}

impl Sampler {
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second, burst, state: Mutex::new((Bucket::full(burst), 0)) }
    }

    /// How many refusals an entry made now stands for; `None`: make none.
    pub fn sample(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (bucket, unsaid) = &mut *state;
        *unsaid += 1;
        bucket.take(self.per_second, self.burst).ok().map(|()| std::mem::take(unsaid))
    }
}

pub struct Standing {
    limits: CallerLimits,
    calls: Mutex<Bucket>,
    streams: AtomicUsize,
    revoked: CancellationToken,
    pub(crate) refusals: Sampler,
}

impl Standing {
    pub(crate) fn new(limits: CallerLimits) -> Self {
        Self {
            limits,
            calls: Mutex::new(Bucket::full(limits.burst)),
            streams: AtomicUsize::new(0),
            revoked: CancellationToken::new(),
            refusals: Sampler::new(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE),
        }
    }

    pub(crate) fn revoke(&self) {
        self.revoked.cancel();
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled()
    }

    pub(crate) async fn revoked(&self) {
        self.revoked.cancelled().await;
    }

    /// Counts a call against the caller's share.
    pub(crate) fn count_call(&self) -> Result<(), Error> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.take(self.limits.calls_per_second, self.limits.burst).map_err(|wait| {
            let limit = self.limits.calls_per_second;
            Error::new(
                Reason::RateLimited,
                format!("more than {limit} calls a second with this token; try again in {} ms", wait.as_millis() + 1),
            )
        })
    }

    /// A place for one more stream, kept until it is dropped.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Result<OpenStream, Error> {
        let max = self.limits.streams;
        if self.streams.fetch_add(1, Ordering::Relaxed) >= max {
            self.streams.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::new(
                Reason::LimitReached,
                format!("{max} streams are open with this token, which is the limit; end one first"),
            ));
        }
        Ok(OpenStream(self.clone()))
    }
}

pub(crate) struct OpenStream(Arc<Standing>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_and_forgiven_with_time() {
        let standing = Standing::new(CallerLimits { calls_per_second: 10, burst: 3, streams: 1 });
        for _ in 0..3 {
            assert!(standing.count_call().is_ok());
        }
        assert_eq!(standing.count_call().map_err(|e| e.reason), Err(Reason::RateLimited));
        tokio::time::advance(Duration::from_millis(101)).await;
        assert!(standing.count_call().is_ok());
        assert!(standing.count_call().is_err());
    }

    #[tokio::test]
    async fn streams_give_their_place_back() {
        let standing = Arc::new(Standing::new(CallerLimits { calls_per_second: 1, burst: 1, streams: 1 }));
        let first = standing.open_stream().expect("a place");
        assert!(standing.open_stream().is_err());
        drop(first);
        assert!(standing.open_stream().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_stands_for_those_before_it() {
        let sampler = Sampler::new(1, 2);
        let sampled: Vec<Option<u64>> = (0..5).map(|_| sampler.sample()).collect();
        assert_eq!(sampled, [Some(1), Some(1), None, None, None]);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(sampler.sample(), Some(4));
    }
}
