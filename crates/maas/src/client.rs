//! One site as one talks to it: each attempt with a login of its own, reads repeated a little, changes never, and each
//! kind of no told apart.

use crate::access::{Address, Key, pairs, unix_seconds};
use crate::gate::{Gate, Turn};
use crate::judge::Judged;
use crate::options::Options;
use crate::said::clean;
use crate::sunk::{Sink, Whole};
use crate::wire::{Answer, Ask, Lost, Wire};
use bytes::Bytes;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use http::Method;
use http::header::{DATE, RETRY_AFTER};
use provider::{MaasAccess, ProviderError, ProviderResult};
use serde::de::DeserializeOwned;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Of an answer about one thing.
pub const ONE_MAX: usize = 4 * 1024 * 1024;
/// A site may say when to come back; later than this the caller decides.
const COME_BACK_MAX: Duration = Duration::from_secs(10);

/// A site's line as somebody uses it: as everybody does, or in one turn for several calls.
pub struct Client {
    line: Arc<Line>,
    turn: Option<Turn>,
    /// Something that may change something was sent.
    sent: AtomicBool,
}

impl Deref for Client {
    type Target = Line;

    fn deref(&self) -> &Line {
        &self.line
    }
}

/// What all who talk to one site share.
pub struct Line {
    pub site: String,
    /// The site, in words.
    pub name: String,
    pub options: Options,
    key: Key,
    wire: Wire,
    pub gate: Gate,
    /// Its clock minus ours, in milliseconds, as of its last answer.
    pub ahead: Mutex<Option<i64>>,
    /// Whether our key was taken here before: without one, a create would be a stranger's.
    pub known: AtomicBool,
}

/// What is asked.
pub struct Call {
    pub method: Method,
    /// Below `api/2.0/`, with its slash at the end.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub form: Vec<(String, String)>,
    /// What goes on meanwhile, in words: "deploying machine abc123".
    pub doing: String,
    pub limit: Duration,
    /// What must not be repeated from what is said about it.
    pub secrets: Vec<Secret>,
    /// MAAS asks somebody else for the answer.
    pub slow: bool,
}

impl Call {
    pub fn get(path: impl Into<String>, doing: impl Into<String>, limit: Duration) -> Self {
        Self::new(Method::GET, path, doing, limit)
    }

    pub fn new(method: Method, path: impl Into<String>, doing: impl Into<String>, limit: Duration) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            form: Vec::new(),
            doing: doing.into(),
            limit,
            secrets: Vec::new(),
            slow: false,
        }
    }

    pub fn op(self, op: &'static str) -> Self {
        self.query("op", op)
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub fn field(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.form.push((name.into(), value.into()));
        self
    }

    /// Left out when it is empty: MAAS takes an empty field for a wish.
    pub fn field_if_any(self, name: &str, value: &str) -> Self {
        if value.is_empty() { self } else { self.field(name, value) }
    }

    /// `true`, or not there at all: whatever else stands in such a field means yes to some of them.
    pub fn checked(self, name: &str, yes: bool) -> Self {
        if yes { self.field(name, "true") } else { self }
    }

    pub fn secret(mut self, secret: &Secret) -> Self {
        self.secrets.push(secret.clone());
        self
    }

    pub fn is_change(&self) -> bool {
        self.method != Method::GET
    }
}

impl Client {
    pub fn new(access: &MaasAccess, options: Options) -> ProviderResult<Self> {
        let (at, key) = (Address::of(access)?, Key::of(access)?);
        let name = format!("the MAAS of site {}", clean(&access.site, domain::limits::NAME_MAX));
        let idle = usize::try_from(access.calls_max).unwrap_or(1).clamp(1, 16);
        let line = Line {
            site: access.site.clone(),
            wire: Wire::new(&name, at, &options, idle),
            gate: Gate::new(&name, access.calls_max, &options),
            name,
            options,
            key,
            ahead: Mutex::default(),
            known: AtomicBool::new(false),
        };
        Ok(Self { line: Arc::new(line), turn: None, sent: AtomicBool::new(false) })
    }

    /// The same line, in a turn of its own until it is dropped. One that is left alone is not queued for: what is asked of
    /// it says so.
    pub async fn in_turn(&self, within: Duration) -> ProviderResult<Self> {
        let turn = match self.gate.is_resting() {
            true => None,
            false => Some(self.gate.turn(within).await?),
        };
        Ok(Self { line: self.line.clone(), turn, sent: AtomicBool::new(false) })
    }

