//! SQLite beneath the contract: the embedded default. WAL, and `synchronous=FULL`: an answer means disk.

use crate::db::{Connection, Dialect, NewLogRow, Row, Val};
use crate::error::DbError;
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{ErrorCode, OpenFlags, ToSql};
use std::collections::HashMap;
use std::path::Path;

pub(crate) struct Sqlite {
    connection: rusqlite::Connection,
    /// `$1` rewritten to `?1`: SQLite numbers `$n` by first appearance, not by name.
    texts: HashMap<String, String>,
    only_read: bool,
}

/// Prepared statements kept ready. Lists with filters make new texts; the oldest go first.
const STATEMENTS_CACHED: usize = 256;
const TEXTS_CACHED: usize = 1024;

impl Sqlite {
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let connection = rusqlite::Connection::open(path).map_err(|e| opening(path, &e))?;
        Self::configure(connection)
    }

    pub fn open_read_only(path: &Path) -> Result<Self, DbError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(path, flags).map_err(|e| opening(path, &e))?;
        Self::ready(connection)
    }

    pub fn in_memory() -> Result<Self, DbError> {
        Self::configure(rusqlite::Connection::open_in_memory().map_err(|e| classify(&e))?)
    }

    fn configure(connection: rusqlite::Connection) -> Result<Self, DbError> {
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;",
            )
            .map_err(|e| classify(&e))?;
        Self::ready(connection)
    }

    fn ready(connection: rusqlite::Connection) -> Result<Self, DbError> {
        // a plan never depends on what is bound; else statements are parsed anew each time a LIMIT is bound
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(|e| classify(&e))?;
        connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(|e| classify(&e))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
        Ok(Self { connection, texts: HashMap::new(), only_read: false })
    }

    pub fn raw(&self) -> &rusqlite::Connection {
        &self.connection
    }

    fn text(&mut self, sql: &str) -> String {
        if let Some(text) = self.texts.get(sql) {
            return text.clone();
        }
        if self.texts.len() >= TEXTS_CACHED {
            self.texts.clear();
        }
        let text = sql.replace('$', "?");
        self.texts.insert(sql.to_owned(), text.clone());
        text
    }

    fn batch(&mut self, sql: &str) -> Result<(), DbError> {
        self.connection.prepare_cached(sql).and_then(|mut s| s.execute([])).map(drop).map_err(|e| classify(&e))
    }
}

impl ToSql for Val {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Val::Null => ToSqlOutput::Owned(Value::Null),
            Val::Int(v) => ToSqlOutput::Owned(Value::Integer(*v)),
            Val::Text(v) => ToSqlOutput::Borrowed(ValueRef::Text(v.as_bytes())),
            Val::Bytes(v) => ToSqlOutput::Borrowed(ValueRef::Blob(v)),
        })
    }
}

fn check_may_run(statement: &rusqlite::Statement<'_>, only_read: bool) -> Result<(), DbError> {
    if only_read && !statement.readonly() {
        return Err(DbError::Defect("a read tried to write; use Store::write".to_owned()));
    }
    Ok(())
}

fn value(v: ValueRef<'_>) -> Result<Val, DbError> {
    Ok(match v {
        ValueRef::Null => Val::Null,
        ValueRef::Integer(v) => Val::Int(v),
        ValueRef::Real(v) => return Err(DbError::Defect(format!("a real number {v} where none is stored"))),
        ValueRef::Text(v) => Val::Text(String::from_utf8(v.to_vec()).map_err(|e| DbError::Defect(e.to_string()))?),
        ValueRef::Blob(v) => Val::Bytes(v.to_vec()),
    })
}

fn opening(path: &Path, e: &rusqlite::Error) -> DbError {
    DbError::Away(format!("opening {}: {e}", path.display()))
}

pub(crate) fn classify(e: &rusqlite::Error) -> DbError {
    let text = e.to_string();
    match e.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => DbError::Full(text),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DbError::Conflict(text),
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::PermissionDenied
            | ErrorCode::OutOfMemory,
        ) => DbError::Away(text),
        Some(ErrorCode::OperationInterrupted) => DbError::Timeout(text),
        _ => DbError::Defect(text),
    }
}

