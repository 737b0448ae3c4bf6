//! Calls below the generated clients: bytes in, bytes out, any header; and plain HTTP.

use prost_reflect::prost::bytes::{Buf as _, BufMut as _, Bytes};
use std::io::{Read as _, Write as _};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Takes the bytes of a message as they are.
#[derive(Clone, Copy, Default)]
pub struct AsBytes;

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

pub async fn channel(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).expect("a URL").connect().await.expect("connects")
}

/// Calls `/package.Service/Method`; the answers arrive as a stream, whatever kind the method is.
pub async fn call(channel: Channel, path: &str, request: Request<Bytes>) -> Result<Streaming<Bytes>, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("the connection is ready");
    let path: PathAndQuery = path.parse().expect("a path");
    Ok(grpc.server_streaming(request, path, AsBytes).await?.into_inner())
}

/// The same, up to the first answer; `None`: the stream ended without one.
pub async fn call_once(channel: Channel, path: &str, request: Request<Bytes>) -> Result<Option<Bytes>, Status> {
    call(channel, path, request).await?.message().await
}

pub fn with_token(token: &str, body: impl Into<Bytes>) -> Request<Bytes> {
    let mut request = Request::new(body.into());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    request
}

/// Puts a token on every call of a generated client.
#[derive(Clone)]
pub struct Signed(pub String);

impl Interceptor for Signed {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.0).parse().expect("a header"));
        Ok(request)
    }
}

/// A GET without any header that HTTP does not demand; the status and the body.
pub async fn http_get(url: &str, path: &str) -> (u16, String) {
    let answer = http(url, path, "").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// The head of the answer to a GET with these header lines.
pub async fn http_head(url: &str, path: &str, headers: &str) -> String {
    let answer = http(url, path, headers).await;
    answer.split_once("\r\n\r\n").expect("a head and a body").0.to_owned()
}

/// The head of the answer to a gRPC call over HTTP/1.1, by a client that keeps no time of its own. What is
/// refused is told in the head.
pub async fn grpc_head(url: &str, path: &str, headers: &str, message: &[u8]) -> String {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).expect("small").to_be_bytes());
    body.extend(message);
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Type: application/grpc\r\nContent-Length: {}\r\nTE: trailers\r\n{headers}",
        body.len()
    );
    let answer = exchange(url, &head, body).await;
    answer.split_once("\r\n\r\n").expect("a head and a body").0.to_ascii_lowercase()
}

async fn http(url: &str, path: &str, headers: &str) -> String {
    exchange(url, &format!("GET {path} HTTP/1.1\r\n{headers}"), Vec::new()).await
}

async fn exchange(url: &str, head: &str, body: Vec<u8>) -> String {
    let address = url.strip_prefix("http://").expect("plain HTTP").to_owned();
    let mut request = format!("{head}Host: {address}\r\nConnection: close\r\n\r\n").into_bytes();
    request.extend(body);
    let answer = tokio::task::spawn_blocking(move || {
        let mut socket = std::net::TcpStream::connect(address)?;
        socket.write_all(&request)?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    String::from_utf8_lossy(&answer.await.expect("no panic").expect("an answer")).into_owned()
}
