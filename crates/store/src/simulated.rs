//! The database in memory, on the caller's thread; and, for a simulation of several processes, the ways by
//! which they reach it, which can be slow, break, or lose an answer. No configuration leads here.
//!
//! What fails, fails beneath the real writer: a batch meets the same errors at the same places as on a
//! database that is away, full, in conflict, or silent after a commit.

use crate::ambient::Ambient;
use crate::db::{Closing, Connection, Dialect, Row, Val};
use crate::error::DbError;
use crate::signal::Signals;
use crate::writer::{Job, run_batch};
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What becomes of one batch, or one read, at the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Through,
    /// The connection turns out to have been closed; it is opened again.
    Broken,
    /// The database is away from this statement on; nothing is committed.
    Away {
        after: u32,
    },
    /// No space is left to commit.
    Full,
    /// Another process is in the way, once.
    Conflict,
    /// The commit is sent and never arrives.
    CommitLost,
    /// The commit goes through, and its answer is lost.
    AnswerLost,
}

/// A simulated process's way to the database. A process that is stopped, or gone, does not get there.
pub trait Way: Send + Sync + 'static {
    /// Until it is there, and what becomes of it.
    fn there(&self, writes: bool) -> BoxFuture<'static, Fate>;
    /// Until the answer is back.
    fn back(&self) -> BoxFuture<'static, ()>;
}

type Shared = Arc<Mutex<Box<dyn Connection>>>;

pub(crate) struct Inline {
    connection: Shared,
    by: Option<Process>,
}

/// A simulated process, as far as the database knows it.
struct Process {
    way: Arc<dyn Way>,
    queue: Arc<Mutex<Queue>>,
}

/// What waits for the writer of one simulated process.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<dyn Job>>,
    writing: bool,
}

/// As few as this, so that some batches leave others waiting.
const BATCH: usize = 8;

impl Inline {
    pub fn new(connection: Box<dyn Connection>) -> Self {
        Self { connection: Arc::new(Mutex::new(connection)), by: None }
    }

    /// The same database, reached by another way.
    pub fn by(&self, way: Arc<dyn Way>) -> Self {
        Self { connection: self.connection.clone(), by: Some(Process { way, queue: Arc::default() }) }
    }

    /// Runs the job now, or leaves it to the writer: then it is done even if the caller does not wait.
    pub fn write(&self, job: Box<dyn Job>, ambient: &Arc<dyn Ambient>, signals: &Arc<Signals>) {
        let Some(Process { way, queue }) = &self.by else {
            run_batch(lock(&self.connection).as_mut(), ambient.as_ref(), signals, vec![job]);
            return;
        };
        let mut waiting = lock(queue);
        waiting.waiting.push_back(job);
        if !std::mem::replace(&mut waiting.writing, true) {
            let (way, queue, connection) = (way.clone(), queue.clone(), self.connection.clone());
            let (ambient, signals) = (ambient.clone(), signals.clone());
            tokio::spawn(async move {
                while let Some(batch) = next_batch(way.as_ref(), &queue).await {
                    let (fate, jobs) = batch;
                    let mut connection = lock(&connection);
                    run_batch(&mut Fated::new(connection.as_mut(), fate), ambient.as_ref(), &signals, jobs);
                }
            });
        }
    }

    /// Until a read is there; then `read` is run.
    pub async fn read<T>(&self, read: impl FnOnce(&mut dyn Connection) -> T) -> T {
        let fate = match &self.by {
            Some(process) => process.way.there(false).await,
            None => Fate::Through,
        };
        let answer = {
            let mut connection = lock(&self.connection);
            connection.only_read(true);
            let answer = read(&mut Fated::new(connection.as_mut(), fate));
            connection.only_read(false);
            answer
        };
        self.back().await;
        answer
    }

    pub async fn back(&self) {
        if let Some(process) = &self.by {
            process.way.back().await;
        }
    }
}

async fn next_batch(way: &dyn Way, queue: &Mutex<Queue>) -> Option<(Fate, Vec<Box<dyn Job>>)> {
    let fate = way.there(true).await;
    let mut queue = lock(queue);
    let many = queue.waiting.len().min(BATCH);
    let jobs: Vec<_> = queue.waiting.drain(..many).collect();
    queue.writing = !jobs.is_empty();
    queue.writing.then_some((fate, jobs))
}

/// A connection that meets its fate, once.
struct Fated<'a> {
    inner: &'a mut dyn Connection,
    fate: Fate,
    broke: bool,
    statements: u32,
}

impl<'a> Fated<'a> {
    fn new(inner: &'a mut dyn Connection, fate: Fate) -> Self {
        Self { inner, fate, broke: false, statements: 0 }
    }

    fn statement(&mut self) -> Result<(), DbError> {
        self.broke = false;
        match self.fate {
            Fate::Broken => {
                self.broke = true;
                self.fate = Fate::Through;
                Err(DbError::Away("simulated: the connection was closed".into()))
            }
            Fate::Away { after } if self.statements >= after => {
                Err(DbError::Away("simulated: the database is away".into()))
            }
            _ => {
                self.statements += 1;
                Ok(())
            }
        }
    }
}

impl Connection for Fated<'_> {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn exec(&mut self, sql: &str, params: &[Val]) -> Result<u64, DbError> {
        self.statement()?;
        self.inner.exec(sql, params)
    }

    fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        self.statement()?;
        self.inner.rows(sql, params)
    }

    fn first(&mut self, sql: &str, params: &[Val], show: &mut dyn FnMut(&Row<'_>)) -> Result<(), DbError> {
        self.statement()?;
        self.inner.first(sql, params, show)
    }

    fn begin_write(&mut self) -> Result<(), DbError> {
        self.statement()?;
        self.inner.begin_write()
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        self.statement()?;
        self.inner.begin_read()
    }

    fn savepoint(&mut self) -> Result<(), DbError> {
        self.statement()?;
        self.inner.savepoint()
    }

    fn rollback_to(&mut self) -> Result<(), DbError> {
        self.statement()?;
        self.inner.rollback_to()
    }

    fn release(&mut self) -> Result<(), DbError> {
        self.statement()?;
        self.inner.release()
    }

    fn commit(&mut self, closing: &Closing) -> Result<(), DbError> {
        let fate = std::mem::replace(&mut self.fate, Fate::Through);
        let lost = || DbError::CommitUnknown("simulated: no answer to the commit".into());
        let refused = match fate {
            Fate::Through | Fate::Broken => return self.inner.commit(closing),
            Fate::AnswerLost => return self.inner.commit(closing).and(Err(lost())),
            Fate::CommitLost => lost(),
            Fate::Away { .. } => DbError::Away("simulated: the database is away".into()),
            Fate::Full => DbError::Full("simulated: no space left".into()),
            Fate::Conflict => DbError::Conflict("simulated: another process was faster".into()),
        };
        self.inner.rollback();
        Err(refused)
    }

    fn rollback(&mut self) {
        self.inner.rollback();
    }

    fn broke(&self) -> bool {
        self.broke
    }

    fn give_way(&mut self, collisions: u32) {
        self.inner.give_way(collisions);
    }

    fn only_read(&mut self, on: bool) {
        self.inner.only_read(on);
    }

    fn prepare(&mut self, sql: &str) -> Result<(), DbError> {
        self.inner.prepare(sql)
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
