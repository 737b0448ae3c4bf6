//! The call itself, made in this process to the very router that serves gRPC: who may do what, limits,
//! deadlines and errors have one code path, and the doors cannot drift apart.

use crate::door::Door;
use axum::Router;
use axum::body::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName};
use prost::bytes::{Buf as _, BufMut as _};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

/// What a caller says about a call, apart from what it is.
const CARRIED: [&str; 5] = ["authorization", "x-idempotency-key", "x-request-id", "traceparent", "tracestate"];
/// What the answer says about it.
const CARRIED_BACK: HeaderName = HeaderName::from_static("x-request-id");

/// Messages stay bytes: they are made and read by their descriptors.
#[derive(Clone, Copy, Default)]
struct AsBytes;

impl Codec for AsBytes {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A request with the caller's words about it, and with what the connection knows of the caller.
pub(crate) fn request(parts: Parts, message: Vec<u8>) -> Request<Bytes> {
    let mut headers = HeaderMap::with_capacity(CARRIED.len());
    for name in CARRIED.map(HeaderName::from_static) {
        for value in parts.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let mut extensions = parts.extensions;
    extensions.insert(Door::Rest);
    Request::from_parts(MetadataMap::from_headers(headers), extensions, Bytes::from(message))
}

/// The answer's own words about itself, for the caller.
pub(crate) fn carry_back(metadata: &MetadataMap, headers: &mut HeaderMap) {
    if let Some(value) = metadata.as_ref().get(&CARRIED_BACK) {
        headers.insert(CARRIED_BACK, value.clone());
    }
}

async fn door(grpc: &Router) -> Result<Grpc<Router>, Status> {
    // whatever the server was willing to send is taken
    let mut door = Grpc::new(grpc.clone()).max_decoding_message_size(usize::MAX);
    door.ready().await.map_err(|e| Status::internal(e.to_string()))?;
    Ok(door)
}

pub(crate) async fn unary(
    grpc: &Router,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, Status> {
    door(grpc).await?.unary(request, path, AsBytes).await
}

pub(crate) async fn streaming(
    grpc: &Router,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    door(grpc).await?.server_streaming(request, path, AsBytes).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use tonic::Code;

    /// Tells the caller what it saw of the call.
    async fn mirror(request: axum::extract::Request) -> axum::response::Response {
        let door = request.extensions().get::<Door>().map_or("none", |d| d.as_str());
        let known = request.extensions().get::<u8>().copied().unwrap_or_default();
        let told: Vec<&str> = CARRIED.into_iter().filter(|name| request.headers().contains_key(*name)).collect();
        let cookie = request.headers().contains_key("cookie");
        let message = format!("{} {door} {known} {} {cookie}", request.uri().path(), told.join(" "));
        let mut status = Status::aborted(message);
        if let Some(id) = request.headers().get("x-request-id").and_then(|v| v.to_str().ok()?.parse().ok()) {
            status.metadata_mut().insert("x-request-id", id);
        }
        status.into_http::<Body>()
    }

    #[tokio::test]
    async fn the_callers_words_go_along_and_nothing_else() {
        let mut request = http::Request::builder().header("cookie", "a=b").extension(7u8);
        for name in CARRIED {
            request = request.header(name, "x");
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let grpc = Router::new().fallback(mirror);
        let path = PathAndQuery::from_static("/a.Service/Call");
        let status = unary(&grpc, path, super::request(parts, Vec::new())).await.expect_err("refused");
        assert_eq!(status.code(), Code::Aborted);
        assert_eq!(status.message(), format!("/a.Service/Call rest 7 {} false", CARRIED.join(" ")));
        let mut headers = HeaderMap::new();
        carry_back(status.metadata(), &mut headers);
        assert_eq!(headers["x-request-id"], "x");
    }
}
