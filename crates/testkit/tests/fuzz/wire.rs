//! Requests as bytes over HTTP/1.1, and what is demanded of every answer.

use crate::world::World;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// A bound on what would otherwise wait for ever.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of an answer, so much is read.
const ANSWER_MAX: usize = 8 << 20;
/// Of a sentence that says what is wrong.
const MESSAGE_MAX: usize = 1_100;

/// A request as an input spells it: a line, headers, an empty line, a body.
pub struct Asked<'a> {
    pub line: &'a [u8],
    pub headers: Vec<&'a [u8]>,
    pub body: &'a [u8],
}

impl<'a> Asked<'a> {
    pub fn read(input: &'a [u8]) -> Self {
        let split = input.windows(2).position(|w| w == b"\n\n");
        let (head, body) = split.map_or((input, &[][..]), |at| (&input[..at], &input[at + 2..]));
        let mut lines = head.split(|b| *b == b'\n');
        let line = lines.next().unwrap_or_default();
        Self { line, headers: lines.filter(|l| !l.is_empty()).collect(), body }
    }

    pub fn has(&self, name: &str) -> bool {
        let named = |line: &&&[u8]| line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name.as_bytes());
        self.headers.iter().any(|line| named(&line))
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Sends and reads; of a stream only the head.
pub async fn exchange(address: &str, request: &[u8]) -> Result<Option<Answer>, String> {
    let talking = async {
        let mut socket = TcpStream::connect(address).await.map_err(|e| format!("connecting: {e}"))?;
        // it may have had enough and closed
        drop(socket.write_all(request).await);
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
        loop {
            let read = socket.read(&mut buffer).await.unwrap_or(0);
            bytes.extend(&buffer[..read]);
            let Some(answer) = parse(&bytes)? else {
                if read == 0 {
                    return if bytes.is_empty() { Ok(None) } else { Err(format!("half an answer: {bytes:?}")) };
                }
                continue;
            };
            let kind = answer.headers.get("content-type").map(HeaderValue::as_bytes).unwrap_or_default();
            let streams = kind.starts_with(b"text/event-stream") || kind.starts_with(b"application/grpc");
            if read == 0 || streams || bytes.len() > ANSWER_MAX {
                return Ok(Some(answer));
            }
        }
    };
    tokio::time::timeout(PATIENCE, talking).await.unwrap_or_else(|_| Err("no answer".to_owned()))
}

/// The answer so far, past any that only says to go on.
fn parse(mut bytes: &[u8]) -> Result<Option<Answer>, String> {
    loop {
        let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
        let (head, body) = (&bytes[..end], &bytes[end + 4..]);
        let mut lines = head.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let status: u16 = first.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or(format!("no status: {first}"))?;
        if status == 100 {
            bytes = body;
            continue;
        }
        let mut headers = HeaderMap::new();
        for line in lines {
            let colon = line.iter().position(|b| *b == b':').ok_or("a header without a colon")?;
            let name = HeaderName::from_bytes(&line[..colon]).map_err(|e| e.to_string())?;
            headers.append(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(|e| e.to_string())?);
        }
        return Ok(Some(Answer { status, headers, body: body.to_vec() }));
    }
}

/// Refusals that are the server's own fault; no input may bring one about.
const OWN_FAULT: [&str; 6] = ["INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "ABORTED", "CANCELLED"];

/// What a refusal came to, if it says all that it should.
fn refusal(code: &str, reason: &str, message: &str, field: Option<&str>) -> Result<String, String> {
    let told = format!("{code} {reason}: {message}");
    if OWN_FAULT.contains(&code) && reason != "VERSION_MISMATCH" {
        return Err(format!("an input brought about {told}"));
    }
    if reason.is_empty() || message.is_empty() || message.len() > MESSAGE_MAX {
        return Err(format!("a refusal without a reason, without words or with too many: {told}"));
    }
    // what the transport could not read at all has no field, but says so
    let names_a_place = field.is_some_and(|f| !f.is_empty()) || message.contains("does not read");
    if code == "INVALID_ARGUMENT" && !names_a_place {
        return Err(format!("a malformed request is refused without naming a field: {told}"));
    }
    Ok(shape(&format!("{reason} {}: {message}", field.unwrap_or_default())))
}

/// A message without what differs from input to input, so that the same complaint counts once.
pub fn shape(message: &str) -> String {
    let mut quoted = false;
    let mut shape: String = message
        .chars()
        .filter_map(|c| match c {
            '"' | '\'' | '`' => {
                quoted = !quoted;
                Some('"')
            }
            _ if quoted => None,
            c if c.is_ascii_digit() => Some('#'),
            c => Some(c),
        })
        .collect();
    while shape.contains("##") {
        shape = shape.replace("##", "#");
    }
    shape.chars().take(80).collect()
}

/// What came of a gRPC call over HTTP/1.1; refusals are told in the head.
pub fn of_grpc(answer: &Answer) -> Result<(bool, String), String> {
    match Status::from_header_map(&answer.headers) {
        // a call that does not exist has the words that every gRPC server has for it
        Some(status) if status.code() == Code::Unimplemented && status.details().is_empty() => {
            Ok((true, "no such call".to_owned()))
        }
        Some(status) => {
            let info = status.get_details_error_info().ok_or(format!("a refusal without a reason: {status:?}"))?;
            let field = info.metadata.get("field").map(String::as_str);
            refusal(api::code_name(status.code()), &info.reason, status.message(), field).map(|shape| (true, shape))
        }
        None => plain(answer),
    }
}

/// What came of a REST request.
pub fn of_rest(answer: &Answer) -> Result<(bool, String), String> {
    let json = answer.headers.get("content-type").is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    if answer.status < 400 || !json {
        return plain(answer);
    }
    let error: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("{e}: {answer:?}"))?;
    let text = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
    let field = error["error"]["details"]["field"].as_str();
    refusal(&text("code"), &text("reason"), &text("message"), field).map(|shape| (true, shape))
}

/// An answer that is no refusal in our words: success, or the transport's own few words about bad HTTP.
fn plain(answer: &Answer) -> Result<(bool, String), String> {
    match answer.status {
        200 => Ok((false, "done".to_owned())),
        400..500 => Ok((true, format!("HTTP {}", answer.status))),
        _ => Err(format!("an input brought about {answer:?}")),
    }
}

/// Makes a request and judges the answer; one that was refused has left nothing behind.
pub fn judged(
    world: &World,
    request: &[u8],
    judge: fn(&Answer) -> Result<(bool, String), String>,
) -> Result<String, String> {
    let before = world.state();
    let Some(answer) = world.runtime.block_on(exchange(&world.address, request))? else {
        return Ok("cut off".to_owned());
    };
    let (refused, shape) = judge(&answer)?;
    let after = world.state();
    if refused && before != after {
        return Err(format!("refused ({shape}), and yet something has changed: {before:?} {after:?}"));
    }
    Ok(shape)
}
