//! DHCP for machines that boot from the network. [`Responder::answer`] is the whole decision: bytes in, bytes out,
//! with the time as an argument, nothing sent and nobody waited for.
//!
//! | who asks | beside another server ([`Mode::Proxy`]) | as the only one ([`Mode::Authoritative`]) |
//! |---|---|---|
//! | PXE firmware | what to load, no address; UEFI asks again at port 4011 | an address and what to load |
//! | UEFI that boots by HTTP | the URL, no address | an address and the URL |
//! | iPXE | the script's URL, no address | an address, the script's URL, and that nobody else will answer |
//! | anybody else | nothing | an address |
//!
//! iPXE waits for a proxy's answer unless it is told that there is none (its option 176 within 175): as the only server
//! we tell it.

mod authoritative;
mod client;
mod leases;
mod limit;
mod packet;
mod proxy;
mod reply;
mod responder;
mod settings;

pub use client::{Architecture, Booter};
pub use leases::{InMemory, Lease, LeaseKeeper, Leases};
pub use packet::{Malformed, Message, PACKET_MAX, Packet};
pub use reply::Kind;
pub use responder::{Answer, Arrival, Datagram, Here, Responder, Silence, Told};
pub use settings::{ADDRESSES_MAX, BootFiles, Limits, Mode, Pool, Settings, Wrong};

/// Where clients without an address send, and relays.
pub const SERVER_PORT: u16 = 67;
/// Where they hear.
pub const CLIENT_PORT: u16 = 68;
/// Where firmware that has its address from another server asks what to boot (PXE 2.1).
pub const PXE_PORT: u16 = 4011;

#[cfg(test)]
mod authoritative_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod samples;
