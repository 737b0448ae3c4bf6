//! The part of the fuzzer that watches: it starts the target's process, judges by its processor time whether it
//! still gets anywhere, and reports the input that ended it.

use super::{Fuzz, name_of, smaller};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;

pub(super) const CHILD: &str = "MILLWRIGHT_FUZZ_CHILD";
pub(super) const REPLAY: &str = "MILLWRIGHT_FUZZ_REPLAY";
pub(super) const INPUT: &str = "input";
pub(super) const REPORT: &str = "report";
/// What the target's process ends with when it has found something.
pub(super) const FAILED: i32 = 33;

/// Of one input; not how long it took, which is up to whoever else is busy.
const PROCESSOR_MAX: Duration = Duration::from_secs(1);
/// For what neither works nor answers; a bound, not a verdict about speed.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The address space of the process, in KiB.
const SPACE_MAX: u64 = 1 << 20;
/// Each starts a process.
const TRIES: usize = 12;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An input and what came of it.
#[derive(Debug)]
pub(super) struct Failed {
    pub input: Vec<u8>,
    pub why: String,
}

pub(super) fn run(fuzz: &Fuzz) {
    match outcome(fuzz) {
        Ok(report) => print!("{}: {report}", fuzz.name),
        Err(failed) => {
            let file = fuzz.failures().join(name_of(&failed.input));
            panic!(
                "{}: {}\nthe input is {}\n{REPLAY}={} cargo test {} -- --exact {}",
                fuzz.name,
                failed.why,
                file.display(),
                file.display(),
                own_target(),
                fuzz.test()
            );
        }
    }
}

/// How cargo names the program that we are.
fn own_target() -> String {
    let program = std::env::current_exe().ok().and_then(|p| Some(p.file_stem()?.to_string_lossy().into_owned()));
    match program.as_deref().and_then(|name| name.rsplit_once('-')).map(|(name, _)| name) {
        Some("millwright") => "-p millwright --bins".to_owned(),
        Some("testkit") | None => "-p millwright-testkit --lib".to_owned(),
        Some(test) => format!("-p millwright-testkit --test {test}"),
    }
}

/// What came of a whole run. The input that failed lies in the folder of failures.
pub(super) fn outcome(fuzz: &Fuzz) -> Result<String, Failed> {
    let mut failed = match attempt(fuzz, None) {
        Ok(report) => return Ok(report),
        Err(failed) => failed,
    };
    let folder = fuzz.failures();
    std::fs::create_dir_all(&folder).expect("the folder of failures");
    let candidate = folder.join("candidate");
    let again = |input: &[u8]| {
        std::fs::write(&candidate, input).expect("written");
        attempt(fuzz, Some(&candidate)).is_err()
    };
    // what a process survived it has made smaller itself
    if !failed.why.starts_with("found") && std::env::var_os(REPLAY).is_none() && again(&failed.input) {
        failed.input = smaller(&failed.input, TRIES, again);
    }
    drop(std::fs::remove_file(&candidate));
    std::fs::write(folder.join(name_of(&failed.input)), &failed.input).expect("written");
    Err(failed)
}

/// A process of the target; all that it leaves goes with its folder.
struct Running {
    child: Child,
    place: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        // an error here means that it is over already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(fuzz: &Fuzz, replay: Option<&Path>) -> Running {
    let place = tempfile::Builder::new().prefix("millwright-fuzz-").tempdir_in(crate::scratch::place());
    let place = place.expect("a folder");
    let said = std::fs::File::create(place.path().join("said")).expect("a file");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v $0 && exec \"$@\""]).arg(SPACE_MAX.to_string());
    command.arg(std::env::current_exe().expect("our own program"));
    command.args(["--exact", &fuzz.test(), "--nocapture", "--test-threads=1"]);
    command.env(CHILD, place.path()).env("TMPDIR", place.path()).env("RUST_BACKTRACE", "0");
    // each thread would reserve its own, and the bound is on what is reserved
    command.env("MALLOC_ARENA_MAX", "2");
    if let Some(file) = replay {
        command.env(REPLAY, file);
    }
    command.stdin(Stdio::null()).stderr(said.try_clone().expect("a file")).stdout(said);
    Running { child: command.spawn().expect("the target starts"), place }
}

fn attempt(fuzz: &Fuzz, replay: Option<&Path>) -> Result<String, Failed> {
    let mut running = start(fuzz, replay);
    let place = running.place.path().to_owned();
    let mut at = Progress::of(&place, running.child.id());
    let mut since = Instant::now();
    loop {
        if let Some(status) = running.child.try_wait().expect("our own child") {
            let report = std::fs::read_to_string(place.join(REPORT)).unwrap_or_default();
            if status.success() && !report.is_empty() {
                return Ok(report);
            }
            let said = std::fs::read_to_string(place.join("said")).unwrap_or_default();
            let why = match status.code() {
                Some(FAILED) => format!("found: {report}"),
                _ => format!("the process of the target has ended with {status}:\n{}", tail(&said)),
            };
            return Err(Failed { input: input(&place), why });
        }
        let now = Progress::of(&place, running.child.id());
        if now.count != at.count {
            (at, since) = (now, Instant::now());
        } else if at.count > 0 && now.processor.saturating_sub(at.processor) > PROCESSOR_MAX {
            let why = format!("one input took more than {PROCESSOR_MAX:?} of the processor");
            return Err(Failed { input: input(&place), why });
        } else if since.elapsed() > SILENCE_MAX {
            return Err(Failed { input: input(&place), why: format!("nothing came of it within {SILENCE_MAX:?}") });
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// How far the process is, and what it has used.
struct Progress {
    count: u64,
    processor: Duration,
}

/// Clock ticks of `/proc/PID/stat`, which are the same on every Linux that we know.
const TICK: Duration = Duration::from_millis(10);

impl Progress {
    fn of(place: &Path, process: u32) -> Self {
        let bytes = std::fs::read(place.join(INPUT)).unwrap_or_default();
        let count = bytes.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // fields are counted after the name, which stands in parentheses and may hold anything
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u32>().ok()).unwrap_or(0);
        Self { count, processor: TICK * (ticks(11) + ticks(12)) }
    }
}

/// The input that was in hand.
fn input(place: &Path) -> Vec<u8> {
    let bytes = std::fs::read(PathBuf::from(place).join(INPUT)).unwrap_or_default();
    let length = bytes.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let length = usize::try_from(length).unwrap_or(0);
    bytes.get(16..16 + length).map(<[u8]>::to_vec).unwrap_or_default()
}
