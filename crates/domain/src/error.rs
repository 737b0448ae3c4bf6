//! The one error catalogue: a stable reason, the code it always has, and a sentence for a person.
//! Doors translate it; nothing below them invents another.

use std::collections::BTreeMap;
use std::fmt;

/// The coarse kind of an error, spelt as in gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    DeadlineExceeded,
    Unimplemented,
    Internal,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal => $code:ident,)+) => {
        /// Why something was refused or failed. The text form is stable: scripts hold on to it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $text,)+ }
            }

            pub const fn code(self) -> Code {
                match self { $(Reason::$variant => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    InvalidField = "INVALID_FIELD" => InvalidArgument,
    InvalidFilter = "INVALID_FILTER" => InvalidArgument,
    InvalidPageToken = "INVALID_PAGE_TOKEN" => InvalidArgument,
    InvalidPlan = "INVALID_PLAN" => InvalidArgument,
    UnknownRunType = "UNKNOWN_RUN_TYPE" => InvalidArgument,
    TokenMissing = "TOKEN_MISSING" => Unauthenticated,
    TokenInvalid = "TOKEN_INVALID" => Unauthenticated,
    TokenExpired = "TOKEN_EXPIRED" => Unauthenticated,
    TokenRevoked = "TOKEN_REVOKED" => Unauthenticated,
    /// A report's token was not made by us, or for another boot node.
    ReportTokenInvalid = "REPORT_TOKEN_INVALID" => Unauthenticated,
    /// An agent's bootstrap token is unknown, expired, withdrawn or another key's.
    BootstrapTokenInvalid = "BOOTSTRAP_TOKEN_INVALID" => Unauthenticated,
    /// An agent came without its certificate, or with one that is good no longer.
    AgentCertificateRefused = "AGENT_CERTIFICATE_REFUSED" => Unauthenticated,
    /// An agent's identity was taken back for good.
    AgentRevoked = "REVOKED" => Unauthenticated,
    /// The call asks for a higher role than the token has.
    RoleTooLow = "ROLE_TOO_LOW" => PermissionDenied,
    /// The call, or a part of what it asks, is not for tokens of one customer.
    OutOfScope = "OUT_OF_SCOPE" => PermissionDenied,
    MachineNotFound = "MACHINE_NOT_FOUND" => NotFound,
    RunNotFound = "RUN_NOT_FOUND" => NotFound,
    PlanNotFound = "PLAN_NOT_FOUND" => NotFound,
    ExecutionNotFound = "EXECUTION_NOT_FOUND" => NotFound,
    TokenNotFound = "TOKEN_NOT_FOUND" => NotFound,
    CredentialNotFound = "CREDENTIAL_NOT_FOUND" => NotFound,
    BootNodeNotFound = "BOOT_NODE_NOT_FOUND" => NotFound,
    WorkflowNotFound = "WORKFLOW_NOT_FOUND" => NotFound,
    FindingNotFound = "FINDING_NOT_FOUND" => NotFound,
    NodeNotFound = "NODE_NOT_FOUND" => NotFound,
    JobNotFound = "JOB_NOT_FOUND" => NotFound,
    TaskNotFound = "TASK_NOT_FOUND" => NotFound,
    ImageNotFound = "IMAGE_NOT_FOUND" => NotFound,
    SiteNotFound = "SITE_NOT_FOUND" => NotFound,
    /// The site is there, and no machine of that id was seen on it.
    SiteMachineNotFound = "SITE_MACHINE_NOT_FOUND" => NotFound,
    /// Nothing of any kind has this id.
    IdNotFound = "ID_NOT_FOUND" => NotFound,
    /// REST: nothing stands at that path.
    NoSuchPath = "NO_SUCH_PATH" => NotFound,
    /// A MAC, serial number or system UUID that another machine holds.
    IdentityTaken = "IDENTITY_TAKEN" => AlreadyExists,
    PlanExists = "PLAN_EXISTS" => AlreadyExists,
    WorkflowExists = "WORKFLOW_EXISTS" => AlreadyExists,
    /// A node that is not deleted has that name.
    NodeExists = "NODE_EXISTS" => AlreadyExists,
    SiteExists = "SITE_EXISTS" => AlreadyExists,
    RequestIdReused = "REQUEST_ID_REUSED" => AlreadyExists,
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED" => AlreadyExists,
    ActiveRun = "ACTIVE_RUN" => FailedPrecondition,
    /// The node's agent has a task, and takes one at a time.
    ActiveTask = "ACTIVE_TASK" => FailedPrecondition,
    /// What carries that mode out is not there.
    ModeUnavailable = "MODE_UNAVAILABLE" => FailedPrecondition,
    /// No agent can be given an order: none has enrolled, or its identity was stopped.
    AgentMissing = "AGENT_MISSING" => FailedPrecondition,
    IllegalTransition = "ILLEGAL_TRANSITION" => FailedPrecondition,
    /// The edge exists, but belongs to somebody else.
    NotYourTransition = "NOT_YOUR_TRANSITION" => FailedPrecondition,
    PhaseForbidsRun = "PHASE_FORBIDS_RUN" => FailedPrecondition,
    /// It is out of our hands for ever.
    MachineRetired = "MACHINE_RETIRED" => FailedPrecondition,
    RunAlreadyEnded = "RUN_ALREADY_ENDED" => FailedPrecondition,
    /// Nothing says what a boot node is to be installed with.
    WorkflowMissing = "WORKFLOW_MISSING" => FailedPrecondition,
    /// A workflow names it.
    ImageInUse = "IMAGE_IN_USE" => FailedPrecondition,
    /// Nodes run on its machines.
    SiteInUse = "SITE_IN_USE" => FailedPrecondition,
    /// As many attempts have failed as are allowed: somebody must say that it is to be tried again.
    ForceNeeded = "FORCE_NEEDED" => FailedPrecondition,
    /// A job holds the node, and another is wished for.
    NodeHeld = "NODE_HELD" => FailedPrecondition,
    /// What an operator wishes is not possible as the job or the node stands; what is, is said.
    ActionNotAllowed = "ACTION_NOT_ALLOWED" => FailedPrecondition,
    /// The machine serves somebody, or a run is active on it.
    MachineInUse = "MACHINE_IN_USE" => FailedPrecondition,
    ProviderUnknown = "PROVIDER_UNKNOWN" => FailedPrecondition,
    CapabilityMissing = "CAPABILITY_MISSING" => FailedPrecondition,
    /// Machines still name it.
    CredentialInUse = "CREDENTIAL_IN_USE" => FailedPrecondition,
    /// A machine names no credential of the kind that is needed to reach it.
    CredentialMissing = "CREDENTIAL_MISSING" => FailedPrecondition,
    /// The key that opens the stored credentials is not configured, or is another.
    SecretKeyUnavailable = "SECRET_KEY_UNAVAILABLE" => FailedPrecondition,
    /// A BMC or host did not take our user and password, or key.
    LoginRefused = "LOGIN_REFUSED" => FailedPrecondition,
    UntrustedCertificate = "UNTRUSTED_CERTIFICATE" => FailedPrecondition,
    HostKeyChanged = "HOST_KEY_CHANGED" => FailedPrecondition,
    /// What answers is another machine than the one in our records.
    WrongMachine = "WRONG_MACHINE" => FailedPrecondition,
    /// It let us in, and our account there may not do that.
    PermissionMissing = "PERMISSION_MISSING" => FailedPrecondition,
    /// What it keeps of the machine is in a state that forbids it, or is gone. Look again before anything else.
    WrongState = "WRONG_STATE" => FailedPrecondition,
    /// It answered, and the answer was no.
    ProviderRefused = "PROVIDER_REFUSED" => FailedPrecondition,
    ClusterMissing = "CLUSTER_MISSING" => FailedPrecondition,
    /// An operator has stopped all automation.
    Frozen = "FROZEN" => FailedPrecondition,
    NotConfirmed = "NOT_CONFIRMED" => FailedPrecondition,
    /// Without it nobody could administer the fleet.
    LastAdmin = "LAST_ADMIN" => FailedPrecondition,
    VersionMismatch = "VERSION_MISMATCH" => Aborted,
    /// Two writers met; trying again is safe and will do.
    Contention = "CONTENTION" => Aborted,
    /// Somebody is doing something to the machine right now; it is free again in a moment.
    MachineHeld = "MACHINE_HELD" => Aborted,
    SequenceOutOfRange = "SEQUENCE_OUT_OF_RANGE" => OutOfRange,
    LimitReached = "LIMIT_REACHED" => ResourceExhausted,
    /// Too many calls of one caller in a short time.
    RateLimited = "RATE_LIMITED" => ResourceExhausted,
    QueueFull = "QUEUE_FULL" => ResourceExhausted,
    StorageFull = "STORAGE_FULL" => ResourceExhausted,
    /// Too many calls to one BMC or host at once.
    EndpointBusy = "ENDPOINT_BUSY" => ResourceExhausted,
    StoreUnavailable = "STORE_UNAVAILABLE" => Unavailable,
    /// Nothing answers at an address: no route, no name, no answer in time.
    Unreachable = "UNREACHABLE" => Unavailable,
    /// Something is there, and lets nobody in at that port.
    ConnectionRefused = "CONNECTION_REFUSED" => Unavailable,
    /// It failed so often that it is left alone for a while.
    CircuitOpen = "CIRCUIT_OPEN" => Unavailable,
    /// It answered with something that is no answer.
    BadAnswer = "BAD_ANSWER" => Unavailable,
    /// It was told, and has not answered: it may have been done.
    ProviderSilent = "PROVIDER_SILENT" => Unavailable,
    /// A commit was sent and its answer lost. Repeating the call is safe and tells.
    OutcomeUnknown = "OUTCOME_UNKNOWN" => Unavailable,
    ShuttingDown = "SHUTTING_DOWN" => Unavailable,
    DeadlineExceeded = "DEADLINE_EXCEEDED" => DeadlineExceeded,
    /// REST: something stands at that path, but not for that method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED" => Unimplemented,
    Internal = "INTERNAL" => Internal,
}

impl Reason {
    /// As conditions spell it: `LoginRefused` for `LOGIN_REFUSED`.
    pub fn word(self) -> String {
        let capital = |part: &str| {
            let (first, rest) = part.split_at(1);
            format!("{first}{}", rest.to_ascii_lowercase())
        };
        self.as_str().split('_').map(capital).collect()
    }
}

impl Code {
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::Unauthenticated => "UNAUTHENTICATED",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::Unavailable => "UNAVAILABLE",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
        }
    }
}

