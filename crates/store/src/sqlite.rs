//! SQLite beneath the contract: the embedded default. WAL, and `synchronous=FULL`: an answer means disk.

use crate::audit;
use crate::db::{Closing, Connection, Dialect, Row, Seen, Val};
use crate::error::DbError;
use crate::place::Place;
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{ErrorCode, OpenFlags, ToSql};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub(crate) struct Sqlite {
    connection: rusqlite::Connection,
    /// Where it is written to; readers and memory have none.
    path: Option<PathBuf>,
    /// Known from the first transaction on.
    place: Option<Place>,
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
        Ok(Self { path: Some(path.to_owned()), ..Self::configure(connection)? })
    }

    pub fn open_read_only(path: &Path) -> Result<Self, DbError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(path, flags).map_err(|e| opening(path, &e))?;
        Self::prepared(connection)
    }

    fn prepared(connection: rusqlite::Connection) -> Result<Self, DbError> {
        connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(|e| classify(&e))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
        // a plan is made once: otherwise each new value of a parameter has its statement compiled anew
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(|e| classify(&e))?;
        Ok(Self { connection, path: None, place: None, texts: HashMap::new(), only_read: false })
    }

    /// For short reads on a thread that must not wait: a file that is locked is a conflict at once.
    pub fn open_for_points(path: &Path, cache_kib: u32) -> Result<Self, DbError> {
        let opened = Self::open_read_only(path)?;
        opened.connection.busy_timeout(std::time::Duration::ZERO).map_err(|e| classify(&e))?;
        let cache = -i64::from(cache_kib);
        opened.connection.pragma_update(None, "cache_size", cache).map_err(|e| classify(&e))?;
        Ok(opened)
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
        Self::prepared(connection)
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
        let text = numbered(sql);
        self.texts.insert(sql.to_owned(), text.clone());
        text
    }

    /// Refuses to write into files that no start would find.
    fn check_place(&mut self) -> Result<(), DbError> {
        let Some(trouble) = self.place.as_ref().and_then(Place::trouble) else { return Ok(()) };
        let Some(mut place) = self.place.take() else { return Ok(()) };
        let advice = place.save(self);
        self.place = Some(place);
        Err(DbError::Away(format!("{trouble}; {advice}")))
    }

    /// Within the first transaction: by then both files are there.
    fn note_place(&mut self) -> Result<(), DbError> {
        if let (None, Some(path)) = (&self.place, &self.path) {
            match Place::of(path) {
                Ok(place) => self.place = Some(place),
                Err(e) => {
                    let trouble = format!("looking at {}: {e}", path.display());
                    self.rollback();
                    return Err(DbError::Away(trouble));
                }
            }
        }
        Ok(())
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

pub(crate) fn seen<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<Seen<'a>, DbError> {
    Ok(match row.get_ref(column).map_err(|e| classify(&e))? {
        ValueRef::Null => Seen::Null,
        ValueRef::Integer(v) => Seen::Int(v),
        ValueRef::Real(v) => return Err(DbError::Defect(format!("a real number {v} where none is stored"))),
        ValueRef::Text(v) => Seen::Text(std::str::from_utf8(v).map_err(|e| DbError::Defect(e.to_string()))?),
        ValueRef::Blob(v) => Seen::Bytes(v),
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

/// A disk that fails in the middle of a commit: the record may be whole in the log, and a start after a crash
/// would take it for committed. A full disk leaves no doubt: the last frame has not gone in.
fn in_doubt(e: DbError) -> DbError {
    match e {
        DbError::Away(m) => DbError::CommitUnknown(m),
        other => other,
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

    fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        let text = self.text(sql);
        let mut statement = self.connection.prepare_cached(&text).map_err(|e| classify(&e))?;
        check_may_run(&statement, self.only_read)?;
        let columns = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(|e| classify(&e))?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(|e| classify(&e))? {
            all.push(Row::Sqlite(row).keep(columns)?);
        }
        Ok(all)
    }

    fn first(&mut self, sql: &str, params: &[Val], show: &mut dyn FnMut(&Row<'_>)) -> Result<(), DbError> {
        let text = self.text(sql);
        let mut statement = self.connection.prepare_cached(&text).map_err(|e| classify(&e))?;
        check_may_run(&statement, self.only_read)?;
        let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(|e| classify(&e))?;
        if let Some(row) = rows.next().map_err(|e| classify(&e))? {
            show(&Row::Sqlite(row));
        }
        Ok(())
    }

    fn begin_write(&mut self) -> Result<(), DbError> {
        self.check_place()?;
        self.batch("BEGIN IMMEDIATE")?;
        self.note_place()
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

    fn commit(&mut self, closing: &Closing) -> Result<(), DbError> {
        let flushed = flush(&self.connection, closing).map_err(|e| classify(&e));
        let result = flushed.and_then(|()| self.batch("COMMIT").map_err(in_doubt));
        if result.is_err() {
            self.rollback();
        }
        result?;
        match self.place.as_ref().and_then(Place::trouble) {
            Some(trouble) => Err(DbError::CommitUnknown(trouble)),
            None => Ok(()),
        }
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

/// The text is the same each time: the statements stay prepared.
static AUDIT: LazyLock<String> = LazyLock::new(|| {
    format!("INSERT INTO audit({}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)", audit::COLUMNS)
});

fn flush(connection: &rusqlite::Connection, closing: &Closing) -> rusqlite::Result<()> {
    for entry in &closing.audit {
        let [actor, token, role, call, target, outcome, code, reason, message, request] = entry.texts();
        let at = entry.at.micros();
        connection.prepare_cached(&AUDIT)?.execute(rusqlite::params![
            at,
            actor,
            token,
            role,
            call,
            target,
            outcome,
            code,
            reason,
            message,
            request,
            entry.stands_for()
        ])?;
    }
    let log = &closing.log;
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

/// `$1` as SQLite has it: `?1`. A `$` that no number follows is something else, as in a path into JSON.
fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql.chars().peekable();
    while let Some(c) = rest.next() {
        let parameter = c == '$' && rest.peek().is_some_and(char::is_ascii_digit);
        text.push(if parameter { '?' } else { c });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_are_spelt_otherwise() {
        let sql = "SELECT json_extract(value, '$[0]') FROM json_each($1) LIMIT $12";
        assert_eq!(numbered(sql), "SELECT json_extract(value, '$[0]') FROM json_each(?1) LIMIT ?12");
    }

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
