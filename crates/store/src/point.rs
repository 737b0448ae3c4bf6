//! A read by key: one statement that finds at most one row. It is most of what a control plane is asked, so
//! it takes the shortest way: no queue and no other thread. SQLite is read where the caller stands, which
//! takes microseconds; PostgreSQL is asked over one connection on which such reads follow each other without
//! waiting for the answers before them.

use crate::db::{Connection, Row, Val};
use crate::error::DbError;
use crate::place::{self, File};
use crate::postgres;
use crate::servers::{Newest, Servers};
use crate::sqlite::Sqlite;
use domain::{Error, Timestamp};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;
use tokio_postgres::{Client, Config, Statement};

/// One statement, its values, and how its row is read as of a moment.
pub struct Point<T> {
    pub(crate) sql: &'static str,
    pub(crate) params: Vec<Val>,
    pub(crate) read: fn(&Row<'_>, Timestamp) -> Result<T, DbError>,
}

impl<T> Point<T> {
    pub(crate) fn run(&self, connection: &mut dyn Connection, now: Timestamp) -> Result<Option<T>, DbError> {
        let mut found = None;
        connection.first(self.sql, &self.params, &mut |row| found = Some((self.read)(row, now)))?;
        found.transpose()
    }
}

/// Where such reads are made.
pub(crate) enum Points {
    Sqlite(SqlitePoints),
    Postgres(PostgresPoints),
}

/// So many can read at the same time; who finds none takes the longer way.
const SQLITE_CONNECTIONS: usize = 4;
/// Of each: the upper levels of every tree, and some of the leaves.
const SQLITE_CACHE_KIB: u32 = 4 * 1024;

pub(crate) struct SqlitePoints {
    path: PathBuf,
    /// The file that was opened: another one of its name is not ours to read.
    file: File,
    idle: Mutex<Vec<Sqlite>>,
}

impl SqlitePoints {
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let idle = (0..SQLITE_CONNECTIONS).map(|_| connect(path)).collect::<Result<_, _>>()?;
        let file = place::file(path).map_err(|e| DbError::Away(format!("looking at {}: {e}", path.display())))?;
        Ok(Self { path: path.to_owned(), file, idle: Mutex::new(idle) })
    }

    /// `None`: all connections are in use, or this one must wait for the file.
    pub fn read<T>(&self, point: &Point<T>, now: Timestamp) -> Option<Result<Option<T>, DbError>> {
        let mut connection = lock(&self.idle).pop()?;
        let found = point.run(&mut connection, now);
        // one that met an error may go on meeting it; a lock is none
        if !matches!(&found, Ok(_) | Err(DbError::Conflict(_)))
            && place::file(&self.path).is_ok_and(|file| file == self.file)
            && let Ok(fresh) = connect(&self.path)
        {
            connection = fresh;
        }
        lock(&self.idle).push(connection);
        match found {
            Err(DbError::Conflict(_)) => None,
            found => Some(found),
        }
    }
}

fn connect(path: &Path) -> Result<Sqlite, DbError> {
    Sqlite::open_for_points(path, SQLITE_CACHE_KIB)
}

/// One connection, driven by the runtime of whoever reads.
pub(crate) struct PostgresPoints(tokio::sync::Mutex<Lines>);

struct Lines {
    servers: Servers,
    line: Option<Arc<Line>>,
    /// When connecting last failed, and why.
    failed: Option<(Instant, DbError)>,
}

struct Line {
    client: Client,
    timeline: u32,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl PostgresPoints {
    pub fn new(config: &Config, newest: Newest) -> Self {
        Self(tokio::sync::Mutex::new(Lines { servers: Servers::new(config, newest), line: None, failed: None }))
    }

    pub async fn read<T>(&self, point: &Point<T>, now: impl Fn() -> Timestamp) -> Result<Option<T>, DbError> {
        let line = self.line(None).await?;
        let rows = match self.over(&line, point).await {
            // that it broke since its last use says nothing about the database: to read again is safe
            Err(DbError::Away(_)) if line.client.is_closed() => {
                let line = self.line(Some(&line)).await?;
                self.over(&line, point).await
            }
            rows => rows,
        };
        rows?.first().map(|row| (point.read)(&Row::Postgres(row), now())).transpose()
    }

    /// A line on which something went wrong is of no use to anybody: it is silent, or what it has prepared is old.
    async fn over<T>(&self, line: &Arc<Line>, point: &Point<T>) -> Result<Vec<tokio_postgres::Row>, DbError> {
        let rows = postgres::within(line.read(point)).await;
        if rows.is_err() {
            let mut lines = self.0.lock().await;
            if lines.line.as_ref().is_some_and(|there| Arc::ptr_eq(there, line)) {
                lines.line = None;
            }
        }
        rows
    }

    /// The connection, made anew where it is closed, found broken, or to a server that was replaced.
    async fn line(&self, broken: Option<&Arc<Line>>) -> Result<Arc<Line>, DbError> {
        let asked = Instant::now();
        let mut lines = self.0.lock().await;
        let good = |line: &&Arc<Line>| {
            !line.client.is_closed()
                && !lines.servers.moved_past(line.timeline)
                && broken.is_none_or(|broken| !Arc::ptr_eq(broken, line))
        };
        if let Some(line) = lines.line.as_ref().filter(good) {
            return Ok(line.clone());
        }
        // those who waited for an attempt that failed do not each make one more
        if let Some((_, problem)) = lines.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(problem.clone());
        }
        let connected = match lines.servers.connect(&postgres::settings()).await {
            Ok(connected) => connected,
            Err(problem) => {
                lines.failed = Some((Instant::now(), problem.clone()));
                return Err(problem);
            }
        };
        let line =
            Arc::new(Line { client: connected.client, timeline: connected.timeline, statements: Mutex::default() });
        lines.line = Some(line.clone());
        Ok(line)
    }
}

impl Line {
    async fn read<T>(&self, point: &Point<T>) -> Result<Vec<tokio_postgres::Row>, DbError> {
        let statement = self.statement(point.sql).await?;
        postgres::query(&self.client, &statement, &point.params).await
    }

    async fn statement(&self, sql: &'static str) -> Result<Statement, DbError> {
        let known = lock(&self.statements).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await.map_err(|e| postgres::classify(&e))?;
        lock(&self.statements).insert(sql, statement.clone());
        Ok(statement)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl crate::Store {
    /// Reads what a key names, if it is there, as it is now.
    pub async fn point<T: Send + 'static>(&self, point: Point<T>) -> Result<Option<T>, Error> {
        let found = match self.points() {
            Some(Points::Postgres(points)) => Some(points.read(&point, || self.ambient().now()).await),
            Some(Points::Sqlite(points)) => points.read(&point, self.ambient().now()),
            None => None,
        };
        match found {
            Some(found) => found.map_err(DbError::into_error),
            None => self.read(move |tx| tx.point(&point)).await,
        }
    }
}
