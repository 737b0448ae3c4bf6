//! PostgreSQL beneath the contract: tokio-postgres on the owning thread's own small runtime, so that
//! the flush of the log and COMMIT travel in one write and the head's lock is held for no round trip.

use crate::audit;
use crate::db::{Closing, Connection, Dialect, NewLogRow, Row, Seen, Val};
use crate::error::DbError;
use crate::servers::{Newest, Servers};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Statement};

pub(crate) struct Postgres {
    runtime: tokio::runtime::Runtime,
    servers: Servers,
    client: Option<Client>,
    /// What drives the client, and the timeline its server is on.
    driver: Option<JoinHandle<()>>,
    timeline: u32,
    /// What drives connections that were given up: each ends when the server has answered, or is gone.
    given_up: Vec<JoinHandle<()>>,
    statements: HashMap<String, Statement>,
    /// Savepoint commands that travel with the next statement.
    pending: String,
    /// A transaction lives and dies with its connection: no other takes its place half-way.
    in_transaction: bool,
    /// Whether the last failure found the connection closed, rather than silent.
    broke: bool,
    read_only: bool,
}

/// Below the session lease, so that a stuck database cannot outlast it.
const STATEMENT_TIMEOUT_MS: u32 = 5_000;
const LOCK_TIMEOUT_MS: u32 = 200;
const GIVE_WAY_MS: u64 = 10;
/// Above the server's own limit: who has not answered by then is not there, however open the connection looks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
const STATEMENTS_CACHED: usize = 512;
/// So many sessions of the server may still be busy with what we have given up: a commit that waits for a
/// standby does so for as long as it takes, and must not use up all that the server has.
const GIVEN_UP_MAX: usize = 2;
const MOMENT: Duration = Duration::from_millis(50);

/// One statement raises the head and numbers the rows, last before COMMIT.
pub(crate) const FLUSH: &str = "WITH h AS (UPDATE log_head SET seq = seq + $1 WHERE one = 1 RETURNING seq)
 INSERT INTO transitions(sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id)
 SELECT h.seq - $1 + u.ord, u.a, u.b, u.c, u.d, u.e, u.f, u.g, u.h, u.i, u.j, u.k, u.l, u.m
 FROM h, unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[],
 $11::text[], $12::text[], $13::text[], $14::text[]) WITH ORDINALITY AS u(a, b, c, d, e, f, g, h, i, j, k, l, m, ord)";

/// All entries of a batch at once.
pub(crate) static RECORD: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO audit({}) SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
         $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[])",
        audit::COLUMNS
    )
});

/// What is run last before COMMIT, where there is something to write.
struct Ending {
    audit: Option<Statement>,
    log: Option<Statement>,
}

