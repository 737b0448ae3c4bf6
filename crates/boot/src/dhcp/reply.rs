//! Writes one answer, byte by byte. Firmware in ROMs reads these: options stand in a fixed order, the kind of message
//! first, and a packet is never shorter than BOOTP's 300 bytes.

use super::packet::{COOKIE, Packet, code};
use std::net::Ipv4Addr;

/// Shorter ones are dropped by old relays and clients (RFC 1542).
const LENGTH_MIN: usize = 300;
const FILE_FIELD: usize = 128;
const BROADCAST: u16 = 0x8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Offer = 2,
    Ack = 5,
    Nak = 6,
}

impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Offer => "offer",
            Self::Ack => "ack",
            Self::Nak => "nak",
        }
    }
}

pub(super) struct Reply<'a> {
    pub to: &'a Packet,
    pub kind: Kind,
    /// Who we are.
    pub server: Ipv4Addr,
    /// The address that is the client's from now on; zeros in a proxy's answer.
    pub yours: Ipv4Addr,
    /// What to load; by TFTP it is loaded from us.
    pub file: Option<&'a str>,
    /// In the order they are to stand in.
    pub options: Vec<(u8, Vec<u8>)>,
}

impl Reply<'_> {
    /// Never more than every client takes: what is set is bounded so (`settings`), and what a client or relay named
    /// itself by is left out rather than cut where it would not fit.
    pub fn bytes(&self) -> Vec<u8> {
        let to = self.to;
        let nak = self.kind == Kind::Nak;
        // a relay must not look for a client that has lost its address
        let flags = if nak && !to.relay.is_unspecified() { to.flags | BROADCAST } else { to.flags };
        let keeps = if self.kind == Kind::Ack { to.client } else { Ipv4Addr::UNSPECIFIED };
        let next = if self.file.is_some() { self.server } else { Ipv4Addr::UNSPECIFIED };
        let mut bytes = vec![2, 1, 6, 0];
        bytes.extend(to.transaction);
        bytes.extend([0, 0]);
        bytes.extend(flags.to_be_bytes());
        for address in [keeps, self.yours, next, to.relay] {
            bytes.extend(address.octets());
        }
        bytes.extend(to.mac.octets());
        bytes.resize(108, 0);
        // a name that fits has its field, and a zero after it; what is longer, such as a URL, is an option
        let in_field = self.file.filter(|file| file.len() < FILE_FIELD);
        bytes.extend(in_field.unwrap_or_default().as_bytes());
        bytes.resize(236, 0);
        bytes.extend(COOKIE);
        put(&mut bytes, code::MESSAGE, &[self.kind as u8]);
        put(&mut bytes, code::SERVER, &self.server.octets());
        for (code, value) in &self.options {
            put(&mut bytes, *code, value);
        }
        if let (Some(file), None) = (self.file, in_field) {
            put(&mut bytes, code::FILE, file.as_bytes());
        }
        // whoever named itself is told whose answer this is (RFC 6842); what a relay added stands last (RFC 3046)
        for echoed in [code::GUID, code::CLIENT, code::RELAY] {
            if let Some(value) = to.option(echoed).filter(|value| bytes.len() + value.len() + 3 <= to.room()) {
                put(&mut bytes, echoed, value);
            }
        }
        bytes.push(code::END);
        bytes.resize(bytes.len().max(LENGTH_MIN), 0);
        bytes
    }
}

/// No value here is longer than one option can be.
fn put(bytes: &mut Vec<u8>, code: u8, value: &[u8]) {
    if let Ok(length) = u8::try_from(value.len()) {
        bytes.extend([code, length]);
        bytes.extend(value);
    }
}
