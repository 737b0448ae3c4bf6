//! How the machine was when the agent was installed: what is here already is the site's own. Without it nothing that
//! could be the site's is judged, let alone removed.

use super::accounts::{self, ACCOUNT_FILES};
use super::areas::{self, Record};
use super::catalogue;
use super::live;
use super::places::{self, HOMES, PLACES};
use crate::host::{Host, shown};
use crate::task::beneath::{Folder, Links};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const FILE: &str = "baseline.json";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownUser {
    pub uid: u32,
    pub home: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub users: BTreeMap<String, KnownUser>,
    pub groups: BTreeMap<String, u32>,
    /// Lines of the account files, as digests.
    pub account_lines: BTreeMap<String, BTreeSet<String>>,
    /// Links on the way to places that are looked at.
    pub links: Links,
    pub mounts: BTreeSet<String>,
    pub block_devices: BTreeSet<String>,
    pub home_folders: BTreeSet<String>,
    /// What was there of root's where everybody may write, with what tells it from another of the same name.
    pub temporary: BTreeMap<String, String>,
    /// System V memory, queues and semaphores.
    pub segments: BTreeSet<String>,
    pub entries: BTreeMap<String, Record>,
    /// Of the file itself: two records can be told to rest on the same one.
    #[serde(skip)]
    pub sha256: String,
}

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of one line: short, for there may be many.
pub fn line_digest(line: &[u8]) -> String {
    digest(line)[..32].to_owned()
}

impl Baseline {
    pub fn load(state: &Path) -> Result<Self, String> {
        let path = state.join(FILE);
        let read = std::fs::read(&path).map_err(|error| {
            format!(
                "there is no baseline to compare with ({}: {error}); it is recorded when the agent is installed",
                path.display()
            )
        })?;
        let mut baseline: Self = serde_json::from_slice(&read)
            .map_err(|error| format!("the baseline {} cannot be read: {error}", path.display()))?;
        baseline.sha256 = digest(&read);
        Ok(baseline)
    }

    /// Homes in which things are compared.
    pub fn homes(&self) -> Vec<PathBuf> {
        let homes: BTreeSet<PathBuf> = self.users.values().map(|user| PathBuf::from(&user.home)).collect();
        homes.into_iter().filter(|home| home.is_absolute() && home.components().count() > 1).collect()
    }

    /// Looks at the machine as it is now.
    pub fn survey(host: &Host) -> Result<Self, String> {
        let mut now = Self::default();
        for path in catalogue::areas().map(|area| area.path).chain(PLACES).chain([HOMES, "/etc/passwd"]) {
            // as far as it is the same for everybody
            let fixed: PathBuf = Path::new(path).iter().take_while(|part| *part != "*" && *part != "~").collect();
            links_on(host, &fixed, &mut now.links);
        }
        let etc = Folder::open(host, Path::new("/etc"), &now.links).map_err(|error| error.to_string())?;
        let etc = etc.ok_or("there is no /etc")?;
        let read = |name: &str| etc.read(OsStr::new(name)).map_err(|error| format!("/etc/{name}: {error}"));
        for user in accounts::users(&read("passwd")?.unwrap_or_default()) {
            now.users.insert(user.name, KnownUser { uid: user.uid, home: user.home });
        }
        now.groups = accounts::groups(&read("group")?.unwrap_or_default());
        for (name, _) in ACCOUNT_FILES {
            let lines = read(name)?.unwrap_or_default();
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line_digest).collect();
            now.account_lines.insert((*name).to_owned(), lines);
        }
        for home in now.homes() {
            links_on(host, &home, &mut now.links);
        }
        now.mounts = live::mount_points(host)?.into_iter().map(|(at, _)| shown(&at)).collect();
        now.block_devices = live::block_device_names(host)?.into_iter().collect();
        if let Some(homes) = Folder::open(host, Path::new(HOMES), &now.links).map_err(|error| error.to_string())? {
            let names = homes.names(areas::ENTRIES_MAX).map_err(|error| format!("{HOMES}: {error}"))?;
            now.home_folders = names.iter().map(|name| shown(Path::new(name))).collect();
        }
        now.temporary = places::of_root(host, &now.links)?;
        now.segments = live::segment_names(host)?;
        let homes = now.homes();
        for area in catalogue::areas() {
            let mut entries = BTreeMap::new();
            areas::survey(host, &now.links, &homes, area, None, &mut |path, record, _| {
                entries.insert(shown(&path), record);
                Ok(())
            })?;
            now.entries.extend(entries);
        }
        Ok(now)
    }

    /// Looks and keeps it, in one step that is either done or not.
    pub fn record(host: &Host, state: &Path) -> Result<(), String> {
        let json = serde_json::to_vec(&Self::survey(host)?).map_err(|error| error.to_string())?;
        let (path, temporary) = (state.join(FILE), state.join(".baseline.new"));
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&json)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            std::fs::File::open(state)?.sync_all()
        };
        write().map_err(|error| format!("keeping the baseline in {}: {error}", path.display()))
    }
}

/// Notes the links on a way; they are resolved inside of the machine's root.
fn links_on(host: &Host, path: &Path, links: &mut Links) {
    let mut wanted: Vec<_> = path.iter().skip(1).map(OsStr::to_owned).collect();
    wanted.reverse();
    let (mut at, mut followed) = (PathBuf::from("/"), 0);
    while let Some(name) = wanted.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let here = at.join(&name);
        match std::fs::read_link(host.at(&here)) {
            Ok(target) if followed < 16 => {
                followed += 1;
                links.insert(shown(&here), shown(&target));
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                let parts: Vec<_> =
                    target.iter().filter(|part| *part != "/" && *part != ".").map(OsStr::to_owned).collect();
                wanted.extend(parts.into_iter().rev());
            }
            Ok(_) => return,
            Err(_) => at = here,
        }
    }
}
