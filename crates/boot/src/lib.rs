//! Network boot, the part that machines talk to before they have a system: DHCP beside another server or as the only
//! one, TFTP, boot scripts and reports, image bytes. It meets the rest of the house only in the binary.
//!
//! `dhcp` and `script` decide without doing anything; `server` and `port` have the sockets, the tasks and the clock.

pub mod counts;
pub mod dhcp;
pub mod door;
pub mod images;
pub mod interface;
pub mod lease_file;
pub mod line;
mod mac;
pub mod port;
pub mod script;
pub mod server;
mod solicitation;
pub mod tftp;

pub use mac::{Mac, NotAMac};
