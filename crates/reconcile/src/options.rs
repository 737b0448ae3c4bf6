//! The reconciler's bounds and periods, by name.

use crate::sites::SiteReach;
use std::time::Duration;
use workflow::NodePolicy;

#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// Names this process across restarts: its next life goes on with a sweep that the last one left.
    pub sweeper: String,
    /// From the start of one sweep to the start of the next.
    pub period: Duration,
    /// What one look may take, whoever is asked.
    pub timeout: Duration,
    /// Looks at the same time: of machines that answer, of machines that do not, and of machines that
    /// have just changed, so many each. A look that takes longer than a second is not counted among them, up
    /// to sixteen times as many.
    pub concurrency: usize,
    /// What nobody has confirmed for so long is shown as stale.
    pub stale_after: Duration,
    /// An attempt to install that says nothing for so long has failed.
    pub silent_after: Duration,
    /// From one look after nodes and tasks to the next.
    pub node_period: Duration,
    pub nodes: NodePolicy,
    /// How sites are reached; without it none is looked at.
    pub sites: Option<SiteReach>,
}

impl ReconcilerOptions {
    pub fn new(sweeper: impl Into<String>) -> Self {
        Self {
            sweeper: sweeper.into(),
            period: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            concurrency: 64,
            stale_after: domain::observation::STALE_AFTER,
            silent_after: domain::boot_node::SILENT_AFTER,
            node_period: Duration::from_secs(5),
            nodes: NodePolicy::default(),
            sites: None,
        }
    }

    /// A sweep that has shown no sign of life for so long is taken over.
    pub(crate) fn take_over_after(&self) -> Duration {
        self.period * 3 + self.timeout * 2
    }
}

/// Machines read at a time.
pub(crate) const PAGE: usize = 256;
/// Changed machines that wait for a look; what comes beyond is left to the sweep.
pub(crate) const PROMPT_MAX: usize = 4096;
/// Pause after the store failed.
pub(crate) const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// What a stop waits at most to say that its sweep has ended.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
