//! The kinds of jobs and their stages, as data: which stages in which order, how long each may take, how it is taken
//! back, what of it may be adopted. `docs/lifecycles.md` is made from these tables.

use crate::node::NodeStatus;
use crate::stage::{StageDecl, Unwind};
use crate::task::TaskKind;
use std::fmt;
use std::time::Duration;

/// How much of a node a decommission takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A tenant's traces go; the node stays in service.
    SoftReset,
    /// As above, but for GPU memory.
    StorageCleanup,
    /// The node goes for good.
    FullDecommission,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::SoftReset, Mode::StorageCleanup, Mode::FullDecommission];

    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::SoftReset => "soft_reset",
            Mode::StorageCleanup => "storage_cleanup",
            Mode::FullDecommission => "full_decommission",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    Onboarding,
    Drain,
    Removal,
    Decommission(Mode),
}

impl JobKind {
    pub const ALL: [JobKind; 6] = [
        JobKind::Onboarding,
        JobKind::Drain,
        JobKind::Removal,
        JobKind::Decommission(Mode::SoftReset),
        JobKind::Decommission(Mode::StorageCleanup),
        JobKind::Decommission(Mode::FullDecommission),
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            JobKind::Onboarding => "onboarding",
            JobKind::Drain => "drain",
            JobKind::Removal => "removal",
            JobKind::Decommission(_) => "decommission",
        }
    }

    /// Empty for kinds that have none.
    pub const fn mode(self) -> &'static str {
        match self {
            JobKind::Decommission(mode) => mode.as_str(),
            JobKind::Onboarding | JobKind::Drain | JobKind::Removal => "",
        }
    }

    pub fn parse(kind: &str, mode: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == kind && k.mode() == mode)
    }

    pub const fn stages(self) -> &'static [JobStage] {
        use JobStage::{
            CheckHealth, CleanupSecrets, CleanupStorage, DisableNode, DrainNode, ForceReleaseAllocations, LinkMachine,
            RemoveGpuaasNodeRecord, RetireGpuaasNode, ScrubGpu, ValidateCleanNode, WaitForAgentEnrollment,
        };
        match self {
            JobKind::Onboarding => &[WaitForAgentEnrollment, LinkMachine, CheckHealth],
            JobKind::Drain => &[DisableNode, ForceReleaseAllocations, DrainNode, RetireGpuaasNode],
            JobKind::Removal => &[RemoveGpuaasNodeRecord, CleanupSecrets],
            JobKind::Decommission(Mode::SoftReset) => {
                &[DisableNode, ForceReleaseAllocations, CleanupStorage, ScrubGpu, ValidateCleanNode]
            }
            JobKind::Decommission(Mode::StorageCleanup) => {
                &[DisableNode, ForceReleaseAllocations, CleanupStorage, ValidateCleanNode]
            }
            JobKind::Decommission(Mode::FullDecommission) => &[
                DisableNode,
                ForceReleaseAllocations,
                DrainNode,
                CleanupStorage,
                ScrubGpu,
                ValidateCleanNode,
                RetireGpuaasNode,
                RemoveGpuaasNodeRecord,
                CleanupSecrets,
            ],
        }
    }

    /// From which statuses of its node one may begin.
    pub const fn begins_from(self) -> &'static [NodeStatus] {
        match self {
            JobKind::Onboarding => &[NodeStatus::BootstrapIssued],
            JobKind::Drain => &[NodeStatus::Active, NodeStatus::Offline, NodeStatus::Quarantined],
            JobKind::Removal => &[NodeStatus::Retired],
            JobKind::Decommission(_) => {
                &[NodeStatus::Active, NodeStatus::Offline, NodeStatus::Quarantined, NodeStatus::Retired]
            }
        }
    }

    /// Whether the node is gone when it is done.
    pub const fn removes(self) -> bool {
        match self {
            JobKind::Removal | JobKind::Decommission(Mode::FullDecommission) => true,
            JobKind::Onboarding | JobKind::Drain | JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup) => {
                false
            }
        }
    }

    /// The busy status that the node is in while this stage is in hand; `None`: whatever it is in.
    pub const fn busy_in(self, stage: JobStage) -> Option<NodeStatus> {
        match self {
            JobKind::Onboarding => Some(NodeStatus::Enrolling),
            JobKind::Drain => Some(NodeStatus::Draining),
            JobKind::Removal => match stage {
                JobStage::RemoveGpuaasNodeRecord => Some(NodeStatus::Removing),
                _ => None,
            },
            JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup) => None,
            JobKind::Decommission(Mode::FullDecommission) => match stage {
                JobStage::RemoveGpuaasNodeRecord => Some(NodeStatus::Removing),
                JobStage::CleanupSecrets => None,
                _ => Some(NodeStatus::Draining),
            },
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode() {
            "" => f.write_str(self.as_str()),
            mode => write!(f, "{} ({mode})", self.as_str()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobStage {
    WaitForAgentEnrollment,
    LinkMachine,
    CheckHealth,
    DisableNode,
    ForceReleaseAllocations,
    DrainNode,
    CleanupStorage,
    ScrubGpu,
    ValidateCleanNode,
    RetireGpuaasNode,
    RemoveGpuaasNodeRecord,
    CleanupSecrets,
}

/// How a stage is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undo {
    /// The cordon that the job has set is lifted.
    LiftCordon,
    /// A bundle that nobody has used is good no more.
    WithdrawBundle,
}

/// What an operator may say is done without the stage having done it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adoption {
    /// Only what the stage itself can see.
    BySight,
    /// A person's word, with a reason, on record.
    ByWord,
    /// Nobody's: the node would go on unproven.
    Never,
}

impl JobStage {
    pub const ALL: [JobStage; 12] = [
        JobStage::WaitForAgentEnrollment,
        JobStage::LinkMachine,
        JobStage::CheckHealth,
        JobStage::DisableNode,
        JobStage::ForceReleaseAllocations,
        JobStage::DrainNode,
        JobStage::CleanupStorage,
        JobStage::ScrubGpu,
        JobStage::ValidateCleanNode,
        JobStage::RetireGpuaasNode,
        JobStage::RemoveGpuaasNodeRecord,
        JobStage::CleanupSecrets,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            JobStage::WaitForAgentEnrollment => "wait_for_agent_enrollment",
            JobStage::LinkMachine => "link_machine",
            JobStage::CheckHealth => "check_health",
            JobStage::DisableNode => "disable_node",
            JobStage::ForceReleaseAllocations => "force_release_allocations",
            JobStage::DrainNode => "drain_node",
            JobStage::CleanupStorage => "cleanup_storage",
            JobStage::ScrubGpu => "scrub_gpu",
            JobStage::ValidateCleanNode => "validate_clean_node",
            JobStage::RetireGpuaasNode => "retire_gpuaas_node",
            JobStage::RemoveGpuaasNodeRecord => "remove_gpuaas_node_record",
            JobStage::CleanupSecrets => "cleanup_secrets",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text)
    }

    /// What it has the node's agent do.
    pub const fn task(self) -> Option<TaskKind> {
        match self {
            JobStage::DrainNode => Some(TaskKind::NodeDrain),
            JobStage::CleanupStorage => Some(TaskKind::NodeCleanupStorage),
            JobStage::ScrubGpu => Some(TaskKind::NodeScrubGpu),
            JobStage::ValidateCleanNode => Some(TaskKind::NodeValidateClean),
            JobStage::RemoveGpuaasNodeRecord => Some(TaskKind::NodeUninstall),
            JobStage::WaitForAgentEnrollment
            | JobStage::LinkMachine
            | JobStage::CheckHealth
            | JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::RetireGpuaasNode
            | JobStage::CleanupSecrets => None,
        }
    }

    /// Whether `resume` may begin here: what comes before it need not be done again.
    pub const fn is_checkpoint(self) -> bool {
        match self {
            JobStage::WaitForAgentEnrollment
            | JobStage::LinkMachine
            | JobStage::DisableNode
            | JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::RetireGpuaasNode
            | JobStage::RemoveGpuaasNodeRecord
            | JobStage::CleanupSecrets => true,
            JobStage::CheckHealth
            | JobStage::ForceReleaseAllocations
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode => false,
        }
    }

    /// Whether something of a tenant's is being removed or looked for: until it is proven gone the node counts as unclean.
    pub const fn cleans(self) -> bool {
        match self {
            JobStage::CleanupStorage | JobStage::ScrubGpu | JobStage::ValidateCleanNode => true,
            JobStage::WaitForAgentEnrollment
            | JobStage::LinkMachine
            | JobStage::CheckHealth
            | JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::DrainNode
            | JobStage::RetireGpuaasNode
            | JobStage::RemoveGpuaasNodeRecord
            | JobStage::CleanupSecrets => false,
        }
    }

    pub const fn undo(self) -> Option<Undo> {
        match self {
            JobStage::DisableNode => Some(Undo::LiftCordon),
            JobStage::WaitForAgentEnrollment => Some(Undo::WithdrawBundle),
            JobStage::LinkMachine
            | JobStage::CheckHealth
            | JobStage::ForceReleaseAllocations
            | JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode
            | JobStage::RetireGpuaasNode
            | JobStage::RemoveGpuaasNodeRecord
            | JobStage::CleanupSecrets => None,
        }
    }

    pub const fn adoption(self, kind: JobKind) -> Adoption {
        match self {
            JobStage::DrainNode | JobStage::RemoveGpuaasNodeRecord => Adoption::ByWord,
            // a machine that is scrapped may never answer again; one that stays must prove itself
            JobStage::CleanupStorage | JobStage::ScrubGpu | JobStage::ValidateCleanNode => {
                if kind.removes() {
                    Adoption::ByWord
                } else {
                    Adoption::Never
                }
            }
            JobStage::WaitForAgentEnrollment
            | JobStage::LinkMachine
            | JobStage::CheckHealth
            | JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::RetireGpuaasNode
            | JobStage::CleanupSecrets => Adoption::BySight,
        }
    }

    /// The longest one attempt may take, and how often it is tried again.
    const fn budget(self) -> (u64, u32) {
        match self {
            JobStage::WaitForAgentEnrollment => (24 * 3600, 0),
            JobStage::LinkMachine => (600, 2),
            JobStage::CheckHealth => (900, 2),
            JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::RetireGpuaasNode
            | JobStage::CleanupSecrets => (600, 2),
            // what the task itself may take, and an hour for its agent to come
            JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode
            | JobStage::RemoveGpuaasNodeRecord => match self.task() {
                Some(task) => (task.timeout().as_secs() + AGENT_COMES_WITHIN.as_secs(), 2),
                None => (600, 2),
            },
        }
    }

    /// As the engine sees it. A job that fails stays where it is: what is to be taken back is an attempt of its own.
    pub fn decl(self) -> StageDecl {
        let (seconds, max_retries) = self.budget();
        let (unwind, destructive) = match self {
            JobStage::CleanupStorage | JobStage::ScrubGpu => (Unwind::PointOfNoReturn("what was left is gone"), true),
            JobStage::RemoveGpuaasNodeRecord => (Unwind::PointOfNoReturn("the agent and its identity are gone"), true),
            JobStage::WaitForAgentEnrollment
            | JobStage::LinkMachine
            | JobStage::CheckHealth
            | JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::DrainNode
            | JobStage::ValidateCleanNode
            | JobStage::RetireGpuaasNode
            | JobStage::CleanupSecrets => (Unwind::RollForward, false),
        };
        StageDecl {
            name: self.as_str().to_owned(),
            kind: self.as_str(),
            timeout: Duration::from_secs(seconds),
            max_retries,
            unwind,
            destructive,
        }
    }
}

/// How long a task waits for its node's agent.
pub const AGENT_COMES_WITHIN: Duration = Duration::from_secs(3600);

impl fmt::Display for JobStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_begins_at_a_checkpoint_and_names_a_stage_once() {
        for kind in JobKind::ALL {
            let stages = kind.stages();
            assert!(stages[0].is_checkpoint(), "{kind}");
            for (i, stage) in stages.iter().enumerate() {
                assert!(!stages[..i].contains(stage), "{kind}: {stage} twice");
                assert_eq!(JobStage::parse(stage.as_str()), Some(*stage));
            }
            assert_eq!(JobKind::parse(kind.as_str(), kind.mode()), Some(kind));
        }
    }

    #[test]
    fn nothing_returns_to_service_on_a_persons_word_alone() {
        for kind in JobKind::ALL.into_iter().filter(|k| !k.removes()) {
            for stage in [JobStage::CleanupStorage, JobStage::ScrubGpu, JobStage::ValidateCleanNode] {
                assert_eq!(stage.adoption(kind), Adoption::Never, "{kind} {stage}");
            }
        }
    }
}
