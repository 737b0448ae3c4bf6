//! The one gate that every call passes, through whichever door: who is it, may it, is it within its
//! share, how long may it take; and what is refused is put on record.

use crate::error::{from_status, to_status};
use crate::sight::{REQUEST_ID, RequestId};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use domain::{Error, Reason};
use prost::Message;
use service::access_table::{Effect, PATHS, Rule, rule_of};
use service::{Call, Principal, Service, check_key};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// The longest a call with one answer may take; a caller can only ask for less (`grpc-timeout`).
const CALL_MAX: Duration = Duration::from_secs(60);
const KEY_HEADER: &str = "x-idempotency-key";

/// Middleware in front of all gRPC services.
pub(crate) async fn gate(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if PATHS.iter().any(|(open, role)| role.is_none() && path.starts_with(open)) {
        return next.run(request).await;
    }
    if let Err(e) = service.takes_calls() {
        return refuse(e);
    }
    let rule = rule_of(path.trim_start_matches('/'));
    let request_id = RequestId::text(request.extensions());
    // through the other door it is known already who asks
    let by = match request.extensions_mut().remove::<Arc<Principal>>() {
        Some(by) => Ok(by),
        None => authenticate(&service, request.headers(), rule.map_or("", |r| r.call)).await,
    };
    let by = match by {
        Ok(by) => by,
        Err(e) => return refuse(e),
    };
    // reflection, or a call that nobody serves: the router says so
    let Some(rule) = rule else { return next.run(request).await };
    let (key, within) = match admit(&by, rule, request.headers()) {
        Ok(admitted) => admitted,
        Err(e) => {
            let call = Call::new(by, rule.call, request_id, None);
            service.audit_refusal(&call, rule, &e).await;
            return refuse(e);
        }
    };
    let call = Arc::new(Call::new(by, rule.call, request_id, key));
    request.extensions_mut().insert(call.clone());
    // of a stream this is the time until it begins: reading on is up to the caller
    let response = match tokio::time::timeout(within, next.run(request)).await {
        Ok(response) => response,
        Err(_) => return refuse(out_of_time(rule, within)),
    };
    if let Some(error) = Status::from_header_map(response.headers()).and_then(|s| from_status(&s)) {
        service.audit_refusal(&call, rule, &error).await;
    }
    response
}

/// Puts on record what was refused before it could become a call: a REST request that does not read.
pub(crate) async fn refused_before(service: &Service, by: Arc<Principal>, rule: &Rule, parts: &Parts, error: &Error) {
    service.audit_refusal(&Call::new(by, rule.call, RequestId::text(&parts.extensions), None), rule, error).await;
}

fn refuse(e: Error) -> Response {
    to_status(e).into_http::<Body>()
}

/// The caller behind a request's headers. Strangers are put on record, some of them.
pub(crate) async fn authenticate(service: &Service, headers: &HeaderMap, call: &str) -> Result<Arc<Principal>, Error> {
    // not text: malformed, which the access check says
    let value = headers.get("authorization").map(|value| value.to_str().unwrap_or(""));
    let known = service.access().authenticate(value).await;
    if let Err(e) = &known {
        service
            .audit_stranger(call, headers.get(REQUEST_ID).and_then(|v| v.to_str().ok()).unwrap_or_default(), e)
            .await;
    }
    known
}

/// Whether the caller may, with which key, and how long it may take.
fn admit(by: &Principal, rule: &Rule, headers: &HeaderMap) -> Result<(Option<String>, Duration), Error> {
    by.may(rule)?;
    let key = match headers.get(KEY_HEADER) {
        // reading twice is reading twice
        Some(value) if rule.effect == Effect::Changes => {
            let key = value.to_str().unwrap_or("").to_owned();
            check_key(&key)?;
            Some(key)
        }
        Some(_) | None => None,
    };
    Ok((key, deadline(headers)?.map_or(CALL_MAX, |asked| asked.min(CALL_MAX))))
}

/// What `grpc-timeout` asks for: up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Error> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    let parsed = text.char_indices().last().and_then(|(at, unit)| {
        let (digits, _) = text.split_at(at);
        let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        match unit {
            'H' => Some(Duration::from_secs(number * 3600)),
            'M' => Some(Duration::from_secs(number * 60)),
            'S' => Some(Duration::from_secs(number)),
            'm' => Some(Duration::from_millis(number)),
            'u' => Some(Duration::from_micros(number)),
            'n' => Some(Duration::from_nanos(number)),
            _ => None,
        }
    });
    parsed.map(Some).ok_or_else(|| Error::field("grpc-timeout", format!("{text:?} is not a time-out like 5S or 100m")))
}

fn out_of_time(rule: &Rule, within: Duration) -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        format!("{} did not end within {} ms; what it began may still be done", rule.call, within.as_millis()),
    )
}

/// What a handler begins with: the call as the gate has let it in, and its message.
pub(crate) fn open<T: Message>(
    request: tonic::Request<T>,
    about: impl Fn(&T) -> &str,
) -> Result<(Arc<Call>, T), Status> {
    let (call, message) = open_unhashed(request, about)?;
    if call.idempotency_key.is_some() {
        call.asks(&message.encode_to_vec());
    }
    Ok((call, message))
}

/// The same for a message of which no hash may be kept: the use case says what was asked for.
pub(crate) fn open_unhashed<T>(
    request: tonic::Request<T>,
    about: impl Fn(&T) -> &str,
) -> Result<(Arc<Call>, T), Status> {
    let call = request.extensions().get::<Arc<Call>>().cloned();
    let call = call.ok_or_else(|| to_status(Error::internal("a call that did not pass the gate")))?;
    call.not_revoked().map_err(to_status)?;
    let message = request.into_inner();
    call.about(about(&message));
    Ok((call, message))
}

/// For calls that are about nothing in particular.
pub(crate) fn nothing<T>(_: &T) -> &str {
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("a header"));
            deadline(&headers).map_err(|e| e.reason)
        };
        assert_eq!(deadline(&HeaderMap::new()), Ok(None));
        assert_eq!(read("250m"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(read("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        for bad in ["", "m", "5", "5x", "123456789S", "-5S", "5 S"] {
            assert_eq!(read(bad), Err(Reason::InvalidField), "{bad:?}");
        }
    }
}
