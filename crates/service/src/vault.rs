//! Credentials and pins for those who reach machines: sealed rows of the store, opened here and nowhere else.
//!
//! Nothing is remembered between two reads. A read by key and an AES-GCM take some tens of microseconds, and so a
//! changed credential is the one that is used from then on, by every server.

use crate::sealing::{About, SecretKey};
use crate::secret_keys::{SecretKeys, unavailable};
use async_trait::async_trait;
use domain::credential::{
    BmcLogin, Credential, CredentialKind, CredentialRecord, CredentialState, ROTATED, SshLogin, not_found,
};
use domain::limits::{COMMENT_MAX, short};
use domain::machine::{Machine, check_text};
use domain::pin::{FORGOTTEN, PINNED, PinState};
use domain::stage::FailureClass;
use domain::{Code, Error, MachineId, Reason, Secret};
use provider::{Because, By, Keyring, Pin, ProviderError, ProviderResult, Swap};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::credential::{self, NewContent, Sealed};
use store::{Caller, Cause, Store, Tx, TxResult, agent, machine, pin};
use zeroize::Zeroizing;

/// What the keyring calls itself in the log.
const ACTOR: &str = "keyring";

/// What is sealed: the fields of a credential, those that its kind has.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Content<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    private_key: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    passphrase: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    next_password: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    kubeconfig: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    certificates: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_data: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_key: Cow<'a, str>,
}

pub(crate) fn written(credential: &Credential) -> Result<Zeroizing<Vec<u8>>, Error> {
    let mut content = Content::default();
    match credential {
        Credential::Bmc(login) => {
            content.username = login.username.as_str().into();
            content.password = login.password.reveal().into();
        }
        Credential::BmcChanging { login, next } => {
            content.username = login.username.as_str().into();
            content.password = login.password.reveal().into();
            content.next_password = next.reveal().into();
        }
        Credential::Ssh(login) => {
            content.username = login.username.as_str().into();
            content.private_key = login.private_key.reveal().into();
            content.passphrase = login.passphrase.reveal().into();
        }
        Credential::Kubeconfig(text) => content.kubeconfig = text.reveal().into(),
        Credential::Ca(pem) => content.certificates = pem.as_str().into(),
        Credential::UserData(text) => content.user_data = text.reveal().into(),
        Credential::Maas(key) => content.api_key = key.reveal().into(),
    }
    // as large as it can get, so that no copy is left behind where it grew
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * size(credential) + 128));
    serde_json::to_writer(&mut *bytes, &content).map_err(|_| Error::internal("writing a credential"))?;
    Ok(bytes)
}

fn size(credential: &Credential) -> usize {
    match credential {
        Credential::Bmc(login) => login.username.len() + login.password.reveal().len(),
        Credential::BmcChanging { login, next } => {
            login.username.len() + login.password.reveal().len() + next.reveal().len()
        }
        Credential::Ssh(login) => {
            login.username.len() + login.private_key.reveal().len() + login.passphrase.reveal().len()
        }
        Credential::Kubeconfig(text) | Credential::UserData(text) | Credential::Maas(text) => text.reveal().len(),
        Credential::Ca(pem) => pem.len(),
    }
}

fn read(kind: CredentialKind, bytes: &[u8]) -> Option<Credential> {
    let content: Content<'_> = serde_json::from_slice(bytes).ok()?;
    let secret = |text: Cow<'_, str>| Secret::new(text.into_owned());
    Some(match kind {
        CredentialKind::Bmc => {
            let login = BmcLogin { username: content.username.into_owned(), password: secret(content.password) };
            match secret(content.next_password) {
                next if next.is_empty() => Credential::Bmc(login),
                next => Credential::BmcChanging { login, next },
            }
        }
        CredentialKind::Ssh => Credential::Ssh(SshLogin {
            username: content.username.into_owned(),
            private_key: secret(content.private_key),
            passphrase: secret(content.passphrase),
        }),
        CredentialKind::Kubeconfig => Credential::Kubeconfig(secret(content.kubeconfig)),
        CredentialKind::Ca => Credential::Ca(content.certificates.into_owned()),
        CredentialKind::UserData => Credential::UserData(secret(content.user_data)),
        CredentialKind::Maas => Credential::Maas(secret(content.api_key)),
    })
}

/// The named credentials of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct Vault {
    store: Store,
    keys: Arc<SecretKeys>,
}

impl Vault {
    pub fn new(store: Store, keys: SecretKeys) -> Self {
        Self { store, keys: Arc::new(keys) }
    }

