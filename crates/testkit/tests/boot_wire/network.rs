//! A private network: this process in one namespace, other hosts in namespaces of theirs, wires between.
//!
//! A test starts itself again below `unshare`. Namespaces have no names here, so nothing is left to remove: each is gone
//! with the last process in it, and every process is told to die with the one that started it.

use std::future::Future;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A bound on what would otherwise wait for ever; a busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(240);
const INSIDE: &str = "MILLWRIGHT_BOOT_WIRE_INSIDE";
const INSTALL: &str = "apt-get install -y --no-install-recommends iproute2 util-linux busybox-static curl";

/// Where a program is, or how to get it.
pub fn program(name: &str, install: &str) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path.split(':').map(|folder| format!("{folder}/{name}")).find(|file| Path::new(file).is_file());
    found.unwrap_or_else(|| panic!("{name} is not there; install it: {install}"))
}

/// Runs the body of a test in a network of its own.
pub fn privately<B, F>(body: B)
where
    B: FnOnce() -> F,
    F: Future<Output = ()>,
{
    for needed in ["ip", "unshare", "nsenter", "setpriv", "busybox", "curl"] {
        program(needed, INSTALL);
    }
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        return runtime.expect("a runtime").block_on(async {
            ip("link set lo up").await;
            body().await;
        });
    }
    let root = std::process::Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0");
    assert!(root, "a network namespace needs root: run this test as root");
    // the closure is named after the test that it stands in
    let name = std::any::type_name::<B>();
    let test = name.split_once("::").and_then(|(_, below)| below.split_once("::{{")).expect("a test's name").0;
    let mut command = std::process::Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--fork", "--kill-child"]);
    command.arg(std::env::current_exe().expect("our own program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(INSIDE, "1").stdin(Stdio::null());
    let output = command.process_group(0).output().expect("unshare starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{test} in its own network:\n{said}");
}

/// A command that dies with us.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).args(arguments);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The output of a command that ends by itself.
pub async fn output(mut command: Command) -> Output {
    let said = format!("{:?}", command.as_std());
    let ended = timeout(PATIENCE, command.output()).await;
    ended.unwrap_or_else(|_| panic!("{said} does not end")).unwrap_or_else(|e| panic!("{said}: {e}"))
}

async fn succeeds(command: Command) {
    let said = format!("{:?}", command.as_std());
    let output = output(command).await;
    assert!(output.status.success(), "{said}: {}", String::from_utf8_lossy(&output.stderr));
}

/// `ip` here.
pub async fn ip(arguments: &str) {
    succeeds(command("ip", &arguments.split(' ').collect::<Vec<_>>())).await;
}

/// Waits until something is so.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Another host: a namespace that lasts as long as its one idle process.
pub struct Host {
    holder: Child,
}

impl Host {
    pub async fn new() -> Self {
        let holder = command("unshare", &["--net", "sleep", "infinity"]).spawn().expect("a namespace");
        let host = Self { holder };
        let (own, its) = (Path::new("/proc/self/ns/net").to_owned(), host.place());
        let apart = || std::fs::read_link(&its).is_ok_and(|its| Some(its) != std::fs::read_link(&own).ok());
        until("it has a network of its own", apart).await;
        host.ip("link set lo up").await;
        host
    }

    fn process(&self) -> u32 {
        self.holder.id().expect("it runs")
    }

    fn place(&self) -> String {
        format!("/proc/{}/ns/net", self.process())
    }

    /// A command there.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut all = vec![format!("--net={}", self.place()), program.to_owned()];
        all.extend(arguments.iter().map(|a| (*a).to_owned()));
        command("nsenter", &all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub async fn ip(&self, arguments: &str) {
        succeeds(self.command("ip", &arguments.split(' ').collect::<Vec<_>>())).await;
    }

    /// A wire from an interface of that name here to one there; both ends up.
    pub async fn wire(&self, here: &str, there: &str) {
        ip(&format!("link add {here} type veth peer name {there} netns {}", self.process())).await;
        ip(&format!("link set {here} up")).await;
        self.ip(&format!("link set {there} up")).await;
    }

    /// A wire between two other hosts.
    pub async fn wire_to(&self, own: &str, other: &Host, its: &str) {
        let (one, two) = (self.process(), other.process());
        ip(&format!("link add {own} netns {one} type veth peer name {its} netns {two}")).await;
        self.ip(&format!("link set {own} up")).await;
        other.ip(&format!("link set {its} up")).await;
    }
}
