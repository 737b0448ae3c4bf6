//! A thousand cuts: watches and logs are cut at random points, by leaving the stream or by breaking the
//! connection, and resumed by sequence while runs go on. What was read, put together, is the log: no gap, no
//! repeat, no reorder. `MILLWRIGHT_CUTS` sets how many, `MILLWRIGHT_SEED` repeats a failure.

use crate::fixture::{Api, patient, ssh, start, start_plan, step, within};
use domain::stage::mix;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use proto::millwright::v1::event_service_client::EventServiceClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::fleet::Database;
use testkit::server::{Door, door};
use tonic::{Status, Streaming};

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Random numbers that can be had again.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % (most + 1)
    }
}

/// A reader that is cut again and again.
struct Reader {
    url: String,
    token: String,
    door: Door,
    dice: Dice,
    left: Arc<AtomicU64>,
}

impl Reader {
    async fn new(api: &Api, seed: u64, left: &Arc<AtomicU64>) -> Self {
        let door = api.server.door_with(Some(&api.server.token)).await;
        let (url, token) = (api.server.url.clone(), api.server.token.clone());
        Self { url, token, door, dice: Dice(seed), left: left.clone() }
    }

    /// How many messages to read before the next cut; `None`: there were cuts enough.
    fn next_cut(&mut self) -> Option<u64> {
        let one_less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        // often at once, mostly after a few, sometimes after many
        Some(match self.dice.up_to(9) {
            0 | 1 => 0,
            2..=7 => self.dice.up_to(5),
            _ => self.dice.up_to(60),
        })
    }

    /// Every third cut breaks the connection and not only the stream.
    async fn cut(&mut self) {
        if self.dice.up_to(2) == 0 {
            let channel = crate::raw::channel(&self.url).await;
            self.door = door(channel, Some(&self.token));
        }
    }

    /// Reads on after `after` until `full` says that all is there, cut again and again.
    async fn read<T, F>(
        &mut self,
        open: impl Fn(Door, u64) -> F,
        sequence: impl Fn(&T) -> u64,
        full: impl Fn(&[T]) -> bool,
    ) -> Vec<T>
    where
        F: Future<Output = Result<Streaming<T>, Status>>,
    {
        let mut seen: Vec<T> = Vec::new();
        loop {
            let after = seen.last().map_or(0, &sequence);
            let mut stream = within("a stream to begin", open(self.door.clone(), after)).await.expect("begins");
            let cut = self.next_cut();
            let mut read = 0;
            loop {
                if full(&seen) {
                    return seen;
                }
                if cut.is_some_and(|cut| read >= cut) {
                    break;
                }
                // a cut also comes while there is nothing to read
                let message = match tokio::time::timeout(Duration::from_millis(20), stream.message()).await {
                    Ok(message) => message,
                    Err(_) if cut.is_some() => break,
                    Err(_) => continue,
                };
                match message.expect("no error") {
                    Some(message) => seen.push(message),
                    None => return seen,
                }
                read += 1;
            }
            drop(stream);
            self.cut().await;
        }
    }
}

async fn open_runs(door: Door, after: u64) -> Result<Streaming<pb::RunEvent>, Status> {
    let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(after) };
    Ok(RunServiceClient::new(door).watch_runs(request).await?.into_inner())
}

async fn open_events(door: Door, after: u64) -> Result<Streaming<mw::Event>, Status> {
    let request = mw::WatchEventsRequest { after: Some(after), ..Default::default() };
    Ok(EventServiceClient::new(door).watch_events(request).await?.into_inner())
}

async fn open_log(door: Door, run: String, after: u64) -> Result<Streaming<pb::LogChunk>, Status> {
    let request = pb::StreamRunLogsRequest { run_id: run, after_sequence: after, no_follow: false };
    Ok(RunServiceClient::new(door).stream_run_logs(request).await?.into_inner())
}

/// Keeps runs going on some machines until it is told to stop; ends when they have all ended.
async fn keep_going(api: &Api, machines: usize, enough: &AtomicBool) -> usize {
    let mut round = 0;
    while !enough.load(Ordering::Relaxed) {
        let kinds = ["NET_RECONFIG", "REBOOT", "UPGRADE"];
        let runs = (0..machines).map(|i| {
            let request = start(&format!("m-{i}"), kinds[(i + round) % 3], &format!("round-{round}"));
            api.carry_out(request)
        });
        futures::future::join_all(runs).await;
        round += 1;
    }
    round * machines
}

