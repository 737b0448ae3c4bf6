//! What the agent stands on, and tests put something else under: the machine, its state folder, time, the wire, and who
//! carries tasks out.

use crate::clock::Clock;
use crate::connection::dial::{self, Dial};
use crate::folder::Folder;
use crate::host::Host;
use crate::task::{self, Context, Outcome};
use futures::future::BoxFuture;
use proto::agent::v1::task::Kind;
use std::sync::Arc;

pub type Execute = Arc<dyn Fn(Kind, Context) -> BoxFuture<'static, Outcome> + Send + Sync>;
/// What came of a task that was under way when the agent ended; nothing if that cannot be told.
pub type AfterRestart = Arc<dyn Fn(&Kind, &Host) -> Option<Outcome> + Send + Sync>;

#[derive(Clone)]
pub struct Setting {
    pub host: Host,
    pub folder: Arc<Folder>,
    pub clock: Clock,
    pub dial: Dial,
    pub execute: Execute,
    pub after_restart: AfterRestart,
}

impl Setting {
    /// The machine as it is.
    pub fn new(host: Host, folder: Arc<Folder>) -> Self {
        Self {
            host,
            folder,
            clock: Clock::system(),
            dial: dial::tcp(),
            execute: Arc::new(|kind, context| Box::pin(async move { task::run(&kind, &context).await })),
            after_restart: Arc::new(task::after_restart),
        }
    }
}
