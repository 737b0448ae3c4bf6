//! A keyring in memory, for tests of what needs one and not of the keyring.

use async_trait::async_trait;
use domain::credential::{BmcLogin, Credential, SshLogin};
use domain::stage::FailureClass;
use domain::{MachineId, Reason, Secret};
use provider::{Because, By, Keyring, Pin, ProviderError, ProviderResult, Swap};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By machine and kind: at which endpoint, and what.
type Pins = BTreeMap<(String, &'static str), (String, String)>;

#[derive(Default)]
pub struct MemoryKeyring {
    credentials: Mutex<BTreeMap<String, Credential>>,
    pins: Mutex<Pins>,
    changes: Mutex<Vec<(Pin, By)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryKeyring {
    #[must_use]
    pub fn with(self, name: &str, credential: Credential) -> Self {
        lock(&self.credentials).insert(name.to_owned(), credential);
        self
    }

    #[must_use]
    pub fn with_bmc(self, name: &str, username: &str, password: &str) -> Self {
        let login = BmcLogin { username: username.to_owned(), password: Secret::new(password) };
        self.with(name, Credential::Bmc(login))
    }

    #[must_use]
    pub fn with_ssh(self, name: &str, username: &str, private_key: &str) -> Self {
        let (private_key, passphrase) = (Secret::new(private_key), Secret::default());
        self.with(name, Credential::Ssh(SshLogin { username: username.to_owned(), private_key, passphrase }))
    }

    /// As an admin sets it, whatever was there.
    pub fn set(&self, name: &str, credential: Credential) {
        lock(&self.credentials).insert(name.to_owned(), credential);
    }

    pub fn get(&self, name: &str) -> Option<Credential> {
        lock(&self.credentials).get(name).cloned()
    }

    /// Which pins were changed since this was asked last, and on whose behalf.
    pub fn changes(&self) -> Vec<(Pin, By)> {
        std::mem::take(&mut *lock(&self.changes))
    }

    /// What is pinned, whatever the endpoint.
    pub fn pin_of(&self, machine: &str, pin: Pin) -> Option<String> {
        lock(&self.pins).get(&(machine.to_owned(), pin.as_str())).map(|(_, value)| value.clone())
    }
}

#[async_trait]
impl Keyring for MemoryKeyring {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        self.get(name).ok_or_else(|| {
            let message = format!("there is no credential {name:?}");
            ProviderError::because(Reason::CredentialNotFound, FailureClass::NeedsOperator, message)
        })
    }

    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap> {
        let mut credentials = lock(&self.credentials);
        match credentials.get(name) {
            Some(now) if now == read || now == new => {
                credentials.insert(name.to_owned(), new.clone());
                Ok(Swap::Kept)
            }
            Some(_) => Ok(Swap::Overtaken),
            None => {
                let message = format!("there is no credential {name:?}");
                Err(ProviderError::because(Reason::CredentialNotFound, FailureClass::NeedsOperator, message))
            }
        }
    }

    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>> {
        let pins = lock(&self.pins);
        let kept = pins.get(&(machine.to_string(), pin.as_str()));
        Ok(kept.filter(|(at, _)| at == endpoint).map(|(_, value)| value.clone()))
    }

    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String> {
        let mut pins = lock(&self.pins);
        let kept = pins.entry((machine.to_string(), pin.as_str())).or_insert((endpoint.to_owned(), seen.to_owned()));
        if kept.0 != endpoint {
            *kept = (endpoint.to_owned(), seen.to_owned());
        }
        Ok(kept.1.clone())
    }

    async fn repin(
        &self,
        machine: &MachineId,
        pin: Pin,
        endpoint: &str,
        read: Option<&str>,
        value: &str,
        because: Because<'_>,
    ) -> ProviderResult<Swap> {
        lock(&self.changes).push((pin, because.by.clone()));
        let mut pins = lock(&self.pins);
        let key = (machine.to_string(), pin.as_str());
        let now = pins.get(&key).filter(|(at, _)| at == endpoint).map(|(_, value)| value.as_str());
        if now != read && now != Some(value) {
            return Ok(Swap::Overtaken);
        }
        pins.insert(key, (endpoint.to_owned(), value.to_owned()));
        Ok(Swap::Kept)
    }

    async fn forget(&self, machine: &MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()> {
        for pin in pins {
            lock(&self.changes).push((*pin, because.by.clone()));
            lock(&self.pins).remove(&(machine.to_string(), pin.as_str()));
        }
        Ok(())
    }
}
