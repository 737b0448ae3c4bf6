//! What is made durable: waits, looks and results, each under the fence, each with its journal entry.

use super::{Facts, Step, Stop, Worker, stop_of};
use crate::options::SHORT_WAIT;
use crate::workflow::{Event, Look, Seen};
use domain::{Error, Reason};
use std::time::Duration;
use store::execution::{self, Entry, Execution, Status};
use store::{Caller, switch};

impl Worker<'_> {
    /// Waits a moment here, or stores the wait and gives the worker back.
    pub(super) async fn wait(&mut self, on: String, pause: Duration) -> Step<()> {
        let until_deadline = self.execution.deadline.since(self.now());
        let pause = pause.min(until_deadline).max(Duration::from_millis(1));
        if pause > SHORT_WAIT || self.core.draining.is_cancelled() {
            return self.sleep_durably(on, pause).await;
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => {}
            () = self.cancel.cancelled() => {}
            () = self.core.draining.cancelled() => {}
        }
        Ok(())
    }

    pub(super) async fn sleep_durably(&mut self, on: String, pause: Duration) -> Step<()> {
        let mut e = self.execution.clone();
        e.wake_at = self.now().plus(pause);
        e.waiting_for = on;
        let facts = self.facts.clone();
        Err(self.release(e, &facts, vec![], vec![]).await?)
    }

    /// Stores the execution for a later claim.
    pub(super) async fn release(
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
    pub(super) async fn store_look(&mut self, index: usize, look: &Look) -> Step<()> {
        let changed = look.facts.as_ref().filter(|f| **f != self.facts.stage);
        let next_part = look.seen == Seen::NextPart && self.facts.acted;
        if changed.is_none() && look.output.is_empty() && !next_part {
            return Ok(());
        }
        let mut facts = self.facts.clone();
        if next_part {
            // with the facts that say which part it is: an act of the one before must not count for it
            facts.acted = false;
            facts.acted_at = None;
            facts.unheard.clear();
        }
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

    pub(super) async fn commit(&mut self, e: Execution, entries: Vec<Entry>, events: Vec<Event>) -> Step<()> {
        self.write(e, entries, events, false).await.map(drop)
    }

    /// `false`: the brake is on, and nothing was written.
    pub(super) async fn commit_unless_frozen(
        &mut self,
        e: Execution,
        entries: Vec<Entry>,
        events: Vec<Event>,
    ) -> Step<bool> {
        self.write(e, entries, events, true).await
    }

    pub(super) async fn write(
        &mut self,
        e: Execution,
        entries: Vec<Entry>,
        events: Vec<Event>,
        heed_brake: bool,
    ) -> Step<bool> {
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
                let mut e = e.clone();
                work.record(tx, &events).map_err(|failure| execution::failed_or_fenced(tx, &session, &e, failure))?;
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

    pub(super) fn observe(&self, entries: &[&'static str]) -> Step<()> {
        if let Some(observer) = &self.core.observer {
            entries.iter().for_each(|entry| observer(&self.execution.id, entry));
        }
        self.check_alive()
    }

    pub(super) fn check_alive(&self) -> Step<()> {
        if self.core.killed.is_cancelled() || self.lease.lost.is_cancelled() { Err(Stop::Taken) } else { Ok(()) }
    }
}
