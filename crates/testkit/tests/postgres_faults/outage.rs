//! The database is away for longer than a lease lasts, and for longer than anybody cares to wait.

use crate::fixture::{Bench, REPAVE, Told, each_once};
use domain::Reason;
use engine::EngineOptions;
use proto::baremetal::v1::machine_status::Phase;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Caller, Feed};
use testkit::fault_proxy::Weather;
use testkit::fleet::{eventually, quick};

const MACHINES: usize = 6;
/// What a machine ends by itself, once it was begun.
const BY_ITSELF: [&str; 4] = ["repaved", "joined", "booted", "exec_finished"];

/// Acts so far: what somebody must have asked for.
fn acts(bench: &Bench) -> usize {
    let effects = bench.server.fleet.sim.effects().expect("the effect journal reads");
    effects.iter().filter(|e| !BY_ITSELF.contains(&e.kind.as_str())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_acts_beyond_the_lease_and_all_goes_on_afterwards() {
    let options =
        EngineOptions { lease: Duration::from_secs(2), call_timeout: Duration::from_millis(300), ..quick("test") };
    let bench = Bench::new(options).await;
    let feed = Feed::new(bench.server.fleet.store.clone()).await.expect("the log's head");
    let begun = feed.head().look();
    let following = tokio::spawn(feed.clone().tail());
    for n in 0..MACHINES {
        let id = format!("m-{n}");
        bench.register(&id, &[("sim.latency_ms", "150")]).await;
        assert!(matches!(bench.start(&id, "REPAVE", "r").await, Told::Done(_)));
    }
    let before = acts(&bench);
    eventually("the first acts", || async { (acts(&bench) > before).then_some(()) }).await;
    bench.proxy.weather(Weather::Refusing);
    let engine = &bench.server.engine;
    eventually("the lease runs out", || async { engine.lease_remaining().is_zero().then_some(()) }).await;
    let when_it_ran_out = acts(&bench);
    assert!(when_it_ran_out < before + MACHINES * 4, "all was done before the outage could matter");
    // several times what a worker takes from one look to the next
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(acts(&bench), when_it_ran_out, "somebody acted without a lease");
    }
    assert!(matches!(bench.start("m-0", "REPAVE", "another").await, Told::NotDone));
    bench.proxy.weather(Weather::Clear);
    for n in 0..MACHINES {
        let id = format!("m-{n}");
        eventually("all succeed", || async {
            let runs = bench.witness.runs(&id).await;
            assert!(matches!(runs.as_slice(), [(_, phase)] if phase != "FAILED" && phase != "CANCELED"), "{runs:?}");
            (runs[0].1 == "SUCCEEDED").then_some(())
        })
        .await;
        each_once(&bench.server.fleet, &id, &REPAVE, "after the outage");
    }
    bench.witness.check_log().await;
    // who followed the log through it has seen every row once
    let head = u64::try_from(bench.witness.count("transitions WHERE $1 = ''", "").await).expect("a count");
    let mut heads = feed.head();
    let caught_up = async {
        while heads.look() < head {
            heads.grew().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), caught_up).await.expect("the feed catches up");
    let (mut last, mut rows) = (begun, Vec::new());
    while last < head {
        let (events, up_to) = feed.after(last).await.expect("reads");
        rows.extend(events.iter().map(|e| e.row.sequence));
        last = up_to;
    }
    assert!(rows.iter().copied().eq(begun + 1..=last), "{rows:?}");
    following.abort();
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_while_the_database_is_away_is_refused_and_leaves_nothing_behind() {
    const ASKED: usize = 4_000;
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    let store = bench.server.fleet.store.clone();
    let ran = Arc::new(AtomicUsize::new(0));
    bench.proxy.weather(Weather::Silent);
    let count = || Arc::new(AtomicUsize::new(0));
    let (full, away, waiting) = (count(), count(), count());
    let callers: Vec<_> = (0..ASKED)
        .map(|_| {
            let (store, ran, waiting) = (store.clone(), ran.clone(), waiting.clone());
            let (full, away) = (full.clone(), away.clone());
            tokio::spawn(async move {
                waiting.fetch_add(1, Ordering::SeqCst);
                let counted = move |_: &mut store::Tx<'_>| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                };
                let answer = store.write(&Caller::new("flood"), "one", counted).await;
                match answer.map_err(|e| e.reason) {
                    Err(Reason::QueueFull) => full.fetch_add(1, Ordering::SeqCst),
                    Err(Reason::StoreUnavailable | Reason::OutcomeUnknown) => away.fetch_add(1, Ordering::SeqCst),
                    other => panic!("{other:?}"),
                };
            })
        })
        .collect();
    eventually("all have asked", || async { (waiting.load(Ordering::SeqCst) == ASKED).then_some(()) }).await;
    eventually("the queue is full", || async { (full.load(Ordering::SeqCst) > 1_000).then_some(()) }).await;
    // another caller has its own share of the queue; its deadline is its own, too
    let mut patience = crate::fixture::move_to("m-1", Phase::Ready, "soon");
    patience.set_timeout(Duration::from_millis(300));
    let soon = bench.machines().set_phase(patience).await.expect_err("the database is silent");
    let gave_up =
        matches!(soon.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled | tonic::Code::Unavailable);
    assert!(gave_up, "{soon:?}");
    // the first were told, the others have all gone when the database is back
    eventually("the first are told", || async { (away.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let ran_before = ran.load(Ordering::SeqCst);
    bench.proxy.weather(Weather::Clear);
    eventually("writes to work again", || async {
        let answer = bench.set_phase("m-1", Phase::Ready, "later").await;
        matches!(answer, Told::Done(_)).then_some(())
    })
    .await;
    // behind all that was asked before, in the same queue
    eventually("the queue is empty", || async { store.write(&Caller::new("last"), "one", |_| Ok(())).await.ok() })
        .await;
    let late = ran.load(Ordering::SeqCst) - ran_before;
    assert!(late <= 64, "{late} changes were made for callers who had gone");
    bench.end().await;
}
