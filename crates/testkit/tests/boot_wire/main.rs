//! Network boot against real clients in a network of their own: busybox' `udhcpc`, `udhcpd` and `tftp`, curl,
//! ISC's relay, and machines that QEMU emulates, with iPXE's and UEFI's own firmware. What they got is read from them, not from us.
//!
//! Each test is a process in a network namespace that nobody else has and that ends with it (`network`): no packet
//! of a test can reach a real network, nor the other way round. Needs root for the namespaces, and says so.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod clients;
mod firmware;
mod interface;
mod leases;
mod loaders;
mod network;
mod proxy;
mod relay;
mod service;
