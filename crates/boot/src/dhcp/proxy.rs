//! Beside a server that gives out addresses: clients that boot from the network are told what to load, and nobody else
//! is told anything (PXE 2.1, "ProxyDHCP").
//!
//! BIOS firmware is told in its offer to look no further (discovery control 8). UEFI firmware is not: some of it drops
//! such an offer. Given one without that option it asks for its file again, at port 4011 of whoever offered.

use super::client::{Architecture, Booter};
use super::packet::{Message, Packet, code};
use super::reply::{Kind, Reply};
use super::responder::{Answer, Arrival, Responder, Silence, made};
use super::{PXE_PORT, SERVER_PORT};
use std::net::Ipv4Addr;

/// Option 43: use the file in this answer, and ask no boot servers.
const LOOK_NO_FURTHER: [u8; 4] = [6, 1, 8, 255];

pub(super) fn answer(responder: &Responder, packet: &Packet, arrival: Arrival) -> Result<Answer, Silence> {
    let booter = Booter::of(packet).ok_or(Silence::NotBooting)?;
    let kind = match (arrival.port, packet.message) {
        (SERVER_PORT, Message::Discover) => Kind::Offer,
        // it is sent to where it came from: that has to be somewhere
        (PXE_PORT, Message::Request | Message::Inform) if !arrival.from.ip().is_unspecified() => Kind::Ack,
        // addresses are between it and the other server
        _ => return Err(Silence::NotAsked),
    };
    let file = responder.settings.files.of(booter).ok_or(Silence::NoFile)?;
    let mut options = vec![(code::CLASS, class(booter).to_vec())];
    if booter == Booter::Pxe(Architecture::Bios) {
        options.push((code::VENDOR, LOOK_NO_FURTHER.to_vec()));
    }
    let reply = Reply {
        to: packet,
        kind,
        server: responder.here.address,
        yours: Ipv4Addr::UNSPECIFIED,
        file: Some(file),
        options,
    };
    Ok(made(&reply, None, arrival))
}

/// By which a client knows that an answer is about booting.
pub(super) const fn class(booter: Booter) -> &'static [u8] {
    match booter {
        Booter::Http(_) => b"HTTPClient",
        Booter::Pxe(_) | Booter::Ipxe(_) => b"PXEClient",
    }
}
