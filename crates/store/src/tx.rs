//! An open transaction as an operation sees it: statements within a budget, buffered log rows, and
//! signals that are delivered only if it commits.

use crate::db::{Closing, Connection, Dialect, Pair, Row, Val};
use crate::error::{DbError, TxResult};
use crate::point::Point;
use crate::signal::Signal;
use domain::Timestamp;

/// Statements one closure may run. An operation that needs more is written wrongly.
const STATEMENTS_MAX: usize = 2_000;

pub struct Tx<'a> {
    connection: &'a mut dyn Connection,
    now: Timestamp,
    statements: usize,
    pub(crate) closing: Closing,
    pub(crate) signals: Vec<Signal>,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(connection: &'a mut dyn Connection, now: Timestamp) -> Self {
        Self { connection, now, statements: 0, closing: Closing::default(), signals: Vec::new() }
    }

    /// The time of this transaction, the same for everything in it.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Stages what must follow the commit.
    pub fn signal(&mut self, signal: Signal) {
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.connection.dialect()
    }

    fn count(&mut self) -> Result<(), DbError> {
        self.statements += 1;
        if self.statements > STATEMENTS_MAX {
            return Err(DbError::Defect(format!("a transaction ran more than {STATEMENTS_MAX} statements")));
        }
        Ok(())
    }

    pub(crate) fn exec(&mut self, sql: &str, params: &[Val]) -> Result<u64, DbError> {
        self.count()?;
        self.connection.exec(sql, params)
    }

    pub(crate) fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        self.count()?;
        self.connection.rows(sql, params)
    }

    /// What a key names, as this transaction sees it.
    pub fn point<T>(&mut self, point: &Point<T>) -> TxResult<Option<T>> {
        self.count()?;
        Ok(point.run(self.connection, self.now)?)
    }

    /// What a key names, as it is once its row is locked. `lock` takes the same values.
    pub(crate) fn locked<T>(&mut self, lock: Pair, point: &Point<T>) -> TxResult<Option<T>> {
        self.count()?;
        match self.dialect() {
            // there is one writer, and it is us
            Dialect::Sqlite => Ok(point.run(self.connection, self.now)?),
            Dialect::Postgres => {
                let rows = self.connection.rows_after(lock.postgres, point.sql, &point.params)?;
                Ok(rows.first().map(|row| (point.read)(row, self.now)).transpose()?)
            }
        }
    }

    pub(crate) fn pair(&mut self, pair: Pair, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        let sql = pair.get(self.dialect());
        self.rows(sql, params)
    }

    /// The only row, if there is one.
    pub(crate) fn row(&mut self, sql: &str, params: &[Val]) -> Result<Option<Row<'static>>, DbError> {
        Ok(self.rows(sql, params)?.into_iter().next())
    }

    pub(crate) fn savepoint(&mut self) -> Result<(), DbError> {
        self.connection.savepoint()
    }

    pub(crate) fn release(&mut self) -> Result<(), DbError> {
        self.connection.release()
    }

    pub(crate) fn rollback_to(&mut self) -> Result<(), DbError> {
        self.connection.rollback_to()
    }

    /// Runs one operation with a fresh budget; what it buffered is dropped if it fails.
    pub(crate) fn operation<T>(&mut self, f: impl FnOnce(&mut Self) -> TxResult<T>) -> TxResult<T> {
        let (log, audit, signals) = (self.closing.log.len(), self.closing.audit.len(), self.signals.len());
        self.statements = 0;
        let result = f(self);
        if result.is_err() {
            self.closing.log.truncate(log);
            self.closing.audit.truncate(audit);
            self.signals.truncate(signals);
        }
        result
    }
}
