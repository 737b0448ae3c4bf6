//! A port at which nobody listens, and that nobody else is given while it is held: a port that a listener gave back
//! may be a neighbour's a moment later.
#![allow(clippy::expect_used)] // for tests only

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

pub struct ClosedPort {
    _bound: TcpSocket,
    pub at: SocketAddr,
}

impl ClosedPort {
    pub fn new() -> Self {
        Self::on(Ipv4Addr::LOCALHOST)
    }

    pub fn on(address: Ipv4Addr) -> Self {
        let bound = TcpSocket::new_v4().expect("a socket");
        bound.bind(SocketAddr::new(IpAddr::V4(address), 0)).expect("a port");
        let at = bound.local_addr().expect("an address");
        Self { _bound: bound, at }
    }
}

impl Default for ClosedPort {
    fn default() -> Self {
        Self::new()
    }
}
