//! Requests as clients send them, and a service that answers them, for the tests of this folder.

use super::*;
use crate::Mac;
use crate::interface::Subnet;
use domain::time::Timestamp;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

pub const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const CARD: Mac = Mac::new([0x52, 0x54, 0x00, 0x4d, 0x57, 0x01]);
pub const BIOS: &[u8] = b"PXEClient:Arch:00000:UNDI:002001";
pub const UEFI: &[u8] = b"PXEClient:Arch:00007:UNDI:003016";
pub const HTTP: &[u8] = b"HTTPClient:Arch:00016:UNDI:003016";

pub fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000).plus(Duration::from_secs(seconds))
}

pub fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

pub fn card(last: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, last])
}

pub fn subnet(of: Ipv4Addr) -> Subnet {
    Subnet::around(of, Ipv4Addr::new(255, 255, 255, 0)).expect("a mask")
}

pub fn files() -> BootFiles {
    let by = |pairs: &[(Architecture, &str)]| pairs.iter().map(|(a, name)| (*a, (*name).to_owned())).collect();
    BootFiles {
        script: "http://10.77.0.1:8080/boot.ipxe".to_owned(),
        by_tftp: by(&[
            (Architecture::Bios, "undionly.kpxe"),
            (Architecture::UefiX64, "ipxe.efi"),
            (Architecture::UefiArm64, "ipxe-arm64.efi"),
        ]),
        by_http: by(&[(Architecture::UefiX64, "http://10.77.0.1:8080/images/ipxe.efi")]),
    }
}

pub fn pool() -> Pool {
    Pool {
        subnet: subnet(US),
        first: address(100),
        last: address(103),
        lease: Duration::from_secs(3600),
        router: Some(US),
        dns: vec![Ipv4Addr::new(10, 77, 0, 53)],
        reserved: BTreeMap::new(),
    }
}

pub fn service(mode: Mode) -> Responder {
    let settings = Settings { files: files(), mode, limits: Limits::default() };
    let here = Here { address: US, subnet: subnet(US) };
    Responder::new(here, settings, Vec::new()).expect("settings that fit").0
}

pub fn only_server() -> Responder {
    service(Mode::Authoritative(vec![pool()]))
}

/// As a client without an address sends it.
pub fn by_broadcast() -> Arrival {
    Arrival { from: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT), port: SERVER_PORT }
}

/// A request in the making. Options stand in the order they were added.
#[derive(Clone)]
pub struct Asks {
    pub head: Vec<u8>,
    pub options: Vec<u8>,
}

impl Asks {
    pub fn new(kind: u8, mac: Mac) -> Self {
        let mut head = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0];
        head.resize(28, 0);
        head.extend(mac.octets());
        head.resize(236, 0);
        head.extend([99, 130, 83, 99]);
        Self { head, options: Vec::new() }.with(53, &[kind])
    }

    pub fn discover(mac: Mac) -> Self {
        Self::new(1, mac)
    }

    pub fn request(mac: Mac) -> Self {
        Self::new(3, mac)
    }

    pub fn with(mut self, code: u8, value: &[u8]) -> Self {
        self.options.extend([code, u8::try_from(value.len()).expect("short")]);
        self.options.extend(value);
        self
    }

    pub fn class(self, class: &[u8], architecture: u8) -> Self {
        self.with(60, class).with(93, &[0, architecture])
    }

    pub fn ipxe(self) -> Self {
        self.class(BIOS, 0).with(77, b"iPXE")
    }

    pub fn wanting(self, address: Ipv4Addr) -> Self {
        self.with(50, &address.octets())
    }

    pub fn naming_us(self) -> Self {
        self.with(54, &US.octets())
    }

    fn put(mut self, at: usize, address: Ipv4Addr) -> Self {
        self.head.splice(at..at + 4, address.octets());
        self
    }

    pub fn having(self, address: Ipv4Addr) -> Self {
        self.put(12, address)
    }

    pub fn by_relay(self, address: Ipv4Addr) -> Self {
        self.put(24, address)
    }

    pub fn bytes(&self) -> Vec<u8> {
        [&self.head[..], &self.options, &[255]].concat()
    }
}

/// An answer's parts, read without the code that wrote it.
pub struct Read(pub Vec<u8>);

impl Read {
    pub fn of(answer: &Answer) -> Self {
        Self(answer.send.as_ref().expect("something is sent").bytes.clone())
    }

    pub fn yours(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[16], self.0[17], self.0[18], self.0[19])
    }

    pub fn next(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[20], self.0[21], self.0[22], self.0[23])
    }

    pub fn file(&self) -> String {
        self.0[108..236].iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect()
    }

    pub fn option(&self, wanted: u8) -> Option<Vec<u8>> {
        let mut rest = &self.0[240..];
        while rest[0] != 255 {
            let [code, length, tail @ ..] = rest else { panic!("an option is cut short") };
            let (value, after) = tail.split_at(usize::from(*length));
            if *code == wanted {
                return Some(value.to_vec());
            }
            rest = after;
        }
        None
    }
}

/// Asks as the only server's client, by broadcast, at this second.
pub fn ask(service: &mut Responder, asks: &Asks, seconds: u64) -> Result<Answer, Silence> {
    service.answer(&asks.bytes(), by_broadcast(), at(seconds))
}

/// The whole way to an address.
pub fn bound(service: &mut Responder, mac: Mac, seconds: u64) -> Ipv4Addr {
    let offered = Read::of(&ask(service, &Asks::discover(mac), seconds).expect("an offer")).yours();
    let request = Asks::request(mac).wanting(offered).naming_us();
    let answer = ask(service, &request, seconds).expect("an answer");
    assert_eq!(answer.told.kind, Some(Kind::Ack), "{}", answer.told);
    offered
}
