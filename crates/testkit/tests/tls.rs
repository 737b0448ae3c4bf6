//! TLS at the one port: every protocol over it, new certificates without a restart, and nobody held up by
//! those who never finish their handshake.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

use api::{ServerOptions, Tls};
use domain::Timestamp;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use testkit::fleet::{Database, Fleet, eventually, quick};
use testkit::server::TestServer;
use testkit::tls::{Authority, Pair};
use testkit::web;
use tokio::net::TcpStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

/// 2026: after the certificates' first day.
const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

struct Encrypted {
    server: TestServer,
    authority: Authority,
    folder: tempfile::TempDir,
    first: Pair,
}

impl Encrypted {
    async fn start(options: ServerOptions) -> Self {
        let (authority, folder) = (Authority::default(), tempfile::tempdir().expect("a folder"));
        let first = authority.pair();
        let (cert, key) = first.write(folder.path());
        let tls = Tls::load(&cert, &key, NOW).expect("a pair");
        let options = ServerOptions { tls: Some(tls), ..options };
        let server = TestServer::start_serving(Fleet::new(Database::Memory, 1), quick("test"), options).await;
        Self { server, authority, folder, first }
    }

    async fn channel(&self) -> Channel {
        let tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.authority.pem())).domain_name("localhost");
        let url = format!("https://{}", self.server.address());
        Channel::from_shared(url).expect("a URL").tls_config(tls).expect("TLS").connect().await.expect("connects")
    }

    async fn list(&self, channel: Channel) -> Result<(), tonic::Status> {
        let mut request = tonic::Request::new(pb::ListMachinesRequest::default());
        let token = format!("Bearer {}", self.server.token).parse().expect("a header");
        request.metadata_mut().insert("authorization", token);
        MachineServiceClient::new(channel).list_machines(request).await.map(drop)
    }

    /// The certificate that a new connection is shown.
    async fn shown(&self) -> CertificateDer<'static> {
        let stream = self.authority.connect(self.server.address(), &["http/1.1"]).await.expect("shakes hands");
        stream.get_ref().1.peer_certificates().and_then(|c| c.first()).expect("a certificate").clone().into_owned()
    }
}

fn der(pair: &Pair) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.cert.as_bytes()).expect("PEM")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_is_spoken_over_it() {
    let encrypted = Encrypted::start(ServerOptions::default()).await;
    let address = encrypted.server.address();
    encrypted.list(encrypted.channel().await).await.expect("gRPC");
    for protocol in ["h2", "http/1.1"] {
        let stream = encrypted.authority.connect(address, &[protocol]).await.expect("shakes hands");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
    }
    let stream = encrypted.authority.connect(address, &["http/1.1"]).await.expect("shakes hands");
    assert_eq!(web::get_over(stream, "/healthz", &[]).await.body, "ok\n");
    // a client without ALPN speaks HTTP/1.1
    let stream = encrypted.authority.connect(address, &[]).await.expect("shakes hands");
    assert_eq!(web::get_over(stream, "/readyz", &[]).await.status, 200);
    let stranger = Authority::default().connect(address, &["h2"]).await;
    assert!(stranger.is_err(), "trust is the client's to give");
}

