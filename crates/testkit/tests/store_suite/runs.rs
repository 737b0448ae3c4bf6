//! Runs: the row is the fold of the log, one active run to a machine, and lists.

use crate::fixture::{TestStore, machine_id, make_steps, on_every_store, requested, requester, started, succeeded};
use domain::plan::{BootMode, Plan, RebootMode, RmaAction, Step, StepKind};
use domain::run::{Run, RunChange, RunError, RunPhase, RunType};
use domain::step::StepState;
use domain::{Error, Reason, RunId};
use std::collections::BTreeMap;
use store::{Ambient as _, run};

fn finished(phase: RunPhase) -> RunChange {
    let error = (phase != RunPhase::Succeeded).then(|| RunError {
        code: "STEP_TIMED_OUT".into(),
        class: "transient".into(),
        message: "it said \"no\"\n".into(),
        retryable: true,
    });
    RunChange::Finished { phase, error }
}

fn retrying(step: &str, retry_count: u32) -> RunChange {
    RunChange::StepRetrying { step: step.to_owned(), retry_count, message: format!("attempt {retry_count}: ü") }
}

fn failed(step: &str) -> RunChange {
    RunChange::StepFailed { step: step.to_owned(), message: "broken".into() }
}

async fn check_fold(store: &TestStore, id: &RunId) {
    let run = id.clone();
    let verdict = store.read(move |tx| run::check_fold(tx, &run)).await.expect("reads");
    assert_eq!(verdict, Ok(()), "{id}");
}

/// Whole lives of runs, cut into transactions.
fn lives() -> Vec<Vec<Vec<RunChange>>> {
    let go = || RunChange::Started;
    vec![
        vec![],
        vec![vec![finished(RunPhase::Canceled)]],
        vec![vec![go()]],
        vec![
            vec![go(), started("a")],
            vec![succeeded("a"), started("b")],
            vec![succeeded("b"), finished(RunPhase::Succeeded)],
        ],
        vec![
            vec![go()],
            vec![started("a")],
            vec![retrying("a", 1)],
            vec![retrying("a", 2), failed("a"), finished(RunPhase::Failed)],
        ],
        vec![vec![go(), started("a"), succeeded("a"), started("b"), failed("b"), finished(RunPhase::Canceled)]],
        vec![vec![go(), finished(RunPhase::Canceled)]],
    ]
}

on_every_store!(the_row_is_what_the_log_folds_to, |store| async move {
    for (n, life) in lives().into_iter().enumerate() {
        let machine = format!("m-{n}");
        store.register(&machine).await;
        let id = store.request(&machine, &["a", "b"]).await;
        check_fold(&store, &id).await;
        let mut version = 1;
        for changes in life {
            store.clock.skip(std::time::Duration::from_millis(1500));
            version += changes.len() as u64;
            let (head, count) = (store.head().await, changes.len() as u64);
            let written = store.change(&id, changes).await.expect("a legal change");
            assert_eq!((written.version, store.head().await), (version, head + count), "one row for each change");
            assert_eq!(store.run(&id).await, written);
            check_fold(&store, &id).await;
        }
    }
});

on_every_store!(every_moment_of_a_run_can_be_shown_again, |store| async move {
    store.register("m").await;
    let id = store.request("m", &["a", "b"]).await;
    let mut moments = vec![(store.head().await, store.run(&id).await)];
    for changes in lives().remove(4) {
        store.change(&id, changes).await.expect("changes");
        store.register(&format!("noise-{}", moments.len())).await;
        moments.push((store.head().await, store.run(&id).await));
    }
    for (head, expected) in moments {
        let run = id.clone();
        let folded = store.read(move |tx| run::fold(tx, &run, head)).await.expect("folds");
        assert_eq!(folded, Some(expected));
    }
    let run = id.clone();
    assert_eq!(store.read(move |tx| run::fold(tx, &run, 1)).await, Ok(None), "before its first row");
});

