//! What the program is asked to do.

use crate::ground::Kind;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// GetMachine beside the health check
    Reads,
    /// SetPhase beside the store alone, and that beside a naive pool
    Writes,
    /// Complete five-step REPAVE runs
    Runs,
    /// 10,000 waiting runs, an idle server, 1,000 watchers
    Waiting,
    /// Pages of 1,000 machines; the cost of a run as stored runs grow
    Lists,
    /// Killed with 10,000 runs in flight; start with 100,000 machines
    Restart,
    /// Sweeps over 5,000 BMCs, some of them dead; inspect beside curl; TLS
    Hardware,
    /// Image bytes to 64 readers beside nginx; memory as readers grow
    Images,
    /// Boot decisions beside the health check, reports beside the store alone, 100,000 boot nodes
    Boot,
    /// 10,000 agents: CPU, memory, heartbeats, tasks, a restart; one real agent
    Agents,
    /// Onboarding through a MAAS that answers at once: CPU, calls; a site of 5,000: how soon a change is seen, at how many requests
    Maas,
    /// The release binary; with --build also the incremental build
    Size,
}

/// Measures a real server over loopback. Every speed is a ratio to a limit measured in the same run.
#[derive(Parser)]
#[command(
    name = "millwright-bench",
    after_help = "Examples:
  cargo build --release -p millwright            # the server that is measured
  cargo run --release -p millwright-bench --     # everything
  cargo run --release -p millwright-bench -- reads writes --sqlite --json figures.json
  cargo run --release -p millwright-bench -- --json docs/plots/figures.json --plots docs/plots

Data are kept below TMPDIR, which must be on a real disk; PostgreSQL is a private cluster with stock durability.
Take figures on a machine that does nothing else."
)]
pub struct Options {
    /// What to measure; everything if none is named
    pub sections: Vec<Section>,
    /// Machines that are stored
    #[arg(long, default_value_t = 100_000)]
    pub machines: usize,
    /// Runs that wait, or are in flight when the server is killed
    #[arg(long, default_value_t = 10_000)]
    pub runs: usize,
    /// BMCs that are swept (section hardware); one in twenty goes dark, a fifth as many are swept over TLS
    #[arg(long, default_value_t = 5_000)]
    pub bmcs: usize,
    /// Agents that are connected (section agents)
    #[arg(long, default_value_t = 10_000)]
    pub agents: usize,
    /// Machines that are onboarded at once (section maas), after a tenth of them
    #[arg(long, default_value_t = 1_000)]
    pub onboarded: usize,
    /// Machines of the site that is watched (section maas)
    #[arg(long, default_value_t = 5_000)]
    pub observed: usize,
    /// Seconds for which it is watched
    #[arg(long, default_value_t = 120)]
    pub observed_seconds: u64,
    /// Seconds from sweep to sweep there
    #[arg(long, default_value_t = 30)]
    pub period: u64,
    /// Seconds for each load that is measured, in several slices
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw plots into this folder
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Only on PostgreSQL
    #[arg(long, conflicts_with = "sqlite")]
    pub postgres: bool,
    /// Only on SQLite
    #[arg(long)]
    pub sqlite: bool,
    /// Also time the incremental debug build (section size)
    #[arg(long)]
    pub build: bool,
    /// Serve the images of a folder until the input ends, for the section that measures it
    #[arg(long, value_name = "DIR", hide = true)]
    pub serve_images: Option<PathBuf>,
}

/// Slices of each load; loads that are compared take turns.
const SLICES: u32 = 4;

impl Options {
    pub fn wants(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }

    /// Images are served by this very program, as the product does.
    pub fn needs_the_product(&self) -> bool {
        self.sections != [Section::Images]
    }

    pub fn kinds(&self) -> Vec<Kind> {
        match (self.sqlite, self.postgres) {
            (true, _) => vec![Kind::Sqlite],
            (_, true) => vec![Kind::Postgres],
            (false, false) => vec![Kind::Sqlite, Kind::Postgres],
        }
    }

    pub fn slices(&self) -> u32 {
        SLICES
    }

    pub fn slice(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.max(0.1)) / SLICES
    }
}
