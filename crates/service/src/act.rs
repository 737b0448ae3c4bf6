//! What is done to the world outside: it cannot be in one transaction with its record. So it is put on record
//! before it begins, with the caller's key, and once more when it ended. A request that is repeated with its key
//! is not done twice; where the end of the first is not known, that is said.
//!
//! An act goes on when its caller is gone: a controller that was told half of something is worse than one that
//! was told all of it. It ends within bounds of its own.

use crate::change::Key;
use crate::{Call, Service, audit as entries};
use domain::limits::{COMMENT_MAX, short};
use domain::machine::check_text;
use domain::{Error, Reason};
use provider::{Ack, ProviderError, ProviderResult};
use std::sync::Arc;
use std::time::Duration;
use store::{Tx, TxResult, audit};

/// In the place of an outcome, while there is none.
const BEGUN: &str = "begun";
/// Before the message of an act of which nobody knows whether it was done.
const UNKNOWN: &str = "unknown: ";

/// The longest a controller may take to say who it is, whatever `engine.call_timeout` says: all bounds together
/// stay below the longest call.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// The longest it may take to do something, or to tell all that it knows.
const ACT_MAX: Duration = Duration::from_secs(30);

/// What an act answers with, and what is kept of it for a repeated request.
pub(crate) trait Outcome: Sized + Send + 'static {
    /// Doing it again does no harm, and tells how it stands by then.
    const REPEATABLE: bool;
    fn keep(&self) -> String {
        String::new()
    }
    fn kept(_text: &str) -> Option<Self> {
        None
    }
}

/// A yes, and the controller's own task where it works on by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acted {
    pub ack: Ack,
    pub task: String,
}

impl Acted {
    pub const fn state(&self) -> &'static str {
        match self.ack {
            Ack::Done => "done",
            Ack::Accepted => "accepted",
        }
    }
}

impl From<Ack> for Acted {
    fn from(ack: Ack) -> Self {
        Self { ack, task: String::new() }
    }
}

impl Outcome for Acted {
    const REPEATABLE: bool = false;

    fn keep(&self) -> String {
        format!("{} {}", self.state(), self.task)
    }

    fn kept(text: &str) -> Option<Self> {
        let (state, task) = text.split_once(' ')?;
        let ack = [Ack::Done, Ack::Accepted].into_iter().find(|ack| Acted::from(*ack).state() == state)?;
        Some(Self { ack, task: task.to_owned() })
    }
}

/// What was done to which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareChange {
    pub machine_id: String,
    pub what: String,
    pub acted: Acted,
}

/// What is asked for, in words for the audit, and the caller's own.
pub(crate) struct Asked {
    pub what: String,
    pub reason: String,
}

impl Asked {
    pub fn new(what: impl Into<String>, reason: &str) -> Result<Self, Error> {
        check_text("reason", reason, COMMENT_MAX)?;
        Ok(Self { what: what.into(), reason: reason.to_owned() })
    }

    fn message(&self) -> String {
        let message =
            if self.reason.is_empty() { self.what.clone() } else { format!("{}: {}", self.what, self.reason) };
        short(&message)
    }
}

enum Begun<S> {
    /// To be done now. `false`: it is on record already.
    Now(S, bool),
    Before(String),
}

impl Service {
    pub(crate) fn look_within(&self) -> Duration {
        self.engine().call_timeout().min(LOOK_MAX)
    }

    pub(crate) fn act_within(&self) -> Duration {
        (self.engine().call_timeout() * 3).min(ACT_MAX)
    }