impl Postgres {
    pub fn new(config: &Config, newest: Newest, read_only: bool) -> Result<Self, DbError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| DbError::Away(format!("starting a runtime for PostgreSQL: {e}")))?;
        Ok(Self {
            runtime,
            servers: Servers::new(config, newest),
            client: None,
            driver: None,
            timeline: 0,
            given_up: Vec::new(),
            statements: HashMap::new(),
            pending: String::new(),
            in_transaction: false,
            broke: false,
            read_only,
        })
    }

    fn connect(&mut self) -> Result<(), DbError> {
        let connected = self.client.as_ref().is_some_and(|c| !c.is_closed());
        if connected && !self.servers.moved_past(self.timeline) {
            return Ok(());
        }
        self.forget();
        if self.in_transaction {
            return Err(gone());
        }
        self.wait_for_given_up()?;
        let servers = &mut self.servers;
        let connected = self.runtime.block_on(async { servers.connect(&settings()).await })?;
        self.client = Some(connected.client);
        self.driver = Some(connected.driver);
        self.timeline = connected.timeline;
        Ok(())
    }

    /// Waits a moment where too much was given up, and is not over yet.
    fn wait_for_given_up(&mut self) -> Result<(), DbError> {
        if self.given_up.len() < GIVEN_UP_MAX {
            return Ok(());
        }
        let given_up = &mut self.given_up;
        self.runtime.block_on(async {
            let one = futures::future::select_all(given_up.iter_mut());
            // in time or not: who has ended is seen below
            drop(tokio::time::timeout(MOMENT, one).await);
        });
        self.given_up.retain(|driver| !driver.is_finished());
        if self.given_up.len() < GIVEN_UP_MAX {
            return Ok(());
        }
        Err(DbError::Away(format!("PostgreSQL has left {} connections without an answer", self.given_up.len())))
    }

    /// After silence the connection is of no use: what comes next must not be taken for the late answer.
    fn heard<T>(&mut self, result: Result<T, DbError>) -> Result<T, DbError> {
        if matches!(result, Err(DbError::Away(_))) {
            self.broke = self.client.as_ref().is_some_and(Client::is_closed);
            self.forget();
        }
        result
    }

    fn forget(&mut self) {
        self.client = None;
        self.given_up.extend(self.driver.take().filter(|driver| !driver.is_finished()));
        self.statements.clear();
        self.pending.clear();
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, DbError> {
        self.connect()?;
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= STATEMENTS_CACHED {
            self.statements.clear();
        }
        // what is pending goes first: in a transaction that an earlier operation broke, nothing can be prepared
        let pending = std::mem::take(&mut self.pending);
        let client = self.client.as_ref().ok_or_else(gone)?;
        let statement = wait(&self.runtime, async {
            if pending.is_empty() {
                return client.prepare(sql).await.map_err(|e| classify(&e));
            }
            let (first, second) = futures::join!(client.batch_execute(&pending), client.prepare(sql));
            first.map_err(|e| opening(&e))?;
            second.map_err(|e| classify(&e))
        });
        let statement = self.heard(statement)?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn begin(&mut self, sql: &str) -> Result<(), DbError> {
        self.broke = false;
        self.connect()?;
        sql.clone_into(&mut self.pending);
        self.in_transaction = true;
        Ok(())
    }

    /// What is pending, the entries of the audit, the log rows and COMMIT, in one write.
    fn send_commit(&mut self, ending: &Ending, closing: &Closing) -> Result<(), DbError> {
        let mut pending = std::mem::take(&mut self.pending);
        let client = self.client.as_ref().ok_or_else(gone)?;
        // who holds the head only has its own commit to do, so no circle can close here: wait for it
        pending.push_str("SET LOCAL lock_timeout = 0");
        let (log, audit) = (LogColumns::of(&closing.log), AuditColumns::of(&closing.audit));
        wait(&self.runtime, async {
            let write = async |statement: &Option<Statement>, params: &[&(dyn ToSql + Sync)]| match statement {
                Some(statement) => client.execute(statement, params).await.map(drop),
                None => Ok(()),
            };
            let (audit, log) = (audit.params(), log.params());
            let (before, recorded, logged, committed) = futures::join!(
                client.batch_execute(&pending),
                write(&ending.audit, &audit),
                write(&ending.log, &log),
                client.batch_execute("COMMIT")
            );
            // when one of them fails, COMMIT becomes ROLLBACK without an error of its own
            before.and(recorded).and(logged).and(committed).map_err(|e| classify(&e))
        })
    }

    /// The statements that a commit needs.
    fn ending(&mut self, closing: &Closing) -> Result<Ending, DbError> {
        Ok(Ending {
            audit: if closing.audit.is_empty() { None } else { Some(self.statement(&RECORD)?) },
            log: if closing.log.is_empty() { None } else { Some(self.statement(FLUSH)?) },
        })
    }

    fn query(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        let statement = self.statement(sql)?;
        let pending = std::mem::take(&mut self.pending);
        let client = self.client.as_ref().ok_or_else(gone)?;
        let refs = refs(params);
        let rows = wait(&self.runtime, async {
            if pending.is_empty() {
                return client.query(&statement, &refs).await.map_err(|e| classify(&e));
            }
            let (first, second) = futures::join!(client.batch_execute(&pending), client.query(&statement, &refs));
            first.map_err(|e| opening(&e))?;
            second.map_err(|e| classify(&e))
        });
        self.heard(rows)?.iter().map(keep).collect()
    }

    /// Runs commands without parameters now.
    fn batch(&mut self, sql: &str) -> Result<(), DbError> {
        let client = self.client.as_ref().ok_or_else(gone)?;
        let result = wait(&self.runtime, async { client.batch_execute(sql).await.map_err(|e| classify(&e)) });
        self.heard(result)
    }
}

fn wait<T>(runtime: &tokio::runtime::Runtime, call: impl Future<Output = Result<T, DbError>>) -> Result<T, DbError> {
    runtime.block_on(within(call))
}

/// Waits for an answer, but not for ever: a peer that vanished sends no error.
pub(crate) async fn within<T>(call: impl Future<Output = Result<T, DbError>>) -> Result<T, DbError> {
    let silent = |_| Err(DbError::Away(format!("PostgreSQL did not answer within {ANSWER_TIMEOUT:?}")));
    tokio::time::timeout(ANSWER_TIMEOUT, call).await.unwrap_or_else(silent)
}

/// With what every connection begins. What travels with a BEGIN that the server fails is done outside of any
/// transaction: there, nothing writes.
pub(crate) fn settings() -> String {
    format!(
        "SET statement_timeout = {STATEMENT_TIMEOUT_MS}; SET lock_timeout = {LOCK_TIMEOUT_MS}; \
         SET idle_in_transaction_session_timeout = {STATEMENT_TIMEOUT_MS}; SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_read_only = on"
    )
}

pub(crate) async fn query(
    client: &Client,
    statement: &Statement,
    params: &[Val],
) -> Result<Vec<tokio_postgres::Row>, DbError> {
    client.query(statement, &refs(params)).await.map_err(|e| classify(&e))
}

fn gone() -> DbError {
    DbError::Away("the connection to PostgreSQL is gone".into())
}

pub(crate) fn describe(e: &tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => match std::error::Error::source(e) {
            Some(source) => format!("{e}: {source}"),
            None => e.to_string(),
        },
    }
}

