//! Errors as REST tells them: the same code, reason, sentence, details and alternatives as through the
//! other door, in one JSON object, with the HTTP status that belongs to the code.

use axum::response::Response;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use std::collections::BTreeMap;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

#[derive(Serialize)]
struct Envelope<'a> {
    error: Told<'a>,
}

#[derive(Serialize)]
struct Told<'a> {
    code: &'static str,
    reason: String,
    message: &'a str,
    details: BTreeMap<String, String>,
    allowed: Vec<String>,
}

/// The name of a code in the API, and its HTTP status. What is in no catalogue is our own defect.
fn spelt(code: Code) -> (&'static str, StatusCode) {
    match code {
        Code::InvalidArgument => ("INVALID_ARGUMENT", StatusCode::BAD_REQUEST),
        Code::OutOfRange => ("OUT_OF_RANGE", StatusCode::BAD_REQUEST),
        Code::Unauthenticated => ("UNAUTHENTICATED", StatusCode::UNAUTHORIZED),
        Code::PermissionDenied => ("PERMISSION_DENIED", StatusCode::FORBIDDEN),
        Code::NotFound => ("NOT_FOUND", StatusCode::NOT_FOUND),
        Code::AlreadyExists => ("ALREADY_EXISTS", StatusCode::CONFLICT),
        Code::FailedPrecondition => ("FAILED_PRECONDITION", StatusCode::CONFLICT),
        Code::Aborted => ("ABORTED", StatusCode::CONFLICT),
        Code::ResourceExhausted => ("RESOURCE_EXHAUSTED", StatusCode::TOO_MANY_REQUESTS),
        Code::Unavailable => ("UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE),
        Code::DeadlineExceeded => ("DEADLINE_EXCEEDED", StatusCode::GATEWAY_TIMEOUT),
        Code::Unimplemented => ("UNIMPLEMENTED", StatusCode::NOT_IMPLEMENTED),
        Code::Internal | Code::Ok | Code::Cancelled | Code::Unknown | Code::DataLoss => {
            ("INTERNAL", StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// The codes and their HTTP statuses, for the documentation.
pub(crate) fn table() -> Vec<(&'static str, u16)> {
    let mut all: Vec<(&str, u16)> = (0..17).map(|n| spelt(Code::from(n))).map(|(name, s)| (name, s.as_u16())).collect();
    all.sort_by_key(|(name, status)| (*status, *name));
    all.dedup();
    all
}

/// The error object, on one line.
pub(crate) fn object(status: &Status) -> Vec<u8> {
    let (code, _) = spelt(status.code());
    let info = status.get_error_details().error_info().cloned();
    let (reason, mut metadata) = match info {
        Some(info) => (info.reason, info.metadata),
        // refused by the transport, which has no catalogue
        None => (code.to_owned(), Default::default()),
    };
    let allowed = metadata.remove("allowed").unwrap_or_default();
    let allowed = allowed.split(',').map(str::trim).filter(|a| !a.is_empty()).map(str::to_owned).collect();
    let details = metadata.into_iter().collect();
    let told = Told { code, reason, message: status.message(), details, allowed };
    serde_json::to_vec(&Envelope { error: told }).unwrap_or_default()
}

/// The answer to a request that failed.
pub(crate) fn response(status: &Status) -> Response {
    let (_, http) = spelt(status.code());
    let mut response = super::json(http, object(status));
    let headers = response.headers_mut();
    if http == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let wait = status.get_error_details().retry_info().and_then(|r| r.retry_delay);
    if let Some(wait) = wait {
        // whole seconds, and never too early
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + u64::from(wait.subsec_nanos() > 0)));
    }
    super::call::carry_back(status.metadata(), headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::to_status;
    use domain::{Error, Reason};
    use serde_json::{Value, json};

    fn read(status: &Status) -> Value {
        serde_json::from_slice(&object(status)).expect("JSON")
    }

    #[test]
    fn every_reason_has_its_status_and_its_words() {
        for reason in Reason::ALL {
            let error = Error::new(*reason, "what was done").with("field", "f").allowing(["a", "b c"]);
            let status = to_status(error);
            let expected = json!({"error": {"code": reason.code().as_str(), "reason": reason.as_str(),
                "message": "what was done", "details": {"field": "f"}, "allowed": ["a", "b c"]}});
            assert_eq!(read(&status), expected);
            assert!(response(&status).status().as_u16() >= 400);
        }
    }

    #[test]
    fn the_transports_own_words_have_the_same_shape() {
        let expected = json!({"error": {"code": "UNIMPLEMENTED", "reason": "UNIMPLEMENTED", "message": "soon",
            "details": {}, "allowed": []}});
        assert_eq!(read(&Status::unimplemented("soon")), expected);
        assert_eq!(read(&Status::unknown("?"))["error"]["code"], "INTERNAL");
    }

    #[test]
    fn a_long_list_is_cut_between_its_items() {
        let names: Vec<String> = (0..500).map(|n| format!("name-{n}")).collect();
        let allowed =
            read(&to_status(Error::field("f", "unknown").allowing(names.clone())))["error"]["allowed"].clone();
        let allowed: Vec<String> = serde_json::from_value(allowed).expect("a list");
        let (last, whole) = allowed.split_last().expect("items");
        assert_eq!(last, "…");
        assert!(whole.len() > 100 && whole == &names[..whole.len()]);
    }

    #[test]
    fn headers_say_what_to_do_next() {
        let waits = response(&to_status(Error::new(Reason::QueueFull, "full")));
        assert_eq!(waits.headers()[RETRY_AFTER], "1");
        let stranger = response(&to_status(Error::new(Reason::TokenMissing, "no token")));
        assert_eq!(stranger.headers()[WWW_AUTHENTICATE], "Bearer");
        assert!(!stranger.headers().contains_key(RETRY_AFTER));
    }
}
