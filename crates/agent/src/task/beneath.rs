//! Reading and removing below a folder that others may have filled: no link is followed, no other file system entered,
//! whatever is swapped in while we look. Every step is relative to an open folder, so a path is never resolved twice.

use rustix::fs::{AtFlags, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::host::{Host, shown};

/// Folders held open while going down; deeper ones are first moved up.
const HELD: usize = 32;
/// Sweeps over one folder that somebody keeps on filling.
const SWEEPS: usize = 1_000_000;
/// The most that is read of a file for comparing it.
pub const READ_MAX: u64 = 16 << 20;

/// Links that are the site's own, by their place: only these are followed, and only above what is looked at.
pub type Links = BTreeMap<String, String>;

#[derive(Debug)]
pub struct Folder(OwnedFd);

fn other(message: String) -> io::Error {
    io::Error::other(message)
}

fn open_folder(at: impl AsFd, name: &OsStr, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut tries = 0;
    loop {
        // EAGAIN: something was renamed meanwhile and the kernel could not tell whether we got out
        match rustix::fs::openat2(&at, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 64 => tries += 1,
            answer => return answer,
        }
    }
}

impl Folder {
    /// A folder of the machine; nothing where it is not there. Links that the site did not have are an error: what lies
    /// behind them is not what was meant.
    pub fn open(host: &Host, path: &Path, links: &Links) -> io::Result<Option<Self>> {
        let mut wanted: Vec<OsString> = names(path)?;
        wanted.reverse();
        let root = || -> io::Result<OwnedFd> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(host.root(), flags, Mode::empty())?)
        };
        let (mut folder, mut at, mut followed) = (root()?, PathBuf::from("/"), 0);
        while let Some(name) = wanted.pop() {
            match open_folder(&folder, &name, ResolveFlags::empty()) {
                Ok(next) => {
                    folder = next;
                    at.push(&name);
                }
                Err(Errno::NOENT) => return Ok(None),
                // with NOFOLLOW a link is ELOOP, with DIRECTORY a file is ENOTDIR; some kernels say either
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let here = at.join(&name);
                    let Some(target) = link_target(&folder, &name)? else {
                        return Err(other(format!("{} is not a folder", shown(&here))));
                    };
                    if links.get(&shown(&here)) != Some(&shown(&target)) || followed == 16 {
                        return Err(other(format!(
                            "{} is a link that the site did not have; it was not followed",
                            shown(&here)
                        )));
                    }
                    followed += 1;
                    let target = if target.is_absolute() { target } else { at.join(target) };
                    wanted.extend(names(&target)?.into_iter().rev());
                    (folder, at) = (root()?, PathBuf::from("/"));
                }
                Err(error) => return Err(other(format!("opening {}: {error}", shown(&at.join(&name))))),
            }
        }
        Ok(Some(Self(folder)))
    }

    /// A folder in this one, on the same file system.
    pub fn child(&self, name: &OsStr) -> rustix::io::Result<Self> {
        open_folder(&self.0, name, ResolveFlags::NO_XDEV).map(Self)
    }

    /// Each name in it, until told to stop.
    pub fn each(&self, mut see: impl FnMut(&OsStr) -> io::Result<bool>) -> io::Result<()> {
        let mut entries = Dir::read_from(&self.0)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." && !see(name)? {
                break;
            }
        }
        Ok(())
    }

    /// Names in it, sorted; more than the limit is an error.
    pub fn names(&self, limit: usize) -> io::Result<Vec<OsString>> {
        let mut all = Vec::new();
        self.each(|name| {
            if all.len() == limit {
                return Err(other(format!("a folder with more than {limit} entries")));
            }
            all.push(name.to_owned());
            Ok(true)
        })?;
        all.sort();
        Ok(all)
    }

    /// What it is itself, a link as a link; nothing where it is gone.
    pub fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn link_target(&self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        link_target(&self.0, name)
    }

    /// The content of a plain file.
    pub fn read(&self, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open_plain(name)? else { return Ok(None) };
        let mut content = Vec::new();
        file.take(READ_MAX + 1).read_to_end(&mut content)?;
        if content.len() as u64 > READ_MAX {
            return Err(other(format!("{} is larger than {} MiB", shown(Path::new(name)), READ_MAX >> 20)));
        }
        Ok(Some(content))
    }

    fn open_plain(&self, name: &OsStr) -> io::Result<Option<File>> {
        // non-blocking: a pipe put in its place must not hold us up
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(other(format!("{} is no plain file", shown(Path::new(name)))));
        }
        Ok(Some(file))
    }

    /// Puts other content in the place of a plain file: its owner and rights stay, and there is no moment without it.
    pub fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
        let Some(old) = self.open_plain(name)? else { return Ok(()) };
        let old = rustix::fs::fstat(&old)?;
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(".millwright");
        let _ = rustix::fs::unlinkat(&self.0, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.0, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = (|| {
            let (owner, group) = (rustix::fs::Uid::from_raw(old.st_uid), rustix::fs::Gid::from_raw(old.st_gid));
            rustix::fs::fchown(&made, Some(owner), Some(group))?;
            rustix::fs::fchmod(&made, Mode::from_raw_mode(old.st_mode))?;
            let mut file = File::from(made);
            file.write_all(content)?;
            file.sync_all()?;
            rustix::fs::renameat(&self.0, &temporary, &self.0, name)?;
            io::Result::Ok(())
        })();
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.0, &temporary, AtFlags::empty());
        }
        written?;
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Removes a file, a link itself, or a folder with all that is in it. What is gone already is no error.
    pub fn remove(&self, name: &OsStr, canceled: &dyn Fn() -> bool) -> io::Result<()> {
        if self.unlink(name, false)? {
            return Ok(());
        }
        let top = match self.child(name) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::XDEV) => return Err(other("another file system is mounted there".to_owned())),
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(other("it changes while it is being removed".to_owned())),
            Err(error) => return Err(error.into()),
        };
        let mut moved = 0_u64;
        for _ in 0..SWEEPS {
            let progress = top.sweep(&top, 0, &mut moved, canceled);
            match rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(Errno::PERM) if top.unlock() => {}
                Err(Errno::BUSY) => return Err(other("another file system is mounted there".to_owned())),
                Err(error) => return Err(error.into()),
            }
            if progress? == 0 {
                return Err(other("it is filled again while it is being removed".to_owned()));
            }
        }
        Err(other("it is filled again while it is being removed".to_owned()))
    }

    /// Removes what is in it, going down a bounded way: folders deeper than that are moved up to the top, and their turn
    /// comes in the next sweep. Answers how much was done; the first trouble only after everything else was tried.
    fn sweep(&self, top: &Folder, depth: usize, moved: &mut u64, canceled: &dyn Fn() -> bool) -> io::Result<u64> {
        let (mut done, mut trouble) = (0, None);
        self.each(|name| {
            if canceled() {
                trouble = Some(io::Error::new(io::ErrorKind::Interrupted, "stopped before everything was removed"));
                return Ok(false);
            }
            match self.remove_one(name, top, depth, moved, canceled) {
                Ok(count) => done += count,
                Err(error) => trouble = Some(error),
            }
            Ok(true)
        })?;
        match trouble {
            Some(error) if done == 0 || error.kind() == io::ErrorKind::Interrupted => Err(error),
            _ => Ok(done),
        }
    }

    fn remove_one(
        &self,
        name: &OsStr,
        top: &Folder,
        depth: usize,
        moved: &mut u64,
        canceled: &dyn Fn() -> bool,
    ) -> io::Result<u64> {
        if self.unlink(name, true)? {
            return Ok(1);
        }
        if depth == HELD {
            loop {
                *moved += 1;
                let up = format!(".millwright-{moved}");
                match rustix::fs::renameat_with(&self.0, name, &top.0, &up, rustix::fs::RenameFlags::NOREPLACE) {
                    Ok(()) => return Ok(1),
                    Err(Errno::EXIST) => {}
                    Err(Errno::PERM) if self.unlock() | self.child(name).is_ok_and(|child| child.unlock()) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let child = match self.child(name) {
            Ok(child) => child,
            Err(Errno::NOENT) => return Ok(0),
            Err(Errno::XDEV) => {
                return Err(other(format!("another file system is mounted at {}", shown(Path::new(name)))));
            }
            Err(error) => return Err(error.into()),
        };
        let done = child.sweep(top, depth + 1, moved, canceled)?;
        match rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR) {
            Err(Errno::PERM) if self.unlock() | child.unlock() => {
                rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?;
            }
            // filled or swapped meanwhile: the next sweep sees it
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(done + 1)
    }

    /// Takes a name away that is no folder; says so when it is one. `mine`: this folder goes, too, so its own lock may.
    fn unlink(&self, name: &OsStr, mine: bool) -> io::Result<bool> {
        for unlocked in [false, true] {
            match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(true),
                Err(Errno::ISDIR) => return Ok(false),
                Err(Errno::PERM) if !unlocked => {
                    let Some(stat) = self.stat(name)? else { return Ok(true) };
                    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                        return Ok(false);
                    }
                    if mine {
                        self.unlock();
                    }
                    // with other names it may be somebody else's file
                    if stat.st_nlink == 1
                        && let Ok(Some(file)) = self.open_plain(name)
                    {
                        unlock(&file);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn unlock(&self) -> bool {
        unlock(&self.0)
    }
}

/// Takes "immutable" and "append only" away; says whether either was there.
fn unlock(file: impl AsFd) -> bool {
    let Ok(flags) = rustix::fs::ioctl_getflags(&file) else { return false };
    let locks = IFlags::IMMUTABLE | IFlags::APPEND;
    flags.intersects(locks) && rustix::fs::ioctl_setflags(&file, flags - locks).is_ok()
}

fn link_target(folder: impl AsFd, name: &OsStr) -> io::Result<Option<PathBuf>> {
    match rustix::fs::readlinkat(folder, name, Vec::new()) {
        Ok(target) => Ok(Some(PathBuf::from(OsStr::from_bytes(target.to_bytes())))),
        Err(Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The names of an absolute path; `..` goes up, as far as there is.
fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => {
                names.pop();
            }
            Component::Prefix(_) => return Err(other(format!("{} is no path of this machine", shown(path)))),
        }
    }
    Ok(names)
}

/// The folder that something is in, and its name there.
pub fn parent(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent().zip(path.file_name()).ok_or_else(|| other(format!("{} has no name of its own", shown(path))))
}
