//! Rows that were not written by us: any value in any column of a database. Whoever reads it is told what does
//! not read; nothing panics, and what is about something else still answers.

use crate::wire::shape;
use domain::filter::Filter;
use domain::machine::Phase;
use domain::{Error, ExecutionId, MachineId, RunId};
use provider::{Keyring as _, Pin};
use service::{PageRequest, Service};
use std::path::{Path, PathBuf};
use testkit::fleet::{Database, Fleet, admin, eventually, machine, quick, start};
use testkit::fuzz::Fuzz;

/// A database in which something has happened.
pub fn lived_in(runtime: &tokio::runtime::Runtime) -> (Fleet, PathBuf) {
    let fleet = {
        let _inside = runtime.enter();
        Fleet::new(Database::Sqlite, 1)
    };
    runtime.block_on(async {
        let engine = fleet.engine(quick("fuzz"), None);
        engine.start().await.expect("starts");
        let service = fleet.service(&engine).await;
        service.register_machine(&admin(), machine("m-1")).await.expect("registers");
        service.register_machine(&admin(), machine("m-2")).await.expect("registers");
        service.set_phase(&admin(), "m-2", Phase::Ready, "a test").await.expect("set");
        let run = service.start_run(&admin(), start("m-1", "REPAVE", "r-1")).await.expect("starts").run.id;
        eventually("the run ends", || async {
            let run = service.get_run(&admin(), run.as_str()).await.expect("there");
            run.run.phase.is_terminal().then_some(())
        })
        .await;
        engine.stop().await;
        // one that is still to be carried out
        service.start_run(&admin(), start("m-2", "REBOOT", "r-2")).await.expect("starts");
        let new = service::NewToken { name: "v".into(), role: "viewer".into(), ..Default::default() };
        service.create_token(&admin(), new).await.expect("made");
        let new = service::NewCredential {
            name: "rack-1".into(),
            kind: "bmc".into(),
            username: "admin".into(),
            password: domain::Secret::new("hunter2"),
            ..Default::default()
        };
        service.set_credential(&admin(), new).await.expect("set");
        let keyring = testkit::fleet::vault(&fleet.store);
        let pinned = keyring.pin(&MachineId::from_text("m-1"), Pin::BmcCertificate, "bmc-1:443", "aa").await;
        pinned.expect("pinned");
        service.close();
    });
    fleet.store.close();
    let file = fleet.database_file().expect("a file");
    (fleet, file)
}

/// Reads everything that a door could be asked for; the first complaint.
pub async fn read_all(fleet: &Fleet, service: &Service, file: &Path) -> Result<(), Error> {
    let (page, call) = (PageRequest::default(), admin());
    let mut first = Ok(());
    let mut note = |result: Result<(), Error>| {
        if first.is_ok() {
            first = result;
        }
    };
    note(service.list_machines(&call, &page).await.map(drop));
    note(service.list_runs(&call, &page).await.map(drop));
    note(service.list_plans().await.map(drop));
    note(service.list_tokens(&page).await.map(drop));
    note(service.list_credentials(&page).await.map(drop));
    note(service.vault().credential("rack-1").await.map(drop).map_err(Error::from));
    let pinned = service.vault().pinned(&MachineId::from_text("m-1"), Pin::BmcCertificate, "bmc-1:443").await;
    note(pinned.map(drop).map_err(Error::from));
    note(service.list_audit(&page).await.map(drop));
    note(service.list_executions(&page).await.map(drop));
    note(service.frozen().await.map(drop));
    for id in ["m-1", "m-2"] {
        note(service.get_machine(&call, id).await.map(drop));
        note(service.explain(&call, id).await.map(drop));
        let key = MachineId::from_text(id);
        note(fleet.store.read(move |tx| store::machine::get(tx, &key)).await.map(drop));
    }
    let raw = rusqlite::Connection::open(file).expect("opens");
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = raw.prepare(sql).expect("prepared");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("listed");
        rows.flatten().collect()
    };
    for id in texts("SELECT run_id FROM runs") {
        note(service.get_run(&call, &id).await.map(drop));
        note(service.explain(&call, &id).await.map(drop));
        let key = RunId::from_text(id);
        note(fleet.store.read(move |tx| store::run::check_fold(tx, &key)).await.map(drop));
    }
    for id in texts("SELECT execution_id FROM executions") {
        note(service.describe_execution(&id).await.map(drop));
        let key = ExecutionId::from_text(id);
        note(fleet.store.read(move |tx| store::execution::journal(tx, &key, 1_000)).await.map(drop));
    }
    note(fleet.store.read(|tx| store::log_after(tx, 0, 1_000)).await.map(drop));
    note(fleet.store.read(store::census).await.map(drop));
    note(fleet.store.read(|tx| store::execution::list(tx, &Filter::Everything, "", 100)).await.map(drop));
    note(fleet.store.read(store::session::live).await.map(drop));
    first
}

