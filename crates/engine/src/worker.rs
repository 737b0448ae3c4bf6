//! One worker drives one execution from commit to commit until it ends, sleeps, or is taken away.

use crate::engine::Core;
use crate::lease::Lease;
use crate::options::{SHORT_WAIT, TROUBLE_PAUSE, UNKNOWN_RECHECK};
use crate::workflow::{Acted, Event, Failure, Look, Seen, StageCx, Work};
use domain::stage::{Ending, FailureClass, Next, Outcome, Position, StageDecl, backoff, mix, next};
use domain::{Error, Reason, Timestamp};
use futures::FutureExt as _;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use store::execution::{self, Entry, Execution, Status};
use store::{Caller, is_fenced, switch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a worker lets go of an execution before it has ended.
enum Stop {
    /// It is stored for the next claim.
    Released,
    /// Somebody else has it, or the engine was killed: write nothing more.
    Taken,
    /// The store failed; read what is durable and go on from there.
    Trouble(Error),
}

type Step<T> = Result<T, Stop>;

/// What the engine stores about the stage in hand, beside the stage's own facts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Facts {
    /// The product knows that the stage has begun.
    entered: bool,
    /// This attempt has acted.
    acted: bool,
    /// The act was counted against the rack's cap.
    counted: bool,
    /// Undos that were given up.
    not_undone: Vec<String>,
    stage: serde_json::Value,
}

pub(crate) async fn run(core: &Arc<Core>, lease: &Arc<Lease>, execution: Execution, cancel: CancellationToken) {
    let mut execution = execution;
    loop {
        let stop = match Worker::load(core, lease, execution.clone(), cancel.clone()).await {
            Ok(mut worker) => worker.drive().await,
            Err(stop) => Err(stop),
        };
        match stop {
            Ok(()) | Err(Stop::Released | Stop::Taken) => return,
            Err(Stop::Trouble(e)) => {
                tracing::warn!(execution = %execution.id, error = %e, "the store failed; going on from what is durable");
                match reload(core, lease, &execution).await {
                    Some(fresh) => execution = fresh,
                    None => return,
                }
            }
        }
    }
}

/// The execution as it is durable, if it is still ours.
async fn reload(core: &Core, lease: &Lease, old: &Execution) -> Option<Execution> {
    loop {
        tokio::time::sleep(TROUBLE_PAUSE).await;
        if core.killed.is_cancelled() {
            return None;
        }
        let id = old.id.clone();
        match core.store.read(move |tx| execution::get(tx, &id)).await {
            Ok(Some(e)) if e.fence == old.fence && e.holder.as_ref() == Some(&lease.id) => return Some(e),
            Ok(_) => return None,
            Err(e) => tracing::warn!(execution = %old.id, error = %e, "reading an execution again"),
        }
    }
}

fn parse_facts(execution: &Execution) -> Result<Facts, Error> {
    serde_json::from_str(&execution.facts)
        .map_err(|e| Error::internal(format!("the stored facts of {} do not read: {e}", execution.id)))
}

struct Worker<'a> {
    core: &'a Core,
    lease: &'a Lease,
    execution: Execution,
    facts: Facts,
    work: Arc<dyn Work>,
    cancel: CancellationToken,
    /// Until then a lost holder's last call may still take effect.
    settles: Instant,
}

/// What came of a stage, with what to say about it.
struct Report {
    outcome: Outcome,
    message: String,
    failure: Option<Failure>,
}

impl Report {
    fn done(message: String) -> Self {
        Self { outcome: Outcome::Done, message, failure: None }
    }

    fn failed(failure: Failure) -> Self {
        Self { outcome: Outcome::Failed(failure.class), message: failure.message.clone(), failure: Some(failure) }
    }

    fn canceled() -> Self {
        Self { outcome: Outcome::Canceled, message: "canceled".to_owned(), failure: None }
    }
}

impl<'a> Worker<'a> {
    async fn load(core: &'a Core, lease: &'a Lease, execution: Execution, cancel: CancellationToken) -> Step<Self> {
        let workflow = core.workflows.get(execution.workflow.as_str());
        let known = workflow.filter(|w| w.version() >= execution.workflow_version);
        let loaded = match known {
            Some(workflow) => {
                workflow.load(&core.store, &execution).await.and_then(|work| Ok((work, parse_facts(&execution)?)))
            }
            None => Err(Error::new(
                Reason::NotConfirmed,
                format!(
                    "workflow {} version {} is unknown to this server",
                    execution.workflow, execution.workflow_version
                ),
            )),
        };
        match loaded {
            Ok((work, facts)) => {
                let settles = Instant::now() + execution.settle;
                Ok(Self { core, lease, execution, facts, work, cancel, settles })
            }
            Err(e) if e.reason == Reason::StoreUnavailable || e.reason == Reason::ShuttingDown => Err(Stop::Trouble(e)),
            Err(e) => Err(set_aside(core, lease, execution, &e).await),
        }
    }

