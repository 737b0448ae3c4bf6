//! DHCP packets, read and answered in both modes and at both ports.
//!
//! An input's first byte says where it comes in, the rest is the packet. Promised: no answer to what is malformed and
//! nothing changed by it; an answer is well formed, fits, is about the question, goes where the standard says and to no
//! address that a packet could choose freely; the table stays as small as the range.

use boot::dhcp::{
    Answer, Architecture, Arrival, BootFiles, Here, Leases, Limits, Malformed, Mode, PXE_PORT, Pool, Responder,
    SERVER_PORT, Settings, Silence,
};
use boot::interface::Subnet;
use domain::time::Timestamp;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use testkit::fuzz::{Fuzz, Verdict};

const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 150), 68);
/// Addresses in the range.
const RANGE: usize = 4;

fn service(mode: Mode) -> Responder {
    let files = BootFiles {
        script: format!("http://10.77.0.1:8080/{}", "s".repeat(150)),
        by_tftp: BTreeMap::from([(Architecture::Bios, "undionly.kpxe".to_owned())]),
        by_http: BTreeMap::from([(Architecture::UefiX64, "http://10.77.0.1:8080/ipxe.efi".to_owned())]),
    };
    let limits = Limits { of_one: u32::MAX, of_all: u32::MAX };
    let here = Here { address: US, subnet: subnet() };
    Responder::new(here, Settings { files, mode, limits }, Vec::new()).expect("settings that fit").0
}

fn subnet() -> Subnet {
    Subnet::around(US, Ipv4Addr::new(255, 255, 255, 0)).expect("a mask")
}

fn pool() -> Pool {
    Pool {
        subnet: subnet(),
        first: Ipv4Addr::new(10, 77, 0, 100),
        last: Ipv4Addr::new(10, 77, 0, 103),
        lease: Duration::from_secs(60),
        router: Some(US),
        dns: vec![US; 4],
        reserved: BTreeMap::new(),
    }
}

/// A request: kind, the client's address, then options without their end.
fn packet(door: u8, kind: u8, client: [u8; 4], relay: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![door, 1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0];
    bytes.extend(client);
    bytes.resize(25, 0);
    bytes.extend(relay);
    bytes.extend([2, 0, 0, 0, 0, 1]);
    bytes.resize(237, 0);
    bytes.extend([99, 130, 83, 99, 53, 1, kind]);
    bytes.extend(options);
    bytes.push(255);
    bytes
}

#[test]
fn dhcp() {
    let (none, own) = ([0; 4], [10, 77, 0, 100]);
    let pxe = b"\x3c\x20PXEClient:Arch:00000:UNDI:002001\x5d\x02\0\0\x61\x11\0abcdefghijklmnop";
    let ipxe = b"\x3c\x09PXEClient\x4d\x04iPXE\xaf\x03\xb1\x01\x05\x39\x02\x05\xc0";
    let http = b"\x3c\x0aHTTPClient\x5d\x02\0\x10";
    let chosen = b"\x32\x04\x0a\x4d\0\x64\x36\x04\x0a\x4d\0\x01";
    let overloaded = {
        let mut bytes = packet(0, 1, none, none, b"\x34\x01\x03");
        bytes.splice(109..121, *b"\x3c\x09PXEClient\xff");
        bytes.splice(45..50, *b"\x5d\x02\0\x07\xff");
        bytes
    };
    let mut seeds = vec![overloaded];
    for door in 0..3 {
        for options in [&b""[..], pxe, ipxe, http] {
            seeds.push(packet(door, 1, none, none, options));
            seeds.push(packet(door, 3, own, none, options));
        }
    }
    seeds.extend([
        packet(0, 3, none, none, chosen),
        packet(0, 3, none, none, b"\x32\x04\x0a\x4d\0\x64"),
        packet(0, 3, own, none, b""),
        packet(0, 4, none, none, chosen),
        packet(0, 7, own, none, chosen),
        packet(0, 8, [10, 77, 0, 9], none, b"\x37\x03\x01\x03\x06"),
        packet(0, 1, none, [10, 77, 0, 2], b"\x52\x06\x05\x04\x0a\x4d\0\0"),
        packet(1, 1, none, [10, 99, 0, 1], pxe),
    ]);
    Fuzz::new("dhcp", module_path!())
        .words(["PXEClient", "HTTPClient", "iPXE", "PXEClient:Arch:00007:UNDI:003016", "\x34\x01\x03", "\x35\x01\x03"])
        .seeds(seeds)
        .inputs(6_000)
        .run(|| {
            let mut only = service(Mode::Authoritative(vec![pool()]));
            let mut proxy = service(Mode::Proxy);
            let mut now = Timestamp::from_micros(1_800_000_000_000_000);
            move |input: &[u8]| {
                let (door, bytes) = input.split_first().unwrap_or((&0, &[]));
                now = now.plus(Duration::from_millis(700));
                let port = if door % 3 == 2 { PXE_PORT } else { SERVER_PORT };
                let service = if door % 3 == 0 { &mut only } else { &mut proxy };
                let before = service.leases().clone();
                match service.answer(bytes, Arrival { from: CLIENT, port }, now) {
                    Ok(answer) => judged(&answer, bytes, port, service.leases()),
                    Err(silence) if *service.leases() != before => Err(format!("silent ({silence}), and yet changed")),
                    Err(Silence::Malformed(Malformed::Length(option))) => Ok(format!("the length of {option}")),
                    Err(silence) => Ok(silence.to_string()),
                }
            }
        });
}

fn judged(answer: &Answer, asked: &[u8], port: u16, leases: &Leases) -> Verdict {
    if leases.all().len() > RANGE {
        return Err(format!("{} leases for {RANGE} addresses", leases.all().len()));
    }
    let Some(send) = &answer.send else {
        return Ok("given back".to_owned());
    };
    let bytes = &send.bytes;
    let same = |range: std::ops::Range<usize>| bytes.get(range.clone()) == asked.get(range);
    if bytes.len() < 300 || bytes.len() > 1472 || bytes[0] != 2 || !same(4..8) || !same(24..34) || !same(236..240) {
        return Err(format!("not an answer to what was asked: {bytes:?}"));
    }
    let mut codes = Vec::new();
    let mut rest = &bytes[240..];
    while rest.first() != Some(&255) {
        let [code, length, tail @ ..] = rest else { return Err("options without an end".to_owned()) };
        let Some((_, after)) = tail.split_at_checked(usize::from(*length)) else {
            return Err(format!("option {code} is cut short"));
        };
        codes.push(*code);
        rest = after;
    }
    let relay = Ipv4Addr::new(asked[24], asked[25], asked[26], asked[27]);
    let to = *send.to.ip();
    let right = if port == PXE_PORT {
        send.to == CLIENT
    } else if !relay.is_unspecified() {
        send.to == SocketAddrV4::new(relay, 67)
    } else {
        send.to.port() == 68 && (to.is_broadcast() || subnet().has_host(to))
    };
    if !right || to.is_multicast() || to.is_loopback() || to.is_unspecified() {
        return Err(format!("sent to {}", send.to));
    }
    Ok(format!("{:?} {codes:?} {}", answer.told.kind, answer.told.file.is_some()))
}
