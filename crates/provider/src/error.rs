//! The kinds of yes and no a provider can give.

use domain::stage::FailureClass;

/// A provider's yes. Accepted is not finished: the stage probes until it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "accepted is not finished"]
pub enum Ack {
    Done,
    Accepted,
}

/// A provider's no, or its silence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// It answered, and the answer was no; nothing was changed by this call.
    #[error("{message}")]
    Refused { class: FailureClass, message: String },
    /// The call was sent and no answer came: it may have been done. Probe before any retry.
    #[error("{message} (sent, but no answer came)")]
    Unknown { message: String },
}

pub type ProviderResult<T> = Result<T, ProviderError>;

impl ProviderError {
    pub fn refused(class: FailureClass, message: impl Into<String>) -> Self {
        ProviderError::Refused { class, message: message.into() }
    }

    pub fn transient(message: impl Into<String>) -> Self {
        Self::refused(FailureClass::Transient, message)
    }

    pub fn unknown(message: impl Into<String>) -> Self {
        ProviderError::Unknown { message: message.into() }
    }
}
