//! Which folders may be emptied: the server names them, and the machine has the last word. A path that is, holds or lies
//! in something of the system's or the agent's own is refused, whoever asks.

use crate::host::{Host, shown};
use crate::install;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Trees of the system: nothing in them is scratch.
const SYSTEM: [&str; 20] = [
    "/bin",
    "/boot",
    "/dev",
    "/efi",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libexec",
    "/libx32",
    "/lost+found",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/snap",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
];
/// Data in trees of the system, where sites put it; temporary places have a check of their own.
const DATA: [&str; 2] = ["/dev/shm", "/var/scratch"];
/// Hold what is somebody's, and may themselves hold a scratch folder.
const NOT_WHOLE: [&str; 3] = ["/", "/home", "/opt"];

/// An absolute path without `.` and `..`, no slash at its end.
pub fn plain(path: &str) -> Option<String> {
    let ok = path.starts_with('/')
        && !path.contains('\0')
        && Path::new(path).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    ok.then(|| {
        format!("/{}", path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/"))
    })
}

/// Why a plain path is none that may be emptied.
pub fn refuse_scratch(host: &Host, state: &Path, path: &str) -> Result<(), String> {
    let wanted = Path::new(path);
    let refused = |why: String| Err(format!("{path} is no scratch path: {why}"));
    if NOT_WHOLE.contains(&path) {
        return refused("emptying it would break the machine".to_owned());
    }
    let own = [host.machine_path(state), install::SETTINGS.into(), install::EXEC.into(), install::STATE.into()];
    if let Some(own) = own.iter().find(|own| meet(wanted, own)) {
        return refused(format!("the agent's own {} is there", shown(own)));
    }
    let data = |tree: &Path| DATA.iter().any(|data| Path::new(data).starts_with(tree) && wanted.starts_with(data));
    for tree in SYSTEM.map(PathBuf::from) {
        // by its name, by what its name leads to, and by what it is wherever it is mounted
        for place in [Some(tree.clone()), resolved(host, &tree)].into_iter().flatten() {
            if meet(wanted, &place) && !data(&place) {
                return refused(format!("{} is the system's", shown(&tree)));
            }
        }
        if is_same(&host.at(&tree), &host.at(wanted)) {
            return refused(format!("it is {} of the system, mounted there", shown(&tree)));
        }
    }
    if is_same(host.root(), &host.at(wanted)) {
        return refused("it is the root of the machine".to_owned());
    }
    Ok(())
}

/// Whether one is the other, or holds it.
fn meet(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Where the machine's own links lead, unless out of it.
fn resolved(host: &Host, tree: &Path) -> Option<PathBuf> {
    let root = std::fs::canonicalize(host.root()).ok()?;
    let inside = std::fs::canonicalize(host.at(tree)).ok()?;
    Some(Path::new("/").join(inside.strip_prefix(root).ok()?))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    number(one).is_some() && number(one) == number(other)
}
