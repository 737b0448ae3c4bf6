//! Pins in the store: the first word counts, for each endpoint, and what was trusted since when is in the machine's
//! history.

use crate::fixture::{TestStore, on_every_store, on_threaded_stores};
use domain::MachineId;
use domain::pin::{FORGOTTEN, PINNED, Pin, PinState};
use futures::future::join_all;
use store::{Cause, Tx, TxResult, machine, pin};

fn seen(tx: &mut Tx<'_>, kind: Pin, endpoint: &str, value: &str) -> TxResult<String> {
    let m = machine::get(tx, &MachineId::from_text("m-1"))?.expect("is there");
    pin::pin(tx, &m, kind, endpoint, value, &Cause::reconciler("keyring", PINNED, ""))
}

fn forget(tx: &mut Tx<'_>, kind: Pin) -> TxResult<()> {
    let m = machine::get(tx, &MachineId::from_text("m-1"))?.expect("is there");
    pin::forget(tx, &m, kind, &Cause::operator("root", FORGOTTEN, "replaced"))
}

async fn at(store: &TestStore, kind: Pin, endpoint: &str) -> Option<(PinState, String)> {
    let found = store.point(pin::at(&MachineId::from_text("m-1"), kind, endpoint)).await.expect("reads");
    found.map(|p| (p.state, p.value))
}

on_every_store!(the_first_one_seen_is_pinned_until_it_is_forgotten, |store| async move {
    store.register("m-1").await;
    let before = store.log_after(0).await.len() as u64;
    let see = |endpoint: &'static str, value: &'static str| {
        store.put("m-1", move |tx| seen(tx, Pin::BmcCertificate, endpoint, value))
    };
    assert_eq!(see("a:443", "one").await.as_deref(), Ok("one"));
    assert_eq!(see("a:443", "two").await.as_deref(), Ok("one"), "what is pinned stays");
    assert_eq!(see("b:443", "two").await.as_deref(), Ok("two"), "elsewhere is another");
    assert_eq!(at(&store, Pin::BmcCertificate, "a:443").await, Some((PinState::Pinned, "one".to_owned())));
    assert_eq!(at(&store, Pin::SshHostKey, "a:443").await, None);
    store.put("m-1", |tx| forget(tx, Pin::SshHostKey)).await.expect("nothing to forget");
    for _ in 0..2 {
        store.put("m-1", |tx| forget(tx, Pin::BmcCertificate)).await.expect("forgets");
    }
    assert_eq!(at(&store, Pin::BmcCertificate, "b:443").await, Some((PinState::Forgotten, String::new())));
    assert_eq!(see("a:443", "three").await.as_deref(), Ok("three"));
    let log = store.log_after(before).await;
    let moves: Vec<(&str, &str, u64)> =
        log.iter().map(|r| (r.from_state.as_str(), r.to_state.as_str(), r.version)).collect();
    assert_eq!(
        moves,
        [
            ("", "pinned", 1),
            ("", "pinned", 1),
            ("pinned", "forgotten", 2),
            ("pinned", "forgotten", 2),
            ("forgotten", "pinned", 3)
        ]
    );
    assert!(log.iter().all(|r| r.entity_kind == "pin" && r.entity_id == "m-1/bmc-certificate" && r.subject == "m-1"));
    assert_eq!(log[4].metadata, r#"{"endpoint":"a:443","value":"three"}"#);
    let machine =
        store.read(|tx| machine::get(tx, &MachineId::from_text("m-1"))).await.expect("reads").expect("is there");
    assert_eq!(machine.version, 1, "nobody's version was raised");
});

// two that see it for the first time do not each believe their own eyes
on_threaded_stores!(of_many_who_look_at_once_one_pins, |store| async move {
    store.register("m-1").await;
    let texts: Vec<String> = (0..8).map(|n| format!("seen-{n}")).collect();
    let looks = texts.iter().map(|text| {
        let text = text.clone();
        store.put("m-1", move |tx| seen(tx, Pin::SshHostKey, "h:22", &text))
    });
    let told: Vec<String> = join_all(looks).await.into_iter().map(|r| r.expect("pinned")).collect();
    assert!(told.iter().all(|t| *t == told[0]), "{told:?}");
});

fn swapped(tx: &mut Tx<'_>, read: Option<&str>, value: &str) -> TxResult<bool> {
    let m = machine::get(tx, &MachineId::from_text("m-1"))?.expect("is there");
    let causes = (&Cause::operator("root", FORGOTTEN, ""), &Cause::reconciler("keyring", PINNED, ""));
    pin::swap(tx, &m, Pin::Installation, ("", read), value, causes)
}

on_every_store!(what_was_pinned_since_it_was_read_stays, |store| async move {
    store.register("m-1").await;
    let swap = |read: Option<&'static str>, value: &'static str| store.put("m-1", move |tx| swapped(tx, read, value));
    let now = || async { at(&store, Pin::Installation, "").await.map(|(_, value)| value) };
    assert_eq!(swap(Some("none"), "one").await, Ok(false), "there was nothing");
    assert_eq!(swap(None, "one").await, Ok(true));
    assert_eq!(swap(None, "late").await, Ok(false));
    assert_eq!(swap(Some("one"), "two").await, Ok(true));
    assert_eq!(swap(Some("one"), "late").await, Ok(false));
    assert_eq!(now().await.as_deref(), Some("two"));
    let written = store.log_after(0).await.len();
    assert_eq!(swap(Some("one"), "two").await, Ok(true), "as it is");
    assert_eq!(store.log_after(0).await.len(), written, "and nothing is written");
    store.put("m-1", |tx| forget(tx, Pin::Installation)).await.expect("forgets");
    assert_eq!(swap(Some("two"), "late").await, Ok(false), "what is forgotten was not what was read");
    assert_eq!(swap(None, "three").await, Ok(true));
    assert_eq!(now().await.as_deref(), Some("three"));
});

on_threaded_stores!(of_many_who_change_what_they_read_one_does, |store| async move {
    store.register("m-1").await;
    store.put("m-1", |tx| swapped(tx, None, "read")).await.expect("pinned");
    let texts: Vec<String> = (0..8).map(|n| format!("new-{n}")).collect();
    let swaps = texts.iter().map(|text| {
        let text = text.clone();
        store.put("m-1", move |tx| swapped(tx, Some("read"), &text))
    });
    let told: Vec<bool> = join_all(swaps).await.into_iter().map(|r| r.expect("told")).collect();
    assert_eq!(told.iter().filter(|kept| **kept).count(), 1, "{told:?}");
    let winner = told.iter().position(|kept| *kept).expect("one");
    assert_eq!(at(&store, Pin::Installation, "").await, Some((PinState::Pinned, texts[winner].clone())));
});
