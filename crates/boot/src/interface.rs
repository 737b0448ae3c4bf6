//! One network interface, and sockets that hear and speak on it alone.
//!
//! A DHCP server that answers on the wrong network takes that network down. So every socket is bound to its device
//! (`SO_BINDTODEVICE`) before it has a port: what comes in elsewhere is never seen, and what goes out, broadcasts too,
//! leaves by this interface whatever the routes say.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

/// A block of addresses, such as `10.77.0.0/24`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    network: Ipv4Addr,
    mask: Ipv4Addr,
}

impl Subnet {
    /// The one that has this address. `None` for a mask with holes.
    pub fn around(address: Ipv4Addr, mask: Ipv4Addr) -> Option<Self> {
        let bits = u32::from(mask);
        (bits.leading_ones() + bits.trailing_zeros() == 32)
            .then(|| Self { network: Ipv4Addr::from(u32::from(address) & bits), mask })
    }

    pub const fn mask(self) -> Ipv4Addr {
        self.mask
    }

    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & u32::from(self.mask) == u32::from(self.network)
    }

    /// An address that one host can have: neither the block's own nor its broadcast.
    pub fn has_host(self, address: Ipv4Addr) -> bool {
        let broadcast = u32::from(self.network) | !u32::from(self.mask);
        // a block of one or two addresses has no such ends
        let narrow = u32::from(self.mask).trailing_zeros() < 2;
        self.contains(address) && (narrow || (address != self.network && u32::from(address) != broadcast))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, u32::from(self.mask).leading_ones())
    }
}

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An interface as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: String,
    /// Another one after it was made anew under the same name.
    index: u32,
    address: Ipv4Addr,
    subnet: Subnet,
}

#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error("there is no network interface {name:?}; there are: {there}")]
    Missing { name: String, there: String },
    #[error("the network interface {name} is down; bring it up: ip link set {name} up")]
    Down { name: String },
    #[error("the network interface {name} has no broadcasts, so no machine can boot over it")]
    NoBroadcast { name: String },
    #[error("the network interface {name} has no IPv4 address; give it one: ip address add ADDRESS/PREFIX dev {name}")]
    NoAddress { name: String },
    #[error("asking the system for its network interfaces")]
    List(#[source] io::Error),
    #[error(
        "binding UDP port {port} on {name} is not permitted: it needs the capability CAP_NET_BIND_SERVICE (before \
         Linux 5.7 CAP_NET_RAW too). Run as root, or give it to the program (setcap \
         cap_net_bind_service,cap_net_raw+ep PROGRAM) or to its service (systemd: AmbientCapabilities=\
         CAP_NET_BIND_SERVICE CAP_NET_RAW)"
    )]
    NotPermitted { name: String, port: u16 },
    #[error(
        "UDP port {port} on {name} is taken by another program, such as another DHCP or TFTP server; see which one: \
         ss -ulpn 'sport = :{port}'"
    )]
    Taken { name: String, port: u16 },
    #[error("opening UDP port {port} on {name}")]
    Socket {
        name: String,
        port: u16,
        #[source]
        source: io::Error,
    },
}

