//! Answers as the published Kubernetes API says a server answers, or fails in ways that a server can be made to fail
//! only by force. It speaks HTTP/1.1 over TLS by hand, since half of its answers are broken on purpose.

use domain::Secret;
use std::sync::{Arc, Mutex, PoisonError};
use testkit::tls::Authority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// A request as it came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub method: String,
    /// With its query.
    pub path: String,
    /// In small letters.
    pub headers: String,
    pub body: serde_json::Value,
}

pub enum Reply {
    /// Status, more header lines, body.
    Is(u16, &'static str, serde_json::Value),
    /// 200 with these bytes.
    Text(&'static str),
    /// Announces more than it sends, then closes.
    Truncated,
    /// Resets the connection instead of answering.
    Reset,
    /// Says nothing, ever.
    Silent,
    /// Nothing that is HTTP.
    Garbage,
    /// The answer, and the connection is closed behind it without a word.
    ThenClose(serde_json::Value),
}

type Script = dyn Fn(usize, &Asked) -> Reply + Send + Sync;

/// Dropped: listens no more.
pub struct Responder {
    port: u16,
    authority: Authority,
    asked: Arc<Mutex<Vec<Asked>>>,
    closed: CancellationToken,
}

impl Responder {
    /// Answers each request by its number (from 1) and content.
    pub async fn start(script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> Self {
        let authority = Authority::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let acceptor = acceptor(&authority);
        let (asked, closed) = (Arc::default(), CancellationToken::new());
        let (kept, script, over) = (Arc::clone(&asked), Arc::new(script), closed.clone());
        tokio::spawn(async move {
            loop {
                let socket = tokio::select! {
                    accepted = listener.accept() => accepted.expect("accepted").0,
                    () = over.cancelled() => return,
                };
                let (acceptor, kept, script) = (acceptor.clone(), Arc::clone(&kept), Arc::clone(&script));
                let over = over.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    tokio::select! {
                        () = serve(stream, &kept, &*script) => {}
                        () = over.cancelled() => {}
                    }
                });
            }
        });
        Self { port, authority, asked, closed }
    }

    pub fn kubeconfig(&self, token: &str) -> Secret {
        testkit::kubernetes::kubeconfig(&format!("https://localhost:{}", self.port), &self.authority.pem(), token)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

fn acceptor(authority: &Authority) -> TlsAcceptor {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let pair = authority.pair();
    let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(mut stream: TlsStream<TcpStream>, asked: &Mutex<Vec<Asked>>, script: &Script) {
    while let Some(request) = read(&mut stream).await {
        let number = {
            let mut all = asked.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(request.clone());
            all.len()
        };
        let whole = match script(number, &request) {
            Reply::Is(status, headers, body) => answer(status, headers, &body.to_string()),
            Reply::Text(text) => answer(200, "", text),
            Reply::Truncated => {
                let cut = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"items\": [";
                drop(stream.write_all(cut.as_bytes()).await);
                drop(stream.shutdown().await);
                return;
            }
            Reply::Reset => {
                drop(stream.get_ref().0.set_zero_linger());
                return;
            }
            Reply::Silent => return std::future::pending().await,
            Reply::Garbage => "220 mail.test ESMTP\r\n\r\n".to_owned(),
            Reply::ThenClose(body) => {
                drop(stream.write_all(answer(200, "", &body.to_string()).as_bytes()).await);
                drop(stream.shutdown().await);
                return;
            }
        };
        if stream.write_all(whole.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(status: u16, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn read(stream: &mut TlsStream<TcpStream>) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let (first, headers) = head.split_once("\r\n")?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = headers.to_ascii_lowercase();
    let length = headers.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |n| n.trim().parse().expect("a length"))];
    stream.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null);
    Some(Asked { method, path, headers, body })
}
