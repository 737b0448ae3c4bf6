//! Where adapters get what lets them in, and keep what they have learned to recognize. They never see the store.

use crate::ProviderResult;
use async_trait::async_trait;
use domain::MachineId;
use domain::credential::Credential;

/// What a machine is recognized by at its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    BmcCertificate,
    SshHostKey,
    /// Of the host on the way to it.
    JumpHostKey,
    /// Not a face but a memory: the installation that was begun last, so that what comes up can be told from
    /// what was there.
    Installation,
}

impl Pin {
    pub const ALL: [Pin; 4] = [Pin::BmcCertificate, Pin::SshHostKey, Pin::JumpHostKey, Pin::Installation];

    pub const fn as_str(self) -> &'static str {
        match self {
            Pin::BmcCertificate => "bmc-certificate",
            Pin::SshHostKey => "ssh-host-key",
            Pin::JumpHostKey => "jump-host-key",
            Pin::Installation => "installation",
        }
    }
}

#[async_trait]
pub trait Keyring: Send + Sync {
    /// The credential of this name, opened.
    async fn credential(&self, name: &str) -> ProviderResult<Credential>;

    /// Makes or replaces a credential that we have changed where it is used. Durable when it answers.
    async fn replace(&self, name: &str, credential: &Credential) -> ProviderResult<()>;

    /// Takes back what `replace` made.
    async fn remove(&self, name: &str) -> ProviderResult<()>;

    /// What is pinned for this machine at this endpoint.
    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>>;

    /// Pins what was seen, unless something is: the answer is what is pinned now. Durable when it answers.
    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String>;

    /// Forgets a pin, for good reason: `why` stands in the log.
    async fn unpin(&self, machine: &MachineId, pin: Pin, why: &str) -> ProviderResult<()>;
}
