//! What is seen of every request: an id that log lines and the answer carry, the trace it belongs to, and
//! for each call how long it took and what came of it, whichever door it came through.

use crate::door::Door;
use crate::error::code_name;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use domain::metric;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use metrics::SharedString;
use opentelemetry::propagation::Extractor;
use prost::Message as _;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;
use tonic::Code;
use tracing::{Instrument as _, Span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Names one request in log lines and in its answer. In the extensions of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

pub const REQUEST_ID: &str = "x-request-id";
/// A client's own id is taken if it is no longer than this.
const REQUEST_ID_MAX: usize = 128;
/// Of a path, so much is logged.
const PATH_MAX: usize = 200;

impl RequestId {
    /// The client's own, if it is short and can be printed; a fresh one otherwise.
    fn of(headers: &HeaderMap) -> Self {
        let fine = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            !bytes.is_empty() && bytes.len() <= REQUEST_ID_MAX && bytes.iter().all(u8::is_ascii_graphic)
        };
        let fresh = || HeaderValue::from_str(&uuid::Uuid::now_v7().simple().to_string());
        match headers.get(REQUEST_ID).filter(fine) {
            Some(own) => Self(own.clone()),
            None => Self(fresh().unwrap_or_else(|_| HeaderValue::from_static("none"))),
        }
    }

    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// As the audit keeps it.
    pub(crate) fn text(extensions: &http::Extensions) -> String {
        extensions.get::<Self>().map_or(String::new(), |id| id.as_str().to_owned())
    }
}

/// The outermost layer: every request has an id and a span, and its answer says which id.
pub(crate) async fn identify(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let path: String = request.uri().path().chars().take(PATH_MAX).collect();
    // by its kind: a name for each id would be no name
    let name = if path.starts_with("/api/") { format!("REST {}", request.method()) } else { path.clone() };
    // at the highest level, so that a line of any level has its id
    let span = tracing::error_span!(
        "request",
        otel.kind = "server",
        otel.name = name,
        request_id = id.as_str(),
        method = %request.method(),
        path,
    );
    if request.headers().contains_key("traceparent") {
        let parent = opentelemetry::global::get_text_map_propagator(|p| p.extract(&Headers(request.headers())));
        // nobody collects traces: nothing to set
        drop(span.set_parent(parent));
    }
    // whoever calls on with these headers or extensions calls under the same id
    request.headers_mut().insert(REQUEST_ID, id.0.clone());
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id.0);
    response
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// The calls that there are, by path. What is not among them is measured under one name.
pub(crate) struct Calls {
    known: HashMap<String, Call>,
    unknown: Call,
}

#[derive(Clone)]
struct Call {
    name: SharedString,
    streams: bool,
}

impl Calls {
    pub fn new(descriptors: &[&[u8]]) -> Result<Arc<Self>, prost::DecodeError> {
        let mut known = HashMap::new();
        for bytes in descriptors {
            for file in prost_types::FileDescriptorSet::decode(*bytes)?.file {
                for service in &file.service {
                    for method in &service.method {
                        let name = format!("{}/{}", service.name(), method.name());
                        let path = format!("/{}.{name}", file.package());
                        let call = Call { name: Arc::<str>::from(name).into(), streams: method.server_streaming() };
                        known.insert(path, call);
                    }
                }
            }
        }
        Ok(Arc::new(Self { known, unknown: Call { name: "unknown".into(), streams: false } }))
    }
}

/// Measures a call, and puts what is logged under its name.
pub(crate) async fn measure(State(calls): State<Arc<Calls>>, request: Request, next: Next) -> Response {
    let call = calls.known.get(request.uri().path()).unwrap_or(&calls.unknown).clone();
    let door = request.extensions().get::<Door>().copied().unwrap_or_default();
    let span = tracing::error_span!(
        "call",
        otel.name = &*call.name,
        otel.status_code = field::Empty,
        call = &*call.name,
        door = door.as_str(),
        code = field::Empty,
        run_id = field::Empty,
    );
    let mut seen = Seen::new(call, door, span.clone());
    let response = next.run(request).instrument(span).await;
    if let Some(code) = status(response.headers()) {
        seen.end(code);
        return response;
    }
    seen.begins();
    let (head, body) = response.into_parts();
    Response::from_parts(head, Body::new(Measured { body, seen }))
}

