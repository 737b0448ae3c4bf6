//! Tasks of agents: read, followed, ordered by hand and taken back. What jobs order and what agents answer is elsewhere.

use crate::change::Answer;
use crate::machines::required;
use crate::nodes::{NodeRef, find_node, lock_node};
use crate::standing::OpenStream;
use crate::{Call, Page, PageRequest, Service};
use domain::agent::IdentityState;
use domain::job_stage::AGENT_COMES_WITHIN;
use domain::limits::COMMENT_MAX;
use domain::machine::check_text;
use domain::node::{Node, NodeStatus};
use domain::task::{QUEUED, Task, TaskKind, TaskStatus, WITHDRAWN};
use domain::token::Role;
use domain::{Error, Reason, TaskId};
use futures::Stream;
use futures::stream::try_unfold;
use proto::agent::v1::HostExec;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::task::NewTask;
use store::task_output::{self, Piece};
use store::{Cause, Tx, TxResult, agent, task};
use workflow::job::task_by_hand;

/// One that is ordered by hand.
#[derive(Clone, Debug, Default)]
pub struct NewOrder {
    /// Or its name.
    pub node: String,
    pub kind: String,
    pub reason: String,
    pub script: Vec<u8>,
    pub args: Vec<String>,
}

const SCRIPT_MAX: usize = 256 * 1024;
const ARGS_MAX: usize = 64;
const ARG_MAX: usize = 4096;
/// Pieces read at once; each is as an agent sent it.
const BATCH: usize = 16;
/// How often to look for what an agent sent through another server, or just now.
const POLL: Duration = Duration::from_millis(250);

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::TaskNotFound, format!("there is no task {id:?}")).with("task_id", id)
}

pub(crate) fn find(tx: &mut Tx<'_>, id: &TaskId) -> TxResult<Task> {
    Ok(tx.point(&task::by_id(id))?.ok_or_else(|| not_found(id.as_str()))?)
}

impl Answer for Task {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        find(tx, &TaskId::from_text(id))
    }
}

fn by_hand(text: &str) -> Result<TaskKind, Error> {
    TaskKind::parse(text).filter(|kind| kind.by_hand()).ok_or_else(|| {
        let known: Vec<&str> = TaskKind::ALL.into_iter().filter(|k| k.by_hand()).map(TaskKind::as_str).collect();
        let message = format!("{text:?} is not ordered by hand; there are {}", known.join(", "));
        Error::field("kind", message).allowing(known)
    })
}

fn script_of(kind: TaskKind, new: &NewOrder) -> Result<Option<HostExec>, Error> {
    if kind != TaskKind::HostExec {
        if !new.script.is_empty() || !new.args.is_empty() {
            return Err(Error::field("script", format!("{kind} takes no script and no arguments")));
        }
        return Ok(None);
    }
    if new.script.is_empty() || new.script.len() > SCRIPT_MAX {
        return Err(Error::field("script", format!("has {} bytes; use 1 to {SCRIPT_MAX}", new.script.len())));
    }
    if new.args.len() > ARGS_MAX {
        return Err(Error::field("args", format!("more than {ARGS_MAX} entries")));
    }
    for arg in &new.args {
        check_text("args", arg, ARG_MAX)?;
    }
    let sha256 = crate::access::hex(&Sha256::digest(&new.script).into());
    Ok(Some(HostExec { sha256, script: new.script.clone(), args: new.args.clone() }))
}

/// Whether a node's agent can be given an order by hand, as far as its row tells.
pub(crate) fn may_order(node: &Node) -> Result<(), Error> {
    if let Some(job) = &node.active_job {
        let message = format!(
            "job {job} holds node {} ({}); wait for its end, or call it off: 'millwright job cancel {job}'",
            node.id, node.name
        );
        return Err(Error::new(Reason::NodeHeld, message).with("job_id", job.as_str()));
    }
    match node.status {
        NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined | NodeStatus::Retired => Ok(()),
        NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Draining
        | NodeStatus::Removing
        | NodeStatus::Deleted => {
            let message =
                format!("node {} ({}) is {}: its agent takes no orders by hand", node.id, node.name, node.status);
            Err(Error::new(Reason::ActionNotAllowed, message).with("status", node.status.to_string()))
        }
    }
}

impl Service {
    pub async fn list_tasks(&self, request: &PageRequest) -> Result<Page<Task>, Error> {
        let size = request.size()?;
        let filter = task::FILTER.parse(&request.filter)?;
        let before = request.cursor("tasks")?;
        let items = self.store().read(move |tx| task::list(tx, &filter, &before, size + 1)).await?;
        Ok(request.page("tasks", items, size, |task| task.id.to_string()))
    }

    pub async fn get_task(&self, id: &str) -> Result<Task, Error> {
        let id = TaskId::from_text(required("id", id)?);
        self.store().point(task::by_id(&id)).await?.ok_or_else(|| not_found(id.as_str()))
    }

