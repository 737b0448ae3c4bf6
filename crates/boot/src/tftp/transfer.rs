//! Transfers: each is a task with a socket of its own, bounded in number, in tries and in time. The first packet on the
//! known port begins one; the rest is between the two.
//!
//! | what happens | what is done |
//! |---|---|
//! | the same request again before anything was acknowledged | nothing: its answer is under way or sent again anyway |
//! | another request from the same port, or after an acknowledgement | the client began anew: so do we |
//! | a packet from somebody else at a transfer's socket | error 5 to the stranger, the transfer goes on |
//! | silence | what is under way is sent again, a few times, then no more |

use super::packet::{self, FromClient, Refusal, Request, Unserved};
use super::window::{Acked, Window};
use super::{Files, Open};
use crate::counts::{Count, Counts};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

/// How much is done at once, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub transfers: usize,
    /// Of one address. Firmware loads one file after the other, and leaves some unfinished.
    pub of_one: usize,
    /// How often the same is sent, the first time included.
    pub tries: u32,
    /// Before the same is sent again; a client may ask for another.
    pub pause: Duration,
    /// Of a whole transfer: a client that takes a byte a second is not booting.
    pub whole: Duration,
    /// To look up and open a file.
    pub opening: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transfers: 256,
            of_one: 8,
            tries: 6,
            pause: Duration::from_secs(1),
            whole: Duration::from_secs(900),
            opening: Duration::from_secs(5),
        }
    }
}

/// Strangers at one transfer are told so, but not for ever.
const STRANGERS_MAX: u32 = 8;

/// Opens a socket for one transfer.
pub type Sockets = Box<dyn Fn() -> io::Result<UdpSocket> + Send + Sync>;

/// The service at its known port.
pub struct Tftp {
    files: Arc<dyn Files>,
    sockets: Sockets,
    counts: Arc<Counts>,
    limits: Limits,
    running: Arc<Mutex<Running>>,
}

/// The transfers that run, by who asked for them.
#[derive(Default)]
struct Running {
    of: HashMap<SocketAddr, Transfer>,
    begun: u64,
}

struct Transfer {
    number: u64,
    request: Request,
    acknowledged: Arc<AtomicBool>,
    stop: CancellationToken,
}

/// A place among the transfers; given back when dropped.
struct Place {
    running: Arc<Mutex<Running>>,
    peer: SocketAddr,
    number: u64,
    acknowledged: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = locked(&self.running);
        // a newer one of the same client stays
        if running.of.get(&self.peer).is_some_and(|transfer| transfer.number == self.number) {
            running.of.remove(&self.peer);
        }
    }
}

