//! What to do with a task that comes from the server: a pure decision over what is written down.

use crate::journal::{Fence, Journal, is_id};
use proto::agent::v1 as wire;

/// The one that runs, and a few behind it.
pub const QUEUE_MAX: usize = 4;

#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// To be carried out, for the first time.
    Take(Fence),
    /// It is here already: it goes on, or its result goes out, under this fence.
    Known(Fence),
    Refuse {
        code: &'static str,
        message: String,
        seen: Option<Fence>,
    },
}

/// `here` counts what runs or waits to run.
pub fn judge(journal: &Journal, task: &wire::Task, here: usize) -> Verdict {
    let refuse = |code, message: String, seen| Verdict::Refuse { code, message, seen };
    if !is_id(&task.task_id) {
        return refuse("INVALID", "the task has no usable id".to_owned(), None);
    }
    let Some(fence) = task.fence.map(Fence::from) else {
        return refuse("INVALID", "the task has no fence".to_owned(), None);
    };
    let highest = journal.highest();
    let known = journal.get(&task.task_id);
    let old = match known {
        // once more under the same fence: an answer was lost
        Some(entry) => fence < highest || fence < entry.fence,
        // one that is not known any more has ended under its fence
        None => fence <= highest,
    };
    if old {
        return refuse("OLD_FENCE", format!("fence {fence} is not above {highest}, which was seen already"), None);
    }
    if known.is_some() {
        return Verdict::Known(fence);
    }
    if task.kind.is_none() {
        let version = env!("CARGO_PKG_VERSION");
        return refuse(
            "UNKNOWN_TASK",
            format!("agent {version} does not know this kind of task; update it"),
            Some(fence),
        );
    }
    if here >= QUEUE_MAX {
        return refuse("BUSY", format!("{here} tasks are here already"), Some(fence));
    }
    Verdict::Take(fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Entry;
    use proto::agent::v1::task::Kind;

    fn task(id: &str, epoch: u64, counter: u64) -> wire::Task {
        wire::Task {
            task_id: id.to_owned(),
            fence: Some(wire::Fence { epoch, counter }),
            kind: Some(Kind::NodeUninstall(wire::NodeUninstall {})),
            ..Default::default()
        }
    }

    fn code(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Take(_) => "take",
            Verdict::Known(_) => "known",
            Verdict::Refuse { code, .. } => code,
        }
    }

    #[test]
    fn every_case_has_its_answer() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node").expect("opened");
        journal.raise(Fence { epoch: 2, counter: 10 }).expect("written");
        let here = Entry::new(&task("here", 2, 10), Fence { epoch: 2, counter: 10 });
        journal.put("here", here).expect("written");
        let earlier = Entry::new(&task("earlier", 2, 8), Fence { epoch: 2, counter: 8 });
        journal.put("earlier", earlier).expect("written");
        let cases = [
            (task("new", 2, 11), 0, "take"),
            (task("new", 3, 1), 0, "take"),
            (task("new", 3, 1), QUEUE_MAX, "BUSY"),
            (task("new", 2, 10), 0, "OLD_FENCE"),
            (task("new", 1, 99), 0, "OLD_FENCE"),
            (task("here", 2, 10), 0, "known"),
            (task("here", 2, 12), QUEUE_MAX, "known"),
            (task("here", 2, 9), 0, "OLD_FENCE"),
            (task("earlier", 2, 8), 0, "OLD_FENCE"),
            (task("earlier", 2, 11), 0, "known"),
            (wire::Task { kind: None, ..task("new", 2, 11) }, 0, "UNKNOWN_TASK"),
            (wire::Task { fence: None, ..task("new", 2, 11) }, 0, "INVALID"),
            (task("../../etc/passwd", 2, 11), 0, "INVALID"),
        ];
        for (task, here, expected) in cases {
            assert_eq!(code(judge(&journal, &task, here)), expected, "{} {:?}", task.task_id, task.fence);
        }
    }
}
