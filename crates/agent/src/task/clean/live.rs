//! Leftovers that live in the kernel: processes, containers, who holds a GPU, mounts, block devices, System V segments.

use super::{Found, How, Item, View};
use crate::host::{Host, shown};
use crate::task::process::{self, Occupant};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File systems that are the kernel's own view of itself, where they usually are.
const KERNELS: [&str; 17] = [
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "configfs",
    "fusectl",
    "hugetlbfs",
    "binfmt_misc",
    "efivarfs",
    "cgroup",
    "cgroup2",
];
const MOUNTS_MAX: usize = 100_000;

/// Whether a look can see everything there is.
pub fn rights(view: &View) -> Result<Found, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the agent does not run as root: what it cannot see it cannot judge".to_owned());
    }
    if view.host.is_real() {
        let namespace = |of: &str| {
            let path = format!("/proc/{of}/ns/mnt");
            std::fs::read_link(&path).map_err(|error| {
                format!("whether the agent sees the machine's own mounts is not known: {path}: {error}")
            })
        };
        if namespace("self")? != namespace("1")? {
            return Err("the agent does not see the machine's own mounts, but a view of its own".to_owned());
        }
    }
    Ok(Found { examined: 1, ..Found::default() })
}

fn occupants(view: &View, pick: fn(process::Seen) -> Vec<Occupant>) -> Result<Found, String> {
    let seen = process::look(&view.host, &view.who).map_err(|error| format!("looking at processes: {error}"))?;
    let mut found = Found { examined: seen.examined, ..Found::default() };
    for one in pick(seen) {
        let says = one.shown();
        found.add(Item { at: PathBuf::from(format!("/proc/{}", one.pid)), says, how: How::Process(one) });
    }
    Ok(found)
}

pub fn processes(view: &View) -> Result<Found, String> {
    occupants(view, |seen| seen.users)
}

pub fn containers(view: &View) -> Result<Found, String> {
    occupants(view, |seen| seen.containers)
}

pub fn gpu_processes(view: &View) -> Result<Found, String> {
    occupants(view, |seen| seen.gpus)
}

/// A mount point as the kernel writes it: blanks and line ends as octal numbers.
fn unescape(field: &str) -> PathBuf {
    let (bytes, mut plain, mut at) = (field.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        match octal.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()) {
            Some(value) => {
                plain.push(value);
                at += 4;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// Mount points of this machine with the kind of what is mounted, in the order in which they were mounted.
pub fn mount_points(host: &Host) -> Result<Vec<(PathBuf, String)>, String> {
    let info = std::fs::read_to_string(host.path("/proc/self/mountinfo"))
        .map_err(|error| format!("reading mounts: {error}"))?;
    let live = host.shows_live_processes();
    let mut points = Vec::new();
    for line in info.lines() {
        let at = line.split(' ').nth(4).map(unescape).ok_or("a mount without a place")?;
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
        // in a scratch root only what is mounted there is this machine's
        let at = match at.strip_prefix(host.root()) {
            Ok(inside) if live || host.is_real() => Path::new("/").join(inside),
            Err(_) if live => continue,
            Ok(_) | Err(_) => at,
        };
        points.push((at, kind.to_owned()));
        if points.len() > MOUNTS_MAX {
            return Err(format!("more than {MOUNTS_MAX} mounts"));
        }
    }
    Ok(points)
}

/// Mounts that come and go with the system itself.
fn is_systems(view: &View, at: &Path, kind: &str) -> bool {
    let kernels = ["/proc", "/sys", "/dev", "/run"].iter().any(|top| at.starts_with(top)) && KERNELS.contains(&kind);
    let session = at.strip_prefix("/run/user").ok().and_then(|rest| rest.iter().next()?.to_str()?.parse().ok());
    kernels
        || kind == "autofs"
        || at.starts_with("/run/credentials")
        || at.starts_with("/run/systemd")
        || (at.starts_with("/snap") && kind == "squashfs")
        || session.is_some_and(|uid| !view.who.is_tenant(uid))
}

pub fn mounts(view: &View) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let mut found = Found::default();
    // last mounted, first unmounted
    for (at, kind) in mount_points(&view.host)?.into_iter().rev() {
        found.examined += 1;
        let kept = baseline.mounts.contains(&shown(&at))
            || view.policy.kept_mounts.iter().any(|kept| at == Path::new(kept))
            || view.policy.scratch_paths.iter().any(|scratch| at == Path::new(scratch));
        if !kept && !is_systems(view, &at, &kind) {
            found.add(Item::new(at, How::Unmount).saying(&kind.escape_default().to_string()));
        }
    }
    Ok(found)
}

/// Loop devices by what is behind them, mapped ones by their name.
pub fn block_device_names(host: &Host) -> Result<Vec<String>, String> {
    let folder = host.path("/sys/block");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("there is no /sys/block".to_owned()),
        Err(error) => return Err(format!("/sys/block: {error}")),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| format!("/sys/block: {error}"))?.path();
        for (kind, file) in [("loop", "loop/backing_file"), ("mapped", "dm/name")] {
            if let Ok(name) = std::fs::read(path.join(file)) {
                let name = name.trim_ascii_end();
                if !name.starts_with(b"/var/lib/snapd/snaps/") {
                    names.push(format!("{kind} {}", name.escape_ascii()));
                }
            }
        }
    }
    names.sort();
    Ok(names)
}

