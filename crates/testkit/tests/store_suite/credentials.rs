//! Credentials in the store: under their names, on record, wiped when they are deleted, and counted by who names them.

use crate::fixture::{TestStore, on_every_store, on_threaded_stores};
use domain::credential::{CHANGED, CREATED, CredentialKind, CredentialState, DELETED, ROTATED};
use domain::filter::Filter;
use domain::machine::{Labels, MachineSpec};
use domain::{MachineId, Reason};
use store::credential::{self, NewContent, Sealed};
use store::{Cause, Moved, Tx, TxResult, machine};

fn by(trigger: &'static str) -> Cause {
    Cause::operator("root", trigger, "")
}

fn put(tx: &mut Tx<'_>, name: &str, sealed: &[u8], key_id: &str, cause: &Cause) -> TxResult<()> {
    let there = credential::get_for_update(tx, name)?;
    let new = NewContent { name, kind: CredentialKind::Bmc, sealed: sealed.to_vec(), key_id };
    credential::put(tx, there.as_ref().map(|t| &t.record), new, cause)
}

async fn set(store: &TestStore, name: &'static str, sealed: &'static [u8], key_id: &'static str, cause: Cause) {
    store.put("credentials", move |tx| put(tx, name, sealed, key_id, &cause)).await.expect("is set");
}

async fn get(store: &TestStore, name: &str) -> Sealed {
    store.point(credential::by_name(name)).await.expect("reads").expect("is there")
}

on_every_store!(a_credential_is_set_changed_and_deleted_on_record, |store| async move {
    set(&store, "rack-1", b"\x00one", "k1", by(CREATED)).await;
    set(&store, "rack-1", b"two", "k2", by(CHANGED)).await;
    let there = get(&store, "rack-1").await;
    assert_eq!((there.record.version, there.record.key_id.as_str(), there.sealed.as_slice()), (2, "k2", &b"two"[..]));
    assert_eq!((there.record.state, there.record.created_by.as_str()), (CredentialState::Present, "root"));
    let rotated = Cause::executor("keyring", ROTATED, "");
    set(&store, "rack-1", b"three", "k2", rotated).await;
    let delete = |tx: &mut Tx<'_>| {
        let there = credential::get_for_update(tx, "rack-1")?.expect("is there").record;
        credential::delete(tx, &there, &by(DELETED))
    };
    assert_eq!(store.put("credentials", delete).await, Ok(Moved::Moved));
    assert_eq!(store.put("credentials", delete).await, Ok(Moved::AlreadyThere), "again: no change");
    let gone = get(&store, "rack-1").await;
    assert_eq!(
        (gone.record.state, gone.sealed.as_slice(), gone.record.key_id.as_str()),
        (CredentialState::Deleted, &b""[..], "")
    );
    assert!(store.read(|tx| credential::list(tx, &Filter::Everything, "", 9)).await.expect("lists").is_empty());
    set(&store, "rack-1", b"four", "k2", by(CREATED)).await;
    assert_eq!(get(&store, "rack-1").await.record.version, 5, "its versions go on: an old row is no new one");
    let log = store.log_after(0).await;
    let moves: Vec<(&str, &str)> = log.iter().map(|r| (r.trigger.as_str(), r.to_state.as_str())).collect();
    let present = "present";
    assert_eq!(
        moves,
        [(CREATED, present), (CHANGED, present), (ROTATED, present), (DELETED, "deleted"), (CREATED, present)]
    );
    assert!(
        log.iter()
            .all(|r| r.entity_kind == "credential" && r.subject == "rack-1" && r.metadata == "{\"kind\":\"bmc\"}")
    );
    // nobody else's edges
    let refused = store.put("credentials", |tx| put(tx, "rack-1", b"x", "k", &Cause::executor("e", CHANGED, ""))).await;
    assert_eq!(refused.map_err(|e| e.reason), Err(Reason::NotYourTransition));
});

