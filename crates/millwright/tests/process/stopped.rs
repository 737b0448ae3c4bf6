//! A server that is stopped in its tracks past its lease, in the middle of its work: the other one takes over
//! and finishes. When it wakes, everything that it would write is refused, it learns that it was given up, and
//! takes new work under a new session by itself.
//!
//! `MILLWRIGHT_SLEEPS=N` sets how many sleeps there are (2).

use crate::dice::{Dice, setting};
use crate::process::until;
use crate::server::Server;
use crate::site::{Crowd, Site, postgres};
use proto::millwright::v1 as mw;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

const RUNNERS: usize = 8;
/// How long the sleeper is kept from learning that it was given up, at most: the other server's lease must
/// outlast it.
const IGNORANT_FOR: Duration = Duration::from_millis(1500);

/// Who holds what, with which fence.
fn held(site: &Site) -> BTreeMap<String, Vec<mw::Execution>> {
    let mut held: BTreeMap<String, Vec<mw::Execution>> = BTreeMap::new();
    for execution in site.executions("status=running") {
        held.entry(execution.holder.clone()).or_default().push(execution);
    }
    held.remove("");
    held
}

fn fence(text: &str) -> (u64, u64) {
    let (epoch, counter) = text.split_once('.').expect("epoch.counter");
    (epoch.parse().expect("a number"), counter.parse().expect("a number"))
}

/// A counter on a server's page of metrics.
fn metric(site: &Site, server: &Server, name: &str) -> u64 {
    let page = site.runtime.block_on(testkit::web::get(&server.url, "/metrics", &[])).body;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("millwright_{name} ")).map(str::to_owned));
    let value = line.unwrap_or_else(|| panic!("no {name} in {page}"));
    value.trim().parse::<f64>().expect("a number") as u64
}

#[test]
fn a_server_asleep_past_its_lease_is_taken_over_and_can_write_nothing_when_it_wakes() {
    let mut dice = Dice::thrown("stopped on postgresql");
    let database = postgres();
    let (mut site, servers) = Site::open(Site::plan(&database, 2, RUNNERS / 2));
    site.populate(&mut dice, Crowd { runners: RUNNERS, movers: 1, cancel_percent: 0, command_ms: 1500 });
    let sleeps = setting("MILLWRIGHT_SLEEPS", 2);
    let (mut taken, mut late) = (0, 0);
    for sleep in 0..usize::try_from(sleeps).expect("not that many") {
        let (sleeper, awake) = (&servers[sleep % 2], &servers[(sleep + 1) % 2]);
        // who asks a server that stands still learns nothing
        site.wire.go_to(sleep + 1);
        let fenced = metric(&site, sleeper, "fenced_writes_total");
        let losses = metric(&site, sleeper, "lease_losses_total");
        let orphans = fall_asleep(&mut site, sleeper, awake);
        taken += orphans.len();
        until("the other server has finished what the sleeper had", || {
            site.all_at_work();
            let ended = |e: &mw::Execution| site.journal(&e.execution_id).last().is_some_and(|l| l.entry == "ended");
            orphans.iter().all(ended).then_some(())
        });
        let finished: Vec<Vec<mw::JournalEntry>> = orphans.iter().map(|e| site.journal(&e.execution_id)).collect();
        let known: BTreeSet<String> = held(&site).into_keys().chain(orphans.iter().map(|e| e.holder.clone())).collect();

        late += wake_in_ignorance(&site, &database, sleeper, fenced);
        until("the sleeper learns that it was given up", || {
            (metric(&site, sleeper, "lease_losses_total") > losses).then_some(())
        });
        assert!(sleeper.process.err().contains("the session lease was lost"), "and says so");
        until("the sleeper works again, under a new session", || {
            site.all_at_work();
            held(&site).keys().any(|session| !known.contains(session)).then_some(())
        });
        for (orphan, before) in orphans.iter().zip(finished) {
            only_the_new_holder_wrote(orphan, &before);
            assert_eq!(site.journal(&orphan.execution_id), before, "what had ended was written to by the sleeper");
        }
    }
    let counts = site.come_to_rest();
    eprintln!("{sleeps} sleeps: {taken} executions taken over, {late} late writes refused; {counts:?}");
    assert_eq!(counts.canceled, 0);
    assert!(late > 0, "no late write was refused by its fence: none was tried, or something else stopped it");
}

/// Stops a server while it holds work, waits until it is given up, and answers with what it held.
fn fall_asleep(site: &mut Site, sleeper: &Server, awake: &Server) -> Vec<mw::Execution> {
    let before = metric(site, awake, "lease_takeovers_total");
    until("both servers have work", || {
        site.all_at_work();
        (held(site).values().filter(|held| held.len() >= 2).count() == 2).then_some(())
    });
    site.world.freeze(sleeper);
    let at_the_freeze = held(site);
    until("the sleeper is declared dead", || (metric(site, awake, "lease_takeovers_total") > before).then_some(()));
    // the sleeper's are those that were lost with the very fence they had
    let lost = |e: &mw::Execution| {
        let journal = site.journal(&e.execution_id);
        journal.iter().any(|entry| entry.entry == "holder_lost" && entry.fence == e.fence)
    };
    let orphans: Vec<mw::Execution> = at_the_freeze.into_values().flatten().filter(lost).collect();
    assert!(!orphans.is_empty(), "the sleeper held nothing when it was stopped");
    orphans
}

/// Wakes the sleeper, and for a while lets no renewal tell it that its session is over. Whatever it writes
/// meanwhile in good faith must be refused. Answers how much that was.
fn wake_in_ignorance(site: &Site, database: &str, sleeper: &Server, fenced: u64) -> u64 {
    let refused = || metric(site, sleeper, "fenced_writes_total") - fenced;
    let renewals = site.runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await.expect("connects");
        tokio::spawn(async move { drop(connection.await) });
        client.batch_execute("BEGIN; LOCK TABLE sessions IN EXCLUSIVE MODE").await.expect("no renewals");
        client
    });
    sleeper.process.signal("CONT");
    let woken = Instant::now();
    while refused() == 0 && woken.elapsed() < IGNORANT_FOR {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    site.runtime.block_on(renewals.batch_execute("ROLLBACK")).expect("let go");
    refused()
}

/// After the loss, no entry has the lost holder's fence.
fn only_the_new_holder_wrote(orphan: &mw::Execution, journal: &[mw::JournalEntry]) {
    let lost = journal.iter().position(|entry| entry.entry == "holder_lost" && entry.fence == orphan.fence);
    let after = &journal[lost.expect("it was taken over") + 1..];
    assert!(!after.is_empty(), "somebody went on: {journal:#?}");
    assert!(after.iter().all(|entry| fence(&entry.fence) > fence(&orphan.fence)), "{orphan:?}: {journal:#?}");
}
