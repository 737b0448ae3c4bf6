//! Where adapters get what lets them in, and keep what they have learned to recognize. They never see the store.

use crate::ProviderResult;
use async_trait::async_trait;
use domain::MachineId;
use domain::credential::Credential;

pub use domain::pin::Pin;

#[async_trait]
pub trait Keyring: Send + Sync {
    /// The credential of this name, opened.
    async fn credential(&self, name: &str) -> ProviderResult<Credential>;

    /// Replaces a credential that we have changed where it is used. Durable when it answers.
    async fn replace(&self, name: &str, credential: &Credential) -> ProviderResult<()>;

    /// What is pinned for this machine at this endpoint.
    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>>;

    /// Pins what was seen, unless something is: the answer is what is pinned now. Durable when it answers.
    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String>;

    /// Pins this in the place of whatever is pinned there, in one step. Durable when it answers.
    async fn repin(&self, machine: &MachineId, pin: Pin, endpoint: &str, value: &str, why: &str) -> ProviderResult<()>;

    /// Forgets a pin, for good reason: `why` stands in the log.
    async fn unpin(&self, machine: &MachineId, pin: Pin, why: &str) -> ProviderResult<()>;
}
