//! Typed tasks: what the agent does on its machine, one file for each kind.

use crate::host::Host;
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What a task prints: bounded, whoever prints faster than it is taken waits.
#[derive(Clone)]
pub struct Printer(mpsc::Sender<(&'static str, Vec<u8>)>);

impl Printer {
    pub fn new(sender: mpsc::Sender<(&'static str, Vec<u8>)>) -> Self {
        Self(sender)
    }

    pub async fn say(&self, line: &str) {
        self.bytes("stdout", format!("{line}\n").into_bytes()).await;
    }

    pub async fn bytes(&self, stream: &'static str, data: Vec<u8>) {
        // nobody listens any more: the task goes on all the same
        drop(self.0.send((stream, data)).await);
    }
}

/// What a task is given.
#[derive(Clone)]
pub struct Context {
    pub host: Host,
    /// The folder of the agent's own state.
    pub state: PathBuf,
    pub printer: Printer,
    /// Somebody asked to stop, or its time is up.
    pub cancel: CancellationToken,
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Stable.
    pub code: &'static str,
    pub class: FailureClass,
    pub message: String,
    pub detail: serde_json::Value,
}

/// One sentence, and what was checked, found, removed or measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub message: String,
    pub detail: serde_json::Value,
}

pub type Outcome = Result<Done, Failed>;

/// Carries a task out. Ends soon after it was canceled.
pub async fn run(_kind: &Kind, _context: &Context) -> Outcome {
    Err(Failed {
        code: "UNKNOWN_TASK",
        class: FailureClass::InvalidInput,
        message: "this agent does not know the task".to_owned(),
        detail: serde_json::Value::Null,
    })
}
