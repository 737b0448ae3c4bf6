//! A look at a database that changes nothing: no migration, no file made, no log taken in. For those who
//! want to know before they start a server.

use crate::postgres::describe;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::NoTls;

/// What a look has told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Name and version of the database.
    pub database: String,
    /// The schema it has; none when it has no tables of ours.
    pub schema: Option<i64>,
    pub integrity: Integrity,
    /// The keys that credentials are sealed under, and how many under each.
    pub keys: Vec<(String, i64)>,
    /// Those that machines boot and write, by name and digest.
    pub images: Vec<(String, String)>,
    /// The key that the agents' authority is sealed under, where there is one.
    pub authority_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Integrity {
    Whole,
    Damaged(String),
    /// Not looked at, or not to the end.
    Unknown(&'static str),
}

const KEYS: &str = "SELECT key_id, COUNT(*) FROM credentials WHERE state = 'present' GROUP BY key_id ORDER BY key_id";
/// The first schema that has credentials.
const KEYS_SINCE: i64 = 3;
const IMAGES: &str = "SELECT name, sha256 FROM images WHERE state = 'present' ORDER BY name";
/// The first schema that has images.
const IMAGES_SINCE: i64 = 5;
const AUTHORITY: &str = "SELECT key_id FROM agent_authority";
/// The first schema that has agents.
const AUTHORITY_SINCE: i64 = 6;
const SCHEMA: &str = "SELECT max(version) FROM schema_migrations";
/// Virtual machine steps between two looks at the clock.
const STEPS: i32 = 10_000;
const BUSY: Duration = Duration::from_secs(2);

/// Looks at an embedded database, which a server may be using. The check of its pages takes no longer than
/// `within`.
pub fn sqlite(path: &Path, within: Duration) -> Result<Inspection, String> {
    let failed = |e: rusqlite::Error| format!("{}: {e}", path.display());
    let mut connection = open(path)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    let schema = match connection.query_row(SCHEMA, [], |row| row.get::<_, Option<i64>>(0)) {
        Ok(version) => version,
        Err(e) if e.to_string().contains("no such table") => None,
        Err(e) => return Err(failed(e)),
    };
    let keys = match schema {
        Some(have) if have >= KEYS_SINCE => sqlite_pairs(&connection, KEYS).map_err(failed)?,
        Some(_) | None => Vec::new(),
    };
    let images = match schema {
        Some(have) if have >= IMAGES_SINCE => sqlite_pairs(&connection, IMAGES).map_err(failed)?,
        Some(_) | None => Vec::new(),
    };
    let authority_key = match schema {
        Some(have) if have >= AUTHORITY_SINCE => {
            connection.query_row(AUTHORITY, [], |row| row.get(0)).optional().map_err(failed)?
        }
        Some(_) | None => None,
    };
    let until = Instant::now() + within;
    connection.progress_handler(STEPS, Some(move || Instant::now() >= until)).map_err(failed)?;
    let integrity = match connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)) {
        Ok(verdict) if verdict == "ok" => Integrity::Whole,
        Ok(verdict) => Integrity::Damaged(verdict),
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Integrity::Unknown("it is too large to be checked in the time given")
        }
        Err(e) => Integrity::Damaged(e.to_string()),
    };
    let database = format!("SQLite {}", rusqlite::version());
    Ok(Inspection { database, schema, integrity, keys, images, authority_key })
}

fn sqlite_pairs<T: rusqlite::types::FromSql>(
    connection: &Connection,
    query: &str,
) -> rusqlite::Result<Vec<(String, T)>> {
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Opens it so that nothing is made beside it. A log with its index is read as they are; without the index,
/// reading the log would make one, so the log is left out.
fn open(path: &Path) -> Result<Connection, String> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_os_string();
        name.push(suffix);
        PathBuf::from(name).exists()
    };
    let failed = |e: &dyn std::fmt::Display| format!("opening {}: {e}", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if beside("-wal") && beside("-shm") {
        return Connection::open_with_flags(path, flags).map_err(|e| failed(&e));
    }
    let text = path.to_str().ok_or_else(|| failed(&"the path is not valid UTF-8"))?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'-' | b'_');
    let encoded: String =
        text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect();
    let uri = format!("file:{encoded}?immutable=1");
    Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).map_err(|e| failed(&e))
}

