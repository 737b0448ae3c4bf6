//! How a command ends: one error type, its exit code, and what is said about it on stderr.

use super::output::Format;
use api::code_name;
use std::error::Error as _;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// The exit codes of the client; 0 to 6 are contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Failed,
    Usage,
    NotFound,
    Refused,
    Denied,
    Unreachable,
    /// The reader of our output has gone, as `head` does: nothing to say, nothing went wrong.
    ReaderGone,
    /// Ctrl-C while waiting.
    Interrupted,
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Exit::ReaderGone => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Refused => 4,
            Exit::Denied => 5,
            Exit::Unreachable => 6,
            Exit::Interrupted => 130,
        }
    }

    /// What a server's answer means for a script.
    pub const fn of(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
            Code::NotFound => Exit::NotFound,
            Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => Exit::Refused,
            Code::Unauthenticated | Code::PermissionDenied => Exit::Denied,
            Code::Unavailable => Exit::Unreachable,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss => Exit::Failed,
        }
    }

    /// The word for it where a server gave none, spelt as servers spell theirs.
    const fn word(self) -> &'static str {
        match self {
            Exit::ReaderGone | Exit::Failed => "UNKNOWN",
            Exit::Usage => "INVALID_ARGUMENT",
            Exit::NotFound => "NOT_FOUND",
            Exit::Refused => "FAILED_PRECONDITION",
            Exit::Denied => "UNAUTHENTICATED",
            Exit::Unreachable => "UNAVAILABLE",
            Exit::Interrupted => "CANCELLED",
        }
    }
}

/// What went wrong, why, what is allowed instead, and what to type next.
#[derive(Debug)]
pub struct CliError {
    exit: Exit,
    code: &'static str,
    message: String,
    reason: Option<String>,
    allowed: Vec<String>,
    hint: Option<String>,
}

impl CliError {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, code: exit.word(), message: message.into(), reason: None, allowed: Vec::new(), hint: None }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Exit::Denied, message)
    }

    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, message)
    }

    pub fn interrupted(message: impl Into<String>) -> Self {
        Self::new(Exit::Interrupted, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The stable reason, where one is known.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// What could be said instead.
    #[must_use]
    pub fn allowing<T: fmt::Display>(mut self, allowed: impl IntoIterator<Item = T>) -> Self {
        self.allowed = allowed.into_iter().map(|word| word.to_string()).collect();
        self
    }

    /// Whether a server gave it a reason, so that there is nothing to guess.
    pub fn is_an_answer(&self) -> bool {
        self.reason.is_some()
    }

    /// Whether the server does not know the call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == code_name(Code::Unimplemented)
    }

    /// What to type next.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// For commands whose exit code is the outcome of a run: an unread output is no success.
    #[must_use]
    pub fn outcome_unknown(mut self) -> Self {
        if self.exit == Exit::ReaderGone {
            self.exit = Exit::Failed;
        }
        self
    }

    /// What is said on stderr, line by line.
    fn lines(&self) -> Vec<String> {
        if self.message.is_empty() {
            return Vec::new();
        }
        let opening = if self.exit == Exit::Interrupted { "" } else { "error: " };
        let mut lines = vec![format!("{opening}{}", self.message)];
        lines.extend(self.reason.iter().map(|reason| format!("reason: {reason}")));
        if !self.allowed.is_empty() {
            lines.push(format!("allowed: {}", self.allowed.join(", ")));
        }
        lines.extend(self.hint.iter().map(|hint| format!("hint: {hint}")));
        lines
    }

    /// The same for a script: one object on one line, its keys as in the API's errors.
    fn json(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let or_null = |text: Option<&str>| text.map_or_else(|| "null".to_owned(), quoted);
        let allowed: Vec<String> = self.allowed.iter().map(|word| quoted(word)).collect();
        format!(
            r#"{{"error":{{"code":{},"reason":{},"message":{},"allowed":[{}],"hint":{}}}}}"#,
            quoted(self.code),
            or_null(self.reason.as_deref()),
            quoted(self.message.trim()),
            allowed.join(","),
            or_null(self.hint.as_deref()),
        )
    }

    /// Says it, as JSON where JSON was asked for, and turns it into the exit code. A stderr that is closed
    /// changes nothing.
    pub fn report(&self, format: Format) -> ExitCode {
        let lines = match format {
            Format::Json if !self.message.is_empty() => vec![self.json()],
            Format::Json | Format::Table | Format::Wide | Format::Yaml | Format::Name => self.lines(),
        };
        if !lines.is_empty() {
            std::io::stderr().lock().write_all(format!("{}\n", lines.join("\n")).as_bytes()).ok();
        }
        ExitCode::from(self.exit.code())
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

/// Writing the output failed. A pipe closed by its reader is not an error.
impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Exit::ReaderGone, ""),
            _ => Self::failed(format!("writing the output: {error}")),
        }
    }
}

