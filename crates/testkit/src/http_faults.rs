//! A small HTTP server whose answers go wrong on demand: what our own responders and the proxy before real programs
//! are served by. A fault is armed for some questions and some times; how often it came is counted, so that a test
//! can tell a fault that was survived from one that never happened.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

const BODY_MAX: usize = 64 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Taken and never answered; it is not acted on.
    Hold,
    /// Acted on and never answered.
    HoldAnswer,
    /// Acted on and answered after a while.
    Delay(Duration),
    /// The connection is reset; it is not acted on.
    Reset,
    /// It is acted on, and the connection is reset before the answer.
    LoseAnswer,
    /// It is acted on, and the answer breaks off in the middle of its body.
    Truncate,
    /// Answered with this status and body; it is not acted on.
    Status(u16, String),
    /// 503 with Retry-After in seconds.
    Busy(u64),
    /// Acted on; the answer is no JSON.
    Malformed,
    /// Acted on; in the answer some values are replaced by others that nobody expects there, by this seed.
    Odd(u64),
    /// Answered with 204 and not acted on.
    DoNothing,
    /// Answered with more bytes than anybody should take.
    Huge,
    /// Answered with headers without end.
    LongHead,
    /// 307 to there.
    Redirect(String),
}

/// What is asked.
pub struct Asked {
    pub method: Method,
    /// With its query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Our own end: where it was asked.
    pub at: SocketAddr,
}

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// No answer: the connection is reset.
    pub fn reset() -> Self {
        Self::default()
    }

    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self { body: value.to_string().into_bytes(), ..Self::status(status) }.with("content-type", "application/json")
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

pub trait Handler: Send + Sync + 'static {
    fn answer(&self, asked: Asked) -> impl Future<Output = Reply> + Send;
}

struct Armed {
    method: Option<Method>,
    path_has: String,
    fault: Fault,
    left: usize,
}

/// What goes wrong, and how often it has.
#[derive(Default)]
pub struct Faults {
    armed: Mutex<Vec<Armed>>,
    any: AtomicBool,
    hits: AtomicUsize,
    opened: AtomicUsize,
    open: AtomicUsize,
    hang_up: Notify,
}

impl Faults {
    /// The next `times` questions with this method (`""`: any) and this in their path go wrong.
    pub fn arm(&self, method: &str, path_has: &str, fault: Fault, times: usize) {
        let method = (!method.is_empty()).then(|| method.parse().expect("a method"));
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        armed.push(Armed { method, path_has: path_has.to_owned(), fault, left: times });
        self.any.store(true, Ordering::Release);
    }

    /// Nothing more goes wrong. Answers how often it did.
    pub fn disarm(&self) -> usize {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.any.store(false, Ordering::Release);
        self.hits.swap(0, Ordering::AcqRel)
    }

    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::Acquire)
    }

    /// Connections ever made.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Acquire)
    }

    /// Connections there are now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Every connection is closed, whatever goes on over it.
    pub fn hang_up(&self) {
        self.hang_up.notify_waiters();
    }

    fn due(&self, asked: &Asked) -> Option<Fault> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |a: &Armed| {
            a.left > 0 && a.method.as_ref().is_none_or(|m| *m == asked.method) && asked.path.contains(&a.path_has)
        };
        let due = armed.iter_mut().find(|a| fits(a))?;
        due.left -= 1;
        self.hits.fetch_add(1, Ordering::AcqRel);
        Some(due.fault.clone())
    }
}

