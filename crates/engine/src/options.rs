//! The engine's bounds and periods, by name.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Names this process across restarts: the next life reclaims the work of the last one at once.
    pub instance_id: String,
    /// A session that has not renewed for so long is over.
    pub lease: Duration,
    /// No provider call lasts longer; well below the lease.
    pub call_timeout: Duration,
    /// Executions worked on at the same time.
    pub workers: usize,
    /// Destructive stages allowed in one rack within an hour. Machines that name no rack are not counted.
    pub destructive_per_rack_and_hour: u64,
    /// How often to look for what other processes left, and for signals that got lost.
    pub poll: Duration,
    /// How long a hand-over waits for calls in the air.
    pub hand_over_within: Duration,
}

impl EngineOptions {
    pub fn new(instance_id: impl Into<String>) -> Self {
        Self {
            instance_id: instance_id.into(),
            lease: Duration::from_secs(30),
            call_timeout: Duration::from_secs(10),
            workers: 1024,
            destructive_per_rack_and_hour: 64,
            poll: Duration::from_millis(500),
            hand_over_within: Duration::from_secs(15),
        }
    }
}

/// Waits up to this long are slept through; a longer one is stored and gives the worker back.
pub(crate) const SHORT_WAIT: Duration = Duration::from_secs(2);
/// Executions taken in one claim: so many that ten thousand that are due at once, after a time without a
/// server, wait for some dozens of commits rather than hundreds; so few that other servers get their share.
pub(crate) const CLAIM_MAX: usize = 256;
/// Pause before a worker looks again after the store failed it.
pub(crate) const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// Claimed so much later than it asked for: nobody was there to do it.
pub(crate) const LATE: Duration = Duration::from_secs(2);
/// When to look again at an execution that this binary does not understand.
pub(crate) const UNKNOWN_RECHECK: Duration = Duration::from_secs(60);
