//! How each kind of leftover goes away. Whatever this says, what is gone is decided by looking again.

use super::live;
use super::{How, Item, View};
use crate::task::beneath::{Folder, parent};
use crate::task::process;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a process to end after each signal.
const PATIENCE: Duration = Duration::from_secs(10);
/// For a program of the system.
const PROGRAM: Duration = Duration::from_secs(60);
/// Container engines: they must not write while their store is cleared.
const ENGINES: [&str; 5] = ["docker.socket", "docker.service", "containerd.service", "podman.socket", "crio.service"];

/// Tries to remove all; answers what stood in the way, by what the item says.
pub fn all(view: &View, items: &[Item]) -> BTreeMap<String, String> {
    let mut why = BTreeMap::new();
    let mut files: BTreeMap<&Path, Vec<&Item>> = BTreeMap::new();
    let processes: Vec<_> = items
        .iter()
        .filter_map(|item| match &item.how {
            How::Process(one) => Some(one.clone()),
            _ => None,
        })
        .collect();
    let ended =
        if processes.is_empty() { Ok(()) } else { process::end(&view.host, &processes, PATIENCE, &|| view.canceled()) };
    let mut units = false;
    for item in items {
        if view.canceled() {
            break;
        }
        let removed = match &item.how {
            How::Tree => tree(view, &item.at),
            How::Unit => {
                units = true;
                stop_unit(view, &item.at);
                tree(view, &item.at)
            }
            How::Unmount => live::unmount(&view.host, &item.at),
            How::Segment(option, id) => segment(view, option, id),
            How::Process(_) => match &ended {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
            How::Line { .. } => {
                files.entry(&item.at).or_default().push(item);
                Ok(())
            }
            // its item says so already
            How::Nothing(_) => Ok(()),
        };
        if let Err(error) = removed {
            why.insert(item.says.clone(), error.to_string());
        }
    }
    for (file, items) in files {
        if let Err(error) = lines(view, file, &items) {
            why.extend(items.iter().map(|item| (item.says.clone(), error.to_string())));
        }
    }
    if units && view.host.systemd_runs() {
        drop(view.host.call("systemctl", &["daemon-reload"], PROGRAM));
    }
    why
}

fn folder_of<'a>(view: &View, at: &'a Path) -> io::Result<Option<(Folder, &'a std::ffi::OsStr)>> {
    let (folder, name) = parent(at)?;
    Ok(Folder::open(&view.host, folder, &view.links())?.map(|folder| (folder, name)))
}

fn tree(view: &View, at: &Path) -> io::Result<()> {
    match folder_of(view, at)? {
        Some((folder, name)) => folder.remove(name, &|| view.canceled()),
        None => Ok(()),
    }
}

/// Best effort: a unit that does not stop is found by its processes.
fn stop_unit(view: &View, at: &Path) {
    let name = at.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if view.host.systemd_runs() && name.contains('.') && !name.starts_with('-') && !name.ends_with(".wants") {
        drop(view.host.call("systemctl", &["stop", "--", name], PROGRAM));
    }
}

fn segment(view: &View, option: &str, id: &str) -> io::Result<()> {
    if !view.host.shows_live_processes() {
        return Err(io::Error::other("these are not the segments of this machine"));
    }
    let status = view.host.call("ipcrm", &[option, id], PROGRAM)?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ipcrm: {status}"))) }
}

/// Takes lines out of a file, or changes them; everything else in it stays as it is, byte by byte.
fn lines(view: &View, file: &Path, items: &[&Item]) -> io::Result<()> {
    let _lock = account_lock(view, file)?;
    let Some((folder, name)) = folder_of(view, file)? else { return Ok(()) };
    let Some(content) = folder.read(name)? else { return Ok(()) };
    let changes: BTreeMap<&[u8], Option<&Vec<u8>>> = items
        .iter()
        .filter_map(|item| match &item.how {
            How::Line { from, to } => Some((from.as_slice(), to.as_ref())),
            _ => None,
        })
        .collect();
    let mut kept = Vec::with_capacity(content.len());
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let bare = line.strip_suffix(b"\n").unwrap_or(line);
        match changes.get(bare) {
            None => kept.extend_from_slice(line),
            Some(Some(to)) => {
                kept.extend_from_slice(to);
                kept.extend_from_slice(&line[bare.len()..]);
            }
            Some(None) => {}
        }
    }
    folder.replace(name, &kept)
}

/// The lock that every tool takes that changes users; not waited for without end.
fn account_lock(view: &View, file: &Path) -> io::Result<Option<OwnedFd>> {
    let named: BTreeSet<PathBuf> =
        super::accounts::ACCOUNT_FILES.iter().map(|(name, _)| Path::new("/etc").join(name)).collect();
    if !named.contains(file) {
        return Ok(None);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(view.host.path("/etc/.pwd.lock"), flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| io::Error::other(format!("somebody else is changing users: {error}")))?;
    Ok(Some(lock))
}

/// Stops the engines that run, and answers which.
pub fn stop_engines(view: &View) -> Vec<&'static str> {
    if !view.host.systemd_runs() {
        return Vec::new();
    }
    let runs = |name: &&str| {
        view.host.call("systemctl", &["is-active", "--quiet", name], PROGRAM).is_ok_and(|status| status.success())
    };
    let running: Vec<&str> = ENGINES.into_iter().filter(runs).collect();
    for name in &running {
        drop(view.host.call("systemctl", &["stop", name], PROGRAM));
    }
    running
}

/// Starts them again, last first; answers which did not start.
pub fn start_engines(view: &View, stopped: &[&'static str]) -> Vec<&'static str> {
    let starts = |name: &&&'static str| {
        view.host.call("systemctl", &["start", name], PROGRAM).is_ok_and(|status| status.success())
    };
    stopped.iter().rev().filter(|name| !starts(name)).copied().collect()
}
