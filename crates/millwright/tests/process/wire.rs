//! A client's way to the servers: it asks until it is answered, and goes to another server when one does
//! not answer. Only a server's own word counts as an answer; a broken connection leaves things in doubt.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use testkit::server::{Door, door};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// What has not been answered by then is not going to be.
const PATIENCE: Duration = Duration::from_secs(120);
/// One try. A server that is stopped in its tracks answers nothing; one on a busy machine answers late.
const ONE_TRY: Duration = Duration::from_secs(15);
/// Nobody listened, or whoever did stopped before the connection was made; the connection was closed while the request
/// still waited its turn in the client, or before it could be written; or the server said good-bye without having begun
/// with it (an HTTP/2 GOAWAY, which most clients hide by asking again).
const NEVER_BEGUN: [&str; 4] = [
    "tcp connect error",
    "operation was canceled: connection closed",
    "stream closed because of a broken pipe",
    "connection error received: not a result of an error",
];
const PAUSE: Duration = Duration::from_millis(25);

/// What became of all that was asked.
#[derive(Default)]
pub struct Tally {
    pub answered: AtomicU64,
    /// Told to come back later, with a hint when.
    pub told_to_wait: AtomicU64,
    /// No server has begun with it.
    pub never_begun: AtomicU64,
    /// Broken off after it may have been sent, in words.
    pub cut: Mutex<Vec<String>>,
}

impl Tally {
    pub fn cuts(&self) -> Vec<String> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// The servers there are, by their addresses, with a token that all of them know.
#[derive(Clone)]
pub struct Wire {
    channels: Arc<Vec<Channel>>,
    token: Arc<String>,
    at: Arc<AtomicUsize>,
    pub tally: Arc<Tally>,
}

/// A server's own refusal.
#[derive(Debug)]
pub struct Refused {
    pub code: Code,
    pub reason: String,
    #[allow(dead_code)] // shown when a test fails
    pub message: String,
}

pub fn connect(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).expect("a URL").connect_timeout(ONE_TRY).timeout(ONE_TRY).connect_lazy()
}

impl Wire {
    pub fn to(urls: &[&str], token: &str) -> Self {
        Self {
            channels: Arc::new(urls.iter().map(|url| connect(url)).collect()),
            token: Arc::new(token.to_owned()),
            at: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// The same servers over a connection of its own, beginning with the `n`th.
    pub fn another(&self, urls: &[&str], n: usize) -> Self {
        let at = Arc::new(AtomicUsize::new(n));
        Self { at, tally: self.tally.clone(), ..Self::to(urls, &self.token) }
    }

    /// The same connection with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Arc::new(token.to_owned()), ..self.clone() }
    }

    pub fn door(&self) -> Door {
        let at = self.at.load(Ordering::Relaxed) % self.channels.len();
        door(self.channels[at].clone(), Some(&self.token))
    }

    pub fn next_server(&self) {
        self.at.fetch_add(1, Ordering::Relaxed);
    }

    /// Goes to the `n`th server from here on.
    pub fn go_to(&self, n: usize) {
        self.at.store(n, Ordering::Relaxed);
    }

    /// Asks until a server answers. The request must be one that may be repeated.
    pub async fn ask<T, F>(&self, what: &str, call: impl Fn(Door) -> F) -> Result<T, Refused>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let begun = Instant::now();
        loop {
            let status = match call(self.door()).await {
                Ok(answer) => {
                    self.tally.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(answer.into_inner());
                }
                Err(status) => status,
            };
            if let Some(refused) = self.judge(what, &status) {
                return Err(refused);
            }
            assert!(begun.elapsed() < PATIENCE, "{what} was never answered: {status:?}");
            self.next_server();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A refusal that is final; `None`: ask again.
    pub fn judge(&self, what: &str, status: &Status) -> Option<Refused> {
        if let Some(info) = status.get_details_error_info() {
            assert_ne!(status.code(), Code::Internal, "{what}: a defect: {status:?}");
            let again = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted | Code::Aborted);
            if again && info.reason != "VERSION_MISMATCH" {
                let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
                assert!(hint.is_some_and(|delay| !delay.is_zero()), "{what}: no hint when to come back: {status:?}");
                self.tally.told_to_wait.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            return Some(Refused { code: status.code(), reason: info.reason, message: status.message().to_owned() });
        }
        let words = in_words(status);
        if NEVER_BEGUN.iter().any(|never| words.contains(never)) {
            self.tally.never_begun.fetch_add(1, Ordering::Relaxed);
        } else {
            self.tally.cut.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{what}: {words}"));
        }
        None
    }
}

/// A broken connection with all its reasons.
fn in_words(status: &Status) -> String {
    let mut words = format!("{:?} {}", status.code(), status.message());
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        write!(words, ": {error}").expect("a text");
        source = error.source();
    }
    words
}

/// A request that carries the caller's key, so that it can be repeated and is done once.
pub fn keyed<T>(message: T, key: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("x-idempotency-key", key.parse().expect("printable"));
    request
}
