//! What others know of the runner: what it can be told, and what it says of itself.

use proto::agent::v1 as wire;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// The way to the server, while there is one.
#[derive(Clone)]
pub struct Link {
    /// Goes first: renewals, refusals.
    pub control: mpsc::Sender<wire::FromAgent>,
    /// Goes in order: output, then the result.
    pub bulk: mpsc::Sender<wire::FromAgent>,
    pub lease: Duration,
    /// Told when the server does not take what it is sent.
    pub broken: CancellationToken,
}

pub enum Command {
    Attach(Link),
    Detach,
    Task(Box<wire::Task>),
    Cancel(wire::Cancel),
    ResultStored(wire::ResultStored),
    OutputStored(wire::OutputStored),
    /// Every task ends, and is told as canceled.
    EndAll(String),
    /// Tasks end; what was begun is told as interrupted when the agent is back.
    Stop(oneshot::Sender<()>),
}

/// What is here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Here {
    /// Runs, or waits to.
    pub running: Vec<wire::RunningTask>,
    /// Has ended, and the server has not stored that yet.
    pub ended: Vec<wire::RunningTask>,
    pub uninstall: Uninstall,
}

/// How far this agent's own removal is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Uninstall {
    /// Not asked for, or it has not ended well.
    #[default]
    None,
    /// Done, and the server wanted no result of it under that fence.
    Outdated,
    /// Done, and the server has been told, or is being told.
    Done,
}

#[derive(Clone)]
pub struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
    pub here: watch::Receiver<Here>,
    /// The server knows that the agent was uninstalled: it may go.
    pub departed: CancellationToken,
}

impl Handle {
    pub async fn tell(&self, command: Command) {
        // it ends only after it was told to stop
        drop(self.commands.send(command).await);
    }

    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        self.tell(Command::Stop(done)).await;
        drop(stopped.await);
    }
}