fn locked(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Admitted {
    Begins(Place),
    Runs,
    TooMany,
}

impl Tftp {
    pub fn new(files: Arc<dyn Files>, sockets: Sockets, counts: Arc<Counts>, limits: Limits) -> Self {
        Self { files, sockets, counts, limits, running: Arc::default() }
    }

    /// Serves what comes to `socket` until told to stop. Transfers end with it.
    pub async fn serve(&self, socket: &UdpSocket, stop: &CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut buffer = vec![0; packet::REQUEST_MAX + 1];
        loop {
            let came = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = tasks.join_next() => continue,
                came = socket.recv_from(&mut buffer) => came,
            };
            let Ok((length, peer)) = came else {
                // an earlier answer could not be delivered; not a reason to spin
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            self.counts.add(Count::TftpReceived);
            match Request::read(buffer.get(..length).unwrap_or_default()) {
                Ok(request) => self.asked(request, peer, socket, &mut tasks).await,
                Err(why) => self.unserved(why, peer, socket).await,
            }
        }
    }

    async fn unserved(&self, why: Unserved, peer: SocketAddr, socket: &UdpSocket) {
        let answer = match why {
            Unserved::Malformed => {
                debug!(%peer, "TFTP: not a request");
                return self.counts.add(Count::TftpMalformed);
            }
            Unserved::Write => Refusal::NoWriting.bytes("files are only read"),
            Unserved::Mode => Refusal::BadMode.bytes("octet mode only"),
            Unserved::Name => Refusal::NotFound.bytes("no such file"),
        };
        info!(%peer, ?why, "TFTP: refused");
        self.counts.add(Count::TftpRefused);
        self.send(socket, &answer, peer).await;
    }

    async fn asked(&self, request: Request, peer: SocketAddr, socket: &UdpSocket, tasks: &mut JoinSet<()>) {
        let place = match self.admit(&request, peer) {
            Admitted::Begins(place) => place,
            Admitted::Runs => return debug!(%peer, name = request.name, "TFTP: asked again for what is on its way"),
            Admitted::TooMany => {
                info!(%peer, name = request.name, "TFTP: too many transfers at once");
                self.counts.add(Count::TftpTooMany);
                return self.send(socket, &Refusal::Failed.bytes("busy, try again"), peer).await;
            }
        };
        let own = match (self.sockets)() {
            Ok(own) => own,
            Err(e) => {
                info!(%peer, error = %e, "TFTP: no socket for a transfer");
                self.counts.add(Count::TftpBroken);
                return self.send(socket, &Refusal::Failed.bytes("busy, try again"), peer).await;
            }
        };
        let session = Session {
            socket: own,
            peer,
            request,
            place,
            counts: self.counts.clone(),
            limits: self.limits,
            strangers: 0,
        };
        tasks.spawn(session.run(self.files.clone()));
    }

    fn admit(&self, request: &Request, peer: SocketAddr) -> Admitted {
        let mut running = locked(&self.running);
        if let Some(transfer) = running.of.get(&peer) {
            if transfer.request == *request && !transfer.acknowledged.load(Ordering::Relaxed) {
                return Admitted::Runs;
            }
            transfer.stop.cancel();
            running.of.remove(&peer);
        }
        let host = |address: &SocketAddr| -> IpAddr { address.ip() };
        let of_one = running.of.keys().filter(|other| host(other) == host(&peer)).count();
        if running.of.len() >= self.limits.transfers || of_one >= self.limits.of_one {
            return Admitted::TooMany;
        }
        running.begun += 1;
        let (number, acknowledged, stop) = (running.begun, Arc::<AtomicBool>::default(), CancellationToken::new());
        let transfer =
            Transfer { number, request: request.clone(), acknowledged: acknowledged.clone(), stop: stop.clone() };
        running.of.insert(peer, transfer);
        Admitted::Begins(Place { running: self.running.clone(), peer, number, acknowledged, stop })
    }

    async fn send(&self, socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
        if socket.send_to(bytes, to).await.is_err() {
            self.counts.add(Count::SendFailures);
        }
    }
}

struct Session {
    socket: UdpSocket,
    peer: SocketAddr,
    request: Request,
    place: Place,
    counts: Arc<Counts>,
    limits: Limits,
    strangers: u32,
}

/// How a transfer ended, if not well.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("no such file")]
    NotFound,
    #[error("the file cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("the client went silent")]
    Silent,
    #[error("it took too long")]
    TooLong,
    /// Firmware does this on purpose, to learn how long a file is.
    #[error("the client has enough")]
    Enough,
    #[error("the client began anew")]
    BegunAnew,
}

/// What a wait came to.
enum Heard {
    Ack(u16),
    Nothing,
}

impl Session {
    async fn run(mut self, files: Arc<dyn Files>) {
        let (peer, name) = (self.peer, self.request.name.clone());
        let (whole, stop) = (self.limits.whole, self.place.stop.clone());
        let ended = tokio::select! {
            () = stop.cancelled() => Err(Broken::BegunAnew),
            ended = timeout(whole, self.transfer(files.as_ref())) => ended.unwrap_or(Err(Broken::TooLong)),
        };
        let refusal = match ended {
            Ok(size) => {
                self.counts.add(Count::TftpDone);
                return info!(%peer, name, size, "TFTP: sent");
            }
            Err(Broken::NotFound) => {
                self.counts.add(Count::TftpRefused);
                info!(%peer, name, "TFTP: no such file");
                Some(Refusal::NotFound.bytes("no such file"))
            }
            Err(why) => {
                self.counts.add(Count::TftpBroken);
                info!(%peer, name, "TFTP: not sent to its end: {why}");
                match why {
                    Broken::Enough | Broken::BegunAnew | Broken::NotFound => None,
                    Broken::Unreadable(_) => Some(Refusal::Failed.bytes("the file cannot be read")),
                    Broken::Silent | Broken::TooLong => Some(Refusal::Failed.bytes("given up")),
                }
            }
        };
        if let Some(refusal) = refusal {
            self.send(&refusal).await;
        }
    }

