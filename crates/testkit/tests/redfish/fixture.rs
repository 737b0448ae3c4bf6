//! Adapters for tests: patient where patience is not the subject, and a password that must be found nowhere.

use domain::Reason;
use domain::Secret;
use domain::credential::BmcLogin;
use domain::endpoint::{BmcEndpoint, BmcProtocol};
use provider::{Ack, ProviderError, ProviderResult};
use redfish::{Redfish, Timeouts, Trust};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use testkit::canary;
use testkit::redfish_responder::{Options, Responder};

/// The same in the whole process.
pub fn password() -> &'static str {
    static PASSWORD: OnceLock<String> = OnceLock::new();
    PASSWORD.get_or_init(|| canary::plant("bmc"))
}

pub fn options() -> Options {
    Options { password: password().to_owned(), ..Options::default() }
}

pub fn login() -> BmcLogin {
    BmcLogin { username: Options::default().username, password: Secret::new(password()) }
}

/// Nothing here is to be decided by the time it takes.
pub fn patient() -> Timeouts {
    let minute = Duration::from_secs(60);
    let poll = Duration::from_millis(5);
    Timeouts { connect: minute, request: minute, task: minute, poll, describe: minute, idle: minute }
}

/// Gives up on what is never answered, and on nothing else that a busy machine does.
pub fn impatient() -> Timeouts {
    Timeouts { request: Duration::from_secs(4), ..patient() }
}

pub fn endpoint(text: &str) -> BmcEndpoint {
    BmcEndpoint::parse(text).expect("an endpoint")
}

pub fn adapter(text: &str, login: BmcLogin, timeouts: Timeouts) -> Redfish {
    listen();
    let endpoint = endpoint(text);
    let trust = if endpoint.protocol == BmcProtocol::RedfishPlain { Trust::Plain } else { Trust::Insecure };
    Redfish::new(&endpoint, trust, login, "rack-12", timeouts)
}

/// A responder and its first system.
pub async fn one(options: Options) -> (Responder, Redfish) {
    let responder = Responder::start(options).await;
    let bmc = adapter(&responder.endpoint(1), login(), patient());
    (responder, bmc)
}

/// A no, with this reason and these words in it.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: ProviderResult<T>, reason: Reason, words: &[&str]) -> String {
    let e = result.expect_err("a no");
    assert!(matches!(e, ProviderError::Refused { .. }), "{e:?}");
    let text = e.to_string();
    assert_eq!(e.reason(), reason, "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    assert!(!format!("{e:?}").contains("cnry_"), "a secret is in it");
    text
}

/// Sent, and nobody knows.
#[track_caller]
pub fn unknown<T: std::fmt::Debug>(result: ProviderResult<T>) -> String {
    let e = result.expect_err("nobody knows");
    assert!(matches!(e, ProviderError::Unknown { .. }), "{e:?}");
    assert!(!format!("{e:?}").contains("cnry_"), "a secret is in it");
    e.to_string()
}

#[track_caller]
pub fn done(result: ProviderResult<Ack>) {
    assert_eq!(result.expect("a yes"), Ack::Done);
}

#[track_caller]
pub fn accepted(result: ProviderResult<Ack>) {
    assert_eq!(result.expect("a yes"), Ack::Accepted);
}

/// Waits until it is so.
pub async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let begun = tokio::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < Duration::from_secs(120), "it took too long until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

// ---- everything that is traced, in the whole process ----

static TRACED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Tap;

impl std::io::Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        TRACED.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// From the first adapter on.
fn listen() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let all = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(|| Tap);
        all.try_init().expect("the first subscriber");
    });
}

pub fn traced() -> String {
    String::from_utf8_lossy(&TRACED.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}
