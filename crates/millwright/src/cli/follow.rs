//! Following one thing until it is over: a block that is redrawn in place on a terminal, a line for each change elsewhere.
//!
//! For what tells first what it is now, however often it is asked: a broken stream is opened anew, with nothing to go on
//! from. (Runs are followed by their events, from a sequence on: [`super::progress`].)

use super::exit::CliError;
use super::json::Wire;
use super::output::{Format, Screen, note, streamed};
use super::progress::{Redrawn, TICK};
use super::text::{clean, now};
use super::watch::{Heard, Resuming, Source};
use futures::Stream;
use jiff::Timestamp;
use std::marker::PhantomData;
use tonic::Status;

/// A thing as it looks to those who follow it.
pub trait Followed: Wire {
    fn id(&self) -> &str;
    /// On one line. A change that leaves it as it was is no news to a person.
    fn line(&self) -> String;
    /// The block's lines.
    fn frame(&self, screen: Screen, now: Timestamp) -> Vec<String>;
}

/// Where what is heard goes.
pub enum View {
    /// Redrawn in place.
    Live {
        block: Redrawn,
        screen: Screen,
        /// What is wrong with the connection, until something is heard again.
        trouble: Option<String>,
    },
    /// One line, or one document, per change.
    Lines(Format),
    /// Nothing: the caller says how it ended.
    Quiet,
}

/// What a stream tells, from the present on.
struct Changes<S, F> {
    open: F,
    of: PhantomData<S>,
}

impl<T, S, F> Source for Changes<S, F>
where
    S: Stream<Item = Result<T, Status>> + Unpin,
    F: AsyncFnMut() -> Result<S, Status>,
{
    type Item = T;
    type Stream = S;
    const RESTARTS: bool = true;

    async fn open(&mut self, _: Option<u64>) -> Result<S, Status> {
        (self.open)().await
    }

    fn sequence(_: &T) -> u64 {
        0
    }
}

/// Shows a thing until it `is_over`, and answers with it as it is then. Being dropped leaves the terminal as it should be.
pub async fn follow<T: Followed, S: Stream<Item = Result<T, Status>> + Unpin>(
    open: impl AsyncFnMut() -> Result<S, Status>,
    mut view: View,
    mut is_over: impl FnMut(&T) -> bool,
) -> Result<T, CliError> {
    let mut changes = Resuming::new(Changes { open, of: PhantomData }, None);
    let mut tick = tokio::time::interval(TICK);
    let mut last: Option<T> = None;
    loop {
        let heard = {
            let next = changes.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    heard = &mut next => break heard?,
                    _ = tick.tick() => {
                        if let Some(thing) = &last {
                            view.draw(thing)?;
                        }
                    }
                }
            }
        };
        match heard {
            Heard::Item(thing) => {
                view.told(&thing, last.as_ref())?;
                if is_over(&thing) {
                    view.last(&thing)?;
                    return Ok(thing);
                }
                last = Some(thing);
            }
            Heard::Lost(text) => view.lost(text),
            Heard::End => {
                if let Heard::Lost(text) = changes.again("the server ended the stream early")? {
                    view.lost(text);
                }
            }
        }
    }
}

impl View {
    /// As it suits whoever reads stdout.
    pub fn stdout(format: Format) -> Self {
        let screen = Screen::stdout();
        if format.is_for_people() && screen.live {
            return Self::Live { block: Redrawn::default(), screen, trouble: None };
        }
        Self::Lines(format)
    }

    fn told<T: Followed>(&mut self, thing: &T, before: Option<&T>) -> Result<(), CliError> {
        match self {
            Self::Live { trouble, .. } => {
                *trouble = None;
                self.draw(thing)
            }
            Self::Lines(format) if !format.is_for_people() => streamed(*format, thing, thing.id(), T::line),
            Self::Lines(_) if before.is_some_and(|before| before.line() == thing.line()) => Ok(()),
            Self::Lines(format) => {
                streamed(*format, thing, thing.id(), |thing| format!("{:.3}  {}", now(), thing.line()))
            }
            Self::Quiet => Ok(()),
        }
    }

    fn draw<T: Followed>(&mut self, thing: &T) -> Result<(), CliError> {
        match self {
            Self::Live { block, screen, trouble } => {
                let mut lines = thing.frame(*screen, now());
                lines.extend(trouble.iter().map(|text| format!("  {}", clean(text))));
                block.draw(lines)
            }
            Self::Lines(_) | Self::Quiet => Ok(()),
        }
    }

    fn lost(&mut self, text: String) {
        match self {
            Self::Live { trouble, .. } => *trouble = Some(text),
            Self::Lines(_) | Self::Quiet => note(&text),
        }
    }

    fn last<T: Followed>(&mut self, thing: &T) -> Result<(), CliError> {
        match self {
            Self::Live { block, screen, .. } => block.last(&thing.frame(*screen, now())),
            Self::Lines(_) | Self::Quiet => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::millwright::v1::Job;
    use std::collections::VecDeque;

    #[tokio::test(start_paused = true)]
    async fn what_breaks_is_opened_anew_until_it_is_over() {
        let is = |status: &str| Ok(Job { status: status.into(), ..Job::default() });
        let mut openings = VecDeque::from([
            vec![is("pending"), Err(Status::unavailable("gone"))],
            // ended in order, and it is not over
            vec![is("running")],
            vec![is("running"), is("completed"), is("never heard")],
        ]);
        let open = async || Ok(futures::stream::iter(openings.pop_front().unwrap_or_default()));
        let mut heard = Vec::new();
        let ended = follow(open, View::Quiet, |job: &Job| {
            heard.push(job.status.clone());
            job.status == "completed"
        });
        assert_eq!(ended.await.expect("over").status, "completed");
        assert_eq!(heard, ["pending", "running", "running", "completed"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_gets_over_is_given_up() {
        let open = async || Ok(futures::stream::iter(Vec::<Result<Job, Status>>::new()));
        let gave_up = follow(open, View::Quiet, |_| false).await.expect_err("bounded");
        assert_eq!(gave_up.exit().code(), 6);
    }
}
