//! A server whose disk and clock the test holds, with its fleet on another disk and writers that never pause.

use crate::audit::World;
use crate::fleet::text;
use crate::inside;
use crate::ledger::{self, Entry, Fact, connect};
use crate::process::until;
use crate::server::{Home, Launch, QUICK, Server};
use crate::writers::{Tally, Writers};
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::{CreatePlanRequest, GetPlanRequest, Plan};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use testkit::below::Below;

/// What a repave outside a cluster does to a machine.
pub const ONCE: [&str; 4] = ["netboot", "repave_started", "repaved", "reset"];

pub struct Site {
    pub home: Home,
    pub below: Below,
    pub data: PathBuf,
    pub world: World,
    pub tally: Arc<Tally>,
    pub runtime: tokio::runtime::Runtime,
    launch: Launch,
    runs: BTreeSet<String>,
    admin: String,
}

impl Site {
    pub fn start() -> (Self, Server) {
        let home = Home::new();
        std::fs::create_dir_all(home.path("disk")).expect("a folder");
        let disk = home.path("disk").canonicalize().expect("a folder");
        let below = Below::new(&home.path(""), &disk);
        let world = home.path("world.jsonl");
        let config = format!(
            "{QUICK}\n[limits]\ncalls_per_second = 100000\nburst = 100000\n[providers.sim]\nkind = \"sim\"\njournal = {:?}\n",
            world.display().to_string()
        );
        let mut launch = home.launch("disk/data").config(&config);
        for (name, value) in below.env(None) {
            launch = launch.env(&name, &value);
        }
        let server = launch.start();
        let admin = std::fs::read_to_string(&server.token_file).expect("the token").trim().to_owned();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let site = Self {
            data: launch.data.clone(),
            world: World(world),
            tally: Arc::default(),
            runtime: runtime.expect("a runtime"),
            launch,
            runs: BTreeSet::new(),
            admin,
            below,
            home,
        };
        (site, server)
    }

    pub fn start_again(&self) -> Server {
        self.launch.start()
    }

    pub fn writers(&self, server: &Server, count: usize) -> Writers {
        let writers = Writers::start(&self.runtime, &server.url, &self.admin, count, &self.tally);
        let stretch = self.tally.begin();
        self.tally.wait_for(stretch, "the writers write", |answers| answers.written >= 3);
        writers
    }

    /// A plan like the built-in repave, each of whose steps has one attempt of so many seconds.
    pub fn strict_plan(&self, server: &Server, id: &str, seconds: i32) {
        self.runtime.block_on(async {
            let mut plans = PlanServiceClient::new(connect(&server.url, &self.admin).await);
            let built_in = plans.get_plan(GetPlanRequest { plan_id: "default-repave".to_owned() }).await;
            let mut plan = Plan { plan_id: id.to_owned(), ..built_in.expect("a plan").into_inner() };
            for step in &mut plan.steps {
                (step.timeout_seconds, step.max_retries) = (Some(seconds), Some(0));
            }
            plans.create_plan(CreatePlanRequest { plan: Some(plan) }).await.expect("a plan");
        });
    }

    /// Starts a repave on a new machine.
    pub fn run(&mut self, server: &Server, machine: &str, labels: &[&str], plan: Option<&str>) -> String {
        server.register(machine, labels);
        let mut words = vec!["run", "start", machine, "--type", "REPAVE", "-o", "name"];
        words.extend(plan.into_iter().flat_map(|plan| ["--plan", plan]));
        let run = server.ok(&words).trim().to_owned();
        self.runs.insert(run.clone());
        self.tally.acknowledged.lock().expect("no panic").push(Entry { at: 0, fact: Fact::Run(run.clone()) });
        run
    }

    /// Waits until something was done to a machine.
    pub fn under_way(&self, machine: &str) {
        until("the run is under way", || self.world.effects().iter().any(|e| e.machine == machine).then_some(()));
    }

    /// All runs so far succeed, and each did everything once.
    pub fn all_succeed(&self, server: &Server) {
        let ended = server.all_succeed();
        let ended: BTreeSet<String> = ended.iter().map(|run| text(run, "run_id").to_owned()).collect();
        assert_eq!(ended, self.runs, "no run is lost and none is made up");
        self.world.each_once(&ONCE, &server.executions());
    }

    /// Everything that was acknowledged is shown by the server.
    pub fn everything_is_there(&self, server: &Server) -> usize {
        let acknowledged = self.tally.acknowledged.lock().expect("no panic").clone();
        let due: Vec<&Entry> = acknowledged.iter().collect();
        self.runtime.block_on(ledger::check(&server.url, &self.admin, &due)).expect("everything is there")
    }

    /// Kills the server, looks at what it left, and asks its next life for everything.
    pub fn survives_a_kill(&self, server: Server) -> Server {
        server.kill();
        let server = self.start_again();
        let there = self.everything_is_there(&server);
        eprintln!("{there} acknowledgements are there after a kill");
        server
    }

    /// The last look, without the server.
    pub fn ends_whole(&self, server: Server) {
        server.kill();
        inside::look(&self.data.join("millwright.db")).expect("whole");
    }
}
