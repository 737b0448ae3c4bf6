//! The first bytes of a connection, by which HTTP/1 and HTTP/2 are told apart. Until they are there no
//! other clock runs: whoever connects and says nothing would keep its place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

/// What HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that breaks if it is not clear in time what is spoken on it.
pub(crate) struct Opening<I> {
    io: I,
    /// None: it is clear.
    deadline: Option<Pin<Box<Sleep>>>,
    /// How much of the preface has come.
    matched: usize,
    /// Told once it is clear what is spoken.
    clear: CancellationToken,
}

impl<I> Opening<I> {
    /// The second is told once it is clear what is spoken.
    pub fn new(io: I, within: Duration) -> (Self, CancellationToken) {
        let clear = CancellationToken::new();
        (Self { io, deadline: Some(Box::pin(sleep(within))), matched: 0, clear: clear.clone() }, clear)
    }

    fn came(&mut self, bytes: &[u8]) {
        let expected = &PREFACE[self.matched..];
        let same = bytes.iter().zip(expected).take_while(|(byte, wanted)| byte == wanted).count();
        self.matched += same;
        if same < bytes.len() || self.matched == PREFACE.len() {
            self.deadline = None;
            self.clear.cancel();
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opening<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        let Some(deadline) = &mut self.deadline else { return polled };
        if polled.is_pending() && deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was asked for in time")));
        }
        self.came(&buffer.filled()[before..]);
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opening<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    /// What reading on says after these bytes, a long while and more bytes.
    async fn after(first: &[u8]) -> io::Result<usize> {
        let (mut client, server) = duplex(64);
        let (mut opening, _) = Opening::new(server, Duration::from_secs(10));
        client.write_all(first).await?;
        let mut buffer = vec![0; 64];
        let mut read = 0;
        while read < first.len() {
            read += opening.read(&mut buffer).await?;
        }
        let later = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            client.write_all(b"!").await
        };
        let (read, _) = tokio::join!(opening.read(&mut buffer), later);
        read
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_undecided_ends_and_what_is_clear_may_pause() {
        for silent in [b"".as_slice(), b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            assert_eq!(after(silent).await.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut), "{silent:?}");
        }
        for clear in [b"GET".as_slice(), b"POST", b"PRI * HTTP/1", PREFACE, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore"] {
            assert_eq!(after(clear).await.map_err(|e| e.kind()), Ok(1), "{clear:?}");
        }
    }
}
