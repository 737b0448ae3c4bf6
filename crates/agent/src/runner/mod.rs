//! Carries tasks out: one at a time, each at most once, whatever happens to the connection or to the agent. Lives beside
//! the connection and longer than it.

mod execution;
mod handle;
mod judgement;
pub mod result;
pub mod spool;

use crate::identity::Key;
use crate::journal::{Ended, Entry, Fence, Journal, Phase};
use crate::setting::Setting;
use crate::task::Outcome;
use domain::Timestamp;
use domain::stage::FailureClass;
use execution::{Behind, Event, Execution};
pub use handle::{Command, Handle, Here, Link, Uninstall};
use judgement::{Verdict, judge};
use proto::agent::v1 as wire;
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::task::Kind;
use serde_json::json;
use spool::Spool;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const COMMANDS: usize = 16;
/// Output of this many tasks is kept at most; each is bounded by itself.
const SPOOLS_MAX: usize = 4;
/// Between two messages of output or result: small prints gather meanwhile, and a server that bounds what it is sent is
/// not flooded.
const BULK_EVERY: Duration = Duration::from_millis(33);
/// A result that nobody has stored is told again after this.
const RESEND_EVERY: Duration = Duration::from_secs(30);
/// At the end of the agent a task has this long to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Of a result that is not taken: nobody will ask for this task again. All others may be asked for again, under a newer
/// fence: `OLD_FENCE`, where that is on its way already, and `EXPIRED`, where the task was withdrawn or its lease ran out.
const OVER: [&str; 2] = ["NOT_YOURS", "ALREADY_ENDED"];
const LEASE_DEFAULT: Duration = Duration::from_secs(60);

pub fn start(setting: Setting, key: Key, journal: Journal) -> Handle {
    let (commands, received) = mpsc::channel(COMMANDS);
    let (here, seen) = watch::channel(Here::default());
    let departed = CancellationToken::new();
    let handle = Handle { commands, here: seen, departed: departed.clone() };
    let mut runner = Runner {
        setting,
        key,
        journal,
        queue: VecDeque::new(),
        current: None,
        behind: None,
        spools: VecDeque::new(),
        link: None,
        unsent: VecDeque::new(),
        renew_at: Instant::now(),
        resend_at: Instant::now(),
        bulk_at: Instant::now(),
        here,
        departed,
    };
    runner.recover();
    tokio::spawn(runner.run(received));
    handle
}

struct Waiting {
    id: String,
    kind: Kind,
    seconds: u32,
    deadline: Option<Timestamp>,
}

struct Runner {
    setting: Setting,
    key: Key,
    journal: Journal,
    queue: VecDeque<Waiting>,
    current: Option<Execution>,
    /// Nothing begins beside it.
    behind: Option<Behind>,
    spools: VecDeque<(String, Spool)>,
    link: Option<Link>,
    /// Results to be sent on this connection.
    unsent: VecDeque<String>,
    renew_at: Instant,
    resend_at: Instant,
    bulk_at: Instant,
    here: watch::Sender<Here>,
    departed: CancellationToken,
}

