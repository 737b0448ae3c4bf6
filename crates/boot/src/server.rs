//! The service on its interface: sockets, tasks, the clock and the log, around what `dhcp` and `tftp` decide. It runs
//! until it is told to stop. An interface that goes away or changes its address is waited for and taken up again.

use crate::Mac;
use crate::counts::{Count, Counts};
use crate::dhcp::{
    Answer, Arrival, Here, Kind, Lease, LeaseKeeper, Mode, PACKET_MAX, PXE_PORT, Responder, SERVER_PORT, Settings,
    Silence,
};
use crate::interface::{Interface, InterfaceError};
use crate::solicitation::Solicitations;
use crate::tftp::{self, Files, Tftp};
use domain::time::Timestamp;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// So often the interface is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// To have a lease kept. A client asks again after a few seconds.
const KEEP_WITHIN: Duration = Duration::from_secs(3);
const LOAD_WITHIN: Duration = Duration::from_secs(30);
/// What goes wrong for one client after the other is said so often.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// What time it is.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// All that the service is made of.
pub struct Options {
    /// The name of the one interface.
    pub interface: String,
    pub dhcp: Settings,
    pub tftp: tftp::Limits,
    pub files: Arc<dyn Files>,
    pub leases: Arc<dyn LeaseKeeper>,
    pub clock: Clock,
}

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("the settings of network boot do not fit: {0}")]
    Settings(String),
    #[error("reading the leases that were kept: {0}")]
    Leases(String),
}

/// What others ask a running service.
#[derive(Clone)]
pub struct Handle {
    responder: Arc<Mutex<Responder>>,
    counts: Arc<Counts>,
    clock: Clock,
}

