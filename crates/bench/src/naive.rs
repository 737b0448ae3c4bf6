//! The pool that most would write first: every caller has a connection of its own and makes each change in a
//! transaction of its own. The same rows are read and written as by the store; nobody shares a commit. It needs
//! no savepoint, and asks for version and phase in a short statement of its own.

use crate::Outcome;
use crate::client::{Tally, drive};
use crate::ground::connect;
use crate::writes::Flips;
use domain::lifecycle::State as _;
use rusqlite::TransactionBehavior;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::{Ambient as _, Options, SystemAmbient};
use tokio::time::Instant;
use tokio_postgres::{Client, Config, Statement};

const LOCK: &str = "SELECT 1 FROM machines WHERE machine_id = $1";
const GET: &str = "SELECT m.version, m.phase, m.*, r.phase, r.type, r.current_step, o.*, s.swept_at, s.stale_after_ms FROM machines m LEFT JOIN runs r ON r.run_id = m.active_run_id LEFT JOIN observations o ON o.machine_id = m.machine_id LEFT JOIN sweeps s ON s.lane = o.lane WHERE m.machine_id = $1";
const MOVE: &str = "UPDATE machines SET version = version + 1, phase = $3, phase_set_by = 'operator', phase_set_at = $4, conditions = '[]', updated_at = $4 WHERE machine_id = $1 AND version = $2";
const AUDIT: &str = "INSERT INTO audit(at, actor, token_id, role, call, target, outcome, code, reason, message, request_id, count) VALUES ($1, 'bench', 'tok_00000000000000000000000000000000', 'admin', 'baremetal.v1.MachineService/SetPhase', $2, 'done', '', '', '', '00000000-0000-0000-0000-000000000000', 1)";
const HEAD: &str = "UPDATE log_head SET seq = seq + 1 WHERE one = 1 RETURNING seq";
const LOG: &str = "INSERT INTO transitions(sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id) VALUES ($1, $2, 'machine', $3, $3, $4, $5, $6, 'set_phase', 'operator', 'bench', 'bench', '{}', '')";

/// Longer than the store waits: no caller of the pool is to fail for want of patience.
const BUSY: Duration = Duration::from_secs(60);

pub async fn run(database: &Options, flips: &Flips, span: Duration) -> Outcome<Tally> {
    match database {
        Options::Sqlite(path) => on_sqlite(path, flips, span),
        Options::Postgres(config) => on_postgres(config, flips, span).await,
        Options::Memory => Err("a pool needs a database that several can open".into()),
    }
}

fn on_sqlite(path: &Path, flips: &Flips, span: Duration) -> Outcome<Tally> {
    let ambient = SystemAmbient::new();
    let mut connections = Vec::new();
    for _ in 0..flips.callers() {
        let connection = rusqlite::Connection::open(path)?;
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")?;
        connection.busy_timeout(BUSY)?;
        connections.push(connection);
    }
    let begun = Instant::now();
    let until = begun + span;
    let counts = std::thread::scope(|scope| {
        let ambient = &ambient;
        let workers = connections.into_iter().enumerate().map(|(caller, mut connection)| {
            let mut next = flips.of(caller);
            scope.spawn(move || -> Result<u64, rusqlite::Error> {
                let mut calls = 0;
                while Instant::now() < until {
                    let (id, to) = next();
                    flip_on_sqlite(&mut connection, &id, to.to_string(), ambient.now().micros())?;
                    calls += 1;
                }
                Ok(calls)
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|w| w.join()).collect::<Vec<_>>()
    });
    let mut calls = 0;
    for count in counts {
        calls += count.map_err(|_| "a caller panicked")??;
    }
    Ok(Tally { calls, took: begun.elapsed() })
}

fn flip_on_sqlite(db: &mut rusqlite::Connection, id: &str, to: String, now: i64) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (version, from): (i64, String) =
        tx.prepare_cached(&spell(GET))?.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    tx.prepare_cached(&spell(MOVE))?.execute(rusqlite::params![id, version, to, now])?;
    tx.prepare_cached(&spell(AUDIT))?.execute(rusqlite::params![now, id])?;
    let sequence: i64 = tx.prepare_cached(HEAD)?.query_row([], |row| row.get(0))?;
    tx.prepare_cached(&spell(LOG))?.execute(rusqlite::params![sequence, now, id, from, to, version + 1])?;
    tx.commit()
}

/// SQLite numbers `$n` by first appearance, not by name.
fn spell(sql: &str) -> String {
    sql.replace('$', "?")
}

struct Pooled {
    client: Client,
    statements: [Statement; 6],
}

impl Pooled {
    async fn open(config: &Config) -> Outcome<Self> {
        let client = connect(config).await?;
        let lock = format!("{LOCK} FOR UPDATE");
        let texts = [lock.as_str(), GET, MOVE, AUDIT, HEAD, LOG];
        let mut statements = Vec::new();
        for text in texts {
            statements.push(client.prepare(text).await?);
        }
        let statements = statements.try_into().map_err(|_| "as many as there are texts")?;
        Ok(Self { client, statements })
    }

    async fn flip(&self, id: &str, to: &str, now: i64) -> Result<(), tokio_postgres::Error> {
        let (client, [lock, get, move_, audit, head, log]) = (&self.client, &self.statements);
        client.batch_execute("BEGIN").await?;
        client.query_one(lock, &[&id]).await?;
        let row = client.query_one(get, &[&id]).await?;
        let (version, from): (i64, String) = (row.get(0), row.get(1));
        client.execute(move_, &[&id, &version, &to, &now]).await?;
        client.execute(audit, &[&now, &id]).await?;
        let sequence: i64 = client.query_one(head, &[]).await?.get(0);
        client.execute(log, &[&sequence, &now, &id, &from, &to, &(version + 1)]).await?;
        client.batch_execute("COMMIT").await
    }
}

async fn on_postgres(config: &Config, flips: &Flips, span: Duration) -> Outcome<Tally> {
    let ambient = Arc::new(SystemAmbient::new());
    let mut pool = Vec::new();
    for _ in 0..flips.callers() {
        pool.push(Arc::new(Pooled::open(config).await?));
    }
    drive(flips.callers(), span, |caller| {
        let (pooled, ambient) = (pool[caller].clone(), ambient.clone());
        let mut next = flips.of(caller);
        move || {
            let (id, to) = next();
            let (pooled, now) = (pooled.clone(), ambient.now().micros());
            async move { pooled.flip(&id, to.as_str(), now).await }
        }
    })
    .await
}
