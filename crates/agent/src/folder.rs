//! A folder of the agent's own: files that are whole or not there at all, whenever the power goes, and readable by
//! nobody else. One agent at a time holds it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Larger than anything that is kept in one file.
const FILE_MAX: u64 = 8 * 1024 * 1024;
const LOCK: &str = "lock";

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Held as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Folder {
    /// Made if it is not there, and closed to others if it is open to them.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, String> {
        let path = path.into();
        let failed = |doing: &str, e: std::io::Error| {
            format!(
                "{doing} the folder {}: {e}; the agent runs as root, or with --state DIR of its own",
                path.display()
            )
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| failed("making", e))?;
        let mode = fs::metadata(&path).map_err(|e| failed("looking at", e))?.permissions().mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(|e| failed("closing", e))?;
        }
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// On disk when this returns, in the place of what was there.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), String> {
        let (target, beside) = (self.path.join(name), self.path.join(format!(".{name}.new")));
        let put = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&beside, &target)?;
            File::open(&self.path)?.sync_all()
        };
        put().map_err(|e| format!("writing {}: {e}; is the disk full, or read-only?", target.display()))
    }

    /// What is in it, unless there is no such file.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.path.join(name);
        match read_file(&path) {
            Ok(content) => Ok(Some(content)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("reading {}: {e}", path.display())),
        }
    }

    /// Gone when this returns, also if it was not there.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("removing {}: {e}", path.display())),
            _ => File::open(&self.path)
                .and_then(|folder| folder.sync_all())
                .map_err(|e| format!("removing {}: {e}", path.display())),
        }
    }

    /// Names of the files that are whole.
    pub fn names(&self) -> Result<Vec<String>, String> {
        let failed = |e: std::io::Error| format!("listing {}: {e}", self.path.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some(name) = name.to_str().filter(|n| !n.starts_with('.')) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// For this process alone, until it ends in whatever way. Otherwise says who has it.
    pub fn lock(&self) -> Result<Lock, String> {
        let path = self.path.join(LOCK);
        let failed = |e: std::io::Error| format!("locking {}: {e}", path.display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let told = file.take(64).read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                let holder = if told { format!("process {}", holder.trim()) } else { "another process".to_owned() };
                return Err(format!(
                    "the agent's state {} is in use by {holder}: one agent runs on a machine; stop that one first \
                     (systemctl stop millwright-agent), or use --state DIR",
                    self.path.display()
                ));
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

/// A file that is not absurdly large.
pub fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_MAX {
        return Err(std::io::Error::other(format!("larger than {FILE_MAX} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_whole_and_closed_to_others() {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(scratch.path().join("state")).expect("opened");
        folder.write("one", b"first").expect("written");
        folder.write("one", b"second").expect("written");
        assert_eq!(folder.read("one").expect("read").as_deref(), Some(&b"second"[..]));
        assert_eq!(folder.read("two").expect("read"), None);
        assert_eq!(folder.names().expect("listed"), ["one"]);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.path().join("one"))), (0o700, 0o600));
        folder.remove("one").expect("removed");
        folder.remove("one").expect("removed already");
        assert_eq!(folder.names().expect("listed"), Vec::<String>::new());
    }

    #[test]
    fn a_folder_that_is_open_to_others_is_closed() {
        let scratch = tempfile::tempdir().expect("a folder");
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("opened to all");
        Folder::open(scratch.path()).expect("opened");
        assert_eq!(fs::metadata(scratch.path()).expect("there").permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_second_one_is_told_who_has_it() {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(scratch.path()).expect("opened");
        let held = folder.lock().expect("free");
        let refused = folder.lock().expect_err("taken");
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(held);
        folder.lock().expect("free again");
    }
}
