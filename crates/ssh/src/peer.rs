//! One end that we talk to: where it is, whom we are there, and the key it must show.

use domain::Reason;
use domain::credential::SshLogin;
use domain::endpoint::HostPort;
use domain::stage::FailureClass;
use provider::{ProviderError, ProviderResult};
use russh::keys::PrivateKey;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A host on the way to others: it is logged into, and passes a connection on.
#[derive(Clone, Debug)]
pub struct Jump {
    pub at: HostPort,
    pub login: SshLogin,
    /// What the credential is called, for what people are told.
    pub credential_name: String,
    /// Pinned, as OpenSSH writes it: `SHA256:…`.
    pub host_key: String,
    pub places: Places,
}

/// The connections that one jump host is given at a time: a server lets in only so many strangers at once, and a whole
/// rack may be behind it. Clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Semaphore>);

/// One connection's, until it is dropped.
pub(crate) type Place = OwnedSemaphorePermit;

impl Places {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Waits for one. Who could not be asked in that time has not been silent.
    pub(crate) async fn take(&self, what: &str, within: Duration) -> ProviderResult<Place> {
        let place = tokio::time::timeout(within, Arc::clone(&self.0).acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            let message =
                format!("{what} was not asked, others have all its connections; try again when they are done");
            ProviderError::because(Reason::EndpointBusy, FailureClass::Transient, message)
        })
    }
}

pub(crate) struct Peer {
    /// Its name with its address, for what people are told.
    pub what: String,
    pub at: HostPort,
    pub login: SshLogin,
    pub credential_name: String,
    pub host_key: String,
    /// Of a jump host.
    pub places: Option<Places>,
    /// Deciphered once: that is slow on purpose.
    key: OnceLock<Arc<PrivateKey>>,
}

impl Peer {
    pub fn host(at: HostPort, login: SshLogin, credential_name: &str, host_key: String, jump: Option<&Jump>) -> Self {
        let what = named(&at, jump);
        let (credential_name, places) = (credential_name.to_owned(), None);
        Self { what, at, login, credential_name, host_key, places, key: OnceLock::new() }
    }

    pub fn jump(jump: &Jump) -> Self {
        Self {
            what: format!("jump host {}", jump.at),
            at: jump.at.clone(),
            login: jump.login.clone(),
            credential_name: jump.credential_name.clone(),
            host_key: jump.host_key.clone(),
            places: Some(jump.places.clone()),
            key: OnceLock::new(),
        }
    }

    /// The private key, read. What the reader says about a key that it cannot read is kept to ourselves: it may
    /// quote it.
    pub async fn private_key(&self) -> ProviderResult<Arc<PrivateKey>> {
        if let Some(key) = self.key.get() {
            return Ok(Arc::clone(key));
        }
        let (text, passphrase) = (self.login.private_key.clone(), self.login.passphrase.clone());
        let read = tokio::task::spawn_blocking(move || {
            let passphrase = (!passphrase.is_empty()).then(|| passphrase.reveal());
            let key = russh::keys::decode_secret_key(text.reveal(), passphrase).ok()?;
            (!key.is_encrypted()).then_some(key)
        });
        let Some(key) = read.await.ok().flatten() else {
            let with = if self.login.passphrase.is_empty() { "without a passphrase" } else { "with its passphrase" };
            return Err(ProviderError::credential_missing(format!(
                "the private key of credential {:?} cannot be read {with}; set it anew with 'millwright credential set', as OpenSSH or PEM",
                self.credential_name
            )));
        };
        Ok(Arc::clone(self.key.get_or_init(|| Arc::new(key))))
    }
}

pub(crate) fn named(at: &HostPort, jump: Option<&Jump>) -> String {
    match jump {
        None => format!("host {at}"),
        Some(jump) => format!("host {at} (by way of {})", jump.at),
    }
}
