//! `kill -9` in the middle of runs, again and again. The verdict comes from the effect journal: nothing
//! lost, nothing doubled. And from a watcher that was there all the time: nothing missed, nothing twice.

use crate::audit::World;
use crate::fleet::text;
use crate::process::until;
use crate::server::{Client, Home, QUICK};
use serde_json::Value;
use std::collections::BTreeSet;

const MACHINES: usize = 6;
/// How far the fleet gets before each kill, in effects. 0: killed as soon as it serves.
const KILLS: [usize; 7] = [8, 3, 0, 3, 2, 4, 2];
/// What a repave that joins a cluster does to a machine.
const ONCE: [&str; 6] = ["netboot", "repave_started", "repaved", "reset", "join_started", "joined"];

#[test]
fn killed_again_and_again_every_run_succeeds_once() {
    let home = Home::new();
    let mut launch = home.launch("data").with(&["--sim", "0"]).config(QUICK);
    let mut server = launch.start_at_a_fixed_address();
    let world = World::of(&launch.data);
    for n in 1..=MACHINES {
        server.register(&format!("m-{n}"), &[&format!("sim.latency_ms={}", 250 + 50 * n)]);
        server.ok(&["machine", "update", &format!("m-{n}"), "--cluster", "prod"]);
    }
    // all at once, so that every kill finds all of them somewhere
    server.ok(&["freeze", "--reason", "not yet"]);
    let runs: BTreeSet<String> = (1..=MACHINES).map(|n| server.start(&format!("m-{n}"), "REPAVE")).collect();
    let watcher = server.spawn(&["run", "watch", "--after", "0", "-o", "json"]);
    server.ok(&["unfreeze"]);

    for progress in KILLS {
        let before = world.effects().len();
        until("progress", || (world.effects().len() >= before + progress).then_some(()));
        server.kill();
        assert!(world.count("joined") < MACHINES, "the kills came too late to matter");
        server = launch.start();
    }

    let ended = server.all_succeed();
    assert_eq!(ended.iter().map(|run| text(run, "run_id").to_owned()).collect::<BTreeSet<_>>(), runs);
    world.each_once(&ONCE, &server.executions());
    let lost = runs.iter().filter(|run| server.journal(run).iter().any(|entry| entry == "holder_lost")).count();
    assert!(lost > 0, "no kill has hit a run");

    let live = until("the watcher has heard every end", || all_ends(&watcher.out(), &runs));
    let later = server.spawn(&["run", "watch", "--after", "0", "-o", "json"]);
    let replayed = until("a replay hears every end", || all_ends(&later.out(), &runs));
    assert_eq!(live, replayed, "watched through every kill, and read afterwards; {}", watcher.err());
    assert!(watcher.err().contains("trying again"), "the watcher was never cut off");
    consistent(&server, &live, &ended);
}

/// Everything a watcher has printed, once the last run has ended.
fn all_ends(out: &str, runs: &BTreeSet<String>) -> Option<Vec<Value>> {
    // the last line may not be whole yet
    let whole = &out[..out.rfind('\n')? + 1];
    let events: Vec<Value> =
        whole.lines().map(|line| serde_json::from_str(line).expect("one event per line")).collect();
    let ends = events.iter().filter(|e| text(&e["snapshot"], "phase") == "SUCCEEDED");
    let ended: BTreeSet<String> = ends.map(|e| text(&e["snapshot"], "run_id").to_owned()).collect();
    (ended == *runs).then_some(events)
}

/// The events are in order, and the last one of each run is what a list and a look show.
fn consistent(client: &Client, events: &[Value], listed: &[Value]) {
    let sequence = |e: &Value| text(e, "sequence").parse::<u64>().expect("a number");
    assert!(events.windows(2).all(|w| sequence(&w[0]) < sequence(&w[1])), "in order, none twice");
    for run in listed {
        let id = text(run, "run_id");
        assert_eq!(client.show(id), *run);
        let of_run: Vec<&Value> = events.iter().map(|e| &e["snapshot"]).filter(|s| text(s, "run_id") == id).collect();
        assert_eq!(of_run.last(), Some(&run), "the last event and the list");
        let versions: Vec<u64> = of_run.iter().map(|s| text(s, "version").parse().expect("a number")).collect();
        assert!(versions.iter().copied().eq(1..=versions.len() as u64), "every version was seen: {versions:?}");
    }
    for machine in client.machines() {
        assert_eq!(text(&machine["status"], "phase"), "IN_SERVICE", "{machine:#}");
        assert_eq!(text(&machine["status"], "active_run_id"), "", "{machine:#}");
    }
}

/// A server killed before anybody could have been told of a run knows it afterwards, or nobody does.
#[test]
fn a_run_that_was_answered_for_is_there_after_a_kill() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "1"]).config(QUICK);
    let server = launch.start();
    let start = ["run", "start", "sim-0001", "--type", "REBOOT", "--request-id", "only-once", "-o", "name"];
    let run = server.ok(&start);
    server.kill();
    let server = launch.start();
    assert_eq!(server.ok(&start), run, "the same request is the same run");
    assert_eq!(text(&server.ended(run.trim()), "phase"), "SUCCEEDED");
    World::of(&launch.data).each_once(&["reset"], &server.executions());
}