impl Connection for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn exec(&mut self, sql: &str, params: &[Val]) -> Result<u64, DbError> {
        let text = self.text(sql);
        let mut statement = self.connection.prepare_cached(&text).map_err(|e| classify(&e))?;
        check_may_run(&statement, self.only_read)?;
        let n = statement.execute(rusqlite::params_from_iter(params)).map_err(|e| classify(&e))?;
        Ok(n as u64)
    }

    fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row>, DbError> {
        let text = self.text(sql);
        let mut statement = self.connection.prepare_cached(&text).map_err(|e| classify(&e))?;
        check_may_run(&statement, self.only_read)?;
        let columns = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(|e| classify(&e))?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(|e| classify(&e))? {
            let mut values = Vec::with_capacity(columns);
            for i in 0..columns {
                values.push(value(row.get_ref(i).map_err(|e| classify(&e))?)?);
            }
            all.push(Row(values));
        }
        Ok(all)
    }

    fn begin_write(&mut self) -> Result<(), DbError> {
        self.batch("BEGIN IMMEDIATE")
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        self.batch("BEGIN")
    }

    fn savepoint(&mut self) -> Result<(), DbError> {
        self.batch("SAVEPOINT op")
    }

    fn rollback_to(&mut self) -> Result<(), DbError> {
        self.batch("ROLLBACK TO op")?;
        self.batch("RELEASE op")
    }

    fn release(&mut self) -> Result<(), DbError> {
        self.batch("RELEASE op")
    }

    fn commit(&mut self, log: &[NewLogRow]) -> Result<(), DbError> {
        let result = flush(&self.connection, log).map_err(|e| classify(&e)).and_then(|()| self.batch("COMMIT"));
        if result.is_err() {
            self.rollback();
        }
        result
    }

    fn rollback(&mut self) {
        // fails only when there is nothing to roll back
        if !self.connection.is_autocommit() {
            drop(self.batch("ROLLBACK"));
        }
    }

    /// There is one writer, and SQLite itself waits for a lock.
    fn give_way(&mut self, _: u32) {}

    fn only_read(&mut self, on: bool) {
        self.only_read = on;
    }

    fn prepare(&mut self, sql: &str) -> Result<(), DbError> {
        let text = self.text(sql);
        self.connection.prepare(&text).map(drop).map_err(|e| classify(&e))
    }
}

fn flush(connection: &rusqlite::Connection, log: &[NewLogRow]) -> rusqlite::Result<()> {
    if log.is_empty() {
        return Ok(());
    }
    let n = log.len() as i64;
    let head: i64 = connection
        .prepare_cached("UPDATE log_head SET seq = seq + ?1 WHERE one = 1 RETURNING seq")?
        .query_row([n], |row| row.get(0))?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO transitions(sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    for (row, sequence) in log.iter().zip(head - n + 1..) {
        insert.execute(rusqlite::params![
            sequence,
            row.at,
            row.entity_kind,
            row.entity_id,
            row.subject,
            row.from_state,
            row.to_state,
            row.version as i64,
            row.trigger,
            row.owner,
            row.actor,
            row.comment,
            row.metadata,
            row.customer_id
        ])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_parsed_once_whatever_is_bound() {
        let db = Sqlite::in_memory().expect("opens");
        db.raw().execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT)").expect("a table");
        db.raw().execute_batch("CREATE INDEX some ON t(a) WHERE b = 'x'").expect("an index");
        let sql = "SELECT a FROM t WHERE a > ?1 AND b = ?2 ORDER BY a LIMIT ?3";
        for n in 0..5 {
            let mut statement = db.raw().prepare_cached(sql).expect("prepares");
            statement.query((n, "x", n)).expect("runs").next().expect("reads");
            assert_eq!(statement.get_status(rusqlite::StatementStatus::RePrepare), 0);
        }
    }
}
