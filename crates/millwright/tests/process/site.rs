//! A site: one or two servers on one database and one simulated world, the clients at work on it, and the
//! check that everything came to rest as they were told.

use crate::audit::World;
use crate::dice::Dice;
use crate::load::{self, Load};
use crate::server::{Home, Launch, QUICK, Server};
use crate::verdict::{self, Counts};
use crate::watch::{self, Heard};
use crate::wire::Wire;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::postgres::{Cluster, Durability};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// How long clients may take to bring what they began to its end.
const REST_WITHIN: Duration = Duration::from_secs(150);

/// The URL of a fresh database on a cluster that syncs as it was installed to.
pub fn postgres() -> String {
    static STOCK: OnceLock<Cluster> = OnceLock::new();
    let config = STOCK.get_or_init(|| Cluster::start(Durability::Stock)).database();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
        tokio::spawn(async move { drop(connection.await) });
        for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
            let row = client.query_one(&format!("SHOW {setting}"), &[]).await.expect("a setting");
            assert_eq!(row.get::<_, &str>(0), "on", "{setting}: a durability test on a database without any");
        }
    });
    testkit::postgres::url(&config)
}

/// How many clients of each kind.
#[derive(Clone, Copy)]
pub struct Crowd {
    pub runners: usize,
    pub movers: usize,
    /// Of a hundred runs, how many are canceled on the way.
    pub cancel_percent: u64,
    /// How long the command takes that is one of a run's steps.
    pub command_ms: u64,
}

pub struct Site {
    /// One for each server, whether or not it runs.
    pub launches: Vec<Launch>,
    pub urls: Vec<String>,
    pub world: World,
    pub load: Arc<Load>,
    pub wire: Wire,
    pub runs: Arc<Heard>,
    pub log: Arc<Heard>,
    clients: Vec<(String, JoinHandle<()>)>,
    pub runtime: Runtime,
    _home: Home,
}

impl Site {
    /// The launches of so many servers on a database; empty: SQLite.
    pub fn plan(database: &str, servers: usize, workers: usize) -> (Home, World, Vec<Launch>) {
        let home = Home::new();
        let world = World(home.path("world.jsonl"));
        let config = format!(
            "{QUICK}workers = {workers}\n[providers.sim]\nenabled = true\njournal = '{}'\n\
             [limits]\ncalls_per_second = 100000\nburst = 100000\n[metrics]\npublic = true\n",
            world.0.display()
        );
        let launch = |n: usize| {
            let launch = home.launch(&format!("data-{n}")).config(&config);
            if database.is_empty() { launch } else { launch.with(&["--database", database]) }
        };
        let launches = (0..servers).map(launch).collect();
        (home, world, launches)
    }

    /// Starts the servers, each at an address that it keeps.
    pub fn open((home, world, mut launches): (Home, World, Vec<Launch>)) -> (Self, Vec<Server>) {
        let servers: Vec<Server> = launches.iter_mut().map(Launch::start_at_a_fixed_address).collect();
        let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
        let token = std::fs::read_to_string(&servers[0].token_file).expect("a token");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let wire = {
            let _inside = runtime.enter();
            Wire::to(&urls.iter().map(String::as_str).collect::<Vec<_>>(), token.trim())
        };
        runtime.block_on(load::make_plan(&wire));
        let site = Self {
            launches,
            urls,
            world,
            load: Load::new(),
            wire,
            runs: Arc::default(),
            log: Arc::default(),
            clients: Vec::new(),
            runtime,
            _home: home,
        };
        (site, servers)
    }

    /// A client's own connection; every other one begins at another server.
    fn own_wire(&self, n: usize) -> Wire {
        let _inside = self.runtime.enter();
        self.wire.another(&self.urls.iter().map(String::as_str).collect::<Vec<_>>(), n)
    }

    /// Lets the clients come.
    pub fn populate(&mut self, dice: &mut Dice, crowd: Crowd) {
        for n in 0..crowd.runners {
            let (name, dice) = (format!("w-{n:02}"), dice.split());
            let client = load::runner(self.load.clone(), self.own_wire(n), dice, name.clone(), crowd);
            self.clients.push((name, self.runtime.spawn(client)));
        }
        for n in 0..crowd.movers {
            let name = format!("d-{n:02}");
            let client = load::mover(self.load.clone(), self.own_wire(n), name.clone());
            self.clients.push((name, self.runtime.spawn(client)));
        }
        let tokens = load::token_maker(self.load.clone(), self.own_wire(0));
        self.clients.push(("tokens".into(), self.runtime.spawn(tokens)));
        let runs = watch::runs(self.load.clone(), self.own_wire(0), self.runs.clone());
        self.clients.push(("a watcher of runs".into(), self.runtime.spawn(runs)));
        let log = watch::log(self.load.clone(), self.own_wire(1), self.log.clone());
        self.clients.push(("a watcher of the log".into(), self.runtime.spawn(log)));
    }