    pub fn keys(&self) -> &SecretKeys {
        &self.keys
    }

    /// The keys that credentials are sealed under and that we have not, and how many under each.
    pub async fn unopened(&self) -> Result<Vec<(String, u64)>, Error> {
        let stored = self.store.read(sealed_under).await?;
        Ok(stored.into_iter().filter(|(id, _)| self.keys.known(id).is_none()).collect())
    }

    /// The key to seal with; made, where this is its first use.
    pub(crate) async fn key(&self) -> Result<Arc<SecretKey>, Error> {
        if !self.keys.is_made_at_first_use() {
            return self.keys.current();
        }
        let stored = self.store.read(sealed_under).await?;
        let keys = self.keys.clone();
        let made = tokio::task::spawn_blocking(move || keys.current_or_made(&stored)).await;
        made.map_err(|e| Error::internal(format!("making a key: {e}")))?
    }

    /// What a row holds.
    pub(crate) fn open(&self, there: &Sealed) -> Result<Credential, Error> {
        let record = &there.record;
        if record.state == CredentialState::Deleted {
            return Err(not_found(&record.name));
        }
        let key = self.keys.known(&record.key_id).ok_or_else(|| self.other_key(record))?;
        let opened = key.open(&About::of(record), &there.sealed).ok();
        opened.and_then(|bytes| read(record.kind, &bytes)).ok_or_else(|| spoilt(record))
    }

    fn other_key(&self, record: &CredentialRecord) -> Error {
        let have = match self.keys.ids().as_slice() {
            [] => "no key is configured".to_owned(),
            ids => format!("configured are: {}", ids.join(", ")),
        };
        unavailable(format!(
            "credential {} is sealed under key {}, and {have}; name that key in secrets.key_file or secrets.previous_key_files and restart, or set the credential again",
            record.name, record.key_id
        ))
        .with("key_id", &record.key_id)
    }

    /// Seals a content as the next one under its name, unless that is what is there.
    pub(crate) fn put(
        &self,
        tx: &mut Tx<'_>,
        key: &SecretKey,
        there: Option<&Sealed>,
        name: &str,
        new: &Credential,
        cause: &Cause,
    ) -> TxResult<()> {
        // what does not open any more is replaced like anything else
        if there.is_some_and(|there| self.open(there).is_ok_and(|old| old == *new)) {
            return Ok(());
        }
        let record = there.map(|there| &there.record);
        let (kind, version) = (new.kind(), record.map_or(0, |r| r.version) + 1);
        let sealed = key.seal(&About { name, kind: kind.as_str(), version }, &written(new)?)?;
        credential::put(tx, record, NewContent { name, kind, sealed, key_id: key.id() }, cause)
    }

    /// The same row under this key; `None`: it does not open.
    pub(crate) fn resealed(&self, key: &SecretKey, there: &Sealed) -> Option<Vec<u8>> {
        let old = self.keys.known(&there.record.key_id)?;
        old.reseal(key, &About::of(&there.record), &there.sealed).ok()
    }

    pub(crate) async fn find(&self, name: &str) -> Result<Credential, Error> {
        let there = self.store.point(credential::by_name(name)).await?;
        self.open(&there.ok_or_else(|| not_found(name))?)
    }

    async fn swap(&self, name: &str, read: &Credential, new: &Credential) -> Result<Swap, Error> {
        new.check()?;
        let key = self.key().await?;
        let (vault, name, read, new) = (self.clone(), name.to_owned(), read.clone(), new.clone());
        let cause = Cause::executor(ACTOR, ROTATED, "");
        self.store
            .write(&Caller::new(ACTOR), "credentials", move |tx| {
                let there = credential::get_for_update(tx, &name)?;
                let there = there.filter(|t| t.record.state == CredentialState::Present);
                let there = there.ok_or_else(|| not_found(&name))?;
                same_kind(&there.record, new.kind())?;
                // by what it holds: under another key it still is the same, and so is what two have found out alike
                let now = vault.open(&there)?;
                if now != read && now != new {
                    return Ok(Swap::Overtaken);
                }
                vault.put(tx, &key, Some(&there), &name, &new, &cause)?;
                Ok(Swap::Kept)
            })
            .await
    }
}

/// The keys that something is sealed under, and how much under each: credentials, and the agents' authority.
pub(crate) fn sealed_under(tx: &mut Tx<'_>) -> TxResult<BTreeMap<String, u64>> {
    let mut keys = credential::keys(tx)?;
    if let Some(authority) = agent::authority(tx)? {
        *keys.entry(authority.key_id).or_default() += 1;
    }
    Ok(keys)
}

