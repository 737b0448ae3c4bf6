//! Bytes that no name means any more are marked (`.unnamed-HEX`, beside them) and kept for a while; the mark's own time
//! says since when. Only what is marked is ever removed: a folder that is opened with another database loses nothing.
//!
//! Several servers may share the folder: who is between adding bytes and naming them, and who removes some, keep out of
//! each other's way by a lock on the file `.naming`.

use super::{Digest, Store, StoreError};
use domain::Timestamp;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use std::fs::{File, TryLockError};

/// What marks begin with.
const UNNAMED: &str = ".unnamed-";
const NAMING: &str = ".naming";

/// The right to name bytes, or to remove some, as long as it is held.
#[derive(Debug)]
pub struct Naming(#[allow(dead_code, reason = "locked until it is closed")] File);

impl Store {
    /// From now on no name means these bytes. A mark that a crash loses costs nothing but room.
    pub fn mark_unnamed(&self, digest: &Digest) -> Result<(), StoreError> {
        let name = format!("{UNNAMED}{digest}");
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let failed = |e: rustix::io::Errno| self.failed("marking an image as unnamed by", &name, e);
        let file = rustix::fs::openat(&self.folder, &name, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now }).map_err(failed)
    }

    pub fn unmark(&self, digest: &Digest) -> Result<(), StoreError> {
        self.unlink("removing the mark", &format!("{UNNAMED}{digest}")).map(drop)
    }

    /// What is marked, and since when.
    pub fn unnamed(&self) -> Result<Vec<(Digest, Timestamp)>, StoreError> {
        let mut marked = Vec::new();
        for name in self.entries()? {
            let Some(digest) = name.strip_prefix(UNNAMED).and_then(|digest| digest.parse().ok()) else { continue };
            match rustix::fs::statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) => marked.push((digest, Timestamp::from_micros(status.st_mtime.saturating_mul(1_000_000)))),
                // removed just now
                Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(self.failed("looking at", &name, e)),
            }
        }
        Ok(marked)
    }

    /// For who has bytes to name, from before they are in place until they have their name. Waits while some are removed.
    pub fn naming(&self) -> Result<Naming, StoreError> {
        let file = self.naming_file()?;
        file.lock_shared().map_err(|e| self.failed("locking", NAMING, e))?;
        Ok(Naming(file))
    }

    /// For who removes bytes; `None` while somebody, in whatever process, has some to name.
    pub fn alone(&self) -> Result<Option<Naming>, StoreError> {
        let file = self.naming_file()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Naming(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(self.failed("locking", NAMING, e)),
        }
    }

    fn naming_file(&self) -> Result<File, StoreError> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.folder, NAMING, flags, Mode::from_raw_mode(0o644));
        opened.map(File::from).map_err(|e| self.failed("opening", NAMING, e))
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::FOLDER;
    use super::*;

    const MAX: u64 = 1 << 20;

    #[test]
    fn who_removes_waits_for_who_names_in_whatever_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), MAX).expect("opened");
        let other = Store::open(folder.path(), MAX).expect("opened again");
        let (one, two) = (store.naming().expect("locked"), other.naming().expect("several may"));
        assert!(other.alone().expect("tried").is_none() && store.alone().expect("tried").is_none());
        drop((one, two));
        let alone = other.alone().expect("tried").expect("nobody else");
        assert!(store.alone().expect("tried").is_none());
        drop(alone);
        assert!(store.naming().is_ok());
    }

    #[test]
    fn a_mark_says_since_when_and_goes_with_the_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), MAX).expect("opened");
        let (digest, _) = store.add(&b"abc"[..], None).expect("added");
        let mark = folder.path().join(FOLDER).join(format!("{UNNAMED}{digest}"));
        store.mark_unnamed(&digest).expect("marked");
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        File::options().write(true).open(&mark).and_then(|file| file.set_modified(then)).expect("set");
        let since = Timestamp::from_micros(1_000_000_000_000);
        assert_eq!(store.unnamed().expect("listed"), [(digest, since)]);
        assert_eq!(store.list().expect("listed").len(), 1, "a mark is no image");
        store.mark_unnamed(&digest).expect("marked again");
        assert!(store.unnamed().expect("listed")[0].1 > since, "since now");
        store.remove(&digest).expect("removed");
        let left = std::fs::read_dir(folder.path().join(FOLDER)).expect("a folder").count();
        assert_eq!(left, 0, "neither bytes nor mark");
    }
}
