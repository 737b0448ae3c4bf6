//! TLS: a site is trusted by its own CA, and whoever shows another certificate is told nothing.

use crate::fixtures::{ID, access, machine, options};
use crate::server::{Reply, Server};
use maas::Clients;
use provider::{MaasAccess, MaasClients as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    fn acceptor(&self, host: &str) -> TlsAcceptor {
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).expect("PEM")],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("PEM"),
            );
        TlsAcceptor::from(Arc::new(config.expect("a server")))
    }
}

#[tokio::test]
async fn a_site_is_trusted_by_its_own_authority_and_by_no_other() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = Server::over(Some(ours.acceptor("localhost")), |_| Reply::json(machine())).await;
    let by = |ca_pem: String| MaasAccess { ca_pem, ..access("oslo", &server.url) };
    let clients = Clients::new(options());
    let trusted = clients.client(&by(ours.0.pem())).expect("a client");
    assert!(trusted.machine(ID).await.expect("trusted").is_some());
    for ca in [theirs.0.pem(), String::new()] {
        let asked = server.asked().len();
        // without one, what this host trusts: nothing that we made up, or nothing at all
        let Ok(client) = clients.client(&by(ca)) else { continue };
        let no = client.machine(ID).await.expect_err("not trusted");
        assert_eq!(no.reason().as_str(), "UNTRUSTED_CERTIFICATE", "{no}");
        assert!(no.to_string().contains("site oslo"), "{no}");
        assert_eq!(server.asked().len(), asked, "it was told nothing");
    }
    let both = format!("{}{}", theirs.0.pem(), ours.0.pem());
    assert!(clients.client(&by(both)).expect("a client").machine(ID).await.is_ok());
}

#[tokio::test]
async fn another_hosts_certificate_and_no_tls_at_all_are_told_nothing() {
    let ours = Authority::new();
    let server = Server::over(Some(ours.acceptor("elsewhere.example")), |_| Reply::json(machine())).await;
    let by = |url: &str| MaasAccess { ca_pem: ours.0.pem(), ..access("oslo", url) };
    let clients = Clients::new(options());
    let no = clients.client(&by(&server.url)).expect("a client").machine(ID).await.expect_err("not it");
    assert_eq!(no.reason().as_str(), "UNTRUSTED_CERTIFICATE", "{no}");
    // it never answers a greeting that it does not understand
    let clients = Clients::new(maas::Options { repeats: 0, connect: std::time::Duration::from_secs(1), ..options() });
    let plain = Server::start(|_| Reply::json(machine())).await;
    let url = plain.url.replace("http://127.0.0.1", "https://localhost");
    assert!(clients.client(&by(&url)).expect("a client").machine(ID).await.is_err());
    assert!(server.asked().is_empty() && plain.asked().is_empty());
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_said_to_be_one() {
    let ca_pem = "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n".to_owned();
    let bad = MaasAccess { ca_pem, ..access("oslo", "https://localhost/MAAS") };
    let no = Clients::new(options()).client(&bad).map(|_| ()).expect_err("no authority");
    assert!(no.to_string().contains("its CA"), "{no}");
}
