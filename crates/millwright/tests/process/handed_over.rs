//! SIGTERM under load, again and again: to another server on PostgreSQL, to its own next start on SQLite. No
//! run is canceled, failed or lost on the way; no call is cut off; nobody has to be declared dead.

use crate::dice::Dice;
use crate::process::until;
use crate::site::{Crowd, Site, postgres};
use crate::wire::Tally;

/// How often each server is asked to stop.
const ROUNDS: usize = 3;
const RUNNERS: usize = 6;

#[test]
fn a_stop_under_load_hands_over_to_the_other_server_on_postgresql() {
    hand_over("handed over on postgresql", &postgres(), 2);
}

#[test]
fn a_stop_under_load_hands_over_to_the_next_start_on_sqlite() {
    hand_over("handed over on sqlite", "", 1);
}

fn hand_over(name: &str, database: &str, servers: usize) {
    let mut dice = Dice::thrown(name);
    let (mut site, mut running) = Site::open(Site::plan(database, servers, RUNNERS));
    site.populate(&mut dice, Crowd { runners: RUNNERS, movers: 2, cancel_percent: 0, command_ms: 0 });
    for round in 0..ROUNDS * servers {
        let victim = round % servers;
        let before = site.world.count("repaved");
        until("work goes on", || {
            site.all_at_work();
            (site.world.count("repaved") >= before + RUNNERS / 2).then_some(())
        });
        let ended = running.remove(victim).terminate().with(0);
        assert!(!ended.err.contains("outlasted"), "{}", ended.err);
        running.insert(victim, site.launches[victim].start());
        site.check_news();
    }
    let counts = site.come_to_rest();
    let tally = &site.wire.tally;
    eprintln!(
        "{name}: {} stops; {counts:?}; {} calls answered, {} told to wait, {} met a closed door",
        ROUNDS * servers,
        Tally::count(&tally.answered),
        Tally::count(&tally.told_to_wait),
        Tally::count(&tally.never_begun)
    );
    assert_eq!(counts.canceled, 0);
    assert_eq!(tally.cuts(), Vec::<String>::new(), "every call in flight was answered");
    assert_eq!(site.taken_over(), 0, "handed over, not lost");
    assert!(Tally::count(&tally.told_to_wait) > 0, "no client has met a server that was stopping");
}
