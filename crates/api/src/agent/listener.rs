//! The agents' port: connections are counted in all; by address while nobody has said who it is, by node from then on.
//! Each is kept small: ten thousand of them stay open.

use super::handler;
use super::line::{Line, Who};
use super::tls::{self, AgentTls};
use domain::{Error, NodeId, Reason, metric};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use service::Service;
use service::agents::AgentPeer;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The port's bounds, by name.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    pub connections_max: usize,
    /// That have not shown a certificate.
    pub strangers_max: usize,
    /// Of those, from one address.
    pub strangers_per_address: usize,
    /// Of one agent: its stream, one that takes over, and a renewal.
    pub connections_per_node: usize,
    pub handshake_within: Duration,
    /// How long a connection may be there without a stream.
    pub stream_within: Duration,
    /// How long streams may take to end at a stop.
    pub finish_within: Duration,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            connections_max: 12_000,
            strangers_max: 1024,
            strangers_per_address: 512,
            connections_per_node: 4,
            handshake_within: Duration::from_secs(10),
            stream_within: Duration::from_secs(30),
            finish_within: Duration::from_secs(5),
        }
    }
}

/// A stream, its renewal, and one more.
const STREAMS_MAX: u32 = 4;
/// What may be on its way to us: heartbeats are small, and what is larger is read as it comes.
const WINDOW: u32 = 64 * 1024;
const SEND_BUFFER: usize = 32 * 1024;
const HEADERS_MAX: u32 = 8 * 1024;
/// For the last words of a connection that ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Who is there, by address or by node.
struct Places<K: Eq + Hash> {
    taken: Mutex<HashMap<K, usize>>,
    most: usize,
}

/// A place, given back when it is dropped.
struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    of: K,
}

