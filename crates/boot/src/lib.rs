//! Boots machines from the network: DHCP beside another server or as the only one, and TFTP, on one interface and no
//! other. It knows nothing of machines and orders: whoever runs it says what iPXE is to fetch, has the files and
//! keeps the leases.
//!
//! `dhcp` decides without doing anything; `server` has the sockets, the tasks and the clock.

pub mod counts;
pub mod dhcp;
pub mod interface;
mod mac;
pub mod server;
mod solicitation;
pub mod tftp;

pub use mac::{Mac, NotAMac};