pub fn copy(from: &Path, to: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let name = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        drop(std::fs::remove_file(name(to)));
        if name(from).exists() {
            std::fs::copy(name(from), name(to)).expect("copied");
        }
    }
}

const WORDS: &[&str] = &[
    "machines",
    "runs",
    "executions",
    "journal",
    "transitions",
    "plans",
    "tokens",
    "credentials",
    "pins",
    "audit",
    "observations",
    "sweeps",
    "sessions",
    "switches",
    "step_logs",
    "meta",
    "log_head",
    "idempotency",
    "machine_labels",
    "phase",
    "status",
    "spec",
    "body",
    "conditions",
    "labels",
    "mac_addresses",
    "metadata",
    "entry",
    "detail",
    "position",
    "facts",
    "failure",
    "deadline",
    "wake_at",
    "attempt",
    "version",
    "epoch",
    "fence",
    "role",
    "hash",
    "expires_at",
    "sequence",
    "seq",
    "kept_from",
    "value",
    "lane",
    "trouble",
    "active_run_id",
    "READY",
    "RUNNING",
    "{}",
    "[]",
    "null",
    "[{\"name\":\"a\"}]",
    "{\"steps\":[],\"error\":null}",
    "\"",
    "x",
    "NULL",
    "BLOB",
];

/// The same line is always the same number.
fn name_of(line: &[u8]) -> usize {
    line.iter().fold(7, |sum: usize, b| sum.wrapping_mul(31).wrapping_add(usize::from(*b)))
}

// each input is lines of "table column value": that column of every row is set to that value
#[test]
fn rows() {
    let seeds = [
        "machines phase READY",
        "machines conditions [{\"type\":\"x\"}]\nruns status {}",
        "transitions metadata {\"started\":null}",
        "log_head seq -1",
        "meta value x",
        "executions position {}\njournal entry x",
        "machines phase_set_at 9223372036854775807",
        "plans body [{\"name\":\"a\",\"timeout_seconds\":null,\"max_retries\":null,\"kind\":{\"reboot\":{\"mode\":\"bmc\"}}}]",
        "runs steps NULL",
        "step_logs data BLOB",
        "tokens role king",
        "executions deadline -9223372036854775808",
        "sweeps swept_at -9223372036854775808",
    ];
    Fuzz::new("rows", module_path!()).seeds(seeds).words(WORDS).inputs(250).run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (fleet, file) = lived_in(&runtime);
        let columns = columns(&file);
        let spare = file.with_file_name("spare.db");
        copy(&file, &spare);
        move |input| {
            copy(&spare, &file);
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let raw = rusqlite::Connection::open(&file).expect("opens");
            raw.execute_batch("PRAGMA foreign_keys = OFF").expect("set");
            let mut touched = String::new();
            for line in text.lines().take(4) {
                let mut words = line.splitn(3, ' ');
                let mut word = || words.next().unwrap_or_default();
                let (table, column, value) = (word(), word(), word());
                // a name that is none stands for one: every input is to touch something
                let any = name_of(line.as_bytes()) % columns.len();
                let known = columns.iter().find(|(t, c)| t == table && c == column);
                let (table, column) = known.unwrap_or(&columns[any]);
                let value: rusqlite::types::Value = match (value, value.parse::<i64>()) {
                    ("NULL", _) => rusqlite::types::Value::Null,
                    ("BLOB", _) => vec![0xff, 0, 0x80].into(),
                    (_, Ok(number)) => number.into(),
                    (text, Err(_)) => text.to_owned().into(),
                };
                // what the schema itself refuses cannot be in a row
                if raw.execute(&format!("UPDATE OR IGNORE {table} SET {column} = ?1"), [value]).is_ok() {
                    touched = format!("{table}.{column}");
                }
            }
            drop(raw);
            let read = runtime.block_on(async {
                let opened = store::Store::open(&store::Options::Sqlite(file.clone()), fleet.ambient.clone());
                let store = opened.map_err(|e| format!("does not open: {e}"))?;
                let fleet = Fleet::over(store, &fleet);
                let engine = fleet.engine(quick("fuzz"), None);
                let read = match Service::new(fleet.store.clone(), engine, fleet.providers(), Default::default()).await
                {
                    Ok(service) => {
                        let read = read_all(&fleet, &service, &file).await;
                        service.close();
                        read
                    }
                    Err(e) => Err(e),
                };
                fleet.store.close();
                read.map_err(|e| e.to_string())
            });
            match read {
                Ok(()) => Ok(format!("reads {touched}")),
                Err(e) if e.len() > 4_000 => Err(format!("too many words: {e}")),
                Err(e) => Ok(format!("{touched} {}", shape(&e))),
            }
        }
    });
}

fn columns(file: &Path) -> Vec<(String, String)> {
    let raw = rusqlite::Connection::open(file).expect("opens");
    let sql = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'";
    let mut statement = raw.prepare(sql).expect("prepared");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("listed");
    rows.map(|row| row.expect("a column")).collect()
}