pub(crate) fn classify(e: &tokio_postgres::Error) -> DbError {
    let text = describe(e);
    let Some(code) = e.code().map(|c| c.code().to_owned()) else {
        return DbError::Away(text);
    };
    match code.as_str() {
        // serialization failure, deadlock, lock time-out; a duplicate key is a race that the rerun sees
        "40001" | "40P01" | "55P03" | "23505" => DbError::Conflict(text),
        "57014" => DbError::Timeout(text),
        "53100" => DbError::Full(text),
        "25006" => DbError::Away(text),
        c if c.starts_with("08")
            || c.starts_with("57P")
            // ended for standing still in a transaction
            || c == "25P03"
            // the server's own disk or system
            || c.starts_with("58")
            || c.starts_with("53")
            || c.starts_with("28")
            || c.starts_with("3D") =>
        {
            DbError::Away(text)
        }
        _ => DbError::Defect(text),
    }
}

/// Without what had to come first there is no transaction, or not the one that was meant: nobody can go on in it.
fn opening(e: &tokio_postgres::Error) -> DbError {
    match classify(e) {
        DbError::Timeout(text) | DbError::Defect(text) => DbError::Away(text),
        other => other,
    }
}

impl ToSql for Val {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Val::Null => Ok(IsNull::Yes),
            Val::Int(v) if *ty == Type::INT4 => i32::try_from(*v)?.to_sql(ty, out),
            Val::Int(v) => v.to_sql(ty, out),
            Val::Text(v) => v.as_str().to_sql(ty, out),
            Val::Bytes(v) => v.as_slice().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn refs(params: &[Val]) -> Vec<&(dyn ToSql + Sync)> {
    params.iter().map(|p| p as &(dyn ToSql + Sync)).collect()
}

pub(crate) fn seen(row: &tokio_postgres::Row, column: usize) -> Result<Seen<'_>, DbError> {
    let Some(kind) = row.columns().get(column) else {
        return Err(DbError::Defect(format!("there is no column {column}")));
    };
    let seen = match *kind.type_() {
        Type::INT8 => row.try_get::<_, Option<i64>>(column).map(|v| v.map(Seen::Int)),
        Type::INT4 => row.try_get::<_, Option<i32>>(column).map(|v| v.map(|v| Seen::Int(v.into()))),
        Type::BOOL => row.try_get::<_, Option<bool>>(column).map(|v| v.map(|v| Seen::Int(v.into()))),
        Type::BYTEA => row.try_get::<_, Option<&[u8]>>(column).map(|v| v.map(Seen::Bytes)),
        _ => row.try_get::<_, Option<&str>>(column).map(|v| v.map(Seen::Text)),
    };
    let seen = seen.map_err(|e| DbError::Defect(format!("column {}: {e}", kind.name())))?;
    Ok(seen.unwrap_or(Seen::Null))
}

