//! Executions: claims raise the fence, and only the holder of the newest fence can write.

use crate::fixture::{TestStore, machine_id, on_every_store, register};
use domain::machine::{Labels, MachineSpec};
use domain::stage::{Ending, Position};
use domain::{Error, ExecutionId, SessionId, Timestamp};
use std::time::Duration;
use store::execution::{self, CancelRequest, Entry, Execution, Status};
use store::{Ambient as _, is_fenced};

fn entry(name: &'static str) -> Entry {
    Entry { entry: name, detail: serde_json::json!({"said": "ü \"quoted\""}) }
}

async fn record(
    store: &TestStore,
    session: &SessionId,
    execution: &Execution,
    entries: Vec<Entry>,
) -> Result<Execution, Error> {
    let (session, execution) = (session.clone(), execution.clone());
    store
        .put(&execution.id.to_string(), move |tx| {
            let mut execution = execution.clone();
            execution::record(tx, &session, &mut execution, &entries)?;
            Ok(execution)
        })
        .await
}

async fn journal(store: &TestStore, id: &ExecutionId) -> Vec<(u64, String, String)> {
    let id = id.clone();
    let rows = store.read(move |tx| execution::journal(tx, &id, 100)).await.expect("reads");
    rows.into_iter().map(|row| (row.number, row.fence, row.entry)).collect()
}

fn line(number: u64, fence: &str, entry: &str) -> (u64, String, String) {
    (number, fence.to_owned(), entry.to_owned())
}

/// Puts it to sleep, as a worker does that has nothing to do for a while.
async fn sleep(store: &TestStore, session: &SessionId, execution: &Execution, span: Duration) -> Execution {
    let mut e = execution.clone();
    e.status = Status::Waiting;
    e.holder = None;
    e.wake_at = store.clock.now().plus(span);
    e.waiting_for = "something".into();
    record(store, session, &e, vec![]).await.expect("goes to sleep")
}

on_every_store!(a_new_execution_wants_a_worker, |store| async move {
    let id = store.execution("run_1").await;
    let e = store.get_execution(&id).await;
    assert_eq!((e.status, e.position, e.entries), (Status::Ready, Position::Start, 1));
    assert_eq!((e.subject.as_str(), e.workflow.as_str(), e.workflow_version), ("run_1", "run", 1));
    assert_eq!((&e.holder, &e.cancel, e.fence.epoch, e.fence.counter), (&None, &None, 1, 0));
    assert_eq!(e.deadline, e.created_at.plus(Duration::from_secs(3600)));
    assert_eq!(journal(&store, &id).await, [line(1, "1.0", "requested")]);
    assert_eq!(store.read(execution::next_wake).await, Ok(Some(e.wake_at)));
    let newer = store.execution("run_1").await;
    let found = store.read(|tx| execution::by_subject(tx, "run_1")).await.expect("reads");
    assert_eq!(found.map(|e| e.id), Some(newer), "the newest");
    assert_eq!(store.read(|tx| execution::by_subject(tx, "run_2")).await, Ok(None));
});

on_every_store!(a_claim_takes_what_is_due_oldest_first, |store| async move {
    let session = store.session("a").await;
    let mut ids = Vec::new();
    for i in 0..6 {
        ids.push(store.execution(&format!("run_{i}")).await);
        store.clock.skip(Duration::from_secs(1));
    }
    // the first two go to sleep, the second of them for longer
    let claimed = store.claim(&session, 2).await;
    assert_eq!(claimed.iter().map(|e| e.id.clone()).collect::<Vec<_>>(), ids[..2], "the oldest two");
    for (execution, span) in claimed.iter().zip([500, 5000]) {
        sleep(&store, &session, execution, Duration::from_secs(span)).await;
    }
    let claimed = store.claim(&session, 3).await;
    assert_eq!(claimed.iter().map(|e| e.id.clone()).collect::<Vec<_>>(), ids[2..5]);
    for e in &claimed {
        assert_eq!((e.status, e.holder.as_ref(), e.fence.counter), (Status::Running, Some(&session), 1));
        assert_eq!(store.get_execution(&e.id).await, *e, "the answer is the row");
    }
    assert_eq!(store.claim(&session, 10).await.len(), 1, "the last; the sleepers are not due");
    assert_eq!(store.claim(&session, 10).await, []);
    let due = store.get_execution(&ids[0]).await.wake_at;
    assert_eq!(store.read(execution::next_wake).await, Ok(Some(due)));
    store.clock.skip(Duration::from_secs(600));
    let claimed = store.claim(&session, 10).await;
    assert_eq!(claimed.iter().map(|e| (e.id.clone(), e.fence.counter)).collect::<Vec<_>>(), [(ids[0].clone(), 2)]);
});

