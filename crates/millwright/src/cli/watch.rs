//! Streams that survive a broken connection: they go on after the last sequence seen, try a bounded
//! number of times with a growing pause, and say so.

use super::connect::Door;
use super::exit::{CliError, transport_cause};
use super::output::note;
use super::text::span;
use futures::{Stream, StreamExt as _};
use jiff::SignedDuration;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::baremetal::v1::{LogChunk, RunEvent, StreamRunLogsRequest, WatchRunsRequest};
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::{Event, WatchEventsRequest};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

/// Tries in a row without anything heard; together with the pauses about half a minute.
const TRIES_MAX: u32 = 10;
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A stream that stood this long was a good one: the count of failures begins anew.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Something that can be read from any point on.
pub trait Source {
    type Item;
    type Stream: Stream<Item = Result<Self::Item, Status>> + Unpin;
    /// Whether a point that the server no longer keeps may be given up for the present state.
    const RESTARTS: bool;

    async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status>;
    fn sequence(item: &Self::Item) -> u64;
}

/// What a reader hears next.
#[derive(Debug, PartialEq)]
pub enum Heard<T> {
    Item(T),
    /// The server ended the stream in order.
    End,
    /// The connection broke; the next call waits, then tries again. The text is for the person.
    Lost(String),
}

pub struct Resuming<S: Source> {
    source: S,
    after: Option<u64>,
    stream: Option<S::Stream>,
    opened: Option<Instant>,
    heard: bool,
    failures: u32,
    pause: Option<Duration>,
}

impl<S: Source> Resuming<S> {
    pub fn new(source: S, after: Option<u64>) -> Self {
        Self { source, after, stream: None, opened: None, heard: false, failures: 0, pause: None }
    }

    /// The next thing. The first opening must succeed; what breaks later is tried again.
    pub async fn next(&mut self) -> Result<Heard<S::Item>, CliError> {
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
            self.pause = None;
        }
        if self.stream.is_none() {
            match self.source.open(self.after).await {
                Ok(stream) => self.stream = Some(stream),
                Err(status) => return self.lost(status),
            }
            self.opened = Some(Instant::now());
        }
        let next = match &mut self.stream {
            Some(stream) => stream.next().await,
            None => None,
        };
        match next {
            Some(Ok(item)) => {
                self.failures = 0;
                self.heard = true;
                self.after = Some(S::sequence(&item)).filter(|sequence| *sequence > 0).or(self.after);
                Ok(Heard::Item(item))
            }
            Some(Err(status)) => self.lost(status),
            None => {
                self.stream = None;
                Ok(Heard::End)
            }
        }
    }

    fn lost(&mut self, status: Status) -> Result<Heard<S::Item>, CliError> {
        self.stream = None;
        if status.code() == Code::OutOfRange && S::RESTARTS && self.heard {
            self.after = None;
            return self.again("the server no longer keeps what came next; going on from the present");
        }
        if self.opened.is_none() || !may_pass(status.code()) {
            return Err(status.into());
        }
        let why = transport_cause(&status).unwrap_or_else(|| status.message().to_owned());
        self.again(&format!("connection lost: {why}"))
    }

    /// Counts a failure and plans the next try, or gives up.
    pub fn again(&mut self, why: &str) -> Result<Heard<S::Item>, CliError> {
        self.stream = None;
        if self.opened.is_some_and(|opened| opened.elapsed() > STABLE_AFTER) {
            self.failures = 0;
        }
        // a failed opening must not count the age of the stream before it
        self.opened = Some(Instant::now());
        self.failures += 1;
        if self.failures > TRIES_MAX {
            let after = self.after.map(|after| format!("; the last event heard is {after}")).unwrap_or_default();
            return Err(CliError::unreachable(format!("{why}; gave up after {TRIES_MAX} tries{after}")));
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(PAUSE_MAX);
        self.pause = Some(pause);
        let pause = span(SignedDuration::try_from(pause).unwrap_or(SignedDuration::ZERO));
        Ok(Heard::Lost(format!("{why}; trying again in {pause} ({} of {TRIES_MAX})", self.failures)))
    }
}