impl From<Status> for CliError {
    fn from(status: Status) -> Self {
        if let Some(cause) = transport_cause(&status) {
            return Self::unreachable(format!("the connection to the server failed: {cause}"))
                .hint("what was asked may or may not have happened; look before you repeat it");
        }
        let mut error = Self::new(Exit::of(status.code()), status.message());
        error.code = code_name(status.code());
        if error.message.is_empty() {
            error.message = status.code().description().to_owned();
        }
        if let Some(info) = status.get_details_error_info() {
            error.allowed = info.metadata.get("allowed").map(|list| split(list)).unwrap_or_default();
            let run = ["run_id", "active_run_id", "run"].iter().find_map(|key| info.metadata.get(*key));
            error.hint = hint_for(&info.reason, run.map(String::as_str));
            error.reason = Some(info.reason).filter(|reason| !reason.is_empty());
        }
        if error.hint.is_none() {
            error.hint = match status.code() {
                Code::Unauthenticated => Some(TOKEN_HINT.to_owned()),
                Code::PermissionDenied => {
                    Some("this token's role does not allow it (`millwright me` tells which it has)".to_owned())
                }
                Code::Unimplemented => {
                    Some("the server does not know this call; `millwright doctor` compares the versions".to_owned())
                }
                _ => None,
            };
        }
        error
    }
}

/// What the domain refuses here is what the server would refuse.
impl From<&domain::Error> for CliError {
    fn from(error: &domain::Error) -> Self {
        let code = api::to_status(error.clone()).code();
        let mut own = Self::new(Exit::of(code), error.message.clone()).because(error.reason.as_str());
        own.code = code_name(code);
        own.hint = hint_for(error.reason.as_str(), error.details.get("run_id").map(String::as_str));
        own.allowing(&error.allowed)
    }
}

