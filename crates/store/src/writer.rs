//! A writer: takes the waiting closures, runs each in a savepoint, commits them together, and only then
//! answers. What conflicts with another process is rolled back whole and run again one by one.

use crate::ambient::Ambient;
use crate::db::{Closing, Connection, NewLogRow};
use crate::error::{DbError, DbFailure, Failure, TxResult};
use crate::queue::Queue;
use crate::sight;
use crate::signal::{Signal, Signals};
use crate::tx::Tx;
use domain::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A closure that waits to be run, and its caller who waits for the answer.
pub(crate) trait Job: Send {
    /// Batches run in key order, so that two processes lock rows in the same order.
    fn key(&self) -> u64;
    /// Whether anybody still waits for it.
    fn wanted(&self) -> bool;
    fn run(&mut self, tx: &mut Tx<'_>) -> TxResult<()>;
    fn refuse(&mut self, error: Error);
    /// Sends the answer: what the last run left, if the commit went through.
    fn finish(self: Box<Self>);
}

pub(crate) struct WriteJob<T, F> {
    pub key: u64,
    pub f: F,
    pub result: Option<Result<T, Error>>,
    pub answer: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Job for WriteJob<T, F>
where
    T: Send,
    F: Fn(&mut Tx<'_>) -> TxResult<T> + Send,
{
    fn key(&self) -> u64 {
        self.key
    }

    fn wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> TxResult<()> {
        self.result = None;
        let value = match catch_unwind(AssertUnwindSafe(|| (self.f)(tx))) {
            Ok(result) => result?,
            Err(_) => return Err(Failure::Db(DbFailure(DbError::Defect("an operation panicked".into())))),
        };
        self.result = Some(Ok(value));
        Ok(())
    }

    fn refuse(&mut self, error: Error) {
        self.result = Some(Err(error));
    }

    fn finish(self: Box<Self>) {
        let result = self.result.unwrap_or_else(|| Err(Error::internal("the store gave no answer")));
        // the caller may have gone; its change is committed all the same
        drop(self.answer.send(result));
    }
}

/// How often a batch that conflicts is run again, one closure at a time.
const RETRIES_MAX: u32 = 5;

pub(crate) fn run_writer(
    mut connection: Box<dyn Connection>,
    queue: &Queue<Box<dyn Job>>,
    ambient: &Arc<dyn Ambient>,
    signals: &Signals,
    batch_max: usize,
) {
    let mut away = false;
    while let Some(mut batch) = queue.take(batch_max) {
        // an outage leaves the queue full of what was given up: who asks now must not wait behind that
        if away {
            batch.retain(|job| job.wanted());
        }
        if !batch.is_empty() {
            away = !run_batch(connection.as_mut(), ambient.as_ref(), signals, batch);
        }
    }
}

/// Answers everybody in the batch; and whether the database was there.
pub(crate) fn run_batch(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    signals: &Signals,
    mut batch: Vec<Box<dyn Job>>,
) -> bool {
    batch.sort_by_key(|job| job.key());
    let mut outcome = attempt(connection, ambient, signals, &mut batch);
    // that it broke since its last use says nothing about the database, and nothing was committed
    if connection.broke() && matches!(&outcome, Err(Failure::Db(DbFailure(DbError::Away(_))))) {
        outcome = attempt(connection, ambient, signals, &mut batch);
    }
    match outcome {
        Ok(()) => {
            batch.into_iter().for_each(Job::finish);
            true
        }
        Err(e) if e.retry_batch() => {
            connection.give_way(0);
            one_by_one(connection, ambient, signals, batch)
        }
        Err(e) => {
            let there = !is_away(&e);
            refuse(batch, e);
            there
        }
    }
}

/// Whether nobody else would get further now.
fn is_away(failure: &Failure) -> bool {
    matches!(failure, Failure::Db(DbFailure(DbError::Away(_) | DbError::CommitUnknown(_))))
}

fn refuse(batch: impl IntoIterator<Item = Box<dyn Job>>, failure: Failure) {
    let error = failure.into_error();
    for mut job in batch {
        job.refuse(error.clone());
        job.finish();
    }
}

/// Each closure by itself, tried a few times. When the database goes away meanwhile, those who are left hear so
/// at once: each would wait as long again.
fn one_by_one(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    signals: &Signals,
    batch: Vec<Box<dyn Job>>,
) -> bool {
    let mut left = batch.into_iter();
    while let Some(job) = left.next() {
        let mut alone = vec![job];
        match run_alone(connection, ambient, signals, &mut alone) {
            Ok(()) => alone.into_iter().for_each(Job::finish),
            Err(e) => {
                let away = is_away(&e);
                refuse(alone, e);
                if away {
                    let gone = "the database went away while changes were made one by one";
                    refuse(left, Failure::Db(DbFailure(DbError::Away(gone.to_owned()))));
                    return false;
                }
            }
        }
    }
    true
}

fn run_alone(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    signals: &Signals,
    alone: &mut [Box<dyn Job>],
) -> TxResult<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt(connection, ambient, signals, alone) {
            Err(e) if e.retry_batch() && tries < RETRIES_MAX => connection.give_way(tries),
            ended => return ended,
        }
    }
}

/// One transaction over the whole batch. An error means that nothing of it was committed, or that
/// nobody knows ([`DbError::CommitUnknown`]).
fn attempt(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    signals: &Signals,
    batch: &mut [Box<dyn Job>],
) -> TxResult<()> {
    let begun = tokio::time::Instant::now();
    let (log, staged) = in_one_commit(connection, ambient, batch).inspect_err(sight::not_committed)?;
    sight::committed(batch.len(), &log, begun.elapsed());
    signals.deliver(staged, !log.is_empty());
    Ok(())
}

fn in_one_commit(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    batch: &mut [Box<dyn Job>],
) -> TxResult<(Vec<NewLogRow>, Vec<Signal>)> {
    connection.begin_write()?;
    let (closing, staged) = match run_all(connection, ambient, batch) {
        Ok(buffered) => buffered,
        Err(e) => {
            connection.rollback();
            return Err(e);
        }
    };
    connection.commit(&closing)?;
    Ok((closing.log, staged))
}

fn run_all(
    connection: &mut dyn Connection,
    ambient: &dyn Ambient,
    batch: &mut [Box<dyn Job>],
) -> TxResult<(Closing, Vec<Signal>)> {
    let mut tx = Tx::new(connection, ambient.now());
    for job in batch.iter_mut() {
        tx.savepoint()?;
        match tx.operation(|tx| job.run(tx)) {
            Ok(()) => tx.release()?,
            Err(e) => {
                let fatal = e.retry_batch()
                    || matches!(
                        &e,
                        Failure::Db(DbFailure(DbError::Away(_) | DbError::Full(_) | DbError::CommitUnknown(_)))
                    );
                if fatal {
                    return Err(e);
                }
                tx.rollback_to()?;
                job.refuse(e.into_error());
            }
        }
    }
    Ok((std::mem::take(&mut tx.closing), std::mem::take(&mut tx.signals)))
}
