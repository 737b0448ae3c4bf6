//! Closures that are committed together do not feel each other: not a refusal, not a panic, not a
//! defect, not a conflict.

use crate::fixture::{
    Blocker, TestStore, labels, machine_id, make_steps, on_every_store, on_threaded_stores, register, requested,
    requester, set_phase, started, succeeded,
};
use domain::machine::{Labels, MachineSpec, Phase};
use domain::run::RunChange;
use domain::{Error, Reason, RunId};
use futures::poll;
use std::future::Future;
use std::pin::Pin;
use store::{Ambient as _, Tx, TxResult, machine, run, step_log};

/// Ends the closure as a panic does, without the noise of the hook.
fn panic_quietly() {
    std::panic::resume_unwind(Box::new("on purpose"));
}

/// Breaks a foreign key: the database itself refuses, in the middle of the transaction.
fn break_a_constraint(tx: &mut Tx<'_>) -> TxResult<()> {
    let (id, change) = (RunId::from_text("run_x"), requested("nowhere", "r", &["a"]));
    run::insert(tx, &id, &change, &make_steps(&["a"]), &requester()).map(drop)
}

on_every_store!(whatever_goes_wrong_beside_it_the_good_one_goes_through, |store| async move {
    let one = |i: usize| {
        let store = &store;
        async move {
            let id = machine_id(&format!("m-{i}"));
            let work = move |tx: &mut Tx<'_>| {
                register(tx, &id, &MachineSpec::default(), &Labels::new())?;
                match i % 6 {
                    1 => return Err(Error::new(Reason::Frozen, "no").into()),
                    2 => panic_quietly(),
                    3 => break_a_constraint(tx)?,
                    4 => return set_phase(tx, &id, Phase::InService).map(drop),
                    _ => {}
                }
                Ok(())
            };
            // a few keys, so that they come to wait together
            store.put(&format!("key-{}", i % 4), work).await
        }
    };
    let answers = futures::future::join_all((0..240).map(one)).await;
    let mut expected = Vec::new();
    for (i, answer) in answers.into_iter().enumerate() {
        let reason = answer.map_err(|e| e.reason);
        match i % 6 {
            1 => assert_eq!(reason, Err(Reason::Frozen), "{i}"),
            2 | 3 => assert_eq!(reason, Err(Reason::Internal), "{i}"),
            4 => assert_eq!(reason, Err(Reason::IllegalTransition), "{i}"),
            _ => {
                assert_eq!(reason, Ok(()), "{i}");
                expected.push(format!("m-{i}"));
            }
        }
    }
    let mut logged: Vec<String> = store.log().await.into_iter().map(|row| row.entity_id).collect();
    let everything = domain::filter::Filter::Everything;
    let machines = store.read(move |tx| machine::list(tx, &everything, "", 1000)).await.expect("lists");
    let mut there: Vec<String> = machines.into_iter().map(|m| m.id.to_string()).collect();
    for list in [&mut expected, &mut logged, &mut there] {
        list.sort();
    }
    assert_eq!(there, expected, "what was acknowledged, and nothing else");
    assert_eq!(logged, expected, "and the log agrees");
});

type Waiting<'a, T> = Vec<Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>>;

/// Puts a closure into the queue, behind those already there.
async fn queue<'a, T: Send + 'static>(
    store: &'a TestStore,
    waiting: &mut Waiting<'a, T>,
    f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
) {
    let mut writing: Pin<Box<dyn Future<Output = _> + 'a>> = Box::pin(async move { store.put("key", f).await });
    assert!(poll!(writing.as_mut()).is_pending(), "the writer is busy");
    waiting.push(writing);
}

on_threaded_stores!(a_defect_in_the_database_does_not_reach_the_next_in_the_batch, |store| async move {
    let blocker = Blocker::on(&store, "key").await;
    let mut waiting = Vec::new();
    queue(&store, &mut waiting, break_a_constraint).await;
    // statements that this connection has never seen
    queue(&store, &mut waiting, |tx| store::switch::freeze(tx, "tester", "why")).await;
    queue(&store, &mut waiting, break_a_constraint).await;
    queue(&store, &mut waiting, |tx| register(tx, &machine_id("m"), &MachineSpec::default(), &Labels::new()).map(drop))
        .await;
    queue(&store, &mut waiting, break_a_constraint).await;
    blocker.release().await;
    let reasons: Vec<_> =
        futures::future::join_all(waiting).await.into_iter().map(|r| r.map_err(|e| e.reason)).collect();
    let defect = Err(Reason::Internal);
    assert_eq!(reasons, [defect, Ok(()), defect, Ok(()), defect]);
    assert!(store.read(store::switch::frozen).await.expect("reads").is_some());
    assert_eq!(store.log().await.len(), 1);
});

