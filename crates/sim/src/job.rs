//! A command on a simulated host: running until its time, then exited.

use crate::output::Printout;
use std::sync::Arc;

/// Commands a machine remembers; the oldest is forgotten first.
pub(crate) const JOBS_MAX: usize = 32;
/// What the shell reports for a process that was killed.
pub(crate) const KILLED: i32 = 137;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub operation: String,
    pub fence: String,
    pub due_micros: i64,
    /// Shared, so that a poll can print outside the lock.
    pub printout: Arc<Printout>,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct End {
    pub exit_code: i32,
    pub killed: bool,
}

impl Job {
    pub(crate) fn kill(&mut self) {
        self.end.get_or_insert(End { exit_code: KILLED, killed: true });
    }
}