/// What went wrong, to whom, and what is allowed instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub reason: Reason,
    /// What was being done, to what, why it failed and what can be done now.
    pub message: String,
    /// The legal alternatives, where there are any (the next states, the known names).
    pub allowed: Vec<String>,
    /// Facts for scripts: the field at fault, the run in the way.
    pub details: BTreeMap<String, String>,
}

impl Error {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), allowed: Vec::new(), details: BTreeMap::new() }
    }

    /// A request field that is missing or malformed.
    pub fn field(field: &str, problem: impl fmt::Display) -> Self {
        // a caller can send a field without a name, and is told of it by one
        let field = if field.is_empty() { "\"\"" } else { field };
        Self::new(Reason::InvalidField, format!("{field}: {problem}")).with("field", field)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    #[must_use]
    pub fn allowing<T: fmt::Display>(mut self, allowed: impl IntoIterator<Item = T>) -> Self {
        self.allowed = allowed.into_iter().map(|a| a.to_string()).collect();
        self
    }

    pub fn code(&self) -> Code {
        self.reason.code()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_unique_and_spelt_for_scripts() {
        let mut seen = std::collections::HashSet::new();
        for reason in Reason::ALL {
            let text = reason.as_str();
            assert!(seen.insert(text), "{text} stands twice");
            assert!(text.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{text}");
        }
    }
}
