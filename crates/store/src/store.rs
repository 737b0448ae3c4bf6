//! The handle that everybody holds: opens the database, owns the threads, takes closures.

use crate::ambient::Ambient;
use crate::db::Connection;
use crate::error::{DbError, TxResult};
use crate::newest::newest as newest_moment;
use crate::point::{Points, PostgresPoints, SqlitePoints};
use crate::postgres::Postgres;
use crate::queue::Queue;
use crate::schema;
use crate::servers::Newest;
use crate::signal::Signals;
use crate::simulated::{Inline, Way};
use crate::sqlite::Sqlite;
use crate::tx::Tx;
use crate::writer::{Job, WriteJob, run_writer};
use domain::{Error, Reason};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// On whose behalf something is written; each has its share of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller(String);

impl Caller {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn engine() -> Self {
        Self("engine".to_owned())
    }

    pub fn reconciler() -> Self {
        Self("reconciler".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which database.
#[derive(Clone, Debug)]
pub enum Options {
    /// The embedded default: one file, used by one process.
    Sqlite(PathBuf),
    /// In memory, on the caller's thread: deterministic simulation and fast tests. The same code.
    Memory,
    /// Shared by several processes.
    Postgres(Box<tokio_postgres::Config>),
}

/// SQLite commits everything that waits; more would only make the others wait longer.
const SQLITE_BATCH: usize = 1024;
const POSTGRES_BATCH: usize = 64;
const POSTGRES_WRITERS: usize = 2;
/// For the doors; the engine has one of its own, which no client can fill.
const READERS: usize = 2;
const ENGINE_READERS: usize = 1;
/// How long a close waits for what is still in the queues.
const CLOSE_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

type ReadJob = Box<dyn FnOnce(&mut dyn Connection, &dyn Ambient) + Send>;

struct AbandonOnDrop(Arc<Queue<Box<dyn Job>>>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The queues of reads: one for the doors, one for the engine.
#[derive(Clone)]
struct Readers {
    doors: Arc<Queue<ReadJob>>,
    engine: Arc<Queue<ReadJob>>,
}

impl Readers {
    fn close(&self) {
        self.doors.close();
        self.engine.close();
    }
}

enum Mode {
    Threads { writers: Vec<Arc<Queue<Box<dyn Job>>>>, readers: Readers, threads: Mutex<Vec<JoinHandle<()>>> },
    Inline(Inline),
}

#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// Whether this handle reads on the engine's own lane.
    engine: bool,
}

struct Inner {
    ambient: Arc<dyn Ambient>,
    signals: Arc<Signals>,
    mode: Mode,
    /// In memory there is no shorter way.
    points: Option<Points>,
    closed: AtomicBool,
    shared: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Mode::Threads { writers, readers, .. } = &self.mode {
            writers.iter().for_each(|q| q.close());
            readers.close();
        }
    }
}

impl Store {
    /// Opens the database and brings it to this binary's schema. Blocks; called once, at the start.
    pub fn open(options: &Options, ambient: Arc<dyn Ambient>) -> Result<Self, Error> {
        // on a thread of its own: PostgreSQL's small runtime cannot start inside the caller's
        let opened = std::thread::scope(|scope| scope.spawn(|| Self::open_db(options, ambient)).join());
        opened.unwrap_or_else(|_| Err(DbError::Defect("opening panicked".into()))).map_err(|e| match e {
            // what an operator must read is in the text
            DbError::Defect(m) | DbError::Away(m) | DbError::Full(m) | DbError::Timeout(m) | DbError::Conflict(m) => {
                Error::new(Reason::StoreUnavailable, format!("opening the database: {m}"))
            }
            DbError::CommitUnknown(m) => Error::new(Reason::OutcomeUnknown, format!("opening the database: {m}")),
        })
    }

    fn open_db(options: &Options, ambient: Arc<dyn Ambient>) -> Result<Self, DbError> {
        let signals = Arc::new(Signals::new());
        let newest = Newest::default();
        let mut first = connect(options, &newest, false)?;
        schema::migrate(first.as_mut(), ambient.now())?;
        ambient.not_before(newest_moment(first.as_mut())?);
        let (batch, writers, shared, points) = match options {
            Options::Memory => {
                let mode = Mode::Inline(Inline::new(first));
                let inner =
                    Inner { ambient, signals, mode, points: None, closed: AtomicBool::new(false), shared: false };
                return Ok(Self { inner: Arc::new(inner), engine: false });
            }
            Options::Sqlite(path) => (SQLITE_BATCH, 1, false, Points::Sqlite(SqlitePoints::open(path)?)),
            Options::Postgres(config) => {
                let points = PostgresPoints::new(config, newest.clone());
                (POSTGRES_BATCH, POSTGRES_WRITERS, true, Points::Postgres(points))
            }
        };
        let [writes, reads, engine_reads] = domain::metric::LANES;
        let mut threads = Vec::new();
        let mut queues = Vec::new();
        let mut first = Some(first);
        for _ in 0..writers {
            let connection = match first.take() {
                Some(connection) => connection,
                None => connect(options, &newest, false)?,
            };
            let queue: Arc<Queue<Box<dyn Job>>> = Arc::new(Queue::new(writes));
            let (q, a, s) = (queue.clone(), ambient.clone(), signals.clone());
            threads.push(spawn("store-writer", move || {
                // also when it panics: nobody must wait for a writer that is gone
                let abandoned = AbandonOnDrop(q);
                run_writer(connection, &abandoned.0, &a, &s, batch);
            })?);
            queues.push(queue);
        }
        let readers = Readers { doors: Arc::new(Queue::new(reads)), engine: Arc::new(Queue::new(engine_reads)) };
        let lanes =
            std::iter::repeat_n(&readers.doors, READERS).chain(std::iter::repeat_n(&readers.engine, ENGINE_READERS));
        for lane in lanes {
            let mut connection = connect(options, &newest, true)?;
            let (q, a) = (lane.clone(), ambient.clone());
            threads.push(spawn("store-reader", move || {
                while let Some(jobs) = q.take(1) {
                    jobs.into_iter().for_each(|job| job(connection.as_mut(), a.as_ref()));
                }
            })?);
        }
        let mode = Mode::Threads { writers: queues, readers, threads: Mutex::new(threads) };
        let inner = Inner { ambient, signals, mode, points: Some(points), closed: AtomicBool::new(false), shared };
        Ok(Self { inner: Arc::new(inner), engine: false })
    }

    /// The same store, read on the engine's own lane: a flood of clients' reads does not hold it up.
    #[must_use]
    pub fn for_engine(&self) -> Self {
        Self { inner: self.inner.clone(), engine: true }
    }

    /// The store as another simulated process has it: the same database in memory, shared, with a clock, a
    /// way to it and signals of its own.
    pub fn simulated(&self, ambient: Arc<dyn Ambient>, way: Arc<dyn Way>) -> Result<Self, Error> {
        let Mode::Inline(inline) = &self.inner.mode else {
            return Err(Error::internal("only a store in memory can be shared by simulated processes"));
        };
        let mode = Mode::Inline(inline.by(way));
        let signals = Arc::new(Signals::new());
        let inner = Inner { ambient, signals, mode, points: None, closed: AtomicBool::new(false), shared: true };
        Ok(Self { inner: Arc::new(inner), engine: false })
    }

    pub fn ambient(&self) -> &Arc<dyn Ambient> {
        &self.inner.ambient
    }

    pub fn signals(&self) -> &Signals {
        &self.inner.signals
    }

    /// The short way to what a key names; none in memory, and none in a store that is closed.
    pub(crate) fn points(&self) -> Option<&Points> {
        self.inner.points.as_ref().filter(|_| !self.inner.closed.load(Ordering::Acquire))
    }

    /// Whether other processes may write to the same database.
    pub fn is_shared(&self) -> bool {
        self.inner.shared
    }

    /// Runs a closure in a transaction of its own, committed together with others, and answers when it
    /// is durable. `key` names the entity it writes: closures of one key run in the order they came.
    pub async fn write<T, F>(&self, caller: &Caller, key: &str, f: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    {
        let key = hash(key);
        let (answer, answered) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(WriteJob { key, f, result: None, answer });
        match &self.inner.mode {
            Mode::Inline(inline) => {
                inline.write(job, &self.inner.ambient, &self.inner.signals);
                let result = answered.await.unwrap_or_else(|_| Err(stopped()));
                inline.back().await;
                return result;
            }
            Mode::Threads { writers, .. } => {
                let n = usize::try_from(key % writers.len().max(1) as u64).unwrap_or(0);
                let Some(queue) = writers.get(n) else { return Err(stopped()) };
                queue.push(caller.as_str(), job)?;
            }
        }
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Runs a closure that only reads, one statement at a time.
    pub async fn read<T, F>(&self, f: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    {
        self.run_read(f, false).await
    }

    /// Runs a closure that reads several things as they are at one moment.
    pub async fn snapshot<T, F>(&self, f: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    {
        self.run_read(f, true).await
    }

    async fn run_read<T, F>(&self, f: F, snapshot: bool) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    {
        match &self.inner.mode {
            Mode::Inline(inline) => {
                let ambient = self.inner.ambient.as_ref();
                inline.read(|connection| read_now(connection, ambient, f, snapshot)).await
            }
            Mode::Threads { readers, .. } => {
                let (answer, answered) = oneshot::channel();
                let job: ReadJob = Box::new(move |connection, ambient| {
                    // who has given up waiting is not read for
                    if !answer.is_closed() {
                        drop(answer.send(read_now(connection, ambient, f, snapshot)));
                    }
                });
                let lane = if self.engine { &readers.engine } else { &readers.doors };
                lane.push("readers", job)?;
                answered.await.unwrap_or_else(|_| Err(stopped()))
            }
        }
    }

    /// What waits, by lane.
    pub(crate) fn waiting(&self) -> [usize; 3] {
        match &self.inner.mode {
            Mode::Threads { writers, readers, .. } => {
                [writers.iter().map(|q| q.len()).sum(), readers.doors.len(), readers.engine.len()]
            }
            Mode::Inline(_) => [0; 3],
        }
    }

    /// Finishes what waits, then ends the threads. Blocks.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        if let Mode::Threads { writers, readers, threads } = &self.inner.mode {
            writers.iter().for_each(|q| q.close());
            readers.close();
            // who follows the log learns of it at once
            self.inner.signals.deliver(Vec::new(), true);
            let deadline = tokio::time::Instant::now() + CLOSE_WITHIN;
            for thread in lock(threads).drain(..) {
                while !thread.is_finished() && tokio::time::Instant::now() < deadline {
                    #[allow(clippy::disallowed_methods)] // on a thread of its own, at the end of the process
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                if !thread.is_finished() {
                    tracing::warn!("the database does not answer: ending without waiting for it");
                } else if thread.join().is_err() {
                    tracing::error!("a thread of the store had panicked");
                }
            }
        }
    }
}

pub(crate) fn connect(options: &Options, newest: &Newest, read_only: bool) -> Result<Box<dyn Connection>, DbError> {
    Ok(match options {
        Options::Sqlite(path) if read_only => Box::new(Sqlite::open_read_only(path)?),
        Options::Sqlite(path) => Box::new(Sqlite::open(path)?),
        Options::Memory => Box::new(Sqlite::in_memory()?),
        Options::Postgres(config) => Box::new(Postgres::new(config, newest.clone(), read_only)?),
    })
}

fn read_now<T>(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    f: impl FnOnce(&mut Tx<'_>) -> TxResult<T>,
    snapshot: bool,
) -> Result<T, Error> {
    if snapshot {
        connection.begin_read().map_err(DbError::into_error)?;
    }
    let result = {
        let mut tx = Tx::new(connection, ambient.now());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut tx)))
    };
    if snapshot {
        connection.rollback();
    }
    match result {
        Ok(result) => result.map_err(crate::error::Failure::into_error),
        Err(_) => Err(Error::internal("a read panicked; the server's log has the details")),
    }
}

fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DbError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(f)
        .map_err(|e| DbError::Away(format!("starting a thread: {e}")))
}

fn stopped() -> Error {
    Error::new(Reason::ShuttingDown, "the store is closed; try again in a moment")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