impl Runner {
    /// What was under way when the agent ended has come to something by now, or is told as interrupted.
    fn recover(&mut self) {
        let open: Vec<(String, Entry)> = self.journal.entries().map(|(id, e)| (id.clone(), e.clone())).collect();
        for (id, entry) in open {
            let (outcome, started) = match entry.phase {
                Phase::Received => (result::interrupted(false), self.setting.clock.estimate().now),
                Phase::Started { at_micros } => {
                    let known = entry.kind().and_then(|kind| (self.setting.after_restart)(&kind, &self.setting.host));
                    (known.unwrap_or_else(|| result::interrupted(true)), Timestamp::from_micros(at_micros))
                }
                Phase::Ended(_) => continue,
                Phase::Departing => {
                    self.departed.cancel();
                    continue;
                }
            };
            tracing::warn!(task = %id, fence = %entry.fence, ok = outcome.is_ok(), "a task was under way when the agent ended");
            self.conclude(&id, outcome, started);
        }
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            self.begin_next();
            self.publish();
            let (renews, resends, has_bulk) = (self.renews(), self.resends(), self.has_bulk());
            tokio::select! {
                command = commands.recv() => match command {
                    None => return,
                    Some(Command::Stop(done)) => {
                        self.stop().await;
                        self.publish();
                        // whoever asked may be gone
                        done.send(()).unwrap_or_default();
                        return;
                    }
                    Some(command) => self.obey(command),
                },
                event = event(&mut self.current) => self.happened(event),
                over = ended(&mut self.behind) => if over { self.behind = None } else { self.give_up_waiting() },
                permit = room(self.link.as_ref(), has_bulk, self.bulk_at) => match permit {
                    Some(permit) => if let Some(message) = self.next_bulk() {
                        permit.send(wire::FromAgent { message: Some(message) });
                        self.bulk_at = Instant::now() + BULK_EVERY;
                    },
                    None => self.link = None,
                },
                () = tokio::time::sleep_until(self.renew_at), if renews => self.renew_leases(),
                () = tokio::time::sleep_until(self.resend_at), if resends => self.resend(),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Attach(link) => {
                self.link = Some(link);
                for (_, spool) in &mut self.spools {
                    spool.rewind();
                }
                self.renew_at = Instant::now() + self.renewal();
                self.resend();
            }
            Command::Detach => self.link = None,
            Command::Task(task) => self.dispatch(*task),
            Command::Cancel(cancel) => self.cancel(&cancel),
            Command::ResultStored(stored) => self.stored(&stored),
            Command::OutputStored(stored) => {
                if let Some(spool) = self.spool(&stored.task_id) {
                    spool.stored(stored.offset);
                }
            }
            Command::EndAll(reason) => self.end_all(&reason),
            // taken by the caller
            Command::Stop(_) => {}
        }
    }

    /// Not under this fence, however often it comes.
    fn refuse_for_good(&mut self, task: &wire::Task, fence: Fence, code: &'static str, message: String) {
        if let Err(e) = self.journal.raise(fence) {
            tracing::error!(error = %e, "the fence of a task that is refused cannot be written down");
        }
        self.refuse(task, code, message);
    }

    fn dispatch(&mut self, task: wire::Task) {
        let id = task.task_id.clone();
        let here = self.queue.len() + usize::from(self.current.is_some());
        let fence = match judge(&self.journal, &task, here) {
            Verdict::Refuse { code, message, seen } => {
                return match seen {
                    Some(fence) => self.refuse_for_good(&task, fence, code, message),
                    None => self.refuse(&task, code, message),
                };
            }
            Verdict::Take(fence) | Verdict::Known(fence) => fence,
        };
        let unwritten =
            |e: String| ("BUSY", format!("the fence cannot be written down, and nothing is done before: {e}"));
        if let Some(mut entry) = self.journal.get(&id).cloned() {
            if let Err((code, message)) = self.journal.raise(fence).map_err(unwritten) {
                return self.refuse(&task, code, message);
            }
            entry.fence = fence;
            let tell = if let Phase::Ended(ended) = &mut entry.phase {
                ended.outdated = false;
                true
            } else {
                false
            };
            tracing::info!(task = %id, %fence, ended = tell, "a task that is here came once more");
            self.put(&id, entry);
            if tell {
                self.queue_result(&id);
            }
            return;
        }
        if let Some(why) = self.hangs() {
            return self.refuse(&task, "BUSY", why);
        }
        // judged to have one
        let Some(kind) = task.kind.clone() else { return };
        if !self.journal.make_room() {
            let message = "results of earlier tasks have not been stored yet".to_owned();
            return self.refuse_for_good(&task, fence, "BUSY", message);
        }
        // the task first, which has its fence with it: who dies between the two finds a task that was interrupted, and
        // not a fence that was seen with nothing to show for it
        if let Err(e) = self.journal.put(&id, Entry::new(&task, fence)) {
            drop(self.journal.forget(&id));
            let message = format!("the task cannot be written down, and nothing is done before: {e}");
            return self.refuse_for_good(&task, fence, "BUSY", message);
        }
        if let Err((code, message)) = self.journal.raise(fence).map_err(unwritten) {
            drop(self.journal.forget(&id));
            return self.refuse(&task, code, message);
        }
        tracing::info!(task = %id, %fence, kind = name(&kind), "a task has come");
        let deadline = task.deadline.as_ref().map(crate::clock::from_wire);
        self.queue.push_back(Waiting { id, kind, seconds: task.timeout_seconds, deadline });
    }

