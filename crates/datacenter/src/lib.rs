//! The provider for real machines: chooses between their Redfish, IPMI, SSH and cluster, within bounds.

mod breaker;
mod lane;
mod options;

pub use options::{Image, Options};
