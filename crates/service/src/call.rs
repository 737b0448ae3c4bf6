//! One call through a door: who asks, for what, and what is to be remembered about the asking.

use crate::access::Principal;
use domain::machine::Machine;
use domain::token::{Role, expired, revoked};
use domain::{Error, Timestamp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What a caller sent may be anything, and of any length; what is kept of it is not.
pub(crate) fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(domain::limits::REQUEST_ID_MAX).collect()
}

pub struct Call {
    pub by: Arc<Principal>,
    /// As in the access table, e.g. `baremetal.v1.RunService/StartRun`.
    pub name: &'static str,
    /// By which log lines, audit entries and the caller's own records find each other.
    pub request_id: String,
    /// The caller's key for this change, by which it can be repeated.
    pub idempotency_key: Option<String>,
    fingerprint: OnceLock<String>,
    target: OnceLock<String>,
    on_record: AtomicBool,
}

impl Call {
    pub fn new(by: Arc<Principal>, name: &'static str, request_id: String, idempotency_key: Option<String>) -> Self {
        let request_id = bounded(&request_id);
        Self {
            by,
            name,
            request_id,
            idempotency_key,
            fingerprint: OnceLock::new(),
            target: OnceLock::new(),
            on_record: AtomicBool::new(false),
        }
    }

    /// The server itself, for what it does at its start.
    pub fn system() -> Arc<Self> {
        Arc::new(Self::new(Arc::new(Principal::system()), "system", String::new(), None))
    }

    /// The same call for one of several things that it names, each of which can be repeated by itself.
    pub(crate) fn part(&self, name: &str) -> Self {
        let key = self.idempotency_key.as_ref().map(|key| format!("{key}/{name}"));
        let part = Self::new(self.by.clone(), self.name, self.request_id.clone(), key);
        drop(part.fingerprint.set(self.fingerprint().to_owned()));
        part.about(name);
        part
    }

    /// Says what the call is about, for the audit. The first word counts.
    pub fn about(&self, target: &str) {
        drop(self.target.set(bounded(target)));
    }

    pub fn target(&self) -> &str {
        self.target.get().map_or("", String::as_str)
    }

    /// Says that how it ended is in the audit already.
    pub(crate) fn put_on_record(&self) {
        self.on_record.store(true, Ordering::Release);
    }

    pub(crate) fn is_on_record(&self) -> bool {
        self.on_record.load(Ordering::Acquire)
    }

    /// Says what exactly was asked for, so that the same key with another request is noticed.
    pub fn asks(&self, request: &[u8]) {
        drop(self.fingerprint.set(store::idempotency::fingerprint([self.name.as_bytes(), request])));
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.fingerprint.get().map_or("", String::as_str)
    }

    /// Whether this machine is the caller's to see.
    pub(crate) fn sees(&self, machine: &Machine) -> bool {
        self.by.sees_customer(&machine.spec.customer_id)
    }

    /// Refuses what only a higher role may ask for.
    pub(crate) fn needs(&self, role: Role, what: &str) -> Result<(), Error> {
        self.by.needs(role, what)
    }

    /// Refuses what is not for a token of one customer.
    pub(crate) fn for_fleet(&self, what: &str) -> Result<(), Error> {
        self.by.for_fleet(what)
    }

    /// Refuses a call whose token was taken back after it had been let in: a request may take its time to
    /// arrive.
    pub fn not_revoked(&self) -> Result<(), Error> {
        if self.by.standing.is_revoked() { Err(revoked(&self.by.token_id)) } else { Ok(()) }
    }

    /// Whether the caller's token still is good: asked before each thing that a stream says, since one
    /// that always has more to say never waits.
    pub(crate) fn still_good(&self, now: Timestamp) -> Result<(), Error> {
        self.not_revoked()?;
        match self.by.expires_at {
            Some(at) if at <= now => Err(expired(&self.by.token_id, at)),
            Some(_) | None => Ok(()),
        }
    }

    /// Resolves when the caller's token is good no longer, and says why.
    pub(crate) async fn ended(&self, now: impl Fn() -> Timestamp) -> Error {
        let expiry = async {
            match self.by.expires_at {
                None => std::future::pending().await,
                Some(at) => {
                    while now() < at {
                        tokio::time::sleep(at.since(now())).await;
                    }
                    expired(&self.by.token_id, at)
                }
            }
        };
        tokio::select! {
            biased;
            () = self.by.standing.revoked() => revoked(&self.by.token_id),
            error = expiry => error,
        }
    }
}