pub fn block_devices(view: &View) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let mut found = Found::default();
    for name in block_device_names(&view.host)? {
        found.examined += 1;
        if !baseline.block_devices.contains(&name) {
            let why = "whose it is only a person can tell";
            found.add(Item { at: PathBuf::from("/sys/block"), says: format!("{name}: {why}"), how: How::Nothing(why) });
        }
    }
    Ok(found)
}

/// The kernel's tables of System V, each with the option that removes from it.
const TABLES: [(&str, &str, &str); 3] = [("shm", "shmid", "-m"), ("msg", "msqid", "-q"), ("sem", "semid", "-s")];

/// One line of such a table.
struct Segment {
    table: &'static str,
    option: &'static str,
    id: String,
    owners: Vec<u32>,
    /// Tells it from another with the same number: its key, and whose it is.
    name: String,
}

fn table(host: &Host, (table, id, option): (&'static str, &str, &'static str)) -> io::Result<Vec<Segment>> {
    let text = std::fs::read_to_string(host.path(&format!("/proc/sysvipc/{table}")))?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let column = |name: &str| {
        let at = head.iter().position(|column| *column == name);
        at.ok_or_else(|| io::Error::other(format!("it has no {name}")))
    };
    let (key, id, uid, maker) = (column("key")?, column(id)?, column("uid")?, column("cuid")?);
    let segment = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let owners: Vec<u32> = [uid, maker].iter().filter_map(|at| fields.get(*at)?.parse().ok()).collect();
        let id = (*fields.get(id)?).to_owned();
        let name = format!("{table} {id} {} {owners:?}", fields.get(key)?);
        Some(Segment { table, option, id, owners, name })
    };
    Ok(lines.filter_map(segment).collect())
}

/// What is there, for the baseline; a kernel without it has none.
pub fn segment_names(host: &Host) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for one in TABLES {
        match table(host, one) {
            Ok(segments) => names.extend(segments.into_iter().map(|segment| segment.name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("/proc/sysvipc/{}: {error}", one.0)),
        }
    }
    Ok(names)
}

pub fn segments(view: &View) -> Result<Found, String> {
    let baseline = view.baseline.as_ref().map_err(Clone::clone)?;
    let mut found = Found::default();
    for one in TABLES {
        for segment in table(&view.host, one).map_err(|error| format!("/proc/sysvipc/{}: {error}", one.0))? {
            found.examined += 1;
            let tenant = segment.owners.iter().find(|uid| view.who.is_tenant(**uid));
            let roots = segment.owners.iter().find(|uid| **uid == 0 && !baseline.segments.contains(&segment.name));
            if let Some(owner) = tenant.or(roots) {
                let says = format!("{} {} of user {owner}", segment.table, segment.id.escape_default());
                let at = PathBuf::from("/proc/sysvipc").join(segment.table);
                found.add(Item { at, says, how: How::Segment(segment.option, segment.id) });
            }
        }
    }
    Ok(found)
}

/// Takes a mount away. Its path is the kernel's own, without links; a link swapped in at its end is not followed.
pub fn unmount(host: &Host, at: &Path) -> io::Result<()> {
    if !host.shows_live_processes() {
        return Err(io::Error::other("this is no mount of this machine"));
    }
    if at.as_os_str().as_bytes() == b"/" {
        return Err(io::Error::other("the root is never unmounted"));
    }
    Ok(rustix::mount::unmount(host.at(at), rustix::mount::UnmountFlags::NOFOLLOW)?)
}
