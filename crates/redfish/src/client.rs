//! A controller as one talks to it: logged in, redirected, told to come back later, and with each kind of no
//! told apart. What changes something and has no answer is unknown, and is never sent again from here.

use crate::json;
use crate::trust::Trust;
use crate::wire::{Answer, Ask, Lost, Wire};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use domain::credential::BmcLogin;
use domain::endpoint::BmcEndpoint;
use domain::stage::FailureClass;
use domain::{Secret, limits};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, IF_MATCH, RETRY_AFTER};
use http::{HeaderMap, Method, Uri};
use provider::{ProviderError, ProviderResult};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

pub const ROOT: &str = "/redfish/v1/";
const TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
const REDIRECTS_MAX: usize = 3;
/// After a refused login nobody tries again for so long: controllers lock accounts.
const LOGIN_PAUSE: Duration = Duration::from_secs(300);

/// How long one waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A connection, its TLS handshake included.
    pub connect: Duration,
    /// A question with all it takes: connection, login, redirects, one wait when it is busy.
    pub request: Duration,
    /// The task that a change becomes, before it is called accepted and left to itself.
    pub task: Duration,
    /// Between two looks at a task or at a change that has not shown yet.
    pub poll: Duration,
    /// A whole description. What is not read by then is a gap in it.
    pub describe: Duration,
    /// An unused connection is closed after this.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            request: seconds(20),
            task: seconds(60),
            poll: seconds(1),
            describe: seconds(120),
            idle: seconds(5),
        }
    }
}

pub struct Client {
    pub name: String,
    pub host: String,
    pub timeouts: Timeouts,
    /// `https://host:port` and `host:port` of itself, for redirects that name it.
    authority: String,
    login: BmcLogin,
    credential: String,
    wire: Wire,
    auth: Mutex<Auth>,
}

enum Auth {
    /// Not yet tried.
    Unknown,
    /// `number` tells this login from the one before.
    Session {
        token: Secret,
        at: Option<String>,
        number: u64,
    },
    /// It has no sessions.
    Basic,
    Refused {
        since: Instant,
    },
}

/// What goes with a question.
enum Pass {
    Session { token: Secret, number: u64, fresh: bool },
    Basic,
    Nothing,
}

/// A yes to a change.
pub enum Yes {
    Done(Value, Option<String>),
    /// Accepted; its end is seen at this path, if one was given.
    Task(Option<String>),
}

impl Client {
    pub fn new(endpoint: &BmcEndpoint, trust: &Trust, login: BmcLogin, credential: &str, timeouts: Timeouts) -> Self {
        let at = endpoint.at();
        let scheme = if *trust == Trust::Plain { "http" } else { "https" };
        let name = format!("the BMC at {scheme}://{at}{} (Redfish)", endpoint.system);
        let wire = Wire::new(&name, at.clone(), trust, &timeouts);
        Self {
            name,
            host: endpoint.host.clone(),
            timeouts,
            authority: at.to_string(),
            login,
            credential: credential.to_owned(),
            wire,
            auth: Mutex::new(Auth::Unknown),
        }
    }

    pub fn username(&self) -> &str {
        &self.login.username
    }

    pub fn hang_up(&self) {
        self.wire.hang_up();
    }

    pub fn refused(&self, class: FailureClass, why: &str) -> ProviderError {
        ProviderError::refused(class, format!("{} {}", self.name, limits::short(&self.blot(why))))
    }

    pub fn bad_answer(&self, why: &str) -> ProviderError {
        ProviderError::bad_answer(&self.name, &limits::short(&self.blot(why)))
    }

    pub fn lacks(&self, what: &str) -> ProviderError {
        ProviderError::capability_missing(&self.name, &limits::short(&self.blot(what)))
    }

    /// Controllers have been seen to answer with the question, password and all.
    fn blot(&self, text: &str) -> String {
        let basic = Secret::new(self.basic());
        basic.blot(&self.login.password.blot(text))
    }

    fn basic(&self) -> String {
        BASE64.encode(format!("{}:{}", self.login.username, self.login.password.reveal()))
    }

    pub async fn get(&self, path: &str) -> ProviderResult<Value> {
        let answer = self.request(Method::GET, path, None, &[]).await?;
        self.value(path, &answer)
    }

    /// `None`: there is no such thing.
    pub async fn get_if_there(&self, path: &str) -> ProviderResult<Option<Value>> {
        let answer = self.request(Method::GET, path, None, &[]).await?;
        if answer.status == 404 { Ok(None) } else { self.value(path, &answer).map(Some) }
    }

    /// The service root, which everybody may read.
    pub async fn root(&self) -> ProviderResult<Answer> {
        self.send(Method::GET, ROOT, None, &[], true, Instant::now() + self.timeouts.request).await
    }

