//! Nodes as tests need them: in any status, with an agent that was heard of, past the agents' own port. Every move is made
//! by its rightful owner; only what its guard asks for is taken as given.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::agent::{AgentIdentity, IdentityState};
use domain::machine::{Labels, MachineSpec, REGISTERED};
use domain::node::{self as nodes, Node, NodeStatus};
use domain::task::{RESULT, Task, TaskResult, TaskStatus};
use domain::{MachineId, NodeId, TaskId, stage::FailureClass};
use store::agent::Beat;
use store::{Caller, Cause, Store, Tx, TxResult, agent, machine, node, task, task_output};

async fn write<T: Send + 'static>(
    store: &Store,
    id: &NodeId,
    f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
) -> T {
    store.write(&Caller::new("test"), id.as_str(), f).await.expect("is written")
}

pub async fn read(store: &Store, id: &NodeId) -> Node {
    store.point(node::by_id(id)).await.expect("reads").expect("a node")
}

/// Its agent has enrolled and was heard of so often, the last time just now.
pub async fn enrol(store: &Store, id: &NodeId, beats: u32) {
    let (id, key) = (id.clone(), id.clone());
    write(store, &key, move |tx| {
        let now = tx.now();
        agent::enrol(
            tx,
            &AgentIdentity {
                node_id: id.clone(),
                key_sha256: format!("key of {id}"),
                key_spki: vec![1],
                state: IdentityState::Good,
                state_reason: String::new(),
                epoch: 1,
                session: 1,
                confirmed: true,
                enrolled_at: now,
                token_id: String::new(),
                certificate_until: now,
                agent_version: "0.1.0".into(),
                boot_id: "boot-1".into(),
                beats: 0,
                last_beat: None,
                skew_ms: 0,
                inventory: String::new(),
                inventory_digest: String::new(),
                health: String::new(),
            },
        )?;
        agent::heard(tx, &[Beat { node_id: id.clone(), session: 1, at: now, beats, skew_ms: 2 }])
    })
    .await;
}

pub async fn identity(store: &Store, id: &NodeId) -> Option<AgentIdentity> {
    store.point(agent::by_node(id)).await.expect("reads")
}

pub async fn set_identity(store: &Store, id: &NodeId, state: IdentityState) {
    let (id, key) = (id.clone(), id.clone());
    write(store, &key, move |tx| agent::set_state(tx, &id, state, "a test")).await;
}

/// By which moves a new node comes there.
fn way(to: NodeStatus) -> Vec<(NodeStatus, Cause)> {
    let by = |cause: fn(&str, &'static str, &str) -> Cause, trigger| cause("test", trigger, "a test");
    let enrolling = (NodeStatus::Enrolling, by(Cause::executor, nodes::ONBOARD));
    let active = (NodeStatus::Active, by(Cause::executor, nodes::ONBOARDED));
    let draining = (NodeStatus::Draining, by(Cause::operator, nodes::DRAIN));
    let retired = (NodeStatus::Retired, by(Cause::executor, nodes::DRAINED));
    let removing = (NodeStatus::Removing, by(Cause::executor, nodes::REMOVE));
    let mut way = match to {
        NodeStatus::BootstrapIssued => vec![],
        NodeStatus::Enrolling => vec![enrolling],
        NodeStatus::Active => vec![enrolling, active],
        NodeStatus::Offline => vec![enrolling, active, (to, by(Cause::reconciler, nodes::HEARTBEAT_LOST))],
        NodeStatus::Quarantined => vec![enrolling, active, (to, by(Cause::reconciler, nodes::QUARANTINE))],
        NodeStatus::Draining => vec![enrolling, active, draining],
        NodeStatus::Retired | NodeStatus::Removing | NodeStatus::Deleted => {
            vec![enrolling, active, draining, retired]
        }
    };
    match to {
        NodeStatus::Removing => way.push(removing),
        NodeStatus::Deleted => way.extend([removing, (to, by(Cause::executor, nodes::REMOVED))]),
        NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Draining
        | NodeStatus::Retired => {}
    }
    way
}

/// What it was linked to when it was onboarded: nobody recovers one that never was.
fn machine_of(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<MachineId> {
    let id = MachineId::from_text(format!("of-{node}"));
    let spec = MachineSpec { provider: "sim".to_owned(), ..MachineSpec::default() };
    let cause = Cause::operator("test", REGISTERED, "a test");
    Ok(machine::insert(tx, &id, &spec, &Labels::default(), &cause)?.id)
}

/// Takes a node that was just made to this status, without a job.
pub async fn bring(store: &Store, id: &NodeId, to: NodeStatus) -> Node {
    let (id, key) = (id.clone(), id.clone());
    write(store, &key, move |tx| {
        for (status, cause) in way(to) {
            let before = node::get_for_update(tx, &id)?.expect("a node");
            let mut after = Node { status, status_reason: "a test".into(), ..before.clone() };
            if to == NodeStatus::Quarantined && before.machine_id.is_none() {
                after.machine_id = Some(machine_of(tx, &id)?);
            }
            node::move_to(tx, &before, &after, &serde_json::json!({}), &cause, |_| Ok(()))?;
        }
        Ok(tx.point(&node::by_id(&id))?.expect("a node"))
    })
    .await
}

/// The task that waits for a node's agent, handed out to it.
pub async fn take_task(store: &Store, id: &NodeId) -> Option<Task> {
    let (id, key) = (id.clone(), id.clone());
    write(store, &key, move |tx| {
        let queued = tx.point(&task::live_of_node(&id))?.filter(|t| t.status == TaskStatus::Queued);
        queued.map(|queued| task::dispatch(tx, &queued, id.as_str())).transpose()
    })
    .await
}

/// The agent's word about its task.
pub async fn end_task(store: &Store, there: &Task, ok: bool) -> Task {
    let there = there.clone();
    write(store, &there.node_id.clone(), move |tx| {
        let result = TaskResult {
            ok,
            code: if ok { String::new() } else { "NO_ANSWER".into() },
            class: FailureClass::Transient,
            message: if ok { String::new() } else { "no answer".into() },
            detail: "{}".into(),
            signature: vec![1, 2, 3],
            signed_by: "01".into(),
            started_at: Some(tx.now()),
            finished_at: Some(tx.now()),
        };
        let status = if ok { TaskStatus::Done } else { TaskStatus::Failed };
        let after = Task { status, result: Some(result), lease_until: None, ..there.clone() };
        task::move_to(tx, &there, &after, &Cause::node(there.node_id.as_str(), RESULT, ""))
    })
    .await
}

/// What a task has printed.
pub async fn print(store: &Store, node: &NodeId, id: &TaskId, at: u64, text: &str) {
    let (id, text) = (id.clone(), text.to_owned());
    write(store, node, move |tx| task_output::append(tx, &id, at, "stdout", text.as_bytes())).await;
}
