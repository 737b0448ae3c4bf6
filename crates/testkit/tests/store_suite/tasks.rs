//! Tasks and what they print: the same operation is queued once, one is live on a node, fences rise, a lease is renewed
//! only under its own fence, the same bytes are stored once.

use crate::fixture::{TestStore, on_every_store};
use crate::{jobs, nodes};
use domain::job_stage::JobKind;
use domain::stage::FailureClass;
use domain::task::{LEASE, OUTPUT_MAX, QUEUED, REQUEUED, RESULT, Task, TaskKind, TaskResult, TaskStatus, WITHDRAWN};
use domain::{JobId, NodeId, Reason, TaskId};
use std::time::Duration;
use store::{Ambient as _, Cause, task, task_output};

async fn queue(store: &TestStore, node: &NodeId, job: Option<JobId>, operation: &str) -> Result<Task, domain::Error> {
    let (id, node, operation) = (TaskId::generate(store.clock.uuid()), node.clone(), operation.to_owned());
    let take_by = store.clock.now().plus(Duration::from_secs(3600));
    store
        .put(node.clone().as_str(), move |tx| {
            let new = task::NewTask {
                id: &id,
                node_id: &node,
                job: job.as_ref().map(|job| (job, "drain_node")),
                operation: &operation,
                kind: TaskKind::NodeDrain,
                order: &[1, 2, 3],
                take_by,
            };
            task::queue(tx, &new, &Cause::executor("x", QUEUED, ""))
        })
        .await
}

async fn moved(store: &TestStore, before: &Task, after: Task, cause: Cause) -> Result<Task, domain::Error> {
    let before = before.clone();
    store.put(before.node_id.clone().as_str(), move |tx| task::move_to(tx, &before, &after, &cause)).await
}

async fn dispatch(store: &TestStore, there: &Task) -> Task {
    let there = there.clone();
    store.put(there.node_id.clone().as_str(), move |tx| task::dispatch(tx, &there, "agent")).await.expect("hands out")
}

fn result() -> TaskResult {
    TaskResult {
        ok: true,
        code: String::new(),
        class: FailureClass::Transient,
        message: "done".to_owned(),
        detail: "{\"a\":1}".to_owned(),
        signature: vec![0, 255, 7],
        started_at: None,
        finished_at: Some(domain::Timestamp::from_micros(5)),
    }
}

on_every_store!(an_operation_is_queued_once_and_one_is_live_on_a_node, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let first = queue(&store, &node, None, "one").await.expect("queues");
    let again = queue(&store, &node, None, "one").await.expect("is there");
    assert_eq!(again, first);
    assert!(queue(&store, &node, None, "two").await.is_err(), "one at a time");
    let after = Task { status: TaskStatus::Expired, expired_because: "why".to_owned(), ..first.clone() };
    let expired = moved(&store, &first, after, Cause::operator("alice", WITHDRAWN, "")).await.expect("moves");
    assert_eq!((expired.status, expired.expired_because.as_str()), (TaskStatus::Expired, "why"));
    let second = queue(&store, &node, None, "two").await.expect("now there is room");
    let (of, id) = (node.clone(), second.id.clone());
    let (live, by_id) = store
        .read(move |tx| Ok((tx.point(&task::live_of_node(&of))?, tx.point(&task::by_id(&id))?)))
        .await
        .expect("reads");
    assert_eq!((live, by_id), (Some(second.clone()), Some(second)));
});

