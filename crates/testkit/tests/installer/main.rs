//! The installer, booted by itself: QEMU starts its kernel and initrd directly, on a user network, against a stand-in of the
//! server's side of the wire (`standin.rs`). Verdicts come from the disks' bytes, looked at from outside, from what was
//! reported, and from an installed system that boots. The way by DHCP, TFTP and iPXE is another test's subject.
//!
//! Two machines at a time; each takes some twenty seconds, on a busy host a minute. So by default there are those that
//! prove the most, and all of them with
//!
//! ```text
//! cargo test -p millwright-testkit --features every-installer --test installer
//! ```
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod choice;
mod erase;
#[cfg(feature = "every-installer")]
mod every;
mod fixture;
mod install;
mod network;
mod refusals;
mod seed;
mod standin;
mod trouble;
