//! The acceptance suite of the REST door: the same calls as gRPC, in JSON, asked for over the wire of a
//! whole server by a client that knows nothing but HTTP.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)] // for tests only: what cannot be done is a failed test

mod client;
mod cuts;
mod doors;
mod doors_nodes;
mod doors_refusals;
mod doors_sites;
mod events;
#[allow(dead_code, unused_macros, unused_imports)] // shared with the gRPC suite, which needs all of it
#[path = "../api/fixture.rs"]
mod fixture;
mod hostile;
mod json;
mod json_model;
mod logs;
mod node_bulk;
mod node_jobs;
mod node_tasks;
mod nodes;
mod openapi;
mod patch;
#[allow(dead_code)]
#[path = "../api/raw.rs"]
mod raw;
mod routing;
mod world;