impl Interface {
    /// Looks at it now. Its first IPv4 address is the one that others will see.
    pub fn look(name: &str) -> Result<Self, InterfaceError> {
        let all = getifaddrs().map_err(|e| InterfaceError::List(e.into()))?.collect::<Vec<_>>();
        let its: Vec<_> = all.iter().filter(|one| one.interface_name == name).collect();
        let name = name.to_owned();
        let Some(flags) = its.first().map(|one| one.flags) else {
            let there: BTreeSet<&str> = all.iter().map(|one| one.interface_name.as_str()).collect();
            return Err(InterfaceError::Missing { name, there: there.into_iter().collect::<Vec<_>>().join(", ") });
        };
        if !flags.contains(InterfaceFlags::IFF_UP) {
            return Err(InterfaceError::Down { name });
        }
        if !flags.contains(InterfaceFlags::IFF_BROADCAST) {
            return Err(InterfaceError::NoBroadcast { name });
        }
        let found = its.iter().find_map(|one| {
            let address = one.address.as_ref()?.as_sockaddr_in()?.ip();
            let mask = one.netmask.as_ref()?.as_sockaddr_in()?.ip();
            Some((address, Subnet::around(address, mask)?))
        });
        let Some((address, subnet)) = found else { return Err(InterfaceError::NoAddress { name }) };
        let index = if_nametoindex(name.as_str()).map_err(|e| InterfaceError::List(e.into()))?;
        Ok(Self { name, index, address, subnet })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub const fn index(&self) -> u32 {
        self.index
    }

    /// What clients know us by.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub const fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Hears everything for the port on this interface, broadcasts too.
    pub fn hear_all(&self, port: u16) -> Result<UdpSocket, InterfaceError> {
        self.socket(Ipv4Addr::UNSPECIFIED, port)
    }

    /// Hears only what is sent to our own address. Port 0: any free one.
    pub fn hear_own(&self, port: u16) -> Result<UdpSocket, InterfaceError> {
        self.socket(self.address, port)
    }

    fn socket(&self, address: Ipv4Addr, port: u16) -> Result<UdpSocket, InterfaceError> {
        let made = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            socket.bind_device(Some(self.name.as_bytes()))?;
            socket.set_broadcast(true)?;
            socket.set_nonblocking(true)?;
            // no sharing of the port: a second server on the same network is a mistake that must show
            socket.bind(&SocketAddrV4::new(address, port).into())?;
            UdpSocket::from_std(socket.into())
        };
        made().map_err(|source| self.failed(port, source))
    }

    fn failed(&self, port: u16, source: io::Error) -> InterfaceError {
        let name = self.name.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => InterfaceError::NotPermitted { name, port },
            io::ErrorKind::AddrInUse => InterfaceError::Taken { name, port },
            _ => InterfaceError::Socket { name, port, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_knows_its_hosts() {
        let address = Ipv4Addr::new(10, 77, 0, 1);
        let subnet = Subnet::around(address, Ipv4Addr::new(255, 255, 255, 0)).expect("a mask");
        assert_eq!(subnet.to_string(), "10.77.0.0/24");
        assert!(subnet.has_host(Ipv4Addr::new(10, 77, 0, 254)));
        for not in [Ipv4Addr::new(10, 77, 0, 0), Ipv4Addr::new(10, 77, 0, 255), Ipv4Addr::new(10, 77, 1, 1)] {
            assert!(!subnet.has_host(not), "{not}");
        }
        assert!(Subnet::around(address, Ipv4Addr::new(255, 0, 255, 0)).is_none());
        let one = Subnet::around(address, Ipv4Addr::BROADCAST).expect("a mask");
        assert!(one.has_host(address) && !one.has_host(Ipv4Addr::new(10, 77, 0, 2)));
        let all = Subnet::around(address, Ipv4Addr::UNSPECIFIED).expect("a mask");
        assert!(all.has_host(address) && !all.has_host(Ipv4Addr::BROADCAST));
    }

    #[test]
    fn an_interface_that_is_not_there_or_of_no_use_is_named() {
        let missing = Interface::look("nosuchif0").expect_err("no such interface").to_string();
        assert!(missing.contains("\"nosuchif0\"") && missing.contains("lo"), "{missing}");
        assert!(matches!(Interface::look("lo"), Err(InterfaceError::NoBroadcast { .. } | InterfaceError::Down { .. })));
    }

    #[test]
    fn a_refusal_of_the_system_says_what_to_do() {
        let interface = Interface {
            name: "eth7".to_owned(),
            index: 7,
            address: Ipv4Addr::LOCALHOST,
            subnet: Subnet::around(Ipv4Addr::LOCALHOST, Ipv4Addr::new(255, 0, 0, 0)).expect("a mask"),
        };
        let said = |kind: io::ErrorKind| interface.failed(67, kind.into()).to_string();
        assert!(said(io::ErrorKind::PermissionDenied).contains("CAP_NET_BIND_SERVICE"));
        assert!(said(io::ErrorKind::AddrInUse).contains("ss -ulpn 'sport = :67'"));
    }
}
