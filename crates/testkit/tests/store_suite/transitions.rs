//! The one primitive: what it lets through, what it refuses, and what it writes down.

use crate::fixture::{TestStore, machine_id, no_guard, on_every_store, phase_setter, registrar, set_phase, to_phase};
use domain::Reason;
use domain::lifecycle::{Guard, Verdict, allowed_next, judge};
use domain::machine::{INSPECTED, Machine, Phase, RUN_STARTED, SET_PHASE};
use domain::run::{REQUESTED, RunPhase};
use domain::{Error, lifecycle::State as _};
use store::{Ambient as _, Cause, Moved, machine};

on_every_store!(a_legal_move_leaves_one_row_that_says_everything, |store| async move {
    let before = store.register("m-1").await;
    store.clock.skip(std::time::Duration::from_secs(60));
    let moved = store.put("m-1", |tx| set_phase(tx, &machine_id("m-1"), Phase::Ready)).await;
    assert_eq!(moved, Ok(Moved::Moved));
    let after = store.machine("m-1").await.expect("is there");
    assert_eq!((after.phase, after.version), (Phase::Ready, 2));
    assert!(after.phase_set_at > before.phase_set_at && after.updated_at == after.phase_set_at);
    let log = store.log().await;
    assert_eq!(log.len(), 2);
    let row = &log[0];
    assert_eq!((row.sequence, row.version, row.at), (1, 1, before.created_at));
    assert_eq!((row.entity_kind.as_str(), row.entity_id.as_str(), row.subject.as_str()), ("machine", "m-1", "m-1"));
    assert_eq!((row.from_state.as_str(), row.to_state.as_str()), ("", "FACTORY_READY"));
    assert_eq!((row.trigger.as_str(), row.owner.as_str()), ("registered", "operator"));
    let row = &log[1];
    assert_eq!((row.sequence, row.version, row.at), (2, 2, after.phase_set_at));
    assert_eq!((row.entity_kind.as_str(), row.entity_id.as_str(), row.subject.as_str()), ("machine", "m-1", "m-1"));
    assert_eq!((row.from_state.as_str(), row.to_state.as_str()), ("FACTORY_READY", "READY"));
    assert_eq!((row.trigger.as_str(), row.owner.as_str()), ("set_phase", "operator"));
    assert_eq!((row.actor.as_str(), row.comment.as_str(), row.metadata.as_str()), ("tester", "because", "{}"));
});

/// Tries to move the machine and checks that nothing at all came of it.
async fn refused(store: &TestStore, to: Phase, cause: Cause) -> Error {
    let (before, head) = (store.machine("m-1").await.expect("is there"), store.head().await);
    let m = before.clone();
    let refused = store.put("m-1", move |tx| machine::set_phase(tx, &m, &to_phase(&m, to), &cause, no_guard)).await;
    assert_eq!((store.machine("m-1").await, store.head().await), (Some(before), head));
    refused.expect_err("is refused")
}

on_every_store!(an_illegal_move_names_the_legal_ones, |store| async move {
    store.register("m-1").await;
    let e = refused(&store, Phase::InService, phase_setter()).await;
    assert_eq!(e.reason, Reason::IllegalTransition);
    assert_eq!(e.allowed, ["READY", "RMA", "RETIRED"]);
    for part in ["m-1", "FACTORY_READY", "IN_SERVICE"] {
        assert!(e.message.contains(part), "{}", e.message);
    }
    // an edge that exists, by a trigger that is not its own
    let e = refused(&store, Phase::Ready, Cause::operator("tester", REQUESTED, "")).await;
    assert_eq!(e.reason, Reason::IllegalTransition);
});

on_every_store!(anothers_edge_is_refused, |store| async move {
    store.register("m-1").await;
    let e = refused(&store, Phase::Provisioning, Cause::operator("tester", RUN_STARTED, "")).await;
    assert_eq!(e.reason, Reason::NotYourTransition);
    assert!(e.message.contains("executor"), "{}", e.message);
    let e = refused(&store, Phase::Ready, Cause::executor("engine", SET_PHASE, "")).await;
    assert_eq!(e.reason, Reason::NotYourTransition);
    let e = refused(&store, Phase::Ready, Cause::executor("engine", INSPECTED, "")).await;
    assert_eq!(e.reason, Reason::NotYourTransition);
});

on_every_store!(a_move_to_where_it_is_moves_nothing, |store| async move {
    let before = store.register("m-1").await;
    let m = before.clone();
    let moved = store
        .put("m-1", move |tx| machine::set_phase(tx, &m, &to_phase(&m, Phase::FactoryReady), &phase_setter(), no_guard))
        .await;
    assert_eq!(moved, Ok(Moved::AlreadyThere));
    assert_eq!((store.machine("m-1").await, store.head().await), (Some(before), 1));
});

