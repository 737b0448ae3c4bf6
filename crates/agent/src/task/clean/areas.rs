//! Places that are compared with the baseline: one walk, used for recording it and for comparing.

use super::baseline::{digest, line_digest};
use super::catalogue::{Area, By};
use super::{Found, How, Item, View};
use crate::host::{Host, shown};
use crate::install;
use crate::task::beneath::{Folder, Links, parent};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Entries of one folder, and of everything that is compared for one check.
pub const ENTRIES_MAX: usize = 200_000;
/// Folders in folders, of those that are compared whole.
const DEPTH_MAX: usize = 16;

/// What something was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Only that it was there.
    Name,
    Folder,
    Link(String),
    File {
        sha256: String,
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        lines: BTreeSet<String>,
    },
}

pub type Known = BTreeMap<String, Record>;

/// Called with the path on the machine, what it is now, and its content where that was read.
type See<'a> = dyn FnMut(PathBuf, Record, Option<&[u8]>) -> Result<(), String> + 'a;

struct Walk<'a, 'b> {
    area: &'a Area,
    /// Where given, what is not in it is not opened: it is new, whatever it is.
    known: Option<&'a Known>,
    see: &'a mut See<'b>,
}

/// Walks through one area.
pub fn survey(
    host: &Host,
    links: &Links,
    homes: &[PathBuf],
    area: &Area,
    known: Option<&Known>,
    see: &mut See<'_>,
) -> Result<(), String> {
    let mut walk = Walk { area, known, see };
    for path in expand(host, links, homes, area.path)? {
        let (folder, name) = parent(&path).map_err(|error| error.to_string())?;
        let Some(folder) = Folder::open(host, folder, links).map_err(|error| error.to_string())? else { continue };
        let Some(kind) = kind(&folder, name, &path)? else { continue };
        let followed = links.contains_key(&shown(&path))
            && folder.link_target(name).ok().flatten().map(|target| shown(&target)).as_ref()
                == links.get(&shown(&path));
        if kind == FileType::Directory || followed {
            match Folder::open(host, &path, links) {
                Ok(Some(inside)) => walk.folder(&inside, &path, 0)?,
                Ok(None) => {}
                // a link of the site's to a file
                Err(_) if followed => walk.one(&folder, name, path.clone(), kind, 0)?,
                Err(error) => return Err(error.to_string()),
            }
        } else {
            walk.one(&folder, name, path.clone(), kind, 0)?;
        }
    }
    Ok(())
}

/// A name, or how it begins.
pub fn matches(pattern: &str, name: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(first) => name.as_encoded_bytes().starts_with(first.as_bytes()),
        None => name == pattern,
    }
}

fn kind(folder: &Folder, name: &OsStr, path: &Path) -> Result<Option<FileType>, String> {
    let stat = folder.stat(name).map_err(|error| format!("{}: {error}", shown(path)))?;
    Ok(stat.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}

impl Walk<'_, '_> {
    fn folder(&mut self, folder: &Folder, path: &Path, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("{} is too deep to compare", shown(path)));
        }
        for name in folder.names(ENTRIES_MAX).map_err(|error| format!("{}: {error}", shown(path)))? {
            if depth == 0 && self.area.except.iter().any(|except| matches(except, &name)) {
                continue;
            }
            let path = path.join(&name);
            if install::is_own(&path) {
                continue;
            }
            if let Some(kind) = kind(folder, &name, &path)? {
                self.one(folder, &name, path, kind, depth)?;
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        folder: &Folder,
        name: &OsStr,
        path: PathBuf,
        kind: FileType,
        depth: usize,
    ) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", shown(&path));
        let new = self.known.is_some_and(|known| !known.contains_key(&shown(&path)));
        if new || matches!(self.area.by, By::Names | By::PassingUnits | By::PackagedUnits) {
            return (self.see)(path, Record::Name, None);
        }
        match kind {
            FileType::Directory => {
                (self.see)(path.clone(), Record::Folder, None)?;
                let inside = folder.child(name).map_err(|error| told(&error))?;
                self.folder(&inside, &path, depth + 1)
            }
            FileType::Symlink => {
                let target = folder.link_target(name).map_err(|error| told(&error))?.unwrap_or_default();
                (self.see)(path, Record::Link(shown(&target)), None)
            }
            FileType::RegularFile => {
                let Some(content) = folder.read(name).map_err(|error| told(&error))? else { return Ok(()) };
                let lines = match self.area.by {
                    By::Lines => lines(&content).map(|(_, line)| line_digest(line)).collect(),
                    By::Names | By::Whole | By::Units | By::PassingUnits | By::PackagedUnits => BTreeSet::new(),
                };
                (self.see)(path, Record::File { sha256: digest(&content), lines }, Some(&content))
            }
            _ => (self.see)(path, Record::Name, None),
        }
    }
}

