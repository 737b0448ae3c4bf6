//! What a connection says leaves when it has nothing more to say for now. HTTP/2 sends each answer larger than a
//! kilobyte off by itself, a system call each; here all that one look at the connection has brought leaves together,
//! and nothing stays behind when that look is over.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So much is put together; who writes more waits until it has left.
const FULL: usize = 64 * 1024;

/// A stream whose writes wait for [`Outbox::carry`]. A clone is the same stream.
pub(crate) struct Outbox<I>(Arc<Mutex<Inner<I>>>);

struct Inner<I> {
    io: I,
    waiting: Vec<u8>,
    /// Of what waits, so much has left.
    left: usize,
    /// Whether the connection waits for room.
    held: bool,
}

impl<I> Clone for Outbox<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I> Outbox<I> {
    pub fn new(io: I) -> Self {
        Self(Arc::new(Mutex::new(Inner { io, waiting: Vec::new(), left: 0, held: false })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: AsyncWrite + Unpin> Inner<I> {
    /// Ready when all has left. Otherwise the task, which is the connection's and [`Outbox::carry`]'s, is woken when
    /// the peer takes more.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.waiting.len() {
            let taken = ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting[self.left..]))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.left += taken;
        }
        // a quiet connection keeps no memory
        (self.waiting, self.left) = (Vec::new(), 0);
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl<I: AsyncWrite + Unpin> Outbox<I> {
    /// Drives a connection that writes here, and sends what it has written each time it was looked at.
    pub async fn carry<C>(&self, connection: C) -> C::Output
    where
        C: Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
    {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            let looked = connection.as_mut().poll(cx);
            let mut inner = self.inner();
            let sent = inner.send(cx);
            if sent.is_ready() && std::mem::take(&mut inner.held) {
                // there was no room a moment ago, and now there is
                cx.waker().wake_by_ref();
            }
            match (looked, sent) {
                // its last words are sent if the peer takes them: nobody waits for one that it has given up
                (Poll::Ready(ended), _) => Poll::Ready(ended),
                // it would hear of it only when it writes again
                (Poll::Pending, Poll::Ready(Err(e))) => Poll::Ready(Err(e.into())),
                (Poll::Pending, Poll::Ready(Ok(())) | Poll::Pending) => Poll::Pending,
            }
        })
        .await
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Outbox<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner().io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Outbox<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.inner();
        if inner.waiting.len() >= FULL {
            inner.held = true;
            ready!(inner.send(cx))?;
            inner.held = false;
        }
        let taken = bytes.len().min(FULL - inner.waiting.len());
        inner.waiting.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    /// It will have left when the look at the connection is over.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.inner();
        ready!(inner.send(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    type Ended = Result<(), Box<dyn Error + Send + Sync>>;

    /// Counts what would be system calls.
    struct Counted {
        io: DuplexStream,
        writes: Arc<Mutex<usize>>,
    }

    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            *self.writes.lock().expect("counts") += 1;
            Pin::new(&mut self.io).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn what_one_look_brings_leaves_together_and_at_once() {
        let (mut client, io) = duplex(FULL);
        let writes = Arc::new(Mutex::new(0));
        let outbox = Outbox::new(Counted { io, writes: writes.clone() });
        let mut stream = outbox.clone();
        let connection = async move {
            for _ in 0..10 {
                stream.write_all(&[7; 2000]).await?;
                stream.flush().await?;
            }
            std::future::pending::<Ended>().await
        };
        assert!(poll!(pin!(outbox.carry(connection))).is_pending());
        assert_eq!(*writes.lock().expect("counts"), 1);
        let mut got = vec![0; 20_000];
        assert_eq!(client.read_exact(&mut got).await.expect("all is there"), 20_000);
        assert!(outbox.inner().waiting.capacity() == 0);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_holds_the_writer_and_later_gets_everything() {
        let (mut client, io) = duplex(1000);
        let outbox = Outbox::new(io);
        let mut stream = outbox.clone();
        let said: Vec<u8> = (0..5 * FULL).map(|n| (n % 251) as u8).collect();
        let (all, written) = (said.clone(), Arc::new(Mutex::new(0)));
        let count = written.clone();
        let connection = async move {
            for part in all.chunks(3000) {
                stream.write_all(part).await?;
                *count.lock().expect("counts") += part.len();
            }
            // and then it says nothing more, and does not end
            std::future::pending::<Ended>().await
        };
        let mut carried = pin!(outbox.carry(connection));
        for _ in 0..3 {
            assert!(poll!(&mut carried).is_pending());
            assert!(*written.lock().expect("counts") <= FULL + 1000);
        }
        let mut got = vec![0; said.len()];
        tokio::select! {
            _ = carried => panic!("it does not end"),
            read = client.read_exact(&mut got) => assert_eq!(read.expect("reads"), said.len()),
        }
        assert!(got == said);
    }

    #[tokio::test]
    async fn a_peer_that_has_gone_ends_a_connection_that_writes_nothing_more() {
        let (client, io) = duplex(1000);
        drop(client);
        let outbox = Outbox::new(io);
        let mut stream = outbox.clone();
        let connection = async move {
            stream.write_all(b"into the void").await?;
            std::future::pending::<Ended>().await
        };
        let ended = outbox.carry(connection).await.map_err(|e| e.downcast::<io::Error>().map(|e| e.kind()).ok());
        assert_eq!(ended, Err(Some(io::ErrorKind::BrokenPipe)));
    }

    #[tokio::test]
    async fn the_end_comes_after_the_last_word() {
        let (mut client, io) = duplex(100);
        let outbox = Outbox::new(io);
        let mut stream = outbox.clone();
        let connection = async move {
            stream.write_all(&[7; 10_000]).await?;
            stream.shutdown().await?;
            Ended::Ok(())
        };
        let mut got = Vec::new();
        let (ended, read) = tokio::join!(outbox.carry(connection), client.read_to_end(&mut got));
        assert!(ended.is_ok() && read.expect("reads") == 10_000);
    }

    #[tokio::test]
    async fn a_connection_that_gave_up_its_peer_does_not_wait_for_it() {
        let (mut client, io) = duplex(100);
        let outbox = Outbox::new(io);
        let mut stream = outbox.clone();
        let connection = async move {
            stream.write_all(&[7; 10_000]).await?;
            Ended::Err("no sign of life".into())
        };
        let carried = poll!(pin!(outbox.carry(connection)));
        assert!(matches!(carried, Poll::Ready(Err(_))));
        drop(outbox);
        let mut got = Vec::new();
        assert_eq!(client.read_to_end(&mut got).await.expect("reads"), 100, "what it took at once");
    }
}
