//! Session leases: who is alive, who is declared dead, and what becomes of what they held.

use crate::fixture::{LEASE, LONGEST_CALL, TestStore, on_every_store, on_threaded_stores, open};
use domain::SessionId;
use domain::{ExecutionId, Reason};
use std::time::Duration;
use store::execution::{self, Execution, Status};
use store::session::{self, LiveSession, Renewal};
use store::{Options, SCHEMA_VERSION, is_fenced};

async fn live(store: &TestStore) -> Vec<LiveSession> {
    let mut live = store.read(session::live).await.expect("reads");
    live.sort_by(|a, b| a.id.cmp(&b.id));
    live
}

async fn renew(store: &TestStore, id: &SessionId) -> Renewal {
    let id = id.clone();
    store.put("sessions", move |tx| session::renew(tx, &id)).await.expect("renews")
}

async fn declare_dead(store: &TestStore, seen: &LiveSession) -> bool {
    let seen = seen.clone();
    store.put("sessions", move |tx| session::declare_dead(tx, &seen, "no renewal seen")).await.expect("declares")
}

async fn journal(store: &TestStore, id: &ExecutionId) -> Vec<String> {
    let id = id.clone();
    let rows = store.read(move |tx| execution::journal(tx, &id, 100)).await.expect("reads");
    assert!(rows.iter().map(|row| row.number).eq(1..=rows.len() as u64), "numbered without holes");
    rows.into_iter().map(|row| row.entry).collect()
}

on_every_store!(a_session_lives_and_renews, |store| async move {
    let (a, b) = (store.session("a").await, store.session("b").await);
    assert_eq!(renew(&store, &a).await, Renewal::Renewed);
    assert_eq!(renew(&store, &a).await, Renewal::Renewed);
    let seen = live(&store).await;
    assert_eq!(
        seen.iter().map(|s| (&s.id, s.instance_id.as_str(), s.renewals)).collect::<Vec<_>>(),
        [(&a, "a", 2), (&b, "b", 0)]
    );
    assert!(seen.iter().all(|s| s.lease == LEASE && s.longest_call == LONGEST_CALL));
    assert_eq!(renew(&store, &SessionId::from_text("ses_none")).await, Renewal::Lost);
});

/// Two executions held by the session: one has not begun, the other is at a stage.
async fn two_held(store: &TestStore, session: &SessionId) -> [Execution; 2] {
    store.execution("run_1").await;
    store.execution("run_2").await;
    let mut held = store.claim(session, 2).await;
    held[1].stage = "flash".into();
    let (s, e) = (session.clone(), held[1].clone());
    held[1] = store
        .put("x", move |tx| {
            let mut e = e.clone();
            execution::record(tx, &s, &mut e, &[])?;
            Ok(e)
        })
        .await
        .expect("records");
    held.try_into().expect("two")
}

on_every_store!(a_renewal_in_between_saves_the_session, |store| async move {
    let a = store.session("a").await;
    let held = two_held(&store, &a).await;
    let seen = live(&store).await.remove(0);
    assert_eq!(renew(&store, &a).await, Renewal::Renewed);
    assert!(!declare_dead(&store, &seen).await, "it moved after all");
    assert_eq!(live(&store).await.len(), 1);
    for e in &held {
        assert_eq!(store.get_execution(&e.id).await, *e);
        assert_eq!(journal(&store, &e.id).await, ["requested"]);
    }
});

on_every_store!(a_dead_sessions_work_is_taken_over, |store| async move {
    let (a, b) = (store.session("a").await, store.session("b").await);
    let held = two_held(&store, &a).await;
    let seen = live(&store).await.remove(0);
    assert_eq!(seen.id, a);
    let before = [store.get_execution(&held[0].id).await, store.get_execution(&held[1].id).await];
    assert!(declare_dead(&store, &seen).await);
    assert!(!declare_dead(&store, &seen).await, "once");
    assert_eq!(live(&store).await.iter().map(|s| &s.id).collect::<Vec<_>>(), [&b]);
    assert_eq!(renew(&store, &a).await, Renewal::Lost);
    for ((e, stored), settle) in held.iter().zip(&before).zip([Duration::ZERO, LONGEST_CALL]) {
        let orphan = store.get_execution(&e.id).await;
        assert_eq!((orphan.status, &orphan.holder, orphan.entries), (Status::Ready, &None, 2));
        assert_eq!(orphan.settle, settle, "the last call of one that has begun may still be in the air");
        let without_holder = orphan.updated_at.since(stored.updated_at);
        let expected = e.deadline.plus(LONGEST_CALL).plus(without_holder);
        assert_eq!(orphan.deadline, expected, "neither waiting for that nor the time without a holder is charged");
        assert_eq!(journal(&store, &e.id).await, ["requested", "holder_lost"]);
        // the dead one is not told, but cannot write
        let (session, mut mine) = (a.clone(), e.clone());
        mine.entries = 2;
        for mine in [mine, e.clone()] {
            let session = session.clone();
            let refused = store
                .put("x", move |tx| execution::record(tx, &session, &mut mine.clone(), &[]))
                .await
                .expect_err("is fenced");
            assert!(is_fenced(&refused), "{refused}");
        }
    }
    assert_eq!(store.claim(&a, 10).await, [], "nor claim: nobody would ever take it away again");
    let taken = store.claim(&b, 10).await;
    assert_eq!(taken.iter().map(|e| e.fence.counter).collect::<Vec<_>>(), [2, 2]);
});