on_every_store!(of_equally_old_ones_the_first_comes_first, |store| async move {
    let session = store.session("a").await;
    let ids: Vec<ExecutionId> = (0..30).map(|_| ExecutionId::generate(store.clock.uuid())).collect();
    // one transaction, one time; written in another order than that of the ids
    let rows = ids.clone();
    store
        .put("all", move |tx| rows.iter().rev().try_for_each(|id| crate::fixture::insert_execution(tx, id, "run_1")))
        .await
        .expect("inserts");
    for part in ids.chunks(7) {
        let claimed = store.claim(&session, 7).await;
        assert_eq!(claimed.iter().map(|e| &e.id).collect::<Vec<_>>(), part.iter().collect::<Vec<_>>());
    }
});

on_every_store!(a_record_writes_the_row_and_the_journal, |store| async move {
    let session = store.session("a").await;
    let id = store.execution("run_1").await;
    let mut e = store.claim(&session, 1).await.remove(0);
    let positions = [
        Position::Stage { index: 3, attempt: 2 },
        Position::Undo { index: 1, attempt: 1, ending: Ending::Failed },
        Position::Undo { index: 0, attempt: 3, ending: Ending::Canceled },
    ];
    for position in positions {
        e.position = position;
        e.stage = "flash".into();
        e.settle = Duration::from_millis(17);
        e.facts = "{\"a\":[1,\"ü\"]}".into();
        e.failure = "{}".into();
        e.deadline = store.clock.now().plus(Duration::from_secs(5));
        let written = record(&store, &session, &e, vec![entry("one"), entry("two")]).await.expect("records");
        assert_eq!(written.entries, e.entries + 2);
        assert_eq!(store.get_execution(&id).await, written);
        e = written;
    }
    let lines = journal(&store, &id).await;
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[..3], [line(1, "1.0", "requested"), line(2, "1.1", "one"), line(3, "1.1", "two")]);
    let row = id.clone();
    let rows = store.read(move |tx| execution::journal(tx, &row, 2)).await.expect("reads");
    let detail: serde_json::Value = serde_json::from_str(&rows[1].detail).expect("is JSON");
    assert_eq!((rows.len(), detail), (2, entry("one").detail));
    e.status = Status::Done;
    e.holder = None;
    let done = record(&store, &session, &e, vec![entry("ended")]).await.expect("ends");
    let again = record(&store, &session, &done, vec![]).await.expect_err("has ended");
    assert!(is_fenced(&again), "{again}");
    assert_eq!(store.read(execution::next_wake).await, Ok(None));
});

/// Tries to write as a holder that is none any more, together with other work in the same transaction.
async fn check_refused(store: &TestStore, session: &SessionId, execution: &Execution, why: &str) {
    let before = store.get_execution(&execution.id).await;
    let (lines, head) = (journal(store, &execution.id).await, store.head().await);
    let (s, e) = (session.clone(), execution.clone());
    let refused = store
        .put(&execution.id.to_string(), move |tx| {
            register(tx, &machine_id("ghost"), &MachineSpec::default(), &Labels::new())?;
            let mut e = e.clone();
            execution::record(tx, &s, &mut e, &[entry("ghost")])
        })
        .await
        .expect_err(why);
    assert!(is_fenced(&refused), "{why}: {refused}");
    assert_eq!(store.get_execution(&execution.id).await, before, "{why}");
    assert_eq!((journal(store, &execution.id).await, store.head().await), (lines, head), "{why}");
    assert_eq!(store.machine("ghost").await, None, "{why}: its whole transaction is refused");
}

