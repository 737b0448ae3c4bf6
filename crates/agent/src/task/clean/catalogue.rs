//! The catalogue of leftovers: every kind that is looked for, in the order in which they are removed. Who runs goes
//! first, then what is mounted, then files, and accounts last: by them the rest is known to be a tenant's.

use super::{Found, View, accounts, live, places};

/// A kind of leftover.
pub struct Check {
    /// Stable: it is in the clean record.
    pub name: &'static str,
    pub what: &'static str,
    pub find: Find,
}

pub enum Find {
    Look(fn(&View) -> Result<Found, String>),
    /// Places that are compared with the baseline.
    Areas(&'static [Area]),
}

/// A file or folder that is compared with how it was when the agent was installed. `*` is any one name, a first `~` the
/// home of root and of each user that the baseline knows.
pub struct Area {
    pub path: &'static str,
    pub by: By,
    /// Names in it that mean nothing; with a `*` at its end, all that begin so.
    pub except: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Only what has a name that was not there.
    Names,
    /// New files, and new lines in those that were there.
    Lines,
    /// New files; one that has changed is for a person.
    Whole,
    /// The same, and they are units of systemd.
    Units,
    /// Units that come and go with every boot: only what has a name that was not there.
    PassingUnits,
    /// The same of those that packages bring: whether one did, a person can tell.
    PackagedUnits,
}

const fn area(path: &'static str, by: By) -> Area {
    Area { path, by, except: &[] }
}

const fn but(path: &'static str, by: By, except: &'static [&'static str]) -> Area {
    Area { path, by, except }
}

pub const CHECKS: &[Check] = &[
    Check { name: "rights", what: "whether this agent may see everything", find: Find::Look(live::rights) },
    Check { name: "processes", what: "processes of tenants, also behind sudo", find: Find::Look(live::processes) },
    Check { name: "containers", what: "running containers of any engine", find: Find::Look(live::containers) },
    Check { name: "gpu_processes", what: "processes that hold a GPU", find: Find::Look(live::gpu_processes) },
    Check { name: "mounts", what: "mounts that the site did not have", find: Find::Look(live::mounts) },
    Check {
        name: "block_devices",
        what: "loop and mapped devices that the site did not have",
        find: Find::Look(live::block_devices),
    },
    Check {
        name: "shared_memory",
        what: "System V memory, queues and semaphores of tenants, and of root that the site did not have",
        find: Find::Look(live::segments),
    },
    Check {
        name: "container_storage",
        what: "containers, images and volumes on disk",
        find: Find::Areas(CONTAINER_STORAGE),
    },
    Check { name: "cron", what: "cron entries", find: Find::Areas(CRON) },
    Check { name: "at_jobs", what: "at and batch jobs", find: Find::Areas(AT_JOBS) },
    Check { name: "systemd_units", what: "units, timers and lingering users", find: Find::Areas(UNITS) },
    Check {
        name: "startup_files",
        what: "other files that start something or change every program",
        find: Find::Areas(STARTUP),
    },
    Check { name: "sudoers", what: "rights to become root", find: Find::Areas(SUDOERS) },
    Check { name: "ssh_keys", what: "SSH keys and settings of root and kept users", find: Find::Areas(SSH) },
    Check { name: "histories", what: "histories of shells and clients", find: Find::Areas(HISTORIES) },
    Check { name: "core_dumps", what: "memory of crashed programs", find: Find::Areas(CORE_DUMPS) },
    Check { name: "scratch", what: "content of scratch paths", find: Find::Look(places::scratch) },
    Check {
        name: "temporary_files",
        what: "temporary files, shared memory files and queues of tenants, and of root that the site did not have",
        find: Find::Look(places::temporary),
    },
    Check { name: "mail", what: "mail of tenants", find: Find::Look(places::mail) },
    Check { name: "homes", what: "home folders", find: Find::Look(places::homes) },
    Check {
        name: "accounts",
        what: "users, groups and memberships, also in backups of those files",
        find: Find::Look(accounts::look),
    },
];

/// Every engine keeps its own; what an engine makes when it starts for the first time is no leftover.
const CONTAINER_STORAGE: &[Area] = &[
    area("/var/lib/docker/containers", By::Names),
    but("/var/lib/docker/volumes", By::Names, &["metadata.db", "backingFsBlockDev"]),
    but("/var/lib/docker/overlay2", By::Names, &["l"]),
    area("/var/lib/docker/overlay2/l", By::Names),
    area("/var/lib/docker/vfs/dir", By::Names),
    area("/var/lib/docker/btrfs/subvolumes", By::Names),
    area("/var/lib/docker/fuse-overlayfs", By::Names),
    area("/var/lib/docker/image/*/imagedb/content/sha256", By::Names),
    area("/var/lib/docker/image/*/imagedb/metadata/sha256", By::Names),
    but("/var/lib/docker/image/*/layerdb", By::Names, &["mounts", "sha256", "tmp"]),
    area("/var/lib/docker/image/*/layerdb/sha256", By::Names),
    area("/var/lib/docker/image/*/layerdb/mounts", By::Names),
    area("/var/lib/docker/image/*/distribution/diffid-by-digest/sha256", By::Names),
    area("/var/lib/docker/image/*/distribution/v2metadata-by-diffid/sha256", By::Names),
    area("/var/lib/docker/image/*/repositories.json", By::Names),
    area("/var/lib/docker/buildkit", By::Names),
    area("/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256", By::Names),
    area("/var/lib/containerd/io.containerd.content.v1.content/ingest", By::Names),
    area("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots", By::Names),
    area("/var/lib/containerd/io.containerd.snapshotter.v1.native/snapshots", By::Names),
    area("/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", By::Names),
    area("/var/lib/nerdctl", By::Names),
    but(
        "/var/lib/containers/storage",
        By::Names,
        &[
            "overlay",
            "overlay-images",
            "overlay-containers",
            "overlay-layers",
            "volumes",
            "libpod",
            "tmp",
            "storage.lock",
            "userns.lock",
            "defaultNetworkBackend",
            "networks",
        ],
    ),
    but("/var/lib/containers/storage/overlay", By::Names, &["l"]),
    area("/var/lib/containers/storage/overlay/l", By::Names),
    but("/var/lib/containers/storage/overlay-images", By::Names, &["images.lock"]),
    but("/var/lib/containers/storage/overlay-containers", By::Names, &["containers.lock"]),
    but("/var/lib/containers/storage/overlay-layers", By::Names, &["layers.lock"]),
    area("/var/lib/containers/storage/volumes", By::Names),
    area("/var/lib/containers/storage/libpod", By::Names),
    area("/var/lib/containers/cache", By::Names),
    area("/var/lib/kubelet/pods", By::Names),
    area("/var/lib/lxc", By::Names),
    area("/var/lib/lxd/containers", By::Names),
    area("/var/lib/incus/containers", By::Names),
    area("/var/lib/machines", By::Names),
    area("/var/lib/libvirt/images", By::Names),
    area("~/.local/share/containers", By::Names),
    area("~/.local/share/docker", By::Names),
];

const CRON: &[Area] = &[
    area("/etc/crontab", By::Lines),
    area("/etc/anacrontab", By::Lines),
    area("/etc/cron.d", By::Lines),
    area("/etc/cron.hourly", By::Whole),
    area("/etc/cron.daily", By::Whole),
    area("/etc/cron.weekly", By::Whole),
    area("/etc/cron.monthly", By::Whole),
    area("/etc/cron.yearly", By::Whole),
    but("/var/spool/cron", By::Lines, &["atjobs", "atspool"]),
];

const AT_JOBS: &[Area] = &[
    but("/var/spool/cron/atjobs", By::Names, &[".SEQ"]),
    area("/var/spool/cron/atspool", By::Names),
    but("/var/spool/at", By::Names, &[".SEQ", "spool"]),
    area("/var/spool/at/spool", By::Names),
];

const UNITS: &[Area] = &[
    area("/etc/systemd/system", By::Units),
    area("/etc/systemd/user", By::Units),
    area("/usr/local/lib/systemd", By::Units),
    area("/usr/lib/systemd/system", By::PackagedUnits),
    area("/run/systemd/system", By::PassingUnits),
    // those of logins: whose processes they are is looked at apart
    but("/run/systemd/transient", By::PassingUnits, &["session-*"]),
    area("/var/lib/systemd/linger", By::Names),
    area("~/.config/systemd/user", By::Whole),
    area("~/.local/share/systemd/user", By::Whole),
];

const STARTUP: &[Area] = &[
    area("/etc/rc.local", By::Whole),
    area("/etc/init.d", By::Whole),
    area("/etc/profile.d", By::Whole),
    area("/etc/ld.so.preload", By::Lines),
    area("/etc/udev/rules.d", By::Whole),
    area("/etc/modules-load.d", By::Whole),
    area("/etc/xdg/autostart", By::Whole),
    area("/etc/ssh/sshd_config.d", By::Whole),
    area("/etc/pam.d", By::Whole),
    area("~/.bashrc", By::Whole),
    area("~/.bash_profile", By::Whole),
    area("~/.profile", By::Whole),
    area("~/.bash_login", By::Whole),
    area("~/.bash_logout", By::Whole),
    area("~/.zshrc", By::Whole),
    area("~/.zshenv", By::Whole),
    area("~/.config/autostart", By::Whole),
];

const SUDOERS: &[Area] =
    &[area("/etc/sudoers", By::Lines), area("/etc/sudoers.d", By::Lines), area("/etc/polkit-1/rules.d", By::Whole)];

const SSH: &[Area] = &[
    area("~/.ssh/authorized_keys", By::Lines),
    area("~/.ssh/authorized_keys2", By::Lines),
    area("~/.ssh/known_hosts", By::Lines),
    but("~/.ssh", By::Whole, &["authorized_keys", "authorized_keys2", "known_hosts"]),
];

const HISTORIES: &[Area] = &[
    area("~/.bash_history", By::Lines),
    area("~/.zsh_history", By::Lines),
    area("~/.sh_history", By::Lines),
    area("~/.ash_history", By::Lines),
    area("~/.history", By::Lines),
    area("~/.local/share/fish/fish_history", By::Lines),
    area("~/.python_history", By::Lines),
    area("~/.node_repl_history", By::Lines),
    area("~/.psql_history", By::Lines),
    area("~/.mysql_history", By::Lines),
    area("~/.sqlite_history", By::Lines),
    area("~/.rediscli_history", By::Lines),
    area("~/.lesshst", By::Lines),
    area("~/.viminfo", By::Lines),
    area("~/.wget-hsts", By::Lines),
];

const CORE_DUMPS: &[Area] =
    &[area("/var/lib/systemd/coredump", By::Names), area("/var/crash", By::Names), area("/var/spool/abrt", By::Names)];

/// Every area, for recording the baseline.
pub fn areas() -> impl Iterator<Item = &'static Area> {
    CHECKS
        .iter()
        .filter_map(|check| match check.find {
            Find::Areas(list) => Some(list),
            Find::Look(_) => None,
        })
        .flatten()
}
