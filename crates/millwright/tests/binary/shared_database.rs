//! Two servers on one PostgreSQL and one simulated world: they share the work, and one carries on what the
//! other has let go of, killed or only asleep.

use crate::audit::World;
use crate::fleet::text;
use crate::process::until;
use crate::server::{Client, Home, Launch, QUICK, Server};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use tokio_postgres::config::Host;

const RUNS: usize = 20;
const ONCE: [&str; 4] = ["netboot", "repave_started", "repaved", "reset"];

/// The URL of a fresh database on the private cluster, which listens on a socket only.
pub fn database() -> String {
    url(&testkit::postgres::database())
}

pub fn url(config: &tokio_postgres::Config) -> String {
    let socket = config.get_hosts().iter().find_map(|host| match host {
        Host::Unix(path) => Some(path.display().to_string()),
        Host::Tcp(_) => None,
    });
    let (user, name) = (config.get_user().expect("a user"), config.get_dbname().expect("a name"));
    format!("postgres://{user}@/{name}?host={}", encoded(&socket.expect("a socket")))
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("a text"),
        }
    }
    out
}

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).expect("reads")
}

/// Two servers with their own folders, one database and one world.
struct Pair {
    // first of all: the servers go before their folders
    one: Server,
    two: Server,
    world: World,
    _home: Home,
}

impl Pair {
    /// `workers` for each, so that neither takes all there is to do.
    fn start(workers: usize) -> Self {
        let home = Home::new();
        let world = World(home.path("world.jsonl"));
        let journal = world.0.display();
        let config = format!("{QUICK}workers = {workers}\n[providers.sim]\nenabled = true\njournal = '{journal}'\n");
        let url = database();
        let launch = |name| -> Launch { home.launch(name).with(&["--database", &url]).config(&config) };
        let one = launch("one").start();
        let two = launch("two").start();
        assert_ne!(read(&one.token_file), read(&two.token_file), "each folder has a token of its own; both are good");
        Self { one, two, world, _home: home }
    }

    /// The second server, with the token that the first one made.
    fn second(&self) -> Client {
        self.two.with_token(&self.one.token_file)
    }

    /// Registers machines and starts a run on each, by both doors, none of which begins yet.
    fn start_runs(&self, count: usize, labels: &[&str]) {
        let doors = [(*self.one).clone(), self.second()];
        doors[0].ok(&["freeze", "--reason", "not yet"]);
        for n in 0..count {
            let machine = format!("m-{n:02}");
            doors[n % 2].register(&machine, labels);
            doors[(n + 1) % 2].start(&machine, "REPAVE");
        }
    }
}

/// The sessions that hold work at this moment.
fn holders(client: &Client) -> BTreeSet<String> {
    let held = client.executions().into_iter().filter(|e| text(e, "status") == "running");
    held.map(|e| text(&e, "holder").to_owned()).collect()
}

fn share(client: &Client) {
    client.ok(&["unfreeze"]);
    until("both servers have work", || (holders(client).len() == 2).then_some(()));
}

/// Runs that were taken over from a holder that was lost.
fn taken_over(client: &Client) -> usize {
    let lost = |e: &Value| client.journal(text(e, "subject")).iter().any(|entry| entry == "holder_lost");
    client.executions().iter().filter(|e| lost(e)).count()
}

#[test]
fn two_servers_share_the_runs_and_one_finishes_what_the_killed_one_had() {
    let pair = Pair::start(RUNS / 2);
    pair.start_runs(RUNS, &["sim.latency_ms=300"]);
    share(&pair.one);
    pair.world.wait_for("repave_started", 3);
    let second = pair.second();
    pair.one.kill();

    let runs = second.all_succeed();
    assert_eq!(runs.len(), RUNS);
    pair.world.each_once(&ONCE, &second.executions());
    assert!(taken_over(&second) > 0, "the kill has hit no run");
    let unfinished = second.machines().into_iter().find(|m| text(&m["status"], "phase") != "READY");
    assert_eq!(unfinished, None);
}

#[test]
fn a_server_that_slept_past_its_lease_changes_nothing_and_serves_on() {
    let pair = Pair::start(4);
    // waits without a call in the air: the hardware of a process that stands still would stand still too
    pair.start_runs(8, &["sim.latency_ms=0", "sim.fault.repave=slow:4000"]);
    share(&pair.one);
    pair.world.wait_for("repave_started", 8);
    let asleep = holders(&pair.one);
    freeze_outside_the_journal(&pair.one, &pair.world);

    let second = pair.second();
    let before = (second.all_succeed(), pair.world.effects());
    let lost = taken_over(&second);
    assert!(lost > 0, "{asleep:?} held nothing when one was stopped");

    pair.one.process.signal("CONT");
    let woken = || pair.one.process.err().contains("the session lease was lost").then_some(());
    until("the sleeper learns that it was given up", woken);
    // and it serves: what it reads is what the other made of it
    assert_eq!(pair.one.runs(), before.0, "nothing was changed by the sleeper");
    assert_eq!(pair.world.effects(), before.1, "nothing was done by the sleeper");

    // alone, it works on in a new session
    pair.two.kill();
    let run = pair.one.start("m-00", "REBOOT");
    assert_eq!(text(&pair.one.ended(&run), "phase"), "SUCCEEDED");
    assert_eq!(pair.world.count("reset"), 9);
    assert_eq!(pair.one.runs()[1..], before.0, "and nothing came of the old session later on");
}

/// Stops a server, but not while it holds the lock of the world: nobody could act any more, which no real
/// world does.
fn freeze_outside_the_journal(server: &Server, world: &World) {
    until("the server stands still and holds no lock", || {
        server.process.freeze();
        let file = std::fs::File::open(&world.0).expect("the journal");
        for _ in 0..50 {
            if file.try_lock().is_ok() {
                return Some(());
            }
            std::thread::park_timeout(std::time::Duration::from_millis(2));
        }
        server.process.signal("CONT");
        None
    });
}