on_every_store!(a_run_row_says_what_happened, |store| async move {
    store.register("m").await;
    let id = store.request("m", &["a"]).await;
    store.change(&id, vec![RunChange::Started, started("a"), retrying("a", 1), succeeded("a")]).await.expect("changes");
    let rows = store.log_after(1).await;
    let step = format!("{id}/a");
    let shown: Vec<_> = rows
        .iter()
        .map(|r| {
            (
                r.entity_kind.as_str(),
                r.entity_id.as_str(),
                r.from_state.as_str(),
                r.to_state.as_str(),
                r.trigger.as_str(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("run", id.as_str(), "", "PENDING", "requested"),
            ("run", id.as_str(), "PENDING", "RUNNING", "started"),
            ("step", step.as_str(), "WAITING", "RUNNING", "step_started"),
            ("step", step.as_str(), "RUNNING", "RUNNING", "step_retrying"),
            ("step", step.as_str(), "RUNNING", "SUCCEEDED", "step_ended"),
        ]
    );
    assert!(rows.iter().all(|r| r.subject == id.as_str() && r.actor == "tester"));
    assert_eq!(
        rows.iter().map(|r| r.owner.as_str()).collect::<Vec<_>>(),
        ["operator", "executor", "executor", "executor", "executor"]
    );
    assert_eq!(rows.iter().map(|r| r.version).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
});

on_every_store!(an_illegal_change_undoes_all_of_its_transaction, |store| async move {
    store.register("m").await;
    let id = store.request("m", &["a", "b"]).await;
    let (before, head) = (store.run(&id).await, store.head().await);
    for (changes, reason) in [
        (vec![RunChange::Started, succeeded("a")], Reason::IllegalTransition),
        (vec![RunChange::Started, RunChange::Started], Reason::Internal),
        (vec![finished(RunPhase::Succeeded)], Reason::IllegalTransition),
        (vec![RunChange::Started, started("a"), started("a")], Reason::Internal),
        (vec![RunChange::Started, started("c")], Reason::Internal),
        (vec![requested("m", "again", &[])], Reason::Internal),
    ] {
        let refused = store.change(&id, changes.clone()).await.expect_err("is refused");
        assert_eq!(refused.reason, reason, "{changes:?}: {refused}");
        assert_eq!((store.run(&id).await, store.head().await), (before.clone(), head), "{changes:?}");
    }
    store.change(&id, vec![finished(RunPhase::Canceled)]).await.expect("ends");
    let refused = store.change(&id, vec![RunChange::Started]).await.expect_err("has ended");
    assert_eq!(refused.reason, Reason::IllegalTransition);
    check_fold(&store, &id).await;
});

on_every_store!(a_run_changed_from_a_stale_reading_is_refused, |store| async move {
    store.register("m").await;
    let id = store.request("m", &["a"]).await;
    let stale = store.run(&id).await;
    store.change(&id, vec![RunChange::Started]).await.expect("changes");
    let head = store.head().await;
    let lost = store
        .put("m", move |tx| {
            let mut run = stale.clone();
            run::change(tx, &mut run, &[finished(RunPhase::Canceled)], "tester")
        })
        .await;
    assert_eq!(lost.map_err(|e| e.reason), Err(Reason::Contention));
    assert_eq!(store.head().await, head);
    check_fold(&store, &id).await;
});

async fn insert(store: &TestStore, machine: &str) -> Result<RunId, Error> {
    let id = RunId::generate(store.clock.uuid());
    let (row, change) = (id.clone(), requested(machine, id.as_str(), &["a"]));
    store.put(machine, move |tx| run::insert(tx, &row, &change, &make_steps(&["a"]), &requester())).await?;
    Ok(id)
}

on_every_store!(the_database_allows_one_active_run_to_a_machine, |store| async move {
    store.register("m").await;
    store.register("other").await;
    let first = insert(&store, "m").await.expect("the first");
    for changes in [vec![RunChange::Started], vec![finished(RunPhase::Failed)]] {
        let head = store.head().await;
        // nobody looked first: the index is the last line of defence
        insert(&store, "m").await.expect_err("a second");
        assert_eq!(store.head().await, head);
        store.change(&first, changes).await.expect("changes");
    }
    insert(&store, "other").await.expect("another machine");
    insert(&store, "m").await.expect("the first has ended");
    let active = store.read(|tx| run::list_active(tx, "", "", 10)).await.expect("lists");
    assert_eq!(active.len(), 2);
});

fn field_of(run: &Run, name: &str) -> Option<String> {
    Some(match name {
        "run_id" => run.id.to_string(),
        "machine_id" => run.machine_id.to_string(),
        "request_id" => run.request_id.clone(),
        "type" => run.type_text().to_owned(),
        "plan_id" => run.plan_id.clone(),
        "phase" => run.phase.to_string(),
        _ => return None,
    })
}

/// Twenty runs on five machines, in every phase, of several types.
async fn some_runs(store: &TestStore) -> Vec<RunId> {
    for n in 0..5 {
        store.register(&format!("m-{n}")).await;
    }
    let mut ids = Vec::new();
    for n in 0..20 {
        let (id, machine) = (RunId::generate(store.clock.uuid()), format!("m-{}", n % 5));
        let change = RunChange::Requested {
            machine_id: machine_id(&machine),
            customer_id: String::new(),
            request_id: format!("req-{n}"),
            run_type: RunType::ALL.get(n % 6).copied(),
            plan_id: if n % 2 == 0 { "even".into() } else { "odd".into() },
            steps: vec!["a".into()],
            parameters: BTreeMap::new(),
        };
        let row = id.clone();
        store
            .put(&machine, move |tx| run::insert(tx, &row, &change, &make_steps(&["a"]), &requester()))
            .await
            .expect("inserts");
        if n < 15 {
            let phase = [RunPhase::Succeeded, RunPhase::Failed, RunPhase::Canceled][n % 3];
            store.change(&id, vec![RunChange::Started, finished(phase)]).await.expect("ends");
        } else if n % 2 == 0 {
            store.change(&id, vec![RunChange::Started]).await.expect("starts");
        }
        ids.push(id);
    }
    ids
}

on_every_store!(lists_of_runs_are_newest_first_and_filtered, |store| async move {
    let mut newest_first = some_runs(&store).await;
    newest_first.reverse();
    let all = store.read(|tx| run::list(tx, &domain::filter::Filter::Everything, "", 100)).await.expect("lists");
    assert_eq!(all.iter().map(|r| r.id.clone()).collect::<Vec<_>>(), newest_first);
    for text in [
        "machine_id=m-3",
        "phase=RUNNING OR phase=PENDING",
        "phase!=SUCCEEDED",
        "type=REPAVE",
        "type=\"\"",
        "NOT type=\"\" AND plan_id=even",
        "request_id=req-7",
        &format!("run_id={}", newest_first[4]),
    ] {
        let filter = run::FILTER.parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let expected: Vec<&Run> = all.iter().filter(|r| filter.matches(&|name| field_of(r, name))).collect();
        assert!(!expected.is_empty() && expected.len() < all.len(), "{text}");
        let found = store.read(move |tx| run::list(tx, &filter, "", 100)).await.expect("lists");
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{text}");
    }
    let (mut paged, mut before) = (Vec::new(), String::new());
    loop {
        let from = before.clone();
        let page =
            store.read(move |tx| run::list(tx, &domain::filter::Filter::Everything, &from, 3)).await.expect("lists");
        let Some(last) = page.last() else { break };
        before = last.id.to_string();
        paged.extend(page);
    }
    assert_eq!(paged, all, "page by page it is the same");
    let active = store.read(|tx| run::list_active(tx, "", "", 100)).await.expect("lists");
    let mut expected: Vec<Run> = all.iter().filter(|r| !r.phase.is_terminal()).cloned().collect();
    expected.reverse();
    assert_eq!(active, expected, "oldest first");
    let after = active[1].id.to_string();
    let rest = store.read(move |tx| run::list_active(tx, "", &after, 2)).await.expect("lists");
    assert_eq!(rest, active[2..4]);
});

/// One step of every kind, with every option.
pub fn every_kind_of_step() -> Vec<Step> {
    let text = |s: &str| s.to_owned();
    let map = |k: &str, v: &str| BTreeMap::from([(text(k), text(v))]);
    let mut kinds = vec![
        StepKind::Ssh {
            command: text("sh"),
            args: vec![text("-c"), text("echo \"$1\" 'ü'")],
            environment: map("A", "b"),
        },
        StepKind::Repave { image: text("ubuntu"), user_data_ref: text("ref") },
        StepKind::Join { cluster_ref: text("c") },
        StepKind::Verify { cluster_ref: text("") },
        StepKind::Net { parameters: map("vlan", "7") },
    ];
    kinds.extend(RebootMode::ALL.iter().map(|mode| StepKind::Reboot { mode: *mode }));
    kinds
        .extend(BootMode::ALL.iter().map(|mode| StepKind::Netboot { mode: *mode, persistent: *mode == BootMode::Pxe }));
    kinds.extend(RmaAction::ALL.iter().map(|action| StepKind::Rma { action: *action, reason: text("why") }));
    let step = |(i, kind): (i32, StepKind)| Step {
        name: format!("step-{i}"),
        timeout_seconds: (i % 2 == 0).then_some(i),
        max_retries: (i % 3 == 0).then_some(i),
        kind,
    };
    (0..).zip(kinds).map(step).collect()
}

on_every_store!(steps_survive_the_way_through_a_row, |store| async move {
    store.register("m").await;
    let (id, steps) = (RunId::generate(store.clock.uuid()), every_kind_of_step());
    let names: Vec<&str> = steps.iter().map(|s| s.name.as_str()).collect();
    let (row, change, resolved) = (id.clone(), requested("m", "r", &names), steps.clone());
    store.put("m", move |tx| run::insert(tx, &row, &change, &resolved, &requester())).await.expect("inserts");
    let row = id.clone();
    let (run, read) = store.read(move |tx| run::get_with_steps(tx, &row)).await.expect("reads").expect("is there");
    assert_eq!(read, steps);
    assert!(run.steps.iter().all(|s| s.state == StepState::Waiting) && run.steps.len() == steps.len());
    let missing = RunId::from_text("run_none");
    assert_eq!(store.read(move |tx| run::get(tx, &missing)).await, Ok(None));
});

on_every_store!(plans_survive_the_way_through_a_row, |store| async move {
    let plan = |id: &str| Plan { id: id.to_owned(), display_name: "Ä \"plan\"".into(), steps: every_kind_of_step() };
    for id in ["b", "a", "B"] {
        let plan = plan(id);
        store.put("plans", move |tx| store::plan::insert(tx, &plan, "api", "tester")).await.expect("inserts");
    }
    assert_eq!(store.read(|tx| store::plan::get(tx, "a")).await, Ok(Some(plan("a"))));
    assert_eq!(store.read(|tx| store::plan::get(tx, "c")).await, Ok(None));
    assert_eq!(store.read(store::plan::list).await, Ok(vec![plan("B"), plan("a"), plan("b")]));
    let other = Plan { display_name: "other".into(), ..plan("a") };
    store.put("plans", move |tx| store::plan::insert(tx, &other, "api", "tester")).await.expect_err("is there already");
    assert_eq!(store.read(|tx| store::plan::get(tx, "a")).await, Ok(Some(plan("a"))), "a plan never changes");
});
