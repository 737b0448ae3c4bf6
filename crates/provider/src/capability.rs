//! The capability traits. Every call is short: long work is accepted, then observed.

use crate::{Ack, Management, Operation, ProviderError, ProviderResult, Target};
use async_trait::async_trait;
use domain::hardware::BootOverride;
use domain::machine::MachineSpec;
use domain::plan::{BootMode, Capability, RebootMode, StepKind};
use domain::stage::FailureClass;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    On,
    Off,
}

/// What a look at the machine shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    pub serial_number: String,
    pub system_uuid: String,
    pub power: PowerState,
    /// Whether the system on it answers.
    pub reachable: bool,
    /// Whether there was a way to ask the system on it. Without, `reachable` says nothing.
    pub host_asked: bool,
    /// Changes with every boot: the proof that one happened. Empty: nobody tells now.
    pub boot_id: String,
    /// When the controller says that it was last reset; only compared with itself. Empty: it does not tell.
    pub last_reset: String,
    /// The boot source set for the next boot, or for all of them, if any; as it was asked for, where a controller has
    /// other words for it.
    pub boot_override: Option<BootOverride>,
    /// The image on its disk, if one was ever installed, and the operation that put it there.
    pub installed: Option<Install>,
    /// Whether the disk was read. Without, that nothing is `installed` says nothing.
    pub disk_read: bool,
    /// The installation under way, if any.
    pub installing: Option<Install>,
    /// What is to be said of that: how far it is; or, to whoever did not begin it, what ends it. Empty: nothing.
    pub install_note: String,
    /// The last installation, if it went wrong and nothing has been installed since.
    pub failed_install: Option<FailedInstall>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedInstall {
    /// [`Operation::key`] of the act that began it.
    pub operation: String,
    pub why: String,
    /// Whether another attempt may help.
    pub class: FailureClass,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    pub image: String,
    /// [`Operation::key`] of the act that began it, where the upstream can tell.
    pub operation: String,
}

#[async_trait]
pub trait Inspect: Send + Sync {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection>;

    /// `inspect`, asked by an observer of every machine again and again: cheap, leaves no trace, and need not
    /// tell the boot id.
    async fn watch(&self, target: &Target) -> ProviderResult<Inspection> {
        self.inspect(target).await
    }
}

#[async_trait]
pub trait PowerControl: Send + Sync {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack>;
    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack>;
}

#[async_trait]
pub trait BootControl: Send + Sync {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack>;
    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack>;
}

/// Of an installation that is begun part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPart {
    /// There is none: what an inspection shows is how it stands.
    None,
    /// It is under way and not there yet; on what it waits, in words.
    Waits(String),
    /// [`ImageControl::install`] begins it.
    Due,
}

#[async_trait]
pub trait ImageControl: Send + Sync {
    /// Begins an installation; `Inspection::installing` and `installed` tell how it goes.
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack>;
    /// How the next part of an installation stands that an attempt of this operation's stage began, where it has parts
    /// that are begun by an act each.
    async fn next_part(&self, _target: &Target, _op: &Operation) -> ProviderResult<NextPart> {
        Ok(NextPart::None)
    }
    /// Stops an installation that this operation began.
    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub command: String,
    pub args: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const fn as_str(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// A piece of output, in the order it was printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    pub data: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecState {
    /// No command of this operation was ever started here.
    NeverStarted,
    Running,
    Exited(i32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecProgress {
    pub state: ExecState,
    /// Output past the offset asked for.
    pub output: Vec<Chunk>,
    /// Where to go on reading.
    pub offset: u64,
}

#[async_trait]
pub trait Exec: Send + Sync {
    /// Starts the command in the background of the host, recorded under the operation's key. Starting
    /// the same operation again is no second start.
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack>;
    /// How it goes, with what it printed past `offset`. May wait a moment for news.
    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress>;
    /// Kills the command's process group.
    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    NotFound,
    NotReady(String),
    Ready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drain {
    Drained,
    /// What still runs there, in words.
    InUse(String),
}

/// How a join that was begun goes on the machine itself, before its cluster knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Nobody can tell; the cluster will.
    Unknown,
    Running,
    Failed(String),
}

/// What a cluster says of itself, and whether we may do there what we will be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterCheck {
    /// The API server's address.
    pub endpoint: String,
    pub version: String,
    pub nodes: u32,
    pub ready_nodes: u32,
    /// What would fail later, each with what to do about it. Empty: all is well.
    pub problems: Vec<String>,
}

/// How pods are asked to leave a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictOptions {
    /// Instead of each pod's own time to end.
    pub grace_seconds: Option<u32>,
    /// Also pods that nothing will start again elsewhere.
    pub unmanaged: bool,
    /// Also pods whose local data is lost with them.
    pub local_data: bool,
}

/// What one pass over a node's pods came to. Drained: nothing is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPass {
    /// The pods that were told to go, as `namespace/name`.
    pub evicted: Vec<String>,
    /// Those that are still there, and why: a budget forbids it now, it is still ending, nothing manages it.
    pub left: Vec<(String, String)>,
}

