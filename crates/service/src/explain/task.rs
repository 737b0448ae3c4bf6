//! Why a task is where it is.

use super::job::name_of;
use super::{Action, Explanation, seconds_until};
use crate::Call;
use crate::tasks::may_cancel;
use domain::task::{Task, TaskStatus};
use domain::{TaskId, Timestamp};
use store::{Tx, TxResult, task};

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct TaskWhy {
    pub task: Task,
    /// What people call its node.
    pub node_name: String,
    pub now: Timestamp,
}

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Option<Explanation>> {
    // the fleet's alone
    if call.by.is_scoped() {
        return Ok(None);
    }
    let Some(task) = tx.point(&task::by_id(&TaskId::from_text(id)))? else { return Ok(None) };
    let node_name = name_of(tx, &task.node_id)?;
    Ok(Some(TaskWhy { task, node_name, now: tx.now() }.explain(call)))
}

impl TaskWhy {
    pub fn explain(&self, call: &Call) -> Explanation {
        let task = &self.task;
        let node = if self.node_name.is_empty() { task.node_id.as_str() } else { &self.node_name };
        let waiting_for = match task.status {
            TaskStatus::Queued => "its node's agent to take it".to_owned(),
            TaskStatus::Dispatched => "its node's agent to say how it ended, or to renew its lease".to_owned(),
            TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => String::new(),
        };
        let because = match (&task.result, task.expired_because.as_str()) {
            (Some(result), _) if !result.message.is_empty() => format!(": {}", result.message),
            (_, because) if task.status == TaskStatus::Expired && !because.is_empty() => format!(": {because}"),
            (_, _) => String::new(),
        };
        let is = format!("task {} ({}) of node {node} is {}{because}", task.id, task.kind, task.status);
        let summary = if waiting_for.is_empty() { is } else { format!("{is} and waits for {waiting_for}") };
        let deadline = match task.status {
            TaskStatus::Queued => Some(task.take_by),
            TaskStatus::Dispatched => task.lease_until,
            TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => None,
        };
        let ended = task.result.as_ref().and_then(|r| r.finished_at);
        Explanation {
            id: task.id.to_string(),
            kind: "task",
            state: task.status.to_string(),
            at_rest: waiting_for.is_empty(),
            summary,
            waiting_for,
            since: Some(ended.or(task.dispatched_at).unwrap_or(task.queued_at)),
            last_seen: self.last_seen(),
            last_seen_at: ended.or(task.dispatched_at),
            expected: match task.status {
                TaskStatus::Queued => "its agent takes it, under a fence above every one before it".to_owned(),
                TaskStatus::Dispatched => "the agent's own word, signed".to_owned(),
                TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => String::new(),
            },
            attempt: Some(task.requeues + 1),
            deadline,
            seconds_left: deadline.map(|at| seconds_until(at, self.now)),
            held_by: match task.status {
                TaskStatus::Dispatched => format!("the agent of node {node}, under fence {}", task.fence),
                TaskStatus::Queued => "nobody".to_owned(),
                TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => String::new(),
            },
            actions: self.actions(call),
            desired: match &task.job {
                Some((job, stage)) => format!("{} for stage {stage} of job {job}", task.kind),
                None => format!("{}, ordered by {}", task.kind, task.ordered_by),
            },
            observed: self.last_seen(),
            projected: task.status.to_string(),
            problems: self.problems(),
            ..Explanation::default()
        }
    }

    fn last_seen(&self) -> String {
        let task = &self.task;
        match (&task.result, task.dispatched_at) {
            (Some(r), _) if r.ok => "its agent says that it is done".to_owned(),
            (Some(r), _) => format!("its agent says {} ({}): {}", r.code, r.class.as_str(), r.message),
            (None, Some(at)) => format!("it was handed out at {at}, and has printed {} bytes", task.output_bytes),
            (None, None) => "nobody has taken it yet".to_owned(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(r) = self.task.result.as_ref().filter(|r| !r.ok) {
            problems.push(format!("{} ({}): {}", r.code, r.class.as_str(), r.message));
        }
        if !self.task.expired_because.is_empty() && self.task.status == TaskStatus::Expired {
            problems.push(self.task.expired_because.clone());
        }
        problems
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let task = &self.task;
        let look = Action::new(
            call,
            "millwright.v1.TaskService/StreamTaskOutput",
            "see what it prints",
            format!("millwright task output {}", task.id),
            Ok(()),
        );
        let of_job = task.job.as_ref().map(|(job, _)| {
            let name = "look at its job, which decides what becomes of it";
            let command = format!("millwright why {job}");
            Action::new(call, "millwright.v1.ExplainService/Explain", name, command, Ok(()))
        });
        let cancel = Action::new(
            call,
            "millwright.v1.TaskService/CancelTask",
            "take it back",
            format!("millwright task cancel {}", task.id),
            may_cancel(task),
        );
        [Some(cancel), of_job, Some(look)].into_iter().flatten().collect()
    }
}
