//! The program under load, and whatever may happen to its process: killed at random moments, stopped in its
//! tracks until others have taken over, asked to hand over. Clients write down what they were told, the
//! simulated fleet writes down what was done to it, and the verdict comes from those two. (Who held what when, and
//! whose late writes were refused, only the engine's own journal and metrics can tell.)
//!
//! `MILLWRIGHT_KILLS=N` sets how many kills there are in all (100), three in ten of them on PostgreSQL;
//! `MILLWRIGHT_SLEEPS=N` how often a server is put to sleep (2); `MILLWRIGHT_SEED=N` draws the same moments again.
//! Both databases have their stock durability.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be done is a failed test

#[path = "../binary/audit.rs"]
#[allow(dead_code)] // shared with the other target, which uses more of it
mod audit;
#[path = "../binary/fleet.rs"]
#[allow(dead_code)]
mod fleet;
#[path = "../binary/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../binary/server.rs"]
#[allow(dead_code)]
mod server;

mod dice;
mod handed_over;
mod killed;
mod ledger;
mod load;
mod site;
mod stopped;
mod told_to_wait;
mod verdict;
mod watch;
mod wire;
