//! The Redfish adapter against sushy-emulator (what it offers) and against our own responder (the rest): what is
//! really done is read from the counterpart, never from the adapter.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod canaries;
mod changes;
mod connections;
mod describe;
mod errors;
mod faults;
mod fixture;
mod many;
mod odd_answers;
mod power_and_boot;
mod sessions;
mod suite;
mod sushy;
mod sushy_faults;
mod sushy_libvirt;
mod tasks;
mod trust;