/// How to give a token.
pub const TOKEN_HINT: &str = "give a token by MILLWRIGHT_TOKEN, --token-file PATH or `millwright context set`; \
     `serve` writes the first one to DATA/admin.token";

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The next command, where the stable reason of a refusal tells which.
fn hint_for(reason: &str, run: Option<&str>) -> Option<String> {
    let text = match reason {
        "INVALID_FIELD" => "the command's --help tells what it takes",
        "INVALID_FILTER" => "write it like 'phase=READY AND labels.env=prod'",
        "INVALID_PAGE_TOKEN" => "list again from the beginning",
        "INVALID_PLAN" => "millwright plan create --help shows a plan",
        "UNKNOWN_RUN_TYPE" => "millwright run start --help",
        "TOKEN_MISSING" | "TOKEN_INVALID" => TOKEN_HINT,
        "TOKEN_EXPIRED" | "TOKEN_REVOKED" => "an administrator makes another: millwright token create NAME --role ROLE",
        "ROLE_TOO_LOW" => "millwright me tells which role this token has; an administrator can make another",
        "OUT_OF_SCOPE" => "millwright me tells whose machines this token is for",
        "MACHINE_NOT_FOUND" => "millwright machine list",
        "RUN_NOT_FOUND" => "millwright run list",
        "PLAN_NOT_FOUND" => "millwright plan list",
        "EXECUTION_NOT_FOUND" => "millwright engine list",
        "TOKEN_NOT_FOUND" => "millwright token list",
        "CREDENTIAL_NOT_FOUND" => {
            "millwright credential list; an administrator adds one: millwright credential set --help"
        }
        "REPORT_TOKEN_INVALID" => "a machine's report carries the token of its own attempt: let it boot again",
        "BOOTSTRAP_TOKEN_INVALID" => {
            "a bundle is good once, for one key: make another with 'millwright node rebootstrap NODE'"
        }
        "AGENT_CERTIFICATE_REFUSED" | "REVOKED" => {
            "an agent that is not taken any more needs a new bundle: 'millwright node rebootstrap NODE'"
        }
        "BOOT_NODE_NOT_FOUND" => "millwright boot list",
        "WORKFLOW_NOT_FOUND" => "millwright workflow list",
        "FINDING_NOT_FOUND" => "millwright finding list --filter 'state=resolved' has those that are settled",
        "IMAGE_NOT_FOUND" => "millwright image list",
        "SITE_NOT_FOUND" => "millwright site list",
        "SITE_MACHINE_NOT_FOUND" => "millwright site machines SITE",
        "SITE_EXISTS" => "millwright site edit NAME changes it; millwright site show NAME tells what is there",
        "SITE_IN_USE" => "millwright node list --filter 'maas_site=NAME' shows its nodes",
        "NODE_NOT_FOUND" => "millwright node list --view all",
        "JOB_NOT_FOUND" => "millwright job list",
        "TASK_NOT_FOUND" => "millwright task list",
        "NODE_EXISTS" => "millwright node show NAME tells which one it is; choose another name, or remove that one",
        "NODE_HELD" => "millwright why NODE tells which job holds it, and what can be done about that",
        "ACTIVE_TASK" => "millwright task list --filter 'status=dispatched' shows it; an agent takes one at a time",
        "ACTION_NOT_ALLOWED" => "millwright why ID tells what is allowed now, and why not; --dry-run what would happen",
        "MODE_UNAVAILABLE" => "millwright node decommission --help tells the modes that there are",
        "AGENT_MISSING" => "millwright node show NODE tells how its agent stands; millwright node rebootstrap NODE",
        "WORKFLOW_EXISTS" => "a workflow never changes once created; choose another id",
        "WORKFLOW_MISSING" => "millwright boot assign NODE --workflow ID (millwright workflow list)",
        "IMAGE_IN_USE" => "workflows never change: an image that one names stays",
        "FORCE_NEEDED" => "millwright boot retry NODE --workflow ID, or with --comment to say why this one will do now",
        "MACHINE_IN_USE" => "millwright why ID tells who uses it, and what can be done",
        "INSTALL_FAILED" => "millwright boot show NODE has the installer's last lines",
        "CREDENTIAL_IN_USE" => "millwright machine update ID --credentials-ref NAMES, or repeat it with --force",
        "CREDENTIAL_MISSING" => "millwright machine update ID --credentials-ref NAMES (millwright credential list)",
        "SECRET_KEY_UNAVAILABLE" => "millwright doctor on the server tells which keys it has and which it needs",
        "LOGIN_REFUSED" => {
            "store the login that it takes: millwright credential set NAME --kind KIND --username USER; until then it is not tried again and again"
        }
        "UNTRUSTED_CERTIFICATE" | "HOST_KEY_CHANGED" => {
            "make sure that it is the right machine; if it was replaced on purpose: millwright machine repin ID"
        }
        "WRONG_MACHINE" => {
            "its endpoint leads to another machine than the record says: compare millwright machine show ID, then update its --bmc or --ssh"
        }
        "PERMISSION_MISSING" => "give our account there the right that the message names, or store another login",
        "WRONG_STATE" => "somebody else has moved it: millwright machine inspect ID tells how it stands now",
        "PROVIDER_REFUSED" | "BAD_ANSWER" => {
            "millwright machine inspect ID tells how it stands; its own log may say more: millwright machine bmc-log ID"
        }
        "PROVIDER_SILENT" => "it may have been done: look with millwright machine inspect ID before you repeat it",
        "UNREACHABLE" | "CONNECTION_REFUSED" => {
            "check its address, its network and its power; millwright machine show ID tells what was seen of it"
        }
        "MACHINE_HELD" => {
            "wait a moment and repeat; millwright why ID tells who holds it, and until when at the latest"
        }
        "CIRCUIT_OPEN" | "ENDPOINT_BUSY" => "wait a moment and repeat: it is left alone meanwhile",
        "ID_NOT_FOUND" => {
            "millwright machine list, run list, node list, job list, plan list, engine list and token list tell the ids"
        }
        "IDENTITY_TAKEN" => "no two machines share a MAC, serial or UUID; look at the one that is named",
        "PLAN_EXISTS" => "a plan never changes once created; choose another plan_id",
        "REQUEST_ID_REUSED" | "IDEMPOTENCY_KEY_REUSED" => {
            "this --request-id was used for another request; choose another or leave it out"
        }
        "ACTIVE_RUN" => {
            return run.map(|run| format!("millwright run watch {run}, or: millwright run cancel {run}"));
        }
        "ILLEGAL_TRANSITION" | "NOT_YOUR_TRANSITION" | "PHASE_FORBIDS_RUN" | "NOT_CONFIRMED" => {
            "millwright why ID tells what is allowed now, and why not"
        }
        "MACHINE_RETIRED" => "register it anew if it is back: millwright machine register",
        "RUN_ALREADY_ENDED" => "millwright run show ID tells how it ended",
        "PROVIDER_UNKNOWN" => {
            "the server's configuration names the providers; millwright machine update ID --provider NAME"
        }
        "CAPABILITY_MISSING" => {
            "its provider or its hardware does not offer it: millwright machine inspect ID lists what it does, millwright plan list other plans"
        }
        "CLUSTER_MISSING" => {
            "millwright cluster list tells those there are; a machine names its own: millwright machine update ID --cluster REF, or start with --param cluster_ref=REF"
        }
        "FROZEN" => "millwright freeze --show tells who and why; millwright unfreeze lets it go on",
        "LAST_ADMIN" => "make another administrator first: millwright token create NAME --role admin",
        "VERSION_MISMATCH" => "somebody else changed it; look at it again with `show` and repeat",
        "CONTENTION" => "two changes met; repeating the command is safe",
        "SEQUENCE_OUT_OF_RANGE" => "leave --after out to start from the present",
        "LIMIT_REACHED" | "RATE_LIMITED" | "QUEUE_FULL" => "wait a moment and repeat, or ask for less at once",
        "STORAGE_FULL" => "make room on the server's disk; millwright doctor tells where",
        "OUTCOME_UNKNOWN" => "repeating the same call is safe and tells what happened",
        "SHUTTING_DOWN" | "STORE_UNAVAILABLE" | "DEADLINE_EXCEEDED" => "wait a moment and repeat",
        "NO_SUCH_PATH" | "METHOD_NOT_ALLOWED" => "the server is of another version; millwright doctor compares them",
        "INTERNAL" => "this is a defect; the server's log has more",
        _ => return None,
    };
    Some(text.to_owned())
}