#[async_trait]
pub trait ClusterControl: Send + Sync {
    /// Mints join material and runs the join.
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack>;
    /// How the join of this operation goes.
    async fn joining(&self, _target: &Target, _op: &Operation) -> ProviderResult<Joining> {
        Ok(Joining::Unknown)
    }
    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership>;
    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain>;

    /// `membership`, asked by an observer of every machine again and again: may be answered from what was
    /// read a moment ago, and leaves no trace at all.
    async fn watch_membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.membership(target, cluster_ref).await
    }

    /// `drain_state`, in the same way.
    async fn watch_drain(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.drain_state(target, cluster_ref).await
    }

    /// Whether the cluster can be reached and lets us do what we need.
    async fn check(&self, cluster_ref: &str) -> ProviderResult<ClusterCheck> {
        Err(ProviderError::capability_missing(&format!("the provider of cluster {cluster_ref:?}"), "a check"))
    }

    /// Takes the node out of scheduling, or lets it back. `Done` if it is already so.
    async fn cordon(&self, target: &Target, cluster_ref: &str, _on: bool) -> ProviderResult<Ack> {
        Err(lacks(target, cluster_ref, "cordoning"))
    }

    /// Cordons the node, asks its pods to leave as far as their budgets allow now, and waits for none of them.
    async fn evict_pass(
        &self,
        target: &Target,
        cluster_ref: &str,
        _options: &EvictOptions,
    ) -> ProviderResult<DrainPass> {
        Err(lacks(target, cluster_ref, "draining"))
    }

    /// Takes the node's object away. `Done` if there is none.
    async fn delete_node(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Ack> {
        Err(lacks(target, cluster_ref, "deleting nodes"))
    }
}

fn lacks(target: &Target, cluster_ref: &str, what: &str) -> ProviderError {
    ProviderError::capability_missing(&format!("cluster {cluster_ref:?} of machine {}", target.machine_id), what)
}

#[async_trait]
pub trait NetworkControl: Send + Sync {
    async fn apply(
        &self,
        target: &Target,
        parameters: &BTreeMap<String, String>,
        op: &Operation,
    ) -> ProviderResult<Ack>;
    /// The parameters in force.
    async fn current(&self, target: &Target) -> ProviderResult<BTreeMap<String, String>>;
}

#[async_trait]
pub trait RmaControl: Send + Sync {
    /// Opens the return with the vendor.
    async fn open_return(&self, target: &Target, reason: &str, op: &Operation) -> ProviderResult<Ack>;
    /// The key of the operation that opened a return, if one is open.
    async fn open_return_of(&self, target: &Target) -> ProviderResult<Option<String>>;
}

/// A provider is the set of capabilities it has.
#[async_trait]
pub trait Provider: Send + Sync {
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        None
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        None
    }
    fn image(&self) -> Option<&dyn ImageControl> {
        None
    }
    fn exec(&self) -> Option<&dyn Exec> {
        None
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        None
    }
    fn network(&self) -> Option<&dyn NetworkControl> {
        None
    }
    fn rma(&self) -> Option<&dyn RmaControl> {
        None
    }
    /// For people who work on one machine's controller; no step needs it.
    fn management(&self) -> Option<&dyn Management> {
        None
    }

    /// What a machine's record lacks for a step of this kind, in words. `None`: nothing.
    fn lacks(&self, _spec: &MachineSpec, _step: &StepKind) -> Option<String> {
        None
    }

    /// Whether it knows by itself how an image of this name gets onto a machine. What it does not know may still be
    /// installed by network boot.
    fn knows_image(&self, _image: &str) -> bool {
        true
    }

    /// The server stops: whatever is kept open out there is closed, as far as it answers.
    async fn close(&self) {}

    /// How many of its endpoints are left alone at the moment, because they do not answer.
    fn resting(&self) -> usize {
        0
    }

    fn can(&self, capability: Capability) -> bool {
        match capability {
            Capability::Inspect => self.inspect().is_some(),
            Capability::Power => self.power().is_some(),
            Capability::Boot => self.boot().is_some(),
            Capability::Image => self.image().is_some(),
            Capability::Exec => self.exec().is_some(),
            Capability::Cluster => self.cluster().is_some(),
            Capability::Network => self.network().is_some(),
            Capability::Rma => self.rma().is_some(),
        }
    }
}