async fn thousand_cuts(api: Api) {
    let (cuts, seed) = (setting("MILLWRIGHT_CUTS", 1000), setting("MILLWRIGHT_SEED", 0x5eed));
    #[allow(clippy::print_stdout)] // shown when the test fails
    {
        println!("MILLWRIGHT_CUTS={cuts} MILLWRIGHT_SEED={seed}");
    }
    for i in 0..4 {
        api.sim(&format!("m-{i}"), &[("sim.latency_ms", "20")]).await;
    }
    // one that prints for as long as the others run, in pieces
    api.sim("m-log", &[("sim.latency_ms", "1")]).await;
    let talking: Vec<pb::Step> =
        (0..60).map(|i| step(&format!("step-{i}"), ssh("echo", &[&format!("line {i}")]))).collect();
    api.create_plan("talking", talking).await;
    let log = api.start(start_plan("m-log", "talking", "r1")).await.run_id;
    let left = Arc::new(AtomicU64::new(cuts));
    let (enough, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut readers = [
        Reader::new(&api, mix(seed), &left).await,
        Reader::new(&api, mix(seed + 1), &left).await,
        Reader::new(&api, mix(seed + 2), &left).await,
    ];
    let head = AtomicU64::new(u64::MAX);
    let [of_runs, of_events, of_logs] = &mut readers;
    let at_end = |sequence: u64| over.load(Ordering::Relaxed) && sequence >= head.load(Ordering::Relaxed);
    let work = async {
        let more = async {
            while left.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            enough.store(true, Ordering::Relaxed);
        };
        let (runs, ()) = tokio::join!(keep_going(&api, 4, &enough), more);
        api.ended(&log).await;
        // the last word, of a run, so that both watches end with it
        api.carry_out(start("m-0", "NET_RECONFIG", "last")).await;
        let all = crate::callers::root(&api).await.all_events("kind=run").await;
        head.store(all.last().expect("events").sequence, Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
        runs
    };
    let logs = async {
        // again and again, since one log is soon at its end
        let mut all = Vec::new();
        while !enough.load(Ordering::Relaxed) || all.is_empty() {
            let run = log.clone();
            all.push(of_logs.read(|d, after| open_log(d, run.clone(), after), |c| c.sequence, |_| false).await);
        }
        all
    };
    let everything = async {
        tokio::join!(
            work,
            of_runs.read(open_runs, |e| e.sequence, |seen| seen.last().is_some_and(|e| at_end(e.sequence))),
            of_events.read(open_events, |e| e.sequence, |seen| seen.last().is_some_and(|e| at_end(e.sequence))),
            logs,
        )
    };
    let (runs, seen_runs, seen_events, seen_logs) = within("all cuts", everything).await;
    assert_eq!(left.load(Ordering::Relaxed), 0, "there were as many cuts as were asked for");
    assert!(runs > 0);
    check(&api, &log, &seen_runs, &seen_events, &seen_logs).await;
}

/// Put together, what was read in pieces is what one uncut reader reads.
async fn check(api: &Api, log: &str, runs: &[pb::RunEvent], events: &[mw::Event], logs: &[Vec<pb::LogChunk>]) {
    let root = crate::callers::root(api).await;
    let whole = root.all_events("").await;
    let last = events.last().expect("events").sequence;
    assert!(whole.iter().filter(|e| e.sequence <= last).eq(events), "the events are the log, each once and in order");
    let mut stream = open_runs(api.server.door_with(Some(&api.server.token)).await, 0).await.expect("begins");
    for (i, event) in runs.iter().enumerate() {
        let expected = within("an event", stream.message()).await.expect("no error").expect("an event");
        assert_eq!(*event, expected, "event {i} of {}", runs.len());
    }
    let request = pb::StreamRunLogsRequest { run_id: log.into(), after_sequence: 0, no_follow: true };
    let mut stream = api.runs().stream_run_logs(request).await.expect("begins").into_inner();
    let mut whole = Vec::new();
    while let Some(chunk) = stream.message().await.expect("no error") {
        whole.push(chunk);
    }
    assert!(whole.len() >= 60 && whole.iter().zip(1..).all(|(c, n)| c.sequence == n));
    for log in logs {
        assert_eq!(*log, whole);
    }
}

// a thousand cuts and resumes of a watch and of a log
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_and_resumed_is_whole_sqlite() {
    thousand_cuts(Api::with(Database::Sqlite, patient()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_and_resumed_is_whole_postgres() {
    thousand_cuts(Api::with(Database::Postgres, patient()).await).await;
}
