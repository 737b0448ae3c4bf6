//! The machine that the agent lives on, as a root folder: `/`, or a scratch one in tests.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where an absolute path of the machine is.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is the machine itself, and not a folder that pretends to be one.
    pub fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }
}
