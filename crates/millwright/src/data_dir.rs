//! The folder that belongs to this process: its lock, its name across restarts, its first token.

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

    /// Makes sure that somebody can get in: on the first start in this folder (a restored database may be
    /// in it) a token is written to `admin.token`. Written before it is made valid, so that a crash
    /// between the two locks nobody out.
    pub async fn ensure_admin(&self, access: &Access, first_start: bool) -> Result<Option<PathBuf>, String> {
        let path = self.path.join("admin.token");
        if !first_start && access.has_admin().await.map_err(|e| e.to_string())? {
            // one that opens nothing any more is not worth pointing at
            let opens = match read_text(&path)? {
                Some(secret) => access.authenticate(Some(&format!("Bearer {secret}"))).await.is_ok(),
                None => false,
            };
            return Ok(opens.then_some(path));
        }
        let add = async |secret: &str| access.add_admin(secret, "admin").await.map_err(|e| e.to_string());
        // one from before a crash is taken up, unless it has been revoked since
        if let Some(secret) = read_text(&path)?.filter(|s| !s.is_empty())
            && add(&secret).await?
        {
            return Ok(Some(path));
        }
        let secret = new_secret().map_err(|e| e.to_string())?;
        write_private(&path, &secret)?;
        add(&secret).await?;
        Ok(Some(path))
    }
}

pub fn database_in(folder: &Path) -> PathBuf {
    folder.join("millwright.db")
}

fn read_text(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    match File::open(path).and_then(|mut f| f.read_to_string(&mut text)) {
        Ok(_) => Ok(Some(text.trim().to_owned())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("reading {}: {e}", path.display())),
    }
}

fn write_private(path: &Path, text: &str) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
        writeln!(file, "{text}")?;
        file.sync_all()
    };
    write().map_err(|e| format!("writing {}: {e}", path.display()))
}
