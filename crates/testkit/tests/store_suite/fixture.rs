//! A store to test on, with its clock, and the small things most tests begin with.

use domain::lifecycle::Guard;
use domain::machine::{Labels, Machine, MachineSpec, Phase, REGISTERED, SET_PHASE};
use domain::plan::{RebootMode, Step, StepKind};
use domain::run::{REQUESTED, Run, RunChange, RunType};
use domain::{Error, ExecutionId, MachineId, RunId, SessionId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::execution::{self, Execution, NewExecution};
use store::machine::PhaseChange;
use store::{Ambient as _, Caller, Cause, LogRow, Moved, Options, Store, Tx, TxResult};
use testkit::ambient::VirtualAmbient;

/// Runs one body on every kind of store: `name::memory`, `name::sqlite`, `name::postgres`.
macro_rules! on_every_store {
    ($name:ident, |$store:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn body($store: crate::fixture::TestStore) {
                $body.await
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn memory() {
                body(crate::fixture::TestStore::memory().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn sqlite() {
                body(crate::fixture::TestStore::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                body(crate::fixture::TestStore::postgres().await).await;
            }
        }
    };
}
pub(crate) use on_every_store;

/// As above, where there are threads and a queue to test.
macro_rules! on_threaded_stores {
    ($name:ident, |$store:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn body($store: crate::fixture::TestStore) {
                $body.await
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn sqlite() {
                body(crate::fixture::TestStore::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                body(crate::fixture::TestStore::postgres().await).await;
            }
        }
    };
}
pub(crate) use on_threaded_stores;

/// A bound on every wait, far above what any of them takes.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const LEASE: Duration = Duration::from_secs(10);
/// Longer than any one number of 32 bits has microseconds.
pub const LONGEST_CALL: Duration = Duration::from_secs(3600);

pub struct TestStore {
    pub store: Store,
    pub clock: Arc<VirtualAmbient>,
    pub options: Options,
    _folder: Option<tempfile::TempDir>,
}

impl std::ops::Deref for TestStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// Opens on a thread where blocking is allowed.
pub async fn open(options: &Options, clock: &Arc<VirtualAmbient>) -> Result<Store, Error> {
    let (options, clock) = (options.clone(), clock.clone());
    tokio::task::spawn_blocking(move || Store::open(&options, clock)).await.expect("opening does not panic")
}

impl TestStore {
    async fn on(options: Options, folder: Option<tempfile::TempDir>) -> Self {
        let clock = VirtualAmbient::new(1);
        let store = open(&options, &clock).await.expect("opens");
        Self { store, clock, options, _folder: folder }
    }

    pub async fn memory() -> Self {
        Self::on(Options::Memory, None).await
    }

    pub async fn sqlite() -> Self {
        let folder = testkit::scratch::folder();
        Self::on(Options::Sqlite(folder.path().join("millwright.db")), Some(folder)).await
    }

    pub async fn postgres() -> Self {
        let config = tokio::task::spawn_blocking(testkit::postgres::database).await.expect("a database");
        Self::on(Options::Postgres(Box::new(config)), None).await
    }

    /// Another store on the same database, with the same clock: it stands for another process.
    pub async fn beside(&self) -> Self {
        let store = open(&self.options, &self.clock).await.expect("opens again");
        Self { store, clock: self.clock.clone(), options: self.options.clone(), _folder: None }
    }

    /// The file of a SQLite store.
    pub fn file(&self) -> PathBuf {
        match &self.options {
            Options::Sqlite(path) => path.clone(),
            Options::Memory | Options::Postgres(_) => panic!("no file"),
        }
    }

    /// Writes as the tester.
    pub async fn put<T: Send + 'static>(
        &self,
        key: &str,
        f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.store.write(&tester(), key, f).await
    }

    pub async fn register(&self, id: &str) -> Machine {
        let machine = machine_id(id);
        self.put(id, move |tx| register(tx, &machine, &MachineSpec::default(), &Labels::new()))
            .await
            .expect("registers")
    }

    pub async fn machine(&self, id: &str) -> Option<Machine> {
        let id = machine_id(id);
        self.read(move |tx| store::machine::get(tx, &id)).await.expect("reads")
    }

    pub async fn run(&self, id: &RunId) -> Run {
        let id = id.clone();
        self.read(move |tx| store::run::get(tx, &id)).await.expect("reads").expect("is there")
    }

    /// A pending run on a machine.
    pub async fn request(&self, machine: &str, steps: &[&str]) -> RunId {
        let id = RunId::generate(self.clock.uuid());
        let (row, change, steps) = (id.clone(), requested(machine, id.as_str(), steps), make_steps(steps));
        self.put(machine, move |tx| store::run::insert(tx, &row, &change, &steps, &requester()))
            .await
            .expect("requests");
        id
    }

    /// Reads the run and changes it in one transaction.
    pub async fn change(&self, id: &RunId, changes: Vec<RunChange>) -> Result<Run, Error> {
        let (key, id) = (id.to_string(), id.clone());
        self.put(&key, move |tx| {
            let mut run = store::run::get(tx, &id)?.expect("is there");
            store::run::change(tx, &mut run, &changes, "tester")?;
            Ok(run)
        })
        .await
    }

    /// The whole log.
    pub async fn log(&self) -> Vec<LogRow> {
        self.log_after(0).await
    }

    pub async fn log_after(&self, mut last: u64) -> Vec<LogRow> {
        let mut all = Vec::new();
        loop {
            let rows = self.read(move |tx| store::log_after(tx, last, 500)).await.expect("reads the log");
            let Some(row) = rows.last() else { return all };
            last = row.sequence;
            all.extend(rows);
        }
    }

    pub async fn head(&self) -> u64 {
        self.read(store::log_range).await.expect("reads the range").head
    }

    pub async fn session(&self, instance: &str) -> SessionId {
        let id = SessionId::generate(self.clock.uuid());
        let (row, instance) = (id.clone(), instance.to_owned());
        let open = move |tx: &mut Tx<'_>| store::session::open(tx, &row, &instance, LEASE, LONGEST_CALL);
        self.put("sessions", open).await.expect("opens");
        id
    }

    /// An execution that wants a worker.
    pub async fn execution(&self, subject: &str) -> ExecutionId {
        let id = ExecutionId::generate(self.clock.uuid());
        let (row, subject) = (id.clone(), subject.to_owned());
        self.put(&id.to_string(), move |tx| insert_execution(tx, &row, &subject)).await.expect("inserts");
        id
    }

    pub async fn get_execution(&self, id: &ExecutionId) -> Execution {
        let id = id.clone();
        self.read(move |tx| execution::get(tx, &id)).await.expect("reads").expect("is there")
    }

    pub async fn claim(&self, session: &SessionId, limit: usize) -> Vec<Execution> {
        let session = session.clone();
        self.put("claims", move |tx| execution::claim(tx, &session, limit)).await.expect("claims")
    }
}

/// Keeps the writer of a key busy, so that what comes meanwhile waits together.
pub struct Blocker {
    release: std::sync::mpsc::Sender<()>,
    busy: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Blocker {
    pub async fn on(store: &Store, key: &str) -> Self {
        let (release, released) = std::sync::mpsc::channel();
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (store, key, released) = (store.clone(), key.to_owned(), std::sync::Mutex::new(released));
        let busy = tokio::spawn(async move {
            let wait = move |_: &mut Tx<'_>| {
                begin.send(()).expect("somebody waits for this");
                let released = released.lock().expect("no panic");
                released.recv_timeout(PATIENCE).expect("is released in time");
                Ok(())
            };
            store.write(&Caller::new("blocker"), &key, wait).await
        });
        begun.recv().await.expect("begins");
        Self { release, busy }
    }

    pub async fn release(self) {
        self.release.send(()).expect("still waits");
        self.busy.await.expect("no panic").expect("writes");
    }
}

/// Asks again and again until there is an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

pub fn tester() -> Caller {
    Caller::new("tester")
}

pub fn machine_id(id: &str) -> MachineId {
    MachineId::from_text(id)
}

pub fn registrar() -> Cause {
    Cause::operator("tester", REGISTERED, "")
}

pub fn requester() -> Cause {
    Cause::operator("tester", REQUESTED, "")
}

pub fn phase_setter() -> Cause {
    Cause::operator("tester", SET_PHASE, "because")
}

pub fn register(tx: &mut Tx<'_>, id: &MachineId, spec: &MachineSpec, labels: &Labels) -> TxResult<Machine> {
    store::machine::insert(tx, id, spec, labels, &registrar())
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub fn no_guard(_: Guard) -> Result<(), Error> {
    Ok(())
}

/// The machine as it is, moved to a phase and nothing else changed.
pub fn to_phase(machine: &Machine, to: Phase) -> PhaseChange {
    PhaseChange {
        to,
        active_run: machine.active_run.as_ref().map(|r| r.id.clone()),
        previous_phase: machine.previous_phase,
        conditions: machine.conditions.clone(),
    }
}

pub fn set_phase(tx: &mut Tx<'_>, id: &MachineId, to: Phase) -> TxResult<Moved> {
    let machine = store::machine::get_for_update(tx, id)?.expect("is there");
    store::machine::set_phase(tx, &machine, &to_phase(&machine, to), &phase_setter(), no_guard)
}

pub fn make_steps(names: &[&str]) -> Vec<Step> {
    let step = |name: &&str| Step {
        name: (*name).to_owned(),
        timeout_seconds: Some(60),
        max_retries: None,
        kind: StepKind::Reboot { mode: RebootMode::Bmc },
    };
    names.iter().map(step).collect()
}

pub fn requested(machine: &str, request_id: &str, steps: &[&str]) -> RunChange {
    RunChange::Requested {
        machine_id: machine_id(machine),
        customer_id: String::new(),
        request_id: request_id.to_owned(),
        run_type: Some(RunType::Reboot),
        plan_id: "default-reboot".to_owned(),
        steps: steps.iter().map(|s| (*s).to_owned()).collect(),
        parameters: BTreeMap::from([("mode".to_owned(), "bmc".to_owned())]),
    }
}

pub fn started(step: &str) -> RunChange {
    RunChange::StepStarted { step: step.to_owned() }
}

pub fn succeeded(step: &str) -> RunChange {
    RunChange::StepSucceeded { step: step.to_owned(), message: format!("{step} is done") }
}

pub fn insert_execution(tx: &mut Tx<'_>, id: &ExecutionId, subject: &str) -> TxResult<()> {
    let machine = machine_id("m");
    let new = NewExecution {
        id,
        workflow: "run",
        workflow_version: 1,
        subject,
        machine_id: &machine,
        start_within: Duration::from_secs(3600),
    };
    execution::insert(tx, &new)
}
