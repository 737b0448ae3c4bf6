//! How tasks end by their agent's word: signed, under the fence of the last dispatch, once. What is said of anything
//! else is answered, put on record, and changes nothing.

use super::sessions::CONNECT;
use super::tasks::count;
use super::{AgentSession, caller, one_line};
use crate::Service;
use domain::limits::MESSAGE_MAX;
use domain::stage::FailureClass;
use domain::task::{REFUSED, RESULT, Task, TaskFence, TaskResult, TaskStatus, signed_text};
use domain::{Error, NodeId, Reason, TaskId, Timestamp};
use store::{Cause, Tx, TxResult, task};

/// Of what was checked, found, removed, measured.
const DETAIL_MAX: usize = 256 * 1024;
const CODE_MAX: usize = 64;
const SIGNATURE_MAX: usize = 128;
/// An agent's word for what it has stopped because it was called off.
const CANCELED: &str = "CANCELED";

/// A result as an agent sends it.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub task: String,
    pub fence: TaskFence,
    pub ok: bool,
    pub code: String,
    pub failure_class: String,
    pub message: String,
    pub detail: String,
    pub signature: Vec<u8>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// That an agent does not carry out what it was given.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    pub task: String,
    pub fence: TaskFence,
    pub code: String,
    pub message: String,
}

/// What came of it: `Err` says why it changed nothing.
pub type Kept = Result<(), &'static str>;

/// The result as it is kept, unless it cannot be believed.
fn judged(session: &AgentSession, said: &Said) -> Result<TaskResult, &'static str> {
    let json = said.detail.is_empty() || serde_json::from_str::<serde::de::IgnoredAny>(&said.detail).is_ok();
    if said.detail.len() > DETAIL_MAX || !json || said.signature.len() > SIGNATURE_MAX {
        return Err("INVALID");
    }
    if !session.key.has_signed(signed_text(&said.task, said.fence, said.ok, &said.detail).as_bytes(), &said.signature) {
        return Err("BAD_SIGNATURE");
    }
    Ok(TaskResult {
        ok: said.ok,
        code: if said.ok { String::new() } else { stable(&said.code) },
        // an agent that does not say leaves it to a person
        class: FailureClass::parse(&said.failure_class).unwrap_or(FailureClass::NeedsOperator),
        message: one_line(&said.message, MESSAGE_MAX),
        detail: said.detail.clone(),
        signature: said.signature.clone(),
        signed_by: session.key.spki().iter().map(|byte| format!("{byte:02x}")).collect(),
        started_at: said.started_at,
        finished_at: said.finished_at,
    })
}

/// A word in capitals, whatever an agent makes of it.
fn stable(code: &str) -> String {
    let word: String = code
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
        .take(CODE_MAX)
        .collect::<String>()
        .to_ascii_uppercase();
    if word.is_empty() { "UNKNOWN".to_owned() } else { word }
}

fn refusal_class(code: &str) -> FailureClass {
    match code {
        "BUSY" => FailureClass::Transient,
        "INVALID" => FailureClass::InvalidInput,
        "OLD_FENCE" => FailureClass::Conflict,
        _ => FailureClass::NeedsOperator,
    }
}

