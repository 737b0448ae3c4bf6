//! What the agent must not forget over its own death: the highest fence it has seen, and for each task how far it got.
//! Written before the act, one file for each task: a task that was begun is never begun again, and a result is told until
//! the server has it.
//!
//! ```text
//! received -> started -> ended -> (forgotten when the server has stored the result)
//!                          |
//!                          +-> departing   an uninstallation whose result is stored: nothing is left but to go
//! ```

use crate::folder::Folder;
use base64::Engine as _;
use domain::Timestamp;
use prost::Message as _;
use proto::agent::v1 as wire;
use proto::agent::v1::task::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// More than these are refused.
pub const KEPT_MAX: usize = 64;
const FOLDER: &str = "tasks";
const FENCE: &str = "fence.json";
/// Names of files come from the server.
const ID_MAX: usize = 64;

/// Raised by every dispatch: compared by epoch first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    pub epoch: u64,
    pub counter: u64,
}

impl From<wire::Fence> for Fence {
    fn from(fence: wire::Fence) -> Self {
        Self { epoch: fence.epoch, counter: fence.counter }
    }
}

impl From<Fence> for wire::Fence {
    fn from(fence: Fence) -> Self {
        Self { epoch: fence.epoch, counter: fence.counter }
    }
}

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub fence: Fence,
    /// The task as it came, less what is large: base64 of the message.
    task: String,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Received,
    Started { at_micros: i64 },
    Ended(Ended),
    Departing,
}

/// A result, until the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub ok: bool,
    pub code: String,
    pub failure_class: String,
    pub message: String,
    pub detail_json: String,
    pub started_micros: i64,
    pub finished_micros: i64,
    /// The server has refused it for its fence: kept for the dispatch that has the newer one, and not sent before.
    pub outdated: bool,
}

#[derive(Serialize, Deserialize)]
struct Highest {
    node_id: String,
    fence: Fence,
}

#[derive(Debug)]
pub struct Journal {
    /// Of the agent, where the fence is.
    state: std::path::PathBuf,
    folder: Folder,
    node_id: String,
    highest: Fence,
    entries: BTreeMap<String, Entry>,
}

impl Entry {
    pub fn new(task: &wire::Task, fence: Fence) -> Self {
        let mut small = task.clone();
        if let Some(Kind::HostExec(exec)) = &mut small.kind {
            exec.script.clear();
        }
        let task = base64::engine::general_purpose::STANDARD.encode(small.encode_to_vec());
        Self { fence, task, phase: Phase::Received }
    }

    /// What was asked for, less what is large.
    pub fn kind(&self) -> Option<Kind> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.task).ok()?;
        wire::Task::decode(bytes.as_slice()).ok()?.kind
    }
}

/// Whether a task's id can be the name of a file.
pub fn is_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !id.is_empty() && id.len() <= ID_MAX && id.bytes().all(plain)
}

impl Journal {
    /// What was written down for this node; what another node's agent has left in the folder is dropped.
    pub fn open(state: &Path, node_id: &str) -> Result<Self, String> {
        let own = Folder::open(state)?;
        let folder = Folder::open(state.join(FOLDER))?;
        let known: Option<Highest> = match own.read(FENCE)? {
            None => None,
            Some(content) => Some(serde_json::from_slice(&content).map_err(|e| {
                format!(
                    "{}: {e}; without the highest fence this agent cannot tell an old task from a new one: ask for a new \
                     bundle (millwright node rebootstrap NODE), remove the file and enrol again",
                    state.join(FENCE).display()
                )
            })?),
        };
        let names = folder.names()?;
        // the fence is written before any task: where there are tasks, there was one
        if known.is_none() && !names.is_empty() {
            return Err(format!(
                "{} has tasks, and {} is not there; without the highest fence this agent cannot tell an old task from a \
                 new one: ask for a new bundle (millwright node rebootstrap NODE), remove {} and enrol again",
                state.join(FOLDER).display(),
                state.join(FENCE).display(),
                state.display()
            ));
        }
        let fence = known.filter(|known| known.node_id == node_id).map(|known| known.fence);
        let mut entries = BTreeMap::new();
        for name in names {
            let id = name.trim_end_matches(".json").to_owned();
            let content = folder.read(&name)?.unwrap_or_default();
            match fence {
                // of a node that this is no more
                None => folder.remove(&name)?,
                Some(highest) => {
                    // what does not read was begun, as far as anybody knows: it will be told as interrupted
                    let entry = serde_json::from_slice(&content).unwrap_or_else(|e| {
                        tracing::error!(task = %id, error = %e, "what was written down of a task does not read");
                        let phase = Phase::Started { at_micros: 0 };
                        Entry { fence: highest, task: String::new(), phase }
                    });
                    entries.insert(id, entry);
                }
            }
        }
        // a task is written before its fence is: what has come may be above what was raised
        let seen = entries.values().map(|entry| entry.fence).max().unwrap_or_default();
        Ok(Self {
            state: state.to_owned(),
            folder,
            node_id: node_id.to_owned(),
            highest: fence.unwrap_or_default().max(seen),
            entries,
        })
    }

