//! The played server's own authority, and what it signs.

use agent::clock::to_wire;
use domain::Timestamp;
use proto::agent::v1::Certificate;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName as Name, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// When every played server begins, in seconds: far from any real clock, so that none can be used by mistake.
pub const NOW: i64 = 2_000_000_000;
pub const DAY: u64 = 24 * 3600;

pub struct Authority {
    key: KeyPair,
    params: CertificateParams,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "a played authority");
        let certificate = params.self_signed(&key).expect("an authority");
        Self { key, params, certificate }
    }

    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// What a server with this name in its certificate listens with; agents may bring one that has expired.
    pub fn tls(&self, name: &str) -> Arc<ServerConfig> {
        let own = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let from = at(NOW) - Duration::from_secs(DAY);
        params.not_before = from.into();
        params.not_after = (from + Duration::from_secs(90 * DAY)).into();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&own, &issuer).expect("signed").der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .expect("a verifier");
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(Arc::new(Whenever(chain)))
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(own.serialize_der().into()))
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    /// A certificate for the key of the request, and that key's fingerprint.
    pub fn sign(&self, csr: &[u8], node: &str, now: Timestamp, life: Duration) -> (Certificate, String) {
        let der = CertificateSigningRequestDer::from(csr.to_vec());
        let mut request = CertificateSigningRequestParams::from_der(&der).expect("a request");
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, node);
        request.params.distinguished_name = name;
        let uri = format!("millwright:node/{node}");
        request.params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a name"))];
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (from, until) = (now, now.plus(life));
        request.params.not_before = at(from.micros() / 1_000_000).into();
        request.params.not_after = at(until.micros() / 1_000_000).into();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let signed = request.signed_by(&issuer).expect("signed");
        let sent = Certificate {
            chain_der: vec![signed.der().to_vec()],
            authorities_der: vec![self.certificate.der().to_vec()],
            not_before: Some(to_wire(from)),
            not_after: Some(to_wire(until)),
        };
        let key = fingerprint(signed.der());
        (sent, key)
    }
}

/// SHA-256 of a certificate's public key.
pub fn fingerprint(certificate: &[u8]) -> String {
    let (_, parsed) = X509Certificate::from_der(certificate).expect("a certificate");
    Sha256::digest(parsed.public_key().raw).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn ends(certificate: &[u8]) -> Timestamp {
    let (_, parsed) = X509Certificate::from_der(certificate).expect("a certificate");
    Timestamp::from_micros(parsed.validity().not_after.timestamp() * 1_000_000)
}

/// The point of its public key, for signatures.
pub fn public_key(certificate: &[u8]) -> Vec<u8> {
    let (_, parsed) = X509Certificate::from_der(certificate).expect("a certificate");
    parsed.public_key().subject_public_key.data.to_vec()
}

fn at(seconds: i64) -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).expect("after 1970"))
}

/// Takes what the authority has signed, at whatever time: calls decide about that.
#[derive(Debug)]
struct Whenever(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Whenever {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[Name] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(NOW as u64));
        match self.0.verify_client_cert(certificate, others, at) {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                self.0.verify_client_cert(certificate, others, not_before)
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