on_threaded_stores!(a_conflict_runs_the_others_again_and_each_counts_once, |store| async move {
    let stale = store.register("m-1").await;
    store.put("m-1", |tx| set_phase(tx, &machine_id("m-1"), Phase::Ready)).await.map(drop).expect("moves");
    let run = store.request("m-1", &["a"]).await;
    let blocker = Blocker::on(&store, "key").await;
    let mut waiting: Waiting<'_, ()> = Vec::new();
    for i in 0..20u8 {
        if i % 7 == 3 {
            let stale = stale.clone();
            let lose = move |tx: &mut Tx<'_>| {
                machine::update_spec(tx, &stale, &stale.spec, &labels(&[("lost", "swap")])).map(drop)
            };
            queue(&store, &mut waiting, lose).await;
        } else {
            let run = run.clone();
            queue(&store, &mut waiting, move |tx| step_log::append(tx, &run, "a", &[("stdout", vec![i])])).await;
        }
    }
    blocker.release().await;
    let answers = futures::future::join_all(waiting).await;
    for (i, answer) in answers.into_iter().enumerate() {
        let expected = if i % 7 == 3 { Err(Reason::Contention) } else { Ok(()) };
        assert_eq!(answer.map_err(|e| e.reason), expected, "{i}");
    }
    let chunks = store.read(move |tx| step_log::after(tx, &run, 0, 100)).await.expect("reads");
    let data: Vec<u8> = chunks.iter().flat_map(|c| c.data.clone()).collect();
    let expected: Vec<u8> = (0..20).filter(|i| i % 7 != 3).collect();
    assert_eq!(data, expected, "each once, in the order they came");
});

on_threaded_stores!(closures_of_one_key_run_in_the_order_they_came, |store| async move {
    store.register("m-1").await;
    let run = store.request("m-1", &["a"]).await;
    let blocker = Blocker::on(&store, "key").await;
    let mut waiting = Vec::new();
    for i in 0..100u8 {
        let run = run.clone();
        queue(&store, &mut waiting, move |tx| step_log::append(tx, &run, "a", &[("stdout", vec![i])])).await;
    }
    blocker.release().await;
    futures::future::try_join_all(waiting).await.expect("all write");
    let chunks = store.read(move |tx| step_log::after(tx, &run, 0, 200)).await.expect("reads");
    assert_eq!(chunks.iter().map(|c| c.data[0]).collect::<Vec<_>>(), (0..100).collect::<Vec<u8>>());
});

on_threaded_stores!(a_caller_that_goes_away_does_not_take_its_change_along, |store| async move {
    let blocker = Blocker::on(&store, "key").await;
    let mut waiting = Vec::new();
    queue(&store, &mut waiting, |tx| register(tx, &machine_id("m"), &MachineSpec::default(), &Labels::new())).await;
    drop(waiting);
    blocker.release().await;
    store.put("key", |_| Ok(())).await.expect("the next of that key comes after it");
    assert!(store.machine("m").await.is_some());
});

on_threaded_stores!(closing_finishes_what_waits_and_takes_no_more, |store| async move {
    let blocker = Blocker::on(&store, "key").await;
    let mut waiting = Vec::new();
    for i in 0..50 {
        let id = machine_id(&format!("m-{i}"));
        queue(&store, &mut waiting, move |tx| register(tx, &id, &MachineSpec::default(), &Labels::new())).await;
    }
    let closing = {
        let store = store.store.clone();
        tokio::task::spawn_blocking(move || store.close())
    };
    crate::fixture::until("the store to be closing", || async {
        let late = store.read(machine::count).await;
        late.is_err_and(|e| e.reason == Reason::ShuttingDown).then_some(())
    })
    .await;
    blocker.release().await;
    futures::future::try_join_all(waiting).await.expect("all that waited are done");
    closing.await.expect("closes");
    let late = store.put("other", |_| Ok(())).await;
    assert_eq!(late.map_err(|e| e.reason), Err(Reason::ShuttingDown));
});

