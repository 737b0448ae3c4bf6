//! Real machines through their adapters: one suite for every controller and for the provider that chooses between
//! them, what bad hardware and bad input come to, the bounds that keep one dead BMC from holding up a fleet, and
//! one REPAVE over all of it with the engine dropped at every point.
//!
//! Verdicts come from the counterparts: what happened to the machine behind the controller, on the host, in the
//! cluster; not from what an adapter says.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod bulkheads;
mod choosing;
mod crash;
mod errors;
mod faults;
mod ground;
mod installing;
mod passwords;
mod rebooting;
mod sessions;
mod subjects;
mod suite;
mod suite_provider;
mod two_servers;
