//! How large the model is, how it departs from the protocol, and the defects that can be planted.

use crate::properties::EVERYTHING;
use crate::state::{CALL_TIMEOUT, LEASE};

/// Deliberate departures from the protocol, each of which the checker has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A write checks neither fence, holder nor session.
    NoFenceCheck,
    /// A write checks fence and holder but not that the session is live.
    NoSessionCheck,
    /// A write does not check that the execution is still open.
    NoTerminalCheck,
    /// A claimant from the dead does not settle.
    NoSettling,
    /// A claimant does not settle if the session was marked dead by a restart.
    NoSettlingAfterRestart,
    /// A claimant does not settle if the session was marked dead by observation.
    NoSettlingAfterObservation,
    /// A claimant probes when it claims, and only then settles.
    ProbeBeforeSettling,
    /// A claimant ends a canceled execution without settling.
    CancelBeforeSettling,
    /// A process hands over an execution while it settles.
    ReleaseBeforeSettling,
    /// A claimant acts on a stage in hand without probing.
    NoProbe,
    /// A renewal does not check that the session is live.
    RenewalIgnoresState,
    /// Marking dead does not compare the counter.
    MarkIgnoresCounter,
    /// Marking dead does not wait for the lease to run out.
    MarkAtOnce,
    /// The holder begins calls for the whole lease, not only until `lease - call_timeout`.
    CallUntilLeaseEnds,
    /// The holder counts its lease from the answer to its renewal.
    LeaseFromAnswer,
    /// The taker stamps its reading before it reads the store.
    StampBeforeRead,
}

/// The model: its size, and how it departs from the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub processes: usize,
    /// How many sessions are opened at most; what exceeds `processes` are restarts.
    pub sessions: usize,
    pub executions: usize,
    pub attempts: u8,
    pub repeatable: bool,
    pub lease: u8,
    pub call_timeout: u8,
    /// Begin, commit and answer of a renewal are steps of their own.
    pub split_renewal: bool,
    /// Whether the operator may cancel.
    pub cancels: bool,
    /// Whether the operator may terminate: end an execution at once, whoever holds it.
    pub terminates: bool,
    /// The clock of each process may be late or early by one tick, once in so many.
    pub drift: Option<u8>,
    /// Ticks for which a claimant settles beyond the longest call.
    pub settle_margin: u8,
    /// Takers read only the sessions that hold an execution. Saves states.
    pub watch_holders_only: bool,
    /// Longest pause, in ticks, between checking the lease and sending the call. `None`: the two are one step.
    pub late_send: Option<u8>,
    pub defects: &'static [Defect],
    /// Names of the reachability properties which hold for this size.
    pub reaches: &'static [&'static str],
}

/// Two processes, one restart, one execution: the size which shows everything.
pub const BASE: Lease = Lease {
    processes: 2,
    sessions: 3,
    executions: 1,
    attempts: 1,
    repeatable: false,
    lease: LEASE,
    call_timeout: CALL_TIMEOUT,
    split_renewal: false,
    cancels: true,
    terminates: false,
    drift: None,
    settle_margin: 0,
    watch_holders_only: false,
    late_send: None,
    defects: &[],
    reaches: EVERYTHING,
};
