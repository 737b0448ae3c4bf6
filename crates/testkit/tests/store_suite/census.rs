//! The census: what the metrics page shows of the rows, the same from every database.

use crate::fixture::on_every_store;
use std::time::Duration;
use store::execution::{self, Status};
use store::{Ambient as _, Census, Open, WAIT_PREFIX, census, switch};

/// In an order that no database promises.
fn sorted(mut census: Census) -> Census {
    census.machines.sort();
    census.runs.sort();
    census.open.sort_by_key(|o| (o.running, o.due, o.waiting_for.clone()));
    census
}

fn open(running: bool, due: bool, waiting_for: &str, count: u64) -> Open {
    Open { running, due, waiting_for: waiting_for.to_owned(), count }
}

on_every_store!(an_empty_store_has_nothing_to_count, |store| async move {
    let found = store.read(census).await.expect("counted");
    assert_eq!((found.due, found.log_head, found.frozen), (0, 0, false));
    assert_eq!(found.oldest_due, found.at, "nothing waits: nothing has waited");
    assert!(found.machines.is_empty() && found.runs.is_empty() && found.open.is_empty());
});

on_every_store!(what_there_is_is_counted_by_kind, |store| async move {
    store.register("m1").await;
    store.register("m2").await;
    store.request("m1", &["one"]).await;
    store.execution("run_1").await;
    store.execution("run_2").await;
    store.execution("run_3").await;
    let session = store.session("here").await;
    let claimed = store.claim(&session, 2).await;
    let mut asleep = claimed[0].clone();
    asleep.status = Status::Waiting;
    asleep.holder = None;
    asleep.wake_at = store.clock.now().plus(Duration::from_secs(60));
    asleep.waiting_for = "the pause before attempt 2: ärger".into();
    let by = session.clone();
    store
        .put("e", move |tx| {
            let mut e = asleep.clone();
            execution::record(tx, &by, &mut e, &[])?;
            switch::freeze(tx, "op", "a test")
        })
        .await
        .expect("stored");
    let found = sorted(store.read(census).await.expect("counted"));
    assert_eq!(found.machines, [("FACTORY_READY".to_owned(), 2)]);
    assert_eq!(found.runs, [("PENDING".to_owned(), 1)]);
    assert_eq!((found.due, found.frozen, found.log_head), (1, true, store.head().await));
    assert!(found.oldest_due <= found.at);
    let prefix: String = "the pause before attempt 2: ärger".chars().take(WAIT_PREFIX).collect();
    let (sleeps, waits) = (open(false, false, &prefix, 1), open(false, true, "a free worker", 1));
    assert_eq!(found.open, [sleeps, waits, open(true, true, "a free worker", 1)]);
});
