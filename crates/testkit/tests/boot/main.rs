//! The acceptance suite of network boot as its users see it: machines that boot and report over plain HTTP, operators
//! over REST, both databases beneath. What a real machine does with it is another suite's.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)] // for tests only: what cannot be done is a failed test

#[allow(dead_code)] // shared with the REST suite, which needs all of it
#[path = "../rest/client.rs"]
mod client;
mod decisions;
mod discovery;
mod filters;
mod findings;
mod freeze;
mod guest;
mod history;
mod hostile;
mod identity;
mod lifecycle;
mod log;
mod plant;
mod reports;
mod runs;
mod site;
mod updates;
mod workflows;
