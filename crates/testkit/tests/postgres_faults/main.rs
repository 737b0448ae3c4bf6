//! Faults of PostgreSQL beneath a whole server: connections reset at every statement, commits whose answer is
//! lost, a server that is full, silent, stopped, crashed, or has failed over to its standby. Three things hold
//! throughout: an answer is OK, UNAVAILABLE or RESOURCE_EXHAUSTED, and only what is durable is OK; when the
//! fault goes, work goes on; nothing acknowledged is lost and nothing is done twice.
//!
//! The verdicts come from a connection of the test's own that goes past the store and past the fault
//! (`fixture::Witness`), and from the simulated fleet's effect journal. PostgreSQL runs with its stock
//! durability. Every fault is counted where it is done, and one that was not done fails its test.
//!
//! `MILLWRIGHT_FAULT_STRIDE=1` resets a REPAVE at every statement (default: at every eleventh, twice over);
//! `MILLWRIGHT_FAULT_ROUNDS=n` stops and crashes the server so many times (default: once each).
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod answers;
mod failover;
mod fixture;
mod load;
mod lost_commits;
mod outage;
mod resets;
mod restarts;
mod silence;
