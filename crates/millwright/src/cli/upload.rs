//! Bytes of an image on their way to the server, over the connection that every call uses. The file is read twice: its
//! digest is known before the first byte is sent, and the server compares.

use super::boot_look::bar;
use super::connect::Clients;
use super::exit::CliError;
use super::output::Screen;
use super::progress::{Redrawn, TICK};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tonic::codegen::Service as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Read and sent at a time.
const PIECE: usize = 256 * 1024;
/// No byte has gone, and no answer has come: the server writes to its disk before it answers.
const STALLED: Duration = Duration::from_secs(300);
/// Of an answer.
const ANSWER_MAX: usize = 64 * 1024;

/// A file, with what is to be known before it is sent.
pub struct Bundle {
    path: PathBuf,
    pub bytes: u64,
    pub sha256: String,
}

/// How far something is.
struct Meter {
    what: String,
    done: Arc<AtomicU64>,
    all: u64,
    block: Option<Redrawn>,
}

impl Meter {
    fn new(what: String, all: u64, shown: bool) -> Self {
        let block = (shown && Screen::stdout().live).then(Redrawn::default);
        Self { what, done: Arc::default(), all, block }
    }

    fn draw(&mut self) -> Result<(), CliError> {
        let done = self.done.load(Ordering::Relaxed);
        let line = meter(&self.what, done, self.all);
        self.block.as_mut().map_or(Ok(()), |block| block.draw(vec![line]))
    }

    /// Leaves no trace: what comes next says what was done.
    fn wipe(&mut self) -> Result<(), CliError> {
        self.block.as_mut().map_or(Ok(()), |block| block.last(&[]))
    }
}

fn meter(what: &str, done: u64, all: u64) -> String {
    let percent = i32::try_from(done.min(all) * 100 / all.max(1)).unwrap_or(100);
    format!("{what}  {}  {} of {}", bar(percent), size(done), size(all))
}

/// `12.3 MiB`
pub fn size(bytes: u64) -> String {
    let mut rest = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if rest < 1024.0 || unit == "TiB" {
            return if unit == "B" { format!("{bytes} B") } else { format!("{rest:.1} {unit}") };
        }
        rest /= 1024.0;
    }
    format!("{bytes} B")
}

impl Bundle {
    /// Reads the file for its digest.
    pub async fn read(path: &Path, shown: bool) -> Result<Self, CliError> {
        let failed = |e: std::io::Error| CliError::usage(format!("{}: {e}", path.display()));
        let known = std::fs::metadata(path).map_err(failed)?;
        if !known.is_file() {
            return Err(CliError::usage(format!("{}: is not a file", path.display())));
        }
        let mut meter = Meter::new(format!("reading {}", path.display()), known.len(), shown);
        let (done, file) = (meter.done.clone(), std::fs::File::open(path).map_err(failed)?);
        let mut hashing = tokio::task::spawn_blocking(move || digest(file, &done));
        let mut tick = tokio::time::interval(TICK);
        let hashed = loop {
            tokio::select! {
                hashed = &mut hashing => break hashed,
                _ = tick.tick() => meter.draw()?,
            }
        };
        meter.wipe()?;
        let (bytes, sha256) = hashed.map_err(|e| CliError::failed(e.to_string()))?.map_err(failed)?;
        Ok(Self { path: path.to_owned(), bytes, sha256 })
    }