    pub fn value(&self, path: &str, answer: &Answer) -> ProviderResult<Value> {
        if answer.status != 200 {
            return Err(self.no(&format!("does not show {path}"), answer));
        }
        serde_json::from_slice(&answer.body).map_err(|e| self.bad_answer(&format!("{path} is not JSON: {e}")))
    }

    /// Asks once, and gives the raw answer: for tasks, whose status is half of what they tell.
    pub async fn look(&self, path: &str) -> ProviderResult<Answer> {
        self.request(Method::GET, path, None, &[]).await
    }

    /// Changes something. `what` completes the sentence "the BMC … refuses to …".
    pub async fn change(&self, method: Method, path: &str, body: &Value, what: &str) -> ProviderResult<Yes> {
        let bytes = Bytes::from(body.to_string());
        let mut answer = self.request(method.clone(), path, Some(bytes.clone()), &[]).await?;
        if matches!(answer.status, 412 | 428) {
            // it wants to hear which version is changed, and has changed nothing
            let seen = self.request(Method::GET, path, None, &[]).await?;
            let tag = header(&seen.headers, "etag").unwrap_or_else(|| {
                json::text(&serde_json::from_slice(&seen.body).unwrap_or(Value::Null), "/@odata.etag")
            });
            if let Ok(tag) = HeaderValue::from_str(&tag) {
                answer = self.request(method, path, Some(bytes), &[(IF_MATCH, tag)]).await?;
            }
        }
        if !(200..300).contains(&answer.status) {
            return Err(self.no_to_a_change(what, &answer));
        }
        // the status is the yes; a body that cannot be read takes nothing from it
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        let place = header(&answer.headers, "location").and_then(|to| self.local(&to));
        if answer.status != 202 {
            return Ok(Yes::Done(value, place));
        }
        let in_body = value.get("@odata.id").and_then(Value::as_str).filter(|path| json::is_path(path));
        Ok(Yes::Task(place.or_else(|| in_body.map(str::to_owned))))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        headers: &[(HeaderName, HeaderValue)],
    ) -> ProviderResult<Answer> {
        self.send(method, path, body, headers, false, Instant::now() + self.timeouts.request).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        headers: &[(HeaderName, HeaderValue)],
        open_to_all: bool,
        deadline: Instant,
    ) -> ProviderResult<Answer> {
        let mut path = path.to_owned();
        let (mut hops, mut renewed, mut waited) = (0, false, false);
        loop {
            let pass = if open_to_all { Pass::Nothing } else { self.pass(deadline).await? };
            let mut headers = headers.to_vec();
            headers.extend(self.pass_header(&pass)?);
            let ask = Ask { method: method.clone(), path: path.clone(), headers, body: body.clone() };
            let mut answer = self.wire.exchange(&ask, deadline).await.map_err(|lost| self.lost(&ask, lost))?;
            if let (400.., Pass::Session { token, .. }) = (answer.status, &pass) {
                // what is said about a no may quote what it was asked with
                answer.body = Bytes::from(token.blot(&String::from_utf8_lossy(&answer.body)));
            }
            tracing::debug!(bmc = %self.name, %method, path, status = answer.status, "Redfish");
            match answer.status {
                401 if !open_to_all => match pass {
                    // the session has ended; nothing was done
                    Pass::Session { number, fresh: false, .. } if !renewed => {
                        renewed = true;
                        self.forget(number).await;
                    }
                    _ => return Err(self.login_refused().await),
                },
                301 | 302 | 303 | 307 | 308
                    if hops < REDIRECTS_MAX && (method == Method::GET || answer.status > 303) =>
                {
                    hops += 1;
                    let to = header(&answer.headers, "location").unwrap_or_default();
                    path = self.local(&to).ok_or_else(|| {
                        self.bad_answer(&format!("{path} redirects to {to:?}, which is not on this controller"))
                    })?;
                }
                429 | 503 if !waited => {
                    let Some(pause) = retry_after(&answer.headers).filter(|p| Instant::now() + *p < deadline) else {
                        return Ok(answer);
                    };
                    waited = true;
                    tokio::time::sleep(pause).await;
                }
                _ => return Ok(answer),
            }
        }
    }

