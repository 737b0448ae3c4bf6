//! A small HTTP/1.1 client that hides nothing: what is sent is what is written here.

use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A bound on what would otherwise wait for ever; not a verdict about time.
async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.head.header("content-type"), Some("application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The body of a success.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status(), 200, "{}", self.text());
        self.json()
    }

    /// The error object of a refusal with that status and reason.
    pub fn refused(&self, status: u16, reason: &str) -> Value {
        assert_eq!(self.status(), status, "{}", self.text());
        let error = self.json()["error"].clone();
        assert_eq!(error["reason"], reason, "{error}");
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty() && m.len() < 4000), "{error}");
        assert!(error["code"].is_string() && error["details"].is_object() && error["allowed"].is_array(), "{error}");
        error
    }

    /// The sentence of a refusal as malformed.
    pub fn malformed(&self) -> String {
        self.refused(400, "INVALID_FIELD")["message"].as_str().expect("a sentence").to_owned()
    }
}

/// One connection.
pub struct Wire(BufReader<TcpStream>);

impl Wire {
    pub async fn connect(url: &str) -> Self {
        let address = url.strip_prefix("http://").expect("plain HTTP");
        Self(BufReader::new(TcpStream::connect(address).await.expect("connects")))
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.expect("sends");
    }

    /// The same, where the other side may have had enough; whether it took everything.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).await.is_ok()
    }

    /// No more will be sent.
    pub async fn finish(&mut self) {
        self.0.get_mut().shutdown().await.expect("shuts down");
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line).await {
            Ok(n) if n > 0 => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
            _ => None,
        }
    }

    pub async fn try_head(&mut self) -> Option<Head> {
        let first = within("an answer", self.line()).await?;
        let status = first.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{first}"));
        let mut headers = Vec::new();
        while let Some(line) = within("a header", self.line()).await.filter(|l| !l.is_empty()) {
            let (name, value) = line.split_once(':').expect("a header");
            headers.push((name.trim().to_lowercase(), value.trim().to_owned()));
        }
        Some(Head { status, headers })
    }

    pub async fn head(&mut self) -> Head {
        self.try_head().await.expect("an answer before the connection ends")
    }

    /// The next piece of a body in chunks; `Ok(None)` at its proper end.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, String> {
        let size = within("a chunk", self.line()).await.ok_or("broke off")?;
        let size = usize::from_str_radix(&size, 16).map_err(|e| format!("{size}: {e}"))?;
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).await.map_err(|e| e.to_string())?;
        chunk.truncate(size);
        Ok(Some(chunk).filter(|c| !c.is_empty()))
    }

    pub async fn body(&mut self, head: &Head) -> Vec<u8> {
        let mut body = Vec::new();
        if head.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await.expect("a chunk") {
                body.extend(chunk);
            }
        } else if let Some(length) = head.header("content-length") {
            body.resize(length.parse().expect("a length"), 0);
            within("the body", self.0.read_exact(&mut body)).await.expect("the whole body");
        } else {
            within("the end", self.0.read_to_end(&mut body)).await.expect("the whole body");
        }
        body
    }

    pub async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let body = self.body(&head).await;
        Answer { head, body }
    }
}

/// A server and whom to be there.
#[derive(Clone)]
pub struct Http {
    pub url: String,
    pub token: String,
}

impl Http {
    /// A request without its body.
    pub fn opening(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            text += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        for (name, value) in headers.iter().filter(|(_, value)| *value != "-") {
            text += &format!("{name}: {value}\r\n");
        }
        text
    }

    pub async fn wire(&self) -> Wire {
        Wire::connect(&self.url).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut wire = self.wire().await;
        let mut request = self.opening(method, path, headers).into_bytes();
        if !body.is_empty() {
            request.extend(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        request.extend(b"\r\n");
        request.extend(body);
        wire.send(&request).await;
        wire.answer().await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").await
    }

    /// With a body as a program would send it.
    pub async fn with(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &[("Content-Type", "application/json")], body.to_string().as_bytes()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.with("POST", path, body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.with("PATCH", path, body).await
    }

    /// A stream of events that has begun.
    pub async fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut wire = self.wire().await;
        wire.send(format!("{}\r\n", self.opening("GET", path, headers)).as_bytes()).await;
        let head = wire.head().await;
        if head.status != 200 {
            let body = wire.body(&head).await;
            panic!("{path}: {} {}", head.status, String::from_utf8_lossy(&body));
        }
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        Events { head, wire, buffer: String::new() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Option<u64>,
    pub name: String,
    pub data: Value,
}

/// What an `EventSource` would see.
pub struct Events {
    pub head: Head,
    wire: Wire,
    buffer: String,
}

impl Events {
    /// The next block of lines: an event or a comment.
    pub async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block = self.buffer[..end].to_owned();
                self.buffer.drain(..end + 2);
                return Some(block);
            }
            let chunk = self.wire.chunk().await.expect("a chunk")?;
            self.buffer += std::str::from_utf8(&chunk).expect("UTF-8");
        }
    }

    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let block = self.block().await?;
            let mut event = Event { id: None, name: "message".into(), data: Value::Null };
            let mut is_comment = true;
            for line in block.lines().filter(|l| !l.starts_with(':')) {
                is_comment = false;
                let (field, value) = line.split_once(": ").expect("a field");
                match field {
                    "id" => event.id = Some(value.parse().expect("a number")),
                    "event" => event.name = value.to_owned(),
                    "data" => event.data = serde_json::from_str(value).expect("one line of JSON"),
                    other => panic!("unknown field {other}"),
                }
            }
            if !is_comment {
                return Some(event);
            }
        }
    }

    /// Everything up to the end of the stream.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}
