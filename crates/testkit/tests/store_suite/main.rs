//! The store's contract, as one suite: each body runs in memory, on a SQLite file and on PostgreSQL.
//! What only one of them can do stands apart, under that database's name.
#![allow(clippy::expect_used, clippy::panic)] // helpers of tests fail as tests do

mod agents;
mod audit;
mod census;
mod credentials;
mod executions;
mod feed;
mod fixture;
mod holds;
mod jobs;
mod log;
mod machines;
mod neighbours;
mod nodes;
mod observations;
mod pins;
mod postgres_only;
mod postgres_restart;
mod records;
mod runs;
mod sessions;
mod sites;
mod sqlite_backup;
mod sqlite_only;
mod statements;
mod tasks;
mod tokens;
mod transitions;
