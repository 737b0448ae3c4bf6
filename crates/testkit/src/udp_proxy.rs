//! Stands between an adapter and a counterpart that speaks datagrams, and does to them what networks do: drops,
//! delays, duplicates, truncates. It also remembers what passed, so that a test can judge what was really sent.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// What happens to datagrams, both ways, from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Nothing passes.
    Drop,
    /// Each first datagram of this many is lost.
    DropOneOf(usize),
    /// Every one comes this much later.
    Delay(Duration),
    /// Every one comes twice.
    Duplicate,
    /// Only its first bytes come.
    Truncate(usize),
    /// What is asked passes; once this many answers have come back, no more do.
    LoseAnswersAfter(usize),
}

#[derive(Default)]
struct State {
    fault: Fault,
    passed: usize,
    answers: usize,
    /// Every datagram that was asked, before any fault.
    asked: Vec<Vec<u8>>,
}

/// A proxy on loopback, ended when dropped.
pub struct UdpProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _work: JoinSet<()>,
}

impl UdpProxy {
    pub async fn before(counterpart: SocketAddr) -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"), counterpart).await
    }

    /// Where somebody will look for it.
    pub async fn at(address: SocketAddr, counterpart: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).await.unwrap_or_else(|e| panic!("binding {address}: {e}"));
        let socket = Arc::new(socket);
        let address = socket.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let mut work = JoinSet::new();
        work.spawn(serve(socket, counterpart, state.clone()));
        Self { address, state, _work: work }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts from here.
    pub fn set(&self, fault: Fault) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.fault, state.passed, state.answers) = (fault, 0, 0);
    }

    /// How many answers have come back since [`UdpProxy::set`].
    pub fn answers(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).answers
    }

    /// Everything that was asked so far.
    pub fn asked(&self) -> Vec<Vec<u8>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }
}

async fn serve(socket: Arc<UdpSocket>, counterpart: SocketAddr, state: Arc<Mutex<State>>) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut work = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let datagram = buffer.get(..length).unwrap_or_default().to_vec();
        state.lock().unwrap_or_else(PoisonError::into_inner).asked.push(datagram.clone());
        let up = match clients.get(&client) {
            Some(up) => up.clone(),
            None => {
                let up = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
                up.connect(counterpart).await.expect("loopback");
                work.spawn(answers(up.clone(), socket.clone(), client, state.clone()));
                clients.insert(client, up.clone());
                up
            }
        };
        for copy in fate(&state, datagram, false) {
            let up = up.clone();
            work.spawn(async move {
                tokio::time::sleep(copy.after).await;
                // a counterpart that is gone is part of what is tested
                drop(up.send(&copy.bytes).await);
            });
        }
    }
}

async fn answers(up: Arc<UdpSocket>, down: Arc<UdpSocket>, client: SocketAddr, state: Arc<Mutex<State>>) {
    let mut work = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(length) = up.recv(&mut buffer).await else { continue };
        for copy in fate(&state, buffer.get(..length).unwrap_or_default().to_vec(), true) {
            let down = down.clone();
            work.spawn(async move {
                tokio::time::sleep(copy.after).await;
                drop(down.send_to(&copy.bytes, client).await);
            });
        }
    }
}

struct Copy {
    bytes: Vec<u8>,
    after: Duration,
}

fn fate(state: &Mutex<State>, bytes: Vec<u8>, answer: bool) -> Vec<Copy> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.passed += 1;
    state.answers += usize::from(answer);
    let whole = |after| Copy { bytes: bytes.clone(), after };
    match state.fault {
        Fault::None => vec![whole(Duration::ZERO)],
        Fault::Drop => Vec::new(),
        Fault::DropOneOf(n) if state.passed % n == 1 => Vec::new(),
        Fault::DropOneOf(_) => vec![whole(Duration::ZERO)],
        Fault::Delay(by) => vec![whole(by)],
        Fault::Duplicate => vec![whole(Duration::ZERO), whole(Duration::ZERO)],
        Fault::Truncate(to) => {
            vec![Copy { bytes: bytes.into_iter().take(to).collect(), after: Duration::ZERO }]
        }
        Fault::LoseAnswersAfter(n) if answer && state.answers > n => Vec::new(),
        Fault::LoseAnswersAfter(_) => vec![whole(Duration::ZERO)],
    }
}