    /// What its failure means for a question: a read can simply be asked again, a change that was sent cannot.
    fn lost(&self, ask: &Ask, lost: Lost) -> ProviderError {
        let changes = ask.method != Method::GET && !is_login(ask);
        let about = format!("{} {}", ask.method, ask.path);
        let unknown = |why: &str| ProviderError::unknown(format!("{}: {about}: {why}", self.name));
        match lost {
            Lost::NoWay(e) => e,
            Lost::Unsent(why) => ProviderError::unreachable(&self.name, &format!("the connection broke: {why}")),
            Lost::Silent if changes => unknown("no answer within its time"),
            Lost::Silent => ProviderError::unreachable(&self.name, &format!("no answer to {about} within its time")),
            Lost::Broken(why) if changes => unknown(&why),
            Lost::Broken(why) => {
                ProviderError::unreachable(&self.name, &format!("the connection broke at {about}: {why}"))
            }
            Lost::Garbled(why) if changes => unknown(&why),
            Lost::Garbled(why) => self.bad_answer(&format!("{about}: {why}")),
            Lost::Cut(status, why) if changes && !(400..500).contains(&status) => {
                unknown(&format!("status {status}, but {why}"))
            }
            Lost::Cut(status, why) => self.bad_answer(&format!("{about}: status {status}, but {why}")),
        }
    }

    /// That something broke inside of it does not say how far it got: it may have been done. Only who says that it
    /// cannot (501) or that one should come back later has certainly not begun.
    fn no_to_a_change(&self, what: &str, answer: &Answer) -> ProviderError {
        let not_begun = match answer.status {
            501 => true,
            503 => answer.headers.contains_key(RETRY_AFTER),
            status => status < 500,
        };
        if not_begun {
            return self.no(&format!("refuses to {what}"), answer);
        }
        let (said, status) = (said(&answer.body), answer.status);
        let why = format!("failed when told to {what}{said} (HTTP status {status})");
        ProviderError::unknown(format!("{} {}", self.name, limits::short(&self.blot(&why))))
    }

    /// A no of the controller, with what it says about it.
    fn no(&self, what: &str, answer: &Answer) -> ProviderError {
        let (said, status) = (said(&answer.body), answer.status);
        let class = match status {
            405 | 501 => {
                let about = what.strip_prefix("refuses to ").unwrap_or(what);
                return self.lacks(&format!("a way to {about} (HTTP status {status}{said})"));
            }
            401 | 403 => FailureClass::NeedsOperator,
            409 => FailureClass::Conflict,
            404 | 408 | 429 | 500.. => FailureClass::Transient,
            _ => FailureClass::InvalidInput,
        };
        self.refused(class, &format!("{what}{said} (HTTP status {status})"))
    }

    /// A place on this controller, whichever way it is written.
    fn local(&self, to: &str) -> Option<String> {
        let uri: Uri = to.parse().ok()?;
        if let Some(authority) = uri.authority() {
            let host = authority.host().trim_start_matches('[').trim_end_matches(']');
            let same = authority.as_str() == self.authority || (authority.port().is_none() && host == self.host);
            if !same {
                return None;
            }
        }
        let path = uri.path_and_query()?.as_str();
        json::is_path(path).then(|| path.to_owned())
    }

    // ---- being let in ----

    async fn pass(&self, deadline: Instant) -> ProviderResult<Pass> {
        // somebody else may be logging in, and that may take its time
        let late = |_| ProviderError::unreachable(&self.name, "no login within its time");
        let mut auth = timeout_at(deadline, self.auth.lock()).await.map_err(late)?;
        let pass = |token: &Secret, number, fresh| Pass::Session { token: token.clone(), number, fresh };
        match &*auth {
            Auth::Session { token, number, .. } => return Ok(pass(token, *number, false)),
            Auth::Basic => return Ok(Pass::Basic),
            Auth::Refused { since } if since.elapsed() < LOGIN_PAUSE => {
                return Err(ProviderError::login_refused(&self.name, &self.credential));
            }
            Auth::Refused { .. } | Auth::Unknown => {}
        }
        *auth = self.log_in(deadline).await?;
        match &*auth {
            Auth::Session { token, number, .. } => Ok(pass(token, *number, true)),
            Auth::Basic => Ok(Pass::Basic),
            Auth::Unknown | Auth::Refused { .. } => Err(ProviderError::login_refused(&self.name, &self.credential)),
        }
    }

    fn pass_header(&self, pass: &Pass) -> ProviderResult<Option<(HeaderName, HeaderValue)>> {
        let (name, text) = match pass {
            Pass::Nothing => return Ok(None),
            Pass::Session { token, .. } => (TOKEN, token.clone()),
            Pass::Basic => (AUTHORIZATION, Secret::new(format!("Basic {}", self.basic()))),
        };
        let value = HeaderValue::from_str(text.reveal());
        let mut value = value.map_err(|_| self.bad_answer("the token of its session is no text"))?;
        value.set_sensitive(true);
        Ok(Some((name, value)))
    }

