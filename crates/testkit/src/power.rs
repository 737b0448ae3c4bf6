//! What a disk may hold after a power cut. It goes through a trace of everything that was done to the disk and
//! keeps apart what was synced, which is there for certain, and what was not: of that a disk may have kept
//! nothing, everything, or any part, down to single sectors, and a file may have its new length with nothing in
//! it. Names too are certain only once their folder was synced; before that they came in order, up to any point.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: a trace that makes no sense is a failed test

use crate::below::Change;
use domain::stage::mix;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SECTOR: usize = 512;

/// What became of the changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// None is there.
    Dropped,
    /// All are there: the process was killed, the machine went on.
    Kept,
    /// Each file has its changes in order up to some point, and the last of them in part.
    Torn(u64),
    /// Of every write, any of its sectors.
    Scattered(u64),
    /// As torn, but where a file had grown there are zeros.
    Hollow(u64),
}

#[derive(Clone, Default)]
struct Contents {
    synced: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Cut(u64),
}

#[derive(Clone, Debug)]
enum Name {
    Made(PathBuf, u64),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

/// The disk under one folder, which was there before and is empty.
#[derive(Clone)]
pub struct Disk {
    files: BTreeMap<u64, Contents>,
    root: PathBuf,
    folders: BTreeMap<u64, PathBuf>,
    /// What is certain to be found under which name.
    names: BTreeMap<PathBuf, u64>,
    /// Changes of names since the folder they are in was synced, in order.
    pending: Vec<Name>,
}

/// Files by the name under which a start finds them.
pub type Image = BTreeMap<PathBuf, Vec<u8>>;

impl Disk {
    pub fn new(root: &Path, file: u64) -> Self {
        let folders = BTreeMap::from([(file, root.to_owned())]);
        Self { files: BTreeMap::new(), root: root.to_owned(), folders, names: BTreeMap::new(), pending: Vec::new() }
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { file, offset, bytes } => self.pend(*file, Pending::Write(*offset, bytes.clone())),
            Change::Cut { file, length } => self.pend(*file, Pending::Cut(*length)),
            Change::Made { file, path } => {
                // an inode that is given out again is another file
                self.files.insert(*file, Contents::default());
                self.pending.push(Name::Made(path.clone(), *file));
            }
            Change::Folder { file, path } => {
                self.folders.insert(*file, path.clone());
                self.pending.push(Name::Made(path.clone(), *file));
            }
            Change::Renamed { from, to } => self.pending.push(Name::Renamed(from.clone(), to.clone())),
            Change::Removed { path } => self.pending.push(Name::Removed(path.clone())),
            Change::Sync { file } => match self.folders.get(file).cloned() {
                Some(folder) => self.sync_names(&folder),
                None => {
                    let contents = self.files.entry(*file).or_default();
                    let pending = std::mem::take(&mut contents.pending);
                    pending.iter().for_each(|change| change.apply(&mut contents.synced));
                }
            },
        }
    }

    fn pend(&mut self, file: u64, change: Pending) {
        self.files.entry(file).or_default().pending.push(change);
    }

    fn sync_names(&mut self, folder: &Path) {
        let inside = |name: &Name| {
            let (Name::Made(path, _) | Name::Renamed(_, path) | Name::Removed(path)) = name;
            path.parent() == Some(folder)
        };
        let (synced, left) = std::mem::take(&mut self.pending).into_iter().partition(inside);
        self.pending = left;
        synced.into_iter().for_each(|name: Name| name.apply(&mut self.names));
    }

    /// Whether anything at all is in doubt.
    pub fn in_doubt(&self) -> bool {
        !self.pending.is_empty() || self.files.values().any(|file| !file.pending.is_empty())
    }

    /// What a start may find if the power goes now.
    pub fn image(&self, fate: Fate) -> Image {
        let mut names = self.names.clone();
        let kept = match fate {
            Fate::Dropped => 0,
            Fate::Kept => self.pending.len(),
            Fate::Torn(seed) | Fate::Scattered(seed) | Fate::Hollow(seed) => below(seed, self.pending.len() + 1),
        };
        self.pending.iter().take(kept).for_each(|name| name.apply(&mut names));
        // a file is found where the whole way to it is
        let reached = |path: &Path| {
            let mut above = path.ancestors().skip(1).take_while(|folder| self.folders.values().any(|f| f == folder));
            above.all(|folder| folder == self.root || names.contains_key(folder))
        };
        let found = |(path, file): (&PathBuf, &u64)| {
            let contents = self.files.get(file).filter(|_| reached(path));
            contents.map(|contents| (path.clone(), contents.after(fate, *file)))
        };
        names.iter().filter_map(found).collect()
    }
}

impl Name {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Name::Made(path, file) => drop(names.insert(path.clone(), *file)),
            Name::Removed(path) => drop(names.remove(path)),
            Name::Renamed(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

impl Pending {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Pending::Write(offset, new) => put(bytes, *offset, new),
            Pending::Cut(length) => bytes.resize(usize::try_from(*length).expect("a length"), 0),
        }
    }
}

