//! One task under way: what it prints, when its time is up, and how it ends.

use super::result::failed;
use crate::setting::Setting;
use crate::task::{Context, Held, Hold, Outcome, Printer};
use domain::Timestamp;
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Where the server names none.
const TIME_DEFAULT: Duration = Duration::from_secs(3600);
const TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// From being asked to end until it is made to.
const END_WITHIN: Duration = Duration::from_secs(30);
/// What a task has left behind is waited for so long; then the next ones are told that the agent is busy.
const BEHIND_MAX: Duration = Duration::from_secs(120);
const PRINTS: usize = 16;

pub struct Execution {
    pub id: String,
    pub started: Timestamp,
    cancel: CancellationToken,
    work: JoinHandle<Outcome>,
    output: mpsc::Receiver<(&'static str, Vec<u8>)>,
    allowed: Duration,
    /// Its time is up then; once it was asked to end, it is made to.
    due: Instant,
    asked: Option<Why>,
    held: Held,
}

/// A task that has finished, and of which something still works.
pub struct Behind {
    pub id: String,
    held: Held,
    until: Instant,
}

impl Behind {
    /// Returns when the last of it has ended, or when it has been waited for long enough; says which.
    pub async fn ended(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.held.released() => true,
            () = tokio::time::sleep_until(self.until), if !self.is_long() => false,
        }
    }

    pub fn is_long(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Why it was asked to end.
#[derive(Clone, Debug)]
enum Why {
    Canceled(String),
    TimeIsUp,
}

pub enum Event {
    Printed(&'static str, Vec<u8>),
    Finished(Result<Outcome, JoinError>),
}

impl Execution {
    pub fn begin(id: String, kind: Kind, seconds: u32, setting: &Setting, started: Timestamp) -> Self {
        let (printer, output) = mpsc::channel(PRINTS);
        let cancel = CancellationToken::new();
        let (hold, held) = Hold::new();
        let context = Context {
            host: setting.host.clone(),
            state: setting.folder.path().to_owned(),
            printer: Printer::new(printer),
            cancel: cancel.clone(),
            hold,
        };
        let allowed = match seconds {
            0 => TIME_DEFAULT,
            some => Duration::from_secs(some.into()).min(TIME_MAX),
        };
        let work = tokio::spawn((setting.execute)(kind, context));
        Self { id, started, cancel, work, output, allowed, due: Instant::now() + allowed, asked: None, held }
    }

    /// The next that happens to it. Watches its time meanwhile.
    pub async fn event(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                // first: a task that prints without end has a time, too
                () = tokio::time::sleep_until(self.due) => match self.asked {
                    None => self.ask(Why::TimeIsUp),
                    // at its next wait it is no more
                    Some(_) => {
                        self.work.abort();
                        self.due = Instant::now() + END_WITHIN;
                    }
                },
                Some((stream, data)) = self.output.recv() => return Event::Printed(stream, data),
                finished = &mut self.work => return Event::Finished(finished),
            }
        }
    }

    /// What it had printed when it finished.
    pub fn last_prints(&mut self) -> impl Iterator<Item = (&'static str, Vec<u8>)> + '_ {
        std::iter::from_fn(|| self.output.try_recv().ok()).take(PRINTS)
    }

    pub fn end(&mut self, reason: &str) {
        if self.asked.is_none() {
            self.ask(Why::Canceled(reason.to_owned()));
        }
    }

    fn ask(&mut self, why: Why) {
        self.cancel.cancel();
        self.asked = Some(why);
        self.due = Instant::now() + END_WITHIN;
    }

    /// What may still work for it though it has finished: a thread that waits for the kernel cannot be aborted.
    pub fn left_behind(mut self) -> Option<Behind> {
        let released = self.held.is_released();
        (!released).then(|| Behind { id: self.id, held: self.held, until: Instant::now() + BEHIND_MAX })
    }

    /// What it comes to: done is done, even if it was asked to end.
    pub fn outcome(&self, finished: Result<Outcome, JoinError>) -> Outcome {
        let own = match finished {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(own)) => own,
            Err(e) if e.is_panic() => {
                let message =
                    "a fault of the agent's own ended it; its log has the place, and the machine may be half-way";
                failed("AGENT_FAULT", FailureClass::NeedsOperator, message.to_owned(), json!({}))
            }
            Err(_) => {
                let message = format!("it did not end within {} s of being asked to", END_WITHIN.as_secs());
                failed("ENDED", FailureClass::Transient, message, json!({}))
            }
        };
        let (code, class, message) = match &self.asked {
            None => return Err(own),
            Some(Why::TimeIsUp) => {
                let message = format!("it took longer than {} s: {}", self.allowed.as_secs(), own.message);
                ("TIMED_OUT", FailureClass::Transient, message)
            }
            Some(Why::Canceled(reason)) => {
                ("CANCELED", FailureClass::NeedsOperator, format!("canceled ({reason}): {}", own.message))
            }
        };
        Err(failed(code, class, message, own.detail))
    }
}