on_every_store!(a_dead_session_cannot_write_even_what_it_still_seems_to_hold, |store| async move {
    let a = store.session("a").await;
    store.execution("run_1").await;
    let e = store.claim(&a, 1).await.remove(0);
    let session = a.clone();
    store.put("sessions", move |tx| session::release(tx, &session)).await.expect("hands over");
    let refused =
        store.put("x", move |tx| execution::record(tx, &a, &mut e.clone(), &[])).await.expect_err("is fenced");
    assert!(is_fenced(&refused));
});

on_every_store!(the_same_instance_takes_its_place_at_once, |store| async move {
    let old = store.session("a").await;
    let other = store.session("b").await;
    let held = two_held(&store, &old).await;
    let new = store.session("a").await;
    assert_eq!(live(&store).await.iter().map(|s| &s.id).collect::<Vec<_>>(), [&other, &new]);
    assert_eq!(renew(&store, &old).await, Renewal::Lost);
    let taken = store.claim(&new, 10).await;
    assert_eq!(taken.len(), held.len(), "without waiting for a lease to run out");
    assert_eq!(journal(&store, &held[0].id).await, ["requested", "holder_lost"]);
});

on_every_store!(handing_over_leaves_no_doubt_behind, |store| async move {
    let (a, b) = (store.session("a").await, store.session("b").await);
    let held = two_held(&store, &a).await;
    let session = a.clone();
    store.put("sessions", move |tx| session::release(tx, &session)).await.expect("hands over");
    assert_eq!(live(&store).await.iter().map(|s| &s.id).collect::<Vec<_>>(), [&b]);
    assert_eq!(renew(&store, &a).await, Renewal::Lost);
    let taken = store.claim(&b, 10).await;
    assert_eq!(taken.len(), 2);
    for (e, before) in taken.iter().zip(&held) {
        assert_eq!((e.settle, e.deadline), (Duration::ZERO, before.deadline), "no call is in the air");
        assert_eq!(e.entries, before.entries);
        assert_eq!(journal(&store, &e.id).await, ["requested"]);
    }
    assert_eq!(store.claim(&a, 10).await, []);
});

/// As a newer binary would leave it.
async fn raise_schema(store: &TestStore) {
    let sql = format!("INSERT INTO schema_migrations(version, applied_at) VALUES ({}, 0)", SCHEMA_VERSION + 1);
    match &store.options {
        Options::Memory => panic!("nobody else can reach it"),
        Options::Sqlite(path) => {
            let path = path.clone();
            let work = move || rusqlite::Connection::open(path).and_then(|db| db.execute(&sql, [])).expect("inserts");
            tokio::task::spawn_blocking(work).await.expect("no panic");
        }
        Options::Postgres(config) => {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
            tokio::spawn(async move { drop(connection.await) });
            client.batch_execute(&sql).await.expect("inserts");
        }
    }
}

on_threaded_stores!(a_newer_schema_is_noticed_and_refused, |store| async move {
    let a = store.session("a").await;
    raise_schema(&store).await;
    assert_eq!(renew(&store, &a).await, Renewal::SchemaMoved(SCHEMA_VERSION + 1), "a running process stops claiming");
    assert_eq!(live(&store).await[0].renewals, 1, "but keeps its lease to finish what it has");
    let refused = open(&store.options, &store.clock).await.map(drop).expect_err("an older binary refuses");
    assert_eq!(refused.reason, Reason::StoreUnavailable);
    assert!(refused.message.contains("run a newer millwright"), "{refused}");
});