on_every_store!(credentials_are_listed_by_name_and_by_the_key_they_are_sealed_under, |store| async move {
    for (name, key) in [("a", "k1"), ("b", "k2"), ("c", "k1"), ("d", "k2")] {
        set(&store, name, b"x", key, by(CREATED)).await;
    }
    let names = |list: Vec<domain::credential::CredentialRecord>| list.into_iter().map(|c| c.name).collect::<Vec<_>>();
    let listed = store.read(|tx| credential::list(tx, &Filter::Everything, "a", 2)).await.expect("lists");
    assert_eq!(names(listed), ["b", "c"]);
    let filter = credential::FILTER.parse("key_id=k1 AND kind=bmc").expect("a filter");
    assert_eq!(names(store.read(move |tx| credential::list(tx, &filter, "", 9)).await.expect("lists")), ["a", "c"]);
    let keys = store.read(credential::keys).await.expect("reads");
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), [("k1".to_owned(), 2), ("k2".to_owned(), 2)]);
    let other = |tx: &mut Tx<'_>| credential::under_other_keys(tx, "k2", "", 9);
    let rows = store.read(other).await.expect("reads");
    assert_eq!(rows.iter().map(|r| r.record.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    // sealed anew: neither version nor history moves, and not over somebody's change
    let before = get(&store, "a").await.record;
    let (first, stale) = (before.clone(), before.clone());
    store.put("credentials", move |tx| credential::reseal(tx, &first, b"y".to_vec(), "k2")).await.expect("resealed");
    let after = get(&store, "a").await;
    assert_eq!(
        (after.record.version, after.record.key_id.as_str(), after.sealed),
        (before.version, "k2", b"y".to_vec())
    );
    let lost = store.put("credentials", move |tx| credential::reseal(tx, &stale, b"z".to_vec(), "k3")).await;
    assert_eq!(lost.map_err(|e| e.reason), Err(Reason::Contention));
    assert_eq!(store.log_after(0).await.len(), 4);
});

on_every_store!(machines_are_counted_by_what_they_name, |store| async move {
    let spec = |credentials_ref: &str, cluster: &str, bmc: &str| MachineSpec {
        credentials_ref: credentials_ref.into(),
        target_cluster_ref: cluster.into(),
        bmc_endpoint: bmc.into(),
        ..MachineSpec::default()
    };
    for (id, spec) in [
        ("m-1", spec("rack-1, fleet", "prod", "https://a?tls=ca:signer")),
        ("m-2", spec("rack_1,fleet", "prod", "https://b?tls=ca:signer&x=y")),
        ("m-3", spec("fleet,fleet", "", "https://c?tls=insecure")),
        ("m-4", spec("", "", "")),
    ] {
        let cause = Cause::operator("root", domain::machine::REGISTERED, "");
        let (key, labels) = (MachineId::from_text(id), Labels::new());
        store.put(id, move |tx| machine::insert(tx, &key, &spec, &labels, &cause)).await.expect("registers");
    }
    let uses = store.read(credential::uses).await.expect("reads");
    let uses: Vec<(&str, u64)> = uses.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(uses, [("fleet", 3), ("prod", 2), ("rack-1", 1), ("rack_1", 1), ("signer", 2)]);
});

// what somebody begins to use does not go away meanwhile
on_threaded_stores!(one_that_is_held_is_there_until_the_end, |store| async move {
    set(&store, "rack-1", b"x", "k", by(CREATED)).await;
    store.register("m-1").await;
    assert_eq!(store.put("m-1", |tx| credential::hold(tx, "rack-1")).await, Ok(true));
    assert_eq!(store.put("m-1", |tx| credential::hold(tx, "rack-2")).await, Ok(false));
    let delete = |tx: &mut Tx<'_>| {
        let there = credential::get_for_update(tx, "rack-1")?.expect("is there").record;
        credential::delete(tx, &there, &by(DELETED))
    };
    store.put("credentials", delete).await.map(drop).expect("deleted");
    assert_eq!(store.put("m-1", |tx| credential::hold(tx, "rack-1")).await, Ok(false));
});