    fn now(&self) -> Timestamp {
        self.core.store.ambient().now()
    }

    async fn drive(&mut self) -> Step<()> {
        loop {
            let result = match self.execution.position {
                Position::Start => self.start(),
                Position::Stage { index, attempt } => {
                    if !self.facts.entered {
                        self.enter(index).await?;
                    }
                    self.attempt(index, attempt).await?
                }
                Position::Undo { index, attempt, .. } => self.undo(index, attempt).await?,
            };
            if self.advance(result).await? {
                return Ok(());
            }
        }
    }

    fn start(&self) -> Report {
        if self.cancel.is_cancelled() {
            return Report::canceled();
        }
        if self.now() >= self.execution.deadline {
            return Report::failed(Failure::new(
                "NOT_STARTED_IN_TIME",
                FailureClass::NeedsOperator,
                "no server started it in time; start it again if it is still wanted",
            ));
        }
        Report::done(String::new())
    }

    fn stage(&self, index: usize) -> StageDecl {
        // positions are only ever made from the same list
        self.work.stages().get(index).cloned().unwrap_or(StageDecl {
            name: String::new(),
            timeout: Duration::ZERO,
            max_retries: 0,
            unwind: domain::stage::Unwind::RollForward,
            destructive: false,
        })
    }

    fn cx(&self, index: usize, attempt: u32) -> StageCx {
        let begun = self.execution.deadline.minus(self.stage(index).timeout);
        StageCx {
            execution: self.execution.id.clone(),
            index,
            attempt,
            fence: self.execution.fence,
            facts: self.facts.stage.clone(),
            acted: self.facts.acted,
            elapsed: self.now().since(begun),
        }
    }

    /// Looks, acts if clear, and looks until it is done, failed, out of time or canceled.
    async fn attempt(&mut self, index: usize, attempt: u32) -> Step<Report> {
        loop {
            if self.cancel.is_cancelled() {
                self.settle().await?;
                self.abort(index, attempt).await?;
                return Ok(Report::canceled());
            }
            self.check_alive()?;
            let cx = self.cx(index, attempt);
            let looked = Instant::now();
            let Some(look) = self.interruptible(self.work.look(&cx)).await else { continue };
            let look = look.unwrap_or_else(|failure| Look::from(Seen::Failed(failure)));
            self.store_look(index, &look).await?;
            let (on, look_again) = match look.seen {
                Seen::Done(message) => return Ok(Report::done(message)),
                Seen::Failed(failure) => {
                    self.settle().await?;
                    return Ok(Report::failed(failure));
                }
                Seen::Waiting { on, look_again } => (on, look_again),
                Seen::Clear if self.facts.acted => {
                    ("the effect of what was asked for and accepted".to_owned(), recheck(cx.elapsed))
                }
                // clear means nothing while a lost holder's call may still land: look again after that
                Seen::Clear if !self.execution.settle.is_zero() && looked <= self.settles => {
                    self.settle().await?;
                    continue;
                }
                Seen::Clear => match self.act(index, attempt).await? {
                    Some(failed) => return Ok(failed),
                    None => continue,
                },
            };
            if self.now() >= self.execution.deadline {
                self.settle().await?;
                return Ok(Report::failed(self.timed_out(index, &on)));
            }
            self.wait(on, look_again).await?;
        }
    }

    /// Waits out the last call of a lost holder. Nothing may be done, taken back or ended before.
    async fn settle(&mut self) -> Step<()> {
        if self.execution.settle.is_zero() {
            return Ok(());
        }
        if self.core.draining.is_cancelled() {
            // the next holder waits it out from the start, by its own clock
            let on = "the last call of a lost holder to have ended".to_owned();
            return self.sleep_durably(on, Duration::ZERO).await;
        }
        tokio::select! {
            () = tokio::time::sleep_until(self.settles + Duration::from_millis(1)) => {}
            () = self.core.draining.cancelled() => return Box::pin(self.settle()).await,
        }
        self.execution.settle = Duration::ZERO;
        self.check_alive()
    }

