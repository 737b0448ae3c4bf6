//! A scratch root file system that looks like a machine of a site, for the tests of tasks and of installing.
#![allow(dead_code, reason = "each test target takes what it needs")]

use agent::host::Host;
use agent::task::clean::baseline::Baseline;
use agent::task::{Context, Hold, Printer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub const TENANT: u32 = 1001;
pub const SITE: u32 = 1000;
pub const BOOT_ID: &str = "7a1b8f6e-53c2-4a55-9a60-0c2f3c1f2d11";

pub struct Scratch {
    folder: TempDir,
    pub host: Host,
    pub state: PathBuf,
}

/// What is in a file system, told by nothing of ours: kind, rights, owner, content.
pub type Tree = BTreeMap<PathBuf, String>;

pub fn tree(root: &Path) -> Tree {
    let mut all = Tree::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let meta = std::fs::symlink_metadata(&path).expect("it is there");
            let content = if meta.is_dir() {
                folders.push(path.clone());
                "folder".to_owned()
            } else if meta.is_symlink() {
                format!("link to {}", std::fs::read_link(&path).expect("a link").display())
            } else if meta.is_file() {
                format!("{:x?}", Sha256::digest(std::fs::read(&path).expect("a file")).as_slice())
            } else {
                "special".to_owned()
            };
            let says = format!("{:o} {}:{} {content}", meta.mode(), meta.uid(), meta.gid());
            all.insert(path.strip_prefix(root).expect("inside").to_owned(), says);
        }
    }
    all
}

/// What differs, for a message that helps.
pub fn differences(before: &Tree, after: &Tree) -> Vec<String> {
    let gone = before.iter().filter(|(path, _)| !after.contains_key(*path)).map(|(path, _)| format!("gone: {path:?}"));
    let new = after.iter().filter(|(path, _)| !before.contains_key(*path)).map(|(path, _)| format!("new: {path:?}"));
    let other = before.iter().filter_map(|(path, old)| {
        after.get(path).filter(|now| *now != old).map(|now| format!("{path:?}: {old} -> {now}"))
    });
    gone.chain(new).chain(other).collect()
}

impl Scratch {
    /// A machine of the site's, with its baseline recorded.
    pub fn new() -> Self {
        let scratch = Self::bare();
        scratch.folder_in("/var/lib/millwright-agent", 0, 0o700);
        Baseline::record(&scratch.host, &scratch.state).expect("a baseline");
        scratch
    }

    /// Without anything of the agent's.
    pub fn bare() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make files of other users: run them as root");
        let folder = tempfile::Builder::new().prefix("machine").tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("open to others");
        let host = Host::new(folder.path());
        let state = host.path("/var/lib/millwright-agent");
        let scratch = Self { folder, host, state };
        scratch.furnish();
        scratch
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn tree(&self) -> Tree {
        tree(self.root())
    }

    pub fn folder_in(&self, path: &str, uid: u32, mode: u32) {
        let path = self.host.path(path);
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its rights");
        chown(&path, Some(uid), Some(uid)).expect("its owner");
    }

    pub fn file(&self, path: &str, content: &str, uid: u32) {
        self.bytes(Path::new(path), content.as_bytes(), uid);
    }

