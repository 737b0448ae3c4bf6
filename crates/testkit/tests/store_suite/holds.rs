//! Holds on machines: one act's, given up by it alone, and over when their time is up.

use crate::fixture::{TestStore, on_every_store};
use domain::MachineId;
use std::time::Duration;
use store::hold;

async fn holder(store: &TestStore) -> Option<String> {
    store.read(|tx| hold::of(tx, &MachineId::from_text("m-1"))).await.expect("reads").map(|hold| hold.act)
}

on_every_store!(a_hold_ends_with_its_act_or_its_time, |store| async move {
    store.register("m-1").await;
    assert_eq!(holder(&store).await, None);
    let take = |act: &'static str| {
        store.put("m-1", move |tx| {
            hold::take(tx, &MachineId::from_text("m-1"), act, "power off", "alice", Duration::from_secs(60))
        })
    };
    let release = |act: &'static str| store.put("m-1", move |tx| hold::release(tx, &MachineId::from_text("m-1"), act));
    take("one").await.expect("held");
    let hold = store.read(|tx| hold::of(tx, &MachineId::from_text("m-1"))).await.expect("reads").expect("is held");
    assert_eq!((hold.what.as_str(), hold.by.as_str()), ("power off", "alice"));
    assert_eq!(hold.until.since(hold.since), Duration::from_secs(60));
    release("another").await.expect("no change");
    assert_eq!(holder(&store).await.as_deref(), Some("one"));
    for _ in 0..2 {
        release("one").await.expect("is free");
        assert_eq!(holder(&store).await, None);
    }
    // a server that dies gives nothing up
    take("two").await.expect("held");
    store.clock.skip(Duration::from_secs(59));
    assert_eq!(holder(&store).await.as_deref(), Some("two"));
    store.clock.skip(Duration::from_secs(2));
    assert_eq!(holder(&store).await, None);
    take("three").await.expect("held again");
    release("two").await.expect("comes late");
    assert_eq!(holder(&store).await.as_deref(), Some("three"));
});
