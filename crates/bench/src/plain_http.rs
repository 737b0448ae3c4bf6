//! HTTP/1.1 as firmware and installers speak it: one question at a time on a connection, which is kept. As little work
//! for the client as can be, since the server is what is measured.

use crate::Outcome;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// More than any answer here has.
const ANSWER_MAX: usize = 64 * 1024;

/// One connection.
pub struct Line {
    socket: TcpStream,
    buffer: Vec<u8>,
}

/// Nobody waits for a line: each caller has one, and one question in the air.
pub type Own = Arc<Mutex<Line>>;

pub async fn lines(address: &str, callers: usize) -> Outcome<Vec<Own>> {
    let mut lines = Vec::with_capacity(callers);
    for _ in 0..callers {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        lines.push(Arc::new(Mutex::new(Line { socket, buffer: vec![0; ANSWER_MAX] })));
    }
    Ok(lines)
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: bench\r\nUser-Agent: iPXE/1.21.1\r\nConnection: keep-alive\r\n\r\n")
        .into_bytes()
}

pub fn post(path: &str, token: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Line {
    /// The body of an answer that is a 200.
    pub async fn ask(&mut self, question: &[u8]) -> Result<&str, String> {
        let failed = |e: std::io::Error| format!("asking over HTTP: {e}");
        self.socket.write_all(question).await.map_err(failed)?;
        let mut have = 0;
        let body = loop {
            let n = self.socket.read(&mut self.buffer[have..]).await.map_err(failed)?;
            if n == 0 {
                return Err("the server has closed the connection, or has more to say than is read here".to_owned());
            }
            have += n;
            if let Some(body) = body(&self.buffer[..have])? {
                break body;
            }
        };
        std::str::from_utf8(&self.buffer[body]).map_err(|e| e.to_string())
    }
}

/// Where the body of an answer is, once it is all there.
fn body(answer: &[u8]) -> Result<Option<Range<usize>>, String> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..end]);
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(format!("the server said {:?}", String::from_utf8_lossy(answer)));
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.ok_or("an answer without a length")?;
    let body = end + 4..end + 4 + length;
    Ok((answer.len() >= body.end).then_some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_found_when_it_is_all_there() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
        assert_eq!(body(whole), Ok(Some(38..41)));
        assert_eq!((body(&whole[..40]), body(&whole[..20])), (Ok(None), Ok(None)));
        assert!(body(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_err());
    }
}
