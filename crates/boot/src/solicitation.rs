//! Tells whoever asks for an IPv6 router that there is none. iPXE looks for IPv4 and IPv6 at once and goes on when both
//! are settled; unanswered, its first fetch came after 24 s instead of 3. The answer configures nothing: no prefix, no
//! router, a lifetime of zero.
//!
//! Only where we are the only server. It needs CAP_NET_RAW and a link-local address, and is done without otherwise.

use crate::interface::Interface;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;
use tokio::net::UdpSocket;
use tracing::debug;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const SOLICITATION: u8 = 133;
/// An advertisement (RFC 4861, 4.2) of nothing; the system fills in the checksum.
const NOTHING: [u8; 16] = [134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// After each answer: whoever floods us is not answered more often.
const PAUSE: Duration = Duration::from_millis(5);

pub struct Solicitations {
    /// A raw ICMPv6 socket; to the runtime it is one that carries datagrams.
    socket: UdpSocket,
    index: u32,
}

impl Solicitations {
    pub fn hear(interface: &Interface) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        socket.bind_device(Some(interface.name().as_bytes()))?;
        socket.set_nonblocking(true)?;
        // receivers drop what could have come from another network
        socket.set_unicast_hops_v6(255)?;
        socket.set_multicast_hops_v6(255)?;
        socket.join_multicast_v6(&ALL_ROUTERS, interface.index())?;
        Ok(Self { socket: UdpSocket::from_std(socket.into())?, index: interface.index() })
    }

    pub async fn answer(&self) {
        let mut buffer = [0; 256];
        loop {
            let to = match self.socket.recv_from(&mut buffer).await {
                Ok((8.., SocketAddr::V6(from))) if buffer[0] == SOLICITATION && buffer[1] == 0 => self.to(*from.ip()),
                Ok(_) => None,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    None
                }
            };
            if let Some(to) = to {
                debug!(%to, "told that there is no IPv6 router");
                // without a link-local address of ours there is no way to say it; whoever asks waits and goes on
                drop(self.socket.send_to(&NOTHING, to).await);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Back to a neighbour; to all where it has no address yet.
    fn to(&self, from: Ipv6Addr) -> Option<SocketAddrV6> {
        let to = if from.is_unspecified() { ALL_NODES } else { from };
        (to == ALL_NODES || to.is_unicast_link_local()).then(|| SocketAddrV6::new(to, 0, 0, self.index))
    }
}
