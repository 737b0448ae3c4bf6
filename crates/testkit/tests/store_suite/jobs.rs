//! Jobs: kept whole, one open at a time on a node, found when their execution has ended without them.

use crate::fixture::{TestStore, insert_execution, on_every_store};
use crate::nodes;
use domain::job::{
    ADOPTED, Afterwards, CANCELLED, FAILED, Job, JobFailure, JobStatus, Purpose, REQUESTED, RESUMED, STARTED, StageDone,
};
use domain::job_stage::{JobKind, JobStage, Mode};
use domain::stage::FailureClass;
use domain::{ExecutionId, JobId, NodeId, Reason};
use store::execution::{self, Entry, Status};
use store::{Ambient as _, Cause, job};

pub fn new_job(store: &TestStore, node: &NodeId, kind: JobKind) -> Job {
    let now = store.clock.now();
    Job {
        id: JobId::generate(store.clock.uuid()),
        kind,
        node_id: node.clone(),
        status: JobStatus::Pending,
        version: 1,
        stage: None,
        attempt: 1,
        execution_id: ExecutionId::generate(store.clock.uuid()),
        purpose: Purpose::Forward,
        first_stage: 0,
        afterwards: None,
        tasks_since: 1,
        failure: None,
        observed: "agent: none".to_owned(),
        done: Vec::new(),
        parameters: "{}".to_owned(),
        learned: "{}".to_owned(),
        clean_record: String::new(),
        requested_by: "alice".to_owned(),
        reason: "a test".to_owned(),
        created_at: now,
        updated_at: now,
        finished_at: None,
    }
}

pub async fn insert(store: &TestStore, node: &NodeId, kind: JobKind) -> Result<Job, domain::Error> {
    let row = new_job(store, node, kind);
    store
        .put(node.as_str(), move |tx| {
            insert_execution(tx, &row.execution_id, row.id.as_str())?;
            job::insert(tx, &row, &Cause::operator("alice", REQUESTED, "a test"))
        })
        .await
}

async fn moved(store: &TestStore, before: &Job, after: Job, cause: Cause) -> Job {
    let before = before.clone();
    store
        .put(before.node_id.clone().as_str(), move |tx| job::move_to(tx, &before, &after, &cause))
        .await
        .expect("moves")
}

async fn get(store: &TestStore, id: &JobId) -> Job {
    let id = id.clone();
    store.read(move |tx| tx.point(&job::by_id(&id))).await.expect("reads").expect("is there")
}

on_every_store!(every_field_of_a_job_is_kept, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    for kind in JobKind::ALL {
        let made = insert(&store, &node, kind).await.expect("inserts");
        assert_eq!((made.kind, made.status, made.tasks_since), (kind, JobStatus::Pending, 1));
        let started = Job { status: JobStatus::Running, ..made.clone() };
        let running = moved(&store, &made, started, Cause::executor("x", STARTED, "")).await;
        let full = Job {
            status: JobStatus::FailedRetryable,
            stage: Some(kind.stages()[0]),
            attempt: 3,
            execution_id: ExecutionId::from_text("exe_other"),
            purpose: Purpose::Compensate,
            first_stage: 1,
            afterwards: Some(Afterwards::Restart),
            tasks_since: 2,
            failure: Some(JobFailure {
                class: FailureClass::Hardware,
                code: "CODE".to_owned(),
                message: "a message".to_owned(),
            }),
            observed: "agent: heard".to_owned(),
            done: vec![StageDone {
                stage: JobStage::DisableNode,
                adopted_by: "alice".to_owned(),
                message: "by word".to_owned(),
                at: store.clock.now(),
            }],
            parameters: "{\"force\":true}".to_owned(),
            learned: "{\"system_id\":\"abc123\"}".to_owned(),
            clean_record: "{\"clean\":true}".to_owned(),
            ..running.clone()
        };
        let failed = moved(&store, &running, full.clone(), Cause::executor("x", FAILED, "")).await;
        assert_eq!(failed, Job { version: failed.version, updated_at: failed.updated_at, ..full });
        let adopted = Job { status: JobStatus::Reconciled, ..failed.clone() };
        let ended = moved(&store, &failed, adopted, Cause::operator("alice", ADOPTED, "")).await;
        assert!(ended.finished_at.is_some());
        assert_eq!(get(&store, &made.id).await, ended);
        let (node, id) = (node.clone(), made.id.clone());
        let (open, last) = store
            .read(move |tx| Ok((tx.point(&job::open_of_node(&node))?, tx.point(&job::last_of_node(&node))?)))
            .await
            .expect("reads");
        assert_eq!((open, last.map(|job| job.id)), (None, Some(id)));
    }
    let all = store.read(|tx| job::list(tx, &job::FILTER.parse("")?, "", 100)).await.expect("lists");
    let kinds: Vec<_> = all.iter().rev().map(|job| job.kind).collect();
    assert_eq!(kinds, JobKind::ALL, "newest first");
    let filtered =
        store.read(|tx| job::list(tx, &job::FILTER.parse("mode = soft_reset")?, "", 100)).await.expect("lists");
    assert_eq!(filtered.iter().map(|job| job.kind).collect::<Vec<_>>(), [JobKind::Decommission(Mode::SoftReset)]);
});

on_every_store!(one_job_is_open_on_a_node, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let first = insert(&store, &node, JobKind::Drain).await.expect("inserts");
    let second = insert(&store, &node, JobKind::Removal).await;
    assert!(second.is_err(), "the database itself refuses it: {second:?}");
    let ended = Job { status: JobStatus::Cancelled, ..first.clone() };
    moved(&store, &first, ended, Cause::operator("alice", CANCELLED, "")).await;
    insert(&store, &node, JobKind::Removal).await.expect("now there is room");
});

on_every_store!(a_job_moves_only_as_its_lifecycle_says, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let made = insert(&store, &node, JobKind::Drain).await.expect("inserts");
    let before = made.clone();
    let leap = store.put(node.as_str(), move |tx| {
        let after = Job { status: JobStatus::Compensating, ..before.clone() };
        job::move_to(tx, &before, &after, &Cause::operator("alice", RESUMED, ""))
    });
    assert_eq!(leap.await.expect_err("no such move").reason, Reason::IllegalTransition);
    assert_eq!(get(&store, &made.id).await, made);
});

on_every_store!(jobs_whose_execution_has_ended_without_them_are_found, |store| async {
    let mut left = Vec::new();
    for name in ["alpha", "beta"] {
        let node = nodes::insert(&store, name).await.id;
        let made = insert(&store, &node, JobKind::Drain).await.expect("inserts");
        if name == "beta" {
            let id = made.execution_id.clone();
            let end = move |tx: &mut store::Tx<'_>| {
                let e = execution::get_for_update(tx, &id)?.expect("is there");
                let entry = Entry { entry: "terminated", detail: serde_json::json!({}) };
                execution::end_from_outside(tx, &e, Status::Terminated, &entry)
            };
            assert!(store.put("end", end).await.expect("ends"));
            left.push(made.id);
        }
    }
    assert_eq!(store.read(|tx| job::left_by_their_execution(tx, "", 10)).await.expect("reads"), left);
});