impl Contents {
    fn after(&self, fate: Fate, file: u64) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        match fate {
            Fate::Dropped => {}
            Fate::Kept => self.pending.iter().for_each(|change| change.apply(&mut bytes)),
            Fate::Torn(seed) => self.tear(mix(seed ^ file), &mut bytes, false),
            Fate::Hollow(seed) => self.tear(mix(seed ^ file), &mut bytes, true),
            Fate::Scattered(seed) => {
                for (n, change) in self.pending.iter().enumerate() {
                    let coin = mix(seed ^ file ^ mix(n as u64));
                    match change {
                        Pending::Write(offset, new) => {
                            for (sector, part) in new.chunks(SECTOR).enumerate() {
                                if mix(coin ^ sector as u64) & 1 == 1 {
                                    put(&mut bytes, offset + (sector * SECTOR) as u64, part);
                                }
                            }
                        }
                        Pending::Cut(_) if coin & 1 == 1 => change.apply(&mut bytes),
                        Pending::Cut(_) => {}
                    }
                }
            }
        }
        bytes
    }

    /// In order up to some change, which is there in part. `hollow`: past the old end there are only zeros.
    fn tear(&self, seed: u64, bytes: &mut Vec<u8>, hollow: bool) {
        let old_end = bytes.len();
        let whole = below(seed, self.pending.len() + 1);
        self.pending.iter().take(whole).for_each(|change| change.apply(bytes));
        if let Some(Pending::Write(offset, new)) = self.pending.get(whole) {
            let sectors = below(mix(seed), new.len() / SECTOR + 1);
            put(bytes, *offset, &new[..sectors * SECTOR]);
        }
        if hollow {
            bytes.iter_mut().skip(old_end).for_each(|byte| *byte = 0);
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, new: &[u8]) {
    let from = usize::try_from(offset).expect("an offset");
    if bytes.len() < from + new.len() {
        bytes.resize(from + new.len(), 0);
    }
    bytes[from..from + new.len()].copy_from_slice(new);
}

/// A number below `bound`.
fn below(seed: u64, bound: usize) -> usize {
    usize::try_from(mix(seed) % bound as u64).expect("small")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(file: u64, name: &str) -> Change {
        Change::Made { file, path: PathBuf::from(name) }
    }

    fn write(file: u64, offset: u64, bytes: &[u8]) -> Change {
        Change::Write { file, offset, bytes: bytes.to_vec() }
    }

    fn disk(changes: &[Change]) -> Disk {
        let mut disk = Disk::new(Path::new("/d"), 1);
        changes.iter().for_each(|change| disk.apply(change));
        disk
    }

    #[test]
    fn what_was_not_synced_may_be_gone_or_there() {
        let changes = [
            made(2, "/d/a"),
            write(2, 0, b"old"),
            Change::Sync { file: 2 },
            Change::Sync { file: 1 },
            write(2, 1, b"EW!"),
        ];
        let disk = disk(&changes);
        assert_eq!(disk.image(Fate::Dropped), Image::from([("/d/a".into(), b"old".to_vec())]));
        assert_eq!(disk.image(Fate::Kept), Image::from([("/d/a".into(), b"oEW!".to_vec())]));
    }

    #[test]
    fn a_name_is_certain_once_its_folder_is_synced() {
        let renamed = Change::Renamed { from: "/d/new".into(), to: "/d/a".into() };
        let changes = [made(2, "/d/new"), write(2, 0, b"x"), Change::Sync { file: 2 }, renamed];
        let mut disk = disk(&changes);
        assert!(disk.image(Fate::Dropped).is_empty() && disk.in_doubt());
        disk.apply(&Change::Sync { file: 1 });
        assert_eq!(disk.image(Fate::Dropped), Image::from([("/d/a".into(), b"x".to_vec())]));
        assert!(!disk.in_doubt());
    }

    #[test]
    fn what_is_in_a_folder_without_a_name_is_not_found() {
        let folder = Change::Folder { file: 3, path: "/d/e".into() };
        let changes =
            [folder, made(2, "/d/e/a"), write(2, 0, b"x"), Change::Sync { file: 2 }, Change::Sync { file: 3 }];
        let mut disk = disk(&changes);
        assert!(disk.image(Fate::Dropped).is_empty());
        disk.apply(&Change::Sync { file: 1 });
        assert_eq!(disk.image(Fate::Dropped).len(), 1);
    }

    #[test]
    fn a_large_write_is_torn_at_sectors_in_every_way() {
        let changes = [made(2, "/d/a"), Change::Sync { file: 1 }, write(2, 0, &[7; 4 * SECTOR])];
        let disk = disk(&changes);
        let all = |of: fn(u64) -> Fate| -> std::collections::BTreeSet<Vec<u8>> {
            (0..200).map(|seed| disk.image(of(seed)).remove(Path::new("/d/a")).expect("there")).collect()
        };
        let lengths: Vec<usize> = all(Fate::Torn).iter().map(Vec::len).collect();
        assert_eq!(lengths, [0, SECTOR, 2 * SECTOR, 3 * SECTOR, 4 * SECTOR]);
        assert_eq!(all(Fate::Scattered).len(), 16, "any of its four sectors");
        assert!(all(Fate::Hollow).iter().flatten().all(|byte| *byte == 0));
    }
}