impl Handle {
    /// The card that we gave this address to, while it has it. Beside another server we give none.
    pub fn leased_to(&self, address: Ipv4Addr) -> Option<Mac> {
        locked(&self.responder).leases().leased_to(address, (self.clock)())
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

fn locked(responder: &Mutex<Responder>) -> MutexGuard<'_, Responder> {
    responder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bound and ready; see [`Server::run`].
pub struct Server {
    service: Service,
    sockets: Sockets,
}

struct Service {
    interface: Interface,
    responder: Arc<Mutex<Responder>>,
    counts: Arc<Counts>,
    clock: Clock,
    files: Arc<dyn Files>,
    leases: Arc<dyn LeaseKeeper>,
    limits: tftp::Limits,
}

struct Sockets {
    dhcp: UdpSocket,
    /// Only beside another server.
    pxe: Option<UdpSocket>,
    tftp: UdpSocket,
    /// Only as the only server; not where the system does not let us.
    solicitations: Option<Solicitations>,
}

impl Sockets {
    fn open(interface: &Interface, mode: &Mode) -> Result<Self, InterfaceError> {
        let proxy = *mode == Mode::Proxy;
        let solicitations = || match Solicitations::hear(interface) {
            Ok(heard) => Some(heard),
            Err(e) => {
                warn!(interface = interface.name(), error = %e, "iPXE will wait some seconds at each boot, as nobody tells it that there is no IPv6");
                None
            }
        };
        Ok(Self {
            dhcp: interface.hear_all(SERVER_PORT)?,
            pxe: proxy.then(|| interface.hear_own(PXE_PORT)).transpose()?,
            tftp: interface.hear_own(tftp::PORT)?,
            // a network that has another server has its own routers, too
            solicitations: if proxy { None } else { solicitations() },
        })
    }
}

impl Server {
    /// Takes up what leases were kept and opens the sockets: what is wrong shows here.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let interface = Interface::look(&options.interface)?;
        let kept = match timeout(LOAD_WITHIN, options.leases.all()).await {
            Ok(kept) => kept.map_err(StartError::Leases)?,
            Err(_) => return Err(StartError::Leases(format!("no answer within {} s", LOAD_WITHIN.as_secs()))),
        };
        let count = kept.len();
        let mode = options.dhcp.mode.clone();
        let made = Responder::new(Here::from(&interface), options.dhcp, kept);
        let (responder, left_out) = made.map_err(StartError::Settings)?;
        let sockets = Sockets::open(&interface, &mode)?;
        let (name, address, subnet) = (interface.name(), interface.address(), interface.subnet());
        info!(interface = name, %address, %subnet, leases = count, left_out, "network boot is served");
        let service = Service {
            interface,
            responder: Arc::new(Mutex::new(responder)),
            counts: Arc::default(),
            clock: options.clock,
            files: options.files,
            leases: options.leases,
            limits: options.tftp,
        };
        Ok(Self { service, sockets })
    }

    pub fn handle(&self) -> Handle {
        let Service { responder, counts, clock, .. } = &self.service;
        Handle { responder: responder.clone(), counts: counts.clone(), clock: clock.clone() }
    }

    pub const fn interface(&self) -> &Interface {
        &self.service.interface
    }

    /// Serves until told to stop; what is under way then is dropped.
    pub async fn run(self, stop: CancellationToken) {
        let Self { mut service, sockets } = self;
        let mut open = Some(sockets);
        while let Some(sockets) = open.take() {
            service.serve(sockets, &stop).await;
            // the sockets are closed now, and can be opened anew
            open = service.again(&stop).await;
        }
        info!(interface = service.interface.name(), "network boot has stopped");
    }
}

impl Service {
    /// Waits until the interface can be used again. `None`: told to stop.
    async fn again(&mut self, stop: &CancellationToken) -> Option<Sockets> {
        let mut said = Seldom::default();
        while !stop.is_cancelled() {
            match self.take_up() {
                Ok(sockets) => {
                    info!(interface = self.interface.name(), address = %self.interface.address(), "network boot is served again");
                    return Some(sockets);
                }
                Err(e) if said.may() => {
                    warn!(interface = self.interface.name(), error = %e, "network boot waits for its interface");
                }
                Err(_) => {}
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
        None
    }

    /// The interface as it is now.
    fn take_up(&mut self) -> Result<Sockets, StartError> {
        let interface = Interface::look(self.interface.name())?;
        let mut responder = locked(&self.responder);
        responder.moved(Here::from(&interface)).map_err(StartError::Settings)?;
        let sockets = Sockets::open(&interface, responder.mode())?;
        drop(responder);
        self.interface = interface;
        Ok(sockets)
    }

    /// Until told to stop, or until the interface is not what it was.
    async fn serve(&self, sockets: Sockets, stop: &CancellationToken) {
        let interface = self.interface.clone();
        let own = Box::new(move || interface.hear_own(0).map_err(io::Error::other));
        let tftp = Tftp::new(self.files.clone(), own, self.counts.clone(), self.limits);
        let pxe = async {
            match &sockets.pxe {
                Some(socket) => self.dhcp(socket, PXE_PORT).await,
                None => std::future::pending().await,
            }
        };
        let solicitations = async {
            match &sockets.solicitations {
                Some(heard) => heard.answer().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.changed() => {}
            () = self.dhcp(&sockets.dhcp, SERVER_PORT) => {}
            () = pxe => {}
            () = tftp.serve(&sockets.tftp, stop) => {}
            () = solicitations => {}
        }
    }

    async fn changed(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            match Interface::look(self.interface.name()) {
                Ok(now) if now == self.interface => {}
                Ok(_) => return warn!(interface = self.interface.name(), "the interface of network boot has changed"),
                Err(e) => return warn!(error = %e, "the interface of network boot cannot be used"),
            }
        }
    }

    async fn dhcp(&self, socket: &UdpSocket, port: u16) {
        // one byte more, to see what is too long
        let mut buffer = vec![0; PACKET_MAX + 1];
        let (mut malformed, mut nothing) = (Seldom::default(), Seldom::default());
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok((length, SocketAddr::V4(from))) => (length, from),
                Ok(_) => continue,
                Err(e) => {
                    debug!(error = %e, "DHCP: receiving");
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            self.counts.add(Count::DhcpReceived);
            let bytes = buffer.get(..length).unwrap_or_default();
            let decided = locked(&self.responder).answer(bytes, Arrival { from, port }, (self.clock)());
            match decided {
                Ok(answer) => self.give(socket, answer).await,
                Err(silence) => self.silent(silence, from, &mut malformed, &mut nothing),
            }
        }
    }

    /// Kept first, then sent.
    async fn give(&self, socket: &UdpSocket, answer: Answer) {
        if let Some(lease) = answer.lease
            && let Err(e) = self.keep(lease).await
        {
            self.counts.add(Count::DhcpNotKept);
            return warn!(mac = %lease.mac, address = %lease.address, error = e, "DHCP: a lease could not be kept, so it is not given");
        }
        self.counts.add(match answer.told.kind {
            Some(Kind::Offer) => Count::DhcpOffers,
            Some(Kind::Ack) => Count::DhcpAcks,
            Some(Kind::Nak) => Count::DhcpNaks,
            None => Count::DhcpEnded,
        });
        info!(mac = %answer.told.mac, "DHCP: {}", answer.told);
        if let Some(send) = answer.send
            && let Err(e) = socket.send_to(&send.bytes, send.to).await
        {
            self.counts.add(Count::SendFailures);
            info!(mac = %answer.told.mac, to = %send.to, error = %e, "DHCP: the answer could not be sent");
        }
    }

    async fn keep(&self, lease: Lease) -> Result<(), String> {
        match timeout(KEEP_WITHIN, self.leases.keep(lease)).await {
            Ok(kept) => kept,
            Err(_) => Err(format!("no answer within {} s", KEEP_WITHIN.as_secs())),
        }
    }

    fn silent(&self, silence: Silence, from: SocketAddrV4, malformed: &mut Seldom, nothing: &mut Seldom) {
        debug!(%from, "DHCP: no answer: {silence}");
        match silence {
            Silence::Malformed(why) => {
                self.counts.add(Count::DhcpMalformed);
                if malformed.may() {
                    warn!(%from, all = self.counts.of(Count::DhcpMalformed), "DHCP: a packet that makes no sense: {why}");
                }
            }
            Silence::TooMany => self.counts.add(Count::DhcpTooMany),
            Silence::NotBooting | Silence::NotAsked | Silence::OtherServer | Silence::NotItsOwn => {
                self.counts.add(Count::DhcpNotForUs);
            }
            Silence::UnknownNetwork | Silence::NoAddressLeft | Silence::NoFile => {
                self.counts.add(Count::DhcpNothingToGive);
                if nothing.may() {
                    warn!(%from, all = self.counts.of(Count::DhcpNothingToGive), "DHCP: a client gets nothing: {silence}");
                }
            }
        }
    }
}

/// Something that may be said now and then.
#[derive(Default)]
struct Seldom(Option<Instant>);

impl Seldom {
    fn may(&mut self) -> bool {
        let now = Instant::now();
        let may = self.0.is_none_or(|last| now.duration_since(last) >= SAID_EVERY);
        if may {
            self.0 = Some(now);
        }
        may
    }
}
