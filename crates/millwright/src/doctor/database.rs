//! The database: embedded or shared, of which schema, and whole?

use super::data::check_age;
use super::report::Report;
use crate::config::Config;
use crate::data_dir::database_in;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;
use store::SCHEMA_VERSION;
use store::inspect::{self, Inspection, Integrity};

const AREA: &str = "database";
const CHECK_WITHIN: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// What else there is to look for, by what the database says.
#[derive(Default)]
pub struct Named {
    /// The keys that credentials are sealed under, and how many under each.
    pub keys: Vec<(String, i64)>,
    /// Images by name and digest; none where the database could not be asked.
    pub images: Option<Vec<(String, String)>>,
    /// The key that the agents' authority is sealed under.
    pub authority_key: Option<String>,
}

impl From<Inspection> for Named {
    fn from(found: Inspection) -> Self {
        Self { keys: found.keys, images: Some(found.images), authority_key: found.authority_key }
    }
}

pub async fn check(report: &mut Report, config: &Config, held: bool) -> Named {
    if !config.database.url.is_empty() {
        return shared(report, config).await;
    }
    let path = database_in(&config.server.data);
    let name = path.display();
    if !path.exists() {
        report.skipped(AREA, format!("{name} is not there yet: the first start makes it"));
        return Named::default();
    }
    let found = inspect::sqlite(&path, CHECK_WITHIN);
    match &found {
        Ok(found) => told(report, &name.to_string(), found, held),
        Err(e) => report.failed(AREA, e.clone(), "restore a backup: millwright restore FILE"),
    }
    check_age(report, &path);
    found.map(Named::from).unwrap_or_default()
}

/// What was found, and what a start would make of it.
fn told(report: &mut Report, name: &str, found: &Inspection, held: bool) {
    let Inspection { database, schema, integrity, .. } = found;
    match schema {
        None => report.skipped(AREA, format!("{name}: {database}, empty: the first start fills it")),
        Some(have) if *have > SCHEMA_VERSION => {
            let what = format!("{name}: schema {have}, and this millwright knows only up to {SCHEMA_VERSION}");
            report.failed(AREA, what, "run a newer millwright, or restore a backup made before the upgrade");
        }
        Some(have) if *have < SCHEMA_VERSION && held => {
            let what = format!(
                "{name}: {database}, schema {have}; this millwright has {SCHEMA_VERSION}, the running server an older one"
            );
            report.doubtful(AREA, what, "after a backup, restart the server with this millwright");
        }
        Some(have) if *have < SCHEMA_VERSION => {
            let what = format!("{name}: {database}, schema {have}; the next start brings it to {SCHEMA_VERSION}");
            report.doubtful(AREA, what, "make a backup first: millwright backup FILE");
        }
        Some(have) => report.fine(AREA, format!("{name}: {database}, schema {have}")),
    }
    match integrity {
        Integrity::Whole => report.fine("integrity", "no damage found"),
        Integrity::Damaged(what) => {
            report.failed(
                "integrity",
                format!("{name} is damaged: {what}"),
                "restore a backup: millwright restore FILE",
            );
        }
        Integrity::Unknown(why) => report.skipped("integrity", format!("not told: {why}")),
    }
}

async fn shared(report: &mut Report, config: &Config) -> Named {
    let database = &config.database;
    let mut parsed: tokio_postgres::Config = match database.url.parse() {
        Ok(parsed) => parsed,
        Err(e) => {
            report.failed(AREA, format!("database.url: {e}"), "write it like postgres://USER@HOST:PORT/NAME");
            return Named::default();
        }
    };
    if let Some(password) = parsed.get_password() {
        report.secret(&String::from_utf8_lossy(password));
        let next = "take it out; use database.password_file or MILLWRIGHT_DATABASE__PASSWORD";
        report.failed(AREA, "database.url holds the password, where everybody sees it", next);
        return Named::default();
    }
    match (&database.password_file, &database.password) {
        (Some(file), _) => match password_file(report, file) {
            Some(password) => drop(parsed.password(password)),
            None => return Named::default(),
        },
        (None, Some(password)) => drop(parsed.password(password.reveal())),
        (None, None) => {}
    }
    parsed.application_name("millwright-doctor");
    // without user or password in it, as the URL is by now
    let name = &database.url;
    match inspect::postgres(&parsed, CONNECT_WITHIN).await {
        Ok(found) => {
            told(report, name, &found, false);
            found.into()
        }
        Err(e) => {
            report.failed(AREA, format!("{name}: {e}"), "is it running, and does it let this user in?");
            Named::default()
        }
    }
}

fn password_file(report: &mut Report, file: &Path) -> Option<String> {
    const AREA: &str = "password file";
    let name = file.display();
    let read = std::fs::metadata(file).and_then(|known| Ok((known, std::fs::read_to_string(file)?)));
    match read {
        Ok((known, text)) => {
            report.secret(&text);
            match known.permissions().mode() & 0o777 {
                mode if mode & 0o007 != 0 => {
                    let what = format!("{name}: everybody can read it (mode {mode:03o})");
                    report.failed(AREA, what, format!("chmod 600 {name}"));
                }
                mode => report.fine(AREA, format!("{name}: mode {mode:03o}")),
            }
            Some(text.trim().to_owned())
        }
        Err(e) => {
            report.failed(AREA, format!("{name}: {e}"), "name the right one in database.password_file");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(schema: Option<i64>, integrity: Integrity, held: bool) -> Vec<String> {
        let mut report = Report::new();
        let (keys, images) = (Vec::new(), Vec::new());
        let database = "SQLite 3".to_owned();
        let found = Inspection { database, schema, integrity, keys, images, authority_key: None };
        told(&mut report, "x.db", &found, held);
        report.lines(false)
    }

    #[test]
    fn a_schema_is_judged_by_what_a_start_would_do() {
        let of = |schema| lines(Some(schema), Integrity::Whole, false)[0].clone();
        assert!(of(SCHEMA_VERSION).starts_with("ok"));
        assert!(of(SCHEMA_VERSION + 1).starts_with("FAIL") && of(SCHEMA_VERSION + 1).contains("newer millwright"));
        assert!(of(SCHEMA_VERSION - 1).starts_with("warn") && of(SCHEMA_VERSION - 1).contains("backup"));
        assert!(lines(None, Integrity::Whole, false)[0].starts_with("skip"));
        assert!(lines(Some(1), Integrity::Damaged("page 7".to_owned()), true)[1].contains("page 7; restore"));
    }
}
