//! The command line against a port that speaks TLS, with certificates of every kind.

use crate::process::{program, run};
use crate::server::Home;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use std::net::TcpListener;
use std::sync::Arc;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    // an error means that it is installed already
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A listener that does handshakes and says nothing more; answers with its port.
fn listen(authority: &Authority, name: &str, last_year: i32) -> u16 {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("a certificate").der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    let mut config = config.expect("a configuration");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
            drop(connection.complete_io(&mut stream));
            drop(connection.write_tls(&mut stream));
        }
    });
    port
}

#[test]
fn each_failure_of_trust_has_its_own_next_step() {
    let home = Home::new();
    let authority = authority();
    let ca = home.file("ca.pem", &authority.pem()).display().to_string();
    let good = listen(&authority, "localhost", 2090);
    let list = |server: &str, more: &[&str]| {
        home.run(&[&["machine", "list", "--token", "t", "--server", server][..], more].concat())
    };
    let url = |port: u16| format!("https://localhost:{port}");
    list(&url(good), &[]).with(6).saying("authority that is not known").saying("--ca-file");
    list(&url(listen(&authority, "localhost", 2021)), &["--ca-file", &ca]).with(6).saying("expired").saying("renew");
    let other = list(&url(listen(&authority, "mw.example", 2090)), &["--ca-file", &ca]).with(6);
    other.saying("not for the name localhost").saying("allowed: mw.example");
    list(&url(good), &["--ca-file", "nowhere.pem"]).with(2).saying("nowhere.pem");
    list(&format!("http://localhost:{good}"), &[]).with(6).saying("speaks TLS").saying(&format!("use {}", url(good)));
    // trusted: what fails now is the call, for nobody answers it
    let trusted = list(&url(good), &["--ca-file", &ca]).with(6);
    assert!(!trusted.err.contains("trust") && trusted.err.contains("connection"), "{}", trusted.err);
    let mut command = program(&home.path(""));
    command
        .args(["machine", "list", "--token", "t"])
        .env("MILLWRIGHT_SERVER", url(good))
        .env("MILLWRIGHT_CA_FILE", &ca);
    assert!(!run(&mut command).with(6).err.contains("trust"));
    let ended = home.run(&["doctor", "--client", "--token", "t", "--server", &url(good)]).with(1);
    assert!(ended.out.contains("authority that is not known"), "{}", ended.out);
}

#[test]
fn a_server_without_tls_says_so_to_those_who_ask_for_it() {
    let home = Home::new();
    let server = home.launch("data").start();
    let encrypted = server.url.replacen("http://", "https://", 1);
    let told = home.run(&["machine", "list", "--token", "t", "--server", &encrypted]).with(6);
    told.saying("does not speak TLS").saying(&format!("use {}", server.url));
}
