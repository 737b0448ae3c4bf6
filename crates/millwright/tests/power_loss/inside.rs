//! A look at a database without the server: by SQLite itself, and by folding the log of every run.

use domain::filter::Filter;
use std::path::Path;
use std::sync::Arc;
use store::{Options, Store, SystemAmbient};

/// Answers what is wrong with it, if something is.
pub fn look(database: &Path) -> Result<(), String> {
    let connection = rusqlite::Connection::open(database).map_err(|e| format!("opening: {e}"))?;
    let ask = |what: &str| connection.query_row(what, [], |row| row.get::<_, String>(0)).map_err(|e| e.to_string());
    let (whole, dangling) =
        (ask("PRAGMA integrity_check")?, ask("SELECT CAST(COUNT(*) AS TEXT) FROM pragma_foreign_key_check")?);
    if (whole.as_str(), dangling.as_str()) != ("ok", "0") {
        return Err(format!("integrity: {whole}; references that lead nowhere: {dangling}"));
    }
    drop(connection);
    let store = Store::open(&Options::Sqlite(database.to_owned()), Arc::new(SystemAmbient::new()));
    let store = store.map_err(|e| e.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let folded = runtime.block_on(store.snapshot(|tx| {
        let runs = store::run::list(tx, &Filter::Everything, "", 1000)?;
        runs.iter().map(|run| store::run::check_fold(tx, &run.id)).collect::<Result<Vec<_>, _>>()
    }));
    store.close();
    folded.map_err(|e| e.to_string())?.into_iter().collect()
}
