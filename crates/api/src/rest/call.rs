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
