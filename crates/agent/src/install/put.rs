//! Installing: the binary, its unit, its state with the bundle and the baseline. It is all there afterwards, or nothing.

use super::{BINARY, BUNDLE, SETTINGS, UNIT, WANTED, unit};
use crate::host::Host;
use crate::inventory::REMEMBERED;
use crate::task::clean::baseline::{Baseline, FILE};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PROGRAM: Duration = Duration::from_secs(60);
/// Folders that installing has made, so that removing takes exactly them: in the state folder.
pub(super) const MADE: &str = "installed.json";

/// How to install.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary to copy: usually the one that runs.
    pub binary: PathBuf,
    /// The folder for its state, as seen from here.
    pub state: PathBuf,
    /// A new bundle for an agent that is installed already. Its baseline stays: what tenants have left since must not
    /// become the site's own.
    pub replace: bool,
    /// Have systemd start it, where it runs.
    pub start: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// In words, what was done and what was not.
    pub said: Vec<String>,
    pub started: bool,
}

/// What undoes a step, for the last one first.
enum Undo {
    RemoveFile(PathBuf),
    RemoveFolder(PathBuf),
    Restore(PathBuf, Vec<u8>, u32),
}

struct Steps<'a> {
    host: &'a Host,
    undo: Vec<Undo>,
    folders: Vec<PathBuf>,
}

/// Installs the agent with a bundle. A failure leaves the machine as it was.
pub fn install(host: &Host, bundle: &[u8], options: &Options) -> Result<Installed, String> {
    if serde_json::from_slice::<serde_json::Value>(bundle)
        .ok()
        .and_then(|bundle| bundle.get("token").cloned())
        .is_none()
    {
        return Err("this is no bundle: it has no token".to_owned());
    }
    let installed = [host.path(UNIT), options.state.clone()].iter().any(|path| path.symlink_metadata().is_ok());
    if installed && !options.replace {
        return Err(
            "an agent is installed on this machine already; uninstall it first, or replace its bundle".to_owned()
        );
    }
    let mut steps = Steps { host, undo: Vec::new(), folders: Vec::new() };
    match steps.all(bundle, options) {
        Ok(installed) => Ok(installed),
        Err(error) => {
            let left = steps.undo_all();
            match left.is_empty() {
                true => Err(format!("{error}; everything was undone")),
                false => Err(format!("{error}; could not be undone: {}", left.join(", "))),
            }
        }
    }
}

fn told<T>(what: &str, path: &Path, done: io::Result<T>) -> Result<T, String> {
    done.map_err(|error| format!("{what} {}: {error}", path.display()))
}