    /// A client that has given up has found something.
    pub fn all_at_work(&mut self) {
        if let Some(at) = self.clients.iter().position(|(_, client)| client.is_finished()) {
            let (name, client) = self.clients.swap_remove(at);
            let ended = self.runtime.block_on(client);
            panic!("client {name} has ended: {ended:?}");
        }
    }

    /// Everything that was told since the last check is there. Answers how much that was.
    pub fn check_news(&self) -> usize {
        self.runtime.block_on(self.load.ledger.check_news(&self.wire))
    }

    /// No new work; what is under way comes to its end, and everything is as was told.
    pub fn come_to_rest(&mut self) -> Counts {
        self.load.enough.cancel();
        for (name, client) in self.clients.drain(..) {
            let ended = self.runtime.block_on(async { tokio::time::timeout(REST_WITHIN, client).await });
            let ended = ended.unwrap_or_else(|_| panic!("client {name} does not come to rest"));
            ended.unwrap_or_else(|e| panic!("client {name} has found something: {e}"));
        }
        self.runtime.block_on(async {
            self.load.ledger.check_all(&self.wire).await;
            self.check_lists().await;
            watch::check(&self.wire, &self.runs, &self.log).await;
        });
        verdict::give(&self.world.effects(), &self.load.ledger.book())
    }

    /// One run for each request, none that nobody was told of, and no machine is held.
    async fn check_lists(&self) {
        let told: BTreeMap<String, String> =
            self.load.ledger.book().runs.iter().map(|(request, run)| (request.clone(), run.run_id.clone())).collect();
        let mut found = BTreeMap::new();
        let mut page_token = String::new();
        loop {
            let page = self.wire.ask("ListRuns", |d| {
                let request =
                    pb::ListRunsRequest { page_size: 200, page_token: page_token.clone(), ..Default::default() };
                async move { RunServiceClient::new(d).list_runs(request).await }
            });
            let page = page.await.expect("a page");
            for run in page.runs {
                let twice = found.insert(run.request_id.clone(), run.run_id.clone());
                assert_eq!(twice, None, "{} has two runs", run.request_id);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(found, told, "runs that are there, and runs that were told");
        let machines = self.wire.ask("ListMachines", |d| async move {
            let request = pb::ListMachinesRequest { page_size: 1000, ..Default::default() };
            MachineServiceClient::new(d).list_machines(request).await
        });
        for machine in machines.await.expect("a page").machines {
            let held = machine.status.as_ref().map_or("", |s| s.active_run_id.as_str());
            assert_eq!(held, "", "a machine is held by nobody's run: {machine:?}");
        }
    }

    pub fn executions(&self, filter: &str) -> Vec<mw::Execution> {
        let mut found = Vec::new();
        let mut page_token = String::new();
        loop {
            let page = self.wire.ask("ListExecutions", |d| {
                let request = mw::ListExecutionsRequest {
                    filter: filter.to_owned(),
                    page_size: 500,
                    page_token: page_token.clone(),
                };
                async move { EngineServiceClient::new(d).list_executions(request).await }
            });
            let page = self.runtime.block_on(page).expect("a page");
            found.extend(page.executions);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return found;
            }
        }
    }

    pub fn journal(&self, execution_id: &str) -> Vec<mw::JournalEntry> {
        let described = self.wire.ask("DescribeExecution", |d| {
            let request = mw::DescribeExecutionRequest { execution_id: execution_id.to_owned() };
            async move { EngineServiceClient::new(d).describe_execution(request).await }
        });
        self.runtime.block_on(described).expect("an execution").journal
    }

    /// Executions that were taken over from a holder that was lost.
    pub fn taken_over(&self) -> usize {
        let lost = |e: &mw::Execution| self.journal(&e.execution_id).iter().any(|entry| entry.entry == "holder_lost");
        self.executions("").iter().filter(|e| lost(e)).count()
    }
}
