//! The small records: idempotency keys, step output, the brake.

use crate::fixture::{TestStore, on_every_store};
use domain::RunId;
use store::{Ambient as _, idempotency, step_log, switch};

async fn known(store: &TestStore, scope: &str, key: &str) -> Option<(String, String)> {
    let (scope, key) = (scope.to_owned(), key.to_owned());
    let found = store.read(move |tx| idempotency::find(tx, &scope, &key)).await.expect("reads");
    found.map(|k| (k.fingerprint, k.answer))
}

on_every_store!(a_request_key_is_remembered_within_its_scope, |store| async move {
    assert_eq!(known(&store, "a", "k").await, None);
    for scope in ["a", "b"] {
        let remember = move |tx: &mut store::Tx<'_>| idempotency::remember(tx, scope, "k", "print", scope);
        store.put("k", remember).await.expect("remembers");
    }
    assert_eq!(known(&store, "a", "k").await, Some(("print".into(), "a".into())));
    assert_eq!(known(&store, "b", "k").await, Some(("print".into(), "b".into())));
    assert_eq!(known(&store, "a", "K").await, None);
    store.put("k", |tx| idempotency::remember(tx, "a", "k", "other", "x")).await.expect_err("once");
    assert_eq!(known(&store, "a", "k").await, Some(("print".into(), "a".into())));
});

on_every_store!(of_many_equal_requests_one_is_carried_out, |store| async move {
    let one = |i: usize| {
        let store = &store;
        async move {
            store
                .put("machine", move |tx| {
                    if let Some(known) = idempotency::find(tx, "start", "k")? {
                        return Ok(known.answer);
                    }
                    let answer = format!("answer-{i}");
                    idempotency::remember(tx, "start", "k", "print", &answer)?;
                    Ok(answer)
                })
                .await
                .expect("answers")
        }
    };
    let answers = futures::future::join_all((0..50).map(one)).await;
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
});

#[test]
fn fingerprints_do_not_run_together() {
    let print = |parts: &[&str]| idempotency::fingerprint(parts.iter().copied());
    assert_eq!(print(&["a", "b"]), print(&["a", "b"]));
    let different =
        [print(&["a", "b"]), print(&["ab"]), print(&["ab", ""]), print(&["", "ab"]), print(&[]), print(&["b", "a"])];
    for (i, one) in different.iter().enumerate() {
        assert!(different[i + 1..].iter().all(|other| other != one));
    }
}

async fn append(store: &TestStore, run: &RunId, step: &'static str, chunks: Vec<(&'static str, Vec<u8>)>) {
    let (key, run) = (run.to_string(), run.clone());
    store.put(&key, move |tx| step_log::append(tx, &run, step, &chunks)).await.expect("appends");
}

on_every_store!(output_is_numbered_and_comes_back_in_order, |store| async move {
    store.register("m").await;
    store.register("n").await;
    let (run, other) = (store.request("m", &["a", "b"]).await, store.request("n", &["a"]).await);
    let every_byte: Vec<u8> = (0..=255).collect();
    append(&store, &run, "a", vec![("stdout", b"one".to_vec()), ("stderr", every_byte.clone())]).await;
    append(&store, &other, "a", vec![("stdout", b"else".to_vec())]).await;
    append(&store, &run, "a", vec![]).await;
    append(&store, &run, "b", vec![("stdout", vec![]), ("stdout", b"four".to_vec())]).await;
    let id = run.clone();
    let chunks = store.read(move |tx| step_log::after(tx, &id, 0, 10)).await.expect("reads");
    let shown: Vec<_> =
        chunks.iter().map(|c| (c.sequence, c.step.as_str(), c.stream.as_str(), c.data.clone())).collect();
    let expected = [
        (1, "a", "stdout", b"one".to_vec()),
        (2, "a", "stderr", every_byte),
        (3, "b", "stdout", vec![]),
        (4, "b", "stdout", b"four".to_vec()),
    ];
    assert_eq!(shown, expected);
    let id = run.clone();
    let page = store.read(move |tx| step_log::after(tx, &id, 1, 2)).await.expect("reads");
    assert_eq!(page, chunks[1..3]);
    let id = run.clone();
    assert_eq!(store.read(move |tx| step_log::head(tx, &id)).await, Ok(4));
    assert_eq!(store.read(move |tx| step_log::head(tx, &other)).await, Ok(1));
    assert_eq!(store.read(|tx| step_log::head(tx, &RunId::from_text("run_none"))).await, Ok(0));
});

on_every_store!(output_from_many_sides_has_no_holes, |store| async move {
    store.register("m").await;
    let run = store.request("m", &["a"]).await;
    let one = |i: u8| {
        let (store, run) = (&store, &run);
        async move { append(store, run, "a", vec![("stdout", vec![i]), ("stderr", vec![i])]).await }
    };
    futures::future::join_all((0..60).map(one)).await;
    let chunks = store.read(move |tx| step_log::after(tx, &run, 0, 1000)).await.expect("reads");
    assert!(chunks.iter().map(|c| c.sequence).eq(1..=120));
    for pair in chunks.chunks(2) {
        assert_eq!(pair[0].data, pair[1].data, "what was appended together stays together");
    }
});

on_every_store!(the_brake_stays_as_the_first_one_left_it, |store| async move {
    assert_eq!(store.read(switch::frozen).await, Ok(None));
    let before = store.clock.now();
    store.put("switch", |tx| switch::freeze(tx, "alice", "smoke")).await.expect("freezes");
    store.put("switch", |tx| switch::freeze(tx, "bob", "me too")).await.expect("no harm");
    let frozen = store.read(switch::frozen).await.expect("reads").expect("is frozen");
    assert_eq!((frozen.by.as_str(), frozen.reason.as_str()), ("alice", "smoke"));
    assert!(frozen.since >= before);
    for _ in 0..2 {
        store.put("switch", switch::unfreeze).await.expect("releases");
        assert_eq!(store.read(switch::frozen).await, Ok(None));
    }
    let woken = tokio::time::timeout(crate::fixture::PATIENCE, store.signals().work_ready()).await;
    assert!(woken.is_ok(), "releasing the brake wakes the engine");
});
