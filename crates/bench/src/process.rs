//! The server under test as a process of its own, and what the kernel says about it: CPU and memory are read
//! from `/proc`, never from the server itself.

use crate::Outcome;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tokio::time::Instant;

/// Long enough for a busy machine; a server that is not up by then is not coming.
const PATIENCE: Duration = Duration::from_secs(120);
/// The kernel counts in these where it does not count in nanoseconds (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// The release binary that lies beside this program.
pub fn program() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name("millwright");
    if !path.is_file() {
        return Err(format!("{} is missing; build it: cargo build --release -p millwright", path.display()).into());
    }
    Ok(path)
}

/// How a server is started; the same again for every start.
#[derive(Clone)]
pub struct Launch {
    pub data: PathBuf,
    /// None: SQLite in the data folder.
    pub database: Option<String>,
    /// Whether it offers the simulated fleet, and reads that fleet's journal when it starts.
    pub simulated: bool,
    pub settings: Vec<(String, String)>,
}

pub struct Server {
    child: Child,
    pub address: String,
    pub token: String,
    /// From the start of the process until it said that it is ready.
    pub ready_after: Duration,
}

impl Launch {
    pub fn with(&self, key: &str, value: impl ToString) -> Self {
        let mut launch = self.clone();
        launch.settings.push((key.to_owned(), value.to_string()));
        launch
    }

    pub fn start(&self) -> Outcome<Server> {
        let log = self.data.with_extension("log");
        let mut command = Command::new(program()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MILLWRIGHT_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&self.data);
        if self.simulated {
            command.args(["--sim", "0"]);
        }
        if let Some(url) = &self.database {
            command.args(["--database", url]);
        }
        for (key, value) in &self.settings {
            command.env(format!("MILLWRIGHT_{}", key.to_uppercase().replace('.', "__")), value);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log)?);
        let begun = Instant::now();
        let mut child = command.spawn()?;
        let (lines, heard) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            // ends with the process
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    drop(lines.send(line));
                }
            });
        }
        let mut server = Server { child, address: String::new(), token: String::new(), ready_after: Duration::ZERO };
        loop {
            let Ok(line) = heard.recv_timeout(PATIENCE) else {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let end: Vec<&str> = said.lines().rev().take(5).collect();
                return Err(format!("the server did not start: {}", end.join(" / ")).into());
            };
            if let Some((_, url)) = line.split_once(" listens on http://") {
                server.address = url.trim().to_owned();
                break;
            }
        }
        while server.page("/readyz").is_err() {
            if begun.elapsed() > PATIENCE {
                return Err("the server does not become ready".into());
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        server.ready_after = begun.elapsed();
        server.token = std::fs::read_to_string(self.data.join("admin.token"))?.trim().to_owned();
        Ok(server)
    }
}

impl Server {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A plain HTTP page.
    pub fn page(&self, path: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (host, token) = (&self.address, &self.token);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
            _ => Err(format!("{path}: {}", answer.lines().next().unwrap_or("no answer")).into()),
        }
    }

    pub fn metrics(&self) -> Outcome<Metrics> {
        Ok(Metrics::read(&self.page("/metrics")?))
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> Outcome<f64> {
        resident(self.pid())
    }

    /// `kill -9`: it gets no chance to write anything more.
    pub fn kill(mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for its end.
    pub fn stop(mut self) -> Outcome<()> {
        Command::new("kill").arg(self.pid().to_string()).status()?;
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err("the server does not stop".into());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // an error here means that it is over already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The lines of a metrics page, by name and labels.
#[derive(Clone, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub fn read(page: &str) -> Self {
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(page.lines().filter(|l| !l.starts_with('#')).filter_map(line).collect())
    }

    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Changes and commits so far.
    pub fn commits(&self) -> (f64, f64) {
        let name = domain::metric::COMMIT_BATCH.name;
        (self.get(&format!("{name}_sum")), self.get(&format!("{name}_count")))
    }
}

/// Resident memory of a process, in bytes.
pub fn resident(pid: u32) -> Outcome<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map(|kib: f64| kib * 1024.0).ok_or_else(|| "no VmRSS".into())
}

/// Processor time of a process so far: every thread's nanoseconds, and the process's ticks, which also have
/// the threads that are gone.
pub struct Cpu {
    threads: BTreeMap<String, u64>,
    ticks: u64,
}

impl Cpu {
    pub fn of(pid: u32) -> Outcome<Self> {
        let folder = Path::new("/proc").join(pid.to_string());
        let mut threads = BTreeMap::new();
        for entry in std::fs::read_dir(folder.join("task"))? {
            let entry = entry?;
            // a thread may end while we look
            if let Some(nanos) = on_cpu(&entry.path().join("schedstat")) {
                threads.insert(entry.file_name().to_string_lossy().into_owned(), nanos);
            }
        }
        let stat = std::fs::read_to_string(folder.join("stat"))?;
        // the name stands in parentheses and may hold anything
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        Ok(Self { threads, ticks: ticks(11) + ticks(12) })
    }

    pub fn since(&self, before: &Self) -> Duration {
        let all_there = before.threads.keys().all(|id| self.threads.contains_key(id));
        if !all_there {
            return TICK * u32::try_from(self.ticks.saturating_sub(before.ticks)).unwrap_or(u32::MAX);
        }
        let spent = |(id, now): (&String, &u64)| now.saturating_sub(before.threads.get(id).copied().unwrap_or(0));
        Duration::from_nanos(self.threads.iter().map(spent).sum())
    }
}

/// Processor time of the calling thread.
pub fn own_cpu() -> Duration {
    Duration::from_nanos(on_cpu(Path::new("/proc/thread-self/schedstat")).unwrap_or(0))
}

fn on_cpu(schedstat: &Path) -> Option<u64> {
    std::fs::read_to_string(schedstat).ok()?.split_whitespace().next()?.parse().ok()
}
