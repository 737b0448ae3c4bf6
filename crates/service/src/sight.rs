//! How the product stands, gathered when somebody reads the metrics: what is cheap is told at once, what
//! is in the database is counted at most every few seconds, whoever asks.

use crate::Service;
use domain::lifecycle::State as _;
use domain::machine::Phase;
use domain::metric;
use domain::run::RunPhase;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::Census;
use tokio::time::Instant;

/// No matter how many scrape, the rows are counted no more often.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// A page of metrics is wanted most when the database is slow: then it comes without these numbers.
const COUNT_WITHIN: Duration = Duration::from_secs(3);

/// When the rows were last counted.
#[derive(Default)]
pub(crate) struct Counted(Mutex<Option<Instant>>);

impl Counted {
    /// Whether it is time to count again; who is told so does it.
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

impl Service {
    /// Brings every gauge up to date.
    pub async fn tell(&self) {
        self.store().tell_queues();
        self.engine().tell();
        if !self.inner.counted.is_due() {
            return;
        }
        metrics::gauge!(metric::ENDPOINTS_RESTING.name).set(self.inner.providers.resting() as f64);
        let counting = self.store().snapshot(store::census);
        let up = match tokio::time::timeout(COUNT_WITHIN, counting).await {
            Ok(Ok(census)) => {
                self.tell_census(&census);
                true
            }
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "counting for the metrics");
                false
            }
            Err(_) => {
                tracing::warn!("counting for the metrics took longer than {} s", COUNT_WITHIN.as_secs());
                false
            }
        };
        metrics::gauge!(metric::STORE_UP.name).set(f64::from(u8::from(up)));
    }

    fn tell_census(&self, census: &Census) {
        let count = |of: &[(String, u64)], name: &str| of.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n) as f64;
        for phase in Phase::ALL {
            let machines = count(&census.machines, phase.as_str());
            metrics::gauge!(metric::MACHINES.name, "phase" => phase.as_str()).set(machines);
        }
        for phase in RunPhase::ALL.iter().filter(|p| !p.is_terminal()) {
            let runs = count(&census.runs, phase.as_str());
            metrics::gauge!(metric::RUNS_ACTIVE.name, "phase" => phase.as_str()).set(runs);
        }
        metrics::gauge!(metric::QUEUE_DEPTH.name).set(census.due as f64);
        metrics::gauge!(metric::QUEUE_OLDEST.name).set(census.at.since(census.oldest_due).as_secs_f64());
        engine::tell_open(&census.open, census.frozen);
        metrics::gauge!(metric::FROZEN.name).set(f64::from(u8::from(census.frozen)));
        metrics::gauge!(metric::LOG_HEAD.name).set(census.log_head as f64);
        let seen = self.inner.feed.head().look();
        metrics::gauge!(metric::FEED_LAG.name).set(census.log_head.saturating_sub(seen) as f64);
    }

    /// Makes what has not happened yet visible as zero.
    pub fn tell_zeros() {
        store::tell_zeros();
        engine::tell_zeros();
        for served in metric::SERVED {
            metrics::counter!(metric::BOOT_DECISIONS.name, "served" => served).increment(0);
        }
        for (said, outcome) in metric::SAID.into_iter().flat_map(|said| metric::REPORTED.map(|outcome| (said, outcome)))
        {
            metrics::counter!(metric::BOOT_REPORTS.name, "said" => said, "outcome" => outcome).increment(0);
        }
        for what in metric::HEARD_AND_DONE {
            metrics::counter!(metric::NETBOOT.name, "what" => what).increment(0);
        }
        metrics::gauge!(metric::IMAGE_READERS.name).set(0.0);
        metrics::gauge!(metric::AGENTS_CONNECTED.name).set(0.0);
        metrics::counter!(metric::AGENT_HEARTBEATS.name).increment(0);
        for outcome in metric::ENROLLED {
            metrics::counter!(metric::AGENT_ENROLMENTS.name, "outcome" => outcome).increment(0);
        }
        for outcome in metric::TASKED {
            metrics::counter!(metric::AGENT_TASKS.name, "outcome" => outcome).increment(0);
        }
        for why in metric::TURNED_AWAY {
            metrics::counter!(metric::AGENT_REFUSALS.name, "why" => why).increment(0);
        }
    }
}
