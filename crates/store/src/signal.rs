//! What must follow a commit, staged in the transaction and delivered after it. A signal only says
//! "look again": the truth is in the rows, and a periodic look finds what a lost signal would have told.

use crate::rising::{Follower, Rising};
use domain::{BootNodeId, ExecutionId, JobId, MachineId, NodeId, RunId};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Notify, broadcast};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// An execution may be claimed.
    WorkReady,
    /// Somebody asked this execution to stop.
    CancelRequested(ExecutionId),
    /// The run printed something, or ended.
    Output(RunId),
    /// The machine was registered, described anew, moved or let go: look at it.
    MachineChanged(MachineId),
    /// The boot node moved, was described anew or is further on.
    BootNodeChanged(BootNodeId),
    /// The node moved, a task waits for its agent, or its identity was stopped: whoever has its stream looks.
    NodeChanged(NodeId),
    /// The job moved, or is further on.
    JobChanged(JobId),
    /// A site came, was described anew, or went.
    SitesChanged,
}

/// Cancel requests that a slow engine may have to catch up with; the engine also looks by itself.
const CANCEL_BACKLOG: usize = 1024;
/// Changed machines that a slow observer may have to catch up with; a sweep finds the rest.
const MACHINE_BACKLOG: usize = 4096;

pub struct Signals {
    work: Notify,
    cancels: broadcast::Sender<ExecutionId>,
    /// Raised by every commit that wrote to the log.
    log_grew: Rising,
    outputs: Followed<RunId>,
    boot_nodes: Followed<BootNodeId>,
    nodes: Followed<NodeId>,
    jobs: Followed<JobId>,
    machines: broadcast::Sender<MachineId>,
    sites: Rising,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            work: Notify::new(),
            cancels: broadcast::channel(CANCEL_BACKLOG).0,
            log_grew: Rising::default(),
            outputs: Followed::default(),
            boot_nodes: Followed::default(),
            nodes: Followed::default(),
            jobs: Followed::default(),
            machines: broadcast::channel(MACHINE_BACKLOG).0,
            sites: Rising::default(),
        }
    }

    pub(crate) fn deliver(&self, signals: Vec<Signal>, log_grew: bool) {
        if log_grew {
            self.log_grew.raise();
        }
        for signal in signals {
            match signal {
                Signal::WorkReady => self.work.notify_one(),
                // nobody listening is fine: the rows tell the next one who looks
                Signal::CancelRequested(id) => drop(self.cancels.send(id)),
                Signal::MachineChanged(id) => drop(self.machines.send(id)),
                Signal::Output(run) => self.outputs.raise(&run),
                Signal::BootNodeChanged(node) => self.boot_nodes.raise(&node),
                Signal::NodeChanged(node) => self.nodes.raise(&node),
                Signal::JobChanged(job) => self.jobs.raise(&job),
                Signal::SitesChanged => self.sites.raise(),
            }
        }
    }

    /// Resolves when work may be ready.
    pub async fn work_ready(&self) {
        self.work.notified().await;
    }

    pub fn cancels(&self) -> broadcast::Receiver<ExecutionId> {
        self.cancels.subscribe()
    }

    /// Says that a machine is worth a look.
    pub fn look_at(&self, id: &MachineId) {
        drop(self.machines.send(id.clone()));
    }

    /// Says that somebody else has changed something for the node's agent.
    pub fn look_at_node(&self, id: &NodeId) {
        self.nodes.raise(id);
    }

    /// Machines worth a look, changed through this process.
    pub fn machines(&self) -> broadcast::Receiver<MachineId> {
        self.machines.subscribe()
    }

    pub fn log_grew(&self) -> Follower {
        self.log_grew.follow()
    }

    /// Changes whenever a site does, in this process.
    pub fn sites(&self) -> Follower {
        self.sites.follow()
    }

    /// Changes whenever the run prints or ends, in this process.
    pub fn output_of(&self, run: &RunId) -> Follower {
        self.outputs.follow(run)
    }

    /// Changes whenever the boot node does, in this process.
    pub fn boot_node(&self, node: &BootNodeId) -> Follower {
        self.boot_nodes.follow(node)
    }

    /// Changes whenever there may be something for the node's agent, in this process.
    pub fn node(&self, node: &NodeId) -> Follower {
        self.nodes.follow(node)
    }

    /// Changes whenever the job does, in this process.
    pub fn job(&self, job: &JobId) -> Follower {
        self.jobs.follow(job)
    }
}

/// What somebody follows, by its id.
struct Followed<K>(Mutex<Following<K>>);

struct Following<K> {
    all: HashMap<K, Rising>,
    /// What nobody follows any more is forgotten when there are so many: the cost of it stays with who is new.
    forget_at: usize,
}

const FORGET_FROM: usize = 64;

impl<K> Default for Followed<K> {
    fn default() -> Self {
        Self(Mutex::new(Following { all: HashMap::new(), forget_at: FORGET_FROM }))
    }
}

impl<K: Clone + Eq + std::hash::Hash> Followed<K> {
    fn raise(&self, id: &K) {
        if let Some(rising) = self.0.lock().unwrap_or_else(PoisonError::into_inner).all.get(id) {
            rising.raise();
        }
    }

    fn follow(&self, id: &K) -> Follower {
        let mut following = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if following.all.len() >= following.forget_at {
            following.all.retain(|_, rising| rising.followers() > 0);
            following.forget_at = (following.all.len() * 2).max(FORGET_FROM);
        }
        following.all.entry(id.clone()).or_default().follow()
    }
}