on_every_store!(only_the_newest_holder_can_write, |store| async move {
    let (first, second) = (store.session("a").await, store.session("b").await);
    store.execution("run_1").await;
    let old = store.claim(&first, 1).await.remove(0);
    check_refused(&store, &second, &old, "another session").await;
    let mut ahead = old.clone();
    ahead.fence.counter += 1;
    check_refused(&store, &first, &ahead, "a fence that was never given").await;
    let mut elsewhere = old.clone();
    elsewhere.fence.epoch += 1;
    check_refused(&store, &first, &elsewhere, "another epoch").await;
    let mut behind = old.clone();
    behind.entries -= 1;
    check_refused(&store, &first, &behind, "a journal that has moved on").await;
    sleep(&store, &first, &old, Duration::ZERO).await;
    check_refused(&store, &first, &old, "it was put to sleep").await;
    let new = store.claim(&second, 1).await.remove(0);
    assert_eq!(new.fence.counter, old.fence.counter + 1);
    check_refused(&store, &first, &old, "another has it").await;
    check_refused(&store, &second, &Execution { fence: old.fence, ..new.clone() }, "an old fence").await;
    record(&store, &second, &new, vec![entry("works")]).await.expect("the holder");
});

on_every_store!(the_same_session_with_an_older_fence_is_refused, |store| async move {
    let session = store.session("a").await;
    store.execution("run_1").await;
    let old = store.claim(&session, 1).await.remove(0);
    sleep(&store, &session, &old, Duration::ZERO).await;
    let new = store.claim(&session, 1).await.remove(0);
    check_refused(&store, &session, &old, "its own older claim").await;
    record(&store, &session, &new, vec![]).await.expect("its newer one");
});

fn cancel(by: &str) -> CancelRequest {
    CancelRequest { by: by.to_owned(), reason: format!("{by} says so") }
}

async fn request_cancel(store: &TestStore, id: &ExecutionId, by: &str) -> bool {
    let (row, request) = (id.clone(), cancel(by));
    store.put(&id.to_string(), move |tx| execution::request_cancel(tx, &row, &request)).await.expect("asks")
}

async fn cancels_of(store: &TestStore, session: &SessionId) -> Vec<ExecutionId> {
    let session = session.clone();
    let held = store.read(move |tx| execution::held_by(tx, &session)).await.expect("reads");
    held.into_iter().filter(|h| h.cancel_requested).map(|h| h.id).collect()
}

on_every_store!(the_first_cancel_request_counts, |store| async move {
    let session = store.session("a").await;
    let (running, sleeping) = (store.execution("run_1").await, store.execution("run_2").await);
    let claimed = store.claim(&session, 2).await;
    sleep(&store, &session, &claimed[1], Duration::from_secs(500)).await;
    let mut signals = store.signals().cancels();
    for id in [&running, &sleeping] {
        assert!(request_cancel(&store, id, "first").await);
        assert!(!request_cancel(&store, id, "second").await);
        assert_eq!(store.get_execution(id).await.cancel, Some(cancel("first")));
        assert_eq!(signals.try_recv().as_ref(), Ok(id));
        while signals.try_recv().is_ok() {}
    }
    assert_eq!(cancels_of(&store, &session).await, std::slice::from_ref(&running));
    let woken = store.claim(&session, 10).await;
    assert_eq!(woken.iter().map(|e| &e.id).collect::<Vec<_>>(), [&sleeping], "the sleeper is woken, the other is held");
    assert_eq!(woken[0].cancel, Some(cancel("first")));
    let ended = Execution { status: Status::Canceled, holder: None, ..woken[0].clone() };
    record(&store, &session, &ended, vec![]).await.expect("ends");
    assert!(!request_cancel(&store, &sleeping, "late").await, "it has ended");
    assert!(!request_cancel(&store, &ExecutionId::from_text("exe_none"), "x").await);
});

on_every_store!(a_worker_cannot_sleep_over_a_cancel_it_has_not_seen, |store| async move {
    let session = store.session("a").await;
    let id = store.execution("run_1").await;
    let unaware = store.claim(&session, 1).await.remove(0);
    assert!(request_cancel(&store, &id, "me").await);
    sleep(&store, &session, &unaware, Duration::from_secs(3600)).await;
    let woken = store.claim(&session, 1).await;
    assert_eq!(woken.len(), 1, "due at once, not in an hour");
    assert_eq!(woken[0].cancel, Some(cancel("me")));
    // the one who knows may sleep: it is unwinding
    sleep(&store, &session, &woken[0], Duration::from_secs(3600)).await;
    assert_eq!(store.claim(&session, 1).await, []);
});

async fn end_from_outside(store: &TestStore, execution: &Execution, status: Status) -> bool {
    let e = execution.clone();
    let ending = move |tx: &mut store::Tx<'_>| execution::end_from_outside(tx, &e, status, &entry("terminated"));
    store.put(&execution.id.to_string(), ending).await.expect("ends")
}

