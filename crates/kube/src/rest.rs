//! One call to an API server and what its answer means. A session is one connection, used for the few requests
//! that one call of ours needs, within that call's deadline; nothing is kept open between calls, so none is found
//! dead later.
//!
//! What was sent is known: a change whose answer is lost is unknown, never refused. A server that says when to come
//! back (429 or 503 with Retry-After) is asked again then, if the deadline allows.

use crate::kubeconfig::Access;
use crate::objects::{List, Status};
use domain::stage::FailureClass;
use domain::{Reason, Secret, Timestamp};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use provider::{ProviderError, ProviderResult};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;

/// A page of nodes has some megabytes at most.
const BODY_MAX: usize = 32 << 20;
/// Objects in a page.
const PAGE: usize = 250;
/// How long a host may take to let us in.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a server may put us off within one call.
const PUT_OFF_MAX: usize = 5;
/// Of what a server says, in a message of ours.
const QUOTE_MAX: usize = 300;

/// What is asked, and how it is called when it fails.
pub(crate) struct Ask {
    pub method: Method,
    /// With its query.
    pub path: String,
    pub body: Option<(&'static str, Vec<u8>)>,
    /// Verb and resource as access rules spell them: `list nodes`.
    pub doing: &'static str,
}

impl Ask {
    pub fn get(path: impl Into<String>, doing: &'static str) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, doing }
    }

    pub fn json(method: Method, path: impl Into<String>, body: &serde_json::Value, doing: &'static str) -> Self {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        Self { method, path: path.into(), body: Some((kind, body.to_string().into_bytes())), doing }
    }

    /// A read is repeated freely; of anything else the outcome may be unknown. (A review of access writes nothing.)
    fn is_change(&self) -> bool {
        self.method != Method::GET && !self.path.starts_with("/apis/authorization.k8s.io/")
    }
}

/// A yes, or one of the noes that only the caller can judge: not there, conflict, gone, invalid, a budget.
pub(crate) struct Answer {
    pub status: StatusCode,
    body: Bytes,
}

impl Answer {
    pub fn is_yes(&self) -> bool {
        self.status.is_success()
    }

    /// The server's reason, if it gave one.
    pub fn says(&self) -> Status {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

pub(crate) struct Session<'a> {
    cluster: &'a str,
    what: &'a str,
    access: &'a Access,
    token: Option<Secret>,
    tls: Arc<ClientConfig>,
    deadline: Instant,
    /// How long that was from its beginning.
    patience: Duration,
    connection: Option<SendRequest<Full<Bytes>>>,
    /// What time the server said it was with its last answer.
    server_time: Option<Timestamp>,
    _turn: SemaphorePermit<'a>,
}

/// A request that came to no answer.
enum Lost {
    /// It never left, so it can be sent again on another connection.
    Unsent,
    /// It may have been done.
    Sent(String),
    /// What came back was no HTTP.
    Garbled,
    Late,
}

impl<'a> Session<'a> {
    pub fn new(
        cluster: &'a str,
        what: &'a str,
        access: &'a Access,
        deadline: Instant,
        turn: SemaphorePermit<'a>,
    ) -> ProviderResult<Self> {
        let (token, tls) = (access.token(cluster)?, access.tls(cluster)?);
        let (patience, connection, server_time) = (deadline.saturating_duration_since(Instant::now()), None, None);
        Ok(Self { cluster, what, access, token, tls, deadline, patience, connection, server_time, _turn: turn })
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The server's own clock, once it has answered.
    pub fn server_time(&self) -> ProviderResult<Timestamp> {
        self.server_time.ok_or_else(|| ProviderError::bad_answer(self.what, "its answers do not say what time it is"))
    }

    /// Reads an object. `None`: it is not there.
    pub async fn read<T: DeserializeOwned>(&mut self, ask: &Ask) -> ProviderResult<Option<T>> {
        let answer = self.ask(ask).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            _ if answer.is_yes() => self.parse(&answer).map(Some),
            _ => Err(self.refused(ask, &answer)),
        }
    }

