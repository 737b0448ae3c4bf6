//! The kinds of jobs and their stages, as data: which stages in which order, how long each may take, how it is taken
//! back, what of it may be adopted. `docs/lifecycles.md` is made from these tables.

use crate::maas_stage::MaasStage;
use crate::node::NodeStatus;
use crate::stage::{StageDecl, Unwind};
use crate::task::TaskKind;
use std::fmt;
use std::time::Duration;

/// Where a node's system comes from, which is where a job gets it and gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ground {
    /// Somebody installs it, and its agent with a bundle.
    Bundle,
    /// A MAAS deploys it.
    Maas,
    /// Our own network boot installs it, and it was enrolled with a bundle.
    Boot,
}

impl Ground {
    pub const ALL: [Ground; 3] = [Ground::Bundle, Ground::Maas, Ground::Boot];

    pub const fn as_str(self) -> &'static str {
        match self {
            Ground::Bundle => "bundle",
            Ground::Maas => "maas",
            Ground::Boot => "boot",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ground| ground.as_str() == text)
    }
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much of a node a decommission takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A tenant's traces go; the node stays in service.
    SoftReset,
    /// As above, but for GPU memory.
    StorageCleanup,
    /// The system goes and comes anew; the node stays.
    Reimage(Ground),
    /// The node goes for good.
    FullDecommission(Ground),
}

impl Mode {
    pub const ALL: [Mode; 6] = [
        Mode::SoftReset,
        Mode::StorageCleanup,
        Mode::Reimage(Ground::Maas),
        Mode::Reimage(Ground::Boot),
        Mode::FullDecommission(Ground::Bundle),
        Mode::FullDecommission(Ground::Maas),
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::SoftReset => "soft_reset",
            Mode::StorageCleanup => "storage_cleanup",
            Mode::Reimage(_) => "reimage",
            Mode::FullDecommission(_) => "full_decommission",
        }
    }

    /// The mode of this name, for a node of that ground. What somebody has installed by hand nobody here installs anew.
    pub fn of(text: &str, ground: Ground) -> Option<Self> {
        let given_back_to = match ground {
            Ground::Maas => Ground::Maas,
            // a machine of our own is nobody's to take back
            Ground::Bundle | Ground::Boot => Ground::Bundle,
        };
        let fits = |mode: &Mode| match mode {
            Mode::SoftReset | Mode::StorageCleanup => true,
            Mode::Reimage(by) => *by == ground,
            Mode::FullDecommission(to) => *to == given_back_to,
        };
        Self::ALL.into_iter().filter(fits).find(|mode| mode.as_str() == text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    Onboarding(Ground),
    Drain,
    Removal,
    Decommission(Mode),
}

/// What a machine is prepared and deployed by, and how that is proven; the same for one that comes and one that comes
/// anew. The two for a failed deployment are passed over where none has failed.
macro_rules! deployed_by_maas {
    ([$($before:expr),* $(,)?], [$($after:expr),*]) => {
        &[$($before,)*
          JobStage::Maas(MaasStage::ConfigureStorage), JobStage::Maas(MaasStage::ApplyRocePhase2), JobStage::Maas(MaasStage::EnsurePxeInterfaceAuto),
          JobStage::Maas(MaasStage::RenderCloudInit), JobStage::Maas(MaasStage::DeployViaMaas), JobStage::Maas(MaasStage::WaitForDeployed),
          JobStage::Maas(MaasStage::ClassifyDeployFailure), JobStage::Maas(MaasStage::RecoverForDatasourceRetry),
          JobStage::Maas(MaasStage::EnsureHardwareSyncConfigured), JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy),
          JobStage::WaitForAgentEnrollment, $($after,)*]
    };
}

