//! A private PostgreSQL for tests, made from the distribution's own programs: one cluster for each test
//! process, one fresh database for each test, gone when the process ends, however it ends.
//!
//! A small shell script stands between us and the server. It holds the other end of a pipe: when the
//! pipe closes because this process is gone, it stops the server and removes its folder.
#![allow(clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio_postgres::config::Host;
use tokio_postgres::{Config, NoTls};

/// What the server promises about its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In memory or at least without `fsync`: what is committed survives the server's death, but not the
    /// machine's.
    Fast,
    /// As installed.
    Stock,
}

const INSTALL: &str = "apt-get install -y --no-install-recommends postgresql";
const USER: &str = "postgres";
/// Only the name of a file: the server listens on a socket in its own folder and nowhere else.
const PORT: u16 = 5432;
/// Long enough for a busy machine; a server that is not up by then is not coming.
const PATIENCE: Duration = Duration::from_secs(120);

/// A fresh, empty database on the cluster of this test process.
pub fn database() -> Config {
    shared().database()
}

/// A database as a program is told of it. The cluster listens on a socket only.
pub fn url(config: &Config) -> String {
    let socket = config.get_hosts().iter().find_map(|host| match host {
        Host::Unix(path) => Some(path.display().to_string()),
        Host::Tcp(_) => None,
    });
    let (user, name) = (config.get_user().unwrap_or_default(), config.get_dbname().unwrap_or_default());
    format!("postgres://{user}@/{name}?host={}", encoded(&socket.unwrap_or_default()))
}

pub fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let one = |byte: u8| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// The cluster of this test process, started when first asked for.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(Durability::Fast))
}

/// One server with its folder. Dropped: stopped and removed.
pub struct Cluster {
    folder: PathBuf,
    guard: Mutex<Option<Child>>,
    databases: AtomicU32,
}

/// Starts the server, obeys `kill`, `stop` and `start` on its input, and cleans up when the input ends.
/// Arguments: the folder, then the command.
const GUARD: &str = r#"
folder=$1; shift
start() { "$@" </dev/null >>"$folder/server.log" 2>&1 & server=$!; }
start "$@"
while read -r order; do
    case $order in
        kill) kill -QUIT "$server"; wait "$server" ;;
        stop) kill -INT "$server"; wait "$server" ;;
        start) start "$@" ;;
    esac
done
kill -INT "$server"; wait "$server"
rm -rf "$folder"
"#;

impl Cluster {
    /// Makes a cluster of its own and starts it. For a test that needs to stop the server or its disk.
    pub fn start(durability: Durability) -> Self {
        let place = match durability {
            Durability::Fast => crate::scratch::place().to_owned(),
            Durability::Stock => std::env::temp_dir(),
        };
        let folder = make_folder(&place);
        initialize(&folder);
        Self::run(folder, durability)
    }

    /// A standby that follows this server, whose commits from now on wait for it: what is acknowledged is
    /// there, too.
    pub fn with_standby(&self) -> Self {
        let folder = make_folder(&std::env::temp_dir());
        let mut copy = as_server(&program("pg_basebackup"));
        copy.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--username", USER, "--host"]);
        copy.arg(self.folder.join("run")).arg("--port").arg(PORT.to_string());
        copy.arg("--pgdata").arg(folder.join("data"));
        run(&mut copy);
        let standby = Self::run(folder, Durability::Stock);
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.execute("SELECT pg_reload_conf()");
        let follows = "SELECT 1 / count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        let follows = || execute(self.config("postgres"), follows.to_owned()).is_ok().then_some(());
        self.wait(follows, "to have its standby follow");
        standby
    }

    /// A standby becomes the server that takes changes, and waits for nobody.
    pub fn promote(&self) {
        self.execute("SELECT pg_promote()");
    }

    fn run(folder: PathBuf, durability: Durability) -> Self {
        let guard = Command::new("sh")
            .arg("-c")
            .arg(GUARD)
            .arg("postgres-guard")
            .arg(&folder)
            .args(words(&server_command(&folder, durability)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // an interrupt from the terminal is for us; the guard learns of it by the pipe
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("starting the guard of PostgreSQL: {e}"));
        let cluster = Self { folder, guard: Mutex::new(Some(guard)), databases: AtomicU32::new(0) };
        cluster.wait_until_up();
        cluster
    }

    /// A fresh, empty database.
    pub fn database(&self) -> Config {
        let name = format!("t_{}", self.databases.fetch_add(1, Ordering::Relaxed) + 1);
        self.execute(&format!("CREATE DATABASE {name}"));
        self.config(&name)
    }

    /// How to reach one of its databases.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(self.folder.join("run")).port(PORT).user(USER).dbname(database);
        config
    }

