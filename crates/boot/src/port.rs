//! The port that machines boot from: HTTP/1 in the clear, which is what firmware, iPXE and a small installer speak.
//! Everything on it is bounded: connections, the time for a request's head, and how long a reader may take nothing.

use crate::door::Peer;
use crate::line::Line;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The port's bounds, by name.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    pub connections_max: usize,
    /// For the head of a request, and for silence between two requests.
    pub headers_within: Duration,
    /// A reader that takes nothing for so long is let go; it may come again for the rest.
    pub stalled_for: Duration,
    /// How long answers under way may take at a stop.
    pub finish_within: Duration,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            headers_within: Duration::from_secs(20),
            stalled_for: Duration::from_secs(60),
            finish_within: Duration::from_secs(5),
        }
    }
}

/// What the kernel holds of an answer beyond what is on the wire. By itself it holds megabytes for a reader that does
/// not read, and would not say for minutes that a slow one has taken some.
const UNSENT_MAX: u32 = 512 << 10;
/// Of a request's head; and no more of an answer than this is held here beside the piece that is being sent.
const HEAD_MAX: usize = 16 << 10;

/// Serves until `stop`, then lets answers under way finish (bounded).
pub async fn serve(listener: TcpListener, router: Router, options: PortOptions, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(options.connections_max));
    let mut http = Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.headers_within).max_buf_size(HEAD_MAX);
    loop {
        let permit = tokio::select! {
            permit = room.clone().acquire_owned() => permit,
            () = stop.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // out of file descriptors, or a client that left at once: go on
                tracing::warn!(error = %e, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        prepare(&socket);
        let io = TokioIo::new(Line::new(socket, options.stalled_for));
        let (router, peer) = (TowerToHyperService::new(router.clone()), Peer(from.ip().to_canonical()));
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            router.call(request)
        });
        let connection = http.serve_connection(io, answer);
        let stop = stop.clone();
        connections.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(e) = ended {
                tracing::debug!(error = %e, "a connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(options.finish_within, connections.wait()).await.is_err() {
        tracing::info!("some images were still being read when the port closed; who reads them may come again");
    }
}

/// A socket that takes no such wish serves all the same.
fn prepare(socket: &TcpStream) {
    drop(socket.set_nodelay(true));
    drop(socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_MAX));
}
