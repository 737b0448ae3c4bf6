//! One attempt at a stage: look, act when it is clear, safe and allowed, and look again.

use super::{Report, Step, Stop, Worker, call, settled_at, stop_of};
use crate::options::SHORT_WAIT;
use crate::sight::{BRAKE, LATE_EFFECT, LOST_CALL, RACK_CAP};
use crate::workflow::{Aborted, Acted, Failure, Look, Seen, StageCx};
use domain::limits::short;
use domain::stage::{FailureClass, StageDecl, UNDO_RETRIES};
use std::time::Duration;
use store::execution::{self, Entry};
use store::{Caller, switch};
use tokio::time::Instant;

/// The code of an attempt whose time was up.
const STEP_TIMED_OUT: &str = "STEP_TIMED_OUT";

impl Worker<'_> {
    /// Looks, acts if clear, and looks until it is done, failed, out of time or canceled.
    pub(super) async fn attempt(&mut self, index: usize, attempt: u32) -> Step<Report> {
        loop {
            if self.cancel.is_cancelled() {
                self.settle().await?;
                return Ok(match self.abort(index, attempt).await? {
                    None => Report::canceled(),
                    Some(why) => {
                        // a person must look: the run ends, and something of it may go on
                        let left = format!("{}: could not be stopped: {why}", self.execution.stage);
                        self.facts.not_undone.push(left);
                        Report { message: format!("canceled; could not be stopped: {why}"), ..Report::canceled() }
                    }
                });
            }
            if let Some(failure) = self.facts.failing.clone() {
                self.settle().await?;
                return self.stopped(index, attempt, failure).await;
            }
            self.check_alive()?;
            let cx = self.cx(index, attempt);
            let looked = Instant::now();
            let Some(look) = self.interruptible(self.work.look(&cx)).await else { continue };
            let outwaits = cx.may_have_acted || self.work.outwaits_silence(index);
            let look = look.unwrap_or_else(|failure| unanswered(failure, outwaits, &cx));
            self.store_look(index, &look).await?;
            let (on, look_again) = match look.seen {
                Seen::Done(message) => {
                    if looked > self.settles {
                        self.execution.settle = Duration::ZERO;
                    }
                    return Ok(Report::done(message));
                }
                Seen::Failed(failure) => {
                    self.settle().await?;
                    return self.failed(index, attempt, failure).await;
                }
                Seen::Waiting { on, look_again } => (on, look_again),
                Seen::Clear if self.facts.acted => {
                    ("the effect of what was asked for and accepted".to_owned(), cx.look_again())
                }
                // clear means nothing while a lost holder's call may still land: look again after that
                Seen::Clear | Seen::NextPart if !self.execution.settle.is_zero() && looked <= self.settles => {
                    self.settle().await?;
                    continue;
                }
                Seen::Clear | Seen::NextPart => {
                    self.facts.in_doubt = false;
                    // whatever could still land has landed, or never will
                    self.execution.settle = Duration::ZERO;
                    match self.act(index, attempt).await? {
                        Some(failed) => return Ok(failed),
                        None => continue,
                    }
                }
            };
            if self.now() >= self.execution.deadline {
                self.settle().await?;
                let failure = self.timed_out(index, &on);
                return self.stopped(index, attempt, failure).await;
            }
            self.wait(on, look_again).await?;
        }
    }

    /// One more look at an attempt whose time was up, now that nothing goes on.
    async fn done_after_all(&mut self, index: usize, attempt: u32) -> Step<Option<String>> {
        let cx = self.cx(index, attempt);
        let Some(Ok(look)) = self.interruptible(self.work.look(&cx)).await else { return Ok(None) };
        let Seen::Done(message) = &look.seen else { return Ok(None) };
        self.store_look(index, &look).await?;
        Ok(Some(message.clone()))
    }

    /// An attempt that a look has ended. What it may have under way goes with it, unless the machine is no longer
    /// ours to touch.
    async fn failed(&mut self, index: usize, attempt: u32, failure: Failure) -> Step<Report> {
        if self.may_have_acted() && failure.class != FailureClass::Conflict {
            return self.stopped(index, attempt, failure).await;
        }
        Ok(Report::failed(failure))
    }

    /// What is under way must not go on beside the next attempt, or after the run. Why it is stopped is durable
    /// before that: whoever takes over must not find it stopped and take it for done badly, or not done.
    async fn stopped(&mut self, index: usize, attempt: u32, mut failure: Failure) -> Step<Report> {
        self.facts.failing = Some(failure.clone());
        match self.abort(index, attempt).await? {
            Some(why) => failure.message = format!("{}; could not be stopped: {why}", failure.message),
            // nobody saw it end: it may turn out to have been done
            None if failure.code == STEP_TIMED_OUT => {
                if let Some(message) = self.done_after_all(index, attempt).await? {
                    return Ok(Report::done(message));
                }
            }
            None => {}
        }
        Ok(Report::failed(failure))
    }

    /// Waits out the last call of a lost holder. Nothing may be done, taken back or ended before.
    pub(super) async fn settle(&mut self) -> Step<()> {
        if self.execution.settle.is_zero() {
            return Ok(());
        }
        if self.core.draining.is_cancelled() {
            // the next holder waits it out from the start, by its own clock
            return self.sleep_durably(LOST_CALL.to_owned(), Duration::ZERO).await;
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(self.settles + Duration::from_millis(1)) => {}
            () = self.core.draining.cancelled() => return Box::pin(self.settle()).await,
        }
        self.execution.settle = Duration::ZERO;
        self.check_alive()
    }

    /// A call may begin only while the lease is sure to outlast it.
    pub(super) async fn authority(&self) -> Step<()> {
        while self.lease.remaining() <= self.core.options.call_timeout {
            self.check_alive()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.check_alive()
    }

    pub(super) fn timed_out(&self, index: usize, on: &str) -> Failure {
        let stage = self.stage(index);
        let mut message = format!("not done within {} s; was waiting for {on}", stage.timeout.as_secs());
        if !self.facts.unheard.is_empty() {
            message = format!("{message}; what was sent may never have been done: {}", self.facts.unheard);
        }
        Failure::new(STEP_TIMED_OUT, FailureClass::Transient, message)
    }

    /// Carries out the act, once it is safe and allowed. `None`: look again.
    pub(super) async fn act(&mut self, index: usize, attempt: u32) -> Step<Option<Report>> {
        let stage = self.stage(index);
        if self.now() >= self.execution.deadline {
            return Ok(Some(Report::failed(self.timed_out(index, "the chance to act"))));
        }
        if stage.destructive && !self.facts.counted {
            self.count_destructive(&stage).await?;
        }
        self.authority().await?;
        // last of all: between this and the act nothing is waited for
        let id = self.execution.id.clone();
        let rows = self.core.store.read(move |tx| Ok((switch::frozen(tx)?, execution::get(tx, &id)?)));
        let (frozen, row) = rows.await.map_err(stop_of)?;
        match row {
            Some(row) if row.fence == self.execution.fence && row.holder.as_ref() == Some(&self.lease.id) => {
                // a cancel that is durable holds from here on, even if its signal is still on its way
                if row.cancel.is_some() {
                    self.cancel.cancel();
                    return Ok(None);
                }
            }
            Some(_) | None => return Err(Stop::Taken),
        }
        if frozen.is_some() {
            return self.sleep_durably(BRAKE.to_owned(), Duration::ZERO).await.map(|()| None);
        }
        self.check_alive()?;
        if self.lease.remaining() <= self.core.options.call_timeout {
            // the read took too long: once more, from the look on
            return Ok(None);
        }
        let cx = self.cx(index, attempt);
        // not interrupted by a cancel: what is sent cannot be unsent, and its answer is worth having
        let sent = Instant::now();
        let acted = self.bounded(self.work.act(&cx)).await;
        self.check_alive()?;
        if !matches!(acted, Ok(Acted::Yes | Acted::No(_) | Acted::NotYet { .. })) {
            // it may still land: nothing is ended before, just as after a lost holder
            self.execution.settle = self.core.options.call_timeout;
            self.settles = settled_at(sent, self.execution.settle);
        }
        match acted {
            Ok(Acted::Yes) => self.has_acted(),
            Ok(Acted::Unknown(message)) => {
                tracing::info!(why = message, "sent, and nobody knows whether it was done");
                self.has_acted();
                self.facts.unheard = short(&message);
            }
            Ok(Acted::NotYet { on, look_again }) => {
                if self.now() >= self.execution.deadline {
                    return Ok(Some(Report::failed(self.timed_out(index, &on))));
                }
                self.wait(on, look_again).await?;
            }
            Ok(Acted::No(failure)) => return Ok(Some(Report::failed(failure))),
            // no answer in time is no answer
            Err(failure) if failure.code == call::TIMED_OUT => self.has_acted(),
            Err(failure) => return Ok(Some(Report::failed(failure))),
        }
        Ok(None)
    }

    /// Counts a destructive act against its rack's cap, or sleeps until there is room again.
    pub(super) async fn count_destructive(&mut self, stage: &StageDecl) -> Step<()> {
        let (cap, rack) = (self.core.options.destructive_per_rack_and_hour, self.work.rack().to_owned());
        if rack.is_empty() {
            return Ok(());
        }
        let (id, name, row) = (self.execution.id.clone(), stage.name.clone(), rack.clone());
        let mut facts = self.facts.clone();
        facts.counted = true;
        let mut counted = self.execution.clone();
        counted.facts = serde_json::to_string(&facts).unwrap_or_default();
        let session = self.lease.id.clone();
        // counted and known to be counted in one commit: whoever takes over does not count it again
        let caller = Caller::engine();
        let written = self.core.store.write(&caller, &rack, move |tx| {
            if let Some(until) = execution::count_destructive(tx, &row, cap, &id, &name)? {
                return Ok(Err(until));
            }
            let mut counted = counted.clone();
            execution::record(tx, &session, &mut counted, &[])?;
            Ok(Ok(counted))
        });
        match written.await.map_err(stop_of)? {
            Ok(counted) => {
                self.execution = counted;
                self.facts = facts;
                Ok(())
            }
            Err(until) => {
                self.execution.deadline = until.plus(stage.timeout);
                let on = format!("{RACK_CAP} {cap} destructive stages an hour in rack {rack}");
                let pause = until.since(self.now()).max(SHORT_WAIT);
                self.sleep_durably(on, pause).await
            }
        }
    }

    /// Stops what is under way, as far as possible; answers why it could not be, if so.
    pub(super) async fn abort(&mut self, index: usize, attempt: u32) -> Step<Option<String>> {
        // the intent first: an execution that was ended from outside runs no more of its code
        let detail = serde_json::json!({"stage": self.execution.stage});
        let mut e = self.execution.clone();
        e.facts = serde_json::to_string(&self.facts).unwrap_or_default();
        self.commit(e, vec![Entry { entry: "aborting", detail }], vec![]).await?;
        let mut retries = 0;
        let failed = loop {
            self.authority().await?;
            let cx = self.cx(index, attempt);
            let aborted = self.bounded(self.work.abort(&cx)).await;
            self.check_alive()?;
            match aborted {
                Ok(Ok(Aborted::Stopped)) => break None,
                Ok(Ok(Aborted::TakesEffect)) => {
                    self.outlast(index, attempt).await?;
                    break None;
                }
                // what goes on although its run has ended is worth a second word
                Ok(Err(failure)) | Err(failure) if failure.class.may_pass() && retries < UNDO_RETRIES => {
                    retries += 1;
                    tokio::time::sleep(SHORT_WAIT).await;
                }
                Ok(Err(failure)) | Err(failure) => break Some(failure.message),
            }
        };
        let detail = serde_json::json!({"stage": self.execution.stage, "failed": failed});
        self.commit(self.execution.clone(), vec![Entry { entry: "aborted", detail }], vec![]).await?;
        Ok(failed)
    }

    /// What was accepted and cannot be stopped must not meet a machine that has been let go: it is waited for until
    /// it is seen, or as long as the longest call. An attempt whose own time was up has waited long enough.
    async fn outlast(&mut self, index: usize, attempt: u32) -> Step<()> {
        let timed_out = self.facts.failing.as_ref().is_some_and(|failure| failure.code == STEP_TIMED_OUT);
        if !self.may_have_acted() || timed_out {
            return Ok(());
        }
        let until = Instant::now() + self.core.options.call_timeout;
        loop {
            let cx = self.cx(index, attempt);
            let look = self.bounded(self.work.look(&cx)).await;
            self.check_alive()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || look.is_ok_and(|look| matches!(look.seen, Seen::Done(_))) {
                return Ok(());
            }
            tokio::select! {
                biased;
                // the next holder waits it out
                () = self.core.draining.cancelled() => return self.sleep_durably(LATE_EFFECT.to_owned(), Duration::ZERO).await,
                () = tokio::time::sleep(cx.look_again().min(left)) => {}
            }
        }
    }

    pub(super) async fn undo(&mut self, index: usize, attempt: u32) -> Step<Report> {
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
}

/// A look that was not answered in time, or never will be. After an act silence is waited out, as any look that
/// shows nothing is: to try again would do it twice.
fn unanswered(failure: Failure, outwaits: bool, cx: &StageCx) -> Look {
    Look::from(if failure.code == call::TIMED_OUT && outwaits {
        Seen::Waiting { on: format!("the machine to answer: {}", failure.message), look_again: cx.look_again() }
    } else {
        Seen::Failed(failure)
    })
}
