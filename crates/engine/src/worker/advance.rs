//! From one position to the next: what came of the last one and the entry into the next are one commit.

use super::{Facts, Report, Step, Stop, Worker};
use crate::sight::{Attempted, BACKOFF, BRAKE, NEXT_SERVER};
use crate::workflow::{Event, Failure};
use domain::Timestamp;
use domain::stage::{Ending, Next, Outcome, Position, backoff, mix, next};
use store::execution::{self, Entry, Execution, Status};

impl Worker<'_> {
    /// Commits what came of a position and goes to the next one. `true`: the execution has ended.
    pub(super) async fn advance(&mut self, result: Report) -> Step<bool> {
        let from = self.execution.position;
        let to = next(self.work.stages(), from, result.outcome);
        let attempted = match from {
            Position::Start => None,
            Position::Stage { index, .. } | Position::Undo { index, .. } => {
                Attempted::of(self.stage(index).kind, self.elapsed(index), from, result.outcome, &to)
            }
        };
        let (step, message) = (self.execution.stage.clone(), result.message.clone());
        let advanced = self.commit_and_go(from, to, result).await;
        // what was not committed is looked at again, and told then
        if let (Some(attempted), Ok(_) | Err(Stop::Released)) = (attempted, &advanced) {
            attempted.tell(&step, &message);
        }
        advanced
    }

    async fn commit_and_go(&mut self, from: Position, to: Next, result: Report) -> Step<bool> {
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
                e.waiting_for = format!("{BACKOFF} {}: {}", execution::attempt_of(position), result.message);
                return Err(self.release(e, &facts, entries, events).await?);
            }
            Next::Go(position) => {
                self.place(&mut e, &mut facts, position, self.now());
                facts.entered = false;
                facts.stage = serde_json::Value::Null;
                if self.core.draining.is_cancelled() {
                    NEXT_SERVER.clone_into(&mut e.waiting_for);
                    return Err(self.release(e, &facts, entries, events).await?);
                }
                self.go_on(e, facts, entries, events, from == Position::Start).await?;
            }
        }
        Ok(false)
    }

    /// Into the next position within the same commit, unless the brake is on.
    pub(super) async fn go_on(
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
                BRAKE.clone_into(&mut e.waiting_for);
                Err(self.release(e, &facts, entries, events).await?)
            }
        }
    }

    /// Enters a stage that was held back by the brake or a hand-over.
    pub(super) async fn enter(&mut self, index: usize) -> Step<()> {
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
    pub(super) fn leaving(
        &self,
        from: Position,
        to: &Next,
        result: &Report,
        facts: &mut Facts,
    ) -> (Vec<Entry>, Vec<Event>) {
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

    pub(super) fn ended(&self, ending: Ending, e: &Execution, facts: &Facts) -> Event {
        let failure = serde_json::from_str(&e.failure).ok();
        Event::Ended { ending, failure, not_undone: facts.not_undone.clone() }
    }

    /// Puts an execution at a position, with the clock of its attempt beginning at `from`.
    pub(super) fn place(&self, e: &mut Execution, facts: &mut Facts, position: Position, from: Timestamp) {
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
        facts.acted_at = None;
        facts.unheard.clear();
        facts.in_doubt = false;
        facts.counted = false;
        facts.failing = None;
    }

    pub(super) fn seed(&self) -> u64 {
        let id = self.execution.id.as_str().bytes().fold(0u64, |h, b| mix(h ^ u64::from(b)));
        mix(id ^ self.execution.entries)
    }
}

fn entering(e: &Execution) -> Entry {
    Entry {
        entry: "stage_entered",
        detail: serde_json::json!({"stage": e.stage, "attempt": execution::attempt_of(e.position), "deadline": e.deadline.to_string()}),
    }
}
