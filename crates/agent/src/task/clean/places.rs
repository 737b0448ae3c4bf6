//! Leftovers by whose they are: scratch paths, temporary files, mail, home folders.

use super::areas::{ENTRIES_MAX, matches};
use super::{Found, How, Item, View};
use crate::host::{Host, shown};
use crate::task::beneath::{Folder, Links, parent};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub const HOMES: &str = "/home";
const TEMPORARY: [&str; 8] =
    ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/run/screen", "/run/user", "/var/lock"];
/// Of these, where root may leave something, too: what is of root's there and was not in the baseline is a leftover.
const OF_ROOT: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// What the system itself makes there, as root, again and again: folders of services, snaps and sockets of displays. By
/// these names, and in these three folders alone.
const SYSTEMS: [&str; 9] = [
    "systemd-private-*",
    "snap-private-tmp",
    "snap.*",
    ".X11-unix",
    ".ICE-unix",
    ".XIM-unix",
    ".font-unix",
    ".Test-unix",
    "lost+found",
];
const MAIL: [&str; 2] = ["/var/mail", "/var/spool/mail"];
/// All of them, for links on the way.
pub const PLACES: [&str; 10] = {
    let [a, b, c, d, e, f, g, h] = TEMPORARY;
    [a, b, c, d, e, f, g, h, MAIL[0], MAIL[1]]
};

/// Entries that one check looks at.
const EXAMINED_MAX: u64 = 2_000_000;
/// How far down a folder of the site's is searched for files of tenants.
const DEPTH_MAX: usize = 48;

fn open(view: &View, path: &Path) -> Result<Option<Folder>, String> {
    Folder::open(&view.host, path, &view.links()).map_err(|error| error.to_string())
}

/// Everything in them, whoever it belongs to.
pub fn scratch(view: &View) -> Result<Found, String> {
    let mut found = Found::default();
    let mounted: BTreeSet<_> = super::live::mount_points(&view.host)?.into_iter().map(|(at, _)| shown(&at)).collect();
    for path in view.policy.scratch_paths.iter().map(PathBuf::from) {
        // an empty folder under a mount that is away proves nothing
        let known = view.baseline.as_ref().is_ok_and(|baseline| baseline.mounts.contains(&shown(&path)));
        if known && !mounted.contains(&shown(&path)) {
            return Err(format!("{} is not mounted, as it was in the baseline", shown(&path)));
        }
        // not even the site's own links: this one is emptied
        let folder = Folder::open(&view.host, &path, &Default::default()).map_err(|error| error.to_string())?;
        let folder = folder.ok_or_else(|| format!("the scratch path {} is not there", shown(&path)))?;
        let mut add = |folder: &Folder, path: &Path, spare: Option<&str>| {
            folder.each(|name| {
                found.examined += 1;
                if spare.is_none_or(|spare| name != spare) {
                    found.add(Item::new(path.join(name), How::Tree));
                }
                Ok(!view.canceled())
            })
        };
        add(&folder, &path, Some("lost+found")).map_err(|error| format!("{}: {error}", shown(&path)))?;
        // the file system's own folder stays, unless it is something else; what is in it goes
        let lost = path.join("lost+found");
        match folder.child("lost+found".as_ref()) {
            Ok(inside) => add(&inside, &lost, None).map_err(|error| format!("{}: {error}", shown(&lost)))?,
            Err(Errno::NOENT) => {}
            Err(_) => found.add(Item::new(lost, How::Tree)),
        }
    }
    Ok(found)
}

/// Of a file its number and when it was last changed; of a folder, into which others write, its number.
fn identity(stat: &Stat) -> String {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => format!("{}", stat.st_ino),
        _ => format!("{} {}.{:09}", stat.st_ino, stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// What is here of root's, for the baseline.
pub fn of_root(host: &Host, links: &Links) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for place in OF_ROOT.map(Path::new) {
        let Some(folder) = Folder::open(host, place, links).map_err(|error| error.to_string())? else { continue };
        walk(&folder, place, 0, &mut |path, stat| {
            if is_systems(path) {
                return Ok(Next::Leave);
            }
            if stat.st_uid == 0 {
                all.insert(shown(path), identity(stat));
            }
            if all.len() > ENTRIES_MAX {
                return Err(format!("more than {ENTRIES_MAX} files in {}", shown(place)));
            }
            Ok(Next::Enter)
        })?;
    }
    Ok(all)
}

fn is_systems(path: &Path) -> bool {
    let here = OF_ROOT.iter().any(|place| path.parent() == Some(Path::new(place)));
    here && path.file_name().is_some_and(|name| SYSTEMS.iter().any(|pattern| matches(pattern, name)))
}

/// Whether it lies in something that the system makes.
fn in_systems(path: &Path) -> bool {
    path.ancestors().any(is_systems)
}

/// What belongs to tenants where everybody may write, and what is of root's and was not there.
pub fn temporary(view: &View) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let mut found = Found::default();
    for place in TEMPORARY.map(Path::new) {
        let Some(folder) = open(view, place)? else { continue };
        let with_root = OF_ROOT.iter().any(|of| place == Path::new(of));
        walk(&folder, place, 0, &mut |path, stat| {
            found.examined += 1;
            if found.examined > EXAMINED_MAX {
                return Err(format!("{}: more than {EXAMINED_MAX} entries", shown(place)));
            }
            if view.canceled() {
                return Ok(Next::Stop);
            }
            if view.who.is_tenant(stat.st_uid) {
                found.add(Item::new(path, How::Tree));
                return Ok(Next::Leave);
            }
            if with_root && stat.st_uid == 0 && !in_systems(path) {
                match baseline.temporary.get(&shown(path)) {
                    Some(known) if *known == identity(stat) => {}
                    // the same one, changed: whoever did that
                    Some(known) if known.split(' ').next() == identity(stat).split(' ').next() => {
                        let why = "it is not as it was in the baseline";
                        found.add(Item::new(path, How::Nothing(why)).saying(why));
                    }
                    Some(_) | None => {
                        found.add(Item::new(path, How::Tree));
                        return Ok(Next::Leave);
                    }
                }
            }
            Ok(Next::Enter)
        })?;
    }
    Ok(found)
}

