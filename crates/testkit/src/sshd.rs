//! A host for tests: OpenSSH's own server in namespaces of its own, on a port of this machine. It has its own
//! processes, boot id, serial number, `/etc`, `/run`, `/tmp` and `/var/lib`, so that it can be switched off, rebooted
//! and broken while this machine stays as it is. Gone when dropped or when the test process ends, however it ends.
//!
//! ```text
//! let host = SshHost::start();
//! host.at(), host.login(), host.fingerprint()     how to reach it, and the key it shows (as ssh-keygen tells it)
//! host.program("kubeadm", "#!/bin/sh\n…")         found first in PATH on that host
//! host.inside("/etc/millwright-image")            where this machine has a file of that host
//! host.reboot(), power_off(), power_on()          as by the power button: what runs there dies at once
//! host.boot_id(), host.boot_id_file               changes with every boot, also with one asked for in-band
//! ```
//!
//! The server is the namespace's first process: when it ends, the kernel kills all others, as a reboot does. The
//! `reboot` found first in PATH ends it. A shell outside boots the host again, until it is told not to or its input
//! ends. Needs root for the namespaces, and says so.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::credential::SshLogin;
use domain::endpoint::HostPort;
use domain::secret::Secret;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const SSHD: &str = "/usr/sbin/sshd";
const INSTALL: &str = "apt-get install -y --no-install-recommends openssh-server";
/// Long enough for a busy machine; a host that is not up by then is not coming.
const PATIENCE: Duration = Duration::from_secs(60);
/// An ordinary user of the host, beside root.
pub const WORKER: &str = "worker";
const WORKER_ID: u32 = 4242;

pub struct SshHost {
    folder: PathBuf,
    port: u16,
    guard: Mutex<Option<Child>>,
    /// What the host reads as `/proc/sys/kernel/random/boot_id`.
    pub boot_id_file: PathBuf,
}

/// Boots the host again and again. Orders: `off`, `on`, `reboot`. Argument: the folder.
const GUARD: &str = r#"
folder=$1
boot() {
    while [ ! -e "$folder/off" ]; do
        cat /proc/sys/kernel/random/uuid >"$folder/boot_id"
        echo boot >>"$folder/boots"
        unshare --mount --pid --fork --kill-child --mount-proc sh "$folder/init" "$folder" >>"$folder/console" 2>&1 &
        echo $! >"$folder/pid"
        wait $!
        sleep 0.1
    done
}
end() { kill -KILL "$(cat "$folder/pid")" 2>/dev/null; }
boot &
loop=$!
while read -r order; do
    case $order in
        reboot) end ;;
        off) : >"$folder/off"; end; wait "$loop" ;;
        on) rm -f "$folder/off"; boot & loop=$! ;;
    esac
    echo done
done
: >"$folder/off"
end
wait "$loop"
rm -rf "$folder"
"#;

