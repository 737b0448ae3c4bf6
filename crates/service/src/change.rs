//! How every change is made: in one transaction that also remembers the caller's key and puts the
//! change on record.

use crate::{Call, Service};
use domain::limits::IDEMPOTENCY_KEY_MAX;
use domain::{Error, Reason};
use std::sync::Arc;
use std::time::Duration;
use store::{Failure, Tx, TxResult, audit, idempotency};

/// How long a key is remembered.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a change answers with. Of an answer only its id is remembered, never a secret: a repeated
/// request is answered with what is there by then.
pub(crate) trait Answer: Sized + Send + 'static {
    fn id(&self) -> String;

    /// What is remembered: the id, and what else a repeated request is told.
    fn kept(&self) -> String {
        self.id()
    }

    /// By what was kept. What is there by then, if it still is the caller's to see.
    fn again(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Self>;
}

/// A caller's key: printable, and short enough to store.
pub fn check_key(key: &str) -> Result<(), Error> {
    let printable = key.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_MAX || !printable {
        return Err(Error::field(
            "x-idempotency-key",
            format!("use 1 to {IDEMPOTENCY_KEY_MAX} printable ASCII characters"),
        ));
    }
    Ok(())
}

pub(crate) struct Key {
    scope: String,
    key: String,
    fingerprint: String,
}

impl Key {
    pub(crate) fn of(call: &Call) -> Option<Self> {
        let key = call.idempotency_key.clone()?;
        let scope = format!("call/{}", call.by.token_id);
        Some(Self { scope, key, fingerprint: call.fingerprint().to_owned() })
    }

    /// What was remembered of the same request, if it was made before.
    pub(crate) fn known(&self, tx: &mut Tx<'_>) -> TxResult<Option<String>> {
        let Some(known) = idempotency::find(tx, &self.scope, &self.key)? else { return Ok(None) };
        if known.fingerprint != self.fingerprint {
            return Err(Error::new(
                Reason::IdempotencyKeyReused,
                format!("the idempotency key {:?} was used for another request; use a new key", self.key),
            )
            .with("answer", known.answer)
            .into());
        }
        Ok(Some(known.answer))
    }

    fn answered<T: Answer>(&self, tx: &mut Tx<'_>, call: &Call) -> TxResult<Option<T>> {
        match self.known(tx)? {
            Some(answer) => T::again(tx, call, &answer).map(Some),
            None => Ok(None),
        }
    }

    /// Puts the outcome in the place of what was remembered at the beginning; `None`: nothing was done, and the
    /// key may be used again.
    pub(crate) fn settle(&self, tx: &mut Tx<'_>, outcome: Option<&str>) -> TxResult<()> {
        match outcome {
            Some(outcome) => idempotency::settle(tx, &self.scope, &self.key, outcome),
            None => idempotency::free(tx, &self.scope, &self.key),
        }
    }

    /// Why a change was not made. The same request may have been sent to two servers, and the other one may
    /// have made the change since we looked: what it left must not be held against its own twin, which is run
    /// again and finds the answer.
    pub(crate) fn refused_or_overtaken(&self, tx: &mut Tx<'_>, failure: Failure) -> Failure {
        match &failure {
            Failure::Refused(_) => match idempotency::find(tx, &self.scope, &self.key) {
                Ok(Some(_)) => Failure::Lost(format!("the request with key {:?}", self.key)),
                Ok(None) | Err(_) => failure,
            },
            Failure::Fenced(_) | Failure::Lost(_) | Failure::Db(_) => failure,
        }
    }

    pub(crate) fn remember(&self, tx: &mut Tx<'_>, answer: &str) -> TxResult<()> {
        let old = tx.now().minus(KEPT);
        idempotency::forget(tx, &self.scope, old)?;
        idempotency::remember(tx, &self.scope, &self.key, &self.fingerprint, answer)
    }
}

impl Service {
    /// `entity` names what is written: changes of one entity are made in the order they came.
    pub(crate) async fn change<T: Answer>(
        &self,
        call: &Arc<Call>,
        entity: &str,
        make: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (key, by) = (Key::of(call), call.clone());
        let done = crate::audit::of(call);
        self.store()
            .write(&call.by.caller(), entity, move |tx| {
                if let Some(key) = &key
                    && let Some(answer) = key.answered(tx, &by)?
                {
                    return Ok(answer);
                }
                let answer = make(tx).map_err(|failure| match &key {
                    Some(key) => key.refused_or_overtaken(tx, failure),
                    None => failure,
                })?;
                let id = answer.id();
                if let Some(key) = &key {
                    key.remember(tx, &answer.kept())?;
                }
                let mut entry = done.clone();
                if entry.target.is_empty() {
                    entry.target = id;
                } else if entry.target != id {
                    entry.message = id;
                }
                audit::insert(tx, &entry);
                Ok(answer)
            })
            .await
    }
}