impl JobKind {
    pub const ALL: [JobKind; 10] = [
        JobKind::Onboarding(Ground::Bundle),
        JobKind::Onboarding(Ground::Maas),
        JobKind::Drain,
        JobKind::Removal,
        JobKind::Decommission(Mode::SoftReset),
        JobKind::Decommission(Mode::StorageCleanup),
        JobKind::Decommission(Mode::Reimage(Ground::Maas)),
        JobKind::Decommission(Mode::Reimage(Ground::Boot)),
        JobKind::Decommission(Mode::FullDecommission(Ground::Bundle)),
        JobKind::Decommission(Mode::FullDecommission(Ground::Maas)),
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            JobKind::Onboarding(_) => "onboarding",
            JobKind::Drain => "drain",
            JobKind::Removal => "removal",
            JobKind::Decommission(_) => "decommission",
        }
    }

    /// Empty for kinds that have none.
    pub const fn mode(self) -> &'static str {
        match self {
            JobKind::Decommission(mode) => mode.as_str(),
            JobKind::Onboarding(_) | JobKind::Drain | JobKind::Removal => "",
        }
    }

    /// What its stages stand on.
    pub const fn ground(self) -> Ground {
        match self {
            JobKind::Onboarding(ground)
            | JobKind::Decommission(Mode::Reimage(ground) | Mode::FullDecommission(ground)) => ground,
            JobKind::Drain | JobKind::Removal | JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup) => {
                Ground::Bundle
            }
        }
    }

    pub fn parse(kind: &str, mode: &str, ground: &str) -> Option<Self> {
        let named = |k: &JobKind| k.as_str() == kind && k.mode() == mode && k.ground().as_str() == ground;
        Self::ALL.into_iter().find(named)
    }

    pub const fn stages(self) -> &'static [JobStage] {
        use JobStage::{
            CheckHealth, CleanupSecrets, CleanupStorage, DisableNode, DrainNode, ForceReleaseAllocations, LinkMachine,
            RemoveGpuaasNodeRecord, RepaveMachine, RetireGpuaasNode, ScrubGpu, ValidateCleanNode,
            WaitForAgentEnrollment,
        };
        match self {
            // our network boot installs machines by itself, and knows nothing of nodes
            JobKind::Onboarding(Ground::Bundle | Ground::Boot) => &[WaitForAgentEnrollment, LinkMachine, CheckHealth],
            JobKind::Onboarding(Ground::Maas) => deployed_by_maas!(
                [
                    JobStage::Maas(MaasStage::LoadSiteConfig),
                    JobStage::Maas(MaasStage::ResolvePowerCredentials),
                    JobStage::Maas(MaasStage::CreateOrFindInMaas),
                    JobStage::Maas(MaasStage::CommissionNode),
                    JobStage::Maas(MaasStage::WaitForReady)
                ],
                [LinkMachine, CheckHealth]
            ),
            JobKind::Drain => &[DisableNode, ForceReleaseAllocations, DrainNode, RetireGpuaasNode],
            JobKind::Removal => &[RemoveGpuaasNodeRecord, CleanupSecrets],
            JobKind::Decommission(Mode::SoftReset) => {
                &[DisableNode, ForceReleaseAllocations, CleanupStorage, ScrubGpu, ValidateCleanNode]
            }
            JobKind::Decommission(Mode::StorageCleanup) => {
                &[DisableNode, ForceReleaseAllocations, CleanupStorage, ValidateCleanNode]
            }
            // what was there is proven gone on the system that came after it
            JobKind::Decommission(Mode::Reimage(Ground::Maas)) => deployed_by_maas!(
                [
                    DisableNode,
                    ForceReleaseAllocations,
                    DrainNode,
                    RetireGpuaasNode,
                    JobStage::Maas(MaasStage::LoadSiteConfig),
                    JobStage::Maas(MaasStage::ReleaseMaasNode)
                ],
                [ScrubGpu, ValidateCleanNode, CheckHealth]
            ),
            JobKind::Decommission(Mode::Reimage(Ground::Boot | Ground::Bundle)) => &[
                DisableNode,
                ForceReleaseAllocations,
                DrainNode,
                RetireGpuaasNode,
                RepaveMachine,
                WaitForAgentEnrollment,
                ScrubGpu,
                ValidateCleanNode,
                CheckHealth,
            ],
            JobKind::Decommission(Mode::FullDecommission(Ground::Bundle | Ground::Boot)) => &[
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
            JobKind::Decommission(Mode::FullDecommission(Ground::Maas)) => &[
                DisableNode,
                ForceReleaseAllocations,
                DrainNode,
                CleanupStorage,
                ScrubGpu,
                ValidateCleanNode,
                JobStage::Maas(MaasStage::LoadSiteConfig),
                JobStage::Maas(MaasStage::ReleaseMaasNode),
                JobStage::Maas(MaasStage::PowerOffMaasNode),
                RetireGpuaasNode,
                RemoveGpuaasNodeRecord,
                CleanupSecrets,
                JobStage::Maas(MaasStage::RemoveMaasRecord),
            ],
        }
    }

    /// From which statuses of its node one may begin.
    pub const fn begins_from(self) -> &'static [NodeStatus] {
        match self {
            JobKind::Onboarding(Ground::Bundle | Ground::Boot) => &[NodeStatus::BootstrapIssued],
            // its node comes to be with it
            JobKind::Onboarding(Ground::Maas) => &[],
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
            JobKind::Removal | JobKind::Decommission(Mode::FullDecommission(_)) => true,
            JobKind::Onboarding(_)
            | JobKind::Drain
            | JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup | Mode::Reimage(_)) => false,
        }
    }

    /// The busy status that the node is in while this stage is in hand; `None`: whatever it is in.
    pub const fn busy_in(self, stage: JobStage) -> Option<NodeStatus> {
        match self {
            JobKind::Onboarding(_) => Some(NodeStatus::Enrolling),
            JobKind::Drain => Some(NodeStatus::Draining),
            JobKind::Removal => match stage {
                JobStage::RemoveGpuaasNodeRecord => Some(NodeStatus::Removing),
                _ => None,
            },
            JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup) => None,
            JobKind::Decommission(Mode::Reimage(_)) => match stage {
                JobStage::DisableNode
                | JobStage::ForceReleaseAllocations
                | JobStage::DrainNode
                | JobStage::RetireGpuaasNode => Some(NodeStatus::Draining),
                // retired, until what came anew is proven
                _ => None,
            },
            JobKind::Decommission(Mode::FullDecommission(_)) => match stage {
                JobStage::RemoveGpuaasNodeRecord => Some(NodeStatus::Removing),
                JobStage::CleanupSecrets | JobStage::Maas(MaasStage::RemoveMaasRecord) => None,
                _ => Some(NodeStatus::Draining),
            },
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match (self.mode(), self.ground()) {
            ("", Ground::Bundle) => Ok(()),
            (mode, Ground::Bundle) => write!(f, " ({mode})"),
            ("", ground) => write!(f, " ({ground})"),
            (mode, ground) => write!(f, " ({mode}, {ground})"),
        }
    }
}

