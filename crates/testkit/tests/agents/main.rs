//! The agents' door over real TLS, as agents see it, and as those see it who would like to be one.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod certificates;
mod enrolment;
mod fixture;
mod heartbeats;
mod hostile;
mod sessions;
mod tasks;
mod two_servers;
