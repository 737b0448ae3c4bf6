//! Tasks, as an agent's stream is fed with them: the queued one is handed out under a fence, one that is out already is
//! sent again as it is, one that was withdrawn is called off. Leases are renewed by the agent's own words.

use super::{AgentSession, caller};
use crate::Service;
use domain::agent::IdentityState;
use domain::task::{LEASE, Task, TaskFence, TaskStatus};
use domain::{Error, NodeId, TaskId, Timestamp, metric};
use std::time::Duration;
use store::{Signal, Tx, TxResult, agent, node, switch, task, task_output};

/// A lease that was renewed just now is not written again.
const RENEWED_EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 6);
/// Further than any task prints.
const OFFSET_MAX: u64 = 1 << 40;

/// What the session remembers of its tasks.
#[derive(Default)]
pub(super) struct Work {
    /// What the agent was given last, and has not ended.
    pub at: Option<Box<Task>>,
    renewed: Option<Timestamp>,
    /// Something is to be looked at although nobody said so: the next heartbeat is the occasion.
    pub look_again: bool,
    /// The last one that the agent says to be at and that is not ours to wait for.
    stray: Option<TaskId>,
}

/// What an agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForAgent {
    Task(Box<Task>),
    Cancel { task: TaskId, fence: TaskFence, reason: String },
}

/// A piece of what a task prints.
#[derive(Clone, Debug)]
pub struct OutputPiece {
    pub task: TaskId,
    pub fence: TaskFence,
    pub offset: u64,
    pub stream: &'static str,
    pub data: Vec<u8>,
}

enum Handed {
    Task(Box<Task>),
    Nothing,
    /// Somebody has stopped all automation.
    Frozen,
}

pub(super) fn count(outcome: &'static str) {
    metrics::counter!(metric::AGENT_TASKS.name, "outcome" => outcome).increment(1);
}

/// Nobody waits for it: it was withdrawn, or its lease ran out once too often. One that is handed out again is queued in
/// the transaction that it expires in.
fn is_over(task: &Task) -> bool {
    task.status == TaskStatus::Expired
}

fn cancel(task: &Task) -> ForAgent {
    count("canceled");
    let reason = if task.expired_because.is_empty() { "it was withdrawn" } else { &task.expired_because };
    ForAgent::Cancel { task: task.id.clone(), fence: task.fence, reason: reason.to_owned() }
}

/// Hands out the queued task of a node, if it still is this session's to have.
fn hand_out(tx: &mut Tx<'_>, id: &NodeId, session: u64) -> TxResult<Handed> {
    let agent = tx.point(&agent::by_node(id))?;
    if !agent.is_some_and(|agent| agent.session == session && agent.state == IdentityState::Good) {
        return Ok(Handed::Nothing);
    }
    if switch::frozen(tx)?.is_some() {
        return Ok(Handed::Frozen);
    }
    node::get_for_update(tx, id)?;
    let Some(queued) = tx.point(&task::live_of_node(id))? else { return Ok(Handed::Nothing) };
    let Some(queued) = task::get_for_update(tx, &queued.id)?.filter(|t| t.status == TaskStatus::Queued) else {
        return Ok(Handed::Nothing);
    };
    Ok(Handed::Task(Box::new(task::dispatch(tx, &queued, id.as_str())?)))
}

impl AgentSession {
    /// Whether the next heartbeat is an occasion to look for tasks.
    pub fn looks_again(&self) -> bool {
        self.work.look_again
    }
}

impl Service {
    /// What there is for an agent to do, or to stop doing, that it was not told yet.
    pub async fn for_agent(&self, session: &mut AgentSession) -> Result<Vec<ForAgent>, Error> {
        session.work.look_again = true;
        let mut told = Vec::new();
        let live = self.store().point(task::live_of_node(&session.node_id)).await?;
        let before = session.work.at.take_if(|at| live.as_ref().is_none_or(|live| live.id != at.id));
        if let Some(before) = before
            && let Some(ended) = self.store().point(task::by_id(&before.id)).await?
            && is_over(&ended)
        {
            told.push(cancel(&ended));
        }
        let mut later = false;
        match live {
            Some(live) if live.status == TaskStatus::Queued => {
                let (id, number) = (session.node_id.clone(), session.session);
                let handed = self
                    .store()
                    .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| hand_out(tx, &id, number))
                    .await?;
                match handed {
                    Handed::Task(task) => {
                        count("dispatched");
                        told.push(session.given(task, self.now()));
                    }
                    Handed::Nothing => {}
                    Handed::Frozen => later = true,
                }
            }
            // it was handed out before this connection, or another server did it for us
            Some(live) if session.work.at.as_ref().is_none_or(|at| at.fence != live.fence) => {
                count("sent_again");
                // its lease goes on as it was, and is renewed by the agent's first word
                let dispatched = live.dispatched_at.unwrap_or(live.queued_at);
                told.push(session.given(Box::new(live), dispatched));
            }
            Some(_) | None => {}
        }
        session.work.look_again = later;
        Ok(told)
    }

    /// The agent says that it is at these.
    pub async fn agent_is_at(
        &self,
        session: &mut AgentSession,
        tasks: &[(TaskId, Option<TaskFence>)],
    ) -> Result<Vec<ForAgent>, Error> {
        let mut told = Vec::new();
        for (id, fence) in tasks {
            match &session.work.at {
                Some(at) if at.id == *id && fence.is_none_or(|fence| fence == at.fence) => {
                    let (at, fence) = (at.id.clone(), at.fence);
                    self.renew_lease(session, at, fence).await?;
                }
                // under an old fence: it will take over the new one
                Some(at) if at.id == *id => {}
                Some(_) | None if session.work.stray.as_ref() == Some(id) => {}
                Some(_) | None => {
                    let there = self.store().point(task::by_id(id)).await?;
                    let mine = there.filter(|there| there.node_id == session.node_id);
                    if let Some(there) = mine.filter(is_over) {
                        told.push(cancel(&there));
                    }
                    session.work.stray = Some(id.clone());
                }
            }
        }
        Ok(told)
    }

    async fn renew_lease(&self, session: &mut AgentSession, id: TaskId, fence: TaskFence) -> Result<(), Error> {
        if session.work.renewed.is_some_and(|at| self.now().since(at) < RENEWED_EVERY) {
            return Ok(());
        }
        let renewed = self
            .store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| task::renew(tx, &id, fence))
            .await?;
        if renewed {
            session.work.renewed = Some(self.now());
        } else {
            session.work.look_again = true;
        }
        Ok(())
    }

    /// Stores what a task printed; answers up to where all of it is durable. `None`: it is not what this agent is at.
    pub async fn agent_prints(&self, session: &AgentSession, piece: OutputPiece) -> Result<Option<u64>, Error> {
        let Some(at) = session.work.at.as_ref().filter(|at| at.id == piece.task && at.fence == piece.fence) else {
            return Ok(None);
        };
        if piece.offset > OFFSET_MAX {
            return Ok(None);
        }
        let job = at.job.as_ref().map(|(job, _)| job.clone());
        let stored = self
            .store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                let up_to = task_output::append(tx, &piece.task, piece.offset, piece.stream, &piece.data)?;
                if let Some(job) = &job {
                    tx.signal(Signal::JobChanged(job.clone()));
                }
                Ok(up_to)
            })
            .await?;
        Ok(Some(stored))
    }
}

impl AgentSession {
    fn given(&mut self, task: Box<Task>, renewed: Timestamp) -> ForAgent {
        self.work.at = Some(task.clone());
        self.work.renewed = Some(renewed);
        ForAgent::Task(task)
    }
}