/// Failures that another try may get past.
fn may_pass(code: Code) -> bool {
    match code {
        Code::Unavailable
        | Code::Unknown
        | Code::Internal
        | Code::Cancelled
        | Code::Aborted
        | Code::DeadlineExceeded
        | Code::ResourceExhausted => true,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

/// Prints what comes, until the reader has enough; `once`: until the server has told what it has stored.
pub async fn tail<S: Source>(
    mut watch: Resuming<S>,
    once: bool,
    mut print: impl FnMut(&S::Item) -> Result<(), CliError>,
) -> Result<(), CliError> {
    loop {
        match watch.next().await? {
            Heard::Item(item) => print(&item)?,
            Heard::Lost(text) => note(&text),
            Heard::End if once => return Ok(()),
            Heard::End => {
                if let Heard::Lost(text) = watch.again("the server ended the stream")? {
                    note(&text);
                }
            }
        }
    }
}

/// The changes of everything.
pub struct Events {
    pub client: EventServiceClient<Door>,
    pub filter: String,
    pub follow: bool,
}

impl Source for Events {
    type Item = Event;
    type Stream = Streaming<Event>;
    const RESTARTS: bool = true;

    async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status> {
        let request = WatchEventsRequest { filter: self.filter.clone(), after, no_follow: !self.follow };
        Ok(self.client.watch_events(request).await?.into_inner())
    }

    fn sequence(item: &Event) -> u64 {
        item.sequence
    }
}

/// The changes of runs.
pub struct RunEvents {
    pub client: RunServiceClient<Door>,
    pub filter: String,
}

impl Source for RunEvents {
    type Item = RunEvent;
    type Stream = Streaming<RunEvent>;
    const RESTARTS: bool = true;

    async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status> {
        let request = WatchRunsRequest { filter: self.filter.clone(), after_sequence: after };
        Ok(self.client.watch_runs(request).await?.into_inner())
    }

    fn sequence(item: &RunEvent) -> u64 {
        item.sequence
    }
}

/// What a run's steps print.
pub struct RunLogs {
    pub client: RunServiceClient<Door>,
    pub run_id: String,
    pub follow: bool,
}

impl Source for RunLogs {
    type Item = LogChunk;
    type Stream = Streaming<LogChunk>;
    const RESTARTS: bool = false;

    async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status> {
        let after_sequence = after.unwrap_or_default();
        let request = StreamRunLogsRequest { run_id: self.run_id.clone(), after_sequence, no_follow: !self.follow };
        Ok(self.client.stream_run_logs(request).await?.into_inner())
    }

    fn sequence(item: &LogChunk) -> u64 {
        item.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Plays what it is given: for each opening, what is heard until it breaks.
    struct Script {
        openings: VecDeque<Result<Vec<Result<u64, Status>>, Status>>,
        asked: Vec<Option<u64>>,
    }

    impl Source for Script {
        type Item = u64;
        type Stream = futures::stream::Iter<std::vec::IntoIter<Result<u64, Status>>>;
        const RESTARTS: bool = true;

        async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status> {
            self.asked.push(after);
            let opening = self.openings.pop_front().unwrap_or_else(|| Err(Status::unavailable("away")));
            opening.map(futures::stream::iter)
        }

        fn sequence(item: &u64) -> u64 {
            *item
        }
    }

    fn script(openings: Vec<Result<Vec<Result<u64, Status>>, Status>>, after: Option<u64>) -> Resuming<Script> {
        Resuming::new(Script { openings: openings.into(), asked: Vec::new() }, after)
    }

    #[tokio::test]
    async fn a_broken_stream_goes_on_after_the_last_thing_heard() {
        let mut watch = script(
            vec![
                Ok(vec![Ok(4), Ok(7), Err(Status::unavailable("gone"))]),
                Err(Status::unavailable("still gone")),
                Ok(vec![Ok(8)]),
            ],
            None,
        );
        let mut heard = Vec::new();
        loop {
            match watch.next().await.expect("goes on") {
                Heard::Item(item) => heard.push(item),
                Heard::Lost(text) => assert!(text.contains("trying again in"), "{text}"),
                Heard::End => break,
            }
        }
        assert_eq!(heard, [4, 7, 8]);
        assert_eq!(watch.source.asked, [None, Some(7), Some(7)]);
    }

    #[tokio::test]
    async fn what_never_worked_is_not_tried_again() {
        let mut watch = script(vec![Err(Status::unavailable("nobody home"))], None);
        assert_eq!(watch.next().await.expect_err("at once").exit().code(), 6);
    }

    #[tokio::test]
    async fn a_refusal_is_final() {
        let mut watch = script(vec![Ok(vec![Ok(1), Err(Status::permission_denied("revoked"))])], None);
        assert_eq!(watch.next().await.expect("heard"), Heard::Item(1));
        assert_eq!(watch.next().await.expect_err("refused").exit().code(), 5);
    }

    #[tokio::test]
    async fn a_point_no_longer_kept_is_given_up_only_after_it_once_worked() {
        let gone = || Status::out_of_range("kept: 10 to 20");
        let mut watch = script(vec![Ok(vec![Err(gone())])], Some(5));
        assert_eq!(watch.next().await.expect_err("the caller's own point").exit().code(), 2);

        let mut watch = script(vec![Ok(vec![Ok(6), Err(gone())]), Ok(vec![Ok(15)])], Some(5));
        assert_eq!(watch.next().await.expect("heard"), Heard::Item(6));
        assert!(matches!(watch.next().await, Ok(Heard::Lost(_))));
        assert_eq!(watch.next().await.expect("heard"), Heard::Item(15));
        assert_eq!(watch.source.asked, [Some(5), None]);
    }

    #[tokio::test]
    async fn a_tail_ends_when_all_is_told_or_goes_on_for_ever() {
        let mut heard = Vec::new();
        let once = script(vec![Ok(vec![Ok(1), Err(Status::unavailable("gone"))]), Ok(vec![Ok(2)])], Some(0));
        let keep = |n: &u64| {
            heard.push(*n);
            Ok(())
        };
        tail(once, true, keep).await.expect("told");
        assert_eq!(heard, [1, 2]);
        let enough = |n: &u64| if *n < 3 { Ok(()) } else { Err(CliError::failed("enough")) };
        let on = script(vec![Ok(vec![Ok(1)]), Ok(vec![Ok(2)]), Ok(vec![Ok(3)])], None);
        assert_eq!(tail(on, false, enough).await.expect_err("the reader ends it").to_string(), "enough");
    }

    #[test]
    fn tries_are_bounded_and_the_pause_grows() {
        let mut watch = script(vec![], None);
        let mut pauses = Vec::new();
        while watch.again("x").is_ok() {
            pauses.extend(watch.pause);
        }
        assert_eq!(pauses.len(), 10);
        assert!(pauses.is_sorted() && pauses[9] == PAUSE_MAX, "{pauses:?}");
    }
}
