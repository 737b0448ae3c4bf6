//! What the transport refuses before any handler sees it, said in the terms of the one error catalogue.

use crate::error::to_status;
use axum::body::Body;
use axum::response::Response;
use domain::{Error, Reason};
use tonic::{Code, Status};

/// Turns the transport's own words about a request that does not read, or is too large, into ours.
pub(crate) async fn in_our_terms(response: Response) -> Response {
    match Status::from_header_map(response.headers()).as_ref().and_then(translate) {
        Some(error) => to_status(error).into_http::<Body>(),
        None => response,
    }
}

fn translate(status: &Status) -> Option<Error> {
    let message = status.message();
    match status.code() {
        // what we say ourselves has details; without them it is the transport that could not read
        Code::Internal if status.details().is_empty() => {
            Some(Error::new(Reason::InvalidField, format!("the request does not read: {message}")))
        }
        Code::OutOfRange if message.contains("message length too large") => {
            Some(Error::new(Reason::LimitReached, format!("the request is too large: {message}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unreadable_requests_are_the_callers_fault() {
        let read = |response: Response| Status::from_header_map(response.headers()).map(|s| s.code());
        let bad = Status::internal("failed to decode Protobuf message: Machine.labels: invalid string value");
        assert_eq!(read(in_our_terms(bad.into_http()).await), Some(Code::InvalidArgument));
        let large =
            Status::out_of_range("Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes");
        assert_eq!(read(in_our_terms(large.into_http()).await), Some(Code::ResourceExhausted));
        let unsaid = Status::internal("Missing request message.");
        assert_eq!(read(in_our_terms(unsaid.into_http()).await), Some(Code::InvalidArgument));
        let other = to_status(Error::internal("an internal error in the store"));
        assert_eq!(read(in_our_terms(other.into_http()).await), Some(Code::Internal), "a defect stays a defect");
    }
}
