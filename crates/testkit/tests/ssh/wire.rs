//! A wire between us and a host that can be cut, also in the middle of a call, and that knows how many connections
//! it carries.

use domain::endpoint::HostPort;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// From where on, counted in bytes that we sent since it was armed, a call is spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// What we send from there on does not arrive, and the connection is cut.
    Cut,
    /// What we send arrives; nothing that is answered does.
    Deafen,
}

struct Shared {
    to: HostPort,
    open: AtomicUsize,
    total: AtomicUsize,
    sent: AtomicU64,
    cuts: watch::Sender<u64>,
    /// Those are deaf that there were before this many cuts; 0: none.
    deaf: AtomicU64,
    /// Bytes left before it happens; `u64::MAX`: not armed.
    left: AtomicU64,
    spoil: std::sync::Mutex<Spoil>,
}

pub struct Wire {
    pub at: HostPort,
    shared: Arc<Shared>,
    closed: CancellationToken,
}

impl Wire {
    pub async fn to(to: HostPort) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = HostPort { host: "127.0.0.1".into(), port: listener.local_addr().expect("an address").port() };
        let shared = Arc::new(Shared {
            to,
            open: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            cuts: watch::channel(1).0,
            deaf: AtomicU64::new(0),
            left: AtomicU64::new(u64::MAX),
            spoil: std::sync::Mutex::new(Spoil::Cut),
        });
        let closed = CancellationToken::new();
        let (carried, stop) = (Arc::clone(&shared), closed.clone());
        tokio::spawn(async move {
            loop {
                let client = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted.expect("a connection").0,
                };
                let shared = Arc::clone(&carried);
                shared.open.fetch_add(1, Ordering::SeqCst);
                shared.total.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    carry(client, &shared).await;
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { at, shared, closed }
    }

    /// Connections there are now, and there were.
    pub fn connections(&self) -> (usize, usize) {
        (self.shared.open.load(Ordering::SeqCst), self.shared.total.load(Ordering::SeqCst))
    }

    /// Bytes that we sent.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|n| *n += 1);
    }

    /// Spoils a call once so many more bytes were sent.
    pub fn spoil_after(&self, bytes: u64, spoil: Spoil) {
        *self.shared.spoil.lock().expect("unpoisoned") = spoil;
        self.shared.left.store(bytes, Ordering::SeqCst);
    }

    /// It has happened.
    pub fn is_spoilt(&self) -> bool {
        self.shared.left.load(Ordering::SeqCst) == u64::MAX
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.closed.cancel();
        self.cut();
    }
}

async fn carry(client: TcpStream, shared: &Shared) {
    let Ok(server) = TcpStream::connect((shared.to.host.as_str(), shared.to.port)).await else { return };
    let mut cuts = shared.cuts.subscribe();
    let age = *cuts.borrow_and_update();
    let ((mut from_us, mut to_us), (mut from_host, mut to_host)) = (client.into_split(), server.into_split());
    let forth = async {
        let mut piece = vec![0; 4096];
        while let Ok(n @ 1..) = from_us.read(&mut piece).await {
            let left = shared.left.load(Ordering::SeqCst);
            if left != u64::MAX {
                if left < n as u64 {
                    shared.left.store(u64::MAX, Ordering::SeqCst);
                    let spoil = *shared.spoil.lock().expect("unpoisoned");
                    match spoil {
                        Spoil::Cut => {
                            drop(to_host.write_all(&piece[..left as usize]).await);
                            return;
                        }
                        Spoil::Deafen => shared.deaf.store(age, Ordering::SeqCst),
                    }
                } else {
                    shared.left.store(left - n as u64, Ordering::SeqCst);
                }
            }
            shared.sent.fetch_add(n as u64, Ordering::SeqCst);
            if to_host.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut piece = vec![0; 4096];
        while let Ok(n @ 1..) = from_host.read(&mut piece).await {
            let deaf = shared.deaf.load(Ordering::SeqCst) == age;
            if !deaf && to_us.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
        _ = cuts.changed() => {}
    }
}
