//! sushy-emulator of OpenStack, a Redfish service that nobody here wrote: with its fake driver (machines that keep their
//! power and boot device in a file), or with its libvirt driver over the test hypervisor that is built into libvirt
//! (domains in memory: also processors, BIOS attributes, firmware updates). Gone when the process ends, however it ends.
//!
//! It lives in a Python environment of its own in the user's cache, which `scripts/test` makes once.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::tls::Pair;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const USERNAME: &str = "admin";
const VERSION: &str = "sushy-tools==2.2.0";
const LIBVIRT: &str = "libvirt-python==12.8.0";
const PATIENCE: Duration = Duration::from_secs(120);

/// Dropped: stopped, its folder removed.
pub struct Sushy {
    pub port: u16,
    pub tls: bool,
    folder: PathBuf,
    guard: Option<Child>,
}

/// Starts the emulator and ends it when the input ends. Arguments: the folder, then the command.
const GUARD: &str = r#"
folder=$1; shift
"$@" </dev/null >"$folder/sushy.log" 2>&1 & emulator=$!
while read -r _; do :; done
kill "$emulator"; wait "$emulator"
rm -rf "$folder"
"#;

/// Where `scripts/test` puts what it makes once.
pub fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|c| !c.is_empty()).map_or_else(home, PathBuf::from);
    cache.join("millwright-tests")
}

fn environment() -> PathBuf {
    cache().join(VERSION.replace("==", "-"))
}

pub(crate) fn program(name: &str) -> PathBuf {
    let place = environment();
    let program = place.join("bin").join(name);
    let at = place.display();
    assert!(
        program.is_file(),
        "sushy-emulator is not there; install it: python3 -m venv {at} && {at}/bin/pip install {VERSION} (or run scripts/test)"
    );
    program
}

impl Sushy {
    /// So many systems, `node-0000` and on, with UUIDs that end in their number; off, with one network interface
    /// and one drive each.
    pub fn start(systems: usize, password: &str, tls: Option<&Pair>) -> Self {
        Self::run(&format!("SUSHY_EMULATOR_FAKE_DRIVER = True\n{}", machines(systems)), password, tls)
    }

    /// One system, number 0, of libvirt's test hypervisor: off, with 4 processors and 8 GiB.
    pub fn start_libvirt(password: &str) -> Self {
        let has_it = Command::new(program("python")).args(["-c", "import libvirt"]).stderr(Stdio::null()).status();
        let (at, has_it) = (environment(), has_it.is_ok_and(|status| status.success()));
        assert!(
            has_it,
            "libvirt is not there; install it: apt-get install -y --no-install-recommends libvirt-dev pkg-config python3-dev && {}/bin/pip install {LIBVIRT} (or run scripts/test)",
            at.display()
        );
        Self::run(&domain(), password, None)
    }

    fn run(machines: &str, password: &str, tls: Option<&Pair>) -> Self {
        let folder = tempfile::Builder::new().prefix("millwright-sushy-").tempdir_in(crate::scratch::place());
        let folder = folder.expect("a folder").keep();
        let emulator = program("sushy-emulator");
        hash_password(&folder, password);
        let port = free_port();
        let mut config = format!(
            "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n\
             SUSHY_EMULATOR_STATE_DIR = {folder:?}\nSUSHY_EMULATOR_AUTH_FILE = {:?}\n",
            folder.join("htpasswd")
        );
        if let Some(pair) = tls {
            let (cert, key) = pair.write(&folder);
            write!(config, "SUSHY_EMULATOR_SSL_CERT = {cert:?}\nSUSHY_EMULATOR_SSL_KEY = {key:?}\n").expect("text");
        }
        config.push_str(machines);
        let file = folder.join("sushy.conf.py");
        std::fs::write(&file, config).expect("written");
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sushy-guard"])
            .arg(&folder)
            .arg(emulator)
            .arg("--config")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let sushy = Self { port, tls: tls.is_some(), folder, guard: Some(guard) };
        sushy.wait_until_up();
        sushy
    }