/// The innermost cause, when the failure is the connection's and not the server's answer.
pub fn transport_cause(status: &Status) -> Option<String> {
    // A status that came over the wire has no source; one made up by the transport has.
    let mut cause = status.source()?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Some(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    fn refusal(code: Code, reason: &str, metadata: &[(&str, &str)]) -> CliError {
        let metadata: std::collections::HashMap<String, String> =
            metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let details = ErrorDetails::with_error_info(reason, "millwright", metadata);
        Status::with_error_details(code, "it cannot be", details).into()
    }

    #[test]
    fn codes_map_as_promised() {
        for (code, exit) in [
            (Code::Unknown, 1),
            (Code::Internal, 1),
            (Code::ResourceExhausted, 1),
            (Code::DeadlineExceeded, 1),
            (Code::InvalidArgument, 2),
            (Code::NotFound, 3),
            (Code::FailedPrecondition, 4),
            (Code::AlreadyExists, 4),
            (Code::Aborted, 4),
            (Code::Unauthenticated, 5),
            (Code::PermissionDenied, 5),
            (Code::Unavailable, 6),
        ] {
            assert_eq!(CliError::from(Status::new(code, "x")).exit().code(), exit, "{code:?}");
        }
    }

    #[test]
    fn a_refusal_names_what_is_allowed() {
        let error = refusal(Code::FailedPrecondition, "ILLEGAL_TRANSITION", &[("allowed", "READY, RMA,")]);
        let lines = error.lines();
        assert_eq!(lines[..3], ["error: it cannot be", "reason: ILLEGAL_TRANSITION", "allowed: READY, RMA"]);
    }

    /// Every reason that the catalogue knows leads on to something.
    #[test]
    fn every_reason_has_a_next_step() {
        for reason in domain::Reason::ALL {
            assert!(hint_for(reason.as_str(), Some("run_1")).is_some(), "{}", reason.as_str());
        }
    }

    #[test]
    fn an_active_run_is_named_in_the_next_command() {
        let error = refusal(Code::FailedPrecondition, "ACTIVE_RUN", &[("run_id", "run_7")]);
        assert!(error.lines().iter().any(|line| line.contains("millwright run watch run_7")), "{:?}", error.lines());
    }

    #[test]
    fn for_a_script_an_error_is_one_object() {
        let error = refusal(Code::FailedPrecondition, "ACTIVE_RUN", &[("run_id", "run_7"), ("allowed", "A,B")]);
        let value: serde_json::Value = serde_json::from_str(&error.json()).expect("JSON");
        let error = &value["error"];
        assert_eq!(
            (error["code"].as_str(), error["reason"].as_str()),
            (Some("FAILED_PRECONDITION"), Some("ACTIVE_RUN"))
        );
        assert_eq!(error["allowed"], serde_json::json!(["A", "B"]));
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("run_7")));
        let own = CliError::usage("a \"quoted\" word").json();
        assert_eq!(
            own,
            r#"{"error":{"code":"INVALID_ARGUMENT","reason":null,"message":"a \"quoted\" word","allowed":[],"hint":null}}"#
        );
    }

    #[test]
    fn a_closed_pipe_is_silent_unless_the_exit_code_is_an_outcome() {
        let closed = || CliError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((closed().exit().code(), closed().lines().len()), (0, 0));
        assert_eq!(closed().outcome_unknown().exit().code(), 1);
    }

    #[test]
    fn an_empty_message_still_says_something() {
        assert!(!CliError::from(Status::new(Code::NotFound, "")).to_string().is_empty());
    }
}
