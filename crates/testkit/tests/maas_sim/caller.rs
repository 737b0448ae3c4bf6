//! A client of few words: it signs, sends what it is told and reads what comes. None of the product's code.

use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::maas_sim::MaasSim;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

static NONCES: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }
}

/// How a request is signed.
#[derive(Clone)]
pub struct Signature {
    pub key: String,
    pub nonce: String,
    pub timestamp: u64,
    /// A parameter that is left out.
    pub without: String,
}

impl Signature {
    pub fn new(key: &str) -> Self {
        let nonce = format!("n{}", NONCES.fetch_add(1, Ordering::Relaxed));
        Self { key: key.to_owned(), nonce, timestamp: now(), without: String::new() }
    }

    fn header(&self) -> String {
        let parts: Vec<&str> = self.key.split(':').collect();
        let [consumer, token, secret] = parts.as_slice() else { panic!("a key has three parts") };
        let all = [
            ("oauth_version", "1.0".to_owned()),
            ("oauth_signature_method", "PLAINTEXT".to_owned()),
            ("oauth_consumer_key", (*consumer).to_owned()),
            ("oauth_token", (*token).to_owned()),
            ("oauth_signature", format!("%26{secret}")),
            ("oauth_nonce", self.nonce.clone()),
            ("oauth_timestamp", self.timestamp.to_string()),
        ];
        let kept = all.iter().filter(|(name, _)| *name != self.without);
        let kept: Vec<String> = kept.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        format!("authorization: OAuth {}\r\n", kept.join(", "))
    }
}

/// The time that simulators of these tests are given.
pub fn now() -> u64 {
    1_794_729_343
}

pub enum Body<'a> {
    Form(&'a [(String, String)]),
    Json(&'a Value),
}

pub fn encode(text: &str) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~".contains(b);
    text.as_bytes().iter().map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// One request over a connection of its own. An error: no answer came.
pub async fn send(
    sim: &MaasSim,
    method: &str,
    path: &str,
    signature: Option<&Signature>,
    body: Body<'_>,
) -> std::io::Result<Answer> {
    let url = sim.url();
    let address = url.trim_start_matches("http://").trim_end_matches("/MAAS").replace("localhost", "127.0.0.1");
    let stream = TcpStream::connect(address).await?;
    send_over(stream, method, path, signature, body).await
}

pub async fn send_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    signature: Option<&Signature>,
    body: Body<'_>,
) -> std::io::Result<Answer> {
    let (kind, body) = match body {
        Body::Json(value) => ("application/json", value.to_string()),
        Body::Form(form) => {
            let pairs: Vec<String> = form.iter().map(|(n, v)| format!("{}={}", encode(n), encode(v))).collect();
            ("application/x-www-form-urlencoded", pairs.join("&"))
        }
    };
    let signed = signature.map(Signature::header).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{signed}content-type: {kind}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    Ok(Answer { status, head, body: answer[end + 4..].to_vec() })
}

/// Somebody with a key.
pub struct Caller<'a> {
    pub sim: &'a MaasSim,
    pub key: String,
}

impl<'a> Caller<'a> {
    pub fn new(sim: &'a MaasSim) -> Self {
        Self { sim, key: sim.key() }
    }

    pub async fn try_ask(&self, method: &str, path: &str, form: &[(&str, &str)]) -> std::io::Result<Answer> {
        let form: Vec<(String, String)> = form.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let path = format!("/MAAS/api/2.0/{path}");
        send(self.sim, method, &path, Some(&Signature::new(&self.key)), Body::Form(&form)).await
    }

    pub async fn ask(&self, method: &str, path: &str, form: &[(&str, &str)]) -> Answer {
        self.try_ask(method, path, form).await.expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &[]).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// An operation on a machine: its status and text.
    pub async fn op(&self, system_id: &str, op: &str, form: &[(&str, &str)]) -> Answer {
        self.ask("POST", &format!("machines/{system_id}/?op={op}"), form).await
    }

    pub async fn create(&self, mac: &str, bmc: &str) -> Answer {
        let form = [
            ("architecture", "amd64/generic"),
            ("mac_addresses", mac),
            ("power_type", "redfish"),
            ("power_parameters_power_address", bmc),
            ("power_parameters_power_user", "u"),
            ("power_parameters_power_pass", "p"),
            ("commission", "false"),
        ];
        self.ask("POST", "machines/", &form).await
    }

    pub async fn status(&self, system_id: &str) -> u64 {
        self.get(&format!("machines/{system_id}/")).await["status"].as_u64().expect("a status")
    }
}

pub fn id(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["system_id"].as_str().expect("an id").to_owned()
}
