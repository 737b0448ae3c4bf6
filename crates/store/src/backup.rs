//! Backup and restore of the embedded database, while the server runs or not.

use crate::ambient::Ambient;
use crate::db::{Closing, Connection};
use crate::error::DbError;
use crate::log::LogRow;
use crate::schema;
use crate::sqlite::{Sqlite, classify};
use domain::limits::short;
use domain::{Error, Reason};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

fn failed(doing: &str, what: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(Reason::StoreUnavailable, format!("{doing} {}: {why}", what.display()))
}

fn db_failed(doing: &str, what: &Path) -> impl Fn(DbError) -> Error {
    move |e| {
        let (DbError::Conflict(why)
        | DbError::Full(why)
        | DbError::Away(why)
        | DbError::CommitUnknown(why)
        | DbError::Timeout(why)
        | DbError::Defect(why)) = e;
        failed(doing, what, why)
    }
}

/// A copy beside the target, renamed into place only when it is whole and on disk.
fn beside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    target.with_file_name(name)
}

fn settle(partial: &Path, target: &Path) -> std::io::Result<()> {
    File::open(partial)?.sync_all()?;
    std::fs::rename(partial, target)?;
    match target.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Writes a consistent copy of the database to `target`, which must not exist. The server may run. Only its
/// owner can read it: who has it has every secret's hash and every machine's address.
pub fn backup(database: &Path, target: &Path) -> Result<(), Error> {
    if target.exists() {
        return Err(failed("backing up to", target, "the file exists already; name another, or remove it"));
    }
    if let Err(e) = std::fs::metadata(database) {
        return Err(match e.kind() {
            ErrorKind::NotFound => failed("backing up", database, "there is no database"),
            ErrorKind::PermissionDenied => failed("backing up", database, format!("{e}; run as the server's user")),
            _ => failed("backing up", database, e),
        });
    }
    let source = Sqlite::open_read_only(database).map_err(db_failed("opening", database))?;
    copy(&source, target)
}

/// Copies what a server still has open beside where it was, and answers with the name of the copy.
pub(crate) fn rescue(open: &Sqlite, database: &Path) -> Result<PathBuf, Error> {
    let names = std::iter::once(".rescued".to_owned()).chain((2..).map(|n| format!(".rescued.{n}")));
    let target = names.take(1000).map(|name| with_suffix(database, &name)).find(|path| !path.exists());
    let target = target.ok_or_else(|| failed("saving", database, "too many earlier ones are kept beside it"))?;
    copy(open, &target)?;
    Ok(target)
}

fn copy(source: &Sqlite, target: &Path) -> Result<(), Error> {
    let partial = beside(target);
    remove_if_there(&partial).map_err(|e| failed("removing", &partial, e))?;
    // an empty file is taken as it is: nobody can open what is still to be filled
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(|e| failed("making", &partial, e))?;
    let copied = copy_into(source, &partial, target);
    if copied.is_err() {
        // what failed is the news; what is left of it is in nobody's way
        drop(remove_if_there(&partial));
    }
    copied
}

fn copy_into(source: &Sqlite, partial: &Path, target: &Path) -> Result<(), Error> {
    let text = partial.to_str().ok_or_else(|| failed("backing up to", target, "the path is not valid UTF-8"))?;
    source.raw().execute("VACUUM INTO ?1", [text]).map_err(|e| db_failed("backing up to", target)(classify(&e)))?;
    check(partial)?;
    settle(partial, target).map_err(|e| failed("writing", target, e))
}

/// Puts a backup in the place of the database. The caller makes sure that no server runs on it. What
/// was there is kept beside it; its path is the answer. The epoch is raised, so that no holder from
/// before the restore can write, and so is the head of the log, so that no sequence is given out twice.
pub fn restore(backup: &Path, database: &Path, ambient: &dyn Ambient) -> Result<Option<PathBuf>, Error> {
    check(backup)?;
    let partial = beside(database);
    for suffix in ["", "-wal", "-shm"] {
        let file = with_suffix(&partial, suffix);
        remove_if_there(&file).map_err(|e| failed("removing", &file, e))?;
    }
    std::fs::copy(backup, &partial).map_err(|e| failed("copying", backup, e))?;
    // one that cannot be read any more is no reason not to restore
    let gone = Reached::of(database).unwrap_or_default();
    raise(&partial, gone, ambient).map_err(db_failed("preparing", &partial))?;
    let kept = move_aside(database, ambient)?;
    settle(&partial, database).map_err(|e| failed("writing", database, e))?;
    Ok(kept)
}

/// Moves what is there out of the way, with its log, which may hold what was committed last. A log without
/// its database goes too: it would be taken for the restored one's.
fn move_aside(database: &Path, ambient: &dyn Ambient) -> Result<Option<PathBuf>, Error> {
    const FILES: [&str; 3] = ["", "-wal", "-shm"];
    let there = database.exists();
    let stem = with_suffix(database, &format!(".before-restore-{}", ambient.now().micros() / 1_000_000));
    let taken = |kept: &PathBuf| FILES.iter().any(|suffix| with_suffix(kept, suffix).exists());
    let names = std::iter::once(stem.clone()).chain((2..).map(|n| with_suffix(&stem, &format!(".{n}"))));
    let Some(kept) = names.take(1000).find(|kept| !taken(kept)) else {
        return Err(failed("moving aside", database, "too many earlier ones are kept beside it"));
    };
    for suffix in FILES {
        let (from, to) = (with_suffix(database, suffix), with_suffix(&kept, suffix));
        if from.exists() {
            std::fs::rename(&from, &to).map_err(|e| failed("moving aside", &from, e))?;
        }
    }
    Ok(there.then_some(kept))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whole, and of a schema this binary knows.
fn check(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Err(failed("reading the backup", path, "there is no such file"));
    }
    let mut db = Sqlite::open_read_only(path).map_err(db_failed("opening", path))?;
    let rows = db.rows("PRAGMA integrity_check", &[]).map_err(db_failed("checking", path))?;
    let verdict = rows.first().and_then(|r| r.text(0).ok()).unwrap_or("no answer");
    if verdict != "ok" {
        return Err(failed("checking", path, format!("the database is damaged: {verdict}")));
    }
    if let Some(foreign) = foreign_code(&mut db).map_err(db_failed("checking", path))? {
        return Err(failed("checking", path, format!("it holds {foreign}, and no backup of millwright does")));
    }
    let have = schema::version(&mut db).map_err(|_| failed("checking", path, "this is not a backup of millwright"))?;
    if have > schema::SCHEMA_VERSION {
        return Err(failed("checking", path, schema::newer(have, schema::SCHEMA_VERSION)));
    }
    Ok(())
}

/// A trigger, a view or a virtual table that is not ours: code that would run as part of our own statements, for as
/// long as whoever put it there likes.
fn foreign_code(db: &mut Sqlite) -> Result<Option<String>, DbError> {
    let sql = "SELECT type, name, COALESCE(sql, '') FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 10";
    let ours = schema::views();
    for row in db.rows(sql, &[])? {
        if !ours.iter().any(|view| row.text(2).is_ok_and(|text| text == view)) {
            return Ok(Some(format!("the {} {}", row.text(0)?, short(row.text(1)?))));
        }
    }
    Ok(None)
}

/// Further than any log goes on between a backup and its restore.
const LEAP: i64 = 1_000_000_000;
const STORE: &str = "store";
const RESTORED: &str = "restored";

/// Whether a row is where the log goes on after a restore: the only one that does not follow the one before.
pub(crate) fn is_leap(row: &LogRow) -> bool {
    row.entity_kind == STORE && row.trigger == RESTORED
}

/// How far a database has come.
#[derive(Clone, Copy, Default)]
struct Reached {
    epoch: i64,
    head: i64,
}

impl Reached {
    fn of(database: &Path) -> Option<Self> {
        if !database.exists() {
            return None;
        }
        let mut db = Sqlite::open_read_only(database).ok()?;
        let found = "SELECT CAST(value AS BIGINT), seq FROM meta, log_head WHERE name = 'epoch' AND one = 1";
        let rows = db.rows(found, &[]).ok()?;
        let row = rows.first()?;
        Some(Self { epoch: row.int(0).ok()?, head: row.int(1).ok()? })
    }
}

/// In the copy: a new epoch, no live sessions, everything in flight ready to be probed and resumed. The log
/// leaps over every sequence that was given out after the backup was made: whoever has seen those goes on
/// after them, and would never see others of the same numbers. What is replaced has its say, for it may be
/// an earlier restore of the same backup.
fn raise(path: &Path, gone: Reached, ambient: &dyn Ambient) -> Result<(), DbError> {
    let mut db = Sqlite::open(path)?;
    let now = ambient.now().micros();
    db.begin_write()?;
    // where nothing is replaced, nobody tells what has come since the backup: the time is above every epoch before it
    let reached = if gone.epoch == 0 { now / 1_000_000 } else { gone.epoch };
    db.exec(
        "UPDATE meta SET value = CAST(MAX(CAST(value AS BIGINT), $1) + 1 AS TEXT) WHERE name = 'epoch'",
        &[reached.into()],
    )?;
    db.exec("UPDATE log_head SET seq = MAX(seq, $1) + $2 WHERE one = 1", &[gone.head.into(), LEAP.into()])?;
    // written past the primitive: its columns are those of every schema that a backup can have
    db.exec(
        "INSERT INTO transitions(sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata)
         SELECT seq, $1, $2, $2, $2, '', $3, CAST(value AS BIGINT), $3, 'operator', 'system', 'from a backup', '{}'
         FROM log_head, meta WHERE one = 1 AND name = 'epoch'",
        &[now.into(), STORE.into(), RESTORED.into()],
    )?;
    db.exec("UPDATE sessions SET state = 'dead', ended_because = 'restored from a backup' WHERE state = 'live'", &[])?;
    db.exec(
        "UPDATE executions SET status = 'ready', holder = NULL, wake_at = $1 WHERE status = 'running'",
        &[now.into()],
    )?;
    db.commit(&Closing::default())?;
    // one file, with nothing left in a log beside it
    db.rows("PRAGMA wal_checkpoint(TRUNCATE)", &[]).map(drop)
}
