//! Handshakes that fail, each for its own reason, against a small listener.

use super::super::connect;
use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use std::net::TcpListener;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        install();
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    fn file(&self, folder: &tempfile::TempDir) -> std::path::PathBuf {
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, self.0.pem()).expect("written");
        path
    }

    /// A listener that does handshakes, with a certificate for these names.
    fn listen(&self, names: &[&str], expired: bool) -> String {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).expect("names");
        if expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        serve(certificate.der().clone(), &key)
    }
}

/// A certificate that nobody else has signed, as a file, and a listener that shows it.
fn self_signed(folder: &tempfile::TempDir, is_ca: IsCa) -> (std::path::PathBuf, String) {
    install();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.is_ca = is_ca;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    let path = folder.path().join("own.pem");
    std::fs::write(&path, certificate.pem()).expect("written");
    (path, serve(certificate.der().clone(), &key))
}

/// A listener that does handshakes and no more; answers with its address.
fn serve(certificate: CertificateDer<'static>, key: &KeyPair) -> String {
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))
        .expect("a configuration");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                let Ok(mut connection) = rustls::ServerConnection::new(config) else { return };
                // whatever comes of it; an alert is sent before it ends
                while connection.complete_io(&mut stream).is_ok() && !connection.wants_read() {}
                drop(connection.write_tls(&mut stream));
            });
        }
    });
    format!("https://localhost:{}", address.port())
}

async fn refused(server: &str, ca_file: Option<&Path>) -> CliError {
    connect::open(server, "t", ca_file).await.map(|_| ()).expect_err("must fail")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_authority_and_name_are_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let server = authority.listen(&["localhost"], false);
    assert!(connect::open(&server, "t", Some(&authority.file(&folder))).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_has_its_own_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let ca = authority.file(&folder);
    let good = authority.listen(&["localhost"], false);
    for (error, word, hint) in [
        (refused(&authority.listen(&["localhost"], false), None).await, "authority that is not known", "--ca-file"),
        (refused(&authority.listen(&["localhost"], true), Some(&ca)).await, "expired, on 2021-01-01", "renew"),
        (
            refused(&authority.listen(&["other.example"], false), Some(&ca)).await,
            "not for the name localhost",
            "other.example",
        ),
        (refused(&plain(), None).await, "does not speak TLS", "use http://"),
        (refused(&good, Some(Path::new("/nowhere.pem"))).await, "/nowhere.pem", "PEM"),
    ] {
        let shown = format!("{error:?}");
        assert!(error.to_string().contains(word) && shown.contains(hint), "{word}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authoritys_own_certificate_is_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, server) = self_signed(&folder, IsCa::Ca(BasicConstraints::Unconstrained));
    for ca in [None, Some(file.as_path())] {
        let error = refused(&server, ca).await;
        let shown = format!("{error:?}");
        assert!(error.to_string().contains("CA:TRUE"), "{shown}");
        assert!(shown.contains("-addext basicConstraints=critical,CA:FALSE") && shown.contains("--ca-file"), "{shown}");
    }
    // what the hint says to make is trusted
    let (file, server) = self_signed(&folder, IsCa::ExplicitNoCa);
    assert!(connect::open(&server, "t", Some(&file)).await.is_ok());
}

/// A listener that answers in plain HTTP/2.
fn plain() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut first = [0; 24];
            // what is not HTTP/2 is hung up on without a word
            if stream.read_exact(&mut first).is_ok() && first.starts_with(b"PRI") {
                drop(stream.write_all(b"\0\0\0\x04\0\0\0\0\0"));
            }
        }
    });
    format!("https://localhost:{}", address.port())
}

#[test]
fn the_port_itself_tells_what_is_spoken_there() {
    let encrypted = Authority::new().listen(&["localhost"], false);
    assert!(speaks_tls(&encrypted) && !speaks_plain(&encrypted));
    assert!(speaks_plain(&plain()) && !speaks_tls(&plain()));
    assert!(!speaks_tls("http://127.0.0.1:1"));
}

#[test]
fn hosts_are_found_in_addresses() {
    assert_eq!(host("https://h.example:7700"), "h.example");
    assert_eq!(host("https://[::1]:7700"), "::1");
    assert_eq!(host("https://h"), "h");
}

#[test]
fn a_file_without_a_certificate_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("empty.pem");
    std::fs::write(&path, "no certificate").expect("written");
    let error = authorities(&path).expect_err("nothing in it");
    assert!(error.to_string().contains("empty.pem"), "{error}");
}