    /// Reads a list to its end, page by page, and keeps of each object what is needed.
    pub async fn list<T: DeserializeOwned, U>(
        &mut self,
        path: &str,
        query: &str,
        doing: &'static str,
        most: usize,
        keep: impl Fn(T) -> U,
    ) -> ProviderResult<Vec<U>> {
        // a list that changes so fast that its pages expire is begun anew, once
        for _ in 0..2 {
            if let Some(all) = self.list_once(path, query, doing, most, &keep).await? {
                return Ok(all);
            }
        }
        Err(ProviderError::transient(format!("{} let the pages of a list expire while they were read", self.what)))
    }

    async fn list_once<T: DeserializeOwned, U>(
        &mut self,
        path: &str,
        query: &str,
        doing: &'static str,
        most: usize,
        keep: &impl Fn(T) -> U,
    ) -> ProviderResult<Option<Vec<U>>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        // a server that answers with empty pages for ever is not followed for ever
        for _ in 0..=most.div_ceil(PAGE) {
            let mut path = format!("{path}?limit={PAGE}{query}");
            if !next.is_empty() {
                path.push_str("&continue=");
                path.push_str(&encoded(&next));
            }
            let ask = Ask::get(path, doing);
            let answer = self.ask(&ask).await?;
            if answer.status == StatusCode::GONE && !next.is_empty() {
                return Ok(None);
            }
            if !answer.is_yes() {
                return Err(self.refused(&ask, &answer));
            }
            let page: List<T> = self.parse(&answer)?;
            all.extend(page.items.into_iter().map(keep));
            if page.metadata.next.is_empty() {
                return Ok(Some(all));
            }
            next = page.metadata.next;
        }
        Err(ProviderError::bad_answer(self.what, &format!("the answer to {doing} goes on beyond {most} entries")))
    }

    /// Asks, and waits out a server that says when to come back.
    pub async fn ask(&mut self, ask: &Ask) -> ProviderResult<Answer> {
        for _ in 0..PUT_OFF_MAX {
            let (answer, come_back) = self.ask_once(ask).await?;
            let put_off = match answer.status {
                StatusCode::TOO_MANY_REQUESTS if answer.says().budget().is_some() => None,
                StatusCode::TOO_MANY_REQUESTS => Some(come_back.unwrap_or(Duration::from_secs(1))),
                StatusCode::SERVICE_UNAVAILABLE => come_back,
                _ => None,
            };
            let Some(wait) = put_off else { return self.judge(ask, answer) };
            let at = Instant::now() + wait;
            if at >= self.deadline {
                return Err(ProviderError::transient(format!(
                    "{} is too busy to {}: it says to come back in {} s",
                    self.what,
                    ask.doing,
                    wait.as_secs()
                )));
            }
            sleep_until(at).await;
        }
        Err(ProviderError::transient(format!("{} put us off {PUT_OFF_MAX} times over {}", self.what, ask.doing)))
    }

    fn judge(&self, ask: &Ask, answer: Answer) -> ProviderResult<Answer> {
        match answer.status {
            StatusCode::UNAUTHORIZED => Err(ProviderError::login_refused(self.what, self.cluster)),
            StatusCode::FORBIDDEN => Err(self.forbidden(ask, &answer)),
            status if status.is_server_error() => {
                let said = format!("{} answered {status} to {}: {}", self.what, ask.doing, self.quote(&answer));
                // such an answer may come from somebody on the way, or after the change
                Err(if ask.is_change() { ProviderError::unknown(said) } else { ProviderError::transient(said) })
            }
            status if status.is_redirection() => {
                Err(ProviderError::bad_answer(self.what, &format!("{status} to {}", ask.doing)))
            }
            _ => Ok(answer),
        }
    }

    fn forbidden(&self, ask: &Ask, answer: &Answer) -> ProviderError {
        let message = format!(
            "{} does not let us {}: {}; give the identity in the kubeconfig that right ('millwright cluster check' lists all that are needed)",
            self.what,
            ask.doing,
            self.quote(answer)
        );
        ProviderError::refused(FailureClass::NeedsOperator, message)
    }

