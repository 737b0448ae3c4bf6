//! One process of the program: what it prints is kept, every wait for it is bounded, and it is ended when
//! the test is over, however that ends.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::Instant;

/// Long enough for a busy machine: what has not happened by then is not coming.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until there is something; a bound, not a verdict about time.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// The program with a clean environment, in a folder of the test.
pub fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millwright"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLWRIGHT_") {
            command.env_remove(name);
        }
    }
    // the servers that whoever runs the tests knows by name are not ours to call
    command.env("HOME", folder).env("XDG_CONFIG_HOME", folder.join("config"));
    command.current_dir(folder);
    command
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ended {
    Process::spawn(command).end()
}

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    #[track_caller]
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn saying(self, part: &str) -> Self {
        assert!(self.err.contains(part), "{part:?} is not in stderr:\n{}", self.err);
        self
    }
}

pub struct Process {
    child: Child,
    name: String,
    out: Heard,
    err: Heard,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        let name = format!("{:?}", command.get_args().collect::<Vec<_>>());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {name}: {e}"));
        let out = Heard::from(child.stdout.take().expect("piped"));
        let err = Heard::from(child.stderr.take().expect("piped"));
        Self { child, name, out, err }
    }

    pub fn out(&self) -> String {
        self.out.text()
    }

    pub fn err(&self) -> String {
        self.err.text()
    }

    /// Whether it is over, by itself or by us.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let name = format!("{} ends", self.name);
        let status = until(&name, || self.child.try_wait().expect("our own child"));
        self.out.finish();
        self.err.finish();
        Ended { code: status.code(), out: self.out.text(), err: self.err.text() }
    }

    /// `kill -9`: it gets no chance to say or write anything more.
    pub fn kill(mut self) -> Ended {
        self.child.kill().expect("our own child");
        self.end()
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg("-s").arg(name).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()), "sending {name} to {}", self.name);
    }

    /// Stops it in its tracks. Answers once it stands still.
    pub fn freeze(&self) {
        self.signal("STOP");
        until("the process stands still", || self.is_stopped().then_some(()));
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("our own child");
        // the state comes after the name, which stands in parentheses and may hold anything
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // an error here means that it is over already
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("== {}\n{}\n-- stderr\n{}", self.name, self.out(), self.err());
        }
    }
}

/// What comes through a pipe, as far as it has come.
struct Heard {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Heard {
    fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for the rest, once the process is over.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reads to the end");
        }
    }
}
