//! Following runs: every event in order, each with the run as it was, near the head and far behind it.

use crate::fixture::{PATIENCE, TestStore, make_steps, on_every_store, requested, requester, started, succeeded};
use domain::RunId;
use domain::run::{RunChange, RunPhase};
use std::sync::Arc;
use store::{Ambient as _, Feed, RunEvent, run};
use tokio::task::JoinHandle;

/// A feed with its tail, which ends with the test.
struct Following {
    feed: Arc<Feed>,
    tail: JoinHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.tail.abort();
    }
}

impl Following {
    async fn of(store: &TestStore) -> Self {
        let feed = Feed::new(store.store.clone()).await.expect("begins");
        let tail = tokio::spawn(feed.clone().tail());
        Self { feed, tail }
    }

    /// Reads on from a sequence until the log's `head`, as a watcher does.
    async fn read_until(&self, mut last: u64, head: u64) -> Vec<RunEvent> {
        let mut events = Vec::new();
        let mut grew = self.feed.head();
        let reading = async {
            while last < head {
                grew.look();
                let (more, up_to) = self.feed.after(last).await.expect("reads");
                events.extend(more.into_iter().filter_map(|e| e.run));
                if up_to > last {
                    last = up_to;
                } else {
                    grew.grew().await;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("the feed reaches the head");
        events
    }
}

/// What the log says, row by row.
async fn expected(store: &TestStore, after: u64) -> Vec<RunEvent> {
    let mut all = Vec::new();
    for row in store.log_after(after).await {
        if row.entity_kind == "machine" {
            continue;
        }
        let (id, sequence) = (RunId::from_text(row.subject.clone()), row.sequence);
        let folded = store.read(move |tx| run::fold(tx, &id, sequence)).await.expect("folds").expect("is there");
        all.push((row, folded));
    }
    all.into_iter()
        .map(|(row, run)| RunEvent { sequence: row.sequence, at: row.at, run: Arc::new(run), message: String::new() })
        .collect()
}

/// The same events, whatever they say in words.
fn assert_same(seen: &[RunEvent], expected: &[RunEvent]) {
    assert_eq!(seen.len(), expected.len());
    for (seen, expected) in seen.iter().zip(expected) {
        assert_eq!((seen.sequence, seen.at, &seen.run), (expected.sequence, expected.at, &expected.run));
        assert!(!seen.message.is_empty());
    }
}

async fn live_through(store: &TestStore, machine: &str) {
    let id = store.request(machine, &["a", "b"]).await;
    store.change(&id, vec![RunChange::Started, started("a")]).await.expect("changes");
    store
        .change(&id, vec![RunChange::StepRetrying { step: "a".into(), retry_count: 1, message: "again".into() }])
        .await
        .expect("changes");
    store.change(&id, vec![succeeded("a"), started("b"), succeeded("b")]).await.expect("changes");
    store.change(&id, vec![RunChange::Finished { phase: RunPhase::Succeeded, error: None }]).await.expect("changes");
}

on_every_store!(a_watcher_sees_every_event_in_order, |store| async move {
    for i in 0..10 {
        store.register(&format!("m-{i}")).await;
    }
    live_through(&store, "m-0").await;
    let begin = store.head().await;
    let following = Following::of(&store).await;
    let writing = futures::future::join_all((1..10).map(|i| {
        let store = &store;
        async move { live_through(store, &format!("m-{i}")).await }
    }));
    // nine lives of eight rows each
    let (_, live) = tokio::join!(writing, following.read_until(begin, begin + 72));
    assert_same(&live, &expected(&store, begin).await);
    assert_eq!(live.first().map(|e| e.message.as_str()), Some("requested"));
    let head = store.head().await;
    let from_the_beginning = following.read_until(0, head).await;
    assert_same(&from_the_beginning, &expected(&store, 0).await);
    assert_eq!(following.feed.after(head).await, Ok((vec![], head)));
    assert_eq!(
        following.feed.after(head + 5).await,
        Ok((vec![], head + 5)),
        "a token beyond the head is the door's to judge"
    );
});

/// A run with many rows, written in few transactions.
async fn a_long_run(store: &TestStore, n: usize) {
    let machine = format!("m-{n}");
    store.register(&machine).await;
    let id = RunId::generate(store.clock.uuid());
    let retries =
        (1..=250).map(|i| RunChange::StepRetrying { step: "a".into(), retry_count: i, message: String::new() });
    let changes: Vec<RunChange> = [RunChange::Started, started("a")].into_iter().chain(retries).collect();
    let change = requested(&machine, id.as_str(), &["a"]);
    store
        .put(&machine, move |tx| {
            let mut run = run::insert(tx, &id, &change, &make_steps(&["a"]), &requester())?;
            run::change(tx, &mut run, &changes, "tester")
        })
        .await
        .expect("writes");
}

on_every_store!(a_reader_far_behind_gets_the_same_from_the_database, |store| async move {
    let following = Following::of(&store).await;
    futures::future::join_all((0..20).map(|n| a_long_run(&store, n))).await;
    let head = store.head().await;
    assert!(head > 5000, "more than is kept in memory: {head}");
    // the tail has seen it all, so the oldest have left its memory
    following.read_until(head - 1, head).await;
    let behind = following.read_until(0, head).await;
    assert_eq!(behind.len(), 20 * 253);
    assert!(behind.is_sorted_by_key(|e| e.sequence));
    let close = following.read_until(head - 2000, head).await;
    assert_eq!(close, behind[behind.len() - close.len()..], "the same from memory as from the database");
    let sample: Vec<RunEvent> = behind.iter().filter(|e| e.sequence % 97 == 0).cloned().collect();
    for event in sample {
        let (id, sequence) = (event.run.id.clone(), event.sequence);
        let folded = store.read(move |tx| run::fold(tx, &id, sequence)).await.expect("folds");
        assert_eq!(folded.as_ref(), Some(&*event.run), "the run as it was at {sequence}");
    }
});

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_shows_what_other_processes_write() {
    let store = TestStore::postgres().await;
    let other = store.beside().await;
    let following = Following::of(&store).await;
    for i in 0..5 {
        other.register(&format!("m-{i}")).await;
        live_through(&other, &format!("m-{i}")).await;
    }
    let head = store.head().await;
    let seen = following.read_until(0, head).await;
    assert_same(&seen, &expected(&store, 0).await);
    assert_eq!(seen.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_ends_with_the_store() {
    let store = TestStore::sqlite().await;
    let mut following = Following::of(&store).await;
    let closing = store.store.clone();
    tokio::task::spawn_blocking(move || closing.close()).await.expect("closes");
    tokio::time::timeout(PATIENCE, &mut following.tail).await.expect("ends").expect("without a panic");
}
