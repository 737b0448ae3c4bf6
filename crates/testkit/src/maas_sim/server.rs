//! The listener, and the way of a request through it: what is to go wrong with it, what it does, and who is told after.

use super::log::Answered;
use super::misbehave::{self, Fate};
use super::request::{Answer, Call};
use super::world::World;
use super::{API_HASH, FirstBoot, Pace};
use crate::http_faults::{self, Asked, Faults, Handler, Reply};
use crate::tls::Pair;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Racing requests wait for each other no longer than this: a test that sends too few of them is not to hang.
const RACE_MAX: Duration = Duration::from_secs(20);

pub(super) type Hook = Arc<dyn Fn(FirstBoot) + Send + Sync>;

pub(super) struct Shared {
    world: Mutex<World>,
    /// The newest machine that is committed.
    created: AtomicU64,
    pub hanging: AtomicBool,
    pub time: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub hook: Mutex<Option<Hook>>,
}

impl Shared {
    pub fn new(world: World, time: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let (created, hanging, hook) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(None));
        Self { world: Mutex::new(world), created, hanging, time, hook }
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something in the world, and tells of what booted by it when that is over.
    pub fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let (outcome, booted) = {
            let mut world = self.lock();
            let outcome = change(&mut world);
            if world.pace == Pace::Instant {
                world.settle();
            }
            self.created.store(world.created, Ordering::Release);
            (outcome, std::mem::take(&mut world.booted))
        };
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            booted.into_iter().for_each(|boot| hook(boot));
        }
        outcome
    }

    /// A request as it came in, or as a test makes it.
    pub fn handle(&self, call: &mut Call, answered: Answered) -> Answer {
        let now = (self.time)();
        self.with(|world| {
            let answer = world.request(call, now, answered);
            if world.pace == Pace::Instant && call.method == "GET" {
                world.sync_seen(&answer.told);
            }
            answer
        })
    }

    /// A request that nothing comes of.
    fn refuse(&self, call: &mut Call, answer: &Answer, answered: Answered) {
        let now = (self.time)();
        self.with(|world| {
            world.log.begin();
            // whose it was is to stand in the log
            drop(world.identify(call, now));
            world.note_request(call, answer, answered);
        });
    }
}

pub(super) struct Door(pub Arc<Shared>);

impl Handler for Door {
    async fn answer(&self, asked: Asked) -> Reply {
        let arrived = self.0.created.load(Ordering::Acquire);
        if self.0.hanging.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        let mut call = Call::read(&asked, arrived);
        let mut fate = misbehave::fate(&mut self.0.lock().rules, &call);
        if let Fate::Wait(barrier) = fate {
            drop(tokio::time::timeout(RACE_MAX, barrier.wait()).await);
            fate = Fate::Normal;
        }
        let answered = fate.answered();
        match fate {
            Fate::Normal | Fate::Wait(_) => reply(self.0.handle(&mut call, answered)),
            Fate::Instead(answer) => {
                self.0.refuse(&mut call, &answer, answered);
                reply(answer)
            }
            Fate::Then(answer) => {
                self.0.handle(&mut call, answered);
                reply(answer)
            }
            Fate::Hang { done } | Fate::Reset { done } => {
                if done {
                    self.0.handle(&mut call, answered);
                } else {
                    self.0.refuse(&mut call, &Answer::text(0, ""), answered);
                }
                if matches!(fate, Fate::Hang { .. }) {
                    return std::future::pending().await;
                }
                Reply::reset()
            }
        }
    }
}

fn reply(answer: Answer) -> Reply {
    let mut reply = Reply::status(answer.status).with("Content-Type", answer.kind).with("X-MAAS-API-Hash", API_HASH);
    for (name, value) in answer.headers {
        reply = reply.with(name, value);
    }
    reply.body = answer.body;
    reply
}

/// A listener that can be taken away and put back at the same port.
pub(super) struct Listener {
    at: SocketAddr,
    /// Bound and never listening: while it is, nobody else is given the port.
    _held: TcpSocket,
    tls: Option<TlsAcceptor>,
    serving: Mutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

#[allow(clippy::expect_used, reason = "for tests only: what cannot be set up is a failed test")]
impl Listener {
    pub fn new(tls: Option<&Pair>) -> Self {
        let held = TcpSocket::new_v4().expect("a socket");
        held.set_reuseaddr(true).expect("an option");
        held.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let at = held.local_addr().expect("an address");
        Self { at, _held: held, tls: tls.map(acceptor), serving: Mutex::new(None) }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://localhost:{}/MAAS", self.at.port())
    }

    pub fn open(&self, shared: &Arc<Shared>) {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if serving.is_some() {
            return;
        }
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(self.at).expect("our own port");
        let listener = socket.listen(1024).expect("listens");
        let closed = CancellationToken::new();
        let (faults, door) = (Arc::new(Faults::default()), Arc::new(Door(shared.clone())));
        let task = tokio::spawn(http_faults::serve(listener, self.tls.clone(), faults, door, closed.clone()));
        *serving = Some((closed, task));
    }

    /// Connections are refused from here on, and those there were are gone.
    pub async fn close(&self) {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((closed, task)) = serving {
            closed.cancel();
            drop(task.await);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((closed, _)) = serving {
            closed.cancel();
        }
    }
}

#[allow(clippy::expect_used, reason = "for tests only: what cannot be set up is a failed test")]
fn acceptor(pair: &Pair) -> TlsAcceptor {
    let certs = CertificateDer::pem_slice_iter(pair.cert.as_bytes()).map(|c| c.expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .expect("a pair");
    TlsAcceptor::from(Arc::new(config))
}
