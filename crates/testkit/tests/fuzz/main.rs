//! Everything that faces the outside, fed with what no honest caller sends: a target for each parser and decoder,
//! the doors through the whole server. `testkit::fuzz` says how it is run, for how long, and where failures go;
//! the targets of the command line and of the configuration are in `crates/millwright/src/fuzz.rs`.
//!
//! Each input must come to an answer or to an error that says what is wrong, in bounded time, memory and length;
//! and a request that was refused has changed nothing.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod backup;
mod boot_query;
mod boot_report;
mod boot_site;
mod dhcp;
mod filter;
mod grpc;
mod images;
mod json;
mod kubeconfig;
mod lease_file;
mod lists;
mod mac;
mod order_lines;
mod outside;
mod pem;
mod rest;
mod rows;
mod templates;
mod tftp;
mod wire;
mod world;