/// How a stage is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undo {
    /// The cordon that the job has set is lifted.
    LiftCordon,
    /// A bundle that nobody has used is good no more.
    WithdrawBundle,
    /// What MAAS is at with the machine is stopped, and it is given back there.
    GiveBack,
    /// The record that the job itself has made is removed; one that was there stays.
    RemoveCreated,
    /// The run that installs the machine is cancelled, and its bundle is good no more.
    CancelRun,
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

/// Whose word counts for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Nobodys,
    Anybodys,
    /// A machine that is scrapped, or a MAAS that is gone, may never answer again; a node that stays must prove itself.
    WhereTheNodeGoes(Adoption),
}

/// A stage, declared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    name: &'static str,
    /// What it has the node's agent do.
    task: Option<TaskKind>,
    /// Whether `resume` may begin here: what comes before it need not be done again.
    checkpoint: bool,
    /// From here on the node may hold something of a tenant's, or no system at all, until it is proven clean.
    cleans: bool,
    undo: Option<Undo>,
    word: Word,
    /// The longest one attempt may take, and how often it is tried again.
    seconds: u64,
    retries: u32,
    no_return: Option<&'static str>,
}

pub(crate) const MINUTES: u64 = 60;
pub(crate) const HOURS: u64 = 3600;

impl Row {
    pub(crate) const fn new(name: &'static str, seconds: u64) -> Self {
        Self {
            name,
            task: None,
            checkpoint: false,
            cleans: false,
            undo: None,
            word: Word::Nobodys,
            seconds,
            retries: 2,
            no_return: None,
        }
    }