/// How a task stands to what is said of it.
enum Standing {
    /// Out, under that fence.
    Out(Box<Task>),
    /// It has ended by these very words.
    Repeated,
    Not(&'static str),
}

fn standing(tx: &mut Tx<'_>, node: &NodeId, id: &TaskId, fence: TaskFence, new: &TaskResult) -> TxResult<Standing> {
    let Some(there) = task::get_for_update(tx, id)?.filter(|there| there.node_id == *node) else {
        return Ok(Standing::Not("NOT_YOURS"));
    };
    let same = |old: &TaskResult| old.ok == new.ok && old.detail == new.detail && old.code == new.code;
    Ok(match there.status {
        _ if there.fence != fence => Standing::Not("OLD_FENCE"),
        TaskStatus::Dispatched => Standing::Out(Box::new(there)),
        TaskStatus::Done | TaskStatus::Failed if there.result.as_ref().is_some_and(same) => Standing::Repeated,
        TaskStatus::Done | TaskStatus::Failed => Standing::Not("ALREADY_ENDED"),
        // that it was stopped as we asked is nothing to keep: if it is wanted again, it is carried out anew
        TaskStatus::Queued | TaskStatus::Expired if new.code == CANCELED => Standing::Not("ALREADY_ENDED"),
        // it may be handed out again, under a higher fence: the agent keeps what it has for that
        TaskStatus::Queued | TaskStatus::Expired => Standing::Not("EXPIRED"),
    })
}

fn end(
    tx: &mut Tx<'_>,
    node: &NodeId,
    id: &TaskId,
    fence: TaskFence,
    result: &TaskResult,
    trigger: &'static str,
) -> TxResult<Kept> {
    let task = match standing(tx, node, id, fence, result)? {
        Standing::Out(task) => task,
        Standing::Repeated => return Ok(Ok(())),
        Standing::Not(why) => return Ok(Err(why)),
    };
    let status = if result.ok { TaskStatus::Done } else { TaskStatus::Failed };
    let after = Task { status, lease_until: None, result: Some(result.clone()), ..(*task).clone() };
    let comment = if result.ok { result.message.clone() } else { format!("{}: {}", result.code, result.message) };
    task::move_to(tx, &task, &after, &Cause::node(node.as_str(), trigger, &comment))?;
    Ok(Ok(()))
}

impl Service {
    /// Takes a result. Only what cannot be decided is an error.
    pub async fn agent_has_done(&self, session: &mut AgentSession, said: Said) -> Result<Kept, Error> {
        let outcome = if said.ok { "done" } else { "failed" };
        let kept = match judged(session, &said) {
            Ok(result) => self.ended_by(session, &said.task, said.fence, result, RESULT).await?,
            Err(why) => Err(why),
        };
        self.tell_kept(session, &said.task, said.fence, kept, outcome).await;
        Ok(kept)
    }

    /// Takes a refusal: the task has failed by it.
    pub async fn agent_refuses(&self, session: &mut AgentSession, said: Refusal) -> Result<Kept, Error> {
        let code = stable(&said.code);
        let result = TaskResult {
            ok: false,
            class: refusal_class(&code),
            code,
            message: one_line(&said.message, MESSAGE_MAX),
            detail: String::new(),
            signature: Vec::new(),
            signed_by: String::new(),
            started_at: None,
            finished_at: None,
        };
        let kept = self.ended_by(session, &said.task, said.fence, result, REFUSED).await?;
        self.tell_kept(session, &said.task, said.fence, kept, "refused").await;
        Ok(kept)
    }

    async fn ended_by(
        &self,
        session: &mut AgentSession,
        id: &str,
        fence: TaskFence,
        result: TaskResult,
        trigger: &'static str,
    ) -> Result<Kept, Error> {
        let (node, id) = (session.node_id.clone(), TaskId::from_text(id));
        let at = id.clone();
        let kept = self
            .store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                end(tx, &node, &id, fence, &result, trigger)
            })
            .await?;
        if kept.is_ok() {
            session.work.at.take_if(|there| there.id == at && there.fence == fence);
            // the next one may wait
            session.work.look_again = true;
        }
        Ok(kept)
    }

    async fn tell_kept(&self, session: &AgentSession, id: &str, fence: TaskFence, kept: Kept, outcome: &'static str) {
        let Err(why) = kept else { return count(outcome) };
        count("not_applied");
        let what =
            format!("what its agent says of task {} under fence {fence} is not taken: {why}", one_line(id, CODE_MAX));
        self.record_agent(CONNECT, Some(&session.node_id), &Error::new(Reason::IllegalTransition, what)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_spelt_as_agents_spell_it() {
        let fence = TaskFence { epoch: 2, counter: 7 };
        assert_eq!(
            signed_text("tsk_1", fence, true, "{\"a\":1}"),
            "millwright task result v1\ntsk_1\n2.7\ntrue\n{\"a\":1}"
        );
    }

    #[test]
    fn a_code_is_a_word_in_capitals() {
        assert_eq!(stable("not_clean\u{1b}[2J"), "NOT_CLEAN2J");
        assert_eq!(stable("\n"), "UNKNOWN");
        assert_eq!(stable(&"x".repeat(1000)).len(), CODE_MAX);
    }
}
