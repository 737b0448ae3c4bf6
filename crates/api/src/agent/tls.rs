//! TLS of the agents' port: the server's certificate from our own authority, renewed in memory, and what certificates
//! agents may come with. One that has ended a while ago is let in all the same, for its own renewal.

use domain::{Error, Timestamp};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use service::Service;
use service::agents::{Authority, SMALL_DIFFERENCE, validity};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// The configuration in use, made when the first agent can come.
pub(super) struct AgentTls {
    service: Service,
    ready: RwLock<Option<Ready>>,
    making: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Ready {
    config: Arc<ServerConfig>,
    renew_at: Timestamp,
}

impl AgentTls {
    pub fn new(service: Service) -> Self {
        Self { service, ready: RwLock::new(None), making: tokio::sync::Mutex::new(()) }
    }

    fn in_use(&self) -> Option<TlsAcceptor> {
        let ready = self.ready.read().unwrap_or_else(PoisonError::into_inner);
        let ready = ready.as_ref().filter(|ready| self.service.now() < ready.renew_at)?;
        Some(TlsAcceptor::from(ready.config.clone()))
    }

    /// For the next connection; `None`: nobody has made a bundle yet, so that there is no agent.
    pub async fn acceptor(&self) -> Result<Option<TlsAcceptor>, Error> {
        if let Some(acceptor) = self.in_use() {
            return Ok(Some(acceptor));
        }
        let _one = self.making.lock().await;
        if let Some(acceptor) = self.in_use() {
            return Ok(Some(acceptor));
        }
        let Some(authority) = self.service.founded_agent_authority().await? else { return Ok(None) };
        let ready = self.configure(&authority)?;
        *self.ready.write().unwrap_or_else(PoisonError::into_inner) = Some(ready.clone());
        Ok(Some(TlsAcceptor::from(ready.config)))
    }

    fn configure(&self, authority: &Authority) -> Result<Ready, Error> {
        let failed = |e: &dyn std::fmt::Display| Error::internal(format!("TLS for agents: {e}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(authority.certificate().to_vec())).map_err(|e| failed(&e))?;
        let ours = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| failed(&e))?;
        let verifier = Agents { ours, service: self.service.clone() };
        let pair = authority.server_pair(self.service.now())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.key.to_vec()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| failed(&e))?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(vec![CertificateDer::from(pair.certificate)], key)
            .map_err(|e| failed(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // agents stay connected: to resume is not worth what it costs to remember
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Ready { config: Arc::new(config), renew_at: pair.renew_at })
    }
}

/// Whom we let shake hands: nobody in particular, or whoever has a certificate of ours that is worth a renewal.
struct Agents {
    ours: Arc<dyn ClientCertVerifier>,
    service: Service,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the agents' verifier")
    }
}

impl ClientCertVerifier for Agents {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.ours.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let bad = || TlsError::InvalidCertificate(CertificateError::BadEncoding);
        let (from, until) = validity(end_entity).filter(|(from, until)| from <= until).ok_or_else(bad)?;
        let now = self.service.now();
        if now > until.plus(self.service.agent_setup().renew_grace) {
            return Err(TlsError::InvalidCertificate(CertificateError::Expired));
        }
        if now.plus(SMALL_DIFFERENCE) < from {
            return Err(TlsError::InvalidCertificate(CertificateError::NotValidYet));
        }
        // whether it is out of its time by little is judged for each call
        let within = u64::try_from(now.clamp(from, until).micros()).unwrap_or(0);
        self.ours.verify_client_cert(
            end_entity,
            intermediates,
            UnixTime::since_unix_epoch(Duration::from_micros(within)),
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.ours.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.ours.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ours.supported_verify_schemes()
    }
}

/// Why a handshake failed for the certificate's sake, if it did.
pub(super) fn refused(error: &std::io::Error) -> Option<(&'static str, &'static str)> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    let TlsError::InvalidCertificate(why) = error else { return None };
    Some(match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ("expired", "the certificate has ended too long ago to be renewed")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ("not_yet_valid", "the certificate is not valid yet")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            ("foreign", "the certificate is not of our authority")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            ("wrong_purpose", "the certificate is not for a client")
        }
        _ => ("malformed", "the certificate cannot be used"),
    })
}
