//! What the DHCP service is told: what to boot, and which addresses it may give out. Checked where it is made, so that
//! nothing in here has to be doubted later.

use super::client::{Architecture, Booter};
use crate::Mac;
use crate::interface::Subnet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The field for it has room for so much, and a zero.
const FILE_MAX: usize = 127;
/// With this, every answer fits into what every client takes (576 bytes with IP and UDP).
const URL_MAX: usize = 200;
/// A range has no more addresses: its table is held in memory.
pub const ADDRESSES_MAX: u32 = 65_536;
const DNS_MAX: usize = 4;
/// Shorter, and a machine is busier with its address than with its boot; longer, and no address ever comes back.
const LEASE: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(30 * 24 * 3600);

/// The one thing that is wrong with what was set, in words.
pub type Wrong = String;

/// What each kind of client is told to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFiles {
    /// The URL of the script that iPXE runs.
    pub script: String,
    /// By TFTP, from us.
    pub by_tftp: BTreeMap<Architecture, String>,
    /// By HTTP, as whole URLs.
    pub by_http: BTreeMap<Architecture, String>,
}

impl BootFiles {
    pub fn check(&self) -> Result<(), Wrong> {
        let url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
        for text in self.by_http.values().chain([&self.script]) {
            if !url(text) || text.len() > URL_MAX || !is_plain(text) {
                return Err(format!("{text:?} is not a URL of at most {URL_MAX} plain characters"));
            }
        }
        for text in self.by_tftp.values() {
            if text.is_empty() || text.len() > FILE_MAX || !is_plain(text) {
                return Err(format!("{text:?} is not a name of at most {FILE_MAX} plain characters"));
            }
        }
        Ok(())
    }

    pub fn of(&self, booter: Booter) -> Option<&str> {
        match booter {
            Booter::Ipxe(_) => Some(&self.script),
            Booter::Pxe(architecture) => self.by_tftp.get(&architecture).map(String::as_str),
            Booter::Http(architecture) => self.by_http.get(&architecture).map(String::as_str),
        }
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic())
}

/// Addresses of one network, and what goes with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub subnet: Subnet,
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
    pub lease: Duration,
    pub router: Option<Ipv4Addr>,
    pub dns: Vec<Ipv4Addr>,
    /// Always the same, in or beside the range; nobody else has it.
    pub reserved: BTreeMap<Mac, Ipv4Addr>,
}

impl Pool {
    pub fn check(&self) -> Result<(), Wrong> {
        let Self { subnet, first, last, .. } = self;
        for address in [first, last].into_iter().chain(&self.router).chain(self.reserved.values()) {
            if !subnet.has_host(*address) {
                return Err(format!("{address} is no host's address in {subnet}"));
            }
        }
        let Some(distance) = u32::from(*last).checked_sub(u32::from(*first)) else {
            return Err(format!("the range {first}-{last} ends before it begins"));
        };
        if distance >= ADDRESSES_MAX {
            return Err(format!("the range {first}-{last} has more than {ADDRESSES_MAX} addresses"));
        }
        if !LEASE.contains(&self.lease) {
            let (least, most) = (LEASE.start().as_secs(), LEASE.end().as_secs());
            return Err(format!("a lease of {} s is not between {least} s and {most} s", self.lease.as_secs()));
        }
        if self.dns.len() > DNS_MAX {
            return Err(format!("{} name servers are more than {DNS_MAX}", self.dns.len()));
        }
        let apart: BTreeSet<&Ipv4Addr> = self.reserved.values().collect();
        if apart.len() < self.reserved.len() {
            return Err("the same address is reserved for two cards".to_owned());
        }
        Ok(())
    }
}

/// How the service stands to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Another server gives out addresses; we add what to boot.
    Proxy,
    /// We are the only server. A pool for our own network, and one for each that a relay stands in.
    Authoritative(Vec<Pool>),
}

/// How much is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one card in a second.
    pub of_one: u32,
    /// Requests of all together in a second.
    pub of_all: u32,
}

impl Default for Limits {
    /// A boot takes four to eight requests; the whole is a fleet that is powered on at once.
    fn default() -> Self {
        Self { of_one: 10, of_all: 500 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub files: BootFiles,
    pub mode: Mode,
    pub limits: Limits,
}

impl Settings {
    pub fn check(&self) -> Result<(), Wrong> {
        self.files.check()?;
        if let Mode::Authoritative(pools) = &self.mode {
            pools.iter().try_for_each(Pool::check)?;
            let shared = |a: &Pool, b: &Pool| a.subnet.contains(b.first) || b.subnet.contains(a.first);
            for (at, pool) in pools.iter().enumerate() {
                if let Some(other) = pools.iter().skip(at + 1).find(|other| shared(pool, other)) {
                    return Err(format!("two ranges for one network: {} and {}", pool.subnet, other.subnet));
                }
            }
        }
        Ok(())
    }
}