    /// What the task itself may take, and an hour for its agent to come.
    pub(crate) const fn of_agent(name: &'static str, task: TaskKind) -> Self {
        let seconds = task.timeout().as_secs() + AGENT_COMES_WITHIN.as_secs();
        Self { task: Some(task), ..Self::new(name, seconds) }
    }

    pub(crate) const fn of_maas(name: &'static str, seconds: u64) -> Self {
        Self { retries: 3, ..Self::new(name, seconds) }
    }

    pub(crate) const fn checkpoint(self) -> Self {
        Self { checkpoint: true, ..self }
    }

    pub(crate) const fn cleans(self) -> Self {
        Self { cleans: true, ..self }
    }

    pub(crate) const fn undo(self, undo: Undo) -> Self {
        Self { undo: Some(undo), ..self }
    }

    pub(crate) const fn word(self, word: Word) -> Self {
        Self { word, ..self }
    }

    pub(crate) const fn retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    pub(crate) const fn no_return(self, why: &'static str) -> Self {
        Self { no_return: Some(why), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobStage {
    /// One that asks a MAAS.
    Maas(MaasStage),
    /// A run installs the machine over the network.
    RepaveMachine,
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

impl JobStage {
    pub const ALL: [JobStage; 31] = [
        JobStage::Maas(MaasStage::LoadSiteConfig),
        JobStage::Maas(MaasStage::ResolvePowerCredentials),
        JobStage::Maas(MaasStage::CreateOrFindInMaas),
        JobStage::Maas(MaasStage::CommissionNode),
        JobStage::Maas(MaasStage::WaitForReady),
        JobStage::Maas(MaasStage::ConfigureStorage),
        JobStage::Maas(MaasStage::ApplyRocePhase2),
        JobStage::Maas(MaasStage::EnsurePxeInterfaceAuto),
        JobStage::Maas(MaasStage::RenderCloudInit),
        JobStage::Maas(MaasStage::DeployViaMaas),
        JobStage::Maas(MaasStage::WaitForDeployed),
        JobStage::Maas(MaasStage::ClassifyDeployFailure),
        JobStage::Maas(MaasStage::RecoverForDatasourceRetry),
        JobStage::Maas(MaasStage::EnsureHardwareSyncConfigured),
        JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy),
        JobStage::RepaveMachine,
        JobStage::WaitForAgentEnrollment,
        JobStage::LinkMachine,
        JobStage::CheckHealth,
        JobStage::DisableNode,
        JobStage::ForceReleaseAllocations,
        JobStage::DrainNode,
        JobStage::CleanupStorage,
        JobStage::ScrubGpu,
        JobStage::ValidateCleanNode,
        JobStage::Maas(MaasStage::ReleaseMaasNode),
        JobStage::Maas(MaasStage::PowerOffMaasNode),
        JobStage::RetireGpuaasNode,
        JobStage::RemoveGpuaasNodeRecord,
        JobStage::CleanupSecrets,
        JobStage::Maas(MaasStage::RemoveMaasRecord),
    ];

    /// Everything that is declared of it.
    const fn row(self) -> Row {
        const PROOF: Word = Word::WhereTheNodeGoes(Adoption::Never);
        match self {
            JobStage::Maas(stage) => stage.row(),
            // the run has time-outs and retries of its own, and is what counts against the rack
            JobStage::RepaveMachine => {
                Row::new("repave_machine", 24 * HOURS).checkpoint().cleans().undo(Undo::CancelRun)
            }
            JobStage::WaitForAgentEnrollment => {
                Row::new("wait_for_agent_enrollment", 24 * HOURS).checkpoint().undo(Undo::WithdrawBundle).retries(0)
            }
            JobStage::LinkMachine => Row::new("link_machine", 10 * MINUTES).checkpoint(),
            JobStage::CheckHealth => Row::new("check_health", 15 * MINUTES),
            JobStage::DisableNode => Row::new("disable_node", 10 * MINUTES).checkpoint().undo(Undo::LiftCordon),
            JobStage::ForceReleaseAllocations => Row::new("force_release_allocations", 10 * MINUTES),
            JobStage::DrainNode => Row::of_agent("drain_node", TaskKind::NodeDrain).checkpoint().word(Word::Anybodys),
            JobStage::CleanupStorage => Row::of_agent("cleanup_storage", TaskKind::NodeCleanupStorage)
                .checkpoint()
                .cleans()
                .word(PROOF)
                .no_return("what was left is gone"),
            JobStage::ScrubGpu => Row::of_agent("scrub_gpu", TaskKind::NodeScrubGpu)
                .cleans()
                .word(PROOF)
                .no_return("what was left is gone"),
            JobStage::ValidateCleanNode => {
                Row::of_agent("validate_clean_node", TaskKind::NodeValidateClean).cleans().word(PROOF)
            }
            JobStage::RetireGpuaasNode => Row::new("retire_gpuaas_node", 10 * MINUTES).checkpoint(),
            JobStage::RemoveGpuaasNodeRecord => Row::of_agent("remove_gpuaas_node_record", TaskKind::NodeUninstall)
                .checkpoint()
                .word(Word::Anybodys)
                .no_return("the agent and its identity are gone"),
            JobStage::CleanupSecrets => Row::new("cleanup_secrets", 10 * MINUTES).checkpoint(),
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text)
    }

    /// What it has the node's agent do, in a job of that kind.
    pub const fn task(self, kind: JobKind) -> Option<TaskKind> {
        match (self, kind.ground()) {
            // the system is gone by then, and its agent with it
            (JobStage::RemoveGpuaasNodeRecord, Ground::Maas) => None,
            _ => self.row().task,
        }
    }

    /// Whether `resume` may begin here in a job of that kind: what comes before it need not be done again.
    pub const fn is_checkpoint(self, kind: JobKind) -> bool {
        match (self, kind.ground()) {
            // the node has its new system, proven: nothing before it is done again
            (JobStage::CheckHealth, _) if matches!(kind, JobKind::Decommission(Mode::Reimage(_))) => true,
            // what was deployed may be gone again: the stages before it look at that, and pass over what is so
            (JobStage::WaitForAgentEnrollment, Ground::Maas | Ground::Boot) => false,
            _ => self.row().checkpoint,
        }
    }

    /// Whether something of a tenant's is being removed or looked for: until it is proven gone the node counts as unclean.
    pub const fn cleans(self) -> bool {
        self.row().cleans
    }

    pub const fn undo(self) -> Option<Undo> {
        self.row().undo
    }

    pub const fn adoption(self, kind: JobKind) -> Adoption {
        match self.row().word {
            Word::Nobodys => Adoption::BySight,
            Word::Anybodys => Adoption::ByWord,
            Word::WhereTheNodeGoes(otherwise) => {
                if kind.removes() {
                    Adoption::ByWord
                } else {
                    otherwise
                }
            }
        }
    }

    /// As the engine sees it. A job that fails stays where it is: what is to be taken back is an attempt of its own.
    pub fn decl(self) -> StageDecl {
        let row = self.row();
        let destructive = row.no_return.is_some();
        StageDecl {
            name: row.name.to_owned(),
            kind: row.name,
            timeout: Duration::from_secs(row.seconds),
            max_retries: row.retries,
            unwind: row.no_return.map_or(Unwind::RollForward, Unwind::PointOfNoReturn),
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
#[path = "job_stage_tests.rs"]
mod tests;
