//! One worker drives one execution from commit to commit until it ends, sleeps, or is taken away.

mod advance;
mod attempt;
mod call;
mod durable;

use crate::engine::Core;
use crate::lease::Lease;
use crate::options::{LATE, TROUBLE_PAUSE, UNKNOWN_RECHECK};
use crate::sight::{self, UNKNOWN, stage_span};
use crate::workflow::{Failure, StageCx, Work};
use domain::stage::{FailureClass, Outcome, Position, StageDecl};
use domain::{Error, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use store::execution::{self, Execution, Status};
use store::{Caller, is_fenced};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

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
    /// This attempt has acted,
    acted: bool,
    /// when it did last.
    acted_at: Option<i64>,
    /// What came back of an act that may have been done or not: told if nothing is ever seen of it.
    unheard: String,
    /// Taken up from a lost holder, and not seen to be clear since: the attempt may have acted without our knowing.
    in_doubt: bool,
    /// The act was counted against the rack's cap.
    counted: bool,
    /// This attempt has failed so, and what it may have under way is being stopped.
    failing: Option<Failure>,
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
                    Some(fresh) => execution = in_doubt(fresh, core.options.call_timeout),
                    None => return,
                }
            }
        }
    }
}

/// What is taken up from its rows alone, with a worker gone or a commit lost: a call of ours may still be
/// in the air, so it is treated as a lost holder's would be.
pub(crate) fn in_doubt(mut execution: Execution, longest_call: Duration) -> Execution {
    if execution.position != Position::Start {
        execution.settle = execution.settle.max(longest_call);
        execution.deadline = execution.deadline.plus(longest_call);
    }
    execution
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

/// A freeze, or a time without a server, is not the step's fault: its deadline moves along.
fn not_charged_for_delay(mut execution: Execution, now: Timestamp) -> Execution {
    let late = now.since(execution.wake_at);
    if late > LATE && execution.position != Position::Start {
        execution.deadline = execution.deadline.plus(late);
    }
    execution
}

/// When no call of that length sent before `from` can land any more. A little longer than that: the clocks of two
/// servers do not run at quite the same rate.
fn settled_at(from: Instant, longest_call: Duration) -> Instant {
    from + longest_call + longest_call / 8
}

fn parse_facts(execution: &Execution) -> Result<Facts, Error> {
    serde_json::from_str(&execution.facts)
        .map_err(|e| Error::internal(format!("the stored facts of {} do not read: {e}", execution.id)))
}

/// Whether no stage has begun: it was never claimed, or held back at its first stage.
pub(crate) fn never_entered(execution: &Execution) -> bool {
    match execution.position {
        Position::Start => true,
        Position::Stage { index: 0, attempt: 1 } => parse_facts(execution).is_ok_and(|facts| !facts.entered),
        Position::Stage { .. } | Position::Undo { .. } => false,
    }
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
            Ok((work, mut facts)) => {
                facts.in_doubt |= !execution.settle.is_zero();
                let settles = settled_at(Instant::now(), execution.settle);
                let execution = not_charged_for_delay(execution, core.store.ambient().now());
                Ok(Self { core, lease, execution, facts, work, cancel, settles })
            }
            Err(e) if matches!(e.reason, Reason::NotConfirmed | Reason::ProviderUnknown | Reason::Internal) => {
                Err(set_aside(core, lease, execution, &e).await)
            }
            Err(e) => Err(Stop::Trouble(e)),
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
                    let span = self.stage_span(index, attempt);
                    self.attempt(index, attempt).instrument(span).await?
                }
                Position::Undo { index, attempt, .. } => {
                    let span = self.stage_span(index, attempt);
                    self.undo(index, attempt).instrument(span).await?
                }
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
            kind: "unknown",
            timeout: Duration::ZERO,
            max_retries: 0,
            unwind: domain::stage::Unwind::RollForward,
            destructive: false,
        })
    }

    fn stage_span(&self, index: usize, attempt: u32) -> tracing::Span {
        stage_span(&self.execution.stage, self.stage(index).kind, attempt)
    }

    fn cx(&self, index: usize, attempt: u32) -> StageCx {
        StageCx {
            execution: self.execution.id.clone(),
            index,
            attempt,
            fence: self.execution.fence,
            facts: self.facts.stage.clone(),
            acted: self.facts.acted,
            may_have_acted: self.may_have_acted(),
            elapsed: self.elapsed(index),
            since_act: self.facts.acted_at.map_or(Duration::ZERO, |at| self.now().since(Timestamp::from_micros(at))),
            call_limit: self.core.options.call_timeout,
        }
    }

    fn has_acted(&mut self) {
        self.facts.acted = true;
        self.facts.acted_at = Some(self.now().micros());
    }

    fn may_have_acted(&self) -> bool {
        self.facts.acted || self.facts.in_doubt
    }

    /// How long the attempt in hand has been going on.
    fn elapsed(&self, index: usize) -> Duration {
        self.now().since(self.execution.deadline.minus(self.stage(index).timeout))
    }
}

fn stop_of(e: Error) -> Stop {
    if is_fenced(&e) {
        sight::fenced();
        tracing::warn!(error = %e, "a write was refused by its fence");
        return Stop::Taken;
    }
    Stop::Trouble(e)
}

/// An execution that this binary cannot go on with is left for one that can, and says so meanwhile. Who
/// asks for its end gets it: there is nothing left to run.
async fn set_aside(core: &Core, lease: &Lease, execution: Execution, why: &Error) -> Stop {
    tracing::error!(execution = %execution.id, error = %why, "cannot go on with an execution");
    let mut e = execution;
    e.holder = None;
    let ending = core.workflows.get(e.workflow.as_str()).cloned().zip(e.cancel.clone());
    if ending.is_some() {
        e.status = Status::Canceled;
        e.waiting_for.clear();
    } else {
        e.status = Status::Waiting;
        e.wake_at = core.store.ambient().now().plus(UNKNOWN_RECHECK);
        e.waiting_for = format!("{UNKNOWN}: {why}");
    }
    let (session, key) = (lease.id.clone(), e.machine_id.to_string());
    let caller = Caller::engine();
    let written = core.store.write(&caller, &key, move |tx| {
        let mut e = e.clone();
        let mut entries = Vec::new();
        if let Some((workflow, cancel)) = &ending {
            workflow.record_ended_from_outside(tx, &e, &cancel.by, &cancel.reason)?;
            let detail = serde_json::json!({"as": "canceled", "by": cancel.by});
            entries.push(execution::Entry { entry: "ended", detail });
        }
        execution::record(tx, &session, &mut e, &entries)
    });
    match written.await {
        Ok(()) => Stop::Released,
        Err(e) => stop_of(e),
    }
}
