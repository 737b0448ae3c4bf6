//! Files that are generated and checked in: a test compares, `UPDATE_GOLDEN=1` writes.
#![allow(clippy::panic, clippy::expect_used)] // for tests only

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/").to_owned()
}

/// Fails when the file at `path` (below the root) is not what it should be.
pub fn check(path: &str, expected: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("makes the folder");
        std::fs::write(&file, expected).expect("writes");
        return;
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    if there != expected {
        let first = there.lines().zip(expected.lines()).position(|(a, b)| a != b).unwrap_or(0) + 1;
        panic!(
            "{path} is stale (first difference in line {first}): run the same test with UPDATE_GOLDEN=1 and look at the change"
        );
    }
}
