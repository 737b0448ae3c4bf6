//! Faults below the real server: its disk fills up, fails, becomes read-only, loses its files; its clock jumps
//! and runs too fast. While a fault lasts nothing is acknowledged that is not kept; when it goes, work goes on
//! without a restart where that is possible; and after a kill everything acknowledged is there.
//!
//! Disk and clock are held by a small C library in the server's process (`crates/testkit/c/below.c`).
//! `MILLWRIGHT_FAULT_ROUNDS=N` goes through all faults of the disk N times (once unless said).
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

#[allow(dead_code)]
#[path = "../binary/audit.rs"]
mod audit;
mod clock;
mod disk;
#[allow(dead_code)]
#[path = "../binary/fleet.rs"]
mod fleet;
#[path = "../power_loss/inside.rs"]
mod inside;
#[allow(dead_code)]
#[path = "../power_loss/ledger.rs"]
mod ledger;
mod lost_files;
#[allow(dead_code)]
#[path = "../binary/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../binary/server.rs"]
mod server;
mod site;
mod writers;