    /// A call may begin only while the lease is sure to outlast it.
    async fn authority(&self) -> Step<()> {
        while self.lease.remaining() <= self.core.options.call_timeout {
            self.check_alive()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.check_alive()
    }

    fn timed_out(&self, index: usize, on: &str) -> Failure {
        let stage = self.stage(index);
        Failure::new(
            "STEP_TIMED_OUT",
            FailureClass::Transient,
            format!("not done within {} s; was waiting for {on}", stage.timeout.as_secs()),
        )
    }

    /// Carries out the act, once it is safe and allowed. `None`: look again.
    async fn act(&mut self, index: usize, attempt: u32) -> Step<Option<Report>> {
        let stage = self.stage(index);
        if self.now() >= self.execution.deadline {
            return Ok(Some(Report::failed(self.timed_out(index, "the chance to act"))));
        }
        if stage.destructive && !self.facts.counted {
            self.count_destructive(&stage).await?;
        }
        self.authority().await?;
        let cx = self.cx(index, attempt);
        // not interrupted by a cancel: what is sent cannot be unsent, and its answer is worth having
        let acted = self.bounded(self.work.act(&cx)).await;
        self.check_alive()?;
        match acted {
            Ok(Acted::Yes) => self.facts.acted = true,
            Ok(Acted::Unknown(message)) => {
                tracing::info!(execution = %self.execution.id, stage = %stage.name, message, "sent, and no answer came");
                self.facts.acted = true;
            }
            Ok(Acted::No(failure)) => return Ok(Some(Report::failed(failure))),
            // no answer in time is no answer
            Err(failure) if failure.code == CALL_TIMED_OUT => self.facts.acted = true,
            Err(failure) => return Ok(Some(Report::failed(failure))),
        }
        Ok(None)
    }

    /// Counts a destructive act against its rack's cap, or sleeps until there is room again.
    async fn count_destructive(&mut self, stage: &StageDecl) -> Step<()> {
        let (cap, rack) = (self.core.options.destructive_per_rack_and_hour, self.work.rack().to_owned());
        if rack.is_empty() {
            return Ok(());
        }
        let (id, name, row) = (self.execution.id.clone(), stage.name.clone(), rack.clone());
        let full = self
            .core
            .store
            .write(&Caller::engine(), &rack, move |tx| execution::count_destructive(tx, &row, cap, &id, &name))
            .await
            .map_err(stop_of)?;
        match full {
            None => {
                self.facts.counted = true;
                Ok(())
            }
            Some(until) => {
                self.execution.deadline = until.plus(stage.timeout);
                let on = format!("room under the cap of {cap} destructive stages an hour in rack {rack}");
                let pause = until.since(self.now()).max(SHORT_WAIT);
                self.sleep_durably(on, pause).await
            }
        }
    }

    /// Stops what is under way, as far as possible; what could not be stopped is written down.
    async fn abort(&mut self, index: usize, attempt: u32) -> Step<()> {
        self.authority().await?;
        let cx = self.cx(index, attempt);
        let aborted = self.bounded(self.work.abort(&cx)).await;
        self.check_alive()?;
        let detail = match aborted {
            Ok(Ok(())) => serde_json::json!({"stage": self.execution.stage}),
            Ok(Err(failure)) | Err(failure) => {
                serde_json::json!({"stage": self.execution.stage, "failed": failure.message})
            }
        };
        let execution = self.execution.clone();
        self.commit(execution, vec![Entry { entry: "aborted", detail }], vec![]).await
    }

    async fn undo(&mut self, index: usize, attempt: u32) -> Step<Report> {
        self.settle().await?;
        self.authority().await?;
        let cx = self.cx(index, attempt);
        let undone = self.bounded(self.work.undo(&cx)).await;
        self.check_alive()?;
        Ok(match undone {
            Ok(Ok(())) => Report::done(String::new()),
            Ok(Err(failure)) | Err(failure) => Report::failed(failure),
        })
    }

    /// Commits what came of a position and goes to the next one. `true`: the execution has ended.
    async fn advance(&mut self, result: Report) -> Step<bool> {
        let from = self.execution.position;
        let to = next(self.work.stages(), from, result.outcome);
        let mut e = self.execution.clone();
        let mut facts = self.facts.clone();
        let (mut entries, mut events) = self.leaving(from, &to, &result, &mut facts);
        if let Some(failure) = &result.failure
            && matches!(from, Position::Start | Position::Stage { .. })
        {
            e.failure = serde_json::to_string(failure).unwrap_or_default();
        } else if matches!((from, result.outcome), (Position::Stage { .. }, Outcome::Done)) {
            e.failure.clear();
        }
        match to {
            Next::End(ending) => {
                e.status = Status::of_ending(ending);
                e.holder = None;
                e.waiting_for.clear();
                entries.push(Entry { entry: "ended", detail: serde_json::json!({"as": ending.as_str()}) });
                events.push(self.ended(ending, &e, &facts));
                self.commit(e, entries, events).await?;
                return Ok(true);
            }
            Next::Retry(position) => {
                let pause = backoff(execution::attempt_of(position), self.seed());
                self.place(&mut e, &mut facts, position, self.now().plus(pause));
                facts.entered = true;
                e.waiting_for =
                    format!("the pause before attempt {}: {}", execution::attempt_of(position), result.message);
                return Err(self.release(e, &facts, entries, events).await?);
            }
            Next::Go(position) => {
                self.place(&mut e, &mut facts, position, self.now());
                facts.entered = false;
                facts.stage = serde_json::Value::Null;
                if self.core.draining.is_cancelled() {
                    "the next server to take over".clone_into(&mut e.waiting_for);
                    return Err(self.release(e, &facts, entries, events).await?);
                }
                self.go_on(e, facts, entries, events, from == Position::Start).await?;
            }
        }
        Ok(false)
    }

    /// Into the next position within the same commit, unless the brake is on.
    async fn go_on(
        &mut self,
        e: Execution,
        facts: Facts,
        entries: Vec<Entry>,
        events: Vec<Event>,
        first: bool,
    ) -> Step<()> {
        let (mut entered, mut facts_in) = (e.clone(), facts.clone());
        let (mut entries_in, mut events_in) = (entries.clone(), events.clone());
        if let Position::Stage { index, .. } = e.position {
            facts_in.entered = true;
            if first {
                events_in.push(Event::Started);
            }
            events_in.push(Event::Entered { index });
            entries_in.push(entering(&e));
        }
        entered.facts = serde_json::to_string(&facts_in).unwrap_or_default();
        match self.commit_unless_frozen(entered, entries_in, events_in).await? {
            true => {
                self.facts = facts_in;
                Ok(())
            }
            false => {
                let mut e = e;
                "the brake to be released (millwright unfreeze)".clone_into(&mut e.waiting_for);
                Err(self.release(e, &facts, entries, events).await?)
            }
        }
    }

    /// Enters a stage that was held back by the brake or a hand-over.
    async fn enter(&mut self, index: usize) -> Step<()> {
        let mut e = self.execution.clone();
        e.deadline = self.now().plus(self.stage(index).timeout);
        let mut facts = self.facts.clone();
        facts.entered = true;
        e.facts = serde_json::to_string(&facts).unwrap_or_default();
        let mut events = vec![Event::Entered { index }];
        if index == 0 {
            events.insert(0, Event::Started);
        }
        let entries = vec![entering(&e)];
        self.commit(e, entries, events).await?;
        self.facts = facts;
        Ok(())
    }

    /// What leaving a position means to journal and product.
    fn leaving(&self, from: Position, to: &Next, result: &Report, facts: &mut Facts) -> (Vec<Entry>, Vec<Event>) {
        let detail = |extra: serde_json::Value| {
            let mut detail = serde_json::json!({"stage": self.execution.stage, "attempt": execution::attempt_of(from)});
            if let (Some(all), serde_json::Value::Object(extra)) = (detail.as_object_mut(), extra) {
                all.extend(extra);
            }
            detail
        };
        let why = result.failure.as_ref().map_or(serde_json::json!({}), |f| serde_json::json!({"failure": f}));
        let entry = |entry| Entry { entry, detail: detail(why.clone()) };
        match (from, result.outcome, to) {
            (Position::Start, _, _) => (vec![], vec![]),
            (Position::Stage { index, .. }, Outcome::Done, _) => {
                (vec![entry("stage_done")], vec![Event::Done { index, message: result.message.clone() }])
            }
            (Position::Stage { index, attempt }, Outcome::Failed(class), Next::Retry(_)) => {
                let failure =
                    result.failure.clone().unwrap_or_else(|| Failure::new("FAILED", class, result.message.clone()));
                let at = self.now().plus(backoff(attempt + 1, self.seed()));
                (vec![entry("attempt_failed")], vec![Event::Retrying { index, retry: attempt, failure, at }])
            }
            (Position::Stage { index, .. }, Outcome::Failed(_) | Outcome::Canceled, _) => {
                (vec![entry("stage_failed")], vec![Event::Failed { index, message: result.message.clone() }])
            }
            (Position::Undo { .. }, Outcome::Done | Outcome::Canceled, _) => (vec![entry("undone")], vec![]),
            (Position::Undo { .. }, Outcome::Failed(_), Next::Retry(_)) => (vec![entry("undo_failed")], vec![]),
            (Position::Undo { .. }, Outcome::Failed(_), Next::Go(_) | Next::End(_)) => {
                facts.not_undone.push(format!("{}: {}", self.execution.stage, result.message));
                (vec![entry("undo_given_up")], vec![])
            }
        }
    }

    fn ended(&self, ending: Ending, e: &Execution, facts: &Facts) -> Event {
        let failure = serde_json::from_str(&e.failure).ok();
        Event::Ended { ending, failure, not_undone: facts.not_undone.clone() }
    }

    /// Puts an execution at a position, with the clock of its attempt beginning at `from`.
    fn place(&self, e: &mut Execution, facts: &mut Facts, position: Position, from: Timestamp) {
        let index = match position {
            Position::Start => 0,
            Position::Stage { index, .. } | Position::Undo { index, .. } => index,
        };
        let stage = self.stage(index);
        e.position = position;
        e.wake_at = from;
        e.deadline = from.plus(stage.timeout);
        e.stage = match position {
            Position::Undo { .. } => format!("undo {}", stage.name),
            Position::Start | Position::Stage { .. } => stage.name.clone(),
        };
        e.waiting_for.clear();
        facts.acted = false;
        facts.counted = false;
    }

    fn seed(&self) -> u64 {
        let id = self.execution.id.as_str().bytes().fold(0u64, |h, b| mix(h ^ u64::from(b)));
        mix(id ^ self.execution.entries)
    }

    /// Waits a moment here, or stores the wait and gives the worker back.
    async fn wait(&mut self, on: String, pause: Duration) -> Step<()> {
        let until_deadline = self.execution.deadline.since(self.now());
        let pause = pause.min(until_deadline).max(Duration::from_millis(1));
        if self.core.draining.is_cancelled() {
            return self.sleep_durably(on, pause).await;
        }
        if pause > SHORT_WAIT {
            return self.sleep_durably(on, pause).await;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.cancel.cancelled() => {}
            () = self.core.draining.cancelled() => {}
        }
        Ok(())
    }

    async fn sleep_durably(&mut self, on: String, pause: Duration) -> Step<()> {
        let mut e = self.execution.clone();
        e.wake_at = self.now().plus(pause);
        e.waiting_for = on;
        let facts = self.facts.clone();
        Err(self.release(e, &facts, vec![], vec![]).await?)
    }

    /// Stores the execution for a later claim.
    async fn release(
        &mut self,
        mut e: Execution,
        facts: &Facts,
        entries: Vec<Entry>,
        events: Vec<Event>,
    ) -> Step<Stop> {
        e.status = Status::Waiting;
        e.holder = None;
        e.facts = serde_json::to_string(facts).unwrap_or_default();
        self.commit(e, entries, events).await?;
        Ok(Stop::Released)
    }

    /// Stores what a look brought, before anything depends on it.
    async fn store_look(&mut self, index: usize, look: &Look) -> Step<()> {
        let changed = look.facts.as_ref().filter(|f| **f != self.facts.stage);
        if changed.is_none() && look.output.is_empty() {
            return Ok(());
        }
        let mut facts = self.facts.clone();
        if let Some(stage) = changed {
            facts.stage = stage.clone();
        }
        let mut e = self.execution.clone();
        e.facts = serde_json::to_string(&facts).unwrap_or_default();
        let (work, output) = (self.work.clone(), look.output.clone());
        let session = self.lease.id.clone();
        let key = e.machine_id.to_string();
        // facts that an act depends on are journaled; mere output is not
        let entries =
            if output.is_empty() { vec![Entry { entry: "observed", detail: facts.stage.clone() }] } else { vec![] };
        let named: Vec<&'static str> = entries.iter().map(|e: &Entry| e.entry).collect();
        let written = self
            .core
            .store
            .write(&Caller::engine(), &key, move |tx| {
                if !output.is_empty() {
                    work.record_output(tx, index, &output)?;
                }
                let mut e = e.clone();
                execution::record(tx, &session, &mut e, &entries)?;
                Ok(e)
            })
            .await
            .map_err(stop_of)?;
        self.execution = written;
        self.facts = facts;
        self.observe(&named)
    }

    async fn commit(&mut self, e: Execution, entries: Vec<Entry>, events: Vec<Event>) -> Step<()> {
        self.write(e, entries, events, false).await.map(drop)
    }

    /// `false`: the brake is on, and nothing was written.
    async fn commit_unless_frozen(&mut self, e: Execution, entries: Vec<Entry>, events: Vec<Event>) -> Step<bool> {
        self.write(e, entries, events, true).await
    }

    async fn write(&mut self, e: Execution, entries: Vec<Entry>, events: Vec<Event>, heed_brake: bool) -> Step<bool> {
        let session = self.lease.id.clone();
        let work = self.work.clone();
        let key = e.machine_id.to_string();
        let named: Vec<&'static str> = entries.iter().map(|e| e.entry).collect();
        let written = self
            .core
            .store
            .write(&Caller::engine(), &key, move |tx| {
                if heed_brake && switch::frozen(tx)?.is_some() {
                    return Err(Error::new(Reason::Frozen, "all automation is frozen").into());
                }
                work.record(tx, &events)?;
                let mut e = e.clone();
                execution::record(tx, &session, &mut e, &entries)?;
                Ok(e)
            })
            .await;
        match written {
            Ok(e) => {
                self.execution = e;
                self.observe(&named)?;
                Ok(true)
            }
            Err(e) if e.reason == Reason::Frozen => Ok(false),
            Err(e) => Err(stop_of(e)),
        }
    }

    fn observe(&self, entries: &[&'static str]) -> Step<()> {
        if let Some(observer) = &self.core.observer {
            entries.iter().for_each(|entry| observer(&self.execution.id, entry));
        }
        self.check_alive()
    }

    fn check_alive(&self) -> Step<()> {
        if self.core.killed.is_cancelled() || self.lease.lost.is_cancelled() { Err(Stop::Taken) } else { Ok(()) }
    }

    /// A call that only looks: given up when somebody cancels. `None`: it was.
    async fn interruptible<T>(&self, call: impl Future<Output = T>) -> Option<Result<T, Failure>> {
        tokio::select! {
            result = self.bounded(call) => Some(result),
            () = self.cancel.cancelled() => None,
        }
    }

    /// A call into a stage's code: bounded in time, and a panic in it stops nobody else.
    async fn bounded<T>(&self, call: impl Future<Output = T>) -> Result<T, Failure> {
        let limit = self.core.options.call_timeout;
        match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Failure::new(
                "STAGE_PANICKED",
                FailureClass::NeedsOperator,
                "a defect in the stage's code; the server's log has the details",
            )),
            Err(_) => Err(Failure::new(
                CALL_TIMED_OUT,
                FailureClass::Transient,
                format!("the provider did not answer within {} s", limit.as_secs()),
            )),
        }
    }
}