/// Looks at a shared database. Every wait together takes no longer than `within`.
pub async fn postgres(config: &tokio_postgres::Config, within: Duration) -> Result<Inspection, String> {
    let looking = async {
        let (client, connection) = config.connect(NoTls).await.map_err(|e| describe(&e))?;
        // ends with the client
        let driver = tokio::spawn(async move { drop(connection.await) });
        client.batch_execute("SET default_transaction_read_only = true").await.map_err(|e| describe(&e))?;
        let version = client.query_one("SHOW server_version", &[]).await.map_err(|e| describe(&e))?;
        let there = "SELECT to_regclass('schema_migrations') IS NOT NULL";
        let there: bool = client.query_one(there, &[]).await.map_err(|e| describe(&e))?.get(0);
        let schema: Option<i64> = match there {
            true => client.query_one(SCHEMA, &[]).await.map_err(|e| describe(&e))?.get(0),
            false => None,
        };
        let keys = match schema {
            Some(have) if have >= KEYS_SINCE => client.query(KEYS, &[]).await.map_err(|e| describe(&e))?,
            Some(_) | None => Vec::new(),
        };
        let keys = keys.iter().map(|row| (row.get(0), row.get(1))).collect();
        let images = match schema {
            Some(have) if have >= IMAGES_SINCE => client.query(IMAGES, &[]).await.map_err(|e| describe(&e))?,
            Some(_) | None => Vec::new(),
        };
        let images = images.iter().map(|row| (row.get(0), row.get(1))).collect();
        let authority_key = match schema {
            Some(have) if have >= AUTHORITY_SINCE => {
                client.query_opt(AUTHORITY, &[]).await.map_err(|e| describe(&e))?.map(|row| row.get(0))
            }
            Some(_) | None => None,
        };
        drop(client);
        drop(driver.await);
        let database = format!("PostgreSQL {}", version.get::<_, String>(0));
        let integrity = Integrity::Unknown("its pages are its own business");
        Ok(Inspection { database, schema, integrity, keys, images, authority_key })
    };
    tokio::time::timeout(within, looking).await.unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, SCHEMA_VERSION, Store, SystemAmbient};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(60);

    fn names(folder: &Path) -> BTreeMap<String, u64> {
        let entry = |e: std::io::Result<std::fs::DirEntry>| {
            let e = e.expect("an entry");
            (e.file_name().to_string_lossy().into_owned(), e.metadata().expect("known").len())
        };
        std::fs::read_dir(folder).expect("a folder").map(entry).collect()
    }

    #[test]
    fn a_look_tells_and_leaves_no_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a b.db");
        let store = Store::open(&Options::Sqlite(path.clone()), Arc::new(SystemAmbient::new())).expect("opens");
        let while_in_use = sqlite(&path, LONG).expect("looked");
        assert_eq!((while_in_use.schema, &while_in_use.integrity), (Some(SCHEMA_VERSION), &Integrity::Whole));
        store.close();
        drop(store);
        let before = names(folder.path());
        assert_eq!(sqlite(&path, LONG).expect("looked").schema, Some(SCHEMA_VERSION));
        assert_eq!(names(folder.path()), before, "nothing is made beside it");
    }

    #[test]
    fn what_is_not_ours_or_not_whole_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        };
        assert!(sqlite(&file("junk.db", b"this is not a database, whatever its name says"), LONG).is_err());
        assert_eq!(sqlite(&file("empty.db", b""), LONG).expect("an empty one").schema, None);
        assert!(sqlite(&folder.path().join("none.db"), LONG).is_err_and(|e| e.contains("none.db")));
        assert_eq!(names(folder.path()).len(), 2, "nothing was made");
    }
}
