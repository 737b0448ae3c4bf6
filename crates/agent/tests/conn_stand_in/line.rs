//! Connections of the played server: secured, with who came on them, and cut when the test says so.

use super::Behaviour;
use agent::connection::dial::Line;
use futures::Stream;
use rustls::ServerConfig;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

pub struct Peer {
    io: TlsStream<Box<dyn Line>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// The certificate that somebody came with.
#[derive(Clone)]
pub struct Brought(Option<Vec<u8>>);

pub fn peer<T>(request: &Request<T>) -> Result<Vec<u8>, Status> {
    let brought = request.extensions().get::<Brought>().and_then(|b| b.0.clone());
    brought.ok_or_else(|| Status::unauthenticated("without a certificate"))
}

pub fn accept(
    mut lines: mpsc::UnboundedReceiver<Box<dyn Line>>,
    tls: Arc<ServerConfig>,
    behaviour: Arc<Mutex<Behaviour>>,
) -> impl Stream<Item = io::Result<Peer>> {
    let (ready, mut secured) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            let (ready, tls) = (ready.clone(), tls.clone());
            let cut = behaviour.lock().expect("not poisoned").cut.clone();
            tokio::spawn(async move {
                // who does not trust us is gone
                if let Ok(io) = TlsAcceptor::from(tls).accept(line).await {
                    drop(ready.send(Ok(Peer { io, cut: Box::pin(cut.cancelled_owned()) })));
                }
            });
        }
    });
    futures::stream::poll_fn(move |context| secured.poll_recv(context))
}

impl Connected for Peer {
    type ConnectInfo = Brought;

    fn connect_info(&self) -> Brought {
        let certificates = self.io.get_ref().1.peer_certificates();
        Brought(certificates.and_then(|all| all.first()).map(|first| first.to_vec()))
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
