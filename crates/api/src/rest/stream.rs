//! Streams as server-sent events, one for each message. The reader pulls: nothing is made before it is
//! asked for, so a slow reader costs no memory.
//!
//! A browser's `EventSource` takes the end of a connection for an accident and connects again. So the
//! normal end is said, as `event: end`, and an error, as `event: error`: the client closes on either.

use super::{error, route::Route};
use crate::json::{Json, decode};
use axum::body::{Body, Bytes};
use axum::response::Response;
use domain::Error;
use futures::stream::unfold;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use prost_reflect::Value;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Status, Streaming};

/// An error that comes this soon is a plain error with its status. Later the stream has begun.
const FIRST_WITHIN: Duration = Duration::from_millis(100);
/// Keeps proxies from taking silence for death.
const HEARTBEAT: &[u8] = b": still here\n\n";
const END: &[u8] = b"event: end\ndata: {}\n\n";

type Next = Result<Option<Bytes>, Status>;

/// The messages of a call that is under way.
pub(crate) struct Messages {
    route: Arc<Route>,
    stream: Streaming<Bytes>,
    /// Already asked for, to see whether there is anything but an error.
    first: Option<Next>,
    heartbeat: Duration,
    ended: bool,
}

impl Messages {
    /// Waits a little for what comes first: an error is still an answer with a status of its own.
    pub async fn begin(route: Arc<Route>, mut stream: Streaming<Bytes>, heartbeat: Duration) -> Result<Self, Status> {
        let first = match timeout(FIRST_WITHIN, stream.message()).await {
            Ok(Err(status)) => return Err(status),
            Ok(first) => Some(first),
            Err(_) => None,
        };
        Ok(Self { route, stream, first, heartbeat, ended: false })
    }

    pub fn events(self) -> Response {
        let body = unfold(self, |mut messages| async move {
            let event = messages.event().await?;
            Some((Ok::<_, std::convert::Infallible>(event), messages))
        });
        response(Body::from_stream(body), "text/event-stream")
    }

    /// The bytes alone. There is no place for an error in them: the connection breaks off instead, so
    /// that nobody takes a part for the whole.
    pub fn plain_text(self) -> Response {
        let body = unfold(self, |mut messages| async move {
            let data = messages.data().await?;
            Some((data.map_err(|status| std::io::Error::other(status.message().to_owned())), messages))
        });
        response(Body::from_stream(body), "text/plain; charset=utf-8")
    }

    async fn next(&mut self) -> Next {
        match self.first.take() {
            Some(first) => first,
            None => self.stream.message().await,
        }
    }

    async fn event(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let heartbeat = self.heartbeat;
        let Ok(next) = timeout(heartbeat, self.next()).await else { return Some(Bytes::from_static(HEARTBEAT)) };
        let made = match next {
            Ok(Some(message)) => self.made(&message).map_err(crate::to_status),
            Ok(None) => {
                self.ended = true;
                return Some(Bytes::from_static(END));
            }
            Err(status) => Err(status),
        };
        Some(match made {
            Ok(event) => event.into(),
            Err(status) => {
                self.ended = true;
                [b"event: error\ndata: ".as_slice(), &error::object(&status), b"\n\n"].concat().into()
            }
        })
    }

    /// `id:` is where to resume, `data:` one line of JSON.
    fn made(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let dynamic = decode(self.route.output.clone(), message)?;
        let mut event = Vec::with_capacity(message.len() * 2 + 128);
        let sequence = self.route.sequence.as_ref().and_then(|field| dynamic.get_field(field).as_u64());
        let wrong = |e: &dyn std::fmt::Display| Error::internal(format!("writing an event: {e}"));
        if let Some(sequence) = sequence {
            writeln!(event, "id: {sequence}").map_err(|e| wrong(&e))?;
        }
        event.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut event, &Json(&dynamic)).map_err(|e| wrong(&e))?;
        event.extend_from_slice(b"\n\n");
        Ok(event)
    }

    async fn data(&mut self) -> Option<Result<Bytes, Status>> {
        let field = self.route.raw.clone()?;
        let next = self.next().await;
        let message = match next {
            Ok(message) => message?,
            Err(status) => return Some(Err(status)),
        };
        Some(match decode(self.route.output.clone(), &message) {
            Ok(dynamic) => match dynamic.get_field(&field).into_owned() {
                Value::Bytes(bytes) => Ok(bytes),
                _ => Ok(Bytes::new()),
            },
            Err(e) => Err(crate::to_status(e)),
        })
    }
}

fn response(body: Body, kind: &'static str) -> Response {
    let mut response = Response::new(body);
    super::common(response.headers_mut());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
