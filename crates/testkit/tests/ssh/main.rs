//! The SSH adapter against OpenSSH's own server: commands that outlive us, their end, what is told when a host or
//! the way to it fails. The hosts are `testkit::sshd`'s: real servers in namespaces of their own.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod boot;
mod exec;
mod fixture;
mod jump;
mod kill;
mod links;
mod logins;
mod recording;
mod secrets;
mod wire;