/// Whoever is connected stays so, whoever comes sees the new certificate, and nobody fails meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_pair_is_used_without_a_restart() {
    let encrypted = Arc::new(Encrypted::start(ServerOptions::default()).await);
    let old = encrypted.channel().await;
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (encrypted, old, stop, calls) = (encrypted.clone(), old.clone(), stop.clone(), calls.clone());
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                encrypted.list(old.clone()).await.expect("on the connection there was");
                encrypted.list(encrypted.channel().await).await.expect("on a new connection");
                calls.fetch_add(2, Ordering::Relaxed);
            }
        });
    }
    assert_eq!(encrypted.shown().await, der(&encrypted.first));
    let second = encrypted.authority.pair();
    second.write(encrypted.folder.path());
    let wanted = der(&second);
    eventually("the new certificate is shown", || async { (encrypted.shown().await == wanted).then_some(()) }).await;
    let before = calls.load(Ordering::Relaxed);
    eventually("calls go on", || async { (calls.load(Ordering::Relaxed) > before + 8).then_some(()) }).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no call failed");
    }
    encrypted.list(old).await.expect("the first connection still stands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_pair_changes_nothing() {
    let render = api::collect_metrics(NOW).expect("metrics");
    let encrypted = Encrypted::start(ServerOptions::default()).await;
    let failures = || {
        let text = render();
        let line = text.lines().find(|l| l.starts_with("millwright_tls_reloads_total{outcome=\"failed\"}"));
        line.and_then(|l| l.rsplit(' ').next()).and_then(|n| n.parse::<u64>().ok()).expect("counted")
    };
    let other = encrypted.authority.pair();
    let unmatched = Pair { cert: other.cert.clone(), key: encrypted.first.key.clone() };
    let expired = encrypted.authority.expired();
    let nonsense = Pair { cert: "nonsense".to_owned(), key: "nonsense".to_owned() };
    for bad in [unmatched, expired, nonsense] {
        let before = failures();
        bad.write(encrypted.folder.path());
        eventually("the pair is refused", || async { (failures() == before + 1).then_some(()) }).await;
        assert_eq!(encrypted.shown().await, der(&encrypted.first), "the old one is still in use");
    }
    let before = failures();
    std::fs::remove_file(encrypted.folder.path().join("tls.key")).expect("removed");
    eventually("a missing file is told", || async { (failures() == before + 1).then_some(()) }).await;
    encrypted.list(encrypted.channel().await).await.expect("and it still serves");
    other.write(encrypted.folder.path());
    let wanted = der(&other);
    eventually("a good pair is taken at last", || async { (encrypted.shown().await == wanted).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_shakes_hands_holds_nobody_up() {
    let encrypted = Encrypted::start(ServerOptions { connections_max: 8, ..ServerOptions::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..7 {
        silent.push(TcpStream::connect(encrypted.server.address()).await.expect("connects"));
    }
    // beside them
    encrypted.list(encrypted.channel().await).await.expect("served");
    silent.push(TcpStream::connect(encrypted.server.address()).await.expect("connects"));
    silent.push(TcpStream::connect(encrypted.server.address()).await.expect("connects"));
    // with every place taken, somebody is served once a handshake has taken too long
    encrypted.list(encrypted.channel().await).await.expect("served in the end");
    // plain text to an encrypted port is no handshake either
    let socket = TcpStream::connect(encrypted.server.address()).await.expect("connects");
    let mut socket = socket;
    tokio::io::AsyncWriteExt::write_all(&mut socket, b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    drop(tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "nothing is answered in the clear");
}

#[test]
fn a_pair_that_cannot_serve_is_refused_by_name() {
    let (authority, folder) = (Authority::default(), tempfile::tempdir().expect("a folder"));
    let good = authority.pair();
    let load = |pair: &Pair| {
        let (cert, key) = pair.write(folder.path());
        Tls::load(&cert, &key, NOW).err()
    };
    assert_eq!(load(&good), None);
    let expired = load(&authority.expired()).expect("refused");
    assert!(expired.contains("tls.crt") && expired.contains("expired on 2001-01-01"), "{expired}");
    let other = load(&Pair { cert: good.cert.clone(), key: authority.pair().key }).expect("refused");
    assert!(other.contains("tls.crt") && other.contains("tls.key") && other.contains("together"), "{other}");
    let no_cert = load(&Pair { cert: String::new(), key: good.key.clone() }).expect("refused");
    assert!(no_cert.contains("tls.cert") && no_cert.contains("no certificate"), "{no_cert}");
    let no_key = load(&Pair { cert: good.cert.clone(), key: good.cert.clone() }).expect("refused");
    assert!(no_key.contains("tls.key") && no_key.contains("private key"), "{no_key}");
    let missing = Tls::load(&folder.path().join("nowhere.pem"), &folder.path().join("tls.key"), NOW).err();
    assert!(missing.is_some_and(|m| m.contains("nowhere.pem")));
}
