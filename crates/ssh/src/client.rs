//! A connection to one host, and calls on it. Everything of the SSH library that we use is here and in `peer`, so
//! that a change of it ends here.

use crate::peer::{Peer, Place};
use domain::endpoint::HostPort;
use provider::{ProviderError, ProviderResult};
use russh::client::{self, AuthResult, Handle};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{ChannelMsg, ChannelOpenFailure, Preferred};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The shell that gets our scripts. Nothing else is ever asked to be run: this is all that a process list shows.
const SHELL: &str = "exec /bin/sh -s";
/// A peer that says nothing for so long is gone, whatever we wait for.
const SILENCE: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for S {}

/// What a peer told on the way, to be read when a call has failed.
#[derive(Default)]
struct Told {
    host_key: OnceLock<String>,
    /// Why it did not pass a connection on.
    refusal: Mutex<String>,
}

/// Judges the key that a host shows.
struct Judge {
    /// None: any; it is only looked at.
    pinned: Option<String>,
    told: Arc<Told>,
}

impl client::Handler for Judge {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        // certificates are not asked for
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        let shown = key.fingerprint(HashAlg::Sha256).to_string();
        let fine = self.pinned.as_ref().is_none_or(|pinned| *pinned == shown);
        // asked once for each connection
        let _ = self.told.host_key.set(shown);
        Ok(fine)
    }

    async fn channel_open_failure(
        &mut self,
        _: russh::ChannelId,
        _: ChannelOpenFailure,
        description: &str,
        _: &str,
        _: &mut client::Session,
    ) -> Result<(), russh::Error> {
        let text = description.chars().filter(|c| !c.is_control()).take(200).collect();
        *self.told.refusal.lock().unwrap_or_else(PoisonError::into_inner) = text;
        Ok(())
    }
}

/// Dropped: the connection ends.
pub(crate) struct Client {
    handle: Handle<Judge>,
    told: Arc<Told>,
    /// What carries this one.
    _via: Option<Box<Client>>,
    /// At a jump host.
    _place: Option<Place>,
}

/// What came of a call, also when it was cut short.
#[derive(Default)]
pub(crate) struct Heard {
    /// The other side may have begun to do it.
    pub sent: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why a call was not heard to its end.
pub(crate) struct Lost(pub String);

fn config() -> Arc<client::Config> {
    // what can be forged by those who can make SHA-1 collide is not asked for
    let ecdsa = |curve| Algorithm::Ecdsa { curve };
    let keys = vec![
        Algorithm::Ed25519,
        ecdsa(EcdsaCurve::NistP256),
        ecdsa(EcdsaCurve::NistP384),
        ecdsa(EcdsaCurve::NistP521),
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ];
    Arc::new(client::Config {
        client_id: russh::SshId::Standard(Cow::Borrowed("SSH-2.0-Millwright")),
        preferred: Preferred { key: Cow::Owned(keys), ..Preferred::DEFAULT },
        inactivity_timeout: Some(SILENCE),
        keepalive_interval: Some(KEEPALIVE),
        nodelay: true,
        ..client::Config::default()
    })
}

/// A TCP connection, or which of the ways in which there is none.
pub(crate) async fn dial(what: &str, at: &HostPort) -> ProviderResult<TcpStream> {
    let stream = TcpStream::connect((at.host.as_str(), at.port)).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::ConnectionRefused => ProviderError::connection_refused(what),
        _ => ProviderError::unreachable(what, &e.to_string()),
    })?;
    // small questions, each waited for
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Greets whoever is at the other end and sees its key proven. None pinned: only to look at it.
async fn greet(
    what: &str,
    wire: impl Wire,
    pinned: Option<String>,
    via: Option<Box<Client>>,
) -> ProviderResult<Client> {
    let told = Arc::new(Told::default());
    let judge = Judge { pinned: pinned.clone(), told: Arc::clone(&told) };
    match client::connect_stream(config(), wire, judge).await {
        Ok(handle) => Ok(Client { handle, told, _via: via, _place: None }),
        Err(e) => Err(match (e, pinned, told.host_key.get()) {
            (russh::Error::UnknownKey, Some(pinned), Some(shown)) => {
                ProviderError::host_key_changed(what, &pinned, shown)
            }
            (e @ (russh::Error::NoCommonAlgo { .. } | russh::Error::Version | russh::Error::WrongServerSig), _, _) => {
                ProviderError::bad_answer(what, &e.to_string())
            }
            (e, _, _) => ProviderError::unreachable(what, &format!("the SSH handshake failed: {e}")),
        }),
    }
}