    /// Queued for the node's agent, which takes one at a time.
    pub async fn order_task(&self, call: &Arc<Call>, new: NewOrder) -> Result<Task, Error> {
        let kind = by_hand(&new.kind)?;
        check_text("reason", &new.reason, COMMENT_MAX)?;
        if kind == TaskKind::HostExec {
            // it is root on the fleet
            call.needs(Role::Admin, "ordering host.exec")?;
        }
        let script = script_of(kind, &new)?;
        let named = NodeRef::new("node_id", &new.node)?;
        let node = self.store().snapshot(move |tx| find_node(tx, &named)).await?.id;
        let id = TaskId::generate(self.store().ambient().uuid());
        let (key, cause) = (node.to_string(), Cause::operator(&call.by.name, QUEUED, &new.reason));
        let policy = self.node_policy().clone();
        self.change(call, &key, move |tx| {
            let locked = lock_node(tx, &node)?;
            may_order(&locked.node)?;
            // a reboot or a script in the middle of a run would be a second lifecycle on the machine
            locked.is_free()?;
            let there = locked.node;
            let identity = tx.point(&agent::by_node(&node))?.filter(|a| a.state == IdentityState::Good);
            let Some(identity) = identity else {
                let message = format!(
                    "no agent of node {} ({}) can be given an order: none has enrolled, or its identity was stopped",
                    there.id, there.name
                );
                return Err(Error::new(Reason::AgentMissing, message).with("node_id", there.id.as_str()).into());
            };
            if let Some(live) = tx.point(&task::live_of_node(&node))? {
                let message = format!(
                    "node {} ({}) has task {} ({}, {}); wait for its end",
                    there.id, there.name, live.id, live.kind, live.status
                );
                return Err(Error::new(Reason::ActiveTask, message).with("task_id", live.id.as_str()).into());
            }
            let order = task_by_hand(kind, &policy, &identity.boot_id, script.clone())
                .ok_or_else(|| Error::internal(format!("{kind} is not ordered by hand")))?;
            let take_by = tx.now().plus(AGENT_COMES_WITHIN);
            let operation = format!("by-hand/{id}");
            let new =
                NewTask { id: &id, node_id: &node, job: None, operation: &operation, kind, order: &order, take_by };
            task::queue(tx, &new, &cause)
        })
        .await
    }

    /// Takes one back that was ordered by hand. Again: no change.
    pub async fn cancel_task(&self, call: &Arc<Call>, id: &str, reason: &str) -> Result<Task, Error> {
        check_text("reason", reason, COMMENT_MAX)?;
        let seen = self.get_task(id).await?;
        let (key, id) = (seen.node_id.to_string(), seen.id);
        let (by, reason) = (call.by.name.clone(), reason.to_owned());
        self.change(call, &key, move |tx| {
            let there = task::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
            may_cancel(&there)?;
            if there.status == TaskStatus::Expired {
                return Ok(there);
            }
            let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            let expired_because = format!("taken back by {by}{because}");
            let after = Task { status: TaskStatus::Expired, expired_because, lease_until: None, ..there.clone() };
            task::move_to(tx, &there, &after, &Cause::operator(&by, WITHDRAWN, &reason))
        })
        .await
    }

    /// What a task prints, from `after` bytes on; with `follow` until it has ended.
    pub async fn stream_task_output(
        &self,
        call: &Arc<Call>,
        id: &str,
        after: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<Piece, Error>> + Send + use<>, Error> {
        let place = call.by.standing.open_stream()?;
        let task = self.get_task(id).await?;
        if after > task.output_bytes {
            let message = format!(
                "after_offset {after} is beyond the output of task {}: it has {} bytes",
                task.id, task.output_bytes
            );
            return Err(Error::new(Reason::SequenceOutOfRange, message).with("head", task.output_bytes.to_string()));
        }
        let state = Follow {
            service: self.clone(),
            call: call.clone(),
            _place: place,
            task: task.id,
            cursor: after,
            ready: VecDeque::new(),
            follow,
        };
        Ok(try_unfold(state, |mut state| async move { Ok(state.next().await?.map(|piece| (piece, state))) }))
    }
}

pub(crate) fn may_cancel(task: &Task) -> Result<(), Error> {
    let refused =
        |message: String| Err(Error::new(Reason::ActionNotAllowed, message).with("task_id", task.id.as_str()));
    if let Some((job, _)) = &task.job {
        return refused(format!("task {} belongs to job {job}; cancel that: 'millwright job cancel {job}'", task.id));
    }
    match task.status {
        TaskStatus::Queued | TaskStatus::Dispatched | TaskStatus::Expired => Ok(()),
        TaskStatus::Done | TaskStatus::Failed => refused(format!("task {} has ended as {}", task.id, task.status)),
    }
}

struct Follow {
    service: Service,
    call: Arc<Call>,
    _place: OpenStream,
    task: TaskId,
    cursor: u64,
    ready: VecDeque<Piece>,
    follow: bool,
}

/// More pieces, and whether the task had ended before they were read.
fn read(tx: &mut Tx<'_>, id: &TaskId, after: u64) -> TxResult<(Vec<Piece>, bool)> {
    let ended = !find(tx, id)?.status.is_live();
    Ok((task_output::list(tx, id, after, BATCH)?, ended))
}

impl Follow {
    async fn next(&mut self) -> Result<Option<Piece>, Error> {
        loop {
            self.call.still_good(self.service.now())?;
            if let Some(mut piece) = self.ready.pop_front() {
                // the first one may be known in part
                let known = usize::try_from(self.cursor.saturating_sub(piece.start_at)).unwrap_or(usize::MAX);
                piece.data.drain(..known.min(piece.data.len()));
                piece.start_at = piece.start_at.max(self.cursor);
                self.cursor = piece.start_at + piece.data.len() as u64;
                return Ok(Some(piece));
            }
            let (task, cursor) = (self.task.clone(), self.cursor);
            let (pieces, ended) = self.service.store().read(move |tx| read(tx, &task, cursor)).await?;
            if pieces.is_empty() && (ended || !self.follow) {
                return Ok(None);
            }
            if !pieces.is_empty() {
                self.ready = pieces.into();
                continue;
            }
            tokio::select! {
                biased;
                error = self.service.over(&self.call) => return Err(error),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }
}
