//! The installer of this checkout and an image for it to install, made once by `scripts/installer` and `scripts/boot-image`
//! in the user's cache.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The folder with `vmlinuz`, `initrd.gz`, `undionly.kpxe` and `snponly.efi`.
pub fn folder() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| made("installer")).clone()
}

/// A raw disk image that boots by BIOS and by UEFI; what it does then is in `scripts/boot-image`.
pub fn boot_image() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| made("boot-image")).clone()
}

/// The path that a script prints as its last line.
fn made(script: &str) -> PathBuf {
    let output = Command::new(crate::golden::root().join("scripts").join(script)).output().expect("the script runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/{script} failed (scripts/test installs what it needs):\n{said}");
    let path = String::from_utf8(output.stdout).expect("a path");
    PathBuf::from(path.lines().last().expect("a path"))
}
