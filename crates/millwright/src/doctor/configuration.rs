//! The configuration: does it parse, does it make sense, and what does the environment change in it?

use super::report::Report;
use crate::config::Config;
use std::path::{Path, PathBuf};

const AREA: &str = "configuration";
const PREFIX: &str = "MILLWRIGHT_";

pub struct Found {
    pub config: Config,
    pub tls: TlsFiles,
}

/// What the section `tls` names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// The configuration as a server would have it, if a server would take it.
pub fn check(report: &mut Report, file: Option<&Path>, data: Option<PathBuf>) -> Option<Found> {
    let environment: Vec<(String, String)> = std::env::vars().collect();
    let text = file.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    secrets(report, &table, &environment);
    let loaded = Config::load(file);
    let from = file.map_or("no file, all defaults".to_owned(), |path| path.display().to_string());
    let overrides: Vec<&str> = overrides(&environment).collect();
    let mut config = match loaded {
        Ok(config) => {
            let changed = match overrides.as_slice() {
                [] => String::new(),
                names => format!("; the environment sets {}", names.join(", ")),
            };
            report.fine(AREA, format!("{from}{changed}"));
            config
        }
        Err(e) => {
            let next = match overrides.as_slice() {
                _ if file.is_some_and(|path| !path.exists()) => "name the right file with --config".to_owned(),
                [] => "set it right; every key is in the documentation".to_owned(),
                names => format!("set it right, in the file or in {}", names.join(", ")),
            };
            report.failed(AREA, e, next);
            return None;
        }
    };
    if let Some(path) = file {
        others_can_write(report, path);
    }
    if let Some(data) = data {
        config.server.data = data;
    }
    Some(Found { config, tls: tls_files(&table, &environment) })
}

/// Names of keys whose values are nobody's business.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let points_elsewhere = ["file", "files", "command"].iter().any(|ending| name.ends_with(ending));
    (name.contains("password") || name.contains("token") || name.contains("secret")) && !points_elsewhere
}

fn secrets(report: &mut Report, table: &toml::Table, environment: &[(String, String)]) {
    for (_, value) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX) && is_secret(name)) {
        report.secret(value);
    }
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => secrets(report, inner, &[]),
            toml::Value::String(text) if is_secret(name) => report.secret(text),
            other if is_secret(name) => report.secret(&other.to_string()),
            _ => {}
        }
    }
}

fn overrides(environment: &[(String, String)]) -> impl Iterator<Item = &str> {
    let ours = |name: &&str| name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains("__"));
    environment.iter().map(|(name, _)| name.as_str()).filter(ours)
}

fn tls_files(table: &toml::Table, environment: &[(String, String)]) -> TlsFiles {
    let value = |key: &str| {
        let name = format!("{PREFIX}TLS__{}", key.to_ascii_uppercase());
        let set =
            environment.iter().find(|(n, _)| *n == name).map(|(_, value)| value.trim_matches(['"', '\'']).to_owned());
        let filed = || Some(table.get("tls")?.get(key)?.as_str()?.to_owned());
        set.or_else(filed).filter(|path| !path.is_empty()).map(PathBuf::from)
    };
    TlsFiles { cert: value("cert"), key: value("key") }
}

/// Who can write the configuration runs the server.
fn others_can_write(report: &mut Report, path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    if let Ok(known) = std::fs::metadata(path)
        && known.permissions().mode() & 0o022 != 0
    {
        let mode = known.permissions().mode() & 0o777;
        let what = format!("{}: others can change it (mode {mode:03o})", path.display());
        report.doubtful(AREA, what, format!("chmod go-w {}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_the_names_of_their_keys() {
        let mut report = Report::new();
        let table: toml::Table =
            "[database]\nurl = 'postgres://h'\npassword = 'geheim1'\npassword_file = '/etc/x'\n".parse().expect("TOML");
        let environment = [("MILLWRIGHT_DATABASE__PASSWORD".to_owned(), "geheim2".to_owned())];
        secrets(&mut report, &table, &environment);
        report.fine("x", "geheim1 geheim2 postgres://h /etc/x");
        assert_eq!(report.lines(false), ["ok    x  … … postgres://h /etc/x"]);
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let table: toml::Table = "[tls]\ncert = 'a.pem'\nkey = 'a.key'\n".parse().expect("TOML");
        let environment =
            [("MILLWRIGHT_TLS__CERT".to_owned(), "b.pem".to_owned()), ("MILLWRIGHT_TOKEN".to_owned(), "t".to_owned())];
        let found = tls_files(&table, &environment);
        assert_eq!((found.cert, found.key), (Some("b.pem".into()), Some("a.key".into())));
        assert_eq!(overrides(&environment).collect::<Vec<_>>(), ["MILLWRIGHT_TLS__CERT"]);
    }
}