enum Next {
    /// Where it is a folder, what is in it.
    Enter,
    Leave,
    Stop,
}

/// Everything below a folder, as far as one is told to go.
fn walk(
    folder: &Folder,
    path: &Path,
    depth: usize,
    see: &mut dyn FnMut(&Path, &Stat) -> Result<Next, String>,
) -> Result<(), String> {
    let mut deeper = Vec::new();
    let mut failed = Ok(());
    let walked = folder.each(|name| {
        let Some(stat) = folder.stat(name)? else { return Ok(true) };
        match see(&path.join(name), &stat) {
            Ok(Next::Enter) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                deeper.push(name.to_owned());
            }
            Ok(Next::Enter | Next::Leave) => {}
            Ok(Next::Stop) => return Ok(false),
            Err(why) => {
                failed = Err(why);
                return Ok(false);
            }
        }
        Ok(true)
    });
    walked.map_err(|error| format!("{}: {error}", shown(path)))?;
    failed?;
    for name in deeper {
        let path = path.join(&name);
        match folder.child(&name) {
            Ok(_) if depth == DEPTH_MAX => return Err(format!("{} is too deep to be searched", shown(&path))),
            Ok(inside) => walk(&inside, &path, depth + 1, see)?,
            // gone or swapped meanwhile; or another file system, which is for the check of mounts to judge
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {}
            Err(error) => return Err(format!("{}: {error}", shown(&path))),
        }
    }
    Ok(())
}

pub fn mail(view: &View) -> Result<Found, String> {
    let mut found = Found::default();
    let leaving: BTreeSet<&str> = view.accounts.leaving().map(|user| user.name.as_str()).collect();
    for place in MAIL.map(Path::new) {
        let Some(folder) = open(view, place)? else { continue };
        folder
            .each(|name| {
                found.examined += 1;
                let owner = folder.stat(name)?.map(|stat| stat.st_uid);
                let named = name.to_str().is_some_and(|name| leaving.contains(name));
                if named || owner.is_some_and(|uid| view.who.is_tenant(uid)) {
                    found.add(Item::new(place.join(name), How::Tree));
                }
                Ok(!view.canceled())
            })
            .map_err(|error| format!("{}: {error}", place.display()))?;
    }
    Ok(found)
}

/// Home folders that are nobody's that stays, in the usual place and wherever a tenant's line says.
pub fn homes(view: &View) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let staying: BTreeSet<&Path> = view.accounts.staying().map(|user| Path::new(user.home.as_str())).collect();
    let mut found = Found::default();
    if let Some(folder) = open(view, Path::new(HOMES))? {
        folder
            .each(|name| {
                found.examined += 1;
                let path = Path::new(HOMES).join(name);
                let kept = staying.iter().any(|home| home.starts_with(&path))
                    || baseline.home_folders.contains(&shown(Path::new(name)))
                    || name == "lost+found";
                if !kept {
                    found.add(Item::new(path, How::Tree));
                }
                Ok(!view.canceled())
            })
            .map_err(|error| format!("{HOMES}: {error}"))?;
    }
    for user in view.accounts.leaving() {
        let home = Path::new(user.home.as_str());
        let plain = super::policy::plain(&user.home).is_some_and(|plain| plain == user.home);
        let shared = staying.iter().any(|kept| kept.starts_with(home) && *kept != Path::new("/"));
        if !plain || shared || home.parent() == Some(Path::new(HOMES)) || home.components().count() < 3 {
            continue;
        }
        found.examined += 1;
        let (folder, name) = parent(home).map_err(|error| error.to_string())?;
        let Some(folder) = open(view, folder)? else { continue };
        // a line may say anything; what is somebody else's is not a tenant's home
        let stat = folder.stat(name).map_err(|error| format!("{}: {error}", shown(home)))?;
        if stat.is_some_and(|stat| stat.st_uid == user.uid && user.uid != 0) {
            found.add(Item::new(home, How::Tree));
        }
    }
    Ok(found)
}
