//! Looking at a host without a login there: whether it answers, and which key it shows.

use crate::client::{self, Client, Wire};
use crate::peer::{Jump, Peer, named};
use domain::endpoint::HostPort;
use provider::{ProviderError, ProviderResult};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

/// A server may say something before it names its protocol; not more than this.
const GREETING_MAX: usize = 8 << 10;

/// The host key shown there, as OpenSSH's SHA-256 fingerprint: proven by the handshake, and nobody logs in there.
/// With a jump host: seen from that one, where we do log in.
pub async fn host_key_of(at: &HostPort, jump: Option<&Jump>, deadline: Duration) -> ProviderResult<String> {
    let (what, begun) = (named(at, jump), Instant::now());
    let via = match jump {
        None => None,
        Some(jump) => Some(stopover(&Peer::jump(jump), deadline).await?),
    };
    within(&what, deadline.saturating_sub(begun.elapsed()), client::shown_key(&what, at, via)).await
}

/// Whether an SSH server answers there: a connection and its greeting, no cryptography, no login.
pub async fn answers(at: &HostPort, deadline: Duration) -> ProviderResult<()> {
    let what = named(at, None);
    within(&what, deadline, async { greeted(&what, client::dial(&what, at).await?).await }).await
}

/// [`answers`], seen from a jump host, where we log in.
pub async fn answers_by_way_of(at: &HostPort, jump: &Jump, deadline: Duration) -> ProviderResult<()> {
    let (what, begun) = (named(at, Some(jump)), Instant::now());
    let via = stopover(&Peer::jump(jump), deadline).await?;
    within(&what, deadline.saturating_sub(begun.elapsed()), async {
        greeted(&what, via.pass_on(&what, at).await?).await
    })
    .await
}

/// A connection to a jump host, in a place of its own there. Half of the time is for the place, so that whoever waits
/// for one in vain still hears of it.
pub(crate) async fn stopover(jump: &Peer, deadline: Duration) -> ProviderResult<Client> {
    let begun = Instant::now();
    let place = match &jump.places {
        Some(places) => Some(places.take(&jump.what, deadline / 2).await?),
        None => None,
    };
    let left = deadline.saturating_sub(begun.elapsed());
    Ok(within(&jump.what, left, client::connect(jump, None)).await?.holding(place))
}

async fn greeted(what: &str, mut wire: impl Wire) -> ProviderResult<()> {
    let mut greeting = Vec::new();
    let mut piece = [0; 512];
    loop {
        let n = wire.read(&mut piece).await.map_err(|e| ProviderError::unreachable(what, &e.to_string()))?;
        greeting.extend_from_slice(&piece[..n]);
        let mut lines = greeting.split_inclusive(|b| *b == b'\n');
        if lines.any(|line| line.starts_with(b"SSH-") && line.ends_with(b"\n")) {
            return Ok(());
        }
        if n == 0 && greeting.is_empty() {
            return Err(ProviderError::unreachable(what, "it closes the connection before it says a word"));
        }
        if n == 0 || greeting.len() > GREETING_MAX {
            return Err(ProviderError::bad_answer(what, "it does not greet as an SSH server does"));
        }
    }
}

pub(crate) async fn within<T>(
    what: &str,
    deadline: Duration,
    work: impl Future<Output = ProviderResult<T>>,
) -> ProviderResult<T> {
    match tokio::time::timeout(deadline, work).await {
        Ok(done) => done,
        Err(_) => Err(ProviderError::unreachable(what, &format!("no answer within {} ms", deadline.as_millis()))),
    }
}