/// Connected and logged in.
pub(crate) async fn connect(peer: &Peer, via: Option<Client>) -> ProviderResult<Client> {
    // before anything is asked of the network: without a key there is no use in it
    let key = peer.private_key().await?;
    let mut client = match via {
        None => greet(&peer.what, dial(&peer.what, &peer.at).await?, Some(peer.host_key.clone()), None).await?,
        Some(via) => {
            let wire = via.pass_on(&peer.what, &peer.at).await?;
            greet(&peer.what, wire, Some(peer.host_key.clone()), Some(Box::new(via))).await?
        }
    };
    client.log_in(peer, key).await?;
    Ok(client)
}

/// The fingerprint of the key shown there.
pub(crate) async fn shown_key(what: &str, at: &HostPort, via: Option<Client>) -> ProviderResult<String> {
    let client = match via {
        None => greet(what, dial(what, at).await?, None, None).await?,
        Some(via) => {
            let wire = via.pass_on(what, at).await?;
            greet(what, wire, None, Some(Box::new(via))).await?
        }
    };
    client.told.host_key.get().cloned().ok_or_else(|| ProviderError::bad_answer(what, "it shows no host key"))
}

impl Client {
    async fn log_in(&mut self, peer: &Peer, key: Arc<russh::keys::PrivateKey>) -> ProviderResult<()> {
        let lost = |e: russh::Error| ProviderError::unreachable(&peer.what, &format!("lost during the login: {e}"));
        let hash = match key.algorithm() {
            // servers that do not say which they take, take these
            Algorithm::Rsa { .. } => match self.handle.best_supported_rsa_hash().await.map_err(lost)? {
                Some(Some(HashAlg::Sha512)) => Some(HashAlg::Sha512),
                _ => Some(HashAlg::Sha256),
            },
            _ => None,
        };
        let key = PrivateKeyWithHashAlg::new(key, hash);
        match self.handle.authenticate_publickey(peer.login.username.clone(), key).await.map_err(lost)? {
            AuthResult::Success => Ok(()),
            // how the library tells of a connection that ended
            AuthResult::Failure { remaining_methods, partial_success: false } if remaining_methods.is_empty() => {
                Err(lost(russh::Error::Disconnect))
            }
            AuthResult::Failure { .. } => Err(ProviderError::login_refused(&peer.what, &peer.credential_name)),
        }
    }

    /// This connection has that place.
    pub fn holding(self, place: Option<Place>) -> Self {
        Self { _place: place, ..self }
    }

    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// A connection from this host to another.
    pub async fn pass_on(&self, what: &str, at: &HostPort) -> ProviderResult<impl Wire + use<>> {
        let opened = self.handle.channel_open_direct_tcpip(at.host.clone(), u32::from(at.port), "127.0.0.1", 0).await;
        match opened {
            Ok(channel) => Ok(channel.into_stream()),
            Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited)) => {
                let which = "the passing on of connections by the jump host (AllowTcpForwarding, PermitOpen)";
                Err(ProviderError::capability_missing(what, which))
            }
            Err(e) => {
                let why = self.told.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Err(if why.contains("refused") {
                    ProviderError::connection_refused(what)
                } else if why.is_empty() {
                    ProviderError::unreachable(what, &e.to_string())
                } else {
                    ProviderError::unreachable(what, &format!("the jump host says: {why}"))
                })
            }
        }
    }

    /// A shell there that waits for its script.
    pub async fn shell(&self) -> Result<Shell, Lost> {
        let mut channel = self.handle.channel_open_session().await?;
        channel.exec(true, SHELL).await?;
        loop {
            match channel.wait().await {
                Some(ChannelMsg::Success) => return Ok(Shell(channel)),
                Some(ChannelMsg::Failure) => return Err(Lost("it runs no shell for us".to_owned())),
                Some(ChannelMsg::Close) | None => return Err(Lost("it closed the channel".to_owned())),
                Some(_) => {}
            }
        }
    }
}

pub(crate) struct Shell(russh::Channel<client::Msg>);

impl Shell {
    /// Has it run this, and hears it out. `heard` holds what came also if this is given up.
    pub async fn run(self, script: &str, keep: usize, heard: &mut Heard) -> Result<(), Lost> {
        let Self(mut channel) = self;
        heard.sent = true;
        channel.data(script.as_bytes()).await?;
        channel.eof().await?;
        loop {
            match channel.wait().await {
                Some(ChannelMsg::Data { data }) => put(&mut heard.stdout, &data, keep),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => put(&mut heard.stderr, &data, keep),
                Some(ChannelMsg::Close) => return Ok(()),
                Some(_) => {}
                None => return Err(Lost("the connection was lost".to_owned())),
            }
        }
    }
}

impl From<russh::Error> for Lost {
    fn from(e: russh::Error) -> Self {
        Lost(e.to_string())
    }
}

/// What is beyond the bound is read and dropped.
fn put(kept: &mut Vec<u8>, data: &[u8], most: usize) {
    let room = most.saturating_sub(kept.len());
    kept.extend_from_slice(&data[..data.len().min(room)]);
}
