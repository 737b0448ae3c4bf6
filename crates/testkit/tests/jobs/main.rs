//! Nodes and their jobs against their promises: every state has a way out that is offered, explained and safe to take
//! twice; nothing that happens in between leaves a node without an owner, or has an agent do something twice.
//!
//! On the store in memory the clock is virtual; PostgreSQL runs a sample on the real one. `JOBS_LENGTH=N` disturbs N
//! times as much (default 1): more second crashes, every point on PostgreSQL. `-- --nocapture` prints the counts.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod actions;
mod audit;
mod clean;
mod crash;
mod exclusive;
mod guardrails;
mod heartbeats;
mod identities;
mod layers;
mod links;
mod matrix;
mod reimage;
mod repeats;
mod rows;
mod strike;
mod table;
mod world;

/// How long the loops are.
pub fn length() -> usize {
    std::env::var("JOBS_LENGTH").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// `JOBS_LOG=warn` and the like prints what the product logs.
pub fn log_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if let Some(level) = std::env::var("JOBS_LOG").ok().and_then(|l| l.parse::<tracing::Level>().ok()) {
            tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
        }
    });
}