impl Steps<'_> {
    fn all(&mut self, bundle: &[u8], options: &Options) -> Result<Installed, String> {
        let mut said = Vec::new();
        let text = unit::text(&self.host.machine_path(&options.state))
            .ok_or("the path of the state folder may have only letters, digits and / . _ -")?;
        self.folder(&options.state, 0o700)?;
        told("closing", &options.state, std::fs::set_permissions(&options.state, PermissionsExt::from_mode(0o700)))?;
        self.file(&options.state.join(BUNDLE), bundle, 0o600)?;
        self.folder(&self.host.path(SETTINGS), 0o755)?;
        self.binary(&options.binary)?;
        self.file(&self.host.path(UNIT), text.as_bytes(), 0o644)?;
        self.link(Path::new(UNIT), &self.host.path(WANTED))?;
        if !(options.replace && options.state.join(FILE).exists()) {
            // now, for folders that were made for the unit are the site's from here on; what is ours is never compared
            let json = serde_json::to_vec(&Baseline::survey(self.host)?).map_err(|error| error.to_string())?;
            self.file(&options.state.join(FILE), &json, 0o600)?;
            // an empty list: those that are here now are found by the first look
            self.file(&options.state.join(REMEMBERED), b"{}", 0o600)?;
            said.push("recorded how the machine is now: leftovers of tenants are told by it".to_owned());
        }
        if !options.state.join(MADE).exists() {
            let made: Vec<String> =
                self.folders.iter().map(|path| crate::host::shown(&self.host.machine_path(path))).collect();
            let json = serde_json::to_vec(&made).map_err(|error| error.to_string())?;
            self.file(&options.state.join(MADE), &json, 0o600)?;
        }
        let started = self.start(options, &mut said)?;
        Ok(Installed { said, started })
    }

    fn start(&self, options: &Options, said: &mut Vec<String>) -> Result<bool, String> {
        if !options.start {
            said.push("not started, as asked".to_owned());
            return Ok(false);
        }
        if !self.host.systemd_runs() {
            said.push("not started: systemd does not run this machine; start the agent by your own means".to_owned());
            return Ok(false);
        }
        for args in [&["daemon-reload"][..], &["restart", "millwright-agent.service"]] {
            let status = self.host.call("systemctl", args, PROGRAM).map_err(|error| format!("systemctl: {error}"))?;
            if !status.success() {
                return Err(format!("systemctl {}: {status}", args.join(" ")));
            }
        }
        said.push("started, now and with the machine".to_owned());
        Ok(true)
    }

    /// A folder with those above it that are missing.
    fn folder(&mut self, path: &Path, mode: u32) -> Result<(), String> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.folder(above, 0o755)?;
        }
        told("making", path, std::fs::DirBuilder::new().mode(mode).create(path))?;
        self.undo.push(Undo::RemoveFolder(path.to_owned()));
        self.folders.push(path.to_owned());
        told("opening", path, std::fs::set_permissions(path, PermissionsExt::from_mode(mode)))
    }

    /// A file, at once or not at all.
    fn file(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
        if let Some(above) = path.parent() {
            self.folder(above, 0o755)?;
        }
        let before = match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_file() => {
                let content = told("reading", path, std::fs::read(path))?;
                Undo::Restore(path.to_owned(), content, meta.permissions().mode())
            }
            Ok(_) => return Err(format!("{} is there, and is no plain file", path.display())),
            Err(_) => Undo::RemoveFile(path.to_owned()),
        };
        told("writing", path, put(path, content, mode))?;
        self.undo.push(before);
        Ok(())
    }

    fn binary(&mut self, from: &Path) -> Result<(), String> {
        let to = self.host.path(BINARY);
        let same = |one: &Path, other: &Path| {
            use std::os::unix::fs::MetadataExt;
            let (one, other) = (std::fs::metadata(one).ok()?, std::fs::metadata(other).ok()?);
            Some((one.dev(), one.ino()) == (other.dev(), other.ino()))
        };
        if same(from, &to) == Some(true) {
            return Ok(());
        }
        let content = told("reading", from, std::fs::read(from))?;
        self.file(&to, &content, 0o755)
    }

    fn link(&mut self, target: &Path, at: &Path) -> Result<(), String> {
        if std::fs::read_link(at).is_ok_and(|now| now == target) {
            return Ok(());
        }
        if let Some(above) = at.parent() {
            self.folder(above, 0o755)?;
        }
        told("linking", at, std::os::unix::fs::symlink(target, at))?;
        self.undo.push(Undo::RemoveFile(at.to_owned()));
        Ok(())
    }

    fn undo_all(&mut self) -> Vec<String> {
        let (mut left, mut started) = (Vec::new(), false);
        while let Some(undo) = self.undo.pop() {
            let (path, undone) = match &undo {
                Undo::RemoveFile(path) => (path, std::fs::remove_file(path)),
                Undo::RemoveFolder(path) => (path, std::fs::remove_dir(path)),
                Undo::Restore(path, content, mode) => (path, put(path, content, *mode)),
            };
            started |= *path == self.host.path(UNIT);
            if let Err(error) = undone {
                left.push(format!("{} ({error})", path.display()));
            }
        }
        if started && self.host.systemd_runs() {
            drop(self.host.call("systemctl", &["stop", "millwright-agent.service"], PROGRAM));
            drop(self.host.call("systemctl", &["daemon-reload"], PROGRAM));
        }
        left
    }
}

/// Writes beside it, then puts it in its place.
fn put(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let temporary = path.with_file_name(name);
    let write = || {
        drop(std::fs::remove_file(&temporary));
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode & 0o7777).open(&temporary)?;
        file.write_all(content)?;
        file.set_permissions(PermissionsExt::from_mode(mode & 0o7777))?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}
