//! One connection: what is written before what is said, heartbeats, being sent away, certificates in time.

use crate::Bench;
use crate::stand_in::{DAY, Seen};
use agent::connection::Departure;
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::to_agent::Message as Word;
use proto::agent::v1::{GoAway, Hello, InventoryWanted};
use std::time::Duration;
use tokio::time::Instant;

async fn hello(bench: &mut Bench) -> Hello {
    bench
        .server
        .until("a hello", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Hello(hello) => Some(hello),
                _ => None,
            },
            _ => None,
        })
        .await
}

async fn dialed(bench: &mut Bench) -> Instant {
    bench.server.until("a try", |seen| if let Seen::Dialed(at) = seen { Some(at) } else { None }).await
}

fn go_away(reason: &str, after: u32) -> Word {
    Word::GoAway(GoAway { reason: reason.to_owned(), message: "because".to_owned(), retry_after_seconds: after })
}

#[tokio::test(start_paused = true)]
async fn each_connection_brings_the_session_that_the_last_one_was_given() {
    let mut bench = Bench::held();
    bench.enrol().await;
    let running = bench.run();
    assert_eq!(hello(&mut bench).await.session, 100);
    assert_eq!(bench.server.confirmed().await, 101);
    assert_eq!((bench.identity().session, bench.identity().epoch), (101, 1));
    bench.server.cut();
    assert_eq!(hello(&mut bench).await.session, 101);
    assert_eq!(bench.server.confirmed().await, 102);
    running.dies().await;
    let running = bench.run();
    assert_eq!(hello(&mut bench).await.session, 102, "also over a restart");
    bench.server.confirmed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_welcome_that_cannot_be_written_down_is_not_confirmed() {
    let mut bench = Bench::held();
    bench.enrol().await;
    let running = bench.run();
    // loaded already: from here on nothing can be put in its place
    std::fs::remove_file(bench.state("identity.json")).expect("removed");
    std::fs::create_dir(bench.state("identity.json")).expect("in the way");
    for _ in 0..3 {
        hello(&mut bench).await;
    }
    let confirmed = |seen: &Seen| matches!(seen, Seen::Said(said) if matches!(**said, Message::Confirm(_)));
    assert!(!bench.server.so_far().iter().any(confirmed));
    std::fs::remove_dir(bench.state("identity.json")).expect("out of the way");
    bench.server.confirmed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_higher_epoch_is_followed_and_a_lower_one_is_not() {
    let (mut bench, running) = Bench::connected().await;
    {
        let mut set = bench.server.set();
        (set.epoch, set.session) = (7, 0);
    }
    bench.server.cut();
    assert_eq!(bench.server.confirmed().await, 1, "the numbers begin anew");
    assert_eq!((bench.identity().epoch, bench.identity().session), (7, 1));
    bench.server.set().epoch = 6;
    bench.server.cut();
    for _ in 0..3 {
        assert_eq!(hello(&mut bench).await.epoch, 7);
    }
    let confirmed = |seen: &Seen| matches!(seen, Seen::Said(said) if matches!(**said, Message::Confirm(_)));
    assert!(!bench.server.so_far().iter().any(confirmed));
    assert_eq!(bench.identity().epoch, 7);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_is_no_longer_wanted_stops_for_good() {
    for reason in ["REVOKED", "CLONED", "DELETED", "A_REASON_OF_TOMORROW"] {
        let (mut bench, running) = Bench::connected().await;
        let ledger = bench.ledger();
        bench.server.say(Word::Task(crate::stand_in::task("t-1", 1, &[&ledger, "hold"]))).await;
        while bench.carried_out() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bench.server.say(go_away(reason, 0)).await;
        let departure = running.departure().await;
        let expected = Departure::Banished { reason: reason.to_owned(), message: "because".to_owned() };
        assert_eq!(departure, expected);
        // its task has ended without a word: it will be told as interrupted, should it ever come back
        let journal = std::fs::read_to_string(bench.state("tasks/t-1.json")).expect("there");
        assert!(journal.contains("started"), "{journal}");
        bench.server.so_far();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(bench.server.so_far().is_empty(), "it does not come back");
    }
    // also instead of a welcome
    let bench = Bench::held();
    bench.enrol().await;
    bench.server.set().instead = Some(go_away("REVOKED", 0));
    assert!(matches!(bench.run().departure().await, Departure::Banished { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_copied_identity_stops_its_tasks_and_asks_again_as_it_was_told() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    for (n, what) in [(1, "hold"), (2, "end")] {
        bench.server.say(Word::Task(crate::stand_in::task(&format!("t-{n}"), n, &[&ledger, what]))).await;
    }
    while bench.carried_out() == 0 || !bench.state("tasks/t-2.json").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let told = Instant::now();
    bench.server.say(go_away("CLONED", 60)).await;
    bench.server.confirmed().await;
    assert!((60..=81).contains(&told.elapsed().as_secs()), "{:?}", told.elapsed());
    let mut codes = vec![bench.server.result().await, bench.server.result().await];
    codes.sort_by_key(|result| result.task_id.clone());
    assert!(codes.iter().all(|result| result.code == "CANCELED" && result.message.contains("because")), "{codes:?}");
    assert!(
        codes[0].finished_at.expect("a time").seconds <= codes[0].started_at.expect("a time").seconds + 1,
        "at once"
    );
    assert_eq!(bench.carried_out(), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_is_sent_away_for_a_while_comes_back_when_it_was_told_to() {
    for (reason, after, least, most) in
        [("RETRY", 7, 7, 15), ("SHUTTING_DOWN", 40, 40, 61), ("SHUTTING_DOWN", 0, 0, 21), ("OTHER", 3, 3, 7)]
    {
        let (mut bench, running) = Bench::connected().await;
        bench.server.so_far();
        bench.server.say(go_away(reason, after)).await;
        let told = Instant::now();
        let waited = dialed(&mut bench).await - told;
        let bounds = Duration::from_secs(least)..=Duration::from_secs(most);
        assert!(bounds.contains(&waited), "{reason} {after}: {waited:?}");
        bench.server.confirmed().await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_come_as_often_as_the_server_wants_and_tell_the_inventory_once() {
    let (mut bench, running) = Bench::connected().await;
    let mut beats = Vec::new();
    let mut inventories = 0;
    let mut digest = String::new();
    for _ in 0..40 {
        let beat = bench.server.heartbeat().await;
        beats.push(Instant::now());
        inventories += usize::from(beat.inventory.is_some());
        digest = beat.inventory_digest;
    }
    assert_eq!(inventories, 1);
    assert!(!digest.is_empty());
    let longest = beats.windows(2).map(|pair| pair[1] - pair[0]).max().expect("some");
    assert!(longest <= Duration::from_millis(16_600), "{longest:?}");
    let most = (*beats.last().expect("some") - beats[0]).as_secs() / 13 + 12;
    assert!(beats.len() as u64 <= most, "{} beats, at most {most}", beats.len());
    bench.server.say(Word::InventoryWanted(InventoryWanted {})).await;
    let asked = Instant::now();
    while bench.server.heartbeat().await.inventory.is_none() {}
    assert!(asked.elapsed() <= Duration::from_secs(17));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_certificate_is_renewed_at_half_life_and_the_connection_made_anew_with_it() {
    let (mut bench, running) = Bench::connected().await;
    let mut last = bench.identity().certificate.not_before;
    let began = Instant::now();
    for n in 1..=4u32 {
        let mut hellos = 0;
        let expired = bench
            .server
            .until("a renewal", |seen| match seen {
                Seen::Renew { expired } => Some(expired),
                Seen::Said(said) => {
                    hellos += u32::from(matches!(*said, Message::Hello(_)));
                    None
                }
                _ => None,
            })
            .await;
        assert!(!expired && hellos == 0);
        let renewed = Instant::now();
        bench.server.confirmed().await;
        assert!(renewed.elapsed() <= Duration::from_secs(1), "at once: {:?}", renewed.elapsed());
        let (least, most) = (Duration::from_secs(DAY / 2) * n, Duration::from_secs(DAY / 2 + DAY / 20 + 60) * n);
        assert!((least..=most).contains(&began.elapsed()), "{n}: {:?}", began.elapsed());
        let renewed = bench.identity().certificate.not_before;
        assert!(renewed > last);
        last = renewed;
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn certificates_that_live_for_seconds_are_renewed_in_time_every_time() {
    let mut bench = Bench::held();
    bench.server.set().life = Duration::from_secs(20);
    bench.enrol().await;
    let running = bench.run();
    for _ in 0..50 {
        let expired = bench
            .server
            .until("a renewal", |seen| if let Seen::Renew { expired } = seen { Some(expired) } else { None });
        assert!(!expired.await);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_taken_is_renewed_but_not_over_and_over() {
    let mut bench = Bench::held();
    bench.enrol().await;
    bench.server.set().unauthenticated = 1;
    let running = bench.run();
    bench.server.until("a renewal", |seen| matches!(seen, Seen::Renew { .. }).then_some(())).await;
    bench.server.confirmed().await;
    running.stop().await;
    bench.server.set().unauthenticated = u32::MAX;
    bench.server.so_far();
    let running = bench.run();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let renewals = bench.server.so_far().iter().filter(|seen| matches!(seen, Seen::Renew { .. })).count();
    assert!((10..200).contains(&renewals), "{renewals} in ten minutes");
    bench.server.set().unauthenticated = 0;
    bench.server.confirmed().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_large_is_not_read_and_the_agent_comes_back() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    let mut task = crate::stand_in::task("t-1", 1, &[&ledger, "end"]);
    if let Some(proto::agent::v1::task::Kind::HostExec(exec)) = &mut task.kind {
        exec.script = vec![0; 5 << 20];
    }
    bench.server.say(Word::Task(task)).await;
    hello(&mut bench).await;
    bench.server.confirmed().await;
    assert_eq!(bench.carried_out(), 0);
    running.stop().await;
}
