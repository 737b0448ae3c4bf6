//! Typed tasks: what the agent does on its machine, one file for each kind.

pub mod beneath;
mod cgroup;
pub mod clean;
mod drain;
mod exec;
pub mod process;
mod reboot;
mod scrub_gpu;

use crate::host::Host;
use crate::install;
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use serde_json::{Value, json};
use std::convert::Infallible;
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

/// Held by everything that works for a task, also by threads that nobody can abort: when the last is gone, the task has
/// really ended.
#[derive(Clone)]
pub struct Hold {
    _until_dropped: mpsc::Sender<Infallible>,
}

/// Waits for the last of them.
pub struct Held(mpsc::Receiver<Infallible>);

impl Hold {
    pub fn new() -> (Self, Held) {
        let (hold, held) = mpsc::channel(1);
        (Self { _until_dropped: hold }, Held(held))
    }
}

impl Held {
    pub async fn released(&mut self) {
        // nothing is ever sent
        self.0.recv().await;
    }

    pub fn is_released(&mut self) -> bool {
        matches!(self.0.try_recv(), Err(mpsc::error::TryRecvError::Disconnected))
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
    pub hold: Hold,
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Stable.
    pub code: &'static str,
    pub class: FailureClass,
    pub message: String,
    pub detail: Value,
}

/// One sentence, and what was checked, found, removed or measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub message: String,
    pub detail: Value,
}

pub type Outcome = Result<Done, Failed>;

/// Carries a task out. Ends soon after it was canceled.
pub async fn run(kind: &Kind, context: &Context) -> Outcome {
    match kind {
        Kind::NodeDrain(drain) => drain::run(drain, context).await,
        Kind::NodeUninstall(_) => Ok(uninstall(context)),
        Kind::NodeValidateClean(asked) => clean::go_through(context, asked.policy.as_ref(), false).await,
        Kind::NodeCleanupStorage(asked) => clean::go_through(context, asked.policy.as_ref(), true).await,
        Kind::NodeScrubGpu(asked) => scrub_gpu::run(asked, context).await,
        Kind::HostExec(script) => exec::run(script, context).await,
        Kind::HostReboot(reboot) => reboot::run(reboot, context).await,
    }
}

/// What became of a task that was begun before the agent started, where the machine itself can tell: nothing where it
/// cannot, and then the task was interrupted.
pub fn after_restart(kind: &Kind, host: &Host) -> Option<Outcome> {
    match kind {
        Kind::HostReboot(reboot) => Some(reboot::after_restart(reboot, host)),
        Kind::NodeDrain(_)
        | Kind::NodeUninstall(_)
        | Kind::NodeValidateClean(_)
        | Kind::NodeCleanupStorage(_)
        | Kind::NodeScrubGpu(_)
        | Kind::HostExec(_) => None,
    }
}

/// Says what will go. It goes by `install::remove_everything`, once the server has this result: it is signed with the
/// key that goes with the rest.
fn uninstall(context: &Context) -> Done {
    let going: Vec<String> = install::belongings(&context.host, &context.state);
    Done {
        message: format!("the agent is removed with {} files and folders", going.len()),
        detail: json!({"removes": going}),
    }
}

fn canceled(detail: Value) -> Failed {
    Failed {
        code: "CANCELED",
        class: FailureClass::Transient,
        message: "stopped before it was finished; what was done so far stays done".to_owned(),
        detail,
    }
}

fn failed(code: &'static str, class: FailureClass, message: impl Into<String>) -> Failed {
    Failed { code, class, message: message.into(), detail: Value::Null }
}

/// Work that asks the kernel much and waits for it, away from the connection's threads.
async fn in_background<T: Send + 'static>(
    context: &Context,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failed> {
    let hold = context.hold.clone();
    let held = move || {
        let _hold = hold;
        work()
    };
    tokio::task::spawn_blocking(held).await.map_err(|error| {
        failed("AGENT_DEFECT", FailureClass::NeedsOperator, format!("the agent itself failed: {error}"))
    })
}
