//! One request in, at most one answer out. What both modes share: reading, limits, where an answer goes, and what is
//! told about it. `proxy` and `authoritative` decide what is in it.

use super::client::Booter;
use super::leases::{Lease, Leases};
use super::limit::Limit;
use super::packet::{Malformed, Packet};
use super::reply::{Kind, Reply};
use super::settings::{Mode, Settings, Wrong};
use super::{CLIENT_PORT, PXE_PORT, SERVER_PORT, authoritative, proxy};
use crate::Mac;
use crate::interface::{Interface, Subnet};
use domain::time::Timestamp;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Where we stand in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    pub address: Ipv4Addr,
    pub subnet: Subnet,
}

impl From<&Interface> for Here {
    fn from(interface: &Interface) -> Self {
        Self { address: interface.address(), subnet: interface.subnet() }
    }
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub from: SocketAddrV4,
    /// The port of ours that it came to.
    pub port: u16,
}

/// What to send, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub to: SocketAddrV4,
    pub bytes: Vec<u8>,
}

/// What is to be done about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// To be kept before anything is sent.
    pub lease: Option<Lease>,
    /// None after a release or a decline, which nobody answers.
    pub send: Option<Datagram>,
    pub told: Told,
}

/// What a person wants to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub mac: Mac,
    pub booter: Option<Booter>,
    /// None: it gave an address back.
    pub kind: Option<Kind>,
    pub address: Option<Ipv4Addr>,
    pub file: Option<String>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mac)?;
        if let Some(booter) = self.booter {
            write!(f, " ({booter})")?;
        }
        match (self.kind, self.address) {
            (None, address) => write!(f, " gave back {}", address.unwrap_or(Ipv4Addr::UNSPECIFIED))?,
            (Some(Kind::Offer), Some(address)) => write!(f, " is offered {address}")?,
            (Some(Kind::Ack), Some(address)) => write!(f, " has {address}")?,
            (Some(Kind::Nak), Some(address)) => write!(f, " may not have {address}")?,
            (Some(kind), None) => write!(f, " gets an {} without an address", kind.word())?,
        }
        match &self.file {
            Some(file) => write!(f, ", to load {file}"),
            None => Ok(()),
        }
    }
}

/// Why nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    Malformed(Malformed),
    TooMany,
    /// It does not boot from the network, and addresses are another's business.
    NotBooting,
    /// Something that we do not answer here.
    NotAsked,
    /// The client has chosen another server.
    OtherServer,
    /// A release or decline of what the client does not have.
    NotItsOwn,
    /// There is no pool for the network it comes from.
    UnknownNetwork,
    NoAddressLeft,
    /// There is no loader for this firmware.
    NoFile,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed(why) => return why.fmt(f),
            Self::TooMany => "more was asked in this second than is answered",
            Self::NotBooting => "it does not boot from the network",
            Self::NotAsked => "this is not answered here",
            Self::OtherServer => "it has chosen another server",
            Self::NotItsOwn => "it gives back an address that it does not have",
            Self::UnknownNetwork => "there is no range for the network it comes from",
            Self::NoAddressLeft => "no address is left in its range",
            Self::NoFile => "there is no loader for its firmware",
        })
    }
}

impl From<Malformed> for Silence {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

/// The DHCP service without its sockets.
#[derive(Clone, Debug)]
pub struct Responder {
    pub(super) here: Here,
    pub(super) settings: Settings,
    pub(super) leases: Leases,
    limit: Limit,
}

impl Responder {
    /// `kept`: what an earlier process gave out. Answers with it how many of those no longer fit.
    pub fn new(here: Here, settings: Settings, kept: Vec<Lease>) -> Result<(Self, usize), Wrong> {
        settings.check()?;
        let pools = match &settings.mode {
            Mode::Proxy => Vec::new(),
            Mode::Authoritative(pools) => pools.clone(),
        };
        if matches!(settings.mode, Mode::Authoritative(_)) && !pools.iter().any(|p| p.subnet.contains(here.address)) {
            return Err(format!("no range is set for our own network, {}", here.subnet));
        }
        let mut leases = Leases::new(pools, here.address);
        let left_out = leases.load(kept);
        let limit = Limit::new(settings.limits);
        Ok((Self { here, settings, leases, limit }, left_out))
    }

    /// The interface has another address now.
    pub fn moved(&mut self, here: Here) -> Result<(), Wrong> {
        let (moved, _) = Self::new(here, self.settings.clone(), self.leases.all())?;
        *self = moved;
        Ok(())
    }

    pub const fn mode(&self) -> &Mode {
        &self.settings.mode
    }

    pub const fn leases(&self) -> &Leases {
        &self.leases
    }

    pub fn answer(&mut self, bytes: &[u8], arrival: Arrival, now: Timestamp) -> Result<Answer, Silence> {
        let packet = Packet::read(bytes)?;
        if packet.relay == self.here.address {
            return Err(Malformed::Address.into());
        }
        // beside another server most of what is heard is none of our business: it takes no booter's turn
        if self.settings.mode == Mode::Proxy && Booter::of(&packet).is_none() {
            return Err(Silence::NotBooting);
        }
        if !self.limit.admits(packet.mac, now) {
            return Err(Silence::TooMany);
        }
        match self.settings.mode {
            Mode::Proxy => proxy::answer(self, &packet, arrival),
            Mode::Authoritative(_) => authoritative::answer(self, &packet, arrival, now),
        }
    }
}

/// Where an answer goes (RFC 2131, 4.1). A client that has no address yet is reached by broadcast: it cannot be asked
/// who it is, and every client takes it.
pub(super) fn destination(packet: &Packet, kind: Kind, arrival: Arrival) -> SocketAddrV4 {
    if arrival.port == PXE_PORT {
        arrival.from
    } else if !packet.relay.is_unspecified() {
        SocketAddrV4::new(packet.relay, SERVER_PORT)
    } else if kind == Kind::Ack && !packet.client.is_unspecified() {
        SocketAddrV4::new(packet.client, CLIENT_PORT)
    } else {
        SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT)
    }
}

/// Puts an answer together.
pub(super) fn made(reply: &Reply<'_>, lease: Option<Lease>, arrival: Arrival) -> Answer {
    let bytes = reply.bytes();
    let to = destination(reply.to, reply.kind, arrival);
    let told = Told {
        mac: reply.to.mac,
        booter: Booter::of(reply.to),
        kind: Some(reply.kind),
        address: Some(reply.yours).filter(|address| !address.is_unspecified()),
        file: reply.file.map(str::to_owned),
    };
    Answer { lease, send: Some(Datagram { to, bytes }), told }
}
