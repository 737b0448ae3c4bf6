//! What must follow a commit, staged in the transaction and delivered after it. A signal only says
//! "look again": the truth is in the rows, and a periodic look finds what a lost signal would have told.

use domain::{ExecutionId, MachineId, RunId};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Notify, broadcast, watch};

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
    log_grew: watch::Sender<u64>,
    outputs: Mutex<HashMap<RunId, watch::Sender<u64>>>,
    machines: broadcast::Sender<MachineId>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            work: Notify::new(),
            cancels: broadcast::channel(CANCEL_BACKLOG).0,
            log_grew: watch::channel(0).0,
            outputs: Mutex::new(HashMap::new()),
            machines: broadcast::channel(MACHINE_BACKLOG).0,
        }
    }

    pub(crate) fn deliver(&self, signals: Vec<Signal>, log_grew: bool) {
        if log_grew {
            self.log_grew.send_modify(|n| *n += 1);
        }
        for signal in signals {
            match signal {
                Signal::WorkReady => self.work.notify_one(),
                // nobody listening is fine: the rows tell the next one who looks
                Signal::CancelRequested(id) => drop(self.cancels.send(id)),
                Signal::MachineChanged(id) => drop(self.machines.send(id)),
                Signal::Output(run) => {
                    let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(sender) = outputs.get(&run) {
                        sender.send_modify(|n| *n += 1);
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

    pub fn log_grew(&self) -> watch::Receiver<u64> {
        self.log_grew.subscribe()
    }

    /// Changes whenever the run prints or ends, in this process.
    pub fn output_of(&self, run: &RunId) -> watch::Receiver<u64> {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        // followers that have gone leave a sender without receivers behind
        outputs.retain(|_, sender| sender.receiver_count() > 0);
        outputs.entry(run.clone()).or_insert_with(|| watch::channel(0).0).subscribe()
    }
}