/// Whether a worker whose write failed for another reason hears of its fence instead.
async fn is_stale(store: &TestStore, session: &SessionId, held: &Execution) -> bool {
    let (session, held) = (session.clone(), held.clone());
    let other = || store::Failure::Lost("the rows do not fit".to_owned());
    let told = store.read(move |tx| Ok(execution::failed_or_fenced(tx, &session, &held, other()))).await;
    told.expect("reads") != other()
}

on_every_store!(ending_from_outside_fences_the_holder, |store| async move {
    let session = store.session("a").await;
    let id = store.execution("run_1").await;
    let held = store.claim(&session, 1).await.remove(0);
    let held = record(&store, &session, &held, vec![entry("works")]).await.expect("records");
    assert!(!is_stale(&store, &session, &held).await);
    assert!(end_from_outside(&store, &held, Status::Terminated).await);
    assert!(is_stale(&store, &session, &held).await, "and hears so whatever else its write ran into");
    let ended = store.get_execution(&id).await;
    assert_eq!((ended.status, &ended.holder, ended.fence.counter), (Status::Terminated, &None, 2));
    check_refused(&store, &session, &held, "it was ended from outside").await;
    assert!(!end_from_outside(&store, &ended, Status::Canceled).await, "once");
    assert_eq!(store.get_execution(&id).await, ended);
    let expected = [line(1, "1.0", "requested"), line(2, "1.1", "works"), line(3, "1.2", "terminated")];
    assert_eq!((journal(&store, &id).await, ended.entries), (expected.to_vec(), 3));
    assert_eq!(store.claim(&session, 1).await, []);
});

on_every_store!(lists_of_executions_are_newest_first_and_filtered, |store| async move {
    let session = store.session("a").await;
    let mut ids = Vec::new();
    for i in 0..12 {
        ids.push(store.execution(&format!("run_{}", i % 4)).await);
    }
    let claimed = store.claim(&session, 5).await;
    sleep(&store, &session, &claimed[0], Duration::from_secs(1)).await;
    ids.reverse();
    for (text, expected) in [
        ("", 12),
        ("status=running", 4),
        ("status=waiting OR status=ready", 8),
        ("status!=running", 8),
        ("subject=run_1", 3),
        ("workflow=run AND machine_id=m", 12),
        ("machine_id=other", 0),
    ] {
        let filter = execution::FILTER.parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let (mut found, mut before) = (Vec::new(), String::new());
        loop {
            let (f, from) = (filter.clone(), before.clone());
            let page = store.read(move |tx| execution::list(tx, &f, &from, 5)).await.expect("lists");
            let Some(last) = page.last() else { break };
            before = last.id.to_string();
            found.extend(page.into_iter().map(|e| e.id));
        }
        assert_eq!(found.len(), expected, "{text}");
        assert!(found.iter().rev().is_sorted(), "{text}");
        assert!(found.iter().all(|id| ids.contains(id)), "{text}");
    }
});

async fn count(store: &TestStore, rack: &str) -> Option<Timestamp> {
    let row = rack.to_owned();
    let id = ExecutionId::from_text("exe_1");
    store.put(rack, move |tx| execution::count_destructive(tx, &row, 3, &id, "flash")).await.expect("counts")
}

on_every_store!(destructive_acts_are_capped_for_a_rack_and_an_hour, |store| async move {
    let hour = Duration::from_secs(3600);
    let mut first = Timestamp::default();
    for i in 0..3 {
        let before = store.clock.now();
        assert_eq!(count(&store, "r1").await, None);
        if i == 0 {
            first = before;
        }
        store.clock.skip(Duration::from_secs(600));
    }
    let until = count(&store, "r1").await.expect("the cap is reached");
    assert!(
        until >= first.plus(hour) && until.since(first.plus(hour)) < Duration::from_secs(500),
        "until the oldest leaves the hour"
    );
    assert_eq!(count(&store, "r1").await, Some(until), "being refused counts nothing");
    assert_eq!(count(&store, "r2").await, None, "another rack has its own");
    store.clock.skip(until.since(store.clock.now()));
    assert_eq!(count(&store, "r1").await, None, "one has left the window");
    assert!(count(&store, "r1").await.is_some(), "and only one");
    store.clock.skip(2 * hour);
    for _ in 0..3 {
        assert_eq!(count(&store, "r1").await, None);
    }
    assert!(count(&store, "r1").await.is_some());
});