    pub fn bytes(&self, path: &Path, content: &[u8], uid: u32) {
        let path = self.host.at(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
        std::fs::write(&path, content).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("its rights");
        chown(&path, Some(uid), Some(uid)).expect("its owner");
    }

    pub fn append(&self, path: &str, line: &str) {
        let mut content = std::fs::read_to_string(self.host.path(path)).expect("a file that is there");
        content.push_str(line);
        content.push('\n');
        std::fs::write(self.host.path(path), content).expect("written");
    }

    pub fn link(&self, target: &str, path: &str) {
        let path = self.host.path(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
        symlink(target, path).expect("a link");
    }

    pub fn program(&self, name: &str, script: &str) {
        let path = format!("/usr/sbin/{name}");
        self.file(&path, &format!("#!/bin/sh\n{script}\n"), 0);
        std::fs::set_permissions(self.host.path(&path), PermissionsExt::from_mode(0o755)).expect("executable");
    }

    /// A process that is only told of: no signal can reach it.
    pub fn process(&self, pid: u32, uid: u32, login: u32, cgroup: &str, holds: &[&str]) {
        let status = format!("Name:\tsleep\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        self.file(&format!("/proc/{pid}/status"), &status, 0);
        let stat = format!("{pid} (sl) eep) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0");
        self.file(&format!("/proc/{pid}/stat"), &stat, 0);
        self.file(&format!("/proc/{pid}/cgroup"), &format!("0::{cgroup}\n"), 0);
        self.file(&format!("/proc/{pid}/loginuid"), &login.to_string(), 0);
        std::fs::create_dir_all(self.host.path(&format!("/proc/{pid}/fd"))).expect("a folder");
        for (number, held) in holds.iter().enumerate() {
            self.link(held, &format!("/proc/{pid}/fd/{number}"));
        }
        self.link("/usr/bin/sleep", &format!("/proc/{pid}/exe"));
    }

    fn furnish(&self) {
        for path in ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"] {
            self.folder_in(path, 0, 0o1777);
        }
        for path in [
            "/usr/bin",
            "/etc/systemd/system/multi-user.target.wants",
            "/etc/systemd/user",
            "/var/spool/at/spool",
            "/var/spool/cron/atjobs",
            "/var/mail",
            "/home",
            "/scratch",
            "/scratch/lost+found",
            "/mnt",
            "/var/crash",
            "/var/lib/systemd/linger",
            "/var/lib/systemd/coredump",
            "/var/log",
            "/run/user",
            "/sys/block",
            "/opt",
            "/var/lib/docker/containers",
            "/var/lib/docker/volumes",
            "/var/lib/docker/overlay2/l",
            "/usr/lib/systemd",
            "/var/lib/docker/image/overlay2/imagedb/content/sha256",
            "/var/lib/containers/storage/volumes",
            "/var/lib/lxc",
            "/var/lib/kubelet/pods",
            "/etc/udev/rules.d",
            "/root/.config/systemd/user",
        ] {
            self.folder_in(path, 0, 0o755);
        }
        self.folder_in("/root", 0, 0o700);
        self.folder_in("/root/.ssh", 0, 0o700);
        self.folder_in("/home/site", SITE, 0o750);
        self.folder_in("/home/site/.ssh", SITE, 0o700);
        let accounts = [
            (
                "passwd",
                "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nsite:x:1000:1000::/home/site:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
            ),
            (
                "shadow",
                "root:!:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\nsite:$6$site:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
            ),
            ("group", "root:x:0:\ndaemon:x:1:\nsudo:x:27:site\nsite:x:1000:\nresearch:x:2000:site\nnogroup:x:65534:\n"),
            ("gshadow", "root:*::\ndaemon:*::\nsudo:*::site\nsite:!::\nresearch:!::site\nnogroup:*::\n"),
            ("subuid", "site:100000:65536\n"),
            ("subgid", "site:100000:65536\n"),
        ];
        for (name, content) in accounts {
            self.file(&format!("/etc/{name}"), content, 0);
            self.file(&format!("/etc/{name}-"), content, 0);
        }
        self.file("/etc/.pwd.lock", "", 0);
        std::fs::set_permissions(self.host.path("/etc/.pwd.lock"), PermissionsExt::from_mode(0o600)).expect("rights");
        for (path, content, uid) in [
            ("/root/.ssh/authorized_keys", "ssh-ed25519 AAAAsite site\n", 0),
            ("/root/.ssh/id_ed25519", "the site's own key\n", 0),
            ("/root/.ssh/known_hosts", "gate ssh-ed25519 AAAAgate\n", 0),
            ("/root/.bash_history", "apt update\nls\n", 0),
            ("/root/.bashrc", "alias ll='ls -l'\n", 0),
            ("/home/site/.ssh/authorized_keys", "# site\nssh-ed25519 AAAAsite site\n\n", SITE),
            ("/home/site/.bash_history", "sudo -i\n", SITE),
            ("/home/site/notes", "not ours to judge\n", SITE),
            ("/etc/crontab", "SHELL=/bin/sh\n17 * * * * root run-parts /etc/cron.hourly\n", 0),
            ("/etc/cron.d/site", "5 4 * * * root /opt/backup\n", 0),
            ("/etc/cron.daily/rotate", "#!/bin/sh\n", 0),
            ("/var/spool/cron/crontabs/root", "1 2 * * * /opt/check\n", 0),
            ("/etc/systemd/system/site.service", "[Service]\nExecStart=/opt/site\n", 0),
            ("/etc/sudoers", "root ALL=(ALL) ALL\n", 0),
            ("/etc/sudoers.d/site", "site ALL=(ALL) ALL\n", 0),
            ("/etc/profile.d/site.sh", "umask 022\n", 0),
            ("/etc/rc.local", "#!/bin/sh\nexit 0\n", 0),
            ("/tmp/of-root", "x", 0),
            ("/tmp/deep/er/of-site", "x", SITE),
            ("/dev/shm/of-site", "x", SITE),
            ("/var/mail/root", "From nobody\n", 0),
            ("/var/lib/docker/volumes/metadata.db", "bolt", 0),
            ("/opt/site", "the site's own program\n", 0),
            ("/usr/bin/true", "a program\n", 0),
            ("/sys/block/loop0/loop/backing_file", "/opt/site.img\n", 0),
            ("/proc/sys/kernel/random/boot_id", &format!("{BOOT_ID}\n"), 0),
            ("/proc/self/mountinfo", MOUNTS, 0),
            (
                "/proc/sysvipc/shm",
                &format!("{SHM}         0          5  1600     393216    1     1      0     0     0     0\n"),
                0,
            ),
            ("/proc/sysvipc/msg", MSG, 0),
            ("/proc/sysvipc/sem", SEM, 0),
        ] {
            self.file(path, content, uid);
        }
        self.link("/etc/systemd/system/site.service", "/etc/systemd/system/multi-user.target.wants/site.service");
        self.link("../mail", "/var/spool/mail");
        self.process(1, 0, u32::MAX, "/init.scope", &["/dev/null"]);
        self.process(20, SITE, SITE, "/user.slice/user-1000.slice/session-1.scope", &[]);
        self.process(30, 65_534, u32::MAX, "/system.slice/dnsmasq.service", &[]);
    }

    /// Scripts are real processes: this machine has the control groups of the one that the test runs on.
    pub fn with_control_groups(self) -> Self {
        for file in ["/proc/self/cgroup", "/proc/self/mountinfo"] {
            self.file(file, &std::fs::read_to_string(file).expect("a kernel with control groups"), 0);
        }
        self
    }

    pub fn context(&self) -> (Context, Said) {
        let (sender, mut receiver) = mpsc::channel::<(&'static str, Vec<u8>)>(16);
        let said = Said::default();
        let into = said.clone();
        tokio::spawn(async move {
            while let Some((_, bytes)) = receiver.recv().await {
                into.0.lock().expect("no panic before").extend(bytes);
            }
        });
        let context = Context {
            host: self.host.clone(),
            state: self.state.clone(),
            printer: Printer::new(sender),
            cancel: CancellationToken::new(),
            hold: Hold::new().0,
        };
        (context, said)
    }
}

pub const MOUNTS: &str = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
    23 22 0:21 / /proc rw shared:2 - proc proc rw\n24 22 8:2 / /srv rw shared:3 - ext4 /dev/sda2 rw\n";
pub const SHM: &str = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid\n";
pub const MSG: &str = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n";
pub const SEM: &str = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";

/// What a task has printed.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic before").clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

pub fn hostile(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Waits for a condition, for a long time: it is never how long it took that a test judges by.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("never came true: {what}");
}
