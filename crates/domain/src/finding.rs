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
    /// A MAAS does not answer, or does not let us in, for longer than a moment.
    SiteUnreachable,
    /// What MAAS says of a node's machine does not belong to the node's status.
    MaasDrift,
    /// A node's machine is not there any more, by its MAAS's own word.
    MaasMachineGone,
    /// MAAS says a status that this version does not know.
    MaasStatusUnknown,
    /// Two machines of MAAS are one by their MACs, UUIDs or serial numbers.
    MaasDuplicate,
    /// Somebody has renamed, moved, taken or installed a node's machine in MAAS.
    MaasChanged,
}

impl FindingKind {
    pub const ALL: [FindingKind; 15] = [
        FindingKind::IdentityConflict,
        FindingKind::NotBooted,
        FindingKind::InstallFailed,
        FindingKind::EraseFailed,
        FindingKind::AgentCloned,
        FindingKind::NodeIdentityConflict,
        FindingKind::NodeJobMismatch,
        FindingKind::ClockSkew,
        FindingKind::LayersDisagree,
        FindingKind::SiteUnreachable,
        FindingKind::MaasDrift,
        FindingKind::MaasMachineGone,
        FindingKind::MaasStatusUnknown,
        FindingKind::MaasDuplicate,
        FindingKind::MaasChanged,
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
            FindingKind::SiteUnreachable => "SITE_UNREACHABLE",
            FindingKind::MaasDrift => "MAAS_DRIFT",
            FindingKind::MaasMachineGone => "MAAS_MACHINE_GONE",
            FindingKind::MaasStatusUnknown => "MAAS_STATUS_UNKNOWN",
            FindingKind::MaasDuplicate => "MAAS_DUPLICATE",
            FindingKind::MaasChanged => "MAAS_CHANGED",
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
            FindingKind::SiteUnreachable => {
                "see what is wrong with it: 'millwright site check SITE'; what was seen before stays as it was"
            }
            FindingKind::MaasDrift => {
                "see what MAAS says ('millwright why NODE'), and put it back there; or take the node out of service ('millwright node quarantine NODE --reason WHY') and give its machine back: 'millwright node decommission NODE --mode full_decommission'"
            }
            FindingKind::MaasMachineGone => {
                "find out who removed it in MAAS; the node goes by 'millwright node decommission NODE --mode full_decommission'; a machine that was enlisted anew is another node"
            }
            FindingKind::MaasStatusUnknown => {
                "look at the machine there and here ('millwright site machines SITE SYSTEM_ID'); a MAAS that is newer than this server may need a newer server"
            }
            FindingKind::MaasDuplicate => {
                "compare them ('millwright site machines SITE SYSTEM_ID'), find out which is the hardware, and delete the other one in MAAS; nothing is deployed to either of them until then"
            }
            FindingKind::MaasChanged => {
                "if it was meant, say so: 'millwright finding resolve FINDING --comment WHY'; if not, change it back in MAAS, or install the node anew: 'millwright node decommission NODE --mode reimage'"
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
    /// What it is about: the id of a boot node, a machine or a node, the name of a site, or `SITE/SYSTEM_ID`.
    pub subject: String,
    /// One sentence, with names and values.
    pub message: String,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    /// Who acknowledged or resolved it, and what was said.
    pub handled_by: String,
    pub comment: String,
}
