//! The one error catalogue on the wire: a gRPC code, the sentence, and `google.rpc.ErrorInfo` with the
//! stable reason, the details and the legal alternatives.

use domain::limits::short;
use domain::{Code, Error, Reason};
use std::collections::HashMap;
use std::time::Duration;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt as _};

/// Who speaks, in `ErrorInfo.domain`.
const DOMAIN: &str = "millwright";
/// What to wait before trying again, where that may help.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bytes of the list of what is allowed: errors travel in headers.
const ALLOWED_MAX: usize = 2048;

fn code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::NotFound => tonic::Code::NotFound,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::Aborted => tonic::Code::Aborted,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::Unimplemented => tonic::Code::Unimplemented,
        Code::Internal => tonic::Code::Internal,
    }
}

/// A code as its name is spelt in gRPC.
pub const fn code_name(code: tonic::Code) -> &'static str {
    match code {
        tonic::Code::Ok => "OK",
        tonic::Code::Cancelled => "CANCELLED",
        tonic::Code::Unknown => "UNKNOWN",
        tonic::Code::InvalidArgument => "INVALID_ARGUMENT",
        tonic::Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        tonic::Code::NotFound => "NOT_FOUND",
        tonic::Code::AlreadyExists => "ALREADY_EXISTS",
        tonic::Code::PermissionDenied => "PERMISSION_DENIED",
        tonic::Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        tonic::Code::FailedPrecondition => "FAILED_PRECONDITION",
        tonic::Code::Aborted => "ABORTED",
        tonic::Code::OutOfRange => "OUT_OF_RANGE",
        tonic::Code::Unimplemented => "UNIMPLEMENTED",
        tonic::Code::Internal => "INTERNAL",
        tonic::Code::Unavailable => "UNAVAILABLE",
        tonic::Code::DataLoss => "DATA_LOSS",
        tonic::Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Back again, for what must be known of an answer after it was given. `None`: it was no error of ours.
pub(crate) fn from_status(status: &Status) -> Option<Error> {
    let info = status.get_details_error_info()?;
    let reason = Reason::ALL.iter().copied().find(|r| r.as_str() == info.reason)?;
    Some(Error::new(reason, status.message()))
}

/// With commas between, and cut between items: half a name is none.
fn listed(items: &[String]) -> String {
    let mut list = String::new();
    for item in items {
        let comma = if list.is_empty() { "" } else { "," };
        if list.len() + item.len() > ALLOWED_MAX {
            list.push_str(comma);
            list.push('…');
            break;
        }
        list.push_str(comma);
        list.push_str(item);
    }
    list
}

pub fn to_status(mut e: Error) -> Status {
    // errors travel in headers, which clients bound; what a caller sent is not sent back at length
    e.message = short(&e.message);
    let mut metadata: HashMap<String, String> = e.details.iter().map(|(k, v)| (k.clone(), short(v))).collect();
    if !e.allowed.is_empty() {
        metadata.insert("allowed".to_owned(), listed(&e.allowed));
    }
    let mut details = ErrorDetails::with_error_info(e.reason.as_str(), DOMAIN, metadata);
    if e.code() == Code::InvalidArgument {
        let field = e.details.get("field").map(|field| short(field)).unwrap_or_default();
        details.add_bad_request_violation(field, e.message.clone());
    }
    // where waiting helps: what is too large stays so
    match (e.code(), e.reason) {
        (_, Reason::VersionMismatch | Reason::LimitReached) => {}
        (Code::Unavailable | Code::ResourceExhausted | Code::Aborted, _) => {
            details.set_retry_info(Some(RETRY_AFTER));
        }
        _ => {}
    }
    Status::with_error_details(code(e.code()), e.message, details)
}
