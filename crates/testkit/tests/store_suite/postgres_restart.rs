//! The database server dies and comes back: nobody is told a lie, and nothing acknowledged is lost.

use crate::fixture::{PATIENCE, TestStore, machine_id, open, register, until};
use crate::log::check_whole;
use domain::machine::{Labels, MachineSpec};
use domain::{Error, Reason};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::{Options, Store, Tx, machine};
use testkit::ambient::VirtualAmbient;
use testkit::postgres::{Cluster, Durability};

/// A server of its own, with its disk as installed, and a store on it.
async fn cluster() -> (Arc<Cluster>, Options, Store) {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(Durability::Stock)).await.expect("starts");
    let cluster = Arc::new(cluster);
    let maker = cluster.clone();
    let config = tokio::task::spawn_blocking(move || maker.database()).await.expect("a database");
    let options = Options::Postgres(Box::new(config));
    let store = open(&options, &VirtualAmbient::new(1)).await.expect("opens");
    (cluster, options, store)
}

async fn on(cluster: &Arc<Cluster>, f: impl FnOnce(&Cluster) + Send + 'static) {
    let cluster = cluster.clone();
    tokio::task::spawn_blocking(move || f(&cluster)).await.expect("no panic");
}

async fn add(store: &Store, id: &str) -> Result<(), Error> {
    let row = machine_id(id);
    let work = move |tx: &mut Tx<'_>| register(tx, &row, &MachineSpec::default(), &Labels::new()).map(drop);
    store.write(&crate::fixture::tester(), id, work).await
}

#[derive(Default)]
struct Ledger {
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
    unknown: BTreeSet<String>,
}

/// Registers one machine after another until told to stop, and keeps account of the answers.
async fn keep_writing(store: &Store, writer: usize, stop: &AtomicBool, acknowledged: &AtomicUsize) -> Ledger {
    let mut ledger = Ledger::default();
    for n in 0.. {
        let id = format!("m-{writer}-{n}");
        match add(store, &id).await {
            Ok(()) => {
                acknowledged.fetch_add(1, Ordering::SeqCst);
                ledger.acknowledged.insert(id)
            }
            Err(e) if e.reason == Reason::StoreUnavailable => ledger.refused.insert(id),
            Err(e) if e.reason == Reason::OutcomeUnknown => ledger.unknown.insert(id),
            Err(e) => panic!("{id}: {e:?}"),
        };
        if stop.load(Ordering::SeqCst) {
            break;
        }
    }
    ledger
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_outlives_the_server() {
    let (cluster, _, store) = cluster().await;
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicUsize::new(0));
    let some_more = |what: &'static str| {
        let (before, acknowledged) = (acknowledged.load(Ordering::SeqCst), &acknowledged);
        until(what, move || async move { (acknowledged.load(Ordering::SeqCst) > before + 100).then_some(()) })
    };
    let killing = async {
        some_more("the first writes").await;
        for _ in 0..2 {
            on(&cluster, Cluster::kill).await;
            let away = store.read(machine::count).await.expect_err("the server is gone");
            assert_eq!(away.reason, Reason::StoreUnavailable);
            on(&cluster, Cluster::start_again).await;
            some_more("writes to work again").await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    let writing = futures::future::join_all((0..12).map(|n| keep_writing(&store, n, &stop, &acknowledged)));
    let both = futures::future::join(killing, writing);
    let (_, ledgers) = tokio::time::timeout(PATIENCE, both).await.expect("ends");
    // each connection of the pool may learn of the restart by one failed read
    let there = until("reads to work again", || async {
        let everything = domain::filter::Filter::Everything;
        store.read(move |tx| machine::list(tx, &everything, "", 1_000_000)).await.ok()
    })
    .await;
    let there: BTreeSet<String> = there.into_iter().map(|m| m.id.to_string()).collect();
    let log =
        until("reads to work again", || async { store.read(|tx| store::log_after(tx, 0, 1_000_000)).await.ok() }).await;
    check_whole(&log);
    let logged: BTreeSet<String> = log.into_iter().map(|row| row.entity_id).collect();
    assert_eq!(there, logged, "a row and its log row come together or not at all");
    for ledger in &ledgers {
        assert!(ledger.acknowledged.is_subset(&there), "lost: {:?}", ledger.acknowledged.difference(&there));
        assert!(ledger.refused.is_disjoint(&there), "\"nothing was changed\" was said of what was changed");
    }
    let refused: usize = ledgers.iter().map(|l| l.refused.len() + l.unknown.len()).sum();
    assert!(refused > 0, "a test in which nothing failed tests nothing");
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closure_that_outlives_its_connection_writes_nothing() {
    let (cluster, options, store) = cluster().await;
    let (told, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (resume, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let work = move |tx: &mut Tx<'_>| {
        register(tx, &machine_id("before"), &MachineSpec::default(), &Labels::new())?;
        let _ = told.send(());
        wait.lock().expect("no panic").recv_timeout(PATIENCE).expect("the server is back in time");
        // a closure that does not heed an error
        for _ in 0..3 {
            drop(machine::get(tx, &machine_id("before")));
        }
        register(tx, &machine_id("after"), &MachineSpec::default(), &Labels::new()).map(drop)
    };
    let writer = store.clone();
    let writing = tokio::spawn(async move { writer.write(&crate::fixture::tester(), "key", work).await });
    begun.recv().await.expect("begins");
    on(&cluster, Cluster::kill).await;
    on(&cluster, Cluster::start_again).await;
    resume.send(()).expect("still waits");
    let answer = writing.await.expect("no panic");
    assert_eq!(answer.map_err(|e| e.reason), Err(Reason::StoreUnavailable));
    // a store that knows nothing of the outage
    let fresh = open(&options, &VirtualAmbient::new(2)).await.expect("opens");
    assert_eq!(fresh.read(machine::count).await, Ok(0), "neither half is there");
    fresh.close();
    until("writes to work again", || async { add(&store, "m").await.ok() }).await;
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_said_to_be_away() {
    let (cluster, options, store) = cluster().await;
    on(&cluster, Cluster::kill).await;
    let refused = open(&options, &VirtualAmbient::new(1)).await.map(drop).expect_err("nothing to open");
    assert_eq!(refused.reason, Reason::StoreUnavailable);
    assert!(refused.message.starts_with("opening the database: "), "{refused}");
    until("the writer to notice", || async {
        let answer = add(&store, "m").await.expect_err("the server is gone");
        (answer.reason == Reason::StoreUnavailable).then_some(())
    })
    .await;
    on(&cluster, Cluster::start_again).await;
    until("writes to work again", || async { add(&store, "n").await.ok() }).await;
    store.close();
    drop(TestStore::memory().await);
}
