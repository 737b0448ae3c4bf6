//! The other process: the test program once more, which then serves a folder's images, or adds some, instead of
//! testing. Each test that needs one begins with [`is_played`].

use boot::images::{Images, NamesInMemory, Options, Store};
use boot::port::{PortOptions, serve};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const ROLE: &str = "MILLWRIGHT_IMAGES_ROLE";
const FOLDER: &str = "MILLWRIGHT_IMAGES_FOLDER";
const BOUNDS: &str = "MILLWRIGHT_IMAGES_BOUNDS";
/// Before what a child says; the test harness may have begun the line.
const SAYS: &str = "child: ";
/// A bound on what would otherwise wait for ever, not a verdict.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The test that it is called in, as the harness spells it.
macro_rules! this_test {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap_or(name);
        name.split_once("::").map_or(name, |(_, name)| name)
    }};
}
pub(crate) use this_test;

fn say(line: impl std::fmt::Display) {
    println!("{SAYS}{line}");
    std::io::stdout().flush().expect("said");
}

/// Whether this process is such a child; if so, it has done its part now.
pub fn is_played() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let folder = std::env::var_os(FOLDER).expect("a folder");
    let folder = Path::new(&folder);
    match role.as_str() {
        "serve" => be_a_server(folder),
        "add one" => {
            // as its input has it
            let added = Store::open(folder, u64::MAX).and_then(|store| {
                say("begins");
                store.add(std::io::stdin(), None)
            });
            say(added.map_or_else(|e| e.to_string(), |(digest, _)| digest.to_string()));
        }
        "add many" => {
            let store = Store::open(folder, u64::MAX).expect("opened");
            for n in 0_u64.. {
                let bytes: Vec<u8> = (0..40_000 + n).map(|i| (i * (n + 1) % 251) as u8).collect();
                say(store.add(bytes.as_slice(), None).expect("added").0);
            }
        }
        other => panic!("{other} is no role"),
    }
    true
}

fn be_a_server(folder: &Path) {
    let bounds = std::env::var(BOUNDS).expect("bounds");
    let (streams_max, stalled_for) = bounds.split_once(' ').expect("two");
    let options = Options { streams_max: streams_max.parse().expect("a number") };
    let stalled_for = Duration::from_millis(stalled_for.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = Store::open(folder, u64::MAX).expect("opened");
        let names = NamesInMemory::default();
        if let Some(first) = store.list().expect("listed").first() {
            names.set("the-image".parse().expect("a name"), first.digest);
            names.set("lost".parse().expect("a name"), "00".repeat(32).parse().expect("a digest"));
        }
        let images = Arc::new(Images::new(Arc::new(store), Arc::new(names), options));
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        say(listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        let told = stop.clone();
        // who started us is gone
        std::thread::spawn(move || {
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            told.cancel();
        });
        serve(listener, images.router(), PortOptions { stalled_for, ..PortOptions::default() }, stop).await;
    });
}

/// One that is running; killed when dropped.
pub struct Played {
    child: Child,
    said: BufReader<ChildStdout>,
    pub input: Option<ChildStdin>,
}

impl Played {
    /// `command`: what starts the program, such as a shell that mounts something first; none: directly.
    pub fn start(test: &str, role: &str, folder: &Path, bounds: &str, before: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("our own program");
        let mut command = match before {
            None => Command::new(program),
            Some(script) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-ec", &format!("{script}\nexec \"$@\""), "sh"]).arg(program);
                command
            }
        };
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(FOLDER, folder).env(BOUNDS, bounds).env("RUST_BACKTRACE", "0");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (said, input) = (child.stdout.take().expect("its output"), child.stdin.take());
        Self { child, said: BufReader::new(said), input }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing it says; `None`: it has ended.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.said.read_line(&mut line).expect("reads") > 0 {
            if let Some((_, said)) = line.split_once(SAYS) {
                // a line that a kill cut short was not said
                return said.strip_suffix('\n').map(str::to_owned);
            }
            line.clear();
        }
        None
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        // an error here means that it is over already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server of a folder's images. The first of them is also called `the-image`.
pub struct Server {
    pub played: Played,
    pub address: String,
}

impl Server {
    pub fn start(test: &str, folder: &Path) -> Self {
        Self::bounded(test, folder, 1000, PATIENCE)
    }

    pub fn bounded(test: &str, folder: &Path, streams_max: usize, stalled_for: Duration) -> Self {
        let bounds = format!("{streams_max} {}", stalled_for.as_millis());
        let mut played = Played::start(test, "serve", folder, &bounds, None);
        let address = played.hear().expect("the server starts");
        Self { played, address }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Asks again and again until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Bytes that repeat nowhere near.
pub fn content(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| step()).collect()
}

/// A folder with one image in it, and that image's path below the server.
pub fn one_image(bytes: &[u8]) -> (tempfile::TempDir, String) {
    let folder = testkit::scratch::folder();
    let (digest, _) = Store::open(folder.path(), u64::MAX).expect("opened").add(bytes, None).expect("added");
    (folder, format!("/images/sha256/{digest}"))
}

/// The digest of a file, by a program that is not ours.
pub fn sha256sum(file: &Path) -> String {
    let out = Command::new("sha256sum").arg(file).output().expect("sha256sum is there (apt-get install coreutils)");
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).split_whitespace().next().expect("a digest").to_owned()
}

pub fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: {text:?}")))
}
