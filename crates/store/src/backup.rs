//! Backup and restore of the embedded database, while the server runs or not.

use crate::ambient::Ambient;
use crate::db::Connection;
use crate::error::DbError;
use crate::schema;
use crate::sqlite::{Sqlite, classify};
use domain::{Error, Reason};
use std::fs::File;
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

/// Writes a consistent copy of the database to `target`, which must not exist. The server may run.
pub fn backup(database: &Path, target: &Path) -> Result<(), Error> {
    if target.exists() {
        return Err(failed("backing up to", target, "the file exists already; name another, or remove it"));
    }
    if !database.exists() {
        return Err(failed("backing up", database, "there is no database"));
    }
    let partial = beside(target);
    remove_if_there(&partial).map_err(|e| failed("removing", &partial, e))?;
    let source = Sqlite::open_read_only(database).map_err(db_failed("opening", database))?;
    let text = partial.to_str().ok_or_else(|| failed("backing up to", target, "the path is not valid UTF-8"))?;
    source.raw().execute("VACUUM INTO ?1", [text]).map_err(|e| db_failed("backing up to", target)(classify(&e)))?;
    check(&partial)?;
    settle(&partial, target).map_err(|e| failed("writing", target, e))
}

/// Puts a backup in the place of the database. The caller makes sure that no server runs on it. What
/// was there is kept beside it; its path is the answer. The epoch is raised, so that no holder from
/// before the restore can write.
pub fn restore(backup: &Path, database: &Path, ambient: &dyn Ambient) -> Result<Option<PathBuf>, Error> {
    check(backup)?;
    let partial = beside(database);
    for suffix in ["", "-wal", "-shm"] {
        let file = with_suffix(&partial, suffix);
        remove_if_there(&file).map_err(|e| failed("removing", &file, e))?;
    }
    std::fs::copy(backup, &partial).map_err(|e| failed("copying", backup, e))?;
    raise_epoch(&partial, ambient).map_err(db_failed("preparing", &partial))?;
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
    let have = schema::version(&mut db).map_err(|_| failed("checking", path, "this is not a backup of millwright"))?;
    if have > schema::SCHEMA_VERSION {
        return Err(failed("checking", path, schema::newer(have, schema::SCHEMA_VERSION)));
    }
    Ok(())
}

/// In the copy: a new epoch, no live sessions, everything in flight ready to be probed and resumed.
fn raise_epoch(path: &Path, ambient: &dyn Ambient) -> Result<(), DbError> {
    let mut db = Sqlite::open(path)?;
    let now = ambient.now().micros();
    db.begin_write()?;
    for sql in [
        "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'epoch'",
        "UPDATE sessions SET state = 'dead', ended_because = 'restored from a backup' WHERE state = 'live'",
    ] {
        db.exec(sql, &[])?;
    }
    db.exec(
        "UPDATE executions SET status = 'ready', holder = NULL, wake_at = $1 WHERE status = 'running'",
        &[now.into()],
    )?;
    db.commit(&[])?;
    // one file, with nothing left in a log beside it
    db.rows("PRAGMA wal_checkpoint(TRUNCATE)", &[]).map(drop)
}
