//! Where adapters get what lets them in, and keep what they have learned to recognize. They never see the store.

use crate::{By, ProviderResult};
use async_trait::async_trait;
use domain::MachineId;
use domain::credential::Credential;

pub use domain::pin::Pin;

/// What became of a change that was made from what had been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swap {
    /// It is kept as it should be. Durable.
    Kept,
    /// Somebody else has changed it since: nothing was written. Look again before anything else.
    Overtaken,
}

/// Who changes what is known of a machine, and why: both stand in its history.
#[derive(Clone, Copy, Debug)]
pub struct Because<'a> {
    pub by: &'a By,
    pub why: &'a str,
}

#[async_trait]
pub trait Keyring: Send + Sync {
    /// The credential of this name, opened.
    async fn credential(&self, name: &str) -> ProviderResult<Credential>;

    /// Keeps a credential that we change where it is used, in the place of the one that was `read`: several servers
    /// may be at it, and what a slow one has read is no reason to lose what another has kept since.
    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap>;

    /// What is pinned for this machine at this endpoint.
    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>>;

    /// Pins what was seen, unless something is: the answer is what is pinned now. Durable when it answers.
    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String>;

    /// Pins this in the place of what was `read` there, in one step.
    async fn repin(
        &self,
        machine: &MachineId,
        pin: Pin,
        endpoint: &str,
        read: Option<&str>,
        value: &str,
        because: Because<'_>,
    ) -> ProviderResult<Swap>;

    /// Forgets pins, in one step.
    async fn forget(&self, machine: &MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()>;

    /// Forgets a pin of our own accord, for good reason.
    async fn unpin(&self, machine: &MachineId, pin: Pin, why: &str) -> ProviderResult<()> {
        self.forget(machine, &[pin], Because { by: &By::System, why }).await
    }
}
