//! One connection: who is at its other end, and what it has used.

use domain::{Error, Reason};
use service::Service;
use service::agents::{AgentPeer, Unreadable};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

/// Calls with one answer on one connection: an agent makes one or two.
const CALLS_MAX: u32 = 64;

/// Who has shaken hands.
pub(super) enum Who {
    Nobody,
    Agent(AgentPeer),
    /// With a certificate of ours that says nothing.
    Unreadable(Unreadable),
}

pub(super) struct Line {
    pub who: Who,
    /// It has a stream.
    pub streams: AtomicBool,
    calls: AtomicU32,
    /// The connection ends.
    pub end: CancellationToken,
}

impl Line {
    pub fn new(who: Who) -> Self {
        Self { who, streams: AtomicBool::new(false), calls: AtomicU32::new(0), end: CancellationToken::new() }
    }

    /// Counts a call with one answer.
    pub fn calls(&self) -> Result<(), Error> {
        if self.calls.fetch_add(1, Ordering::Relaxed) < CALLS_MAX {
            return Ok(());
        }
        self.end.cancel();
        Err(Error::new(Reason::RateLimited, "too many calls on one connection; connect anew"))
    }

    /// The agent at the other end.
    pub async fn agent(&self, service: &Service, call: &'static str) -> Result<&AgentPeer, Error> {
        let (why, message) = match &self.who {
            Who::Agent(peer) => return Ok(peer),
            Who::Nobody => ("missing", "no certificate was shown; enrol first"),
            Who::Unreadable(Unreadable::WrongName) => ("wrong_name", "the certificate is not one of a node"),
            Who::Unreadable(Unreadable::Malformed) => ("malformed", "the certificate is not as we make them"),
        };
        let error = Error::new(Reason::AgentCertificateRefused, message);
        service.turned_away(why, call, None, &error).await;
        Err(error)
    }
}
