//! A lifecycle is data: states, edges, the owner and guard of each edge, a deadline for each state
//! that is not at rest. This file is the shape and the one judge; each noun declares its own table.

use std::fmt;

/// Who may make an edge. A caller of the store holds one of these and can use no other's edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A person or a customer's automation, through a door.
    Operator,
    /// The engine, carrying out a run.
    Executor,
    /// A reconciler, from observations.
    Reconciler,
    /// A machine that speaks for itself: by booting, or with the token of its installation.
    Node,
}

impl Owner {
    pub const ALL: [Owner; 4] = [Owner::Operator, Owner::Executor, Owner::Reconciler, Owner::Node];

    pub const fn as_str(self) -> &'static str {
        match self {
            Owner::Operator => "operator",
            Owner::Executor => "executor",
            Owner::Reconciler => "reconciler",
            Owner::Node => "node",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition on facts of the same transaction that must hold for an edge to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    None,
    /// No run is pending or running on the machine.
    NoActiveRun,
    /// As above, and the cluster says that the machine is a member.
    InClusterAndNoActiveRun,
    /// An inspection has proven that we can manage the machine.
    Inspected,
    /// A workflow is assigned, so that what will be installed is known, and the linked machine is not in use.
    WorkflowAssigned,
    /// As above, with `force`, and with a reason where the workflow is the one that failed.
    ForcedReset,
    /// As many attempts have failed as are allowed.
    AttemptsSpent,
    /// The linked machine serves nobody, and no run is active on it.
    NotInUse,
    /// Of a node.
    Node(NodeGuard),
}

/// What must hold of a node, its agent or its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeGuard {
    /// Its agent has enrolled, and its health checks pass.
    EnrolledAndHealthy,
    /// Several heartbeats without a gap, the last one of late.
    SteadyHeartbeat,
    /// The probes that are named for it pass, and its heartbeat is steady.
    ProbesPass,
    /// A job holds the node from the same transaction on.
    OwningJob,
    /// Its agent's identity was kept, and not taken back.
    IdentityKept,
}

impl Guard {
    pub const fn describe(self) -> &'static str {
        match self {
            Guard::None => "–",
            Guard::NoActiveRun => "no active run",
            Guard::InClusterAndNoActiveRun => "no active run, and the cluster confirms membership",
            Guard::Inspected => "identity read through BMC or SSH",
            Guard::WorkflowAssigned => "a workflow is assigned, and the linked machine is not in use",
            Guard::ForcedReset => {
                "`force`, a workflow is assigned, a comment if it is the one that failed, and the linked machine is not in use"
            }
            Guard::AttemptsSpent => "the third failed attempt",
            Guard::NotInUse => {
                "the linked machine is not in service and has no active run, and its node is retired or deleted"
            }
            Guard::Node(NodeGuard::EnrolledAndHealthy) => "its agent has enrolled and its health checks pass",
            Guard::Node(NodeGuard::SteadyHeartbeat) => "several heartbeats without a gap",
            Guard::Node(NodeGuard::ProbesPass) => "the named health probes pass, and its heartbeat is steady",
            Guard::Node(NodeGuard::OwningJob) => "a job holds the node, from the same commit on",
            Guard::Node(NodeGuard::IdentityKept) => "its agent's identity was kept",
        }
    }
}

/// How long a state may last before somebody must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Nothing is pending: the state may last for ever.
    AtRest,
    /// A worker must have picked it up by then, or it ends as failed.
    StartWithin(std::time::Duration),
    /// Ends with the time-outs and retries of its steps, which are all bounded.
    StepBudgets,
    /// The step's own `timeout_seconds`, for each attempt.
    AttemptTimeout,
    /// Ends with the run that holds the machine.
    ActiveRun,
    /// Waits for something outside; after that long a finding says so.
    FindingAfter(std::time::Duration),
    /// An attempt that says nothing for so long has failed.
    Silence(std::time::Duration),
    /// Ends with the job that holds the node.
    OwningJob,
    /// Nobody took it by the time that it names.
    TakenBy,
    /// Whoever has it says a word within so long, again and again.
    Lease(std::time::Duration),
}

impl Deadline {
    pub fn describe(self) -> String {
        match self {
            Deadline::AtRest => "at rest".to_owned(),
            Deadline::StartWithin(span) => format!("{} h until started", span.as_secs() / 3600),
            Deadline::StepBudgets => "sum of its steps' time-outs, retries and backoffs".to_owned(),
            Deadline::AttemptTimeout => "`timeout_seconds` for each attempt".to_owned(),
            Deadline::ActiveRun => "ends with the active run".to_owned(),
            Deadline::FindingAfter(span) => format!("a finding after {} min", span.as_secs() / 60),
            Deadline::Silence(span) => format!("an attempt without a word for {} min has failed", span.as_secs() / 60),
            Deadline::OwningJob => "ends with the job that holds it".to_owned(),
            Deadline::TakenBy => "expires when its agent has not come by `take_by`".to_owned(),
            Deadline::Lease(span) => format!("expires {} s after the agent's last word", span.as_secs()),
        }
    }
}

/// One legal move. `from: None` is the creation of the entity.
#[derive(Clone, Copy, Debug)]
pub struct Edge<S: 'static> {
    pub from: Option<S>,
    pub to: S,
    pub trigger: &'static str,
    pub owner: Owner,
    pub guard: Guard,
}

/// A state of some lifecycle: a closed set with stable names.
pub trait State: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// The name of the lifecycle, and of the entity kind in the log.
    const ENTITY: &'static str;
    const ALL: &'static [Self];
    fn as_str(self) -> &'static str;
    fn edges() -> &'static [Edge<Self>];
    fn deadline(self) -> Deadline;

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|s| s.as_str() == text)
    }
}

/// The judge's answer to "may `owner` move this from here to there because of `trigger`?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes, if the guard holds.
    Allowed(Guard),
    /// The edge exists, but another owner's.
    NotYours(Owner),
    /// There is no such edge.
    Illegal,
}

pub fn judge<S: State>(from: Option<S>, to: S, trigger: &str, owner: Owner) -> Verdict {
    let mut verdict = Verdict::Illegal;
    for edge in S::edges() {
        if edge.from == from && edge.to == to && edge.trigger == trigger {
            if edge.owner == owner {
                return Verdict::Allowed(edge.guard);
            }
            verdict = Verdict::NotYours(edge.owner);
        }
    }
    verdict
}

/// The states that `owner` may move to from `from`, in declaration order.
pub fn allowed_next<S: State>(from: Option<S>, owner: Owner) -> Vec<S> {
    let mut next = Vec::new();
    for edge in S::edges() {
        if edge.from == from && edge.owner == owner && Some(edge.to) != from && !next.contains(&edge.to) {
            next.push(edge.to);
        }
    }
    next
}

/// Every trigger of a lifecycle, once.
pub fn triggers<S: State>() -> Vec<&'static str> {
    let mut all = Vec::new();
    for edge in S::edges() {
        if !all.contains(&edge.trigger) {
            all.push(edge.trigger);
        }
    }
    all
}
