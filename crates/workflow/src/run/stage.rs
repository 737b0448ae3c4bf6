//! What a stage body is given, and the few judgements they share.

use async_trait::async_trait;
use domain::Reason;
use domain::identity::another_machine;
use domain::limits::short;
use domain::stage::FailureClass;
use engine::{Aborted, Acted, Failure, Look, Seen, StageCx};
use provider::{Ack, Inspection, Operation, Provider, ProviderError, ProviderResult, Target};
use std::sync::Arc;

/// The machine, and who drives it.
pub(crate) struct Access {
    pub target: Target,
    pub provider: Arc<dyn Provider>,
}

/// One attempt of one stage on that machine.
pub(crate) struct At<'a> {
    pub access: &'a Access,
    pub cx: &'a StageCx,
    pub op: Operation,
}

#[async_trait]
pub(crate) trait Stage: Send + Sync {
    /// Observes; changes nothing.
    async fn look(&self, at: &At<'_>) -> Look;
    async fn act(&self, at: &At<'_>) -> Acted;
    /// What is done by one call is not stopped by another.
    async fn abort(&self, _: &At<'_>) -> Result<Aborted, Failure> {
        Ok(Aborted::TakesEffect)
    }
    /// Only for kinds declared `Undo`.
    async fn undo(&self, _: &At<'_>) -> Result<(), Failure> {
        Ok(())
    }
}

impl<'a> At<'a> {
    pub fn new(access: &'a Access, cx: &'a StageCx, stage: &str) -> Self {
        let op = Operation {
            execution: cx.execution.clone(),
            stage: stage.to_owned(),
            attempt: cx.attempt,
            fence: cx.fence.to_string(),
        };
        Self { access, cx, op }
    }

    pub fn target(&self) -> &Target {
        &self.access.target
    }

    /// Whether an operation key belongs to this stage of this execution, whatever the attempt.
    pub fn is_ours(&self, key: &str) -> bool {
        let ours = Operation { attempt: 0, ..self.op.clone() }.key();
        key.rsplit_once('.').map(|k| k.0) == ours.rsplit_once('.').map(|k| k.0)
    }

    /// Looks at the machine and makes sure that it is the one we mean.
    pub async fn inspect(&self) -> Result<Inspection, Seen> {
        let Some(inspect) = self.access.provider.inspect() else { return Err(Seen::Failed(missing("inspect"))) };
        let seen = inspect.inspect(self.target()).await.map_err(|e| self.unseen(e))?;
        match another_machine(&self.target().spec, &seen.serial_number, &seen.system_uuid) {
            Some(message) => {
                Err(Seen::Failed(Failure::new(Reason::WrongMachine.as_str(), FailureClass::Conflict, message)))
            }
            None => Ok(seen),
        }
    }

    /// A look that failed: after an act, or what may have been one, it is what we wait out; before it is a failed
    /// attempt.
    pub fn unseen(&self, e: ProviderError) -> Seen {
        let acted = self.cx.may_have_acted;
        match e {
            ProviderError::Refused { class, reason, message } if !acted || class.retry_budget() == 0 => {
                Seen::Failed(Failure::new(reason.as_str(), class, message))
            }
            ProviderError::Unknown { message } if !acted => {
                Seen::Failed(Failure::new(Reason::ProviderSilent.as_str(), FailureClass::Transient, message))
            }
            ProviderError::Refused { message, .. } | ProviderError::Unknown { message } => {
                self.waiting(format!("the machine to answer: {}", short(&message)))
            }
        }
    }

    pub fn waiting(&self, on: impl Into<String>) -> Seen {
        Seen::Waiting { on: on.into(), look_again: self.cx.look_again() }
    }
}

pub(crate) fn missing(capability: &str) -> Failure {
    Failure::new(
        Reason::CapabilityMissing.as_str(),
        FailureClass::InvalidInput,
        format!("the provider no longer has the capability {capability:?}"),
    )
}

/// A provider's answer to an act.
pub(crate) fn acted(answer: ProviderResult<Ack>) -> Acted {
    match answer {
        Ok(Ack::Done | Ack::Accepted) => Acted::Yes,
        Err(ProviderError::Unknown { message }) => Acted::Unknown(message),
        Err(ProviderError::Refused { class, reason, message }) => {
            Acted::No(Failure::new(reason.as_str(), class, message))
        }
    }
}

/// A provider's answer to stopping or undoing something: silence is a failure here.
pub(crate) fn settled(answer: ProviderResult<Ack>) -> Result<(), Failure> {
    match acted(answer) {
        Acted::Yes => Ok(()),
        Acted::Unknown(message) => Err(Failure::new(Reason::ProviderSilent.as_str(), FailureClass::Transient, message)),
        Acted::NotYet { on, .. } => {
            Err(Failure::new(Reason::EndpointBusy.as_str(), FailureClass::Transient, format!("waited for {on}")))
        }
        Acted::No(failure) => Err(failure),
    }
}
