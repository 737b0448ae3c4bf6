//! Folders for tests whose subject is not the disk: in memory where there is plenty of it, so that a busy
//! disk cannot stall them for seconds and run them into the store's own time-outs.
#![allow(clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const MEMORY: &str = "/dev/shm";
/// Many small databases at a time fit into this; less is left alone.
const PLENTY: u64 = 4 << 30;

/// A new folder, removed when dropped.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("millwright-").tempdir_in(place());
    folder.unwrap_or_else(|e| panic!("making a folder in {}: {e}", place().display()))
}

/// A folder that is searched for secrets before it is removed: whatever a server or a command left in it, in
/// whichever test, holds none.
pub struct Watched(tempfile::TempDir);

impl Watched {
    /// Where temporary folders go.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap_or_else(|e| panic!("making a temporary folder: {e}")))
    }

    /// Like [`folder`].
    pub fn in_memory() -> Self {
        Self(folder())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Default for Watched {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // a test that has failed already says why
        if !std::thread::panicking() {
            crate::canary::assert_none(self.path());
        }
    }
}

/// Where such folders go.
pub fn place() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| if free_in(MEMORY) >= PLENTY { MEMORY.into() } else { std::env::temp_dir() })
}

/// Bytes that can be written there; none, if it cannot be told.
fn free_in(folder: &str) -> u64 {
    let answer = Command::new("df").args(["--output=avail", "--block-size=1", folder]).output();
    let text = answer.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}