    pub fn highest(&self) -> Fence {
        self.highest
    }

    /// On disk before it is obeyed.
    pub fn raise(&mut self, fence: Fence) -> Result<(), String> {
        if fence > self.highest {
            let highest = Highest { node_id: self.node_id.clone(), fence };
            let content = serde_json::to_vec(&highest).map_err(|e| format!("writing down the fence: {e}"))?;
            Folder::open(&self.state)?.write(FENCE, &content)?;
            self.highest = fence;
        }
        Ok(())
    }

    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries.iter()
    }

    /// Known from now on even if it cannot be written: the caller decides what that means.
    pub fn put(&mut self, id: &str, entry: Entry) -> Result<(), String> {
        let content = serde_json::to_vec(&entry).map_err(|e| format!("writing down task {id}: {e}"))?;
        self.entries.insert(id.to_owned(), entry);
        self.folder.write(&format!("{id}.json"), &content)
    }

    pub fn forget(&mut self, id: &str) -> Result<(), String> {
        self.entries.remove(id);
        self.folder.remove(&format!("{id}.json"))
    }

    /// Whether one more finds a place: results that the server does not want any more make room.
    pub fn make_room(&mut self) -> bool {
        while self.entries.len() >= KEPT_MAX {
            let outdated = |entry: &Entry| matches!(&entry.phase, Phase::Ended(ended) if ended.outdated);
            let oldest = self.entries.iter().filter(|(_, e)| outdated(e)).min_by_key(|(_, e)| e.fence);
            let Some(id) = oldest.map(|(id, _)| id.clone()) else { return false };
            if let Err(e) = self.forget(&id) {
                tracing::error!(task = %id, error = %e, "an old result cannot be removed");
            }
        }
        true
    }
}

impl Ended {
    pub fn started(&self) -> Timestamp {
        Timestamp::from_micros(self.started_micros)
    }

    pub fn finished(&self) -> Timestamp {
        Timestamp::from_micros(self.finished_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> wire::Task {
        let exec = wire::HostExec { sha256: "ab".to_owned(), script: vec![7; 100_000], args: vec!["x".to_owned()] };
        wire::Task { task_id: id.to_owned(), kind: Some(Kind::HostExec(exec)), ..Default::default() }
    }

    fn fence(epoch: u64, counter: u64) -> Fence {
        Fence { epoch, counter }
    }

    #[test]
    fn fences_are_compared_by_epoch_first() {
        assert!(fence(2, 1) > fence(1, 9) && fence(1, 9) > fence(1, 8));
    }

    #[test]
    fn what_was_written_down_is_there_after_a_restart_and_scripts_are_not_kept() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("opened");
        journal.raise(fence(1, 5)).expect("written");
        journal.raise(fence(1, 4)).expect("nothing to do");
        journal.put("t-1", Entry::new(&task("t-1"), fence(1, 5))).expect("written");
        let again = Journal::open(scratch.path(), "node-a").expect("opened");
        assert_eq!(again.highest(), fence(1, 5));
        let entry = again.get("t-1").expect("there");
        let Some(Kind::HostExec(exec)) = entry.kind() else { panic!("another kind") };
        assert!(exec.script.is_empty() && exec.args == ["x"]);
        journal.forget("t-1").expect("removed");
        assert_eq!(Journal::open(scratch.path(), "node-a").expect("opened").entries().count(), 0);
    }

    #[test]
    fn who_dies_between_a_task_and_its_fence_has_seen_both() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("opened");
        journal.raise(fence(1, 5)).expect("written");
        journal.put("t-6", Entry::new(&task("t-6"), fence(1, 6))).expect("written");
        let again = Journal::open(scratch.path(), "node-a").expect("opened");
        assert_eq!((again.highest(), again.get("t-6").map(|e| e.fence)), (fence(1, 6), Some(fence(1, 6))));
    }

