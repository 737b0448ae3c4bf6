//! When the certificate is renewed, and how. Half of its life is measured by what the server says of the time and by the
//! monotonic clock from then on: the machine's own clock has no part in it.

use super::dial::Client;
use crate::clock::{Clock, jitter};
use crate::identity::{Held, Identity};
use proto::agent::v1::RenewRequest;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Never more often than this, whatever the certificates say.
const LEAST: Duration = Duration::from_secs(1);
/// Between tries, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// When to renew, on a connection where the server's clock is known.
pub struct Schedule {
    pub at: Instant,
    failures: u32,
}

impl Schedule {
    pub fn new(held: &Held, clock: &Clock) -> Self {
        let left = held.renew_after.since(clock.estimate().now);
        // those who were enrolled together do not renew together
        let spread = jitter(held.not_after.since(held.renew_after) / 10);
        Self { at: Instant::now() + (left + spread).max(LEAST), failures: 0 }
    }

    /// Sooner than the certificate ends, and not all the time.
    pub fn failed(&mut self) {
        let ceiling = RETRY.0.saturating_mul(1 << self.failures.min(10)).min(RETRY.1);
        self.failures = self.failures.saturating_add(1);
        self.at = Instant::now() + LEAST + jitter(ceiling);
    }
}

/// Whether it has ended, as far as anybody can tell before the server has spoken.
pub fn is_over(held: &Held, clock: &Clock) -> bool {
    clock.estimate().now >= held.not_after
}

/// A fresh certificate for the same key.
pub async fn ask(mut client: Client, identity: Identity, clock: Clock) -> Result<Held, Status> {
    let csr_der = identity.key.request().map_err(Status::internal)?;
    let answer = timeout(ANSWER_WITHIN, client.renew(RenewRequest { csr_der })).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded(format!("no answer within {ANSWER_WITHIN:?}")))??;
    let sent = answer.into_inner().certificate;
    let sent = sent.ok_or_else(|| Status::new(Code::Internal, "the server's answer has no certificate"))?;
    let known = clock.estimate();
    let now = known.proven.then_some(known.now);
    let held = Held::take(sent, &identity.certificate.authorities_pem, now).map_err(Status::internal)?;
    // used only if it can be: the old one is not given up for one that does not fit
    let renewed = Identity { certificate: held.clone(), ..identity };
    super::dial::tls(&held.authorities_pem, "the server's authorities", Some(&renewed), &clock)
        .map_err(Status::internal)?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::Timestamp;
    use std::sync::Arc;

    fn held(from: i64, renew: i64, until: i64) -> Held {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        Held {
            chain_pem: String::new(),
            authorities_pem: String::new(),
            not_before: at(from),
            not_after: at(until),
            renew_after: at(renew),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_machines_clock_has_no_part_in_half_life() {
        for wall in [0, 86_400, 4_000_000_000] {
            let clock = Clock::new(Arc::new(move || Timestamp::from_micros(wall * 1_000_000)));
            clock.hear(Timestamp::from_micros(10_000_000_000));
            let schedule = Schedule::new(&held(9_000, 11_000, 13_000), &clock);
            let left = schedule.at - Instant::now();
            assert!(left >= Duration::from_secs(1000) && left <= Duration::from_secs(1200), "{wall}: {left:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_overdue_is_soon_and_failures_are_spaced_within_a_bound() {
        let clock = Clock::new(Arc::new(Timestamp::default));
        clock.hear(Timestamp::from_micros(20_000_000_000));
        let held = held(9_000, 11_000, 13_000);
        assert!(is_over(&held, &clock));
        let mut schedule = Schedule::new(&held, &clock);
        assert!(schedule.at - Instant::now() <= Duration::from_secs(200));
        for _ in 0..1000 {
            schedule.failed();
            let wait = schedule.at - Instant::now();
            assert!(wait >= LEAST && wait <= LEAST + RETRY.1, "{wait:?}");
        }
    }
}
