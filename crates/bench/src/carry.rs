//! Carries every row of an SQLite database over into a PostgreSQL one with the same tables, by COPY: both are
//! then measured on the same rows, which the product itself has written once.

use crate::Outcome;
use futures::SinkExt as _;
use rusqlite::types::ValueRef;
use std::fmt::Write as _;
use std::io::Cursor;
use std::path::Path;
use tokio_postgres::Client;

/// Bytes sent at a time.
const CHUNK: usize = 1 << 20;

pub async fn over(from: &Path, to: &Client) -> Outcome<()> {
    let db = rusqlite::Connection::open_with_flags(from, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let tables: Vec<String> = db.prepare(names)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    // the rows are whole: nothing needs to be checked row by row
    to.batch_execute("SET session_replication_role = replica").await?;
    to.batch_execute(&format!("TRUNCATE {}", tables.join(", "))).await?;
    for table in &tables {
        let mut select = db.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = select.column_names().collect::<Vec<_>>().join(", ");
        let width = select.column_count();
        let sink = to.copy_in(&format!("COPY {table}({columns}) FROM STDIN")).await?;
        let mut sink = Box::pin(sink);
        let mut rows = select.query([])?;
        let mut text = String::new();
        while let Some(row) = rows.next()? {
            for n in 0..width {
                if n > 0 {
                    text.push('\t');
                }
                write_value(&mut text, row.get_ref(n)?)?;
            }
            text.push('\n');
            if text.len() > CHUNK {
                sink.send(Cursor::new(std::mem::take(&mut text).into_bytes())).await?;
            }
        }
        sink.send(Cursor::new(text.into_bytes())).await?;
        sink.as_mut().finish().await?;
    }
    let next = "SELECT setval(pg_get_serial_sequence('audit', 'number'), (SELECT COALESCE(MAX(number), 1) FROM audit))";
    to.batch_execute(next).await?;
    to.batch_execute("SET session_replication_role = origin").await?;
    Ok(())
}

/// As COPY reads it.
fn write_value(text: &mut String, value: ValueRef<'_>) -> Outcome<()> {
    match value {
        ValueRef::Null => text.push_str("\\N"),
        ValueRef::Integer(n) => write!(text, "{n}")?,
        ValueRef::Real(n) => write!(text, "{n}")?,
        ValueRef::Text(bytes) => {
            for c in std::str::from_utf8(bytes)?.chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    '\t' => text.push_str("\\t"),
                    '\n' => text.push_str("\\n"),
                    '\r' => text.push_str("\\r"),
                    c => text.push(c),
                }
            }
        }
        ValueRef::Blob(bytes) => {
            text.push_str("\\\\x");
            for byte in bytes {
                write!(text, "{byte:02x}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_copy_reads_them() {
        let mut text = String::new();
        for value in [ValueRef::Null, ValueRef::Integer(-7), ValueRef::Text(b"a\tb\\c\n"), ValueRef::Blob(&[0, 255])] {
            write_value(&mut text, value).expect("written");
            text.push('|');
        }
        assert_eq!(text, "\\N|-7|a\\tb\\\\c\\n|\\\\x00ff|");
    }
}
