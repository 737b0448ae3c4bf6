//! The audit's own rows, and the keys by which changes are repeated.

use crate::fixture::on_every_store;
use domain::Timestamp;
use domain::filter::Filter;
use store::audit::{self, Entry};
use store::idempotency;

fn entry(actor: &str, target: &str, code: &str) -> Entry {
    Entry {
        actor: actor.to_owned(),
        call: "x.Y/Z".to_owned(),
        target: target.to_owned(),
        code: code.to_owned(),
        count: 1,
        ..Entry::default()
    }
}

on_every_store!(entries_are_listed_newest_first_and_filtered, |store| async move {
    for (actor, target, code) in [("a", "m-1", ""), ("b", "m-1", "NOT_FOUND"), ("a", "m-2", "")] {
        store
            .put("audit", move |tx| {
                audit::insert(tx, &entry(actor, target, code));
                Ok(())
            })
            .await
            .expect("inserts");
    }
    let list = |filter: &str, before, limit| {
        let filter =
            if filter.is_empty() { Filter::Everything } else { audit::FILTER.parse(filter).expect("a filter") };
        store.read(move |tx| audit::list(tx, &filter, before, limit))
    };
    let all = list("", None, 9).await.expect("lists");
    assert_eq!(
        all.iter().map(|e| (e.target.as_str(), e.outcome())).collect::<Vec<_>>(),
        [("m-2", "done"), ("m-1", "refused"), ("m-1", "done"),]
    );
    let numbers: Vec<u64> = all.iter().map(|e| e.number).collect();
    assert!(numbers.windows(2).all(|w| w[0] > w[1]), "{numbers:?}");
    let page = list("", Some(numbers[0]), 1).await.expect("lists");
    assert_eq!(page.iter().map(|e| e.number).collect::<Vec<_>>(), numbers[1..2]);
    assert_eq!(list("actor=a AND target=m-1", None, 9).await.expect("lists").len(), 1);
    assert_eq!(list("outcome=refused", None, 9).await.expect("lists").len(), 1);
});

on_every_store!(old_keys_are_forgotten_by_scope, |store| async move {
    store.put("k", |tx| idempotency::remember(tx, "a", "1", "f", "x")).await.expect("remembers");
    store.put("k", |tx| idempotency::remember(tx, "b", "1", "f", "y")).await.expect("remembers");
    store.put("k", |tx| idempotency::forget(tx, "a", Timestamp::default())).await.expect("forgets");
    assert!(store.read(|tx| idempotency::find(tx, "a", "1")).await.expect("reads").is_some(), "not old enough");
    let later = Timestamp::from_micros(i64::MAX);
    store.put("k", move |tx| idempotency::forget(tx, "a", later)).await.expect("forgets");
    assert!(store.read(|tx| idempotency::find(tx, "a", "1")).await.expect("reads").is_none());
    assert!(store.read(|tx| idempotency::find(tx, "b", "1")).await.expect("reads").is_some(), "another's");
});
