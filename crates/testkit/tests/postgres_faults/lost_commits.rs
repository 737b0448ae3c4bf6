//! COMMIT is sent and its answer never comes: done, and the caller cannot know it. Or the COMMIT is lost, and
//! the caller cannot know that either.

use crate::fixture::{Bench, Told, steady};
use crate::resets::repave;
use proto::baremetal::v1::machine_status::Phase;
use testkit::fault_proxy::{Act, Moment};

/// Each on a database and an engine of its own, since most of the time is spent waiting out a call in doubt.
const LANES: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repave_survives_the_loss_of_any_commit_or_its_answer() {
    let benches: Vec<Bench> = futures::future::join_all((0..LANES).map(|_| Bench::new(steady()))).await;
    let clean = repave(&benches[0], "clean", Moment::Commit(usize::MAX), Act::LoseAnswer, "no fault").await;
    assert!(clean.commits >= 7, "a request, a claim and five steps in {} commits", clean.commits);
    let points: Vec<(Act, usize)> = [Act::LoseAnswer, Act::CutBefore]
        .into_iter()
        .flat_map(|act| (1..=clean.commits).map(move |nth| (act, nth)))
        .collect();
    let lanes = benches.iter().enumerate().map(|(lane, bench)| {
        let points: Vec<(Act, usize)> = points.iter().copied().skip(lane).step_by(LANES).collect();
        async move {
            for (act, nth) in points {
                let what = format!("{act:?} at commit {nth} of {}", clean.commits);
                let seen = repave(bench, &format!("m-{act:?}-{nth}"), Moment::Commit(nth), act, &what).await;
                assert_eq!(seen.hits, 1, "{what}: was never done");
            }
            bench.witness.check_log().await;
        }
    });
    futures::future::join_all(lanes).await;
    println!("REPAVE: {} losses at {} commits, of the answer or of the COMMIT itself", points.len(), clean.commits);
    for bench in benches {
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_commit_was_lost_is_told_so_and_finds_out_by_asking_again() {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    for (act, phase) in [(Act::LoseAnswer, Phase::Ready), (Act::CutBefore, Phase::Maintenance)] {
        let key = format!("{act:?}");
        let before = bench.witness.machine("m-1").await;
        let after = (before.0 + 1, before.1 + 1, before.2 + 1);
        bench.proxy.arm(Moment::Commit(1), act, 1);
        let answer = bench.set_phase("m-1", phase, &key).await;
        assert_eq!(bench.proxy.disarm().hits, 1, "{key}: was never done");
        assert!(matches!(answer, Told::Unknown), "{key}: {answer:?}");
        let there = bench.witness.machine("m-1").await;
        assert_eq!(there, if act == Act::LoseAnswer { after } else { before }, "{key}: what the server did");
        let Told::Done(machine) = bench.set_phase("m-1", phase, &key).await else { panic!("{key}: repeated") };
        assert_eq!(machine.status.expect("a status").phase(), phase);
        assert_eq!(bench.witness.machine("m-1").await, after, "{key}: done once");
    }
    bench.end().await;
}