    /// A no that the caller has no better word for. Nothing was changed.
    pub fn refused(&self, ask: &Ask, answer: &Answer) -> ProviderError {
        let class = match answer.status {
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => FailureClass::Transient,
            _ => FailureClass::NeedsOperator,
        };
        let said = self.quote(answer);
        ProviderError::refused(class, format!("{} refuses to {}: {} {said}", self.what, ask.doing, answer.status))
    }

    /// What the server said, short and without our token, should it repeat that.
    pub fn quote(&self, answer: &Answer) -> String {
        let said = answer.says().message;
        let said = self.token.as_ref().map_or_else(|| said.clone(), |token| token.blot(&said));
        let short: String = said.chars().filter(|c| !c.is_control()).take(QUOTE_MAX).collect();
        if short.is_empty() { "it gives no reason".to_owned() } else { short }
    }

    pub fn parse<T: DeserializeOwned>(&self, answer: &Answer) -> ProviderResult<T> {
        serde_json::from_slice(&answer.body).map_err(|e| {
            // not its text: that may quote what stands there
            let why = format!("not the JSON that was expected, at line {}, column {}", e.line(), e.column());
            ProviderError::bad_answer(self.what, &why)
        })
    }

    async fn ask_once(&mut self, ask: &Ask) -> ProviderResult<(Answer, Option<Duration>)> {
        let mut fresh = self.connection.is_none();
        loop {
            let lost = match self.try_once(ask).await? {
                Ok(answer) => return Ok(answer),
                Err(lost) => lost,
            };
            self.connection = None;
            let again = match lost {
                Lost::Unsent => true,
                Lost::Sent(_) => !ask.is_change(),
                Lost::Garbled | Lost::Late => false,
            };
            // the server may close a connection that was in use before; one that was just opened tells something
            if again && !fresh {
                fresh = true;
                continue;
            }
            return Err(self.silence(ask, &lost));
        }
    }

    fn silence(&self, ask: &Ask, lost: &Lost) -> ProviderError {
        let (what, doing) = (self.what, ask.doing);
        match lost {
            Lost::Unsent => ProviderError::unreachable(what, "it closed the connection before it was asked anything"),
            _ if ask.is_change() => ProviderError::unknown(format!("{what} was told to {doing}")),
            Lost::Sent(why) => ProviderError::unreachable(what, why),
            Lost::Garbled => ProviderError::bad_answer(what, &format!("no whole HTTP answer to {doing}")),
            Lost::Late => ProviderError::unreachable(
                what,
                &format!("no answer to {doing} within {:.0} s", self.patience.as_secs_f32()),
            ),
        }
    }

