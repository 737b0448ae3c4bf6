//! A thousand cuts through this door: watches, events and a log are left at random points and resumed by
//! `Last-Event-ID` while runs go on. Put together, what was read is what one uncut reader reads: no gap, no
//! repeat, no reorder. `MILLWRIGHT_CUTS` sets how many, `MILLWRIGHT_SEED` repeats a failure.

use crate::client::{Event, Events, Http};
use crate::fixture::{ssh, start, start_plan, step};
use crate::world::World;
use domain::stage::mix;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WATCH: &str = "/api/v1/runs:watch";
const EVENTS: &str = "/api/v1/events";

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A reader that is cut again and again.
struct Reader {
    http: Http,
    path: String,
    dice: u64,
    seen: Vec<Event>,
}

impl Reader {
    fn new(world: &World, path: &str, seed: u64) -> Self {
        Self { http: world.http.clone(), path: path.to_owned(), dice: mix(seed), seen: Vec::new() }
    }

    fn last(&self) -> u64 {
        self.seen.last().map_or(0, |e| e.id.expect("an id"))
    }

    async fn resume(&self) -> Events {
        self.http.events(&self.path, &[("Last-Event-ID", &self.last().to_string())]).await
    }

    /// One connection, left after a few messages or while there is nothing to read; whether it came to the end.
    async fn once(&mut self) -> bool {
        self.dice = mix(self.dice);
        let mut events = self.resume().await;
        for _ in 0..self.dice % 7 {
            match tokio::time::timeout(Duration::from_millis(20), events.next()).await {
                Ok(Some(event)) if event.name == "message" => self.seen.push(event),
                Ok(end) => {
                    assert_eq!(end.expect("is said").name, "end");
                    return true;
                }
                Err(_) => break,
            }
        }
        false
    }

    async fn cut(mut self, cuts: u64) -> Self {
        for _ in 0..cuts {
            assert!(!self.once().await, "it has no end");
        }
        self
    }

    /// Uncut, up to a sequence.
    async fn up_to(mut self, last: u64) -> Vec<Event> {
        let mut events = self.resume().await;
        while self.last() < last {
            self.seen.push(events.next().await.expect("an event"));
        }
        self.seen
    }
}

/// A log is soon at its end: it is read again and again.
async fn cut_logs(world: &World, path: &str, seed: u64, cuts: u64) -> Vec<Vec<Event>> {
    let mut all = Vec::new();
    let mut reader = Reader::new(world, path, seed);
    for _ in 0..cuts {
        if reader.once().await {
            all.push(std::mem::take(&mut reader.seen));
        }
    }
    all
}

async fn keep_going(world: &World, enough: &AtomicBool) {
    for round in 0.. {
        let runs =
            (0..3).map(|i| world.api.carry_out(start(&format!("m-{i}"), "NET_RECONFIG", &format!("round-{round}"))));
        futures::future::join_all(runs).await;
        if enough.load(Ordering::Relaxed) {
            return;
        }
    }
}

// issue 3: a thousand cuts and resumes of a watch and of a log, through each door
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_and_resumed_is_whole() {
    let (cuts, seed) = (setting("MILLWRIGHT_CUTS", 1000), setting("MILLWRIGHT_SEED", 0x5eed));
    #[allow(clippy::print_stdout)] // shown when the test fails
    {
        println!("MILLWRIGHT_CUTS={cuts} MILLWRIGHT_SEED={seed}");
    }
    let world = World::new().await;
    for i in 0..3 {
        world.api.sim(&format!("m-{i}"), &[("sim.latency_ms", "10")]).await;
    }
    world.api.sim("m-log", &[("sim.latency_ms", "1")]).await;
    let talking = (0..40).map(|i| step(&format!("step-{i}"), ssh("echo", &[&format!("line {i}")]))).collect();
    world.api.create_plan("talking", talking).await;
    let log = world.api.start(start_plan("m-log", "talking", "r1")).await.run_id;
    let log = format!("/api/v1/runs/{log}/logs");
    let enough = AtomicBool::new(false);
    let reading = async {
        let each = cuts / 3 + 1;
        let read = tokio::join!(
            Reader::new(&world, WATCH, seed).cut(each),
            Reader::new(&world, EVENTS, seed + 1).cut(each),
            cut_logs(&world, &log, seed + 2, each),
        );
        enough.store(true, Ordering::Relaxed);
        read
    };
    let ((runs, events, logs), ()) = tokio::join!(reading, keep_going(&world, &enough));
    let whole = world.http.events(&format!("{EVENTS}?after=0&no_follow=true"), &[]).await.rest().await;
    let (_, whole) = whole.split_last().expect("events");
    let of_runs = whole.iter().filter(|e| e.data["kind"] == "run" || e.data["kind"] == "step");
    let last_of_runs = of_runs.filter_map(|e| e.id).max().expect("runs");
    let events = events.up_to(whole.last().and_then(|e| e.id).expect("an id")).await;
    assert!(events == whole, "the events are the log, each once and in order");
    let runs = runs.up_to(last_of_runs).await;
    assert!(runs == Reader::new(&world, WATCH, 0).up_to(last_of_runs).await, "and so is the watch");
    let mut whole = world.http.events(&log, &[]).await.rest().await;
    assert_eq!(whole.pop().map(|e| e.name).as_deref(), Some("end"));
    assert!(whole.len() >= 40 && !logs.is_empty());
    assert!(logs.iter().all(|log| *log == whole), "and each log");
}
