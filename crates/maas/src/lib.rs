//! Drives machines by way of the MAAS that manages them (API 2.0): the client of a site, all clients side by side, and a
//! provider for runs. Form encoding only, one login per request, nothing that changes something is ever sent twice.

mod access;
mod calls;
mod client;
mod clients;
mod find;
mod gate;
mod items;
mod judge;
mod options;
mod read;
mod repave;
mod said;
mod steps;
mod sunk;
mod wire;

pub use clients::Clients;
pub use options::Options;
pub use steps::{MaasProvider, SiteSource};
