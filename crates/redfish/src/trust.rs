//! Whether the certificate that a controller shows is the right one: pinned, signed by a given authority, or any.

use domain::endpoint::{BmcEndpoint, HostPort};
use provider::{ProviderError, ProviderResult};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How the certificate is judged, decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// No TLS at all.
    Plain,
    /// The SHA-256 of the certificate, in lower-case hex. Its names and dates do not matter.
    Pinned(String),
    /// Signed by one of these certificates, in PEM, and made out to the host that was asked for.
    Ca(String),
    Insecure,
}

/// TLS as one controller is spoken to with it.
pub struct Tls {
    /// A set of authorities that cannot be read is found out when it is first needed.
    config: Result<Arc<ClientConfig>, String>,
}

impl Tls {
    /// `None`: in the clear.
    pub fn new(trust: &Trust) -> Option<Self> {
        (*trust != Trust::Plain).then(|| Self { config: config(trust) })
    }

    /// The handshake. The caller bounds its time.
    pub async fn over(&self, name: &str, at: &HostPort, socket: TcpStream) -> ProviderResult<TlsStream<TcpStream>> {
        let config = self.config.as_ref().map_err(|why| ProviderError::untrusted_certificate(name, why))?;
        let host = ServerName::try_from(at.host.clone()).or_else(|_| ServerName::try_from("bmc.invalid".to_owned()));
        let host = host.map_err(|e| ProviderError::unreachable(name, &e.to_string()))?;
        let done = TlsConnector::from(config.clone()).connect(host, socket).await;
        done.map_err(|e| match untrusted(&e) {
            Some(why) => ProviderError::untrusted_certificate(name, &why),
            None => ProviderError::bad_answer(name, &format!("no TLS could be agreed on: {e}")),
        })
    }
}

/// What the judge below said, if it is the judge that ended the handshake.
fn untrusted(e: &io::Error) -> Option<String> {
    let inner = e.get_ref()?.downcast_ref::<rustls::Error>()?;
    match inner {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => Some(why.to_string()),
        rustls::Error::InvalidCertificate(why) => Some(format!("{why:?}")),
        _ => None,
    }
}

/// The fingerprint of the certificate shown at this endpoint: a TLS handshake, nothing is sent over it.
pub async fn certificate_of(endpoint: &BmcEndpoint, deadline: Duration) -> ProviderResult<String> {
    let at = endpoint.at();
    let name = format!("the BMC at https://{at} (Redfish)");
    let look = async {
        let socket = connect(&name, &at).await?;
        let tls = Tls { config: config(&Trust::Insecure) };
        let stream = tls.over(&name, &at, socket).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        shown.map(|der| fingerprint(der)).ok_or_else(|| ProviderError::bad_answer(&name, "it shows no certificate"))
    };
    let silent = || ProviderError::unreachable(&name, &format!("no TLS handshake within {deadline:?}"));
    tokio::time::timeout(deadline, look).await.unwrap_or_else(|_| Err(silent()))
}

/// A connection, or why there is none. The caller bounds its time.
pub async fn connect(name: &str, at: &HostPort) -> ProviderResult<TcpStream> {
    let socket = TcpStream::connect((at.host.as_str(), at.port)).await.map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => ProviderError::connection_refused(name),
        _ => ProviderError::unreachable(name, &e.to_string()),
    })?;
    // an error here costs speed only
    drop(socket.set_nodelay(true));
    Ok(socket)
}

pub fn fingerprint(der: &[u8]) -> String {
    Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn config(trust: &Trust) -> Result<Arc<ClientConfig>, String> {
    let provider = cryptography();
    let judge = Judge { trust: How::of(trust, &provider)?, provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(judge))
        .with_no_client_auth();
    // one controller, one session: there are thousands of these, and a handshake is what they are slowest at
    config.resumption = Resumption::in_memory_sessions(2);
    Ok(Arc::new(config))
}

fn cryptography() -> Arc<CryptoProvider> {
    static SHARED: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    SHARED.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
}

#[derive(Debug)]
enum How {
    Pinned(String),
    Ca(Arc<WebPkiServerVerifier>),
    Any,
}

impl How {
    fn of(trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        match trust {
            Trust::Pinned(pin) => Ok(How::Pinned(pin.to_ascii_lowercase())),
            Trust::Plain | Trust::Insecure => Ok(How::Any),
            Trust::Ca(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate = certificate.map_err(|e| format!("its authorities are not PEM: {e}"))?;
                    roots.add(certificate).map_err(|e| format!("its authorities cannot be used: {e}"))?;
                }
                if roots.is_empty() {
                    return Err("no authority is given that could have signed it".to_owned());
                }
                let judge = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
                judge.map(How::Ca).map_err(|e| format!("its authorities cannot be used: {e}"))
            }
        }
    }
}

#[derive(Debug)]
struct Judge {
    trust: How,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
struct Untrusted(String);

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Untrusted {}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = fingerprint(shown);
        let why = match &self.trust {
            How::Any => return Ok(ServerCertVerified::assertion()),
            How::Pinned(pin) if *pin == seen => return Ok(ServerCertVerified::assertion()),
            How::Pinned(pin) => format!("its SHA-256 is {seen}, not {pin} which is pinned"),
            How::Ca(judge) => match judge.verify_server_cert(shown, between, host, ocsp, now) {
                Ok(verified) => return Ok(verified),
                Err(e) => format!("its SHA-256 is {seen}, and by the given authorities: {e}"),
            },
        };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Untrusted(why))))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, shown, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, shown, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
