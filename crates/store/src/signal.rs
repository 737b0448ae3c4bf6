//! What must follow a commit, staged in the transaction and delivered after it. A signal only says
//! "look again": the truth is in the rows, and a periodic look finds what a lost signal would have told.

use crate::rising::{Follower, Rising};
use domain::{ExecutionId, MachineId, RunId};
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
    outputs: Mutex<HashMap<RunId, Rising>>,
    machines: broadcast::Sender<MachineId>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            work: Notify::new(),
            cancels: broadcast::channel(CANCEL_BACKLOG).0,
            log_grew: Rising::default(),
            outputs: Mutex::new(HashMap::new()),
            machines: broadcast::channel(MACHINE_BACKLOG).0,
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
                Signal::Output(run) => {
                    let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(output) = outputs.get(&run) {
                        output.raise();
                    }
                }
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

    /// Machines worth a look, changed through this process.
    pub fn machines(&self) -> broadcast::Receiver<MachineId> {
        self.machines.subscribe()
    }

    pub fn log_grew(&self) -> Follower {
        self.log_grew.follow()
    }

    /// Changes whenever the run prints or ends, in this process.
    pub fn output_of(&self, run: &RunId) -> Follower {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        // what nobody follows any more is forgotten
        outputs.retain(|_, output| output.followers() > 0);
        outputs.entry(run.clone()).or_default().follow()
    }
}