    async fn transfer(&mut self, files: &dyn Files) -> Result<u64, Broken> {
        let opened = timeout(self.limits.opening, files.open(&self.request.name)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Broken::Unreadable)?;
        let Open { size, mut bytes } = opened.ok_or(Broken::NotFound)?;
        self.counts.add(Count::TftpBegun);
        debug!(peer = %self.peer, name = self.request.name, size, "TFTP: begun");
        if let Some(agreed) = self.request.agreed(size) {
            self.settled(&[agreed], |number| number == 0).await?;
        }
        let block = self.request.block.unwrap_or(packet::BLOCK_DEFAULT);
        let mut window = Window::new(size, block, self.request.window.unwrap_or(1));
        loop {
            while let Some(length) = window.next_length() {
                let mut block = vec![0; length];
                bytes.read_exact(&mut block).await.map_err(Broken::Unreadable)?;
                window.add(block);
            }
            let packets: Vec<Vec<u8>> = window.under_way().map(|(number, block)| packet::data(number, block)).collect();
            let mut come = Acked::Nothing;
            let acked = |number| {
                come = window.acked(number);
                come != Acked::Nothing
            };
            self.settled(&packets, acked).await?;
            if come == Acked::Whole {
                return Ok(size);
            }
        }
    }

    /// Sends these, again and again, until an acknowledgement settles them.
    async fn settled(&mut self, packets: &[Vec<u8>], mut settles: impl FnMut(u16) -> bool) -> Result<(), Broken> {
        let pause = self.request.pause.map_or(self.limits.pause, |seconds| Duration::from_secs(seconds.into()));
        for try_number in 0..self.limits.tries {
            if try_number > 0 {
                self.counts.add(Count::TftpResent);
            }
            for packet in packets {
                self.send(packet).await;
            }
            // whatever else comes in between does not put off the next try
            let until = Instant::now() + pause;
            while let Heard::Ack(number) = self.heard(until).await? {
                self.place.acknowledged.store(true, Ordering::Relaxed);
                if settles(number) {
                    return Ok(());
                }
            }
        }
        Err(Broken::Silent)
    }

    /// The client's next acknowledgement.
    async fn heard(&mut self, until: Instant) -> Result<Heard, Broken> {
        let mut buffer = [0; 64];
        loop {
            let (length, from) = match timeout_at(until, self.socket.recv_from(&mut buffer)).await {
                Err(_) => return Ok(Heard::Nothing),
                // nobody listens there any more; it may yet come back
                Ok(Err(_)) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
                Ok(Ok(came)) => came,
            };
            if from != self.peer {
                self.stranger(from).await;
                continue;
            }
            match FromClient::read(buffer.get(..length).unwrap_or_default()) {
                FromClient::Ack(number) => return Ok(Heard::Ack(number)),
                FromClient::Enough => return Err(Broken::Enough),
                FromClient::Nonsense => self.counts.add(Count::TftpMalformed),
            }
        }
    }

    async fn stranger(&mut self, from: SocketAddr) {
        self.strangers += 1;
        self.counts.add(Count::TftpStrangers);
        if self.strangers <= STRANGERS_MAX
            && self.socket.send_to(&Refusal::Stranger.bytes("not your transfer"), from).await.is_err()
        {
            self.counts.add(Count::SendFailures);
        }
    }

    async fn send(&self, bytes: &[u8]) {
        if self.socket.send_to(bytes, self.peer).await.is_err() {
            self.counts.add(Count::SendFailures);
        }
    }
}