const CALL_TIMED_OUT: &str = "CALL_TIMED_OUT";

/// How soon to look again at something that has been going on for so long: a quarter of that, within bounds.
pub(crate) fn recheck(elapsed: Duration) -> Duration {
    (elapsed / 4).clamp(Duration::from_millis(20), Duration::from_secs(30))
}

fn entering(e: &Execution) -> Entry {
    Entry {
        entry: "stage_entered",
        detail: serde_json::json!({"stage": e.stage, "attempt": execution::attempt_of(e.position), "deadline": e.deadline.to_string()}),
    }
}

fn stop_of(e: Error) -> Stop {
    if is_fenced(&e) {
        tracing::warn!(error = %e, "a write was refused by its fence");
        return Stop::Taken;
    }
    Stop::Trouble(e)
}

/// An execution that this binary cannot understand is left for one that can; it says so meanwhile.
async fn set_aside(core: &Core, lease: &Lease, execution: Execution, why: &Error) -> Stop {
    tracing::error!(execution = %execution.id, error = %why, "cannot go on with an execution");
    let mut e = execution;
    e.status = Status::Waiting;
    e.holder = None;
    e.wake_at = core.store.ambient().now().plus(UNKNOWN_RECHECK);
    e.waiting_for = format!("a server that can go on with it, or an operator (millwright engine terminate): {why}");
    let (session, key) = (lease.id.clone(), e.machine_id.to_string());
    let caller = Caller::engine();
    let written = core.store.write(&caller, &key, move |tx| {
        let mut e = e.clone();
        execution::record(tx, &session, &mut e, &[])
    });
    match written.await {
        Ok(()) => Stop::Released,
        Err(e) => stop_of(e),
    }
}
