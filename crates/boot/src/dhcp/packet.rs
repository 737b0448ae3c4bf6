//! Reads one DHCP request. Everything here comes from strangers: a packet that is cut short, whose lengths do not fit
//! or whose options lead in circles is no packet, and gets no answer.
//!
//! Our own and not a library's: what we need of the format is this file, the one for replies needs options in a known
//! order, and the library at hand brings a DNS implementation along.

use crate::Mac;
use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

/// Ethernet carries no more in one piece, and no client sends more.
pub const PACKET_MAX: usize = 1500;
/// The fixed part before the options, its cookie included.
pub(super) const HEAD: usize = 240;
pub(super) const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Relays count themselves; more than so many (RFC 1542) is a circle.
const HOPS_MAX: u8 = 16;
const ETHERNET: u8 = 1;

/// Numbers of the options that mean something to us.
pub(super) mod code {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS: u8 = 6;
    pub const VENDOR: u8 = 43;
    pub const WANTED_ADDRESS: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const WANTED: u8 = 55;
    pub const TEXT: u8 = 56;
    pub const SIZE_MAX: u8 = 57;
    pub const RENEW: u8 = 58;
    pub const REBIND: u8 = 59;
    pub const CLASS: u8 = 60;
    pub const CLIENT: u8 = 61;
    pub const FILE: u8 = 67;
    pub const USER_CLASS: u8 = 77;
    pub const RELAY: u8 = 82;
    pub const ARCHITECTURE: u8 = 93;
    pub const GUID: u8 = 97;
    pub const IPXE: u8 = 175;
    pub const END: u8 = 255;
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Discover,
    Request,
    Decline,
    Release,
    Inform,
}

/// Why some bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    TooShort,
    TooLong,
    /// It is an answer of another server.
    NotARequest,
    /// No cookie or no kind of message: BOOTP, or something else altogether.
    NotDhcp,
    /// Not an Ethernet card, or not one card.
    Hardware,
    TooManyHops,
    /// A relay's or client's address that no host can have.
    Address,
    /// An option goes on past the end of where it stands.
    CutShort,
    NoEnd,
    /// Fields that are said to hold options, said twice or from within.
    Overload,
    /// This option has a length that it cannot have.
    Length(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooShort => "it is too short",
            Self::TooLong => "it is too long",
            Self::NotARequest => "it is an answer, not a request",
            Self::NotDhcp => "it is not DHCP",
            Self::Hardware => "its hardware address is not that of one Ethernet card",
            Self::TooManyHops => "it went through too many relays",
            Self::Address => "it names an address that no host can have",
            Self::CutShort => "an option is cut short",
            Self::NoEnd => "its options have no end",
            Self::Overload => "its options lead in circles",
            Self::Length(option) => return write!(f, "option {option} has a length that it cannot have"),
        })
    }
}

/// One request, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub message: Message,
    pub transaction: [u8; 4],
    pub flags: u16,
    /// The address that the client has already.
    pub client: Ipv4Addr,
    /// The relay that passed it on.
    pub relay: Ipv4Addr,
    pub mac: Mac,
    options: BTreeMap<u8, Vec<u8>>,
}

impl Packet {
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > PACKET_MAX {
            return Err(Malformed::TooLong);
        }
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(Malformed::TooShort)?;
        if head[0] != 1 {
            return Err(Malformed::NotARequest);
        }
        if head[236..] != COOKIE {
            return Err(Malformed::NotDhcp);
        }
        let mac = Mac::new(array(head, 28));
        if head[1] != ETHERNET || head[2] != 6 || !mac.is_of_one_card() {
            return Err(Malformed::Hardware);
        }
        if head[3] > HOPS_MAX {
            return Err(Malformed::TooManyHops);
        }
        let (client, relay) = (address(head, 12), address(head, 24));
        if [client, relay].iter().any(|a| !a.is_unspecified() && !can_be_a_hosts(*a)) {
            return Err(Malformed::Address);
        }
        let options = options(rest, &head[108..236], &head[44..108])?;
        let message = match options.get(&code::MESSAGE).map(Vec::as_slice) {
            Some([1]) => Message::Discover,
            Some([3]) => Message::Request,
            Some([4]) => Message::Decline,
            Some([7]) => Message::Release,
            Some([8]) => Message::Inform,
            Some([_]) => return Err(Malformed::NotARequest),
            _ => return Err(Malformed::NotDhcp),
        };
        let flags = u16::from_be_bytes(array(head, 10));
        Ok(Self { message, transaction: array(head, 4), flags, client, relay, mac, options })
    }

    pub fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.get(&code).map(Vec::as_slice)
    }

    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(self.option(code)?).ok()?))
    }

    /// The most bytes of an answer: what the client says, or what every client takes (RFC 2131), less the headers of
    /// IP and UDP.
    pub fn room(&self) -> usize {
        let said = self.option(code::SIZE_MAX).and_then(|v| <[u8; 2]>::try_from(v).ok()).map_or(0, u16::from_be_bytes);
        usize::from(said).clamp(576, PACKET_MAX) - 28
    }
}

/// An address of one host: not a group, not everybody, not the sender itself.
pub(super) fn can_be_a_hosts(address: Ipv4Addr) -> bool {
    !(address.is_unspecified()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_loopback()
        || address.octets()[0] == 0
        || address.octets()[0] >= 240)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    if let Some(there) = bytes.get(at..at + N) {
        taken.copy_from_slice(there);
    }
    taken
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from(array::<4>(bytes, at))
}

/// All options, those in the overloaded fields too; one that is there several times is one in pieces (RFC 3396).
fn options(main: &[u8], file: &[u8], sname: &[u8]) -> Result<BTreeMap<u8, Vec<u8>>, Malformed> {
    let mut found = BTreeMap::new();
    take(main, &mut found)?;
    let overload = match found.remove(&code::OVERLOAD).as_deref() {
        None => 0,
        Some([which @ 1..=3]) => *which,
        Some(_) => return Err(Malformed::Overload),
    };
    for (bit, field) in [(1, file), (2, sname)] {
        if overload & bit != 0 {
            take(field, &mut found)?;
            if found.contains_key(&code::OVERLOAD) {
                return Err(Malformed::Overload);
            }
        }
    }
    match found.iter().find(|(code, value)| !fits(**code, value.len())) {
        Some((code, _)) => Err(Malformed::Length(*code)),
        None => Ok(found),
    }
}

fn take(field: &[u8], into: &mut BTreeMap<u8, Vec<u8>>) -> Result<(), Malformed> {
    let mut at = 0;
    loop {
        match *field.get(at).ok_or(Malformed::NoEnd)? {
            code::PAD => at += 1,
            code::END => return Ok(()),
            code => {
                let length = usize::from(*field.get(at + 1).ok_or(Malformed::CutShort)?);
                let value = field.get(at + 2..at + 2 + length).ok_or(Malformed::CutShort)?;
                into.entry(code).or_default().extend(value);
                at += 2 + length;
            }
        }
    }
}

/// Whether an option that we look at can have this length.
fn fits(code: u8, length: usize) -> bool {
    match code {
        code::MESSAGE => length == 1,
        code::WANTED_ADDRESS | code::SERVER | code::LEASE => length == 4,
        code::SIZE_MAX => length == 2,
        code::CLIENT => (2..=255).contains(&length),
        code::ARCHITECTURE => length > 0 && length.is_multiple_of(2),
        code::GUID => length == 17,
        code::RELAY => (2..=255).contains(&length),
        code::WANTED | code::CLASS | code::USER_CLASS => length > 0,
        _ => true,
    }
}