    #[test]
    fn another_node_begins_anew_in_the_same_folder() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("opened");
        journal.raise(fence(3, 5)).expect("written");
        journal.put("t-1", Entry::new(&task("t-1"), fence(3, 5))).expect("written");
        let other = Journal::open(scratch.path(), "node-b").expect("opened");
        assert_eq!((other.highest(), other.entries().count()), (Fence::default(), 0));
    }

    #[test]
    fn an_entry_that_does_not_read_counts_as_begun_and_a_fence_that_does_not_is_an_error() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("opened");
        journal.raise(fence(1, 5)).expect("written");
        std::fs::write(scratch.path().join("tasks/t-9.json"), "{").expect("written");
        let again = Journal::open(scratch.path(), "node-a").expect("opened");
        assert_eq!(again.get("t-9").map(|e| e.phase.clone()), Some(Phase::Started { at_micros: 0 }));
        std::fs::write(scratch.path().join("fence.json"), "{").expect("written");
        let refused = Journal::open(scratch.path(), "node-a").expect_err("no fence");
        assert!(refused.contains("rebootstrap"), "{refused}");
    }

    #[test]
    fn tasks_without_a_fence_are_an_error_and_only_an_empty_folder_begins_at_zero() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("nothing is there: it begins");
        journal.raise(fence(1, 5)).expect("written");
        journal.put("t-1", Entry::new(&task("t-1"), fence(1, 5))).expect("written");
        std::fs::remove_file(scratch.path().join("fence.json")).expect("lost");
        for node in ["node-a", "node-b"] {
            let refused = Journal::open(scratch.path(), node).expect_err("no fence");
            assert!(refused.contains("rebootstrap") && refused.contains("fence.json"), "{refused}");
        }
        assert!(scratch.path().join("tasks/t-1.json").exists(), "nothing was dropped");
        std::fs::remove_file(scratch.path().join("tasks/t-1.json")).expect("removed");
        assert_eq!(Journal::open(scratch.path(), "node-a").expect("opened").highest(), Fence::default());
    }

    #[test]
    fn room_is_made_by_what_nobody_waits_for_and_by_nothing_else() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(scratch.path(), "node-a").expect("opened");
        for n in 0..KEPT_MAX as u64 {
            journal.put(&format!("t-{n}"), Entry::new(&task("t"), fence(1, n))).expect("written");
        }
        assert!(!journal.make_room());
        let ended = Ended {
            ok: true,
            code: String::new(),
            failure_class: String::new(),
            message: String::new(),
            detail_json: "{}".to_owned(),
            started_micros: 0,
            finished_micros: 0,
            outdated: true,
        };
        for n in [7, 9] {
            let entry = Entry { phase: Phase::Ended(ended.clone()), ..Entry::new(&task("t"), fence(1, n)) };
            journal.put(&format!("t-{n}"), entry).expect("written");
        }
        assert!(journal.make_room());
        assert!(journal.get("t-7").is_none() && journal.get("t-9").is_some());
    }

    #[test]
    fn ids_that_would_be_paths_are_none() {
        for id in ["", "../x", "a/b", "a.b", "ä", &"x".repeat(65)] {
            assert!(!is_id(id), "{id}");
        }
        assert!(is_id("0198f0de-1234-7abc-8def-001122334455"));
    }
}
