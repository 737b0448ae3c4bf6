//! A finding: something that does not belong together, with evidence, since when and until when it was seen. It survives
//! a look that failed, and closes only on positive evidence or a person's word.

use crate::id::FindingId;
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingState {
    Open,
    /// Somebody has taken it up.
    Acknowledged,
    Resolved,
}

use FindingState::{Acknowledged, Open, Resolved};

/// It was seen.
pub const FOUND: &str = "found";
pub const ACKNOWLEDGED: &str = "acknowledged";
/// It was seen to be gone, or a person says so.
pub const RESOLVED: &str = "resolved";

const fn edge(from: Option<FindingState>, to: FindingState, trigger: &'static str, owner: Owner) -> Edge<FindingState> {
    Edge { from, to, trigger, owner, guard: Guard::None }
}

static EDGES: &[Edge<FindingState>] = &[
    edge(None, Open, FOUND, Owner::Reconciler),
    edge(Some(Open), Acknowledged, ACKNOWLEDGED, Owner::Operator),
    edge(Some(Open), Resolved, RESOLVED, Owner::Operator),
    edge(Some(Acknowledged), Resolved, RESOLVED, Owner::Operator),
    edge(Some(Open), Resolved, RESOLVED, Owner::Reconciler),
    edge(Some(Acknowledged), Resolved, RESOLVED, Owner::Reconciler),
    edge(Some(Resolved), Open, FOUND, Owner::Reconciler),
];

impl State for FindingState {
    const ENTITY: &'static str = "finding";
    const ALL: &'static [Self] = &[Open, Acknowledged, Resolved];

    fn as_str(self) -> &'static str {
        match self {
            Open => "open",
            Acknowledged => "acknowledged",
            Resolved => "resolved",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            Open | Acknowledged | Resolved => Deadline::AtRest,
        }
    }
}

impl fmt::Display for FindingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was found. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// Identifiers of a boot node belong to several machines, or contradict the one they belong to.
    IdentityConflict,
    /// An order is open, and its node has not been seen to boot.
    NotBooted,
    /// As many attempts have failed as are allowed.
    InstallFailed,
    /// Disks were to be erased, and it is not proven that they are.
    EraseFailed,
    /// An agent's identity is in two places.
    AgentCloned,
    /// What an agent says of its hardware contradicts the machine that its node is.
    NodeIdentityConflict,
    /// A node is busy by its status, and no job works on it, or the other way round.
    NodeJobMismatch,
    /// A node's clock is too far off.
    ClockSkew,
    /// Node, boot node and machine are in states that do not belong together.
    LayersDisagree,
}

impl FindingKind {
    pub const ALL: [FindingKind; 9] = [
        FindingKind::IdentityConflict,
        FindingKind::NotBooted,
        FindingKind::InstallFailed,
        FindingKind::EraseFailed,
        FindingKind::AgentCloned,
        FindingKind::NodeIdentityConflict,
        FindingKind::NodeJobMismatch,
        FindingKind::ClockSkew,
        FindingKind::LayersDisagree,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            FindingKind::IdentityConflict => "IDENTITY_CONFLICT",
            FindingKind::NotBooted => "NOT_BOOTED",
            FindingKind::InstallFailed => "INSTALL_FAILED",
            FindingKind::EraseFailed => "ERASE_FAILED",
            FindingKind::AgentCloned => "AGENT_CLONED",
            FindingKind::NodeIdentityConflict => "NODE_IDENTITY_CONFLICT",
            FindingKind::NodeJobMismatch => "NODE_JOB_MISMATCH",
            FindingKind::ClockSkew => "CLOCK_SKEW",
            FindingKind::LayersDisagree => "LAYERS_DISAGREE",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// What a person can do about it.
    pub const fn next_action(self) -> &'static str {
        match self {
            FindingKind::IdentityConflict => {
                "look at both machines; correct the record that is wrong ('millwright machine update MACHINE --serial SERIAL'), or say which machine the boot node is: 'millwright boot assign NODE --machine MACHINE'"
            }
            FindingKind::NotBooted => "power the machine on, and have it boot from the network",
            FindingKind::InstallFailed => {
                "try again with another workflow: 'millwright boot retry NODE --workflow ID'; or with the same one, and say why it will do now: 'millwright boot retry NODE --comment WHY'"
            }
            FindingKind::EraseFailed => {
                "look at the disk; erase again: 'millwright boot erase NODE'; or destroy it, and retire the boot node: 'millwright boot retire NODE'"
            }
            FindingKind::AgentCloned => {
                "find the copy and remove it; then let the right one go on with its key: 'millwright node repair NODE --reason WHY', or give it a new one: 'millwright node rebootstrap NODE'"
            }
            FindingKind::NodeIdentityConflict => {
                "look at both machines; correct the record that is wrong ('millwright machine update MACHINE --serial SERIAL'), then go on with the node's job: 'millwright job retry_stage JOB'"
            }
            FindingKind::NodeJobMismatch => "have it compared and put right now: 'millwright node resume NODE'",
            FindingKind::ClockSkew => "set the machine's clock, and have it kept by NTP",
            FindingKind::LayersDisagree => {
                "see what each of the three waits for ('millwright why NODE'), and move the one that is wrong; nothing is healed by guessing"
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub id: FindingId,
    pub kind: FindingKind,
    pub state: FindingState,
    pub version: u64,
    /// What it is about: the id of a boot node or of a machine.
    pub subject: String,
    /// One sentence, with names and values.
    pub message: String,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    /// Who acknowledged or resolved it, and what was said.
    pub handled_by: String,
    pub comment: String,
}
