//! Watchers that are cut off by every kill and go on from the last sequence they saw. Put together, what
//! they read is the log: nothing missed, nothing twice, nothing out of order.

use crate::load::Load;
use crate::wire::Wire;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use proto::millwright::v1::event_service_client::EventServiceClient;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use testkit::server::Door;
use tonic::{Request, Status, Streaming};

/// What is remembered of an event.
pub type Seen = (u64, String);

#[derive(Default)]
pub struct Heard {
    events: Mutex<Vec<Seen>>,
    /// How often it was cut off.
    cuts: std::sync::atomic::AtomicU64,
}

impl Heard {
    pub fn events(&self) -> Vec<Seen> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn last(&self) -> u64 {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |e| e.0)
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn follow<T, F>(
        &self,
        wire: &Wire,
        open: impl Fn(Door, u64) -> F,
        remember: impl Fn(T) -> Seen,
        until: impl Fn(u64) -> bool,
    ) where
        F: Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
    {
        while !until(self.last()) {
            let after = self.last();
            let mut stream = match wire.ask("a watch", |d| open(d, after)).await {
                Ok(stream) => stream,
                Err(e) => panic!("a watch after {after} was refused: {e:?}"),
            };
            loop {
                let next = tokio::time::timeout(Duration::from_millis(200), stream.message()).await;
                match next {
                    Ok(Ok(Some(event))) => {
                        let event = remember(event);
                        assert!(event.0 > self.last(), "{event:?} after {}", self.last());
                        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                    }
                    Ok(Ok(None)) => panic!("a watch ended without a word after {}", self.last()),
                    Ok(Err(status)) => {
                        let refused = wire.judge("a watch", &status);
                        assert!(refused.is_none(), "a watch was ended: {refused:?}");
                        self.cuts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        wire.next_server();
                        break;
                    }
                    Err(_) if until(self.last()) => return,
                    Err(_) => {}
                }
            }
        }
    }
}

/// A stream has no last word that a time-out of a call could wait for.
fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(3600));
    request
}

async fn watch_runs(door: Door, after: u64) -> Result<tonic::Response<Streaming<pb::RunEvent>>, Status> {
    let asked = pb::WatchRunsRequest { after_sequence: Some(after), ..pb::WatchRunsRequest::default() };
    RunServiceClient::new(door).watch_runs(request(asked)).await
}

async fn watch_events(door: Door, after: u64) -> Result<tonic::Response<Streaming<mw::Event>>, Status> {
    let asked = mw::WatchEventsRequest { after: Some(after), ..mw::WatchEventsRequest::default() };
    EventServiceClient::new(door).watch_events(request(asked)).await
}

fn of_run(event: pb::RunEvent) -> Seen {
    let run = event.snapshot.unwrap_or_default();
    (event.sequence, format!("{} {} {:?}", run.run_id, run.version, run.phase()))
}

fn of_log(event: mw::Event) -> Seen {
    (event.sequence, format!("{} {} {} {}", event.kind, event.id, event.to, event.trigger))
}

/// Follows the runs as long as there is load.
pub async fn runs(load: Arc<Load>, wire: Wire, heard: Arc<Heard>) {
    heard.follow(&wire, watch_runs, of_run, |_| load.enough.is_cancelled()).await;
}

/// Follows everything as long as there is load.
pub async fn log(load: Arc<Load>, wire: Wire, heard: Arc<Heard>) {
    heard.follow(&wire, watch_events, of_log, |_| load.enough.is_cancelled()).await;
}

/// When all is at rest: what was followed through all the cuts, gone on with to the end, is what one
/// reader reads from the beginning; the log has no hole, and no version of a run is missing.
pub async fn check(wire: &Wire, runs: &Heard, log: &Heard) {
    let whole = Heard::default();
    let head = head(wire).await;
    whole.follow(wire, watch_events, of_log, |last| last >= head).await;
    log.follow(wire, watch_events, of_log, |last| last >= head).await;
    let (read, followed) = (whole.events(), log.events());
    let up_to = |events: Vec<Seen>| events.into_iter().filter(|e| e.0 <= head).collect::<Vec<_>>();
    assert_eq!(up_to(read.clone()), up_to(followed), "the log, read and followed");
    assert!(read.iter().map(|e| e.0).eq(1..=read.len() as u64), "the log has a hole");

    // the last event about a run may stand before the last one of all
    let last_run = read.iter().filter(|e| e.0 <= head && is_of_run(&e.1)).map(|e| e.0).max().unwrap_or(0);
    let again = Heard::default();
    again.follow(wire, watch_runs, of_run, |last| last >= last_run).await;
    runs.follow(wire, watch_runs, of_run, |last| last >= last_run).await;
    assert_eq!(again.events(), runs.events(), "the runs, read and followed");
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (_, text) in runs.events() {
        let mut words = text.split(' ');
        let (run, version) = (words.next().expect("a run"), words.next().expect("a version"));
        versions.entry(run.to_owned()).or_default().push(version.parse().expect("a number"));
    }
    for (run, versions) in versions {
        assert!(versions.iter().copied().eq(1..=versions.len() as u64), "{run}: {versions:?}");
    }
}

fn is_of_run(text: &str) -> bool {
    text.starts_with("run ") || text.starts_with("step ")
}

/// The last sequence there is.
async fn head(wire: &Wire) -> u64 {
    let asked = mw::WatchEventsRequest { after: Some(0), no_follow: true, ..mw::WatchEventsRequest::default() };
    let stored = wire.ask("all events", |d| {
        let asked = request(asked.clone());
        async move { EventServiceClient::new(d).watch_events(asked).await }
    });
    let mut stream = stored.await.expect("the log");
    let mut last = 0;
    while let Some(event) = stream.message().await.expect("read to its end") {
        last = event.sequence;
    }
    last
}
