//! The way to the server: a line, TLS on it that knows the server by the pinned authority, and gRPC on that. Every step
//! ends within a bound, and nothing here tries twice.

use super::trust::{NAME, PinnedServer};
use crate::bundle::Server;
use crate::clock::Clock;
use crate::identity::{Identity, certificates};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use proto::agent::v1::agent_service_client::AgentServiceClient;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

/// For each of: the line, TLS, the first words of HTTP/2.
const STEP_WITHIN: Duration = Duration::from_secs(15);
/// Larger messages are not read.
pub const MESSAGE_MAX: usize = 4 * 1024 * 1024;

pub trait Line: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Line for T {}

/// Makes a line to a host and port.
pub type Dial = Arc<dyn Fn(Server) -> BoxFuture<'static, std::io::Result<Box<dyn Line>>> + Send + Sync>;
pub type Client = AgentServiceClient<Channel>;

pub fn tcp() -> Dial {
    Arc::new(|server| {
        Box::pin(async move {
            let socket = tokio::net::TcpStream::connect((server.host.as_str(), server.port)).await?;
            socket.set_nodelay(true)?;
            Ok(Box::new(socket) as Box<dyn Line>)
        })
    })
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoWay {
    /// May well be there later.
    Unreachable(String),
    /// Somebody answers who is not the server, or cannot prove it.
    Untrusted(String),
}

impl std::fmt::Display for NoWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Untrusted(why) => f.write_str(why),
        }
    }
}

/// TLS towards whoever the authority has named, as nobody yet or as the node.
pub fn tls(
    authorities_pem: &str,
    whose: &str,
    own: Option<&Identity>,
    clock: &Clock,
) -> Result<Arc<ClientConfig>, String> {
    let authorities = certificates(authorities_pem, whose)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| format!("TLS: {e}"))?
        .dangerous()
        .with_custom_certificate_verifier(PinnedServer::new(authorities, clock.clone())?);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates(&identity.certificate.chain_pem, "the agent's certificate")?;
            builder
                .with_client_auth_cert(chain, identity.key.for_tls())
                .map_err(|e| format!("the agent's certificate and key do not belong together: {e}"))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // each connection proves who it is anew
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Connected, or the reason.
pub async fn connect(dial: &Dial, server: &Server, tls: Arc<ClientConfig>) -> Result<Client, NoWay> {
    let unreachable = |why: &dyn std::fmt::Display| NoWay::Unreachable(format!("connecting to {server}: {why}"));
    let slow =
        |what: &str| NoWay::Unreachable(format!("connecting to {server}: {what} took longer than {STEP_WITHIN:?}"));
    let line = timeout(STEP_WITHIN, dial(server.clone())).await.map_err(|_| slow("the connection"))?;
    let line = line.map_err(|e| unreachable(&e))?;
    let name = ServerName::try_from(NAME).map_err(|e| unreachable(&e))?;
    let secured = timeout(STEP_WITHIN, TlsConnector::from(tls).connect(name, line)).await.map_err(|_| slow("TLS"))?;
    let secured = secured.map_err(|e| judged(server, &e))?;
    let endpoint = Endpoint::from_static("http://millwright");
    let channel = timeout(STEP_WITHIN, endpoint.connect_with_connector(Once(Some(secured))))
        .await
        .map_err(|_| slow("HTTP/2"))?
        .map_err(|e| unreachable(&chain(&e)))?;
    Ok(AgentServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX))
}

/// A failed handshake: whether it was about who answers.
fn judged(server: &Server, e: &std::io::Error) -> NoWay {
    let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(why)) => NoWay::Untrusted(format!(
            "whoever answers at {server} is not the server that this agent was told of: {why}; if the server has another \
             authority now, ask for a new bundle (millwright node rebootstrap NODE); if the certificate has ended, look at \
             this machine's clock"
        )),
        _ => NoWay::Unreachable(format!("TLS with {server}: {e}")),
    }
}

/// An error with its causes: the outermost says little.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut inner = e.source();
    while let Some(cause) = inner {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        inner = cause.source();
    }
    text
}

/// Hands out the line that is there, and no other: who is connected to whom is decided above.
struct Once(Option<TlsStream<Box<dyn Line>>>);

impl Service<Uri> for Once {
    type Response = TokioIo<TlsStream<Box<dyn Line>>>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(
            self.0.take().map(TokioIo::new).ok_or_else(|| std::io::Error::other("the connection has ended")),
        )
    }
}