/// Serves until told to stop; then every connection is dropped.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    faults: Arc<Faults>,
    handler: Arc<H>,
    closed: CancellationToken,
) {
    loop {
        let socket = tokio::select! {
            socket = listener.accept() => socket,
            () = closed.cancelled() => return,
        };
        let Ok((socket, _)) = socket else {
            // out of file descriptors, perhaps: others must close first
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        drop(socket.set_nodelay(true));
        let (tls, faults, handler, closed) = (tls.clone(), faults.clone(), handler.clone(), closed.clone());
        faults.opened.fetch_add(1, Ordering::AcqRel);
        faults.open.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            tokio::select! {
                () = one(socket, tls, faults.clone(), handler) => {}
                () = faults.hang_up.notified() => {}
                () = closed.cancelled() => {}
            }
            faults.open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

async fn one<H: Handler>(socket: TcpStream, tls: Option<TlsAcceptor>, faults: Arc<Faults>, handler: Arc<H>) {
    let reset = Arc::new(AtomicBool::new(false));
    let Ok(at) = socket.local_addr() else { return };
    let socket = Breakable { socket, reset: reset.clone() };
    match tls {
        None => talk(socket, at, reset, faults, handler).await,
        // a handshake that fails is the client's verdict
        Some(tls) => {
            if let Ok(stream) = tls.accept(socket).await {
                talk(stream, at, reset, faults, handler).await;
            }
        }
    }
}

async fn talk<H: Handler>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    at: SocketAddr,
    reset: Arc<AtomicBool>,
    faults: Arc<Faults>,
    handler: Arc<H>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (reset, faults, handler) = (&reset, &faults, &handler);
        async move {
            let (head, body) = request.into_parts();
            let body = Limited::new(body, BODY_MAX).collect().await.map_err(|e| io::Error::other(e.to_string()))?;
            let path = head.uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
            let asked = Asked { method: head.method, path, headers: head.headers, body: body.to_bytes(), at };
            let fault = faults.due(&asked);
            answer(asked, fault, reset, handler.as_ref()).await
        }
    });
    // how it ends is seen from the other side
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

async fn answer<H: Handler>(
    asked: Asked,
    fault: Option<Fault>,
    reset: &AtomicBool,
    handler: &H,
) -> Result<Response<Out>, io::Error> {
    let broken = || {
        reset.store(true, Ordering::Release);
        Err(io::Error::other("reset on demand"))
    };
    let reply = match fault {
        None => handler.answer(asked).await,
        Some(Fault::Hold) => std::future::pending().await,
        Some(Fault::HoldAnswer) => {
            drop(handler.answer(asked).await);
            std::future::pending().await
        }
        Some(Fault::Delay(pause)) => {
            let reply = handler.answer(asked).await;
            tokio::time::sleep(pause).await;
            reply
        }
        Some(Fault::Reset) => return broken(),
        Some(Fault::LoseAnswer) => {
            drop(handler.answer(asked).await);
            return broken();
        }
        Some(Fault::Truncate) => {
            let mut reply = handler.answer(asked).await;
            // there must be something to cut
            reply.body.resize(reply.body.len().max(64), b' ');
            reply.status = if reply.status == 204 { 200 } else { reply.status };
            return response(reply, true);
        }
        Some(Fault::Status(status, body)) => Reply { status, body: body.into_bytes(), headers: Vec::new() },
        Some(Fault::Busy(seconds)) => Reply::status(503).with("retry-after", seconds.to_string()),
        Some(Fault::Malformed) => {
            let reply = handler.answer(asked).await;
            Reply { status: if reply.status == 204 { 200 } else { reply.status }, ..Reply::default() }.malformed()
        }
        Some(Fault::Odd(seed)) => {
            let mut reply = handler.answer(asked).await;
            if let Ok(mut value) = serde_json::from_slice(&reply.body) {
                make_odd(&mut value, &mut (seed ^ 0x9e37_79b9_7f4a_7c15));
                reply.body = serde_json::Value::to_string(&value).into_bytes();
            }
            reply
        }
        Some(Fault::DoNothing) => Reply::status(204),
        Some(Fault::Huge) => Reply { status: 200, body: vec![b' '; 16 * 1024 * 1024], headers: Vec::new() },
        Some(Fault::LongHead) => Reply::status(200).with("x-long", "x".repeat(256 * 1024)),
        Some(Fault::Redirect(to)) => Reply::status(307).with("location", to),
    };
    if reply.status == 0 {
        return broken();
    }
    response(reply, false)
}

/// About one value in eight.
fn make_odd(value: &mut serde_json::Value, state: &mut u64) {
    use serde_json::{Value, json};
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let dice = *state >> 33;
    if dice.is_multiple_of(8) {
        *value = match dice / 8 % 12 {
            0 => Value::Null,
            1 => json!(-1),
            2 => json!(1e300),
            3 => json!(u64::MAX),
            4 => json!([]),
            5 => json!({}),
            6 => json!(""),
            7 => json!("ü\u{0}\r\n".repeat(400)),
            8 => json!([[{"@odata.id": "/redfish/v1"}]]),
            9 => json!({"@odata.id": "http://elsewhere.invalid/"}),
            10 => json!("/redfish/v1/../../etc/passwd"),
            _ => json!(true),
        };
        return;
    }
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| make_odd(one, state)),
        Value::Object(all) => all.values_mut().for_each(|one| make_odd(one, state)),
        _ => {}
    }
}

impl Reply {
    fn malformed(mut self) -> Self {
        self.body = br#"{"@odata.id": "/redfish/v1", "Boot": {"#.to_vec();
        self
    }
}

fn response(reply: Reply, cut: bool) -> Result<Response<Out>, io::Error> {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    let full = reply.body.len() as u64;
    let shown = if cut { reply.body.len() / 2 } else { reply.body.len() };
    let body = Out { data: Some(Bytes::from(reply.body).slice(..shown)), full, cut, sent: false };
    response.body(body).map_err(io::Error::other)
}

/// A body that may promise more than it has.
struct Out {
    data: Option<Bytes>,
    full: u64,
    cut: bool,
    /// What there is has gone out.
    sent: bool,
}

impl Body for Out {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.data.take().filter(|data| !data.is_empty()) {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.cut && !self.sent => {
                self.sent = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None if self.cut => Poll::Ready(Some(Err(io::Error::other("cut on demand")))),
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.data.is_some() { self.full } else { 0 })
    }
}

/// A socket that is reset instead of closed, if so decided by then.
struct Breakable {
    socket: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Breakable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Acquire) {
            drop(self.socket.set_zero_linger());
        }
    }
}

impl AsyncRead for Breakable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, to)
    }
}

impl AsyncWrite for Breakable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.load(Ordering::Acquire) {
            // a polite end would spoil it
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