    /// Judges in a transaction that also records what begins, then works outside of it.
    /// `entity` names what is written, as in `change`.
    pub(crate) async fn act<S, T, W>(
        &self,
        call: &Arc<Call>,
        entity: &str,
        asked: Asked,
        judge: impl Fn(&mut Tx<'_>) -> TxResult<S> + Send + 'static,
        work: impl FnOnce(S) -> W + Send + 'static,
    ) -> Result<T, Error>
    where
        S: Send + 'static,
        T: Outcome,
        W: Future<Output = Result<T, Error>> + Send,
    {
        let message = asked.message();
        let (subject, to_be_recorded) = match self.begin::<S>(call, entity, &message, T::REPEATABLE, judge).await? {
            Begun::Now(subject, to_be_recorded) => (subject, to_be_recorded),
            Begun::Before(outcome) => return before(&asked.what, &outcome),
        };
        let (service, call, entity) = (self.clone(), call.clone(), entity.to_owned());
        let act = tokio::spawn(async move {
            let result = work(subject).await;
            if !to_be_recorded {
                return result;
            }
            let ended = ended(about(&call, &entity), message, &result);
            if let Err(e) = service.settle(&call, &entity, ended).await {
                tracing::warn!(error = %e, call = call.name, about = entity, "how an act ended could not be put on record");
            }
            result
        });
        match act.await {
            Ok(result) => result,
            Err(e) => Err(Error::new(
                Reason::OutcomeUnknown,
                format!("{} was cut short, and may have been done ({e}); look at the machine", asked.what),
            )),
        }
    }

    async fn begin<S: Send + 'static>(
        &self,
        call: &Arc<Call>,
        entity: &str,
        message: &str,
        repeatable: bool,
        judge: impl Fn(&mut Tx<'_>) -> TxResult<S> + Send + 'static,
    ) -> Result<Begun<S>, Error> {
        let key = Key::of(call);
        let entry = audit::Entry { message: message.to_owned(), begun: true, ..about(call, entity) };
        self.store()
            .write(&call.by.caller(), entity, move |tx| {
                if let Some(key) = &key
                    && let Some(outcome) = key.known(tx)?
                {
                    return Ok(if repeatable { Begun::Now(judge(tx)?, false) } else { Begun::Before(outcome) });
                }
                let subject = judge(tx).map_err(|failure| match &key {
                    Some(key) => key.refused_or_overtaken(tx, failure),
                    None => failure,
                })?;
                if let Some(key) = &key {
                    key.remember(tx, BEGUN)?;
                }
                audit::insert(tx, &entry);
                Ok(Begun::Now(subject, true))
            })
            .await
    }

    /// Puts on record how it ended.
    async fn settle(&self, call: &Call, entity: &str, ended: Ended) -> Result<(), Error> {
        let key = Key::of(call);
        call.put_on_record();
        self.store()
            .write(&call.by.caller(), entity, move |tx| {
                if let Some(key) = &key {
                    key.settle(tx, ended.outcome.as_deref())?;
                }
                audit::insert(tx, &ended.entry);
                Ok(())
            })
            .await
    }
}

/// How an act ended, as it is recorded.
struct Ended {
    entry: audit::Entry,
    /// What is kept for a repeated request; `None`: nothing was done.
    outcome: Option<String>,
}

fn ended<T: Outcome>(entry: audit::Entry, message: String, result: &Result<T, Error>) -> Ended {
    match result {
        Ok(done) => Ended { entry: audit::Entry { message, ..entry }, outcome: Some(done.keep()) },
        Err(e) => {
            let audit::Entry { code, reason, message, .. } = entries::refused(e);
            let outcome = (e.reason == Reason::ProviderSilent).then(|| format!("{UNKNOWN}{}", e.message));
            Ended { entry: audit::Entry { code, reason, message, ..entry }, outcome }
        }
    }
}

fn about(call: &Call, entity: &str) -> audit::Entry {
    let entry = entries::of(call);
    if entry.target.is_empty() { audit::Entry { target: entity.to_owned(), ..entry } } else { entry }
}

/// The answer to a request that was made before.
fn before<T: Outcome>(what: &str, outcome: &str) -> Result<T, Error> {
    if let Some(message) = outcome.strip_prefix(UNKNOWN) {
        let message = format!("{message}; it was not repeated: look at the machine, and use a new key to do it again");
        return Err(Error::new(Reason::ProviderSilent, message));
    }
    T::kept(outcome).ok_or_else(|| {
        Error::new(
            Reason::OutcomeUnknown,
            format!(
                "{what} was begun by an earlier request with this key, and how it ended is not known: it is under way, \
                 or was cut short; repeat the request to learn more, or look at the machine and use a new key to do it again"
            ),
        )
    })
}

/// Waits for an answer to something that changes nothing.
pub(crate) async fn answer<T>(
    what: &str,
    within: Duration,
    asking: impl Future<Output = ProviderResult<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(within, asking).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ProviderError::unreachable(what, &no_answer(within)).into()),
    }
}

/// Waits for something to be done; when no answer comes, it may have been.
pub(crate) async fn done<T>(
    what: &str,
    within: Duration,
    doing: impl Future<Output = ProviderResult<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(within, doing).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ProviderError::unknown(format!("{what}: {}", no_answer(within))).into()),
    }
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {} s", within.as_secs_f32())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_an_outcome_is_enough_to_answer_again() {
        for acted in [
            Acted::from(Ack::Done),
            Acted::from(Ack::Accepted),
            Acted { ack: Ack::Accepted, task: "/redfish/v1/Tasks/7 b".into() },
        ] {
            assert_eq!(before::<Acted>("x", &acted.keep()), Ok(acted));
        }
    }

    #[test]
    fn an_unknown_outcome_is_never_told_as_done() {
        let unknown = before::<Acted>("power cycle", BEGUN).map_err(|e| e.reason);
        assert_eq!(unknown, Err(Reason::OutcomeUnknown));
        let silent = before::<Acted>("power cycle", "unknown: no answer within 3 s").expect_err("not known");
        assert_eq!(silent.reason, Reason::ProviderSilent);
        assert!(silent.message.contains("no answer within 3 s") && silent.message.contains("new key"), "{silent}");
    }
}
