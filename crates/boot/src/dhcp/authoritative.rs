//! As the only server of a network: addresses for everybody, and what to load for who boots. Whoever asks for an
//! address that is not its own is told so at once, since nobody else could mean something by it.

use super::client::Booter;
use super::leases::Lease;
use super::packet::{Message, Packet, code};
use super::proxy::class;
use super::reply::{Kind, Reply};
use super::responder::{Answer, Arrival, Responder, Silence, Told, made};
use super::{SERVER_PORT, settings::Pool};
use domain::time::Timestamp;
use std::net::Ipv4Addr;

/// Option 175 for iPXE, within it 176: wait for no proxy.
const NO_PROXY: [u8; 3] = [176, 1, 1];
/// Within what a relay adds: the network that the client is in, where it is not the relay's (RFC 3527).
const LINK: u8 = 5;

pub(super) fn answer(
    responder: &mut Responder,
    packet: &Packet,
    arrival: Arrival,
    now: Timestamp,
) -> Result<Answer, Silence> {
    if arrival.port != SERVER_PORT {
        return Err(Silence::NotAsked);
    }
    let own = responder.here.address;
    let for_other = packet.address(code::SERVER).is_some_and(|server| server != own);
    match packet.message {
        Message::Discover => discover(responder, packet, arrival, now),
        Message::Request if for_other => Err(Silence::OtherServer),
        Message::Request => request(responder, packet, arrival, now),
        Message::Release | Message::Decline if packet.address(code::SERVER) != Some(own) => Err(Silence::OtherServer),
        Message::Release => given_back(packet, responder.leases.release(packet.mac, packet.client, now)),
        Message::Decline => {
            let address = packet.address(code::WANTED_ADDRESS).ok_or(Silence::NotItsOwn)?;
            given_back(packet, responder.leases.decline(packet.mac, address, now))
        }
        Message::Inform => inform(responder, packet, arrival),
    }
}

fn given_back(packet: &Packet, lease: Option<Lease>) -> Result<Answer, Silence> {
    let lease = lease.ok_or(Silence::NotItsOwn)?;
    let told =
        Told { mac: packet.mac, booter: Booter::of(packet), kind: None, address: Some(lease.address), file: None };
    Ok(Answer { lease: Some(lease), send: None, told })
}

/// The pool of the network that a request comes from.
fn pool(responder: &Responder, packet: &Packet) -> Option<usize> {
    let address = if let Some(link) = link(packet) {
        link
    } else if !packet.relay.is_unspecified() {
        packet.relay
    } else if !packet.client.is_unspecified() {
        // renewed past the relay
        packet.client
    } else {
        responder.here.address
    };
    responder.leases.pools().position(|pool| pool.subnet.contains(address))
}

fn link(packet: &Packet) -> Option<Ipv4Addr> {
    let mut rest = packet.option(code::RELAY).filter(|_| !packet.relay.is_unspecified())?;
    while let [code, length, tail @ ..] = rest {
        let (value, after) = tail.split_at_checked(usize::from(*length))?;
        if *code == LINK {
            return <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
        }
        rest = after;
    }
    None
}

fn discover(responder: &mut Responder, packet: &Packet, arrival: Arrival, now: Timestamp) -> Result<Answer, Silence> {
    let place = pool(responder, packet).ok_or(Silence::UnknownNetwork)?;
    let wanted = packet.address(code::WANTED_ADDRESS);
    let address = responder.leases.offer(place, packet.mac, wanted, now).ok_or(Silence::NoAddressLeft)?;
    given(responder, packet, arrival, Kind::Offer, place, address, None)
}

/// Selecting, starting again, renewing or rebinding: each names one address, and it is that or none.
fn request(responder: &mut Responder, packet: &Packet, arrival: Arrival, now: Timestamp) -> Result<Answer, Silence> {
    let has = Some(packet.client).filter(|address| !address.is_unspecified());
    let address = packet.address(code::WANTED_ADDRESS).or(has).ok_or(Silence::NotAsked)?;
    let Some(place) = pool(responder, packet) else {
        // renewed directly from a network that is not ours; what came by a relay may be another server's
        let relayed = !packet.relay.is_unspecified();
        return if relayed { Err(Silence::UnknownNetwork) } else { Ok(refused(responder, packet, arrival, address)) };
    };
    match responder.leases.grant(place, packet.mac, address, now) {
        Some(lease) => given(responder, packet, arrival, Kind::Ack, place, address, Some(lease)),
        None => Ok(refused(responder, packet, arrival, address)),
    }
}

fn refused(responder: &Responder, packet: &Packet, arrival: Arrival, address: Ipv4Addr) -> Answer {
    let reply = Reply {
        to: packet,
        kind: Kind::Nak,
        server: responder.here.address,
        yours: Ipv4Addr::UNSPECIFIED,
        file: None,
        options: vec![(code::TEXT, b"this address is not yours here".to_vec())],
    };
    let mut answer = made(&reply, None, arrival);
    answer.told.address = Some(address);
    answer
}

/// It has an address of its own making, and wants the rest.
fn inform(responder: &Responder, packet: &Packet, arrival: Arrival) -> Result<Answer, Silence> {
    let place = pool(responder, packet).ok_or(Silence::UnknownNetwork)?;
    // what it says is where we send
    if !responder.leases.pools().any(|pool| pool.subnet.has_host(packet.client)) {
        return Err(Silence::UnknownNetwork);
    }
    given(responder, packet, arrival, Kind::Ack, place, Ipv4Addr::UNSPECIFIED, None)
}

fn given(
    responder: &Responder,
    packet: &Packet,
    arrival: Arrival,
    kind: Kind,
    place: usize,
    yours: Ipv4Addr,
    lease: Option<Lease>,
) -> Result<Answer, Silence> {
    let pool = responder.leases.pools().nth(place).ok_or(Silence::UnknownNetwork)?;
    let booter = Booter::of(packet);
    let file = booter.and_then(|booter| responder.settings.files.of(booter));
    let mut options = if yours.is_unspecified() { Vec::new() } else { times(pool) };
    options.push((code::MASK, pool.subnet.mask().octets().to_vec()));
    options.extend(pool.router.map(|router| (code::ROUTER, router.octets().to_vec())));
    if !pool.dns.is_empty() {
        options.push((code::DNS, pool.dns.iter().flat_map(Ipv4Addr::octets).collect()));
    }
    match booter {
        // it drops every answer that does not say so
        Some(booter @ Booter::Http(_)) if file.is_some() => options.push((code::CLASS, class(booter).to_vec())),
        Some(Booter::Ipxe(_)) => options.push((code::IPXE, NO_PROXY.to_vec())),
        _ => {}
    }
    let reply = Reply { to: packet, kind, server: responder.here.address, yours, file, options };
    Ok(made(&reply, lease, arrival))
}

/// How long, when to ask again, and when to ask anybody.
fn times(pool: &Pool) -> Vec<(u8, Vec<u8>)> {
    let whole = u32::try_from(pool.lease.as_secs()).unwrap_or(u32::MAX);
    let seconds = [(code::LEASE, whole), (code::RENEW, whole / 2), (code::REBIND, whole - whole / 8)];
    seconds.map(|(code, seconds)| (code, seconds.to_be_bytes().to_vec())).to_vec()
}