    /// Sends it. The server adds it under this name only if every byte has come.
    pub async fn send(&self, clients: &Clients, name: &str, shown: bool) -> Result<(), CliError> {
        let failed = |e: std::io::Error| CliError::failed(format!("{}: {e}", self.path.display()));
        let file = tokio::fs::File::open(&self.path).await.map_err(failed)?;
        let mut meter = Meter::new(format!("sending {name}"), self.bytes, shown);
        let sent = meter.done.clone();
        let pieces = futures::stream::unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE];
            match file.read(&mut piece).await {
                Ok(0) => None,
                Ok(read) => {
                    piece.truncate(read);
                    Some((Ok(Bytes::from(piece)), file))
                }
                Err(e) => Some((Err(e), file)),
            }
        });
        let frames = pieces.map(move |piece: std::io::Result<Bytes>| {
            piece.map(|piece| {
                sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                Frame::data(piece)
            })
        });
        let request = http::Request::put(format!("/api/v1/images/{name}?sha256={}", self.sha256))
            .header(http::header::CONTENT_LENGTH, self.bytes)
            .header(http::header::CONTENT_TYPE, "application/octet-stream")
            .body(tonic::body::Body::new(StreamBody::new(Box::pin(frames))))
            .map_err(|e| CliError::usage(e.to_string()))?;
        let mut door = clients.door.clone();
        let sending = async move {
            std::future::poll_fn(|cx| door.poll_ready(cx)).await.map_err(|e| lost(&e))?;
            let answer = door.call(request).await.map_err(|e| lost(&e))?;
            judged(answer).await
        };
        tokio::pin!(sending);
        let mut tick = tokio::time::interval(TICK);
        let (mut before, mut moved) = (0, Instant::now());
        let ended = loop {
            tokio::select! {
                ended = &mut sending => break ended,
                _ = tick.tick() => {
                    meter.draw()?;
                    let now = meter.done.load(Ordering::Relaxed);
                    if now != before {
                        (before, moved) = (now, Instant::now());
                    }
                    if moved.elapsed() > STALLED {
                        let why = format!("nothing has moved for {} s; nothing was added", STALLED.as_secs());
                        break Err(CliError::unreachable(why));
                    }
                }
            }
        };
        meter.wipe()?;
        ended
    }
}

fn digest(mut file: std::fs::File, done: &AtomicU64) -> std::io::Result<(u64, String)> {
    let (mut sum, mut piece, mut bytes) = (Sha256::new(), vec![0; 1 << 20], 0);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok((bytes, sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        sum.update(&piece[..read]);
        bytes += read as u64;
        done.store(bytes, Ordering::Relaxed);
    }
}

fn lost(error: &dyn std::error::Error) -> CliError {
    CliError::unreachable(format!("the connection to the server failed: {}", super::connect::innermost(error)))
        .hint("nothing was added unless `millwright image list` has it; sending it again is safe")
}

/// The server's answer; what it refuses is told as every refusal is.
async fn judged<B>(answer: http::Response<B>) -> Result<(), CliError>
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map(|body| body.to_bytes());
    let said: serde_json::Value = body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
    Err(refusal(status.as_u16(), &said["error"]))
}

fn refusal(status: u16, error: &serde_json::Value) -> CliError {
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    let code = match text("code").as_str() {
        "INVALID_ARGUMENT" => Code::InvalidArgument,
        "UNAUTHENTICATED" => Code::Unauthenticated,
        "PERMISSION_DENIED" => Code::PermissionDenied,
        "NOT_FOUND" => Code::NotFound,
        "ALREADY_EXISTS" => Code::AlreadyExists,
        "FAILED_PRECONDITION" => Code::FailedPrecondition,
        "ABORTED" => Code::Aborted,
        "RESOURCE_EXHAUSTED" => Code::ResourceExhausted,
        "UNAVAILABLE" => Code::Unavailable,
        "UNIMPLEMENTED" => Code::Unimplemented,
        _ => Code::Internal,
    };
    let message = match text("message") {
        said if said.is_empty() => format!("the server answered with status {status}"),
        said => said,
    };
    let details = ErrorDetails::with_error_info(text("reason"), "millwright", std::collections::HashMap::new());
    Status::with_error_details(code, message, details).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_units_that_people_read() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
        let line = meter("sending a", 512, 1024);
        assert_eq!(line, "sending a  [###############---------------]  50%  512 B of 1.0 KiB");
        assert!(meter("sending a", 0, 0).contains("  0%"));
    }

    #[test]
    fn a_refusal_over_http_is_told_as_any_other() {
        let error = serde_json::json!({ "code": "PERMISSION_DENIED", "reason": "ROLE_TOO_LOW", "message": "no" });
        let told = refusal(403, &error);
        assert_eq!((told.exit().code(), told.to_string().as_str()), (5, "no"));
        assert!(told.next_step().is_some_and(|hint| hint.contains("millwright me")));
        assert_eq!(refusal(502, &serde_json::Value::Null).exit().code(), 1);
    }

    #[tokio::test]
    async fn the_digest_is_that_of_the_files_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abc");
        std::fs::write(&path, b"abc").expect("written");
        let bundle = Bundle::read(&path, false).await.expect("read");
        assert_eq!(
            (bundle.bytes, bundle.sha256.as_str()),
            (3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
        assert!(Bundle::read(folder.path(), false).await.is_err_and(|e| e.exit().code() == 2));
    }
}