    async fn try_once(&mut self, ask: &Ask) -> ProviderResult<Result<(Answer, Option<Duration>), Lost>> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => self.connect().await?,
        };
        let request = self.request(ask)?;
        if !matches!(timeout_at(self.deadline, connection.ready()).await, Ok(Ok(()))) {
            return Ok(Err(Lost::Unsent));
        }
        let sent = timeout_at(self.deadline, connection.try_send_request(request)).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(e)) if e.message().is_some() => return Ok(Err(Lost::Unsent)),
            Ok(Err(e)) if e.error().is_parse() => return Ok(Err(Lost::Garbled)),
            Ok(Err(_)) => return Ok(Err(Lost::Sent("the connection broke before an answer came".to_owned()))),
            Err(_) => return Ok(Err(Lost::Late)),
        };
        let status = response.status();
        let come_back = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
        self.server_time = response.headers().get(DATE).and_then(|date| date.to_str().ok()).and_then(time);
        let body = match self.body(response.into_body()).await? {
            Ok(body) => body,
            Err(lost) => return Ok(Err(lost)),
        };
        tracing::debug!(
            cluster = self.cluster,
            method = %ask.method,
            path = ask.path,
            status = status.as_u16(),
            "asked a cluster"
        );
        self.connection = Some(connection);
        Ok(Ok((Answer { status, body }, come_back.map(Duration::from_secs))))
    }

    async fn body(&self, body: Incoming) -> ProviderResult<Result<Bytes, Lost>> {
        match timeout_at(self.deadline, Limited::new(body, BODY_MAX).collect()).await {
            Ok(Ok(whole)) => Ok(Ok(whole.to_bytes())),
            Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
                Err(ProviderError::bad_answer(self.what, &format!("more than {BODY_MAX} bytes")))
            }
            Ok(Err(_)) => Ok(Err(Lost::Garbled)),
            Err(_) => Ok(Err(Lost::Late)),
        }
    }

    fn request(&self, ask: &Ask) -> ProviderResult<Request<Full<Bytes>>> {
        let host = match self.access.host.contains(':') {
            true => format!("[{}]:{}", self.access.host, self.access.port),
            false => format!("{}:{}", self.access.host, self.access.port),
        };
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(format!("{}{}", self.access.base, ask.path))
            .header(HOST, host)
            .header(USER_AGENT, concat!("millwright/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if let Some((kind, _)) = &ask.body {
            request = request.header(CONTENT_TYPE, *kind);
        }
        if let Some(token) = &self.token {
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.reveal())).map_err(|_| {
                let why =
                    format!("the token in the kubeconfig of cluster {:?} has characters no token has", self.cluster);
                ProviderError::because(Reason::CredentialMissing, FailureClass::NeedsOperator, why)
            })?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let body = ask.body.as_ref().map(|(_, body)| Bytes::copy_from_slice(body)).unwrap_or_default();
        request.body(Full::new(body)).map_err(|_| {
            ProviderError::refused(
                FailureClass::InvalidInput,
                format!("{:?} is no path to ask {} for", ask.path, self.what),
            )
        })
    }

    async fn connect(&self) -> ProviderResult<SendRequest<Full<Bytes>>> {
        let until = self.deadline.min(Instant::now() + CONNECT);
        let late = |_| ProviderError::unreachable(self.what, "nothing answers there");
        let socket = timeout_at(until, TcpStream::connect((self.access.host.as_str(), self.access.port)));
        let socket = socket.await.map_err(late)?.map_err(|e| match e.kind() {
            ErrorKind::ConnectionRefused => ProviderError::connection_refused(self.what),
            _ => ProviderError::unreachable(self.what, &e.to_string()),
        })?;
        drop(socket.set_nodelay(true));
        let connector = TlsConnector::from(self.tls.clone());
        let stream = timeout_at(until, connector.connect(self.access.server_name(), socket)).await;
        let stream = stream.map_err(late)?.map_err(|e| self.no_handshake(&e))?;
        let opened = timeout_at(until, handshake(TokioIo::new(stream))).await.map_err(late)?;
        let (sender, connection) = opened.map_err(|e| ProviderError::unreachable(self.what, &e.to_string()))?;
        // ends with the sender
        drop(tokio::spawn(connection));
        Ok(sender)
    }

    fn no_handshake(&self, e: &std::io::Error) -> ProviderError {
        let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(why)) => {
                let message = format!(
                    "{} shows a certificate that the kubeconfig does not trust: {why}; if the cluster's authority was replaced on purpose, set the new kubeconfig with 'millwright credential set {} --kind kubeconfig'",
                    self.what, self.cluster
                );
                ProviderError::because(Reason::UntrustedCertificate, FailureClass::NeedsOperator, message)
            }
            Some(why) => ProviderError::bad_answer(self.what, &format!("no TLS handshake ({why})")),
            None => ProviderError::unreachable(self.what, &format!("the connection broke while it was opened ({e})")),
        }
    }
}

/// As HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn time(date: &str) -> Option<Timestamp> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(Timestamp::from_micros(time.as_microsecond()))
}

/// As a part of a path or query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_as_http_writes_it() {
        assert_eq!(time("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Timestamp::from_micros(784_111_777_000_000)));
        assert_eq!(time("soon"), None);
    }

    #[test]
    fn what_stands_in_a_path_is_encoded() {
        assert_eq!(encoded("a-1.b_c~"), "a-1.b_c~");
        assert_eq!(encoded("../x?y=ä&"), "..%2Fx%3Fy%3D%C3%A4%26");
    }
}