    fn begin_next(&mut self) {
        while self.current.is_none() && self.behind.is_none() {
            let Some(Waiting { id, kind, seconds, deadline }) = self.queue.pop_front() else { return };
            let known = self.setting.clock.estimate();
            if known.proven && deadline.is_some_and(|deadline| known.now > deadline) {
                let message = "its deadline had passed before it could begin".to_owned();
                let late = result::failed("DEADLINE", FailureClass::Transient, message, json!({ "began": false }));
                self.conclude(&id, Err(late), known.now);
                continue;
            }
            let Some(mut entry) = self.journal.get(&id).cloned() else { continue };
            entry.phase = Phase::Started { at_micros: known.now.micros() };
            if let Err(e) = self.journal.put(&id, entry) {
                let message = format!("that it begins cannot be written down, and nothing is done before: {e}");
                let unwritten = result::failed("JOURNAL", FailureClass::Transient, message, json!({ "began": false }));
                self.conclude(&id, Err(unwritten), known.now);
                continue;
            }
            while self.spools.len() >= SPOOLS_MAX {
                self.spools.pop_front();
            }
            self.spools.push_back((id.clone(), Spool::default()));
            self.current = Some(Execution::begin(id, kind, seconds, &self.setting, known.now));
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Printed(stream, data) => {
                if let Some(id) = self.current.as_ref().map(|c| c.id.clone())
                    && let Some(spool) = self.spool(&id)
                {
                    spool.push(stream, &data);
                }
            }
            Event::Finished(finished) => {
                let Some(mut execution) = self.current.take() else { return };
                let outcome = execution.outcome(finished);
                self.keep_last_prints(&mut execution);
                self.conclude(&execution.id, outcome, execution.started);
                self.behind = execution.left_behind();
            }
        }
    }

    /// What waits behind work that hangs is told so, and nothing of it was begun.
    fn give_up_waiting(&mut self) {
        let why = self.hangs().unwrap_or_default();
        tracing::error!("{why}");
        for Waiting { id, .. } in std::mem::take(&mut self.queue) {
            let busy = result::failed("BUSY", FailureClass::Transient, why.clone(), json!({ "began": false }));
            self.conclude(&id, Err(busy), self.setting.clock.estimate().now);
        }
    }

    fn hangs(&self) -> Option<String> {
        let behind = self.behind.as_ref().filter(|behind| behind.is_long())?;
        Some(format!(
            "task {} has ended, but a part of it still works and cannot be ended: nothing begins beside it",
            behind.id
        ))
    }

    fn keep_last_prints(&mut self, execution: &mut Execution) {
        let id = execution.id.clone();
        if let Some(spool) = self.spool(&id) {
            for (stream, data) in execution.last_prints() {
                spool.push(stream, &data);
            }
        }
    }

    /// Written down, then told.
    fn conclude(&mut self, id: &str, outcome: Outcome, started: Timestamp) {
        let ended = result::ended(outcome, started, self.setting.clock.estimate().now);
        let Some(mut entry) = self.journal.get(id).cloned() else { return };
        tracing::info!(task = %id, ok = ended.ok, code = %ended.code, "a task has ended: {}", ended.message);
        entry.phase = Phase::Ended(ended);
        self.put(id, entry);
        self.queue_result(id);
    }

    /// What happened has happened: if it cannot be written down, it is told all the same.
    fn put(&mut self, id: &str, entry: Entry) {
        if let Err(e) = self.journal.put(id, entry) {
            tracing::error!(task = %id, error = %e, "what became of a task cannot be written down");
        }
    }

    fn queue_result(&mut self, id: &str) {
        if self.link.is_some() && !self.unsent.iter().any(|other| other == id) {
            self.unsent.push_back(id.to_owned());
            self.resend_at = Instant::now() + RESEND_EVERY;
        }
    }

    fn cancel(&mut self, cancel: &wire::Cancel) {
        let (id, fence) = (&cancel.task_id, cancel.fence.map(Fence::from).unwrap_or_default());
        if self.journal.get(id).is_none_or(|entry| fence < entry.fence) {
            tracing::info!(task = %id, %fence, "a task that is not here, or has a newer fence, is not canceled");
            return;
        }
        if let Some(current) = self.current.as_mut().filter(|c| c.id == *id) {
            current.end(&cancel.reason);
        } else if let Some(n) = self.queue.iter().position(|w| w.id == *id) {
            self.queue.remove(n);
            self.never_begun(id, &cancel.reason);
        }
    }