fn keep(row: &tokio_postgres::Row) -> Result<Row<'static>, DbError> {
    Row::Postgres(row).keep(row.len())
}

impl Connection for Postgres {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn exec(&mut self, sql: &str, params: &[Val]) -> Result<u64, DbError> {
        let statement = self.statement(sql)?;
        let pending = std::mem::take(&mut self.pending);
        let client = self.client.as_ref().ok_or_else(gone)?;
        let refs = refs(params);
        let result = wait(&self.runtime, async {
            if pending.is_empty() {
                return client.execute(&statement, &refs).await.map_err(|e| classify(&e));
            }
            let (first, second) = futures::join!(client.batch_execute(&pending), client.execute(&statement, &refs));
            first.map_err(|e| opening(&e))?;
            second.map_err(|e| classify(&e))
        });
        self.heard(result)
    }

    fn rows(&mut self, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        self.broke = false;
        match self.query(sql, params) {
            // that it broke since its last use says nothing about the database: to read again is safe
            Err(DbError::Away(_)) if self.broke && self.read_only && !self.in_transaction => self.query(sql, params),
            result => result,
        }
    }

    fn rows_after(&mut self, lock: &str, sql: &str, params: &[Val]) -> Result<Vec<Row<'static>>, DbError> {
        let (lock, statement) = (self.statement(lock)?, self.statement(sql)?);
        let pending = std::mem::take(&mut self.pending);
        let client = self.client.as_ref().ok_or_else(gone)?;
        let rows = wait(&self.runtime, async {
            let before = async {
                if pending.is_empty() { Ok(()) } else { client.batch_execute(&pending).await.map_err(|e| opening(&e)) }
            };
            let (first, second, third) =
                futures::join!(before, query(client, &lock, params), query(client, &statement, params));
            first?;
            second?;
            third
        });
        self.heard(rows)?.iter().map(keep).collect()
    }

    fn first(&mut self, sql: &str, params: &[Val], show: &mut dyn FnMut(&Row<'_>)) -> Result<(), DbError> {
        if let Some(row) = self.rows(sql, params)?.first() {
            show(row);
        }
        Ok(())
    }

    fn broke(&self) -> bool {
        self.broke
    }

    fn begin_write(&mut self) -> Result<(), DbError> {
        self.begin("BEGIN READ WRITE;")
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;")
    }

    fn savepoint(&mut self) -> Result<(), DbError> {
        self.pending.push_str("SAVEPOINT op;");
        Ok(())
    }

    fn rollback_to(&mut self) -> Result<(), DbError> {
        self.pending.push_str("ROLLBACK TO op;RELEASE op;");
        Ok(())
    }

    fn release(&mut self) -> Result<(), DbError> {
        self.pending.push_str("RELEASE op;");
        Ok(())
    }

    fn commit(&mut self, closing: &Closing) -> Result<(), DbError> {
        let ending = match self.ending(closing) {
            Ok(ending) => ending,
            Err(e) => {
                self.rollback();
                return Err(e);
            }
        };
        let result = self.send_commit(&ending, closing);
        match result {
            // the commit was on its way when the connection broke
            Err(DbError::Away(text)) => {
                self.forget();
                self.in_transaction = false;
                Err(DbError::CommitUnknown(text))
            }
            Err(e) => {
                self.rollback();
                Err(e)
            }
            Ok(()) => {
                self.in_transaction = false;
                Ok(())
            }
        }
    }

    fn rollback(&mut self) {
        self.in_transaction = false;
        self.pending.clear();
        if self.client.is_some() && self.batch("ROLLBACK").is_err() {
            // an unknown state of the connection is not worth guessing at
            self.forget();
        }
    }

    /// Two that hold what the other wants give up at the same time, and would meet again and again.
    fn give_way(&mut self, collisions: u32) {
        let most = GIVE_WAY_MS << collisions.min(4);
        let random = RandomState::new().hash_one(collisions);
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(random % most)).await });
    }

    /// Readers have connections of their own, which the server keeps from writing.
    fn only_read(&mut self, _: bool) {}

    fn prepare(&mut self, sql: &str) -> Result<(), DbError> {
        self.statement(sql).map(drop)
    }
}

