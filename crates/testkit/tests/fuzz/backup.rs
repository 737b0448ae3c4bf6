//! Backups that are damaged or made by an enemy: a restore refuses them and leaves what is there alone, or what
//! it restores opens and answers.

use crate::rows::{copy, lived_in, read_all};
use crate::wire::shape;
use service::Service;
use std::path::Path;
use testkit::fleet::{Fleet, quick};
use testkit::fuzz::Fuzz;

/// An input is a list of edits, each of eight bytes and what follows: where, how much of it, and with what.
fn edited(whole: &[u8], input: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for edit in input.chunks(12) {
        let Some((head, new)) = edit.split_at_checked(4) else { break };
        let at = u32::from_le_bytes([head[0], head[1], head[2], head[3] & 0x0f]) as usize % bytes.len().max(1);
        match head[3] >> 4 {
            0 => bytes.truncate(at),
            1 => bytes.extend(new.repeat(512)),
            2 => {
                // a page in the place of another
                let (from, to) =
                    (at / 4096 * 4096, (at / 4096 + usize::from(new.first().copied().unwrap_or(1))) * 4096);
                if to + 4096 <= bytes.len() && from + 4096 <= bytes.len() {
                    bytes.copy_within(from..from + 4096, to);
                }
            }
            // the header and the first page more often than chance would have it
            3..8 => put(&mut bytes, at % 4096, new),
            8..10 => put(&mut bytes, at % 100, &new[..1.min(new.len())]),
            _ => put(&mut bytes, at, new),
        }
    }
    bytes
}

/// What an enemy who knows SQL does to a backup. That it takes long is not ours.
fn run_sql(file: &Path, sql: &str) {
    let mut raw = rusqlite::Connection::open(file).expect("opens");
    raw.execute_batch("PRAGMA foreign_keys = OFF").expect("set");
    let mut looks = 0;
    let enough = move || {
        looks += 1;
        looks > 50
    };
    raw.progress_handler(1_000, Some(enough)).expect("set");
    drop(raw.execute_batch(sql));
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
        *byte = *new;
    }
}

#[test]
fn backup() {
    let endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c";
    let sql = [
        format!("sql:CREATE TRIGGER t AFTER UPDATE ON meta BEGIN {endless}; END"),
        format!("sql:ALTER TABLE log_head RENAME TO lh; CREATE VIEW log_head AS {endless}"),
        "sql:DROP TABLE tokens".to_owned(),
        "sql:DELETE FROM log_head; DELETE FROM meta".to_owned(),
        "sql:UPDATE schema_migrations SET version = 99".to_owned(),
        "sql:UPDATE schema_migrations SET version = 0".to_owned(),
        "sql:UPDATE log_head SET seq = 9223372036854775807; UPDATE meta SET value = '9223372036854775807'".to_owned(),
        "sql:UPDATE meta SET value = 'x'; UPDATE transitions SET sequence = -sequence".to_owned(),
        "sql:ALTER TABLE runs DROP COLUMN spec".to_owned(),
    ];
    let seeds: [&[u8]; 6] = [
        b"",
        &[0, 16, 0, 0x00],
        &[18, 0, 0, 0x80, 9],
        &[0, 0, 1, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8],
        &[100, 0, 0, 0x30, 0x0d, 0, 0],
        &[0, 32, 0, 0x20, 3],
    ];
    let words = ["CREATE TABLE", "CREATE TRIGGER", "meta", "epoch", "log_head", "executions", "ok", "SQLite format 3"];
    Fuzz::new("backup", module_path!()).seeds(seeds).seeds(sql).words(words).inputs(200).run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (fleet, file) = lived_in(&runtime);
        let place = file.parent().expect("a folder").to_owned();
        let (good, bad, database) = (place.join("good.backup"), place.join("bad.backup"), place.join("target.db"));
        store::backup(&file, &good).expect("a backup");
        let whole = std::fs::read(&good).expect("read");
        let there = std::fs::read(&file).expect("read");
        move |input| {
            match input.strip_prefix(b"sql:") {
                Some(sql) => {
                    std::fs::write(&bad, &whole).expect("written");
                    run_sql(&bad, &String::from_utf8_lossy(sql));
                }
                None => std::fs::write(&bad, edited(&whole, input)).expect("written"),
            }
            copy(&file, &database);
            if let Err(e) = store::restore(&bad, &database, fleet.ambient.as_ref()) {
                let same = std::fs::read(&database).is_ok_and(|now| now == there);
                return match (same, e.message.contains(&place.display().to_string())) {
                    (true, true) => Ok(shape(&e.message.replace(&place.display().to_string(), ""))),
                    (false, _) => Err(format!("refused, and yet the database is another: {e}")),
                    (_, false) => Err(format!("refused without naming the file: {e}")),
                };
            }
            let read = runtime.block_on(async {
                let opened = store::Store::open(&store::Options::Sqlite(database.clone()), fleet.ambient.clone());
                let fleet = Fleet::over(opened.map_err(|e| format!("restored and does not open: {e}"))?, &fleet);
                let engine = fleet.engine(quick("fuzz"), None);
                let read = match Service::new(fleet.store.clone(), engine, fleet.providers(), Default::default()).await
                {
                    Ok(service) => {
                        let read = read_all(&fleet, &service, &database).await;
                        service.close();
                        read
                    }
                    Err(e) => Err(e),
                };
                fleet.store.close();
                read.map_err(|e| format!("restored: {e}"))
            });
            for entry in std::fs::read_dir(&place).expect("a folder").flatten() {
                if entry.file_name().to_string_lossy().contains(".before-restore-") {
                    drop(std::fs::remove_file(entry.path()));
                }
            }
            Ok(read.map_or_else(|e| shape(&e), |()| "restored".to_owned()))
        }
    });
}