on_every_store!(handed_out_again_it_has_a_higher_fence, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let queued = queue(&store, &node, None, "one").await.expect("queues");
    let held = dispatch(&store, &queued).await;
    assert_eq!((held.status, held.fence.counter), (TaskStatus::Dispatched, 1));
    assert_eq!(held.lease_until, held.dispatched_at.map(|at| at.plus(LEASE)));
    assert!(held.lease_until.is_some());
    let after = Task { status: TaskStatus::Expired, lease_until: None, ..held.clone() };
    let expired = moved(&store, &held, after, Cause::executor("x", WITHDRAWN, "")).await.expect("moves");
    let after = Task { status: TaskStatus::Queued, requeues: 1, dispatched_at: None, ..expired.clone() };
    let again = moved(&store, &expired, after, Cause::executor("x", REQUEUED, "")).await.expect("moves");
    let twice = dispatch(&store, &again).await;
    assert_eq!(twice.id, held.id);
    assert!(twice.fence > held.fence && twice.requeues == 1);
    for (fence, renewed) in [(held.fence, false), (twice.fence, true)] {
        let id = twice.id.clone();
        let was = store.put(node.as_str(), move |tx| task::renew(tx, &id, fence)).await.expect("answers");
        assert_eq!(was, renewed, "under {fence}");
    }
    let after = Task { status: TaskStatus::Done, lease_until: None, result: Some(result()), ..twice.clone() };
    let done = moved(&store, &twice, after.clone(), Cause::node("agent", RESULT, "")).await.expect("moves");
    assert_eq!(done.result, Some(result()), "with every byte of its signature");
    let once_more =
        moved(&store, &done, Task { status: TaskStatus::Queued, ..after }, Cause::executor("x", REQUEUED, ""));
    assert_eq!(once_more.await.expect_err("a result is the end").reason, Reason::IllegalTransition);
});

on_every_store!(what_is_overdue_is_found_and_a_move_wakes_the_job, |store| async {
    let mut wanted = Vec::new();
    for (name, handed_out) in [("alpha", false), ("beta", true), ("gamma", true)] {
        let node = nodes::insert(&store, name).await.id;
        let job = jobs::insert(&store, &node, JobKind::Drain).await.expect("a job");
        let queued = queue(&store, &node, Some(job.id.clone()), name).await.expect("queues");
        let task = if handed_out { dispatch(&store, &queued).await } else { queued };
        let of = job.id.clone();
        let last = store.read(move |tx| tx.point(&task::last_of_job(&of))).await.expect("reads");
        assert_eq!(last.as_ref().map(|t| &t.id), Some(&task.id));
        if name != "gamma" {
            wanted.push(task.id.clone());
        } else {
            let after = Task { status: TaskStatus::Done, lease_until: None, result: Some(result()), ..task.clone() };
            moved(&store, &task, after, Cause::node("agent", RESULT, "")).await.expect("moves");
        }
    }
    assert_eq!(store.read(|tx| task::overdue(tx, "", 10)).await.expect("reads"), []);
    store.clock.skip(Duration::from_secs(3600));
    wanted.sort();
    let found = store.read(|tx| task::overdue(tx, "", 10)).await.expect("reads");
    assert_eq!(found.iter().map(|t| t.id.clone()).collect::<Vec<_>>(), wanted);
});

on_every_store!(what_a_task_prints_is_stored_once_and_bounded, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let id = queue(&store, &node, None, "one").await.expect("queues").id;
    let says = |start: u64, data: &'static [u8]| {
        let id = id.clone();
        store.put("output", move |tx| task_output::append(tx, &id, start, "stdout", data))
    };
    assert_eq!(says(0, b"hello ").await.expect("stores"), 6);
    assert_eq!(says(0, b"hello ").await.expect("knows it"), 6);
    assert_eq!(says(3, b"lo world").await.expect("stores what is new"), 11);
    let of = id.clone();
    let kept = store.read(move |tx| task_output::list(tx, &of, 0, 100)).await.expect("reads");
    let text: Vec<u8> = kept.iter().flat_map(|piece| piece.data.clone()).collect();
    assert_eq!(text, b"hello world");
    let flood = vec![b'x'; OUTPUT_MAX];
    let of = id.clone();
    let end = store
        .put("output", move |tx| task_output::append(tx, &of, 11, "stdout", &flood))
        .await
        .expect("takes what there is room for");
    assert_eq!(end, 11 + OUTPUT_MAX as u64, "all of it is counted");
    let of = id.clone();
    let kept = store.read(move |tx| task_output::list(tx, &of, 0, 100)).await.expect("reads");
    assert_eq!(kept.iter().map(|piece| piece.data.len()).sum::<usize>(), OUTPUT_MAX, "and no more is kept");
});