    fn never_begun(&mut self, id: &str, reason: &str) {
        let message = format!("canceled before it began ({reason})");
        let canceled = result::failed("CANCELED", FailureClass::NeedsOperator, message, json!({ "began": false }));
        self.conclude(id, Err(canceled), self.setting.clock.estimate().now);
    }

    fn end_all(&mut self, reason: &str) {
        for Waiting { id, .. } in std::mem::take(&mut self.queue) {
            self.never_begun(&id, reason);
        }
        if let Some(current) = &mut self.current {
            current.end(reason);
        }
    }

    fn stored(&mut self, stored: &wire::ResultStored) {
        let id = &stored.task_id;
        let Some(mut entry) = self.journal.get(id).cloned() else { return };
        let departs = matches!(entry.kind(), Some(Kind::NodeUninstall(_)));
        let Phase::Ended(ended) = &mut entry.phase else { return };
        self.unsent.retain(|other| other != id);
        if !stored.applied && !OVER.contains(&stored.reason.as_str()) {
            // it may be on its way under a newer fence: forgotten, it would be carried out again
            let (fence, reason) = (entry.fence, &stored.reason);
            tracing::warn!(task = %id, %fence, %reason, "the server does not take a result under this fence");
            ended.outdated = true;
            return self.put(id, entry);
        }
        self.spools.retain(|(other, _)| other != id);
        if stored.applied && departs && ended.ok {
            entry.phase = Phase::Departing;
            self.put(id, entry);
            return self.departed.cancel();
        }
        if !stored.applied {
            tracing::warn!(task = %id, reason = %stored.reason, "the server does not want a result");
        }
        if let Err(e) = self.journal.forget(id) {
            tracing::error!(task = %id, error = %e, "a result that is stored cannot be removed");
        }
    }

    async fn stop(&mut self) {
        let Some(mut execution) = self.current.take() else { return };
        tracing::info!(task = %execution.id, "a task is ended with the agent");
        execution.end("the agent was stopped");
        let ends = async {
            loop {
                if let Event::Finished(finished) = execution.event().await {
                    return finished;
                }
            }
        };
        // what is done is done; what is not is told as interrupted, by whoever starts next
        if let Ok(Ok(Ok(done))) = tokio::time::timeout(STOP_WITHIN, ends).await {
            self.conclude(&execution.id, Ok(done), execution.started);
        }
    }

    fn refuse(&mut self, task: &wire::Task, code: &str, message: String) {
        tracing::warn!(task = %task.task_id.escape_debug(), code, "a task is refused: {message}");
        self.control(Message::Refusal(wire::TaskRefusal {
            task_id: task.task_id.clone(),
            fence: task.fence,
            code: code.to_owned(),
            message,
            highest_seen: Some(self.journal.highest().into()),
        }));
    }

    fn control(&mut self, message: Message) {
        if let Some(link) = &self.link
            && link.control.try_send(wire::FromAgent { message: Some(message) }).is_err()
        {
            // a server that sends and does not read
            link.broken.cancel();
            self.link = None;
        }
    }

    fn renewal(&self) -> Duration {
        let lease = self.link.as_ref().map_or(LEASE_DEFAULT, |link| link.lease);
        (lease / 3).max(Duration::from_secs(1))
    }

    fn renews(&self) -> bool {
        self.link.is_some() && (self.current.is_some() || !self.queue.is_empty())
    }

    fn renew_leases(&mut self) {
        self.renew_at = Instant::now() + self.renewal();
        for task in self.running() {
            self.control(Message::Renewal(wire::TaskRenewal { task_id: task.task_id, fence: task.fence }));
        }
    }

    fn ended(&self) -> impl Iterator<Item = (&String, &Entry, &Ended)> {
        self.journal.entries().filter_map(|(id, entry)| match &entry.phase {
            Phase::Ended(ended) if !ended.outdated => Some((id, entry, ended)),
            _ => None,
        })
    }

    fn resends(&self) -> bool {
        self.link.is_some() && self.ended().next().is_some()
    }

