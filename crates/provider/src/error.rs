//! The kinds of yes and no a provider can give.

use domain::stage::FailureClass;
use domain::{Error, Reason};

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
    Refused { class: FailureClass, reason: Reason, message: String },
    /// The call was sent, and no answer came, or one that does not say what became of it: it may have been done.
    /// Probe before any retry.
    #[error("{message} (sent, and it may have been done)")]
    Unknown { message: String },
}

pub type ProviderResult<T> = Result<T, ProviderError>;

impl ProviderError {
    pub fn refused(class: FailureClass, message: impl Into<String>) -> Self {
        Self::because(Reason::ProviderRefused, class, message)
    }

    pub fn because(reason: Reason, class: FailureClass, message: impl Into<String>) -> Self {
        ProviderError::Refused { class, reason, message: message.into() }
    }

    pub fn transient(message: impl Into<String>) -> Self {
        Self::refused(FailureClass::Transient, message)
    }

    pub fn unknown(message: impl Into<String>) -> Self {
        ProviderError::Unknown { message: message.into() }
    }

    /// Nothing answers there. `what` names it with its address.
    pub fn unreachable(what: &str, why: &str) -> Self {
        let message = format!("{what} cannot be reached: {why}; check its address, its network and that it has power");
        Self::because(Reason::Unreachable, FailureClass::Transient, message)
    }

    /// Something is there and lets nobody in.
    pub fn connection_refused(what: &str) -> Self {
        let message = format!("{what} refuses connections; check the port, and that the service is enabled there");
        Self::because(Reason::ConnectionRefused, FailureClass::Transient, message)
    }

    /// The user and password, or key, are wrong. Not repeated: controllers lock accounts.
    pub fn login_refused(what: &str, credential: &str) -> Self {
        let message = format!(
            "{what} does not take the login of credential {credential:?}; set the right one with 'millwright credential set'"
        );
        Self::because(Reason::LoginRefused, FailureClass::NeedsOperator, message)
    }

    pub fn untrusted_certificate(what: &str, why: &str) -> Self {
        let message = format!(
            "{what} shows a certificate that is not trusted: {why}; if it was replaced on purpose, an admin accepts it with 'millwright machine repin', or by another tls= where its bmc_endpoint has one"
        );
        Self::because(Reason::UntrustedCertificate, FailureClass::NeedsOperator, message)
    }

    pub fn host_key_changed(what: &str, pinned: &str, shown: &str) -> Self {
        let message = format!(
            "{what} shows the host key {shown}, not {pinned} which is pinned: it was reinstalled, or another host answers in its place; if it was replaced on purpose, an admin accepts it with 'millwright machine repin'"
        );
        Self::because(Reason::HostKeyChanged, FailureClass::NeedsOperator, message)
    }

    pub fn capability_missing(what: &str, capability: &str) -> Self {
        let message = format!("{what} does not offer {capability}; 'millwright machine inspect' lists what it offers");
        Self::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message)
    }

    /// Both identities are in `message`, see [`domain::identity::another_machine`].
    pub fn wrong_machine(message: impl Into<String>) -> Self {
        Self::because(Reason::WrongMachine, FailureClass::Conflict, message)
    }

    pub fn credential_missing(message: impl Into<String>) -> Self {
        Self::because(Reason::CredentialMissing, FailureClass::NeedsOperator, message)
    }

    /// It answered, and what came is no answer.
    pub fn bad_answer(what: &str, why: &str) -> Self {
        let message = format!("{what} answered with something that cannot be understood: {why}");
        Self::because(Reason::BadAnswer, FailureClass::Transient, message)
    }

    pub const fn reason(&self) -> Reason {
        match self {
            ProviderError::Refused { reason, .. } => *reason,
            ProviderError::Unknown { .. } => Reason::ProviderSilent,
        }
    }
}

impl From<ProviderError> for Error {
    fn from(e: ProviderError) -> Self {
        Error::new(e.reason(), e.to_string())
    }
}