/// The lines that say something, with their numbers.
fn lines(content: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    content.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// The places that a pattern means on this machine.
fn expand(host: &Host, links: &Links, homes: &[PathBuf], pattern: &str) -> Result<Vec<PathBuf>, String> {
    if let Some(rest) = pattern.strip_prefix("~/") {
        return Ok(homes.iter().map(|home| home.join(rest)).collect());
    }
    let mut places = vec![PathBuf::from("/")];
    for part in Path::new(pattern).iter().skip(1) {
        let mut next = Vec::new();
        for place in places {
            if part != "*" {
                next.push(place.join(part));
            } else if let Some(folder) = Folder::open(host, &place, links).map_err(|error| error.to_string())? {
                let names = folder.names(ENTRIES_MAX).map_err(|error| format!("{}: {error}", shown(&place)))?;
                for name in names {
                    if kind(&folder, &name, &place)? == Some(FileType::Directory) {
                        next.push(place.join(name));
                    }
                }
            }
        }
        places = next;
    }
    Ok(places)
}

/// Compares places with the baseline.
pub fn look(view: &View, list: &'static [Area]) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let (known, homes) = (&baseline.entries, baseline.homes());
    let mut found = Found::default();
    for area in list {
        survey(&view.host, &baseline.links, &homes, area, Some(known), &mut |path, now, content| {
            found.examined += 1;
            if found.examined > ENTRIES_MAX as u64 {
                return Err(format!("more than {ENTRIES_MAX} entries in {}", area.path));
            }
            if view.canceled() {
                return Err("stopped".to_owned());
            }
            compare(area.by, path, known, &now, content, &mut found);
            Ok(())
        })?;
    }
    Ok(found)
}

fn compare(by: By, path: PathBuf, known: &Known, now: &Record, content: Option<&[u8]>, found: &mut Found) {
    let Some(old) = known.get(&shown(&path)) else {
        let unit = "a unit that was not in the baseline: of a package of the site's, or of somebody else's";
        return found.add(match by {
            By::Units | By::PassingUnits => Item::new(path, How::Unit),
            By::PackagedUnits => Item::new(path, How::Nothing(unit)).saying(unit),
            By::Names | By::Lines | By::Whole => Item::new(path, How::Tree),
        });
    };
    if old == now {
        return;
    }
    match (by, old, content) {
        (By::Names | By::PassingUnits | By::PackagedUnits, ..) => {}
        (By::Lines, Record::File { lines: old, .. }, Some(content)) => {
            for (number, line) in lines(content) {
                if !old.contains(&line_digest(line)) {
                    // not what it says: it may be a secret
                    let says = format!("line {} is not in the baseline", number + 1);
                    found.add(Item::new(&path, How::Line { from: line.to_owned(), to: None }).saying(&says));
                }
            }
        }
        (By::Lines | By::Whole | By::Units, ..) => {
            let why = "it is not as it was in the baseline";
            found.add(Item::new(path, How::Nothing(why)).saying(why));
        }
    }
}
