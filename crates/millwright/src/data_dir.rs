//! The folder that belongs to this process: its lock, its name across restarts, its first token.

use domain::Timestamp;
use domain::token::{Role, Token};
use service::{Access, new_secret};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Held for the life of the server; given up by the system even when it is killed.
pub struct DataDir {
    pub path: PathBuf,
    _lock: File,
}

impl DataDir {
    pub fn open(path: &Path) -> Result<Self, String> {
        let failed = |doing: &str, e: std::io::Error| format!("{doing} {}: {e}", path.display());
        // what is in it is for nobody else's eyes
        let mut folder = std::fs::DirBuilder::new();
        folder.recursive(true).mode(0o700).create(path).map_err(|e| failed("creating the data folder", e))?;
        sync_folder_of(path).map_err(|e| failed("making sure of the data folder", e))?;
        let lock_path = path.join("lock");
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(|e| failed("opening the lock in", e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(format!(
                "the data folder {} is in use by another millwright; stop it first, or name another folder with --data",
                path.display()
            )),
            Err(TryLockError::Error(e)) => Err(failed("locking", e)),
        }
    }

    pub fn database(&self) -> PathBuf {
        database_in(&self.path)
    }

    /// Whether no server has run on this folder before.
    pub fn is_new(&self) -> bool {
        !self.path.join("instance").exists()
    }

    /// Names this process across restarts.
    pub fn instance_id(&self, fresh: impl FnOnce() -> String) -> Result<String, String> {
        let path = self.path.join("instance");
        match read_text(&path)? {
            Some(id) if !id.is_empty() => Ok(id),
            Some(_) | None => {
                let id = fresh();
                write_private(&path, &id)?;
                Ok(id)
            }
        }
    }

    /// Makes sure that somebody can get in. `Fresh` always writes a token of its own; otherwise one is written
    /// on the first start in this folder (a restored database may be in it) or when nobody is left who can
    /// administer the fleet. Written before it is made valid, so that a crash between the two locks nobody out.
    pub async fn ensure_admin(&self, access: &Access, start: Start, now: Timestamp) -> Result<AdminToken, String> {
        let path = self.path.join("admin.token");
        let needed = match start {
            Start::Fresh => return self.fresh_admin(access, path).await,
            Start::First => true,
            Start::Later => !access.has_admin().await.map_err(|e| e.to_string())?,
        };
        let there = read_text(&path)?.unwrap_or_default();
        if !needed {
            // one that opens nothing any more, or less than it says, is not worth pointing at
            let by = access.authenticate(Some(&format!("Bearer {there}"))).await;
            let opens = by.is_ok_and(|by| by.role == Role::Admin && by.customer_id.is_empty());
            return Ok(if opens { AdminToken::There(path) } else { AdminToken::Removed });
        }
        // one from before a crash is taken up: not any text that happens to lie there, and no lesser token
        if has_our_form(&there) {
            match access.add_admin(&there, "admin").await.map_err(|e| e.to_string())? {
                None => return Ok(AdminToken::Made(path)),
                Some(token) if administers(&token, now) => return Ok(AdminToken::There(path)),
                Some(_) => {}
            }
        }
        self.fresh_admin(access, path).await
    }

    async fn fresh_admin(&self, access: &Access, path: PathBuf) -> Result<AdminToken, String> {
        let secret = new_secret().map_err(|e| e.to_string())?;
        write_private(&path, &secret)?;
        match access.add_admin(&secret, "admin").await.map_err(|e| e.to_string())? {
            None => Ok(AdminToken::Made(path)),
            Some(token) => Err(format!("the fresh administrator's token is known as {} already", token.id)),
        }
    }
}

/// Why a start looks after the administrator's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The first one in this folder.
    First,
    Later,
    /// A fresh token was asked for.
    Fresh,
}

/// What became of `admin.token` at a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminToken {
    /// Valid since this start.
    Made(PathBuf),
    /// Valid, from before.
    There(PathBuf),
    /// None, or one that does not administer the fleet; somebody has kept another.
    Removed,
}

impl AdminToken {
    pub fn file(&self) -> Option<&Path> {
        match self {
            AdminToken::Made(path) | AdminToken::There(path) => Some(path),
            AdminToken::Removed => None,
        }
    }
}

/// Whether a token lets its bearer administer the whole fleet.
fn administers(token: &Token, now: Timestamp) -> bool {
    token.valid(now).is_ok() && token.role == Role::Admin && token.customer_id.is_empty()
}

/// `mwt_` and 256 bits in base64url: nothing that a person would think of.
fn has_our_form(secret: &str) -> bool {
    let digits = secret.strip_prefix("mwt_").unwrap_or_default();
    digits.len() == 43 && digits.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

pub fn database_in(folder: &Path) -> PathBuf {
    folder.join("millwright.db")
}

pub fn read_text(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    match File::open(path).and_then(|mut f| f.read_to_string(&mut text)) {
        Ok(_) => Ok(Some(text.trim().to_owned())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("reading {}: {e}", path.display())),
    }
}

/// Makes sure that the name of a file or folder outlasts a power cut: it stands in the folder above.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let above = std::path::absolute(path)?;
    match above.parent().map(File::open) {
        Some(Ok(folder)) => folder.sync_all(),
        // one that may not be looked into was not made by us
        Some(Err(e)) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        Some(Err(e)) => Err(e),
        None => Ok(()),
    }
}

/// A new file in the place of whatever is there: its mode, its links and those who have it open go with it.
/// Once written it is on disk, under its name: a power cut must not bring back what was before, for the
/// database by then knows this one.
pub fn write_private(path: &Path, text: &str) -> Result<(), String> {
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        sync_folder_of(path)
    };
    write().map_err(|e| format!("writing {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_make_has_the_form_of_a_token() {
        for _ in 0..20 {
            assert!(has_our_form(&new_secret().expect("randomness")));
        }
        let digits = "a".repeat(43);
        for bad in [
            "",
            "hunter2",
            "mwt_",
            "mwt_hunter2",
            &digits,
            &format!("mwt_{digits}a"),
            &format!("mwt_{}=", "a".repeat(42)),
        ] {
            assert!(!has_our_form(bad), "{bad}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let (path, elsewhere) = (folder.path().join("admin.token"), folder.path().join("elsewhere"));
        std::fs::write(&elsewhere, "old").expect("written");
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o644)).expect("set");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("linked");
        write_private(&path, "new").expect("written");
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "old");
        let known = std::fs::symlink_metadata(&path).expect("there");
        assert!(known.is_file() && known.permissions().mode() & 0o777 == 0o600);
        assert_eq!(read_text(&path), Ok(Some("new".to_owned())));
    }
}
