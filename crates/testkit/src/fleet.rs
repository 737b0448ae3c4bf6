//! A control plane in one process: a store of either kind, a simulated fleet, an engine that can be
//! killed and started again on the same store.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::ambient::VirtualAmbient;
use crate::placed::Placed;
use crate::postgres;
use crate::scratch::Watched;
use engine::{Engine, EngineOptions, JournalObserver};
use provider::Providers;
use reconcile::{Reconciler, ReconcilerOptions};
use service::{Call, CallerLimits, NewMachine, SecretKey, SecretKeys, Service, StartRun, Vault};
use sim::SimFleet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Ambient, Options, Store};
use workflow::job::Hands;
use workflow::{JobWorkflow, NodePolicy, RunWorkflow};

/// Which database a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Memory,
    Sqlite,
    Postgres,
}

/// A store and a fleet that outlive the engines that work on them.
pub struct Fleet {
    pub store: Store,
    pub sim: Arc<SimFleet>,
    pub ambient: Arc<dyn Ambient>,
    clock: Arc<VirtualAmbient>,
    /// Beside the simulated one.
    beside: Providers,
    folder: Option<Watched>,
    /// How to come to a PostgreSQL store.
    postgres: Option<tokio_postgres::Config>,
    /// What runs on its nodes.
    pub placed: Arc<Placed>,
}

impl Fleet {
    /// On the clock of the runtime it is made in, paused or not.
    pub fn new(database: Database, seed: u64) -> Self {
        let folder = (database == Database::Sqlite).then(Watched::new);
        let options = match (&folder, database) {
            (Some(folder), _) => Options::Sqlite(folder.path().join("test.db")),
            (None, Database::Postgres) => Options::Postgres(Box::new(postgres::database())),
            (None, Database::Memory | Database::Sqlite) => Options::Memory,
        };
        Self::on(&options, seed, folder)
    }

    /// On a database of the caller's.
    pub fn on_database(options: &Options, seed: u64) -> Self {
        Self::on(options, seed, None)
    }

    fn on(options: &Options, seed: u64, folder: Option<Watched>) -> Self {
        let virtual_clock = VirtualAmbient::new(seed);
        let ambient: Arc<dyn Ambient> = virtual_clock.clone();
        let store = Store::open(options, ambient.clone()).expect("the store opens");
        let clock = ambient.clone();
        let sim = Arc::new(SimFleet::in_memory(seed, Arc::new(move || clock.now())));
        let postgres = match options {
            Options::Postgres(config) => Some((**config).clone()),
            Options::Sqlite(_) | Options::Memory => None,
        };
        let (beside, placed) = (Providers::default(), Arc::<Placed>::default());
        Self { store, sim, ambient, clock: virtual_clock, beside, folder, postgres, placed }
    }

    /// Another store in the world of a fleet that is there.
    pub fn over(store: Store, other: &Fleet) -> Self {
        let (clock, beside) = (other.clock.clone(), other.beside.clone());
        let (folder, postgres) = (None, None);
        let placed = other.placed.clone();
        Self { store, sim: other.sim.clone(), ambient: other.ambient.clone(), clock, beside, folder, postgres, placed }
    }

    /// So much later, without waiting for it.
    pub fn pass(&self, span: Duration) {
        self.clock.skip(span);
    }

    /// The file of an SQLite store.
    pub fn database_file(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|f| f.path().join("test.db"))
    }

    /// How to come to a PostgreSQL store past ours, if it is one.
    pub fn postgres(&self) -> Option<&tokio_postgres::Config> {
        self.postgres.as_ref()
    }

    pub fn providers(&self) -> Providers {
        self.beside.clone().with("sim", self.sim.clone())
    }

    /// Whoever serves this fleet from now on has this one, too.
    pub fn provide(&mut self, name: &str, provider: Arc<dyn provider::Provider>) {
        self.beside = self.beside.clone().with(name, provider);
    }

    /// What jobs reach outside the store with: credentials, and what is placed.
    pub fn hands(&self) -> Hands {
        Hands { allocations: self.placed.clone(), ..Hands::bare(Arc::new(vault(&self.store))) }
    }

    /// A new engine on this store, not yet started.
    pub fn engine(&self, options: EngineOptions, observer: Option<JournalObserver>) -> Engine {
        self.engine_with(options, self.providers(), observer)
    }

    pub fn engine_with(
        &self,
        options: EngineOptions,
        providers: Providers,
        observer: Option<JournalObserver>,
    ) -> Engine {
        let workflows: Vec<Arc<dyn engine::Workflow>> = vec![
            Arc::new(RunWorkflow::new(providers)),
            Arc::new(JobWorkflow::new(NodePolicy::default(), self.hands())),
        ];
        Engine::new(self.store.clone(), options, workflows, observer)
    }

    /// Looks at this fleet's machines from now on. No server of the tests does so by itself.
    pub fn reconciler(&self, options: ReconcilerOptions) -> Reconciler {
        Reconciler::start(&self.store, self.providers(), options)
    }

    pub async fn service(&self, engine: &Engine) -> Service {
        let (store, limits) = (self.store.clone(), CallerLimits::default());
        Service::with_vault(store.clone(), engine.clone(), self.providers(), limits, vault(&store))
            .await
            .expect("the service starts")
    }
}

/// Sealed with the key that all servers of the tests share.
pub fn vault(store: &Store) -> Vault {
    let key = SecretKey::parse(&"5a".repeat(32)).expect("a key");
    Vault::new(store.clone(), SecretKeys::given(key))
}

/// Short periods, so that a takeover does not take long on a real clock either.
pub fn quick(instance: &str) -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(4),
        call_timeout: Duration::from_secs(1),
        poll: Duration::from_millis(50),
        ..EngineOptions::new(instance)
    }
}

/// A simulated machine that answers at once.
pub fn machine(id: &str) -> NewMachine {
    let mut machine = NewMachine { id: id.to_owned(), ..NewMachine::default() };
    "sim".clone_into(&mut machine.spec.provider);
    machine.labels.insert("sim.latency_ms".to_owned(), "0".to_owned());
    machine
}

pub fn labelled(id: &str, labels: &[(&str, &str)]) -> NewMachine {
    let mut machine = machine(id);
    machine.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    machine
}

pub fn start(machine: &str, run_type: &str, request: &str) -> StartRun {
    StartRun {
        request_id: request.to_owned(),
        machine_id: machine.to_owned(),
        run_type: run_type.to_owned(),
        ..StartRun::default()
    }
}

/// A call of the server's own, which may do anything.
pub fn admin() -> Arc<Call> {
    Call::system()
}

/// Looks until the condition holds; a bound, not a verdict about time.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    for tries in 0..3_000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(if tries < 1_000 { 5 } else { 60 })).await;
    }
    panic!("never happened: {what}");
}
