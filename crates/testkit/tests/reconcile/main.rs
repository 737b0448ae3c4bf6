//! The reconciler against its promises, on virtual time where one process is enough.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod fixture;
mod idle;
mod isolation;
mod orders;
mod proof;
mod runs;
mod sites;
mod staleness;
mod two_servers;
