//! A task: one typed order to a node's agent, leased and fenced. The order itself is carried as the wire has it; what it
//! is and how it stands is decided here.

use crate::id::{JobId, NodeId, TaskId};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::stage::FailureClass;
use crate::time::Timestamp;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    Queued,
    /// Handed to the agent, which holds its lease.
    Dispatched,
    Done,
    Failed,
    /// Nobody took it in time, or its lease ran out.
    Expired,
}

use TaskStatus::{Dispatched, Done, Expired, Failed, Queued};

pub const QUEUED: &str = "queued";
pub const DISPATCHED: &str = "dispatched";
/// The agent's own word, signed.
pub const RESULT: &str = "result";
/// The agent does not carry it out.
pub const REFUSED: &str = "refused";
pub const LEASE_EXPIRED: &str = "lease_expired";
pub const NOT_TAKEN: &str = "not_taken";
/// Its job or its caller wants it no more.
pub const WITHDRAWN: &str = "withdrawn";
pub const REQUEUED: &str = "requeued";

const fn edge(from: TaskStatus, to: TaskStatus, trigger: &'static str, owner: Owner) -> Edge<TaskStatus> {
    Edge { from: Some(from), to, trigger, owner, guard: Guard::None }
}

static EDGES: &[Edge<TaskStatus>] = &[
    Edge { from: None, to: Queued, trigger: QUEUED, owner: Owner::Executor, guard: Guard::None },
    Edge { from: None, to: Queued, trigger: QUEUED, owner: Owner::Operator, guard: Guard::None },
    edge(Queued, Dispatched, DISPATCHED, Owner::Node),
    edge(Dispatched, Done, RESULT, Owner::Node),
    edge(Dispatched, Failed, RESULT, Owner::Node),
    edge(Dispatched, Failed, REFUSED, Owner::Node),
    edge(Dispatched, Expired, LEASE_EXPIRED, Owner::Reconciler),
    edge(Queued, Expired, NOT_TAKEN, Owner::Reconciler),
    edge(Queued, Expired, WITHDRAWN, Owner::Executor),
    edge(Queued, Expired, WITHDRAWN, Owner::Operator),
    edge(Dispatched, Expired, WITHDRAWN, Owner::Executor),
    edge(Dispatched, Expired, WITHDRAWN, Owner::Operator),
    edge(Expired, Queued, REQUEUED, Owner::Executor),
    edge(Expired, Queued, REQUEUED, Owner::Operator),
];

impl State for TaskStatus {
    const ENTITY: &'static str = "task";
    const ALL: &'static [Self] = &[Queued, Dispatched, Done, Failed, Expired];

