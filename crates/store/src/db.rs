//! The little that the two databases have in common: values, rows, and one connection.

use crate::audit;
use crate::error::DbError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Val {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<i64> for Val {
    fn from(v: i64) -> Self {
        Val::Int(v)
    }
}

impl From<u64> for Val {
    fn from(v: u64) -> Self {
        Val::Int(i64::try_from(v).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Val {
    fn from(v: u32) -> Self {
        Val::Int(v.into())
    }
}

impl From<usize> for Val {
    fn from(v: usize) -> Self {
        Val::Int(i64::try_from(v).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Val {
    fn from(v: bool) -> Self {
        Val::Int(v.into())
    }
}

impl From<&str> for Val {
    fn from(v: &str) -> Self {
        Val::Text(v.to_owned())
    }
}

impl From<String> for Val {
    fn from(v: String) -> Self {
        Val::Text(v)
    }
}

impl From<&String> for Val {
    fn from(v: &String) -> Self {
        Val::Text(v.clone())
    }
}

impl From<Vec<u8>> for Val {
    fn from(v: Vec<u8>) -> Self {
        Val::Bytes(v)
    }
}

impl From<domain::Timestamp> for Val {
    fn from(v: domain::Timestamp) -> Self {
        Val::Int(v.micros())
    }
}

impl<T: Into<Val>> From<Option<T>> for Val {
    fn from(v: Option<T>) -> Self {
        v.map_or(Val::Null, Into::into)
    }
}

/// `params![a, b]`: the values of a statement, in the order of `$1, $2, …`.
macro_rules! params {
    ($($v:expr),* $(,)?) => { &[$($crate::db::Val::from($v)),*] };
}
pub(crate) use params;

/// One row; columns are read in order. Kept, or where the database has it while it is looked at.
pub(crate) enum Row<'a> {
    Kept(Vec<Val>),
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

/// A value where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    Null,
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl Row<'_> {
    fn seen(&self, column: usize) -> Result<Seen<'_>, DbError> {
        match self {
            Row::Kept(values) => match values.get(column) {
                Some(Val::Null) => Ok(Seen::Null),
                Some(Val::Int(v)) => Ok(Seen::Int(*v)),
                Some(Val::Text(v)) => Ok(Seen::Text(v)),
                Some(Val::Bytes(v)) => Ok(Seen::Bytes(v)),
                None => Err(DbError::Defect(format!("there is no column {column}"))),
            },
            Row::Sqlite(row) => crate::sqlite::seen(row, column),
            Row::Postgres(row) => crate::postgres::seen(row, column),
        }
    }

    /// The same, to be kept.
    pub fn keep(&self, columns: usize) -> Result<Row<'static>, DbError> {
        let keep = |column| {
            Ok(match self.seen(column)? {
                Seen::Null => Val::Null,
                Seen::Int(v) => Val::Int(v),
                Seen::Text(v) => Val::Text(v.to_owned()),
                Seen::Bytes(v) => Val::Bytes(v.to_owned()),
            })
        };
        Ok(Row::Kept((0..columns).map(keep).collect::<Result<_, _>>()?))
    }

    fn wrong(column: usize, seen: Seen<'_>, wanted: &str) -> DbError {
        DbError::Defect(format!("column {column} is {seen:?}, not {wanted}"))
    }

    pub fn int(&self, column: usize) -> Result<i64, DbError> {
        match self.seen(column)? {
            Seen::Int(v) => Ok(v),
            other => Err(Self::wrong(column, other, "a number")),
        }
    }

    pub fn uint(&self, column: usize) -> Result<u64, DbError> {
        let v = self.int(column)?;
        u64::try_from(v).map_err(|_| Self::wrong(column, Seen::Int(v), "a natural number"))
    }

    pub fn text(&self, column: usize) -> Result<&str, DbError> {
        match self.seen(column)? {
            Seen::Text(v) => Ok(v),
            other => Err(Self::wrong(column, other, "a text")),
        }
    }

    pub fn string(&self, column: usize) -> Result<String, DbError> {
        self.text(column).map(str::to_owned)
    }

    pub fn bytes(&self, column: usize) -> Result<&[u8], DbError> {
        match self.seen(column)? {
            Seen::Bytes(v) => Ok(v),
            other => Err(Self::wrong(column, other, "bytes")),
        }
    }

    pub fn maybe<T>(
        &self,
        column: usize,
        get: impl Fn(&Self, usize) -> Result<T, DbError>,
    ) -> Result<Option<T>, DbError> {
        match self.seen(column)? {
            Seen::Null => Ok(None),
            Seen::Int(_) | Seen::Text(_) | Seen::Bytes(_) => get(self, column).map(Some),
        }
    }

    pub fn time(&self, column: usize) -> Result<domain::Timestamp, DbError> {
        self.int(column).map(domain::Timestamp::from_micros)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// A statement whose text differs between the databases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

impl Pair {
    pub const fn get(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Sqlite => self.sqlite,
            Dialect::Postgres => self.postgres,
        }
    }
}

/// A log row before it has its sequence number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewLogRow {
    pub at: i64,
    pub entity_kind: &'static str,
    pub entity_id: String,
    pub subject: String,
    pub customer_id: String,
    /// Empty: it was made.
    pub from_state: &'static str,
    pub to_state: &'static str,
    pub version: u64,
    pub trigger: &'static str,
    pub owner: &'static str,
    pub actor: String,
    pub comment: String,
    pub metadata: String,
}

/// What a transaction writes last, all of a batch together.
#[derive(Default)]
pub(crate) struct Closing {
    pub log: Vec<NewLogRow>,
    /// Each as of the moment it has.
    pub audit: Vec<audit::Entry>,
}

/// One connection of one of the store's threads.
pub(crate) trait Connection: Send {
    fn dialect(&self) -> Dialect;
    fn exec(&mut self, sql: &str, params: &[Val]) -> Result<u64, DbError>;
    fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError>;
    /// Shows the first row, if there is one, where it lies.
    fn first(&mut self, sql: &str, params: &[Val], show: &mut dyn FnMut(&Row<'_>)) -> Result<(), DbError>;
    /// Runs the first statement for what it locks and answers with the rows of the second, which takes the
    /// same values and sees what was there when the lock was got. One round trip.
    fn rows_after(&mut self, lock: &str, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        self.rows(lock, params)?;
        self.rows(sql, params)
    }
    /// Opens the transaction of a batch (again connecting, if the connection was lost).
    fn begin_write(&mut self) -> Result<(), DbError>;
    /// Opens a snapshot for reading.
    fn begin_read(&mut self) -> Result<(), DbError>;
    fn savepoint(&mut self) -> Result<(), DbError>;
    fn rollback_to(&mut self) -> Result<(), DbError>;
    fn release(&mut self) -> Result<(), DbError>;
    /// Numbers and writes the log rows, then commits: sequence order is commit order.
    fn commit(&mut self, closing: &Closing) -> Result<(), DbError>;
    fn rollback(&mut self);
    /// Whether the last failure was that the connection had been closed.
    fn broke(&self) -> bool {
        false
    }
    /// Lets a rival go first after a collision: waits for a random while, longer each time.
    fn give_way(&mut self, collisions: u32);
    /// Refuses to write while this is on, where one connection serves readers and writers.
    fn only_read(&mut self, on: bool);
    /// Checks that the statement is valid, without running it.
    fn prepare(&mut self, sql: &str) -> Result<(), DbError>;
}
