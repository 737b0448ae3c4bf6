//! Stands between an adapter and a real program that speaks HTTP, and lets answers go wrong on demand.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::http_faults::{self, Asked, Faults, Handler, Reply};
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Dropped: listens no more.
pub struct HttpProxy {
    pub port: u16,
    pub faults: Arc<Faults>,
    closed: CancellationToken,
}

impl HttpProxy {
    /// In front of a program in the clear, on the runtime this is called in.
    pub async fn before(program: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (faults, closed) = (Arc::new(Faults::default()), CancellationToken::new());
        let pass = Arc::new(Pass { program });
        tokio::spawn(http_faults::serve(listener, None, faults.clone(), pass, closed.clone()));
        Self { port, faults, closed }
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

struct Pass {
    program: SocketAddr,
}

impl Handler for Pass {
    async fn answer(&self, asked: Asked) -> Reply {
        self.ask(asked).await.unwrap_or_else(|e| Reply { body: e.into_bytes(), ..Reply::status(502) })
    }
}

impl Pass {
    async fn ask(&self, asked: Asked) -> Result<Reply, String> {
        let socket = TcpStream::connect(self.program).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())?;
        tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder().method(asked.method).uri(asked.path);
        for (name, value) in asked.headers.iter().filter(|(name, _)| *name != header::TRANSFER_ENCODING) {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(asked.body)).map_err(|e| e.to_string())?;
        let (head, body) = sender.send_request(request).await.map_err(|e| e.to_string())?.into_parts();
        let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes().to_vec();
        // the ways of one connection are not those of the other
        let own = [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH];
        let headers = head.headers.iter().filter(|(name, _)| !own.contains(name));
        let headers = headers.map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()));
        Ok(Reply { status: head.status.as_u16(), headers: headers.collect(), body })
    }
}