    /// Asks for a session; without a session service the password goes with every question.
    async fn log_in(&self, deadline: Instant) -> ProviderResult<Auth> {
        let root = Box::pin(self.send(Method::GET, ROOT, None, &[], true, deadline)).await?;
        let root: Value = serde_json::from_slice(&root.body).unwrap_or(Value::Null);
        let listed = json::link(&root, "/Links/Sessions");
        let service = json::link(&root, "/SessionService").map(|at| format!("{}/Sessions", at.trim_end_matches('/')));
        let Some(place) = listed.or(service) else { return Ok(Auth::Basic) };
        let body = json!({"UserName": self.login.username, "Password": self.login.password.reveal()});
        let body = Some(Bytes::from(body.to_string()));
        let answer = Box::pin(self.send(Method::POST, &place, body, &[], true, deadline)).await?;
        match answer.status {
            200..300 => {
                let body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
                let at = header(&answer.headers, "location").and_then(|to| self.local(&to));
                let at = at.or_else(|| Some(json::text(&body, "/@odata.id")).filter(|path| json::is_path(path)));
                let Some(token) = header(&answer.headers, TOKEN.as_str()) else { return Ok(Auth::Basic) };
                let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(Auth::Session { token: Secret::new(token), at, number })
            }
            404 | 405 | 501 => Ok(Auth::Basic),
            401 | 403 => Ok(Auth::Refused { since: Instant::now() }),
            _ => Err(self.no("opens no session", &answer)),
        }
    }

    /// This session is over, unless somebody has already opened another.
    async fn forget(&self, ended: u64) {
        let mut auth = self.auth.lock().await;
        if matches!(&*auth, Auth::Session { number, .. } if *number == ended) {
            *auth = Auth::Unknown;
        }
    }

    async fn login_refused(&self) -> ProviderError {
        *self.auth.lock().await = Auth::Refused { since: Instant::now() };
        ProviderError::login_refused(&self.name, &self.credential)
    }

    /// Whether there is one to end. Who is just logging in will have one.
    pub fn has_session(&self) -> bool {
        match self.auth.try_lock() {
            Ok(auth) => matches!(&*auth, Auth::Session { at: Some(_), .. }),
            Err(_) => true,
        }
    }

    /// Ends the session, if one is open: controllers have few of them.
    pub async fn log_out(&self) -> ProviderResult<()> {
        let mut auth = self.auth.lock().await;
        let Auth::Session { token, at: Some(at), number } = std::mem::replace(&mut *auth, Auth::Unknown) else {
            return Ok(());
        };
        drop(auth);
        let header = self.pass_header(&Pass::Session { token, number, fresh: false })?;
        let ask = Ask { method: Method::DELETE, path: at, headers: header.into_iter().collect(), body: None };
        let answer = self.wire.exchange(&ask, Instant::now() + self.timeouts.request).await;
        answer.map(drop).map_err(|lost| self.lost(&ask, lost))
    }
}

/// Numbers logins, so that one that has ended is told from its successor.
static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// A login changes nothing that anybody would have to look for.
fn is_login(ask: &Ask) -> bool {
    ask.method == Method::POST && ask.path.trim_end_matches('/').ends_with("/Sessions")
}

pub fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// In seconds. A date is not understood: their clocks are not ours.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    header(headers, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

fn said(body: &[u8]) -> String {
    let said = messages(body);
    if said.is_empty() { said } else { format!(": {said}") }
}

/// What an error says: the messages of `@Message.ExtendedInfo`, else its one message, else the names of messages.
pub fn messages(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let lists = ["/error/@Message.ExtendedInfo", "/@Message.ExtendedInfo", "/Messages"];
    let all = |field: &str| {
        let mut found = lists.into_iter().map(|at| joined(json::list(&value, at), field));
        found.find(|text| !text.is_empty()).unwrap_or_default()
    };
    let said = [all("/Message"), json::first_text(&value, &["/error/message", "/message"]), all("/MessageId")];
    said.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn joined(messages: &[Value], field: &str) -> String {
    let mut all: Vec<String> =
        messages.iter().take(8).map(|message| json::text(message, field)).filter(|text| !text.is_empty()).collect();
    all.dedup();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_most_that_it_can() {
        let said = |value: Value| messages(value.to_string().as_bytes());
        let info = json!([{"MessageId": "Base.1.0.A", "Message": "The lid is open."}, {"Message": "Close it."}]);
        let whole = json!({"error": {"message": "see below", "@Message.ExtendedInfo": info}});
        assert_eq!(said(whole), "The lid is open.; Close it.");
        // sushy-emulator's form
        let names =
            json!({"error": {"message": "No such disk", "@Message.ExtendedInfo": [{"MessageId": "Base.1.0.A"}]}});
        assert_eq!(said(names), "No such disk");
        assert_eq!(said(json!({"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.0.A"}]}})), "Base.1.0.A");
        assert_eq!(said(json!({"Messages": [{"Message": "done"}]})), "done");
        assert_eq!((said(json!([1])), messages(b"<html>")), (String::new(), String::new()));
    }
}
