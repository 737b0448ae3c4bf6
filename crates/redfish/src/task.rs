//! Work that a controller goes on with by itself after it has said 202: followed to its end, within bounds.

use crate::client::{self, Client, Yes};
use crate::json;
use crate::wire::Answer;
use domain::hardware::ControllerTask;
use domain::limits;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderError, ProviderResult};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// However long a controller asks us to wait between two looks.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Changes something and follows it to its end. `Accepted`: it is still going on after the time that one waits.
pub async fn carry_out(client: &Client, method: Method, path: &str, body: &Value, what: &str) -> ProviderResult<Ack> {
    match client.change(method, path, body, what).await? {
        Yes::Done(..) => Ok(Ack::Done),
        Yes::Task(None) => Ok(Ack::Accepted),
        Yes::Task(Some(task)) => follow(client, &task, what).await,
    }
}

async fn follow(client: &Client, task: &str, what: &str) -> ProviderResult<Ack> {
    let deadline = Instant::now() + client.timeouts.task;
    loop {
        let (seen, pause) = match client.look(task).await {
            Ok(answer) if answer.status == 404 => {
                let gone = format!("{}: to {what} became {task}, which is gone", client.name);
                return Err(ProviderError::unknown(gone));
            }
            Ok(answer) => (judge(client, task, &answer), client::retry_after(&answer.headers)),
            Err(e) => (Err(e), None),
        };
        match seen {
            Ok(ControllerTask::Done { .. }) => return Ok(Ack::Done),
            Ok(ControllerTask::Failed { message }) => {
                let why = format!("accepted to {what} and failed at it: {message}");
                return Err(client.refused(FailureClass::Transient, &why));
            }
            Ok(ControllerTask::Running { .. }) | Err(_) => {}
        }
        let next = Instant::now() + pause.unwrap_or_default().min(PAUSE_MAX).max(client.timeouts.poll);
        if next >= deadline {
            return match seen {
                Ok(_) => Ok(Ack::Accepted),
                Err(e) => Err(ProviderError::unknown(format!("{}: to {what} became {task}: {e}", client.name))),
            };
        }
        tokio::time::sleep_until(next).await;
    }
}

pub async fn task(client: &Client, task: &str) -> ProviderResult<ControllerTask> {
    if !json::is_path(task) || !task.starts_with("/redfish/") {
        let why = format!("has no task {task:?}; a task is named by its path, such as /redfish/v1/TaskService/Tasks/1");
        return Err(client.refused(FailureClass::InvalidInput, &why));
    }
    let answer = client.look(task).await?;
    judge(client, task, &answer)
}

/// A task resource tells its state; a task monitor is 202 until it answers what the change itself would have.
fn judge(client: &Client, task: &str, answer: &Answer) -> ProviderResult<ControllerTask> {
    let value: Value = match (answer.status, serde_json::from_slice(&answer.body)) {
        (200, Err(e)) if !answer.body.is_empty() => return Err(client.bad_answer(&format!("{task} is not JSON: {e}"))),
        (_, Ok(value)) => value,
        (_, Err(_)) => Value::Null,
    };
    let message = limits::short(&client::messages(&answer.body));
    let percent = json::number(&value, "/PercentComplete").filter(|p| (0.0..=100.0).contains(p)).map(|p| p as u8);
    let state = json::text(&value, "/TaskState");
    if !matches!(answer.status, 200..300) {
        if !state.is_empty() || (400..500).contains(&answer.status) && !matches!(answer.status, 404 | 408 | 429) {
            return Ok(ControllerTask::Failed { message });
        }
        return client.value(task, answer).map(|_| ControllerTask::Running { percent, message });
    }
    Ok(match state.as_str() {
        "Completed" => ControllerTask::Done { message },
        "Exception" | "Killed" | "Cancelled" | "Interrupted" => {
            let message = if message.is_empty() { format!("its task ended as {state}") } else { message };
            ControllerTask::Failed { message }
        }
        "" if answer.status != 202 => ControllerTask::Done { message },
        _ => ControllerTask::Running { percent, message },
    })
}
