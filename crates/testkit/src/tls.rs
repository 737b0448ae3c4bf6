//! Certificates made on the spot, and clients that trust them.
#![allow(clippy::expect_used)] // for tests only: what cannot be set up is a failed test

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority that only one test trusts.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate for `localhost` with its key, both in PEM.
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }
}

impl Authority {
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Good for years.
    pub fn pair(&self) -> Pair {
        self.pair_until(2100)
    }

    /// Ended years ago.
    pub fn expired(&self) -> Pair {
        self.pair_until(2001)
    }

    fn pair_until(&self, year: i32) -> Pair {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair { cert: cert.pem(), key: key.serialize_pem() }
    }

    /// A client that trusts this authority and offers these protocols.
    pub fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let own = CertificateDer::from_pem_slice(self.pem().as_bytes()).expect("PEM");
        roots.add(own).expect("an authority");
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A connection with its handshake done.
    pub async fn connect(&self, address: &str, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(self.client(protocols)).connect(name, socket).await
    }
}

impl Pair {
    /// Writes both files into a folder, one after the other as a careless renewal would.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        std::fs::write(&cert, &self.cert).expect("written");
        std::fs::write(&key, &self.key).expect("written");
        (cert, key)
    }
}
