//! One question and one answer over HTTP/1.1: bounded in time and size, and exact about how far a question got
//! before it failed. An idle connection is kept for a moment and then closed.

use crate::client::Timeouts;
use crate::trust::{self, Tls, Trust};
use bytes::Bytes;
use domain::endpoint::HostPort;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use provider::{ProviderError, ProviderResult};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// No resource is as large; a collection of thousands of entries comes in pages.
const BODY_MAX: usize = 4 * 1024 * 1024;
const HEAD_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;
/// Connections kept for the next question.
const IDLE_MAX: usize = 2;
/// A change goes over a connection that has just been used, or over a new one: an old one may be dead already, and
/// then nobody knows whether the change arrived.
const FRESH: Duration = Duration::from_secs(1);

pub struct Ask {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Option<Bytes>,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// How far it got before there was no answer.
pub enum Lost {
    /// Not even a connection.
    NoWay(ProviderError),
    /// The connection was there, and the question was not sent over it.
    Unsent(String),
    /// Sent, and nothing came in time.
    Silent,
    /// Sent, and the connection broke.
    Broken(String),
    /// Sent, and what came is not HTTP, or too long for it.
    Garbled(String),
    /// The head of the answer came, and its rest cannot be had.
    Cut(u16, String),
}

pub struct Wire {
    name: String,
    at: HostPort,
    host: HeaderValue,
    tls: Option<Tls>,
    connect: Duration,
    keep: Duration,
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    connections: Vec<Connection>,
    /// Whether somebody closes them when their time has come.
    tended: bool,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    used: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Wire {
    pub fn new(name: &str, at: HostPort, trust: &Trust, timeouts: &Timeouts) -> Self {
        let host = HeaderValue::from_str(&at.to_string()).unwrap_or_else(|_| HeaderValue::from_static("bmc"));
        let (connect, keep) = (timeouts.connect, timeouts.idle);
        Self { name: name.to_owned(), at, host, tls: Tls::new(trust), connect, keep, idle: Arc::default() }
    }

    /// Asks over a connection that is still there, or over a new one. What was never sent is sent once more.
    pub async fn exchange(&self, ask: &Ask, deadline: Instant) -> Result<Answer, Lost> {
        let reads = ask.method == Method::GET;
        if let Some(warm) = self.warm(if reads { self.keep } else { FRESH }) {
            match self.ask_over(warm, ask, deadline).await {
                // it was closed while it lay idle
                Err(Lost::Unsent(_)) => {}
                Err(Lost::Broken(_)) if reads => {}
                done => return done,
            }
        }
        let fresh = self.open(deadline).await.map_err(Lost::NoWay)?;
        self.ask_over(fresh, ask, deadline).await
    }

    async fn ask_over(&self, mut over: Connection, ask: &Ask, deadline: Instant) -> Result<Answer, Lost> {
        let question = self.question(ask).map_err(|e| Lost::Unsent(e.to_string()))?;
        let talk = async {
            over.sender.ready().await.map_err(|e| Lost::Unsent(e.to_string()))?;
            let sent = over.sender.try_send_request(question).await;
            let response = sent.map_err(|mut e| match e.take_message() {
                Some(_) => Lost::Unsent(e.error().to_string()),
                None if e.error().is_parse() => Lost::Garbled(e.error().to_string()),
                None => Lost::Broken(e.error().to_string()),
            })?;
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            let body = timeout_at(deadline, Limited::new(body, BODY_MAX).collect()).await;
            let body = match body {
                Ok(Ok(body)) => body.to_bytes(),
                Ok(Err(e)) if e.is::<LengthLimitError>() => {
                    return Err(Lost::Cut(status, format!("the answer is larger than {BODY_MAX} bytes")));
                }
                Ok(Err(e)) => return Err(Lost::Cut(status, format!("the answer broke off: {e}"))),
                Err(_) => return Err(Lost::Cut(status, "the answer did not end in time".to_owned())),
            };
            Ok(Answer { status, headers: head.headers, body })
        };
        let answer = timeout_at(deadline, talk).await.unwrap_or(Err(Lost::Silent))?;
        self.keep(over);
        Ok(answer)
    }

    fn question(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut question = Request::builder()
            .method(ask.method.clone())
            .uri(ask.path.as_str())
            .header(header::HOST, self.host.clone())
            .header(header::ACCEPT, "application/json")
            // some compress unless they are told not to
            .header(header::ACCEPT_ENCODING, "identity")
            .header(header::USER_AGENT, "millwright")
            .header("odata-version", "4.0");
        for (name, value) in &ask.headers {
            question = question.header(name, value);
        }
        if ask.body.is_some() {
            question = question.header(header::CONTENT_TYPE, "application/json");
        }
        question.body(Full::new(ask.body.clone().unwrap_or_default()))
    }

    async fn open(&self, deadline: Instant) -> ProviderResult<Connection> {
        let until = deadline.min(Instant::now() + self.connect);
        let silent = || ProviderError::unreachable(&self.name, "no connection could be made in time");
        timeout_at(until, self.open_now()).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn open_now(&self) -> ProviderResult<Connection> {
        let socket = trust::connect(&self.name, &self.at).await?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.over(&self.name, &self.at, socket).await?),
            None => Box::new(socket),
        };
        let made = http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| ProviderError::unreachable(&self.name, &e.to_string()))?;
        let (sender, connection) = made;
        // how it ends is told to whoever asks over it
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender, driver, used: Instant::now() })
    }

    /// Closes what is kept.
    pub fn hang_up(&self) {
        lock(&self.idle).connections.clear();
    }

    /// The connection used last, if that was not too long ago.
    fn warm(&self, age: Duration) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        idle.connections.retain(|c| !c.sender.is_closed());
        idle.connections.pop_if(|c| c.used.elapsed() < age)
    }

    fn keep(&self, mut over: Connection) {
        over.used = Instant::now();
        let mut idle = lock(&self.idle);
        if over.sender.is_closed() || idle.connections.len() >= IDLE_MAX || self.keep.is_zero() {
            return;
        }
        idle.connections.push(over);
        if !idle.tended {
            idle.tended = true;
            tokio::spawn(tend(self.idle.clone(), self.keep));
        }
    }
}

/// Closes connections that nobody has used for a while, and ends when there are none.
async fn tend(idle: Arc<Mutex<Idle>>, keep: Duration) {
    loop {
        tokio::time::sleep(keep).await;
        let mut idle = lock(&idle);
        idle.connections.retain(|c| !c.sender.is_closed() && c.used.elapsed() < keep);
        if idle.connections.is_empty() {
            idle.tended = false;
            return;
        }
    }
}

fn lock(idle: &Mutex<Idle>) -> MutexGuard<'_, Idle> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
