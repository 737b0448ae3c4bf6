//! When to leave one alone who does not answer: a controller, a host, a whole site. After some silences in a row it is
//! asked no more for a while, then once: one answer and it is trusted again, one more silence and the while is twice as
//! long.

use crate::{ProviderError, ProviderResult};
use domain::Reason;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub struct Breaker {
    silences_allowed: u32,
    rest: Duration,
    rest_max: Duration,
    silences: u32,
    /// Set while it is left alone.
    resting: Option<Resting>,
}

#[derive(Clone, Debug)]
struct Resting {
    until: Instant,
    length: Duration,
    /// Why: what the last call came back with.
    last: ProviderError,
    /// Somebody is finding out whether it answers again.
    probing: bool,
}

impl Breaker {
    pub fn new(silences_allowed: u32, rest: Duration, rest_max: Duration) -> Self {
        Self { silences_allowed, rest, rest_max, silences: 0, resting: None }
    }

    /// What a call would be told, if it may not be made now. Changes nothing.
    pub fn rests(&self, now: Instant) -> Option<(ProviderError, Duration)> {
        let resting = self.resting.as_ref().filter(|resting| resting.until > now || resting.probing)?;
        Some((resting.last.clone(), resting.until.saturating_duration_since(now)))
    }

    /// A call is made. Although it was resting: then it is the probe, which is the answer, and its end must be told.
    pub fn calls(&mut self) -> bool {
        if let Some(resting) = &mut self.resting {
            resting.probing = true;
        }
        self.resting.is_some()
    }

    /// How a call ended. `jitter`, from 0 to 1, spreads what would otherwise come back in step.
    pub fn ended<T>(&mut self, outcome: &ProviderResult<T>, now: Instant, jitter: f64) {
        match outcome {
            Err(e) if is_silence(e) => self.silent(e.clone(), now, jitter),
            // it was not asked: the way there is taken
            Err(e) if e.reason() == Reason::EndpointBusy => self.given_up(),
            // a no is an answer
            Ok(_) | Err(_) => self.heard(),
        }
    }

    /// It has answered, whatever.
    pub fn heard(&mut self) {
        self.silences = 0;
        self.resting = None;
    }

    pub fn silent(&mut self, last: ProviderError, now: Instant, jitter: f64) {
        self.silences = self.silences.saturating_add(1);
        let length = match &self.resting {
            Some(resting) => (resting.length * 2).min(self.rest_max),
            None if self.silences >= self.silences_allowed => self.rest,
            None => return,
        };
        let until = now + length.mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0));
        self.resting = Some(Resting { until, length, last, probing: false });
    }

    /// Whoever called did not wait for an answer: the next one may find out.
    pub fn given_up(&mut self) {
        if let Some(resting) = &mut self.resting {
            resting.probing = false;
        }
    }

    pub fn is_resting(&self) -> bool {
        self.resting.is_some()
    }
}

/// Between 0 and 1, different every time; nothing secret hangs on it.
pub fn jitter() -> f64 {
    let bits = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

/// Whether this says that nobody is there, rather than what somebody says.
fn is_silence(e: &ProviderError) -> bool {
    match e {
        ProviderError::Unknown { .. } => true,
        ProviderError::Refused { reason, .. } => matches!(reason, Reason::Unreachable | Reason::ConnectionRefused),
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    fn away() -> ProviderResult<()> {
        Err(ProviderError::unreachable("the BMC at 10.0.0.1", "no answer within 3 s"))
    }

    #[tokio::test(start_paused = true)]
    async fn it_rests_after_some_silences_and_is_probed_once() {
        let mut breaker = Breaker::new(3, Duration::from_secs(30), Duration::from_secs(100));
        let now = Instant::now;
        for _ in 0..2 {
            breaker.ended(&away(), now(), 0.5);
            assert_eq!(breaker.rests(now()), None);
        }
        breaker.ended(&away(), now(), 0.5);
        let (last, left) = breaker.rests(now()).expect("it rests");
        assert_eq!((last.reason(), left), (Reason::Unreachable, Duration::from_secs(30)));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(breaker.rests(now()), None, "the probe");
        assert!(breaker.calls());
        assert!(breaker.rests(now()).is_some(), "only one");
        breaker.ended(&away(), now(), 0.5);
        assert_eq!(breaker.rests(now()).map(|r| r.1), Some(Duration::from_secs(60)), "it rests on");
        for longest in [100, 100] {
            tokio::time::advance(Duration::from_secs(100)).await;
            assert!(breaker.calls());
            breaker.ended(&away(), now(), 0.5);
            assert_eq!(breaker.rests(now()).map(|r| r.1), Some(Duration::from_secs(longest)));
        }
        tokio::time::advance(Duration::from_secs(100)).await;
        assert!(breaker.calls());
        breaker.ended(&Ok(()), now(), 0.5);
        assert_eq!(breaker.rests(now()), None);
        assert!(!breaker.is_resting());
    }

    #[tokio::test(start_paused = true)]
    async fn a_no_is_an_answer() {
        let mut breaker = Breaker::new(1, Duration::from_secs(30), Duration::from_secs(30));
        let no: ProviderResult<()> = Err(ProviderError::login_refused("the BMC", "rack-1"));
        breaker.ended(&no, Instant::now(), 0.0);
        assert!(!breaker.is_resting(), "a wrong password is no silence");
        breaker.ended(&Err::<(), _>(ProviderError::unknown("sent")), Instant::now(), 0.0);
        assert!(breaker.is_resting());
    }
}
