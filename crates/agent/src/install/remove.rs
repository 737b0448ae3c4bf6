//! Uninstalling: everything of the agent's goes. It may be killed at any point: a marker says that it was begun, the unit
//! starts the agent again as long as there is one to start, and that goes on where it was.

use super::put::MADE;
use super::{BINARY, EXEC, LOGS, RUN, SETTINGS, SNIPPETS, STARTED_BY_UNIT, UNIT, USER, WANTED};
use crate::host::Host;
use crate::task::clean::accounts::ACCOUNT_FILES;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In the state folder: uninstalling was begun.
pub const MARKER: &str = "uninstalling";
/// The exit status of an agent that has uninstalled itself: systemd does not start it again.
pub const UNINSTALLED: i32 = 99;
const PROGRAM: Duration = Duration::from_secs(60);

/// Whether an agent that starts has to finish uninstalling itself, and nothing else.
pub fn is_unfinished(host: &Host, state: &Path) -> bool {
    is_begun(host, state, std::env::var_os(STARTED_BY_UNIT).is_some())
}

/// The same, told whether the unit has started it. At the very end little but the binary is left, and the marker is gone:
/// an agent that systemd still starts from memory knows by its unit not being there any more.
pub fn is_begun(host: &Host, state: &Path, by_unit: bool) -> bool {
    let bare = || std::fs::read_dir(state).map_or(true, |mut entries| entries.next().is_none());
    state.join(MARKER).exists() || (by_unit && !host.path(UNIT).exists() && bare())
}

/// Removes everything, itself last. What is gone already is no error. The process should end afterwards, with
/// [`UNINSTALLED`] as its status.
pub fn remove_everything(host: &Host, state: &Path) -> Result<(), String> {
    remove_step_by_step(host, state, &mut |_| true).map(drop)
}

/// The same, asking before each step: tests stop there, as a killed process would. Says whether it is finished.
pub fn remove_step_by_step(host: &Host, state: &Path, go_on: &mut dyn FnMut(&str) -> bool) -> Result<bool, String> {
    let made = begin(state)?;
    let remove = |path: &str| remove(&host.path(path));
    type Step<'a> = (&'static str, Box<dyn Fn() -> io::Result<()> + 'a>);
    let steps: Vec<Step> = vec![
        ("secrets", Box::new(|| wipe_all_but_marker(state))),
        ("settings", Box::new(|| remove(SETTINGS))),
        ("logs", Box::new(|| remove(LOGS))),
        ("scripts", Box::new(|| remove(EXEC))),
        ("run", Box::new(|| remove(RUN))),
        ("snippets", Box::new(|| SNIPPETS.iter().try_for_each(|path| remove(path)))),
        ("user", Box::new(|| remove_user(host))),
        ("start", Box::new(|| remove(WANTED))),
        ("unit", Box::new(|| remove(UNIT))),
        (
            "folders",
            Box::new(|| {
                // those that installing has made, where nobody else has put anything into them
                made.iter().rev().for_each(|path| drop(std::fs::remove_dir(host.path(path))));
                Ok(())
            }),
        ),
        ("marker", Box::new(|| forgive(std::fs::remove_file(state.join(MARKER))))),
        (
            "state",
            Box::new(|| {
                forgive(std::fs::remove_dir(state))?;
                made.iter().rev().for_each(|path| drop(std::fs::remove_dir(host.path(path))));
                Ok(())
            }),
        ),
        (
            "binary",
            Box::new(|| {
                remove(BINARY)?;
                made.iter().rev().for_each(|path| drop(std::fs::remove_dir(host.path(path))));
                Ok(())
            }),
        ),
        (
            "systemd",
            Box::new(|| {
                if host.systemd_runs() {
                    drop(host.call("systemctl", &["daemon-reload"], PROGRAM));
                }
                Ok(())
            }),
        ),
    ];
    for (name, step) in steps {
        if !go_on(name) {
            return Ok(false);
        }
        step().map_err(|error| format!("uninstalling the agent ({name}): {error}; start it again to go on"))?;
    }
    Ok(true)
}

/// Writes the marker, with what is known only by files that go. From here on there is no way back.
fn begin(state: &Path) -> Result<Vec<String>, String> {
    let read =
        |name: &str| -> Option<Vec<String>> { serde_json::from_slice(&std::fs::read(state.join(name)).ok()?).ok() };
    if let Some(made) = read(MARKER) {
        return Ok(made);
    }
    let made = read(MADE).unwrap_or_default();
    if state.is_dir() {
        let write = || {
            let json = serde_json::to_vec(&made)?;
            let temporary = state.join(".uninstalling.new");
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(&json)?;
            file.sync_all()?;
            std::fs::rename(&temporary, state.join(MARKER))?;
            std::fs::File::open(state)?.sync_all()
        };
        write().map_err(|error: io::Error| format!("beginning to uninstall in {}: {error}", state.display()))?;
    }
    Ok(made)
}

fn forgive(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A file, a link itself, or a folder with what is in it.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => forgive(std::fs::remove_dir_all(path)),
        Ok(_) => forgive(std::fs::remove_file(path)),
        Err(error) => forgive(Err(error)),
    }
}

/// Keys and the rest: overwritten first, as far as a file system lets one.
fn wipe_all_but_marker(state: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(state) {
        Ok(entries) => entries,
        Err(error) => return forgive(Err(error)),
    };
    for entry in entries {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name == MARKER) {
            continue;
        }
        overwrite(&path)?;
        remove(&path)?;
    }
    Ok(())
}

fn overwrite(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) => return forgive(Err(error)),
    };
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            overwrite(&entry?.path())?;
        }
    }
    // with another name it is somebody else's, too
    if !meta.is_file() || meta.nlink() != 1 {
        return Ok(());
    }
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    let zeros = [0; 64 << 10];
    let mut left = meta.len();
    while left > 0 {
        let count = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(count).unwrap_or(zeros.len())])?;
        left -= count;
    }
    file.sync_all()
}

/// The lines of our user, in every file that may have one.
fn remove_user(host: &Host) -> io::Result<()> {
    use crate::task::beneath::Folder;
    let etc: PathBuf = host.path("/etc");
    if !etc.is_dir() {
        return Ok(());
    }
    let Some(folder) = Folder::open(host, Path::new("/etc"), &Default::default())? else { return Ok(()) };
    for (name, _) in ACCOUNT_FILES {
        let Some(content) = folder.read(name.as_ref())? else { continue };
        let ours = |line: &&[u8]| line.split(|byte| *byte == b':').next() == Some(USER.as_bytes());
        let kept: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').filter(|line| !ours(line)).collect();
        let kept = kept.concat();
        if kept != content {
            folder.replace(name.as_ref(), &kept)?;
        }
    }
    Ok(())
}
