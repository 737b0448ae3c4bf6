//! Restarts: how soon a server is ready on a full store, and what becomes of ten thousand runs when it is
//! killed. The server stays away until every one of them is due, so that all must be claimed at once. Verdicts
//! come from the database file and from the journal of effects, not from the server.

use crate::Outcome;
use crate::flight::Flight;
use crate::ground::Ground;
use crate::report::{Figure, Goal, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{Ambient as _, SystemAmbient};
use tokio::time::Instant;

const SECTION: &str = "restart";
const STARTS: usize = 5;
/// No wait is longer than this without a look in between.
const AWAY: Duration = Duration::from_secs(31);
const CLAIMED_WITHIN: Duration = Duration::from_secs(120);
const ENDED_WITHIN: Duration = Duration::from_secs(900);
/// What a repave that joins a cluster does to a machine, once.
const ONCE: [&str; 6] = ["netboot", "repave_started", "repaved", "reset", "join_started", "joined"];

fn figure(
    ground: &Ground,
    what: String,
    unit: &'static str,
    measured: Vec<f64>,
    limit: f64,
    against: &str,
    goal: Goal,
) -> Figure {
    let against = against.to_owned();
    Figure { section: SECTION, database: ground.kind.name(), what, unit, measured, limit: vec![limit], against, goal }
}

/// After a clean stop.
pub fn starts(ground: &Ground, report: &mut Report) -> Outcome<()> {
    for simulated in [false, true] {
        let mut launch = ground.launch.clone();
        launch.simulated = simulated;
        let mut took = Vec::new();
        for _ in 0..STARTS {
            let server = launch.start()?;
            took.push(server.ready_after.as_secs_f64() * 1e3);
            server.stop()?;
        }
        let (with, goal) =
            if simulated { (", with the simulator's journal", Goal::None) } else { ("", Goal::AtMost(1.0)) };
        let what = format!("start to ready with {} machines{with}", ground.machines);
        report.add(figure(ground, what, "ms", took, 300.0, "the goal itself", goal));
    }
    Ok(())
}

/// Kills the server in the middle of everything and starts it again.
pub async fn killed(flight: Flight, report: &mut Report) -> Outcome<()> {
    let open = flight.open().await?;
    let early = flight.until.checked_duration_since(Instant::now() + AWAY).is_some();
    let Flight { ground, server, runs, .. } = flight;
    server.kill()?;
    println!("    killed with {open} of {runs} runs in flight, and away for {} s", AWAY.as_secs());
    tokio::time::sleep(AWAY).await;
    let clock = SystemAmbient::new();
    let server = ground.start_at_once()?;
    let (ready, ready_at) = (Instant::now(), clock.now().micros());
    // who was claimed and has gone back to waiting is due later than this
    let due = "SELECT COUNT(*) FROM executions WHERE status IN ('ready', 'waiting') AND wake_at <= $1";
    let first_look = ground.number(due, &[ready_at]).await?;
    while ground.number(due, &[ready_at]).await? > 0 {
        if ready.elapsed() > CLAIMED_WITHIN {
            return Err(format!("{} are not claimed", ground.number(due, &[ready_at]).await?).into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let claimed = ready.elapsed();
    let what = format!("start to ready after the kill, {open} runs in flight");
    let ready_after = vec![server.ready_after.as_secs_f64() * 1e3];
    report.add(figure(&ground, what, "ms", ready_after, 300.0, "the goal of a plain start", Goal::None));
    let what = format!("ready until all {open} runs, all due, are claimed again");
    report.add(figure(&ground, what, "s", vec![claimed.as_secs_f64()], 5.0, "the goal itself", Goal::AtMost(1.0)));
    report.note(format!("{first_look} were not yet claimed at the first look, which came with the readiness"));
    if !early || open < runs {
        report.note("some installations had ended before the kill, or while the server was away");
    }
    ended(&ground, runs, report).await?;
    server.stop()
}

/// Waits for the end of all, and counts what happened.
async fn ended(ground: &Ground, runs: usize, report: &mut Report) -> Outcome<()> {
    let begun = Instant::now();
    let open = "SELECT COUNT(*) FROM runs WHERE request_id LIKE 'flight-%' AND phase IN ('PENDING', 'RUNNING')";
    while ground.number(open, &[]).await? > 0 {
        if begun.elapsed() > ENDED_WITHIN {
            return Err(format!("{} runs do not end", ground.number(open, &[]).await?).into());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let succeeded = "SELECT COUNT(*) FROM runs WHERE request_id LIKE 'flight-%' AND phase = 'SUCCEEDED'";
    let succeeded = ground.number(succeeded, &[]).await? as f64;
    let what = "runs that succeeded after the kill".to_owned();
    report.add(figure(ground, what, "runs", vec![succeeded], runs as f64, "all of them", Goal::AtLeast(1.0)));
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(ground.database_file(), flags)?;
    let ours = "SELECT e.execution_id FROM executions e JOIN runs r ON r.run_id = e.subject WHERE r.request_id LIKE 'flight-%'";
    let ours: BTreeSet<String> = db.prepare(ours)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut done: BTreeMap<(String, String), usize> = BTreeMap::new();
    for effect in sim::read_effects(&ground.world())? {
        let execution = effect.operation.split('.').next().unwrap_or_default().to_owned();
        if ours.contains(&execution) && ONCE.contains(&effect.kind.as_str()) {
            *done.entry((execution, effect.kind)).or_default() += 1;
        }
    }
    let once = done.values().filter(|n| **n == 1).count() as f64;
    let doubled = done.values().filter(|n| **n > 1).count();
    let what = format!("effects that happened exactly once ({doubled} doubled)");
    let expected = (runs * ONCE.len()) as f64;
    report.add(figure(ground, what, "effects", vec![once], expected, "the journal of effects", Goal::AtLeast(1.0)));
    Ok(())
}
