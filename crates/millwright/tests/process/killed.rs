//! `kill -9` at random moments under load: while it serves, while it starts for the first time or again,
//! while it stops. Nothing that was answered is lost, nothing is done twice, watchers miss nothing, and in
//! the end everything comes to rest.

use crate::dice::{Dice, setting};
use crate::process::Process;
use crate::server::Launch;
use crate::site::{Crowd, Site, postgres};
use crate::wire::Tally;
use std::time::Duration;
use tokio::time::Instant;

/// A life long enough that a run taken up from the last one may act: the last call of a lost holder is waited
/// out first.
const LONG_LIFE: Duration = Duration::from_millis(2200);
const SHORT_LIFE: Duration = Duration::from_millis(300);
/// From the signal to the end of a server with little to do, and a little more.
const STOPPING: Duration = Duration::from_millis(120);
/// Kills of the very first start, while the database is being made.
const FIRST_STARTS: u64 = 4;

fn kills() -> u64 {
    setting("MILLWRIGHT_KILLS", 100)
}

#[test]
fn killed_at_any_moment_on_sqlite() {
    kill_again_and_again("", "sqlite", kills() - kills() * 3 / 10);
}

#[test]
fn killed_at_any_moment_on_postgresql() {
    kill_again_and_again(&postgres(), "postgresql", kills() * 3 / 10);
}

/// Kills by when they came.
#[derive(Debug, Default)]
struct Killed {
    first_start: u64,
    serving: u64,
    starting: u64,
    stopping: u64,
}

impl Killed {
    fn all(&self) -> u64 {
        self.first_start + self.serving + self.starting + self.stopping
    }
}

fn kill_again_and_again(database: &str, name: &str, kills: u64) {
    let mut dice = Dice::thrown(name);
    let planned = Site::plan(database, 1, 64);
    let mut killed = Killed::default();
    let start = how_long_a_start_takes();
    while killed.first_start < FIRST_STARTS.min(kills) {
        killed.first_start += begin_and_kill(&planned.2[0], dice.within(start));
    }
    let (mut site, mut servers) = Site::open(planned);
    site.populate(&mut dice, Crowd { runners: 8, movers: 2, cancel_percent: 20, command_ms: 0 });
    let mut checked = 0;
    while killed.all() < kills {
        let server = servers.pop().expect("it runs");
        let life = if dice.percent(40) { SHORT_LIFE } else { LONG_LIFE };
        pause(dice.within(life));
        if dice.percent(20) {
            server.process.signal("TERM");
            pause(dice.within(STOPPING));
            killed.stopping += kill(server.process);
        } else {
            killed.serving += kill(server.process);
        }
        while killed.all() < kills && dice.percent(30) {
            killed.starting += begin_and_kill(&site.launches[0], dice.within(start));
        }
        servers.push(site.launches[0].start());
        checked += site.check_news();
        site.all_at_work();
    }
    let counts = site.come_to_rest();
    let taken_over = site.taken_over();
    let (runs, log) = (site.runs.cuts(), site.log.cuts());
    eprintln!(
        "{name}: {killed:?}, {} in all; {counts:?}; {} calls answered, {checked} answers checked after a restart, \
         {taken_over} executions taken over, watchers cut off {runs} and {log} times",
        killed.all(),
        Tally::count(&site.wire.tally.answered)
    );
    assert!(taken_over > 0 || kills < 10, "no kill has hit a run");
    assert!(runs > 0 && log > 0 || kills < 10, "no kill has hit a watcher");
    assert!(counts.succeeded > 0, "nothing was done at all");
}

/// Of a server that was never started before: the measure for moments within a start, and no verdict.
fn how_long_a_start_takes() -> Duration {
    let (_home, _, launches) = Site::plan("", 1, 64);
    let begun = Instant::now();
    drop(launches[0].start());
    begun.elapsed()
}

fn begin_and_kill(launch: &Launch, after: Duration) -> u64 {
    let process = launch.begin();
    pause(after);
    kill(process)
}

/// Answers with 1, or with 0 if it had ended by itself.
fn kill(process: Process) -> u64 {
    let ended = process.kill();
    match ended.code {
        None => 1,
        Some(0) => 0,
        Some(code) => panic!("it ended by itself with {code}:\n{}\n{}", ended.out, ended.err),
    }
}

fn pause(span: Duration) {
    let begun = Instant::now();
    while let Some(left) = span.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