fn status(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// One call while it lasts. Dropped before its end, it was given up by the client.
struct Seen {
    call: Call,
    door: Door,
    begun: Instant,
    span: Span,
    timed: bool,
    streaming: bool,
    ended: bool,
}

impl Seen {
    fn new(call: Call, door: Door, span: Span) -> Self {
        Self { call, door, begun: Instant::now(), span, timed: false, streaming: false, ended: false }
    }

    /// The call was accepted, and its answer is about to be sent.
    fn begins(&mut self) {
        if self.call.streams {
            self.streaming = true;
            self.streams_open().increment(1.0);
        }
    }

    fn streams_open(&self) -> metrics::Gauge {
        metrics::gauge!(metric::STREAMS_OPEN.name, "call" => self.call.name.clone(), "door" => self.door.as_str())
    }

    /// A part of the answer is there.
    fn part(&mut self) {
        if self.streaming {
            self.time();
        }
    }

    fn time(&mut self) {
        if !std::mem::replace(&mut self.timed, true) {
            let (name, door) = (self.call.name.clone(), self.door.as_str());
            metrics::histogram!(metric::REQUEST_SECONDS.name, "call" => name, "door" => door)
                .record(self.begun.elapsed());
        }
    }

    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.time();
        if self.streaming {
            self.streams_open().decrement(1.0);
        }
        let (name, door, code_name) = (self.call.name.clone(), self.door.as_str(), code_name(code));
        metrics::counter!(metric::REQUESTS.name, "call" => name, "door" => door, "code" => code_name).increment(1);
        self.span.record("code", code_name);
        let seconds = self.begun.elapsed().as_secs_f64();
        let _entered = self.span.enter();
        match code {
            Code::Internal | Code::Unknown | Code::DataLoss => {
                self.span.record("otel.status_code", "ERROR");
                tracing::warn!(code = code_name, seconds, "a call failed through a fault of the server");
            }
            Code::Ok
            | Code::Cancelled
            | Code::InvalidArgument
            | Code::DeadlineExceeded
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unavailable
            | Code::Unauthenticated => tracing::debug!(code = code_name, seconds, "a call has ended"),
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// An answer's body, watched for how it ends.
struct Measured {
    body: Body,
    seen: Seen,
}

impl http_body::Body for Measured {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = {
            let span = self.seen.span.clone();
            let _entered = span.enter();
            Pin::new(&mut self.body).poll_frame(cx)
        };
        match &polled {
            Poll::Ready(Some(Ok(frame))) => match frame.trailers_ref() {
                Some(trailers) => self.seen.end(status(trailers).unwrap_or(Code::Unknown)),
                None => self.seen.part(),
            },
            // an answer without a status: not one of gRPC's
            Poll::Ready(None) => self.seen.end(Code::Unknown),
            Poll::Ready(Some(Err(_))) => self.seen.end(Code::Internal),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// One connection while it lasts.
pub(crate) struct Connected;

impl Connected {
    pub fn new() -> Self {
        metrics::gauge!(metric::CONNECTIONS_OPEN.name).increment(1.0);
        Self
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        metrics::gauge!(metric::CONNECTIONS_OPEN.name).decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(value: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).expect("a header"));
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn a_clients_own_id_is_taken_if_it_can_be_printed() {
        assert_eq!(id_of(b"deploy-42/attempt.1"), "deploy-42/attempt.1");
        for bad in [&b""[..], b"two words", b"\xc3\xa4", &[b'x'; 129]] {
            let id = id_of(bad);
            assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }

    #[test]
    fn every_call_of_the_product_has_a_name() {
        let calls = Calls::new(&[proto::DESCRIPTORS]).expect("descriptors");
        let watch = calls.known.get("/baremetal.v1.RunService/WatchRuns").expect("a call");
        assert!(watch.streams && &*watch.name == "RunService/WatchRuns");
        assert!(!calls.known.get("/baremetal.v1.RunService/StartRun").expect("a call").streams);
    }
}
