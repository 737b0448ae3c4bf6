//! What must hold of the rows of a job, its node and its tasks, whatever the job is about. Shared with the harness of jobs
//! on a MAAS.

use domain::job::Job;
use domain::job_action::{judge_all, recommend};
use domain::lifecycle::State as _;
use domain::node::{Node, NodeStatus};
use domain::task::Task;
use domain::{Error, JobId};
use std::collections::BTreeMap;
use store::execution::Execution;
use store::{LogRow, Store, execution, job, log_of_subject, node, task};

struct Rows {
    node: Node,
    job: Job,
    open: Option<Job>,
    own: Execution,
    others: Vec<Execution>,
    tasks: Vec<Task>,
    log: Vec<LogRow>,
}

pub async fn rows_hold(name: &str, store: &Store, job: &JobId) {
    let rows = rows(store, job.clone()).await;
    owners(name, &rows);
    way_out(name, &rows);
    tasks(name, &rows);
    folds(name, &rows);
}

async fn rows(store: &Store, id: JobId) -> Rows {
    let read = store.snapshot(move |tx| {
        let job = tx.point(&job::by_id(&id))?.ok_or_else(|| Error::internal("no job"))?;
        let node = tx.point(&node::by_id(&job.node_id))?.ok_or_else(|| Error::internal("no node"))?;
        let own = execution::get(tx, &job.execution_id)?.ok_or_else(|| Error::internal("no execution"))?;
        let of_job = execution::FILTER.parse(&format!("subject = \"{id}\""))?;
        let of_node = task::FILTER.parse(&format!("node_id = \"{}\"", node.id))?;
        let others = execution::list(tx, &of_job, "", 100)?.into_iter().filter(|e| e.id != own.id).collect();
        let open = tx.point(&job::open_of_node(&node.id))?;
        let tasks = task::list(tx, &of_node, "", 200)?;
        let log = log_of_subject(tx, node.id.as_str(), 0, u64::from(u32::MAX), 10_000)?;
        Ok(Rows { node, job, open, own, others, tasks, log })
    });
    read.await.expect("every job has its node and its execution")
}

/// Job and execution, node and job belong together, both ways.
fn owners(name: &str, rows: &Rows) {
    let (node, job) = (&rows.node, &rows.job);
    let open = rows.open.as_ref().map(|open| &open.id);
    assert_eq!(node.active_job.as_ref(), open, "{name}: the job that holds the node is the one that is open");
    assert_eq!(open == Some(&job.id), !job.status.is_terminal(), "{name}: {}", job.status);
    assert_eq!(
        !rows.own.status.is_terminal(),
        job.status.is_under_way(),
        "{name}: the job is {} and its execution {:?}",
        job.status,
        rows.own.status
    );
    let left: Vec<_> = rows.others.iter().filter(|e| !e.status.is_terminal()).collect();
    assert!(left.is_empty(), "{name}: older attempts go on: {left:?}");
    match node.status {
        NodeStatus::Draining | NodeStatus::Removing => {
            assert!(job.status.is_under_way(), "{name}: {} with a job that is {}", node.status, job.status);
        }
        NodeStatus::Enrolling => assert!(!job.status.is_terminal(), "{name}: enrolling and nobody works on it"),
        NodeStatus::BootstrapIssued
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::Deleted => {}
    }
    if job.status.is_terminal() {
        assert!(!node.cordoned_by.starts_with("job "), "{name}: its own cordon is left: {}", node.cordoned_by);
        assert!(job.finished_at.is_some(), "{name}: has ended and does not say when");
    }
}

/// Something is allowed unless it has ended; what is recommended is among it.
fn way_out(name: &str, rows: &Rows) {
    let (node, job) = (&rows.node, &rows.job);
    let allowed: Vec<_> = judge_all(job, node.status).into_iter().filter(|(_, v)| v.is_ok()).map(|(a, _)| a).collect();
    assert_eq!(allowed.is_empty(), job.status.is_terminal(), "{name}: allowed are {allowed:?}");
    let (recommended, why) = recommend(job, node.status);
    assert!(recommended.is_none_or(|action| allowed.contains(&action)), "{name}: {recommended:?} ({why})");
    let stands = !job.status.is_under_way() && !job.status.is_terminal();
    assert_eq!(recommended.is_some(), stands, "{name}: {why}");
    assert!(job.failure.is_some() || !stands, "{name}: stands still and does not say why");
}

/// What stands still or has ended has nothing on its node that goes on.
fn tasks(name: &str, rows: &Rows) {
    let live: Vec<_> = rows.tasks.iter().filter(|t| t.status.is_live()).collect();
    assert!(live.len() <= 1, "{name}: {live:?}");
    if !rows.job.status.is_under_way() {
        assert!(live.is_empty(), "{name}: the job is {} and a task goes on: {live:#?}", rows.job.status);
    }
    let mut fences: Vec<_> = rows.tasks.iter().map(|t| t.fence).filter(|f| f.counter > 0).collect();
    fences.sort_unstable();
    let all = fences.len();
    fences.dedup();
    assert_eq!(fences.len(), all, "{name}: a fence was given twice");
    assert!(fences.iter().all(|f| f.counter <= rows.node.task_fence), "{name}: above the node's");
}

/// The log, read from its beginning, comes to the rows.
fn folds(name: &str, rows: &Rows) {
    let mut at: BTreeMap<(String, String), (String, u64)> = BTreeMap::new();
    for row in &rows.log {
        let key = (row.entity_kind.clone(), row.entity_id.clone());
        let (state, version) = at.get(&key).cloned().unwrap_or_default();
        assert_eq!(row.from_state, state, "{name}: {row:?}");
        assert!(row.version > version, "{name}: {row:?}");
        at.insert(key, (row.to_state.clone(), row.version));
    }
    let said = |kind: &str, id: &str| at.get(&(kind.to_owned(), id.to_owned())).map_or("", |(state, _)| state.as_str());
    assert_eq!(said("node", rows.node.id.as_str()), rows.node.status.as_str(), "{name}");
    assert_eq!(said("job", rows.job.id.as_str()), rows.job.status.as_str(), "{name}");
    for task in &rows.tasks {
        assert_eq!(said("task", task.id.as_str()), task.status.as_str(), "{name}: {task:?}");
    }
}
