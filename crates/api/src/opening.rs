//! The first bytes of a connection: which HTTP it speaks. Read here, within a bounded time: a client that
//! connects and says nothing, or says the beginning of HTTP/2 and stops, must not keep its place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What every HTTP/2 client with prior knowledge sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

/// A connection with what was read of it put back in front.
pub(crate) struct Opened<I> {
    pub speaks: Speaks,
    first: Vec<u8>,
    given: usize,
    io: I,
}

/// `None`: nobody has said anything that could be answered.
pub(crate) async fn open<I: AsyncRead + Unpin>(mut io: I, within: Duration) -> Option<Opened<I>> {
    let mut first = Vec::with_capacity(PREFACE.len());
    let read = async {
        loop {
            let left = (PREFACE.len() - first.len()) as u64;
            if (&mut io).take(left).read_buf(&mut first).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match PREFACE.starts_with(&first) {
                false => return Ok(Speaks::Http1),
                true if first.len() == PREFACE.len() => return Ok(Speaks::Http2),
                true => {}
            }
        }
    };
    let speaks: io::Result<Speaks> = tokio::time::timeout(within, read).await.ok()?;
    let speaks = speaks.ok()?;
    Some(Opened { speaks, first, given: 0, io })
}

impl<I: AsyncRead + Unpin> AsyncRead for Opened<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &self.first[self.given..];
        if rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.given += n;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opened<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    const WITHIN: Duration = Duration::from_secs(10);

    /// What is heard of a client that sends these pieces, a second between them, and then waits.
    async fn heard(pieces: &[&'static [u8]]) -> Option<(Speaks, Vec<u8>)> {
        let (mut client, server) = tokio::io::duplex(64);
        let pieces = pieces.to_vec();
        let talking = tokio::spawn(async move {
            for piece in pieces {
                client.write_all(piece).await.expect("is sent");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            client.shutdown().await.expect("ends");
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
        let mut opened = open(server, WITHIN).await?;
        let mut all = Vec::new();
        opened.read_to_end(&mut all).await.expect("reads on");
        talking.abort();
        Some((opened.speaks, all))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_bytes_tell_and_none_is_lost() {
        let get: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(heard(&[get]).await, Some((Speaks::Http1, get.to_vec())));
        assert_eq!(heard(&[b"P", b"OST / HTTP/1.1"]).await, Some((Speaks::Http1, b"POST / HTTP/1.1".to_vec())));
        let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore";
        assert_eq!(heard(&[&preface[..3], &preface[3..]]).await, Some((Speaks::Http2, preface.to_vec())));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_to_answer_is_not_waited_for() {
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n"] {
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(said).await.expect("is sent");
            let begun = tokio::time::Instant::now();
            assert!(open(server, WITHIN).await.is_none(), "{said:?}");
            assert_eq!(begun.elapsed(), WITHIN);
            drop(client);
        }
        let (client, server) = tokio::io::duplex(64);
        drop(client);
        assert!(open(server, WITHIN).await.is_none(), "one that has left");
    }
}
