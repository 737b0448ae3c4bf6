//! IPMI over LAN, for controllers that have no Redfish: [`Ipmi`] is one controller, driven by `ipmitool`.
//!
//! `docs/hardware.md` says why a program and not a library, and what was proven against what.

mod answer;
mod boot;
mod ipmi;
mod power;
mod presence;
mod refusal;
mod tool;

pub use ipmi::{Ipmi, NEW_PASSWORD_MAX, Timeouts};
pub use presence::is_there;
