//! The provider for real machines: chooses between their Redfish, IPMI, SSH and cluster, within bounds.

mod clusters;
mod controller;
mod datacenter;
mod guarded;
mod host;
mod installation;
mod kept;
mod lane;
mod management;
mod network_install;
mod options;
mod steps;
mod sweep;

pub use datacenter::Datacenter;
pub use options::{Image, Options};
