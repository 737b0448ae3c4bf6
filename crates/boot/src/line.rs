//! A connection that is given up when its peer takes nothing for too long. Whoever stops reading holds a place, a piece
//! of memory and a file descriptor; one who reads slowly is let be.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

pub struct Line<I> {
    io: I,
    patience: Duration,
    /// Since when the peer has taken nothing.
    since: Option<Instant>,
    /// Kept from one stall to the next, and moved only when it rings too early: stalls are many and short.
    bell: Option<Pin<Box<Sleep>>>,
}

impl<I> Line<I> {
    pub fn new(io: I, patience: Duration) -> Self {
        Self { io, patience, since: None, bell: None }
    }

    /// Lets an answer of the stream pass, unless it has stalled for too long.
    fn watched<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.since = None;
            return polled;
        }
        let until = *self.since.get_or_insert_with(Instant::now) + self.patience;
        let bell = self.bell.get_or_insert_with(|| Box::pin(sleep_until(until)));
        while bell.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer has stopped reading")));
            }
            bell.as_mut().reset(until);
        }
        Poll::Pending
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Line<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Line<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.watched(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.watched(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.watched(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watched(polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn who_stops_reading_is_given_up() {
        let (_client, io) = duplex(1000);
        let mut line = Line::new(io, PATIENCE);
        let begun = Instant::now();
        let ended = line.write_all(&[7; 5000]).await.map_err(|e| e.kind());
        assert_eq!(ended, Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_gets_everything() {
        let (mut client, io) = duplex(1000);
        let mut line = Line::new(io, PATIENCE);
        let writer = tokio::spawn(async move { line.write_all(&[7; 5000]).await });
        let mut piece = [0; 10];
        for _ in 0..500 {
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
            client.read_exact(&mut piece).await.expect("more");
        }
        writer.await.expect("ended").expect("all written");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_answers_is_no_stall() {
        let (mut client, io) = duplex(1000);
        let mut line = Line::new(io, PATIENCE);
        let mut piece = [0; 1000];
        line.write_all(&[7; 1000]).await.expect("room");
        tokio::time::sleep(PATIENCE * 10).await;
        let (written, read) = tokio::join!(line.write_all(&[7; 500]), async {
            tokio::time::sleep(PATIENCE / 2).await;
            client.read_exact(&mut piece).await
        });
        written.expect("written");
        read.expect("read");
    }
}