    /// The server dies as in a power cut: no shutdown, no checkpoint. Answers once it is gone.
    pub fn kill(&self) {
        self.order("kill");
        let down = || (!self.is_up()).then_some(());
        self.wait(down, "to be gone");
    }

    /// The server is stopped as by its administrator: sessions are ended, then it writes everything down.
    /// Answers once it is gone.
    pub fn stop(&self) {
        self.order("stop");
        let down = || (!self.is_up()).then_some(());
        self.wait(down, "to be gone");
    }

    /// Starts the server again after [`Cluster::kill`] or [`Cluster::stop`]. Answers once it takes connections.
    pub fn start_again(&self) {
        self.order("start");
        self.wait_until_up();
    }

    fn order(&self, order: &str) {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let pipe = guard.as_mut().and_then(|g| g.stdin.as_mut());
        let sent = pipe.map(|pipe| writeln!(pipe, "{order}"));
        assert!(matches!(sent, Some(Ok(()))), "the guard of PostgreSQL is gone: {sent:?}");
    }

    fn is_up(&self) -> bool {
        execute(self.config("postgres"), "SELECT 1".to_owned()).is_ok()
    }

    fn wait_until_up(&self) {
        self.wait(|| self.is_up().then_some(()), "to take connections");
    }

    fn wait(&self, mut done: impl FnMut() -> Option<()>, what: &str) {
        let begun = tokio::time::Instant::now();
        while done().is_none() {
            assert!(begun.elapsed() < PATIENCE, "PostgreSQL took too long {what}:\n{}", self.log());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Runs a statement as the administrator, in the database `postgres`.
    pub fn execute(&self, sql: &str) {
        if let Err(e) = execute(self.config("postgres"), sql.to_owned()) {
            panic!("{sql}: {e}\n{}", self.log());
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut guard) = guard {
            drop(guard.stdin.take());
            // an error here leaves the guard to itself, which is as good
            drop(guard.wait());
        }
    }
}

/// Runs one statement on a connection and a thread of its own: the caller may be inside a runtime.
fn execute(config: Config, sql: String) -> Result<(), String> {
    let work = move || -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await.map_err(|e| format!("{e:?}"))?;
            tokio::spawn(async move { drop(connection.await) });
            client.batch_execute(&sql).await.map_err(|e| format!("{e:?}"))
        })
    };
    std::thread::spawn(work).join().unwrap_or_else(|_| Err("panicked".to_owned()))
}

/// A folder that the server's user can reach.
fn make_folder(place: &Path) -> PathBuf {
    let folder = tempfile::Builder::new().prefix("millwright-pg-").tempdir_in(place);
    let folder = folder.unwrap_or_else(|e| panic!("making a folder for PostgreSQL: {e}")).keep();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&folder, open).unwrap_or_else(|e| panic!("opening {}: {e}", folder.display()));
    // the server writes here, whoever it runs as
    for name in ["data", "run"] {
        run(Command::new("mkdir").arg("-m").arg("0700").arg(folder.join(name)));
    }
    if is_root() {
        run(Command::new("chown").arg("-R").arg(format!("{USER}:")).arg(&folder));
    }
    folder
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

fn initialize(folder: &Path) {
    let program = program("initdb");
    let help = Command::new(&program).arg("--help").output().map(|out| out.stdout).unwrap_or_default();
    let mut command = as_server(&program);
    command.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", USER, "--pgdata"]);
    command.arg(folder.join("data"));
    if String::from_utf8_lossy(&help).contains("--icu-locale") {
        // sorts otherwise than by bytes, as many installations do: what relies on bytes must say so
        command.args(["--locale-provider=icu", "--icu-locale=en-US"]);
    }
    run(&mut command);
}

fn server_command(folder: &Path, durability: Durability) -> Command {
    let mut command = as_server(&program("postgres"));
    command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder.join("run"));
    command.args(["-p", &PORT.to_string(), "-c", "listen_addresses=", "-c", "max_connections=300"]);
    match durability {
        Durability::Fast => command.args(["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_wal_size=128MB"]),
        Durability::Stock => &mut command,
    };
    command
}

/// The server refuses to run as root.
fn as_server(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--init-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// The newest of the distribution's versions, or whatever PATH has.
fn program(name: &str) -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let version = entry.file_name().to_string_lossy().parse().unwrap_or(0);
        found.push((version, entry.path().join("bin").join(name)));
    }
    found.sort();
    let installed = found.into_iter().rev().map(|(_, path)| path);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    installed.chain(on_path).find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("{name} of PostgreSQL is neither in /usr/lib/postgresql/*/bin nor on PATH; install it: {INSTALL}")
    })
}

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|e| panic!("running {command:?}: {e}"));
    assert!(out.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&out.stderr));
}

fn words(command: &Command) -> Vec<std::ffi::OsString> {
    let mut words = vec![command.get_program().to_owned()];
    words.extend(command.get_args().map(ToOwned::to_owned));
    words
}