    pub fn has_sent_a_change(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether somebody talks on the line beside whoever remembers it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.line) > 1
    }

    /// Asks, and has the body of a yes where it is wanted. `false`: what it was about is not there.
    pub async fn ask(&self, call: &Call, into: &mut dyn Sink) -> ProviderResult<bool> {
        let pass = self.gate.pass(call.slow, self.turn.is_some()).await?;
        let deadline = Instant::now() + call.limit;
        let mut repeats = if call.is_change() || call.slow { 0 } else { self.options.repeats };
        let mut pause = self.options.pause;
        loop {
            let come_back;
            let (silent, judged) = match self.once(call, deadline, into).await? {
                Ok(answer) => {
                    come_back = retry_after(&answer);
                    (no_maas_behind(call, answer.status), self.judge(call, &answer))
                }
                Err(lost) => {
                    come_back = None;
                    let silent = match &lost {
                        Lost::NoWay(e) => is_away(e),
                        Lost::Unsent(_) | Lost::Silent | Lost::Broken(_) => true,
                        Lost::Garbled(_) => false,
                    };
                    (silent, Judged::No(self.lost(call, lost)))
                }
            };
            let no = match judged {
                Judged::There => {
                    pass.heard();
                    return Ok(true);
                }
                Judged::NotThere => {
                    pass.heard();
                    return Ok(false);
                }
                Judged::No(no) => no,
            };
            let wait = come_back.unwrap_or(pause);
            let again = repeats > 0 && may_pass(&no) && wait <= COME_BACK_MAX && Instant::now() + wait < deadline;
            if !again {
                if silent {
                    pass.silent(&no);
                } else {
                    pass.heard();
                }
                return Err(no);
            }
            tokio::time::sleep(wait).await;
            repeats -= 1;
            pause *= 3;
        }
    }

    async fn once(&self, call: &Call, deadline: Instant, into: &mut dyn Sink) -> ProviderResult<Result<Answer, Lost>> {
        let query = pairs(call.query.iter().map(|(name, value)| (*name, value.as_str())));
        let mark = if query.is_empty() { "" } else { "?" };
        let path = format!("{}/api/2.0/{}{mark}{query}", self.wire.base(), call.path);
        let form = pairs(call.form.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let form = call.is_change().then(|| Bytes::from(form));
        let ask = Ask { method: call.method.clone(), path, form, login: self.key.header()? };
        if call.is_change() {
            self.sent.store(true, Ordering::Relaxed);
        }
        let answered = self.wire.exchange(&ask, deadline, into).await;
        let status = answered.as_ref().map_or(0, |answer| answer.status);
        if let Some(ahead) = answered.as_ref().ok().and_then(clock_ahead) {
            *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead);
        }
        tracing::debug!(site = self.site, method = %call.method, path = call.path, status, "asked a MAAS");
        Ok(answered)
    }

    /// What is read, whole.
    pub async fn read<T: DeserializeOwned>(&self, call: &Call, most: usize) -> ProviderResult<Option<T>> {
        let mut whole = Whole::of(most);
        if !self.ask(call, &mut whole).await? {
            return Ok(None);
        }
        self.parse(call, &whole.body).map(Some)
    }

    /// Makes a change, and reads what is said to it. Without an answer that can be read nobody knows.
    pub async fn tell<T: DeserializeOwned>(&self, call: &Call) -> ProviderResult<T> {
        let mut whole = Whole::of(ONE_MAX);
        self.told(call, &mut whole).await?;
        self.parse(call, &whole.body)
    }

    /// The same, for what must be there.
    pub async fn told(&self, call: &Call, into: &mut dyn Sink) -> ProviderResult<()> {
        if self.ask(call, into).await? { Ok(()) } else { Err(self.gone(call)) }
    }

    pub fn parse<T: DeserializeOwned>(&self, call: &Call, body: &[u8]) -> ProviderResult<T> {
        serde_json::from_slice(body).map_err(|e| self.not_understood(call, &crate::items::not_as_expected(&e)))
    }

    /// It said yes, and then something that cannot be right.
    pub fn not_understood(&self, call: &Call, why: &str) -> ProviderError {
        if call.is_change() {
            return ProviderError::unknown(format!(
                "{}: {}: the answer cannot be understood: {why}",
                self.name, call.doing
            ));
        }
        ProviderError::bad_answer(&self.name, &format!("{}: {why}", call.doing))
    }

    /// What came to no answer: a read can simply be asked again, a change that was sent cannot.
    fn lost(&self, call: &Call, lost: Lost) -> ProviderError {
        let unknown = |why: &str| ProviderError::unknown(format!("{}: {}: {why}", self.name, call.doing));
        let within = || format!("no answer within {:.0} s", call.limit.as_secs_f32());
        match lost {
            Lost::NoWay(e) => e,
            Lost::Unsent(why) => self.wire.unreachable(&format!("{}: the connection broke: {why}", call.doing)),
            Lost::Silent if call.is_change() => unknown(&within()),
            Lost::Silent => self.wire.unreachable(&format!("{}: {}", call.doing, within())),
            Lost::Broken(why) if call.is_change() => unknown(&why),
            Lost::Broken(why) => self.wire.unreachable(&format!("{}: {why}", call.doing)),
            Lost::Garbled(why) => self.not_understood(call, &why),
        }
    }

    /// Without the key and whatever secret the call has carried.
    pub fn blot(&self, call: &Call, text: &str) -> String {
        // one or two characters are no secret, and stand everywhere
        let secrets = call.secrets.iter().filter(|secret| secret.reveal().chars().count() > 2);
        secrets.fold(self.key.blot(text), |text, secret| secret.blot(&text))
    }
}

fn is_away(e: &ProviderError) -> bool {
    matches!(e.reason(), Reason::Unreachable | Reason::ConnectionRefused)
}

/// Whoever is in front of a MAAS that is down says so; about power, MAAS itself says the same of a BMC.
fn no_maas_behind(call: &Call, status: u16) -> bool {
    status == 502 || (matches!(status, 503 | 504) && !call.is_change() && !call.slow)
}

fn may_pass(no: &ProviderError) -> bool {
    match no {
        ProviderError::Refused { class, .. } => {
            matches!(class, FailureClass::Transient | FailureClass::DependencyDown)
        }
        ProviderError::Unknown { .. } => false,
    }
}

/// To the second, as the header has it.
fn clock_ahead(answer: &Answer) -> Option<i64> {
    let date = answer.headers.get(DATE)?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?.as_second();
    theirs.checked_sub(i64::try_from(unix_seconds()).ok()?)?.checked_mul(1000)
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