/// A name keeps its kind: whoever sets another has mistaken the name.
pub(crate) fn same_kind(there: &CredentialRecord, kind: CredentialKind) -> Result<(), Error> {
    if there.state == CredentialState::Deleted || there.kind == kind {
        return Ok(());
    }
    let problem = format!(
        "credential {} is of kind {}, not {kind}; choose another name, or delete it first",
        there.name, there.kind
    );
    Err(Error::field("kind", problem))
}

fn spoilt(record: &CredentialRecord) -> Error {
    tracing::error!(credential = record.name, key_id = record.key_id, "a stored credential does not open with its key");
    Error::internal(format!(
        "credential {} does not open with its key {}: its row was changed or damaged; set it again, and find out who writes to the database",
        record.name, record.key_id
    ))
}

fn machine_there(tx: &mut Tx<'_>, id: &MachineId) -> TxResult<Machine> {
    Ok(machine::get(tx, id)?.ok_or_else(|| crate::machines::not_found(id.as_str()))?)
}

/// Whoever is behind it, as everywhere else in the log.
fn cause(because: Because<'_>, trigger: &'static str) -> Cause {
    match because.by {
        By::Person(name) => Cause::operator(name, trigger, &short(because.why)),
        By::Run(run) => Cause::executor("executor", trigger, &short(&format!("run {run}: {}", because.why))),
        By::System => Cause::reconciler("system", trigger, &short(because.why)),
    }
}

/// As an adapter hears it.
pub(crate) fn told(e: Error) -> ProviderError {
    match (e.reason, e.code()) {
        (Reason::CredentialNotFound, _) => ProviderError::credential_missing(format!(
            "there is no credential {:?}; set it with 'millwright credential set'",
            e.details.get("credential").map_or("", String::as_str)
        )),
        (Reason::OutcomeUnknown, _) => ProviderError::unknown(e.message),
        (reason, Code::Unavailable | Code::Aborted | Code::ResourceExhausted | Code::DeadlineExceeded) => {
            ProviderError::because(reason, FailureClass::DependencyDown, e.message)
        }
        (reason, _) => ProviderError::because(reason, FailureClass::NeedsOperator, e.message),
    }
}

/// What adapters are given.
#[async_trait]
impl Keyring for Vault {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        self.find(name).await.map_err(told)
    }

    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap> {
        self.swap(name, read, new).await.map_err(told)
    }

    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>> {
        let there = self.store.point(pin::at(machine, pin, endpoint)).await.map_err(told)?;
        Ok(there.filter(|there| there.state == PinState::Pinned).map(|there| there.value))
    }

    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String> {
        check_text("seen", seen, COMMENT_MAX).map_err(told)?;
        let (id, endpoint, seen) = (machine.clone(), endpoint.to_owned(), seen.to_owned());
        let cause = Cause::reconciler(ACTOR, PINNED, "seen at the first contact");
        let pinned = self
            .store
            .write(&Caller::new(ACTOR), machine.as_str(), move |tx| {
                let machine = machine_there(tx, &id)?;
                pin::pin(tx, &machine, pin, &endpoint, &seen, &cause)
            })
            .await;
        pinned.map_err(told)
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
        check_text("value", value, COMMENT_MAX).map_err(told)?;
        let (id, endpoint, value) = (machine.clone(), endpoint.to_owned(), value.to_owned());
        let read = read.map(str::to_owned);
        let (forgotten, pinned) = (cause(because, FORGOTTEN), cause(because, PINNED));
        let written = self
            .store
            .write(&Caller::new(ACTOR), machine.as_str(), move |tx| {
                let machine = machine_there(tx, &id)?;
                let place = (endpoint.as_str(), read.as_deref());
                let kept = pin::swap(tx, &machine, pin, place, &value, (&forgotten, &pinned))?;
                Ok(if kept { Swap::Kept } else { Swap::Overtaken })
            })
            .await;
        written.map_err(told)
    }

    async fn forget(&self, machine: &MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()> {
        let (id, pins, cause) = (machine.clone(), pins.to_vec(), cause(because, FORGOTTEN));
        let forgotten = self
            .store
            .write(&Caller::new(ACTOR), machine.as_str(), move |tx| {
                let machine = machine_there(tx, &id)?;
                pins.iter().try_for_each(|pin| pin::forget(tx, &machine, *pin, &cause))
            })
            .await;
        forgotten.map_err(told)
    }
}
