//! One process of the program: what it prints is kept, every wait for it is bounded, and it is ended when
//! the test is over, however that ends.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::Instant;

/// Long enough for a busy machine: what has not happened by then is not coming.
const PATIENCE: Duration = Duration::from_secs(120);
/// Beside the folder of a test.
pub const SAID: &str = "said";
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
    clean(Command::new(env!("CARGO_BIN_EXE_millwright")), folder)
}

/// A command with nothing of ours from around in its environment, in a folder of the test.
pub fn clean(mut command: Command, folder: &Path) -> Command {
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
    /// Where what it said is left, to be searched for secrets.
    folder: Option<PathBuf>,
    /// Whether it was asked to show one.
    shows_secret: bool,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        let name = format!("{:?}", command.get_args().collect::<Vec<_>>());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {name}: {e}"));
        let out = Heard::from(child.stdout.take().expect("piped"));
        let err = Heard::from(child.stderr.take().expect("piped"));
        let words: Vec<String> = command.get_args().map(|w| w.to_string_lossy().into_owned()).collect();
        let shows_secret =
            words[..2.min(words.len())] == ["token", "create"] || words.first().is_some_and(|w| w == "demo");
        let folder = command.get_current_dir().map(Path::to_owned);
        Self { child, name, out, err, folder, shows_secret }
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

    /// Beside the test's folder, where it is searched at the end.
    fn leave_what_was_said(&mut self) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        self.out.finish();
        self.err.finish();
        let beside = self.folder.as_ref().and_then(|folder| Some(folder.parent()?.join(SAID)));
        let Some(folder) = beside.filter(|said| said.is_dir()) else { return };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ending = if self.shows_secret { ".shown" } else { "" };
        for (name, text) in
            [(format!("{number}.out{ending}"), self.out.text()), (format!("{number}.err"), self.err.text())]
        {
            drop(std::fs::write(folder.join(name), text));
        }
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
        self.leave_what_was_said();
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