on_every_store!(what_is_refused_signals_nothing, |store| async move {
    store.register("m-1").await;
    let run = store.request("m-1", &["a"]).await;
    let mut output = store.signals().output_of(&run);
    let mut grew = store.signals().log_grew();
    let mut cancels = store.signals().cancels();
    output.look();
    grew.look();
    let id = run.clone();
    let refused = store
        .put("m-1", move |tx| {
            step_log::append(tx, &id, "a", &[("stdout", b"x".to_vec())])?;
            let mut run = run::get(tx, &id)?.expect("is there");
            run::change(tx, &mut run, &[RunChange::Started, started("a")], "tester")?;
            let cancel = store::execution::CancelRequest { by: "me".into(), reason: String::new() };
            store::execution::request_cancel(tx, &domain::ExecutionId::from_text("exe_1"), &cancel)?;
            Err::<(), _>(Error::new(Reason::Frozen, "no").into())
        })
        .await;
    assert_eq!(refused.map_err(|e| e.reason), Err(Reason::Frozen));
    assert!(!output.has_grown() && !grew.has_grown());
    assert!(cancels.try_recv().is_err());
    let id = run.clone();
    store.put("m-1", move |tx| step_log::append(tx, &id, "a", &[("stdout", b"x".to_vec())])).await.expect("writes");
    assert!(output.has_grown() && !grew.has_grown(), "output is not in the log");
    output.look();
    store.change(&run, vec![RunChange::Started, started("a"), succeeded("a")]).await.expect("changes");
    assert!(!output.has_grown() && grew.has_grown());
    store
        .change(&run, vec![RunChange::Finished { phase: domain::run::RunPhase::Succeeded, error: None }])
        .await
        .expect("changes");
    assert!(output.has_grown(), "followers of the output learn of the end");
});

on_every_store!(an_operation_without_end_is_stopped_by_its_budget, |store| async move {
    let endless = store
        .put("key", |tx| {
            register(tx, &machine_id("m"), &MachineSpec::default(), &Labels::new())?;
            loop {
                machine::count(tx)?;
            }
        })
        .await;
    assert_eq!(endless.map_err(|e: Error| e.reason).map(|(): ()| ()), Err(Reason::Internal));
    assert_eq!(store.machine("m").await, None);
    let reading = store
        .read(|tx| {
            loop {
                machine::count(tx)?;
            }
        })
        .await;
    assert_eq!(reading.map_err(|e: Error| e.reason).map(|(): ()| ()), Err(Reason::Internal));
    store.register("m").await;
});

on_every_store!(a_read_that_panics_harms_nobody, |store| async move {
    for _ in 0..5 {
        let panicked = store
            .snapshot(|tx| {
                machine::count(tx)?;
                panic_quietly();
                Ok(())
            })
            .await;
        assert_eq!(panicked.map_err(|e| e.reason), Err(Reason::Internal));
        let panicked = store
            .read(|tx| {
                machine::count(tx)?;
                panic_quietly();
                Ok(())
            })
            .await;
        assert_eq!(panicked.map_err(|e| e.reason), Err(Reason::Internal));
    }
    store.register("m").await;
    assert_eq!(store.read(machine::count).await, Ok(1));
});

on_every_store!(a_read_cannot_write, |store| async move {
    let write = |tx: &mut Tx<'_>| register(tx, &machine_id("m"), &MachineSpec::default(), &Labels::new()).map(drop);
    store.read(write).await.expect_err("a row without its log row");
    store.snapshot(write).await.expect_err("is refused");
    assert_eq!((store.machine("m").await, store.head().await), (None, 0));
    store.put("m", write).await.expect("a write can");
});

on_every_store!(a_snapshot_is_of_one_moment, |store| async move {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let writing = async {
        for i in 0..150 {
            store.register(&format!("m-{i:03}")).await;
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let reading = async {
        while !stop.load(std::sync::atomic::Ordering::SeqCst) {
            let (count, head) =
                store.snapshot(|tx| Ok((machine::count(tx)?, store::log_range(tx)?.head))).await.expect("reads");
            assert_eq!(count, head, "one machine, one row");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(writing, reading);
    assert!(store.clock.now() > domain::Timestamp::default());
});