    fn as_str(self) -> &'static str {
        match self {
            Queued => "queued",
            Dispatched => "dispatched",
            Done => "done",
            Failed => "failed",
            Expired => "expired",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Queued => Deadline::TakenBy,
            Dispatched => Deadline::Lease(LEASE),
            Done | Failed | Expired => Deadline::AtRest,
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TaskStatus {
    /// Whether the agent may be at it, or will be.
    pub const fn is_live(self) -> bool {
        match self {
            Queued | Dispatched => true,
            Done | Failed | Expired => false,
        }
    }
}

/// How long an agent holds a task without a word. It says one every third of it.
pub const LEASE: Duration = Duration::from_secs(60);
/// How often a task whose lease ran out is handed out again before its job is told that it fails.
pub const REQUEUES_MAX: u32 = 3;
/// Of one task, kept. What comes after it is counted and dropped.
pub const OUTPUT_MAX: usize = 1024 * 1024;

/// What kinds there are. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    NodeDrain,
    NodeUninstall,
    NodeValidateClean,
    NodeCleanupStorage,
    NodeScrubGpu,
    HostExec,
    HostReboot,
}

impl TaskKind {
    pub const ALL: [TaskKind; 7] = [
        TaskKind::NodeDrain,
        TaskKind::NodeUninstall,
        TaskKind::NodeValidateClean,
        TaskKind::NodeCleanupStorage,
        TaskKind::NodeScrubGpu,
        TaskKind::HostExec,
        TaskKind::HostReboot,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            TaskKind::NodeDrain => "node.drain",
            TaskKind::NodeUninstall => "node.uninstall",
            TaskKind::NodeValidateClean => "node.validate_clean",
            TaskKind::NodeCleanupStorage => "node.cleanup_storage",
            TaskKind::NodeScrubGpu => "node.scrub_gpu",
            TaskKind::HostExec => "host.exec",
            TaskKind::HostReboot => "host.reboot",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// How long one may take on its machine.
    pub const fn timeout(self) -> Duration {
        Duration::from_secs(match self {
            TaskKind::NodeDrain => 3600,
            TaskKind::NodeUninstall => 600,
            TaskKind::NodeValidateClean => 1800,
            TaskKind::NodeCleanupStorage => 4 * 3600,
            TaskKind::NodeScrubGpu => 3600,
            TaskKind::HostExec => 3600,
            TaskKind::HostReboot => 1800,
        })
    }

    /// Whether an operator may order it by itself, outside of a job.
    pub const fn by_hand(self) -> bool {
        match self {
            TaskKind::NodeValidateClean | TaskKind::HostExec | TaskKind::HostReboot => true,
            TaskKind::NodeDrain | TaskKind::NodeUninstall | TaskKind::NodeCleanupStorage | TaskKind::NodeScrubGpu => {
                false
            }
        }
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Raised by every dispatch on a node. The epoch is the store's: a restored backup raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TaskFence {
    pub epoch: u64,
    pub counter: u64,
}

impl fmt::Display for TaskFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// What an agent has said of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    pub ok: bool,
    /// Of a failure, stable.
    pub code: String,
    pub class: FailureClass,
    pub message: String,
    /// As the agent wrote it: what was checked, found, removed, measured.
    pub detail: String,
    pub signature: Vec<u8>,
    /// The public key that the signature was checked with (SPKI, in hex): the node's may be another one later. Empty: it is
    /// not signed.
    pub signed_by: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// What an agent signs of a result: which task, under which dispatch, and how it ended.
pub fn signed_text(id: &str, fence: TaskFence, ok: bool, detail: &str) -> String {
    format!("millwright task result v1\n{id}\n{fence}\n{ok}\n{detail}")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    pub node_id: NodeId,
    /// The job that it belongs to, and the stage; `None`: an operator ordered it by hand.
    pub job: Option<(JobId, String)>,
    /// What distinguishes this order from every other: the same operation is never queued twice.
    pub operation: String,
    pub kind: TaskKind,
    /// The order as the wire has it.
    pub order: Vec<u8>,
    pub status: TaskStatus,
    pub version: u64,
    /// Of its last dispatch.
    pub fence: TaskFence,
    pub requeues: u32,
    pub queued_at: Timestamp,
    pub dispatched_at: Option<Timestamp>,
    /// While dispatched.
    pub lease_until: Option<Timestamp>,
    /// To be taken by then.
    pub take_by: Timestamp,
    pub result: Option<TaskResult>,
    /// Why it expired, in words.
    pub expired_because: String,
    pub output_bytes: u64,
    pub ordered_by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_the_end_and_only_what_expired_goes_on() {
        for status in [Done, Failed] {
            assert!(EDGES.iter().all(|e| e.from != Some(status)), "{status}");
        }
        assert!(EDGES.iter().filter(|e| e.from == Some(Expired)).all(|e| e.to == Queued));
    }

    #[test]
    fn only_an_agent_says_that_it_is_done() {
        let made = EDGES.iter().filter(|e| matches!(e.to, Done | Failed | Dispatched));
        assert!(made.into_iter().all(|e| e.owner == Owner::Node));
    }
}