    pub fn uuid(number: usize) -> String {
        format!("4d570000-0000-4000-8000-{number:012x}")
    }

    /// How a system is reached, as a `bmc_endpoint`; without what says how its certificate is judged.
    pub fn endpoint(&self, number: usize) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://localhost:{}/redfish/v1/Systems/{}", self.port, Self::uuid(number))
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn wait_until_up(&self) {
        let begun = tokio::time::Instant::now();
        while TcpStream::connect(self.address()).is_err() {
            let log = || std::fs::read_to_string(self.folder.join("sushy.log")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "sushy-emulator does not come up:\n{}", log());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Drop for Sushy {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            drop(guard.wait());
        }
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Only bcrypt is understood; the lowest cost, since it is paid with every request.
pub(crate) fn hash_password(folder: &Path, password: &str) {
    let script = "import bcrypt, sys; print(bcrypt.hashpw(sys.stdin.buffer.read(), bcrypt.gensalt(4)).decode())";
    let mut python = Command::new(program("python"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    std::io::Write::write_all(&mut python.stdin.take().expect("a pipe"), password.as_bytes()).expect("written");
    let out = python.wait_with_output().expect("python ends");
    assert!(out.status.success(), "bcrypt");
    let line = format!("{USERNAME}:{}", String::from_utf8_lossy(&out.stdout));
    std::fs::write(folder.join("htpasswd"), line).expect("written");
}

fn machines(systems: usize) -> String {
    let (mut fakes, mut storage, mut drives) = (String::new(), String::new(), String::new());
    for number in 0..systems {
        let uuid = Sushy::uuid(number);
        let mac = format!("52:54:00:4d:{:02x}:{:02x}", number >> 8 & 255, number & 255);
        let fake = format!(
            "  {{'uuid': '{uuid}', 'name': 'node-{number:04}', 'power_state': 'Off', 'nics': [{{'mac': '{mac}', 'ip': ''}}]}},\n"
        );
        fakes.push_str(&fake);
        let controller = "{'MemberId': '0', 'Name': 'Controller', 'SpeedGbps': 12}";
        let shelf = format!("'Id': '1', 'Name': 'RAID', 'StorageControllers': [{controller}], 'Drives': ['d0']");
        writeln!(storage, "  '{uuid}': [{{{shelf}}}],").expect("text");
        let drive = "{'Id': 'd0', 'Name': 'Disk 0', 'CapacityBytes': 480103981056, 'Protocol': 'SAS'}";
        writeln!(drives, "  ('{uuid}', '1'): [{drive}],").expect("text");
    }
    format!(
        "SUSHY_EMULATOR_FAKE_SYSTEMS = [\n{fakes}]\nSUSHY_EMULATOR_STORAGE = {{\n{storage}}}\nSUSHY_EMULATOR_DRIVES = {{\n{drives}}}\n"
    )
}

/// The hypervisor forgets everything with its last connection, so one is kept open: in a setting, since those stay.
fn domain() -> String {
    let uuid = Sushy::uuid(0);
    format!(
        "import libvirt\nKEPT_OPEN = libvirt.open('test:///default')\n\
         SUSHY_EMULATOR_LIBVIRT_URI = 'test:///default'\n\
         KEPT_OPEN.lookupByName('test').destroy()\nKEPT_OPEN.lookupByName('test').undefine()\n\
         KEPT_OPEN.defineXML(\"\"\"<domain type='test'><name>node-0000</name><uuid>{uuid}</uuid>\
         <memory unit='GiB'>8</memory><vcpu>4</vcpu><os><type arch='i686'>hvm</type><boot dev='hd'/></os>\
         <devices><disk type='file' device='disk'><source file='/disk.raw'/><target dev='vda' bus='virtio'/></disk>\
         <interface type='network'><mac address='52:54:00:4d:00:00'/><source network='default'/>\
         </interface></devices></domain>\"\"\")\n"
    )
}
