//! A server that is away: for ten hours, on a clock that is held.

use crate::Bench;
use crate::stand_in::Seen;
use proto::agent::v1::to_agent::Message as Word;
use std::time::Duration;
use tokio::time::Instant;

const TEN_HOURS: Duration = Duration::from_secs(10 * 3600);

#[tokio::test(start_paused = true)]
async fn ten_hours_without_a_server_are_survived_patiently_even_if_the_certificate_is_not() {
    for (life, ends) in [(24, false), (4, true)] {
        let mut bench = Bench::held();
        bench.server.set().life = Duration::from_secs(life * 3600);
        bench.enrol().await;
        let running = bench.run();
        bench.server.confirmed().await;
        // a result that nobody has stored is still there afterwards
        let ledger = bench.ledger();
        bench.server.say(Word::Task(crate::stand_in::task("t-1", 1, &[&ledger, "end"]))).await;
        bench.server.result().await;
        bench.server.so_far();
        bench.server.set().reachable = false;
        bench.server.cut();
        let began = Instant::now();
        tokio::time::sleep(TEN_HOURS).await;
        let mut tries = vec![began];
        for seen in bench.server.so_far() {
            let Seen::Dialed(at) = seen else { panic!("{seen:?} from nowhere") };
            tries.push(at);
        }
        let gaps: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = gaps.iter().max().expect("some");
        assert!(*longest <= Duration::from_secs(31), "{longest:?}");
        // half of thirty seconds on average: neither given up nor in a hurry
        assert!((2_000..3_000).contains(&gaps.len()), "{} tries", gaps.len());
        bench.server.set().reachable = true;
        let back = Instant::now();
        let mut renewals = Vec::new();
        bench
            .server
            .until("the result once more", |seen| match seen {
                Seen::Renew { expired } => {
                    renewals.push(expired);
                    None
                }
                Seen::Said(said) => matches!(*said, proto::agent::v1::from_agent::Message::Result(_)).then_some(()),
                _ => None,
            })
            .await;
        assert!(back.elapsed() <= Duration::from_secs(60), "{:?}", back.elapsed());
        assert_eq!(
            renewals,
            if ends { vec![true] } else { vec![] },
            "with the certificate that has ended, and only then"
        );
        assert_eq!(bench.carried_out(), 1);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_off_longer_than_its_certificate_lives_renews_it_first() {
    let mut bench = Bench::held();
    bench.enrol().await;
    tokio::time::sleep(Duration::from_secs(3 * 24 * 3600)).await;
    // its own clock stands still: it believes that its certificate is good, and is told otherwise
    let running = bench.run();
    let expired =
        bench.server.until("a renewal", |seen| if let Seen::Renew { expired } = seen { Some(expired) } else { None });
    assert!(expired.await);
    bench.server.confirmed().await;
    running.stop().await;
}
