//! A thousand cuts through the REST door: event streams are broken off at random points, by closing the
//! connection, and resumed by `Last-Event-ID` or by the query while runs go on. What was read, put together,
//! is what an uncut reader reads. `MILLWRIGHT_CUTS` sets how many, `MILLWRIGHT_SEED` repeats a failure.

use crate::client::Event;
use crate::fixture::{ssh, start, start_plan, step, within};
use crate::world::World;
use domain::stage::mix;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// A stream that is read in pieces.
struct Reader<'a> {
    world: &'a World,
    /// With a `?`, so that the query's word for where to go on can follow.
    path: String,
    resume: &'static str,
    dice: Dice,
    left: &'a AtomicU64,
}

impl Reader<'_> {
    async fn read(&mut self, full: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let mut seen: Vec<Event> = Vec::new();
        while !full(&seen) {
            let after = seen.last().and_then(|e| e.id).unwrap_or(0).to_string();
            let cut = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
            let most = if cut { self.dice.up_to(12) } else { u64::MAX };
            let (by_query, by_header) = match self.dice.up_to(1) {
                0 => (format!("{}&{}={after}", self.path, self.resume), vec![]),
                _ => (format!("{}&{}=0", self.path, self.resume), vec![("Last-Event-ID", after.as_str())]),
            };
            let mut events = self.world.http.events(&by_query, &by_header).await;
            let mut read = 0;
            while read < most && !full(&seen) {
                match tokio::time::timeout(Duration::from_millis(20), events.next()).await {
                    Ok(Some(event)) if event.name == "end" => return seen,
                    Ok(Some(event)) => seen.push(event),
                    Ok(None) => panic!("a stream ends with an event"),
                    // a cut also comes while there is nothing to read
                    Err(_) if cut => break,
                    Err(_) => {}
                }
                read += 1;
            }
            // dropped with what was sent and not yet read
            drop(events);
        }
        seen
    }
}

/// Keeps runs going until there were cuts enough, then makes the last one.
async fn keep_going(world: &World, left: &AtomicU64) {
    let mut round = 0;
    while left.load(Ordering::Relaxed) > 0 {
        let runs = (0..3).map(|i| {
            let kind = ["NET_RECONFIG", "REBOOT", "UPGRADE"][(i + round) % 3];
            world.api.carry_out(start(&format!("m-{i}"), kind, &format!("round-{round}")))
        });
        futures::future::join_all(runs).await;
        round += 1;
    }
    world.api.carry_out(start("m-0", "NET_RECONFIG", "last")).await;
}

// a thousand cuts and resumes of a watch and of a log through each door
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
    let talking = (0..60).map(|i| step(&format!("step-{i}"), ssh("echo", &[&format!("line {i}")]))).collect();
    world.api.create_plan("talking", talking).await;
    let log = world.api.start(start_plan("m-log", "talking", "r1")).await.run_id;
    let (left, over) = (AtomicU64::new(cuts), AtomicBool::new(false));
    let reader = |path: String, resume: &'static str, n: u64| Reader {
        world: &world,
        path,
        resume,
        dice: Dice(mix(seed + n)),
        left: &left,
    };
    let mut of_runs = reader("/api/v1/runs:watch?filter=".into(), "after_sequence", 1);
    let mut of_events = reader("/api/v1/events?filter=".into(), "after", 2);
    let mut of_log = reader(format!("/api/v1/runs/{log}/logs?no_follow=false"), "after_sequence", 3);
    let head = AtomicU64::new(u64::MAX);
    let at_end = |seen: &[Event]| {
        let last = seen.last().and_then(|e| e.id);
        over.load(Ordering::Relaxed) && last.is_some_and(|id| id >= head.load(Ordering::Relaxed))
    };
    let work = async {
        keep_going(&world, &left).await;
        world.api.ended(&log).await;
        let all = world.http.events("/api/v1/events?after=0&no_follow=true&filter=kind%3Drun", &[]).await.rest().await;
        head.store(all.iter().filter_map(|e| e.id).max().expect("events"), Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
    };
    let logs = async {
        let mut all = Vec::new();
        // again and again, since one log is soon at its end
        while left.load(Ordering::Relaxed) > 0 || all.is_empty() {
            all.push(of_log.read(|_| false).await);
        }
        all
    };
    let everything = async { tokio::join!(work, of_runs.read(at_end), of_events.read(at_end), logs) };
    let ((), runs, events, logs) = within("all cuts", everything).await;
    assert_eq!(left.load(Ordering::Relaxed), 0, "there were as many cuts as were asked for");
    let uncut = |path: &str, many: usize| {
        let path = path.to_owned();
        let world = &world;
        async move {
            let mut stream = world.http.events(&path, &[]).await;
            let mut all = Vec::with_capacity(many);
            while all.len() < many {
                all.push(within("an event", stream.next()).await.expect("an event"));
            }
            all
        }
    };
    assert_eq!(runs, uncut("/api/v1/runs:watch?after_sequence=0", runs.len()).await);
    assert_eq!(events, uncut("/api/v1/events?after=0", events.len()).await);
    assert!(events.iter().zip(1..).all(|(e, n)| e.id == Some(n)), "the whole log, each row once and in order");
    let mut whole = world.http.events(&format!("/api/v1/runs/{log}/logs"), &[]).await.rest().await;
    assert_eq!(whole.pop().map(|e| e.name).as_deref(), Some("end"));
    assert!(whole.len() >= 60 && whole.iter().zip(1..).all(|(e, n)| e.id == Some(n)));
    for log in logs {
        assert_eq!(log, whole);
    }
}