    fn resend(&mut self) {
        self.resend_at = Instant::now() + RESEND_EVERY;
        let mut results: Vec<(Fence, String)> = self.ended().map(|(id, entry, _)| (entry.fence, id.clone())).collect();
        results.sort();
        self.unsent = results.into_iter().map(|(_, id)| id).collect();
    }

    fn running(&self) -> Vec<wire::RunningTask> {
        let ids = self.current.iter().map(|c| &c.id).chain(self.queue.iter().map(|w| &w.id));
        ids.filter_map(|id| self.journal.get(id).map(|entry| task_of(id, entry))).collect()
    }

    fn uninstall(&self) -> Uninstall {
        let mut far = Uninstall::None;
        let asked = |entry: &&Entry| matches!(entry.kind(), Some(Kind::NodeUninstall(_)));
        for entry in self.journal.entries().map(|(_, entry)| entry).filter(asked) {
            match &entry.phase {
                Phase::Departing => return Uninstall::Done,
                Phase::Ended(ended) if ended.ok && !ended.outdated => return Uninstall::Done,
                Phase::Ended(ended) if ended.ok => far = Uninstall::Outdated,
                Phase::Received | Phase::Started { .. } | Phase::Ended(_) => {}
            }
        }
        far
    }

    fn publish(&self) {
        let now = Here {
            running: self.running(),
            ended: self.ended().map(|(id, entry, _)| task_of(id, entry)).collect(),
            uninstall: self.uninstall(),
        };
        self.here.send_if_modified(|seen| {
            let changed = *seen != now;
            *seen = now;
            changed
        });
    }

    fn spool(&mut self, id: &str) -> Option<&mut Spool> {
        self.spools.iter_mut().find(|(other, _)| other == id).map(|(_, spool)| spool)
    }

    fn has_bulk(&self) -> bool {
        !self.unsent.is_empty() || self.spools.iter().any(|(_, spool)| spool.waits())
    }

    /// A task's output, then its result; results before the output of others.
    fn next_bulk(&mut self) -> Option<Message> {
        let ready = |id: &String| self.spools.iter().all(|(other, spool)| other != id || !spool.waits());
        if let Some(n) = self.unsent.iter().position(ready) {
            let id = self.unsent.remove(n)?;
            let entry = self.journal.get(&id)?;
            let Phase::Ended(ended) = &entry.phase else { return None };
            return match result::message(&id, entry.fence, ended, &self.key) {
                Ok(message) => Some(Message::Result(message)),
                Err(e) => {
                    tracing::error!(task = %id, error = %e, "a result cannot be signed; it is tried again");
                    None
                }
            };
        }
        let (id, spool) = self.spools.iter_mut().find(|(_, spool)| spool.waits())?;
        let chunk = spool.take()?;
        let fence = self.journal.get(id).map(|entry| entry.fence.into());
        Some(Message::Output(wire::TaskOutput {
            task_id: id.clone(),
            fence,
            offset: chunk.offset,
            stream: chunk.stream.to_owned(),
            data: chunk.data,
            dropped: chunk.dropped,
        }))
    }
}

fn task_of(id: &str, entry: &Entry) -> wire::RunningTask {
    wire::RunningTask { task_id: id.to_owned(), fence: Some(entry.fence.into()) }
}

async fn event(current: &mut Option<Execution>) -> Event {
    match current {
        Some(execution) => execution.event().await,
        None => std::future::pending().await,
    }
}

async fn ended(behind: &mut Option<Behind>) -> bool {
    match behind {
        Some(behind) => behind.ended().await,
        None => std::future::pending().await,
    }
}

/// A place for one message, or nothing if the connection has ended.
async fn room(link: Option<&Link>, wanted: bool, at: Instant) -> Option<mpsc::OwnedPermit<wire::FromAgent>> {
    match link.filter(|_| wanted) {
        Some(link) => {
            tokio::time::sleep_until(at).await;
            link.bulk.clone().reserve_owned().await.ok()
        }
        None => std::future::pending().await,
    }
}

fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::NodeDrain(_) => "node.drain",
        Kind::NodeUninstall(_) => "node.uninstall",
        Kind::NodeValidateClean(_) => "node.validate_clean",
        Kind::NodeCleanupStorage(_) => "node.cleanup_storage",
        Kind::NodeScrubGpu(_) => "node.scrub_gpu",
        Kind::HostExec(_) => "host.exec",
        Kind::HostReboot(_) => "host.reboot",
    }
}
