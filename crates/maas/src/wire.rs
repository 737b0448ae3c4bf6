//! One question and one answer over HTTP/1.1: bounded in time and size, and exact about how far a question got before it
//! failed. An idle connection is kept for a moment and then closed.

use crate::access::Address;
use crate::options::Options;
use crate::sunk::Sink;
use bytes::Bytes;
use domain::Reason;
use domain::stage::FailureClass;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use provider::{ProviderError, ProviderResult};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

const HEAD_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;
/// What is read of a no.
const NO_MAX: usize = 64 * 1024;
/// A change goes over a connection that has just been used, or over a new one: an old one may be dead already, and
/// then nobody knows whether the change arrived.
const FRESH: Duration = Duration::from_secs(1);

pub struct Ask {
    pub method: Method,
    /// With its query.
    pub path: String,
    /// As a form.
    pub form: Option<Bytes>,
    /// Good for this one time.
    pub login: HeaderValue,
}

/// The head of an answer. The body of a yes is where it was wanted; that of a no is here, as far as it was read.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub no: Vec<u8>,
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
    /// Sent, and what came is not HTTP, or no body that is taken.
    Garbled(String),
}

pub struct Wire {
    /// The site, in words.
    name: String,
    at: Address,
    host: HeaderValue,
    connect: Duration,
    keep: Duration,
    idle_max: usize,
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
    pub fn new(name: &str, at: Address, options: &Options, idle_max: usize) -> Self {
        let host = HeaderValue::from_str(&at.authority).unwrap_or_else(|_| HeaderValue::from_static("maas"));
        let (connect, keep) = (options.connect, options.idle);
        Self { name: name.to_owned(), at, host, connect, keep, idle_max, idle: Arc::default() }
    }

    /// Up to and with `/MAAS`.
    pub fn base(&self) -> &str {
        &self.at.base
    }

    /// Asks over a connection that is still there, or over a new one. What was never sent is sent once more.
    pub async fn exchange(&self, ask: &Ask, deadline: Instant, into: &mut dyn Sink) -> Result<Answer, Lost> {
        let reads = ask.method == Method::GET;
        if let Some(warm) = self.warm(if reads { self.keep } else { FRESH }) {
            match self.ask_over(warm, ask, deadline, into).await {
                // it was closed while it lay idle; its login was never seen
                Err(Lost::Unsent(_)) => {}
                done => return done,
            }
        }
        let fresh = self.open(deadline).await.map_err(Lost::NoWay)?;
        self.ask_over(fresh, ask, deadline, into).await
    }

    async fn ask_over(
        &self,
        mut over: Connection,
        ask: &Ask,
        deadline: Instant,
        into: &mut dyn Sink,
    ) -> Result<Answer, Lost> {
        let question = self.question(ask).map_err(|e| Lost::Unsent(e.to_string()))?;
        let talk = async {
            over.sender.ready().await.map_err(|e| Lost::Unsent(e.to_string()))?;
            let sent = over.sender.try_send_request(question).await;
            let response = sent.map_err(|mut e| match e.take_message() {
                Some(_) => Lost::Unsent(e.error().to_string()),
                None if e.error().is_parse() => Lost::Garbled("it is no HTTP".to_owned()),
                None => Lost::Broken(e.error().to_string()),
            })?;
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            let (no, whole) = match head.status.is_success() {
                true => (Vec::new(), yes(body, into).await.map(|()| true)?),
                false => no(body).await,
            };
            Ok((Answer { status, headers: head.headers, no }, whole))
        };
        let (answer, whole) = timeout_at(deadline, talk).await.unwrap_or(Err(Lost::Silent))?;
        if whole {
            self.keep(over);
        }
        Ok(answer)
    }

    fn question(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut question = Request::builder()
            .method(ask.method.clone())
            .uri(ask.path.as_str())
            .header(HOST, self.host.clone())
            .header(ACCEPT, "application/json")
            .header(ACCEPT_ENCODING, "identity")
            .header(USER_AGENT, concat!("millwright/", env!("CARGO_PKG_VERSION")))
            .header(AUTHORIZATION, ask.login.clone());
        if ask.form.is_some() {
            question = question.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        question.body(Full::new(ask.form.clone().unwrap_or_default()))
    }

    async fn open(&self, deadline: Instant) -> ProviderResult<Connection> {
        let until = deadline.min(Instant::now() + self.connect);
        let late = || self.unreachable("no connection could be made in time");
        timeout_at(until, self.open_now()).await.unwrap_or_else(|_| Err(late()))
    }

    async fn open_now(&self) -> ProviderResult<Connection> {
        let socket = TcpStream::connect((self.at.host.as_str(), self.at.port)).await;
        let socket = socket.map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => self.refuses_connections(),
            _ => self.unreachable(&e.to_string()),
        })?;
        // an error here costs speed only
        drop(socket.set_nodelay(true));
        let stream: Box<dyn Stream> = match &self.at.tls {
            None => Box::new(socket),
            Some((tls, name)) => {
                let done = TlsConnector::from(tls.clone()).connect(name.clone(), socket).await;
                Box::new(done.map_err(|e| self.no_handshake(&e))?)
            }
        };
        let made = http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.unreachable(&e.to_string()))?;
        let (sender, connection) = made;
        // how it ends is told to whoever asks over it
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender, driver, used: Instant::now() })
    }

    fn no_handshake(&self, e: &io::Error) -> ProviderError {
        match e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(why)) => {
                let message = format!(
                    "{} shows a certificate that is not trusted: {why}; if it was replaced on purpose, give the site the \
                     right CA with 'millwright site edit'",
                    self.name
                );
                ProviderError::because(Reason::UntrustedCertificate, FailureClass::NeedsOperator, message)
            }
            Some(why) => ProviderError::bad_answer(&self.name, &format!("no TLS could be agreed on: {why}")),
            None => self.unreachable(&format!("the connection broke while it was opened: {e}")),
        }
    }

    pub fn unreachable(&self, why: &str) -> ProviderError {
        let message = format!(
            "{} cannot be reached: {why}; check the site's url, the network to it, and that MAAS runs there",
            self.name
        );
        ProviderError::because(Reason::Unreachable, FailureClass::DependencyDown, message)
    }

    fn refuses_connections(&self) -> ProviderError {
        let message =
            format!("{} refuses connections; check the port in the site's url, and that MAAS runs there", self.name);
        ProviderError::because(Reason::ConnectionRefused, FailureClass::DependencyDown, message)
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
        if over.sender.is_closed() || idle.connections.len() >= self.idle_max || self.keep.is_zero() {
            return;
        }
        idle.connections.push(over);
        if !idle.tended {
            idle.tended = true;
            tokio::spawn(tend(self.idle.clone(), self.keep));
        }
    }
}

async fn yes(mut body: Incoming, into: &mut dyn Sink) -> Result<(), Lost> {
    into.begin();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Lost::Broken(format!("the answer broke off: {e}")))?;
        if let Some(piece) = frame.data_ref() {
            into.take(piece).map_err(Lost::Garbled)?;
        }
    }
    into.end().map_err(Lost::Garbled)
}

/// As much of it as a message needs, and whether that was all. That it breaks off takes nothing from the no.
async fn no(mut body: Incoming) -> (Vec<u8>, bool) {
    let mut said = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return (said, false) };
        if let Some(piece) = frame.data_ref() {
            said.extend_from_slice(piece.get(..piece.len().min(NO_MAX - said.len())).unwrap_or_default());
            if said.len() >= NO_MAX {
                return (said, false);
            }
        }
    }
    (said, true)
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