/// The host's first process. Everything of the host's own is put in its place; then it is the server.
const INIT: &str = r#"
set -e
mount --bind "$1/run" /run
mount --bind "$1" /run/host
cd /
h=/run/host
mount --bind $h/etc /etc
mount --bind $h/var-lib /var/lib
mount --bind $h/class /sys/class
mount --bind $h/boot_id /proc/sys/kernel/random/boot_id
mount --bind $h/tmp /tmp
# what this machine's root has in its start files is none of the host's business
mount --bind $h/root /root
[ ! -e $h/shell ] || mount --bind $h/shell /bin/sh
# what a reboot empties
rm -rf /tmp/* /run/millwright
exec /usr/sbin/sshd -D -e -f $h/sshd_config
"#;

const REBOOT: &str = "#!/bin/sh\n[ \"$(id -u)\" = 0 ] || { echo 'Must be root.' >&2; exit 1; }\n\
    # as a system does it: asked now, done a little later\n(sleep 0.2; kill -TERM 1) >/dev/null 2>&1 &\n";

impl SshHost {
    /// A host with an Ed25519 key. Answers once it takes connections.
    pub fn start() -> Self {
        Self::made("ed25519", None)
    }

    /// The kind of its key, as `ssh-keygen -t` takes it.
    pub fn with_host_key(kind: &str) -> Self {
        Self::made(kind, None)
    }

    /// Another program is its `/bin/sh`.
    pub fn with_shell(shell: &str) -> Self {
        Self::made("ed25519", Some(shell))
    }

    fn made(kind: &str, shell: Option<&str>) -> Self {
        for needed in [SSHD, "/usr/bin/ssh-keygen"] {
            assert!(Path::new(needed).is_file(), "{needed} of OpenSSH is missing; install it: {INSTALL}");
        }
        let root = Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0");
        assert!(root, "a host for tests has namespaces of its own (unshare --mount --pid): run the tests as root");
        let folder = tempfile::Builder::new().prefix("millwright-host-").tempdir_in(crate::scratch::place());
        let folder = folder.expect("a folder for the host").keep();
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        furnish(&folder, port);
        keygen(&folder.join("host_key"), kind, "");
        if let Some(shell) = shell {
            std::os::unix::fs::symlink(shell, folder.join("shell")).expect("its shell");
        }
        let boot_id_file = folder.join("boot_id");
        let host = Self { folder, port, guard: Mutex::default(), boot_id_file };
        host.add_key("client.key", "ed25519", "");
        *host.guard() = Some(guard(&host.folder));
        host.wait_until_up();
        host
    }

    pub fn at(&self) -> HostPort {
        HostPort { host: "127.0.0.1".into(), port: self.port }
    }

    /// As root, with a key that the host knows.
    pub fn login(&self) -> SshLogin {
        self.login_as("root")
    }

    pub fn login_as(&self, user: &str) -> SshLogin {
        let key = std::fs::read_to_string(self.folder.join("client.key")).expect("the key");
        SshLogin { username: user.into(), private_key: Secret::new(key), passphrase: Secret::default() }
    }

    /// Root's login with another key, which the host knows from now on.
    pub fn login_with(&self, kind: &str, passphrase: &str) -> SshLogin {
        let name = format!("{kind}-{}.key", uuid::Uuid::now_v7().simple());
        let private_key = Secret::new(self.add_key(&name, kind, passphrase));
        SshLogin { username: "root".into(), private_key, passphrase: Secret::new(passphrase) }
    }

    fn add_key(&self, name: &str, kind: &str, passphrase: &str) -> String {
        let file = self.folder.join(name);
        keygen(&file, kind, passphrase);
        let public = std::fs::read_to_string(file.with_extension("key.pub")).expect("the public key");
        let known = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join("authorized_keys"));
        known.and_then(|mut known| known.write_all(public.as_bytes())).expect("the key is made known");
        std::fs::read_to_string(&file).expect("the key")
    }

    /// Of the host's key, as OpenSSH tells it.
    pub fn fingerprint(&self) -> String {
        let out = Command::new("ssh-keygen").arg("-l").arg("-f").arg(self.folder.join("host_key.pub")).output();
        let text = String::from_utf8(out.expect("ssh-keygen runs").stdout).expect("text");
        text.split(' ').nth(1).expect("a fingerprint").to_owned()
    }

    /// The host is installed anew: it shows another key from now on.
    pub fn change_host_key(&self) {
        self.power_off();
        for name in ["host_key", "host_key.pub"] {
            std::fs::remove_file(self.folder.join(name)).expect("the old key");
        }
        keygen(&self.folder.join("host_key"), "ed25519", "");
        self.power_on();
    }

    /// One more line for the server's configuration, before the others: the first one counts. It boots with it.
    pub fn configure(&self, line: &str) {
        let file = self.folder.join("sshd_config");
        let others = std::fs::read_to_string(&file).expect("the configuration");
        std::fs::write(&file, format!("{line}\n{others}")).expect("the configuration is written");
        self.reboot();
    }

    /// A program that is found first in PATH on the host.
    pub fn program(&self, name: &str, script: &str) {
        let file = self.folder.join("bin").join(name);
        std::fs::write(&file, script).expect("the program is written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    }

    /// The folder of its own programs, as this machine sees it.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// Where this machine has a file of that host: one below `/etc`, `/run`, `/tmp`, `/var/lib` or `/sys/class`.
    pub fn inside(&self, path: &str) -> PathBuf {
        let own = [("/etc", "etc"), ("/run", "run"), ("/tmp", "tmp"), ("/var/lib", "var-lib"), ("/sys/class", "class")];
        let found = own.iter().find_map(|(there, here)| Some((here, path.strip_prefix(there)?.strip_prefix('/')?)));
        let (here, rest) = found.unwrap_or_else(|| panic!("{path} is not the host's own"));
        self.folder.join(here).join(rest)
    }

    pub fn boot_id(&self) -> String {
        std::fs::read_to_string(&self.boot_id_file).expect("the boot id").trim().to_owned()
    }

    /// How often it was booted.
    pub fn boots(&self) -> usize {
        std::fs::read_to_string(self.folder.join("boots")).map_or(0, |text| text.lines().count())
    }

    /// As by the reset button: everything on it dies at once. Answers once it is up again, with another boot id.
    pub fn reboot(&self) {
        let before = self.boots();
        self.order("reboot");
        self.wait(|| self.boots() > before, "to boot");
        self.wait_until_up();
    }

    /// As by the power button, held. Answers once it is down.
    pub fn power_off(&self) {
        self.order("off");
        self.wait(|| !self.greets(), "to be down");
    }

    pub fn power_on(&self) {
        self.order("on");
        self.wait_until_up();
    }

    pub fn wait_until_up(&self) {
        self.wait(|| self.greets(), "to take connections");
    }

    fn greets(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut greeting = [0; 4];
        let limited = stream.set_read_timeout(Some(PATIENCE)).is_ok();
        limited && stream.read_exact(&mut greeting).is_ok() && greeting == *b"SSH-"
    }

    /// What its server and its first process have said.
    pub fn console(&self) -> String {
        std::fs::read_to_string(self.folder.join("console")).unwrap_or_default()
    }

    fn order(&self, order: &str) {
        let mut guard = self.guard();
        let child = guard.as_mut().expect("the guard runs");
        let (pipe, answer) = (child.stdin.as_mut().expect("its input"), child.stdout.as_mut().expect("its output"));
        writeln!(pipe, "{order}").unwrap_or_else(|e| panic!("the host's guard is gone: {e}"));
        let mut done = [0; 5];
        answer.read_exact(&mut done).unwrap_or_else(|e| panic!("the host's guard is gone: {e}"));
    }

    fn guard(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, done: impl Fn() -> bool, what: &str) {
        let begun = tokio::time::Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "the host took too long {what}:\n{}", self.console());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Drop for SshHost {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard().take() {
            drop(guard.stdin.take());
            // an error here leaves the guard to itself, which is as good
            drop(guard.wait());
        }
    }
}

fn guard(folder: &Path) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg(GUARD)
        .arg("host-guard")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/")
        // an interrupt from the terminal is for us; the guard learns of it by the pipe
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("starting the host's guard: {e}"))
}

/// Everything that is the host's own.
fn furnish(folder: &Path, port: u16) {
    let make = |name: &str| std::fs::create_dir_all(folder.join(name)).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a file");
    for name in ["bin", "run/host", "run/sshd", "var-lib", "class/dmi/id", "tmp", "home", "root"] {
        make(name);
    }
    run(Command::new("cp").arg("-a").arg("/etc").arg(folder.join("etc")));
    for (name, mode) in [(".", 0o755), ("tmp", 0o1777), ("run/sshd", 0o755)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.join(name), mode).expect("its mode is set");
    }
    let append = |name: &str, line: &str| {
        let file = std::fs::OpenOptions::new().append(true).open(folder.join("etc").join(name));
        file.and_then(|mut file| writeln!(file, "{line}")).expect("a line");
    };
    // what whoever runs the tests has in a .bashrc is not the host's, takes its time, and may not end when it is killed
    let (passwd, own) = (folder.join("etc/passwd"), folder.join("home/root"));
    let others = std::fs::read_to_string(&passwd).expect("the users");
    let others = others.lines().filter(|line| !line.starts_with("root:")).fold(String::new(), |all, l| all + l + "\n");
    std::fs::write(&passwd, format!("root:x:0:0:root:/run/host/home/root:/bin/sh\n{others}")).expect("the users");
    std::fs::create_dir(&own).expect("a home");
    append("passwd", &format!("{WORKER}:x:{WORKER_ID}:{WORKER_ID}::/run/host/home/{WORKER}:/bin/sh"));
    append("group", &format!("{WORKER}:x:{WORKER_ID}:"));
    append("shadow", &format!("{WORKER}:*:19000:0:99999:7:::"));
    let home = folder.join("home").join(WORKER);
    std::fs::create_dir(&home).expect("a home");
    std::os::unix::fs::chown(&home, Some(WORKER_ID), Some(WORKER_ID)).expect("its owner is set");
    write("boot_id", "");
    write("init", INIT);
    write("class/dmi/id/product_serial", &format!("SN-{port}\n"));
    write("class/dmi/id/product_uuid", &format!("{}\n", uuid::Uuid::now_v7()));
    write(
        "sshd_config",
        &format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey /run/host/host_key\nPidFile none\n\
             AuthorizedKeysFile /run/host/authorized_keys\nStrictModes no\nUsePAM no\nUseDNS no\nPrintMotd no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             AllowTcpForwarding yes\nMaxStartups 100:30:200\nMaxSessions 50\nLogLevel VERBOSE\n\
             SetEnv PATH=/run/host/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        ),
    );
    let reboot = folder.join("bin/reboot");
    std::fs::write(&reboot, REBOOT).expect("the program is written");
    std::fs::set_permissions(&reboot, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
}

fn keygen(file: &Path, kind: &str, passphrase: &str) {
    let mut command = Command::new("ssh-keygen");
    run(command.args(["-q", "-t", kind, "-C", "test", "-N", passphrase, "-f"]).arg(file));
}

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|e| panic!("running {command:?}: {e}"));
    assert!(out.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&out.stderr));
}
