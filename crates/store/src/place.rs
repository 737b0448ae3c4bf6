//! Where an embedded database lies. A file that was deleted or replaced under a running server still takes
//! every write, and no start will ever find them again: so whoever writes makes sure, before and after, that
//! the names still lead to the files that were opened.

use crate::backup::rescue;
use crate::sqlite::Sqlite;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries to save what is left, where one has failed.
const TRY_AGAIN: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    database: PathBuf,
    /// The database and its log, each with the file it was when it was opened.
    files: Vec<(PathBuf, File)>,
    saved: Saved,
}

/// A file, whatever its name is.
pub(crate) type File = (u64, u64);

enum Saved {
    Not,
    Failed(Instant),
    In(PathBuf),
}

impl Place {
    /// Call while a transaction is open: then both files are there.
    pub fn of(database: &Path) -> std::io::Result<Self> {
        let files: std::io::Result<Vec<_>> = ["", "-wal"]
            .into_iter()
            .map(|suffix| {
                let mut name = database.as_os_str().to_os_string();
                name.push(suffix);
                let path = PathBuf::from(name);
                file(&path).map(|found| (path, found))
            })
            .collect();
        Ok(Self { database: database.to_owned(), files: files?, saved: Saved::Not })
    }

    /// What is wrong with the files, if something is.
    pub fn trouble(&self) -> Option<String> {
        self.files.iter().find_map(|(path, opened)| match file(path) {
            Ok(found) if found == *opened => None,
            Ok(_) => Some(format!("{} is another file than the one that was opened", path.display())),
            Err(e) => Some(format!("{} was there and is not any more: {e}", path.display())),
        })
    }

    /// Writes what the server still has beside where it was, once, and says what an operator can do.
    pub fn save(&mut self, open: &Sqlite) -> String {
        let again = match &self.saved {
            Saved::Not => true,
            Saved::Failed(at) => at.elapsed() >= TRY_AGAIN,
            Saved::In(_) => false,
        };
        if again {
            self.saved = match rescue(open, &self.database) {
                Ok(path) => Saved::In(path),
                Err(e) => {
                    tracing::error!(error = %e, "saving what was in the database");
                    Saved::Failed(Instant::now())
                }
            };
        }
        match &self.saved {
            Saved::In(path) => format!(
                "nothing is written until the files are back. Everything acknowledged is in {0}: move the files back, or stop the server and run `millwright restore {0}`",
                path.display()
            ),
            Saved::Not | Saved::Failed(_) => {
                "nothing is written until the files are back; move them back, or stop the server and restore a backup"
                    .to_owned()
            }
        }
    }
}

pub(crate) fn file(path: &Path) -> std::io::Result<File> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
