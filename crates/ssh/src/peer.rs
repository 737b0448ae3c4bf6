//! One end that we talk to: where it is, whom we are there, and the key it must show.

use domain::credential::SshLogin;
use domain::endpoint::HostPort;
use provider::{ProviderError, ProviderResult};
use russh::keys::PrivateKey;
use std::sync::{Arc, OnceLock};

/// A host on the way to others: it is logged into, and passes a connection on.
#[derive(Clone, Debug)]
pub struct Jump {
    pub at: HostPort,
    pub login: SshLogin,
    /// What the credential is called, for what people are told.
    pub credential_name: String,
    /// Pinned, as OpenSSH writes it: `SHA256:…`.
    pub host_key: String,
}

pub(crate) struct Peer {
    /// Its name with its address, for what people are told.
    pub what: String,
    pub at: HostPort,
    pub login: SshLogin,
    pub credential_name: String,
    pub host_key: String,
    /// Deciphered once: that is slow on purpose.
    key: OnceLock<Arc<PrivateKey>>,
}

impl Peer {
    pub fn host(at: HostPort, login: SshLogin, credential_name: &str, host_key: String, jump: Option<&Jump>) -> Self {
        let what = named(&at, jump);
        Self { what, at, login, credential_name: credential_name.to_owned(), host_key, key: OnceLock::new() }
    }

    pub fn jump(jump: &Jump) -> Self {
        Self {
            what: format!("jump host {}", jump.at),
            at: jump.at.clone(),
            login: jump.login.clone(),
            credential_name: jump.credential_name.clone(),
            host_key: jump.host_key.clone(),
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
