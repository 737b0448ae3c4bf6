//! Machines of a MAAS become nodes and are given back, through a MAAS that is played by a simulator: stage by stage, against
//! everything that it does wrong, with an auditor who reads the simulator's own log.
//!
//! `MAAS_LENGTH=N` disturbs N times as much (default 1). `MAAS_LOG=warn` and the like prints what the product logs.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod asked;
mod behind;
mod crash;
mod decommission;
mod erased;
mod found;
mod midway;
mod onboarding;
mod patience;
mod plant;
mod play;
// the same for all jobs, whatever they stand on
#[path = "../jobs/rows.rs"]
mod rows;
mod stops;
#[allow(dead_code, reason = "some of it is for the other jobs")]
#[path = "../jobs/strike.rs"]
mod strike;
#[allow(dead_code, reason = "some of it is for the other jobs")]
#[path = "../jobs/table.rs"]
mod table;
mod unheard;
mod ways_out;

/// How long the loops are.
pub fn length() -> usize {
    std::env::var("MAAS_LENGTH").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Prints what the product logs, if somebody asks for it.
pub fn log_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if let Some(level) = std::env::var("MAAS_LOG").ok().and_then(|l| l.parse::<tracing::Level>().ok()) {
            tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
        }
    });
}
