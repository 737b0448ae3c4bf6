//! The acceptance suite of the gRPC API: every behaviour that the contract promises, asked for over the
//! wire of a whole server. Each test stands on a server, a store and a simulated fleet of its own.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)] // for tests only: what cannot be done is a failed test

mod access;
mod asks;
mod audit;
mod auth;
mod callers;
mod cancel;
mod conditions;
mod cuts;
mod descriptor;
mod descriptor_numbers;
mod door;
mod engine_admin;
mod errors;
mod events;
mod examples;
mod explain;
mod explain_walk;
mod fixture;
mod freeze;
mod hardware;
mod hostile;
mod idempotency;
mod limits;
mod logs;
mod machine_identity;
mod machine_list;
mod machine_update;
mod machines;
mod plans;
mod raw;
mod refusal;
mod retries;
mod run_outcomes;
mod runs;
mod scope;
mod set_phase;
mod start_run;
mod start_run_checks;
mod start_run_refusals;
mod tokens;
mod two_servers;
mod watch;
mod watch_filters;
