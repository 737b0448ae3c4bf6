//! The ordered log: numbered without holes in the order of commits, and read by sequence and subject.

use crate::fixture::{PATIENCE, machine_id, on_every_store, set_phase, until};
use domain::machine::Phase;
use std::collections::HashMap;
use store::LogRow;

/// Numbered from 1 without a hole, and so is each subject, where nothing but transitions changed it.
pub fn check_whole(rows: &[LogRow]) {
    let mut versions: HashMap<&str, u64> = HashMap::new();
    for (row, expected) in rows.iter().zip(1..) {
        assert_eq!(row.sequence, expected);
        let version = versions.entry(&row.subject).or_insert(0);
        assert_eq!(row.version, *version + 1, "{row:?}");
        *version = row.version;
    }
}

on_every_store!(many_writers_make_one_sequence_without_holes, |store| async move {
    const WRITERS: usize = 40;
    const MOVES: usize = 25;
    let writer = |n: usize| {
        let store = &store;
        async move {
            let id = format!("m-{n}");
            store.register(&id).await;
            for i in 0..MOVES {
                let (id, to) = (machine_id(&id), if i % 2 == 0 { Phase::Ready } else { Phase::Maintenance });
                let key = id.to_string();
                let moved = store.put(&key, move |tx| set_phase(tx, &id, to)).await;
                assert_eq!(moved, Ok(store::Moved::Moved));
            }
        }
    };
    let total = (WRITERS * (MOVES + 1)) as u64;
    let tailing = async {
        let mut last = 0;
        while last < total {
            let rows = store.read(move |tx| store::log_after(tx, last, 100)).await.expect("reads");
            for row in rows {
                assert_eq!(row.sequence, last + 1, "nothing is ever skipped");
                last = row.sequence;
            }
            tokio::task::yield_now().await;
        }
    };
    let both = futures::future::join(futures::future::join_all((0..WRITERS).map(writer)), tailing);
    tokio::time::timeout(PATIENCE, both).await.expect("the tail reaches the end");
    let rows = store.log().await;
    assert_eq!(rows.len() as u64, total);
    check_whole(&rows);
    let range = store.read(store::log_range).await.expect("reads");
    assert_eq!((range.first, range.head), (1, total));
});

on_every_store!(what_was_answered_can_be_read, |store| async move {
    let one = |n: usize| {
        let store = &store;
        async move {
            let id = format!("m-{n}");
            store.register(&id).await;
            let subject = id.clone();
            let rows =
                store.read(move |tx| store::log_of_subject(tx, &subject, 0, u64::MAX >> 1, 10)).await.expect("reads");
            assert_eq!(rows.len(), 1, "{id}: the answer came before the row");
        }
    };
    futures::future::join_all((0..100).map(one)).await;
});

on_every_store!(the_history_of_one_subject_has_bounds, |store| async move {
    store.register("a").await;
    store.register("b").await;
    for to in [Phase::Ready, Phase::Maintenance, Phase::Rma, Phase::Ready] {
        for id in ["a", "b"] {
            store.put(id, move |tx| set_phase(tx, &machine_id(id), to)).await.map(drop).expect("moves");
        }
    }
    let of = |after: u64, up_to: u64, limit: usize| {
        let store = &store;
        async move {
            let rows = store.read(move |tx| store::log_of_subject(tx, "a", after, up_to, limit)).await.expect("reads");
            assert!(rows.iter().all(|row| row.subject == "a"));
            rows.into_iter().map(|row| row.sequence).collect::<Vec<_>>()
        }
    };
    assert_eq!(of(0, 100, 100).await, [1, 3, 5, 7, 9]);
    assert_eq!(of(3, 100, 100).await, [5, 7, 9], "the first is excluded");
    assert_eq!(of(0, 5, 100).await, [1, 3, 5], "the last is included");
    assert_eq!(of(0, 100, 2).await, [1, 3]);
    assert_eq!(of(9, 100, 2).await, [] as [u64; 0]);
    assert_eq!(store.log_after(10).await, []);
    let page = store.read(|tx| store::log_after(tx, 2, 3)).await.expect("reads");
    assert_eq!(page.into_iter().map(|row| row.sequence).collect::<Vec<_>>(), [3, 4, 5]);
});

on_every_store!(an_empty_log_has_a_range, |store| async move {
    let range = store.read(store::log_range).await.expect("reads");
    assert_eq!((range.first, range.head), (1, 0));
    assert_eq!(store.log().await, []);
});

on_every_store!(a_commit_that_wrote_to_the_log_is_signalled, |store| async move {
    let mut grew = store.signals().log_grew();
    grew.look();
    store.register("m-1").await;
    until("the signal", || {
        let changed = grew.has_grown();
        async move { changed.then_some(()) }
    })
    .await;
    grew.look();
    store.put("m-1", |_| Ok(())).await.expect("writes nothing");
    assert!(!grew.has_grown());
});
