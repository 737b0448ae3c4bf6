//! The simplest of HTTP clients: one request, one answer, over whatever carries it.
#![allow(clippy::expect_used)] // for tests only

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(": ").is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
        self.head.lines().find(|l| of(l)).and_then(|l| l.split_once(": ")).map(|(_, value)| value)
    }
}

/// `GET path` over a stream that is closed afterwards.
pub async fn get_over(mut io: impl AsyncRead + AsyncWrite + Unpin, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    io.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // a TLS peer that just closes has still said everything
    drop(io.read_to_end(&mut answer).await);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// `GET` of `http://address/path`.
pub async fn get(url: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let address = url.strip_prefix("http://").expect("an http URL");
    get_over(TcpStream::connect(address).await.expect("connects"), path, headers).await
}