impl<K: Eq + Hash + Clone> Places<K> {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::new(HashMap::new()), most })
    }

    fn take(self: &Arc<Self>, of: &K) -> Option<Place<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let there = taken.get(of).copied().unwrap_or(0);
        if there >= self.most {
            return None;
        }
        taken.insert(of.clone(), there + 1);
        Some(Place { places: self.clone(), of: of.clone() })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = taken.get_mut(&self.of) {
            *there -= 1;
            if *there == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

/// What one has who has not said who it is.
type Stranger = (OwnedSemaphorePermit, Place<IpAddr>);

fn no_room() {
    metrics::counter!(metric::AGENT_REFUSALS.name, "why" => "no_room").increment(1);
}

/// What every connection is served with.
struct Port {
    service: Service,
    options: AgentOptions,
    tls: AgentTls,
    http: http2::Builder<TokioExecutor>,
    nodes: Arc<Places<NodeId>>,
    stop: CancellationToken,
}

/// Serves agents until `stop`. Their streams end, and say why, when the service closes.
pub async fn serve_agents(listener: TcpListener, service: Service, options: AgentOptions, stop: CancellationToken) {
    let attending = tokio::spawn(service.clone().attend_agents());
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADERS_MAX)
        .auto_date_header(false);
    let tls = AgentTls::new(service.clone());
    let room = Arc::new(Semaphore::new(options.connections_max));
    let strangers = Arc::new(Semaphore::new(options.strangers_max));
    let (addresses, nodes) = (Places::new(options.strangers_per_address), Places::new(options.connections_per_node));
    let port = Arc::new(Port { service, options, tls, http, nodes, stop: stop.clone() });
    let connections = TaskTracker::new();
    loop {
        let (socket, from) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    // out of file descriptors, or a client that left at once: go on
                    tracing::warn!(error = %e, "accepting an agent's connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        let (whole, stranger) = (room.clone().try_acquire_owned(), strangers.clone().try_acquire_owned());
        match (whole, stranger, addresses.take(&from.ip())) {
            (Ok(whole), Ok(stranger), Some(place)) => {
                let port = port.clone();
                connections.spawn(async move {
                    port.attend(socket, (stranger, place)).await;
                    drop(whole);
                });
            }
            // closed at once: it comes again, and whoever has a place keeps it
            _ => no_room(),
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(port.options.finish_within, connections.wait()).await.is_err() {
        tracing::warn!("some agents were still connected when the server stopped");
    }
    attending.abort();
}

impl Port {
    async fn attend(&self, socket: TcpStream, stranger: Stranger) {
        drop(socket.set_nodelay(true));
        // what the handshake needs is let go with it
        let Some(stream) = Box::pin(self.shake_hands(socket)).await else { return };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let who = match shown.map(|certificate| AgentPeer::read(certificate)) {
            None => Who::Nobody,
            Some(Ok(peer)) => Who::Agent(peer),
            Some(Err(why)) => Who::Unreadable(why),
        };
        // whoever has shown who it is takes no stranger's place
        let (stranger, known) = match &who {
            Who::Agent(peer) => match self.nodes.take(&peer.node_id) {
                Some(place) => {
                    drop(stranger);
                    (None, Some(place))
                }
                None => return no_room(),
            },
            Who::Nobody | Who::Unreadable(_) => (Some(stranger), None),
        };
        self.serve(stream, Arc::new(Line::new(who))).await;
        drop((stranger, known));
    }

    /// The encrypted stream, which is large; `None`: it did not get that far.
    async fn shake_hands(&self, socket: TcpStream) -> Option<Box<TlsStream<TcpStream>>> {
        let acceptor = match self.tls.acceptor().await {
            Ok(acceptor) => acceptor?,
            Err(e) => {
                tracing::warn!(error = %e, "an agent cannot be let in");
                return None;
            }
        };
        let shaken = tokio::time::timeout(self.options.handshake_within, acceptor.accept(socket));
        let shaken = tokio::select! {
            shaken = shaken => shaken,
            () = self.stop.cancelled() => return None,
        };
        let failed = match shaken {
            Ok(Ok(stream)) => return Some(Box::new(stream)),
            Ok(Err(e)) => e,
            Err(_) => std::io::ErrorKind::TimedOut.into(),
        };
        metrics::counter!(metric::HANDSHAKE_FAILURES.name).increment(1);
        match tls::refused(&failed) {
            Some((why, message)) => {
                let error = Error::new(Reason::AgentCertificateRefused, message);
                self.service.turned_away(why, "AgentService", None, &error).await;
            }
            None => tracing::debug!(error = %failed, "an agent's TLS handshake failed"),
        }
        None
    }

    async fn serve(&self, stream: Box<TlsStream<TcpStream>>, line: Arc<Line>) {
        let (service, of) = (self.service.clone(), line.clone());
        let calls = service_fn(move |request| {
            // a stream goes on long after it was answered: what the answer took is let go
            let answer = Box::pin(handler::call(service.clone(), of.clone(), request));
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut connection = Box::pin(self.http.serve_connection(TokioIo::new(stream), calls));
        let idle = async {
            tokio::time::sleep(self.options.stream_within).await;
            // one with a stream ends with it
            if line.streams.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = line.end.cancelled() => None,
            () = self.stop.cancelled() => None,
            () = idle => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(LAST_WORDS, connection).await {
                    Ok(ended) => ended,
                    // it does not read: it is cut off
                    Err(_) => Ok(()),
                }
            }
        };
        // whatever was still going on for it ends, too
        line.end.cancel();
        if let Err(e) = ended {
            tracing::debug!(error = %e, "an agent's connection ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_whom_they_are_of_and_given_back() {
        let places = Places::new(2);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = places.take(&one);
        let second = places.take(&one);
        assert!(first.is_some() && second.is_some() && places.take(&one).is_none() && places.take(&other).is_some());
        drop(second);
        assert!(places.take(&one).is_some());
        drop(first);
        assert!(places.taken.lock().expect("whole").is_empty());
    }
}
