//! The same in a process of its own: the caller's program, started again with a word that only this module knows. The
//! vendor's libraries map hundreds of megabytes, never give them back, keep the devices open (which forbids resets and
//! other drivers), and wait for ever on a GPU that has died: a child has an end.

use crate::nvml::{Gpus, probe};
use crate::report::{Error, Report};
use crate::scrub::{Options, Progress, scrub};
use crate::timing;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The first argument of the child.
pub const WORD: &str = "gpu-apart";

/// What the child says, a line each.
#[derive(Serialize, Deserialize)]
enum Line {
    Progress(Progress),
    Gpus(Gpus),
    Scrubbed(Result<Report, Error>),
}

/// For the beginning of `main`: does the child's work if this process is one. `None`: it is not.
pub fn answer() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(WORD) {
        return None;
    }
    // nobody is left to answer to when the parent has gone; where this cannot be had, the next line finds its pipe closed
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let said = match (args.next().as_deref(), args.next()) {
        (Some("probe"), None) => say(&Line::Gpus(probe())),
        (Some("scrub"), Some(options)) => match serde_json::from_str::<Options>(&options) {
            Ok(options) => {
                let mut progress = |progress| drop(say(&Line::Progress(progress)));
                say(&Line::Scrubbed(scrub(&options, &mut progress, &AtomicBool::new(false))))
            }
            Err(_) => return Some(ExitCode::from(2)),
        },
        _ => return Some(ExitCode::from(2)),
    };
    Some(if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(line: &Line) -> std::io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A program whose `main` begins with `answer`.
#[derive(Clone, Debug)]
pub struct Apart {
    program: PathBuf,
    limit: Duration,
}

impl Apart {
    pub fn new(program: impl Into<PathBuf>, limit: Duration) -> Self {
        Self { program: program.into(), limit }
    }

    /// This very program, even if its file was replaced meanwhile.
    pub fn of_this_program(limit: Duration) -> Self {
        Self::new("/proc/self/exe", limit)
    }

    pub fn probe(&self) -> Gpus {
        let mut found = None;
        let never = AtomicBool::new(false);
        let ended = self.run(&["probe"], &never, &mut |line| {
            if let Line::Gpus(gpus) = line {
                found = Some(gpus);
            }
        });
        let why = || ended.err().unwrap_or_else(|| "it ended without an answer".to_owned());
        found.unwrap_or_else(|| Gpus {
            note: Some(format!("the GPUs could not be asked: {}", why())),
            ..Gpus::default()
        })
    }

    pub fn scrub(
        &self,
        options: &Options,
        progress: &mut dyn FnMut(Progress),
        cancel: &AtomicBool,
    ) -> Result<Report, Error> {
        let mut result = None;
        let options = serde_json::to_string(options).map_err(|error| Error::Broken(error.to_string()))?;
        let ended = self.run(&["scrub", &options], cancel, &mut |line| match line {
            Line::Progress(line) => progress(line),
            Line::Scrubbed(scrubbed) => result = Some(scrubbed),
            Line::Gpus(_) => {}
        });
        let canceled = cancel.load(Ordering::Relaxed);
        result.unwrap_or_else(|| match ended {
            _ if canceled => Err(Error::Canceled),
            Ok(()) => Err(Error::Broken("the scrub ended without an answer".to_owned())),
            Err(why) => Err(Error::Broken(format!("the scrub did not end well: {why}"))),
        })
    }

    /// Reads what the child says until it has said all, is canceled or has had its time.
    fn run(&self, args: &[&str], cancel: &AtomicBool, hear: &mut dyn FnMut(Line)) -> Result<(), String> {
        if STUCK.load(Ordering::Relaxed) > 0 {
            return Err("an earlier process still waits inside the driver, which hangs: reboot".to_owned());
        }
        let mut child = spawn(&self.program, args).map_err(|error| error.to_string())?;
        let lines = listen(&mut child);
        let _ended = Ended(Some(child));
        let begun = timing::now();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err("canceled".to_owned());
            }
            let Some(left) = self.limit.checked_sub(begun.elapsed()) else {
                return Err(format!("no answer within {} s", self.limit.as_secs()));
            };
            match lines.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok(line) => hear(line),
                Err(RecvTimeoutError::Timeout) => {}
                // it has closed its end: it is about to end, or has
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

fn spawn(program: &Path, args: &[&str]) -> std::io::Result<Child> {
    Command::new(program)
        .arg(WORD)
        .args(args)
        // by these a GPU can be hidden, and what was translated be left behind in somebody's home
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_MPS_PIPE_DIRECTORY")
        .env("CUDA_CACHE_DISABLE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Its lines, few at a time and none too long; what is no line of ours ends it.
fn listen(child: &mut Child) -> Receiver<Line> {
    const LONGEST: u64 = 1 << 20;
    let (sender, receiver) = sync_channel(16);
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut text = Vec::new();
            loop {
                text.clear();
                let read = out.by_ref().take(LONGEST).read_until(b'\n', &mut text);
                let line = read.ok().filter(|read| *read > 0).and_then(|_| serde_json::from_slice(&text).ok());
                match line.map(|line| sender.send(line)) {
                    Some(Ok(())) => {}
                    _ => return,
                }
            }
        });
    }
    receiver
}

/// How many children wait inside the driver, where nothing can end them. Another would only join them.
static STUCK: AtomicUsize = AtomicUsize::new(0);

/// A child that is ended and buried, whatever happens.
struct Ended(Option<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        drop(child.kill());
        let begun = timing::now();
        while begun.elapsed() < Duration::from_secs(2) {
            match child.try_wait() {
                Ok(None) => timing::nap(),
                _ => return,
            }
        }
        STUCK.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            drop(child.wait());
            STUCK.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
