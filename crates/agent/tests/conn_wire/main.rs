//! The agent's connection against a played server: enrolment, sessions and tasks on a clock that the tests hold, and the
//! real program over TCP.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

#[path = "../conn_stand_in/mod.rs"]
mod stand_in;

mod away;
mod enrolment;
mod killed;
mod process;
mod session;
mod tasks;

use agent::clock::Clock;
use agent::connection::{self, Departure};
use agent::folder::Folder;
use agent::host::Host;
use agent::identity::Identity;
use agent::setting::Setting;
use domain::Timestamp;
use stand_in::{StandIn, hold, played};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An agent in this process, on a machine that is a folder, whose clock is as wrong as a test wants it.
pub struct Bench {
    pub scratch: tempfile::TempDir,
    pub server: StandIn,
    pub setting: Setting,
}

pub struct Running {
    pub stop: CancellationToken,
    pub task: JoinHandle<Result<Departure, String>>,
}

impl Bench {
    /// With the clock held, and right.
    pub fn held() -> Self {
        hold();
        let server = StandIn::start();
        let wall = server.now();
        Self::with(server, wall)
    }

    /// The machine's clock stands still, at whatever time.
    pub fn with(server: StandIn, wall: Timestamp) -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).expect("a root");
        let folder = Arc::new(Folder::open(scratch.path().join("state")).expect("opened"));
        let mut setting = Setting::new(Host::new(root), folder);
        setting.clock = Clock::new(Arc::new(move || wall));
        setting.dial = server.dial();
        setting.execute = played();
        Self { scratch, server, setting }
    }

    /// A file that played tasks append to.
    pub fn ledger(&self) -> String {
        self.scratch.path().join("ledger").display().to_string()
    }

    /// How often a played task was carried out.
    pub fn carried_out(&self) -> usize {
        std::fs::read_to_string(self.ledger()).map(|text| text.lines().count()).unwrap_or_default()
    }

    pub fn state(&self, name: &str) -> PathBuf {
        self.setting.folder.path().join(name)
    }

    pub async fn enrol(&self) -> Identity {
        agent::enrolment::enrol(&self.setting, &self.server.bundle()).await.expect("enrolled")
    }

    pub fn identity(&self) -> Identity {
        Identity::load(&self.setting.folder).expect("it reads").expect("enrolled")
    }

    /// As after a start of the program: nothing is known but what is on disk.
    pub fn run(&self) -> Running {
        let stop = CancellationToken::new();
        let setting = Setting {
            clock: Clock::new({
                let wall = self.setting.clock.wall();
                Arc::new(move || wall)
            }),
            ..self.setting.clone()
        };
        let task = tokio::spawn(connection::run(setting, self.identity(), stop.clone()));
        Running { stop, task }
    }

    /// Enrolled and connected.
    pub async fn connected() -> (Self, Running) {
        let mut bench = Self::held();
        bench.enrol().await;
        let running = bench.run();
        bench.server.confirmed().await;
        (bench, running)
    }
}

impl Running {
    pub async fn stop(self) -> Departure {
        self.stop.cancel();
        self.departure().await
    }

    pub async fn departure(self) -> Departure {
        self.task.await.expect("it does not panic").expect("it starts")
    }

    /// As if the power went: nothing more is written or said.
    pub async fn dies(self) {
        self.task.abort();
        drop(self.task.await);
    }
}
