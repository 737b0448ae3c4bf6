//! The program itself: servers and commands as processes over loopback, killed, stopped and started again
//! as they are in life. What the crates promise one by one is tried here on the whole.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be done is a failed test

mod access_commands;
mod agents_clean;
mod agents_clock;
mod agents_clone;
mod agents_fleet;
mod agents_killed;
mod agents_newcomer;
mod agents_server;
mod agents_site;
mod audit;
mod backup;
mod boot_commands;
mod boot_machines;
mod boot_network;
mod boot_repave;
mod boot_site;
mod canaries;
mod configuration;
mod contexts;
mod credential_commands;
mod database_faults;
mod demo;
mod doctor;
mod dry_run;
mod encrypted;
mod exit_codes;
mod first_start;
mod fleet;
mod grammar;
mod hardware_commands;
mod hardware_real;
mod hardware_vm;
mod help;
mod killed;
mod node_commands;
mod observed;
mod process;
mod readme;
mod server;
mod shared_database;
mod shutdown;
mod sight;
mod sight_commands;
mod waiting;