/// The log rows turned on their side, as arrays for `unnest`.
struct LogColumns<'a> {
    count: i64,
    ints: [Vec<i64>; 2],
    texts: [Vec<&'a str>; 11],
}

impl<'a> LogColumns<'a> {
    fn of(log: &'a [NewLogRow]) -> Self {
        fn column<'a>(log: &'a [NewLogRow], f: impl Fn(&'a NewLogRow) -> &'a str) -> Vec<&'a str> {
            log.iter().map(f).collect()
        }
        let version = |r: &NewLogRow| i64::try_from(r.version).unwrap_or(i64::MAX);
        Self {
            count: i64::try_from(log.len()).unwrap_or(i64::MAX),
            ints: [log.iter().map(|r| r.at).collect(), log.iter().map(version).collect()],
            texts: [
                column(log, |r| r.entity_kind),
                column(log, |r| &r.entity_id),
                column(log, |r| &r.subject),
                column(log, |r| r.from_state),
                column(log, |r| r.to_state),
                column(log, |r| r.trigger),
                column(log, |r| r.owner),
                column(log, |r| &r.actor),
                column(log, |r| &r.comment),
                column(log, |r| &r.metadata),
                column(log, |r| &r.customer_id),
            ],
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 14] {
        let [at, version] = &self.ints;
        let [kind, id, subject, from, to, trigger, owner, actor, comment, metadata, customer] = &self.texts;
        [&self.count, at, kind, id, subject, from, to, version, trigger, owner, actor, comment, metadata, customer]
    }
}

/// The same of the audit's entries.
struct AuditColumns<'a> {
    ints: [Vec<i64>; 2],
    texts: [Vec<&'a str>; 10],
}

impl<'a> AuditColumns<'a> {
    fn of(entries: &'a [audit::Entry]) -> Self {
        let mut texts: [Vec<&str>; 10] = Default::default();
        for entry in entries {
            texts.iter_mut().zip(entry.texts()).for_each(|(column, text)| column.push(text));
        }
        let at = entries.iter().map(|e| e.at.micros()).collect();
        Self { ints: [at, entries.iter().map(audit::Entry::stands_for).collect()], texts }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 12] {
        let [at, count] = &self.ints;
        let [actor, token, role, call, target, outcome, code, reason, message, request] = &self.texts;
        [at, actor, token, role, call, target, outcome, code, reason, message, request, count]
    }
}
