//! How a task ended, in the words that are kept and sent: bounded, and signed by the node's key.

use crate::clock::to_wire;
use crate::identity::Key;
use crate::journal::{Ended, Fence};
use crate::task::{Done, Failed, Outcome};
use domain::Timestamp;
use domain::stage::FailureClass;
use proto::agent::v1 as wire;
use serde_json::json;

/// More the server does not take.
const DETAIL_MAX: usize = 256 * 1024;
const MESSAGE_MAX: usize = 4 * 1024;

pub fn interrupted(began: bool) -> Outcome {
    let message = if began {
        "the agent ended in the middle of it; how far it got is not known"
    } else {
        "the agent ended before it began"
    };
    Err(failed("INTERRUPTED", FailureClass::Transient, message.to_owned(), json!({ "began": began })))
}

pub fn failed(code: &'static str, class: FailureClass, message: String, detail: serde_json::Value) -> Failed {
    Failed { code, class, message, detail }
}

pub fn ended(outcome: Outcome, started: Timestamp, finished: Timestamp) -> Ended {
    let (ok, code, class, message, detail) = match outcome {
        Ok(Done { message, detail }) => (true, "", "", message, detail),
        Err(Failed { code, class, message, detail }) => (false, code, class.as_str(), message, detail),
    };
    let detail = if detail.is_null() { "{}".to_owned() } else { detail.to_string() };
    let detail_json = if detail.len() > DETAIL_MAX {
        json!({ "left_out": "the detail was too large", "bytes": detail.len() }).to_string()
    } else {
        detail
    };
    Ended {
        ok,
        code: code.to_owned(),
        failure_class: class.to_owned(),
        message: shortened(message),
        detail_json,
        started_micros: started.micros(),
        finished_micros: finished.micros(),
        outdated: false,
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let mut end = MESSAGE_MAX;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The text that the signature is over.
pub fn signed_text(task_id: &str, fence: Fence, ok: bool, detail_json: &str) -> String {
    format!("millwright task result v1\n{task_id}\n{fence}\n{ok}\n{detail_json}")
}

pub fn message(task_id: &str, fence: Fence, ended: &Ended, key: &Key) -> Result<wire::TaskResult, String> {
    let text = signed_text(task_id, fence, ended.ok, &ended.detail_json);
    Ok(wire::TaskResult {
        task_id: task_id.to_owned(),
        fence: Some(fence.into()),
        ok: ended.ok,
        code: ended.code.clone(),
        failure_class: ended.failure_class.clone(),
        message: ended.message.clone(),
        detail_json: ended.detail_json.clone(),
        signature: key.sign(text.as_bytes())?,
        started_at: Some(to_wire(ended.started())),
        finished_at: Some(to_wire(ended.finished())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_left_out_and_said_to_be() {
        let outcome = Ok(Done { message: "ü".repeat(MESSAGE_MAX), detail: json!("x".repeat(DETAIL_MAX)) });
        let ended = ended(outcome, Timestamp::default(), Timestamp::default());
        assert!(ended.message.len() <= MESSAGE_MAX + 3 && ended.message.ends_with('…'));
        assert!(ended.detail_json.contains("left_out") && ended.detail_json.len() < 100);
    }

    #[test]
    fn the_signed_text_is_as_agreed() {
        let text = signed_text("t-1", Fence { epoch: 3, counter: 14 }, true, "{\"a\":1}");
        assert_eq!(text, "millwright task result v1\nt-1\n3.14\ntrue\n{\"a\":1}");
    }
}