on_every_store!(the_guard_is_asked_and_can_say_no, |store| async move {
    let before = store.register("m-1").await;
    let m = before.clone();
    let refused = store
        .put("m-1", move |tx| {
            let guard = |guard| {
                assert_eq!(guard, Guard::NoActiveRun);
                Err(Error::new(Reason::ActiveRun, "a run is active"))
            };
            machine::set_phase(tx, &m, &to_phase(&m, Phase::Ready), &phase_setter(), guard)
        })
        .await;
    assert_eq!(refused.map_err(|e| e.reason), Err(Reason::ActiveRun));
    assert_eq!((store.machine("m-1").await, store.head().await), (Some(before), 1));
});

on_every_store!(a_lost_swap_takes_the_whole_work_with_it, |store| async move {
    let stale = store.register("m-1").await;
    store.put("m-1", |tx| set_phase(tx, &machine_id("m-1"), Phase::Ready)).await.map(drop).expect("moves");
    let lost = store
        .put("m-1", move |tx| {
            machine::insert(tx, &machine_id("m-2"), &stale.spec, &stale.labels, &registrar())?;
            machine::set_phase(tx, &stale, &to_phase(&stale, Phase::Rma), &phase_setter(), no_guard)
        })
        .await;
    assert_eq!(lost.map_err(|e| e.reason), Err(Reason::Contention));
    assert_eq!(store.machine("m-2").await, None, "what came before the lost swap is undone");
    assert_eq!(store.head().await, 2);
});

// every pair of phases, by both doors: a row appears if and only if it moved
on_every_store!(the_store_does_what_the_judge_says, |store| async move {
    let mut number = 0;
    for from in Phase::ALL.iter().copied() {
        for to in Phase::ALL.iter().copied() {
            for cause in [phase_setter(), Cause::executor("engine", RUN_STARTED, "")] {
                number += 1;
                check_pair(&store, &format!("m-{number}"), from, to, cause).await;
            }
        }
    }
});

async fn check_pair(store: &TestStore, id: &str, from: Phase, to: Phase, cause: Cause) {
    let machine = machine_in(store, id, from).await;
    let head = store.head().await;
    let verdict = judge(Some(from), to, cause.trigger, cause.owner());
    let (m, c) = (machine.clone(), cause.clone());
    let answer = store.put(id, move |tx| machine::set_phase(tx, &m, &to_phase(&m, to), &c, no_guard)).await;
    let what = format!("{from} to {to} by {cause:?}: {answer:?}");
    match verdict {
        Verdict::Allowed(_) => assert_eq!(answer, Ok(Moved::Moved), "{what}"),
        Verdict::NotYours(_) => assert_eq!(answer.map_err(|e| e.reason), Err(Reason::NotYourTransition), "{what}"),
        Verdict::Illegal if from == to => assert_eq!(answer, Ok(Moved::AlreadyThere), "{what}"),
        Verdict::Illegal => {
            let e = answer.expect_err(&what);
            assert_eq!(e.reason, Reason::IllegalTransition, "{what}");
            let allowed: Vec<&str> = allowed_next(Some(from), cause.owner()).into_iter().map(Phase::as_str).collect();
            assert_eq!(e.allowed, allowed, "{what}");
        }
    }
    let moved = matches!(verdict, Verdict::Allowed(_));
    assert_eq!(store.head().await, head + u64::from(moved), "{what}");
    let now = store.machine(id).await.expect("is there");
    assert_eq!(now.phase, if moved { to } else { from }, "{what}");
    assert_eq!(now.version, machine.version + u64::from(moved), "{what}");
}

/// A new machine, brought into a phase by legal moves.
async fn machine_in(store: &TestStore, id: &str, phase: Phase) -> Machine {
    let path: &[(Phase, bool)] = match phase {
        Phase::FactoryReady => &[],
        Phase::Ready => &[(Phase::Ready, true)],
        Phase::Provisioning => &[(Phase::Provisioning, false)],
        Phase::InService => &[(Phase::Ready, true), (Phase::Maintenance, true), (Phase::InService, true)],
        Phase::Maintenance => &[(Phase::Ready, true), (Phase::Maintenance, true)],
        Phase::Rma => &[(Phase::Rma, true)],
        Phase::Retired => &[(Phase::Retired, true)],
    };
    store.register(id).await;
    for (to, by_operator) in path.iter().copied() {
        let cause = if by_operator { phase_setter() } else { Cause::executor("engine", RUN_STARTED, "") };
        let id = machine_id(id);
        store
            .put(&id.to_string(), move |tx| {
                let m = machine::get_for_update(tx, &id)?.expect("is there");
                machine::set_phase(tx, &m, &to_phase(&m, to), &cause, no_guard)
            })
            .await
            .map(drop)
            .expect("a legal move");
    }
    store.machine(id).await.expect("is there")
}

on_every_store!(the_time_of_a_row_is_the_time_of_its_transaction, |store| async move {
    let earliest = store.clock.now();
    store.register("m-1").await;
    let run = store.request("m-1", &["a"]).await;
    let latest = store.clock.now();
    let log = store.log().await;
    assert!(log.iter().all(|row| earliest <= row.at && row.at <= latest));
    assert_eq!((log[1].entity_kind.as_str(), log[1].entity_id.as_str()), (RunPhase::ENTITY, run.as_str()));
    assert_eq!(log[1].at, store.run(&run).await.created_at);
});
