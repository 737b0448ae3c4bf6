//! A server that answers as it is told, and remembers every request. It speaks just enough HTTP, so that it can also stop
//! speaking it at any point.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Below `/MAAS/api/2.0/`.
    pub path: String,
    /// Decoded, in their order.
    pub query: Vec<(String, String)>,
    pub headers: BTreeMap<String, String>,
    pub form: Vec<(String, String)>,
}

impl Asked {
    /// A part of the Authorization header.
    pub fn oauth(&self, name: &str) -> String {
        let header = self.headers.get("authorization").cloned().unwrap_or_default();
        let mark = format!("{name}=\"");
        let from = header.find(&mark).map_or(header.len(), |at| at + mark.len());
        header[from..].split('"').next().unwrap_or_default().to_owned()
    }

    pub fn op(&self) -> &str {
        self.query.iter().find(|(name, _)| name == "op").map_or("", |(_, op)| op)
    }
}

#[derive(Clone, Debug)]
pub enum Reply {
    Say {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// These bytes and the end of the connection.
    Raw(Vec<u8>),
    /// Nothing, for ever.
    Hang,
    /// The head of a yes, a part of the body, and then nothing, for ever.
    Stall,
    Close,
}

impl Reply {
    pub fn json(body: impl Into<Vec<u8>>) -> Self {
        Self::say(200, "application/json; charset=utf-8", body)
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self::say(status, "text/plain; charset=utf-8", body)
    }

    pub fn say(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type", kind.to_owned()), ("x-maas-api-hash", "0f0f".to_owned())];
        Reply::Say { status, headers, body: body.into() }
    }

    pub fn with(self, name: &'static str, value: &str) -> Self {
        match self {
            Reply::Say { status, mut headers, body } => {
                headers.push((name, value.to_owned()));
                Reply::Say { status, headers, body }
            }
            other => other,
        }
    }
}

type Answer = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::over(None, answer).await
    }

    pub async fn over(tls: Option<TlsAcceptor>, answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let scheme = if tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (answer, log): (Answer, _) = (Arc::new(answer), asked.clone());
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (answer, log, tls) = (answer.clone(), log.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(socket, &answer, &log).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(socket).await {
                                serve(stream, &answer, &log).await;
                            }
                        }
                    }
                });
            }
        });
        Self { url: format!("{scheme}:{port}/MAAS"), asked, accepting }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("whole").clone()
    }
}

async fn serve(mut io: impl AsyncRead + AsyncWrite + Unpin, answer: &Answer, log: &Mutex<Vec<Asked>>) {
    while let Some(asked) = request(&mut io).await {
        log.lock().expect("whole").push(asked.clone());
        match answer(&asked) {
            Reply::Say { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                head.push_str("\r\n");
                let whole = [head.into_bytes(), if status == 204 { Vec::new() } else { body }].concat();
                if io.write_all(&whole).await.is_err() || io.flush().await.is_err() {
                    return;
                }
            }
            Reply::Raw(bytes) => {
                drop(io.write_all(&bytes).await);
                drop(io.shutdown().await);
                return;
            }
            Reply::Hang => tokio::time::sleep(Duration::from_secs(3600)).await,
            Reply::Stall => {
                drop(io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n[{").await);
                drop(io.flush().await);
                tokio::time::sleep(Duration::from_secs(3600)).await;
            }
            Reply::Close => return,
        }
    }
}

async fn request(io: &mut (impl AsyncRead + Unpin)) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        let mut piece = [0; 4096];
        match io.read(&mut piece).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).expect("a head");
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> =
        lines.filter_map(|l| l.split_once(": ")).map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())).collect();
    let length: usize = headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    let mut body = bytes[head_end + 4..].to_vec();
    while body.len() < length {
        let mut piece = [0; 4096];
        match io.read(&mut piece).await {
            Ok(n) if n > 0 => body.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.strip_prefix("/MAAS/api/2.0/").unwrap_or(path).to_owned();
    let (query, form) = (fields(query), fields(&String::from_utf8_lossy(&body)));
    Some(Asked { method, path, query, headers, form })
}

fn fields(text: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        let bytes = text.as_bytes();
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some(byte) = bytes.get(at) {
            if *byte == b'%' {
                out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).expect("two digits"));
                at += 3;
            } else {
                out.push(if *byte == b'+' { b' ' } else { *byte });
                at += 1;
            }
        }
        String::from_utf8(out).expect("UTF-8")
    };
    text.split('&').filter_map(|pair| pair.split_once('=')).map(|(n, v)| (decoded(n), decoded(v))).collect()
}
