//! What the engine needs to know of a stage before it runs it, and what comes after it: declarations
//! and [`next`], both pure, so that they replay and can be tested to exhaustion.

use crate::plan::{RmaAction, Step, StepKind};
use std::fmt;
use std::time::Duration;

/// Why an attempt failed. The class, not the text, decides about retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// May well work next time: a refused connection, a time-out, a busy controller.
    Transient,
    /// Something we depend on is away; no fault of the machine's.
    DependencyDown,
    /// The request can never work as it is.
    InvalidInput,
    /// The machine reports a defect.
    Hardware,
    /// It is not the machine we expected, or somebody else changed it.
    Conflict,
    /// A person must decide.
    NeedsOperator,
}

impl FailureClass {
    pub const ALL: [FailureClass; 6] = [
        FailureClass::Transient,
        FailureClass::DependencyDown,
        FailureClass::InvalidInput,
        FailureClass::Hardware,
        FailureClass::Conflict,
        FailureClass::NeedsOperator,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            FailureClass::Transient => "transient",
            FailureClass::DependencyDown => "dependency_down",
            FailureClass::InvalidInput => "invalid_input",
            FailureClass::Hardware => "hardware",
            FailureClass::Conflict => "conflict",
            FailureClass::NeedsOperator => "needs_operator",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == text)
    }

    /// Retries this class is worth. It can only lower a step's own `max_retries`.
    pub const fn retry_budget(self) -> u32 {
        match self {
            FailureClass::Transient | FailureClass::DependencyDown => u32::MAX,
            FailureClass::Hardware => 1,
            FailureClass::InvalidInput | FailureClass::Conflict | FailureClass::NeedsOperator => 0,
        }
    }

    /// Whether starting the same run again, with nothing else changed, may help.
    pub const fn may_pass(self) -> bool {
        match self {
            FailureClass::Transient | FailureClass::DependencyDown | FailureClass::Hardware => true,
            FailureClass::InvalidInput | FailureClass::Conflict | FailureClass::NeedsOperator => false,
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a stage that began is unwound when the work ends badly. No default: the author must choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    /// It is undone, in reverse order.
    Undo,
    /// The world has changed and stays so; nothing to take back.
    RollForward,
    /// It cannot be taken back.
    PointOfNoReturn(&'static str),
}

/// A stage as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageDecl {
    pub name: String,
    /// Of the step; what it is measured by.
    pub kind: &'static str,
    /// Of one attempt.
    pub timeout: Duration,
    pub max_retries: u32,
    pub unwind: Unwind,
    /// Destroys data or takes a machine away: counts against the blast-radius cap of its rack.
    pub destructive: bool,
}

/// Attempts at one undo before it is left to a person.
pub const UNDO_RETRIES: u32 = 2;

impl StageDecl {
    pub fn of_step(step: &Step) -> Self {
        let (unwind, destructive) = match &step.kind {
            StepKind::Netboot { .. } => (Unwind::Undo, false),
            StepKind::Repave { .. } => (Unwind::PointOfNoReturn("the disk is overwritten"), true),
            StepKind::Rma { action: RmaAction::Shutdown, .. } => (Unwind::RollForward, true),
            StepKind::Rma { action: RmaAction::Return, .. } => {
                (Unwind::PointOfNoReturn("the vendor has been told"), true)
            }
            StepKind::Rma { action: RmaAction::DrainCheck, .. }
            | StepKind::Reboot { .. }
            | StepKind::Ssh { .. }
            | StepKind::Join { .. }
            | StepKind::Verify { .. }
            | StepKind::Net { .. } => (Unwind::RollForward, false),
        };
        Self {
            name: step.name.clone(),
            kind: step.kind.name(),
            timeout: step.timeout(),
            max_retries: step.max_retries(),
            unwind,
            destructive,
        }
    }
}

/// How an execution ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    Done,
    Failed,
    Canceled,
}

impl Ending {
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Done => "done",
            Ending::Failed => "failed",
            Ending::Canceled => "canceled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Ending::Done, Ending::Failed, Ending::Canceled].into_iter().find(|e| e.as_str() == text)
    }
}

/// Where an execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// Nothing has begun.
    Start,
    /// Working at a stage; attempts count from 1.
    Stage { index: usize, attempt: u32 },
    /// Taking back a stage because the work ends as `ending`.
    Undo { index: usize, attempt: u32, ending: Ending },
}

/// What came of what was being done at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The stage, or the undo, is done; at [`Position::Start`]: a worker is ready.
    Done,
    Failed(FailureClass),
    /// Somebody asked to stop.
    Canceled,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    Go(Position),
    /// The same place again, after a backoff.
    Retry(Position),
    End(Ending),
}

/// What comes next for work whose stages run strictly in order.
pub fn next(stages: &[StageDecl], at: Position, outcome: Outcome) -> Next {
    match (at, outcome) {
        (Position::Start, Outcome::Done) => enter(stages, 0),
        (Position::Start, Outcome::Failed(_)) => Next::End(Ending::Failed),
        (Position::Start, Outcome::Canceled) => Next::End(Ending::Canceled),
        (Position::Stage { index, .. }, Outcome::Done) => enter(stages, index + 1),
        (Position::Stage { index, attempt }, Outcome::Failed(class)) => {
            let budget = stages.get(index).map_or(0, |s| s.max_retries).min(class.retry_budget());
            if attempt <= budget {
                Next::Retry(Position::Stage { index, attempt: attempt + 1 })
            } else {
                unwind(stages, index + 1, Ending::Failed)
            }
        }
        (Position::Stage { index, .. }, Outcome::Canceled) => unwind(stages, index + 1, Ending::Canceled),
        (Position::Undo { index, ending, .. }, Outcome::Done) => unwind(stages, index, ending),
        (Position::Undo { index, attempt, ending }, Outcome::Failed(class)) => {
            if attempt <= UNDO_RETRIES.min(class.retry_budget()) {
                Next::Retry(Position::Undo { index, attempt: attempt + 1, ending })
            } else {
                // left as it is and said so; the earlier stages are still taken back
                unwind(stages, index, ending)
            }
        }
        // the end is already decided; asking again changes nothing
        (Position::Undo { index, attempt, ending }, Outcome::Canceled) => {
            Next::Go(Position::Undo { index, attempt, ending })
        }
    }
}

fn enter(stages: &[StageDecl], index: usize) -> Next {
    if index < stages.len() { Next::Go(Position::Stage { index, attempt: 1 }) } else { Next::End(Ending::Done) }
}

/// Takes back the stages before `end`, last first, as far as each can be: a boot override left behind
/// by a failed repave is as dangerous after the point of no return as before it.
fn unwind(stages: &[StageDecl], end: usize, ending: Ending) -> Next {
    for index in (0..end.min(stages.len())).rev() {
        match stages[index].unwind {
            Unwind::Undo => return Next::Go(Position::Undo { index, attempt: 1, ending }),
            Unwind::RollForward | Unwind::PointOfNoReturn(_) => {}
        }
    }
    Next::End(ending)
}

pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The pause before attempt `attempt` (2, 3, …): doubling from one second to thirty, with full jitter
/// from `seed`, so that a rack that failed together does not come back together.
pub fn backoff(attempt: u32, seed: u64) -> Duration {
    let doublings = attempt.saturating_sub(2).min(16);
    let ceiling = BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_MAX);
    let micros = u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(mix(seed ^ u64::from(attempt)) % (micros + 1))
}

/// A well-spread 64-bit hash of a number (splitmix64), for jitter that can be replayed.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn stage(unwind: Unwind, max_retries: u32) -> StageDecl {
        StageDecl {
            name: "s".into(),
            kind: "ssh",
            timeout: Duration::from_secs(1),
            max_retries,
            unwind,
            destructive: false,
        }
    }

    fn outcomes() -> Vec<Outcome> {
        let mut all = vec![Outcome::Done, Outcome::Canceled];
        all.extend(FailureClass::ALL.map(Outcome::Failed));
        all
    }

    /// From every position, every outcome leads on, and every path ends: no cycle, no dead end.
    #[test]
    fn every_path_of_every_small_plan_ends() {
        let kinds = [Unwind::Undo, Unwind::RollForward, Unwind::PointOfNoReturn("gone")];
        for a in kinds {
            for b in kinds {
                for c in kinds {
                    let stages = [stage(a, 0), stage(b, 1), stage(c, 2)];
                    walk(&stages, Position::Start, &mut HashSet::new(), &mut HashSet::new());
                }
            }
        }
    }

    /// Depth first; meeting a position that is still on the path would be a cycle.
    fn walk(stages: &[StageDecl], at: Position, on_path: &mut HashSet<Position>, done: &mut HashSet<Position>) {
        if done.contains(&at) {
            return;
        }
        assert!(on_path.insert(at), "came back to {at:?}");
        for outcome in outcomes() {
            match next(stages, at, outcome) {
                Next::Go(to) if to == at => assert_eq!(outcome, Outcome::Canceled),
                Next::Go(to) | Next::Retry(to) => walk(stages, to, on_path, done),
                Next::End(_) => {}
            }
        }
        on_path.remove(&at);
        done.insert(at);
    }

    #[test]
    fn total_attempts_are_one_plus_the_smaller_budget() {
        for (class, max_retries, expected) in [
            (FailureClass::Transient, 0, 1),
            (FailureClass::Transient, 3, 4),
            (FailureClass::Hardware, 3, 2),
            (FailureClass::Hardware, 0, 1),
            (FailureClass::InvalidInput, 3, 1),
            (FailureClass::Conflict, 3, 1),
        ] {
            let stages = [stage(Unwind::RollForward, max_retries)];
            let (mut at, mut attempts) = (Position::Stage { index: 0, attempt: 1 }, 1);
            while let Next::Retry(to) = next(&stages, at, Outcome::Failed(class)) {
                at = to;
                attempts += 1;
            }
            assert_eq!(attempts, expected, "{class} with {max_retries} retries");
        }
    }

    #[test]
    fn failure_takes_back_what_can_be_taken_back_in_reverse() {
        let stages = [stage(Unwind::Undo, 0), stage(Unwind::RollForward, 0), stage(Unwind::Undo, 0)];
        let first = next(&stages, Position::Stage { index: 2, attempt: 1 }, Outcome::Failed(FailureClass::Transient));
        let undo = |index| Position::Undo { index, attempt: 1, ending: Ending::Failed };
        assert_eq!(first, Next::Go(undo(2)));
        assert_eq!(next(&stages, undo(2), Outcome::Done), Next::Go(undo(0)));
        assert_eq!(next(&stages, undo(0), Outcome::Done), Next::End(Ending::Failed));
    }

    #[test]
    fn backoff_doubles_to_its_ceiling_with_full_jitter() {
        for (attempt, ceiling) in [(2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 30), (20, 30)] {
            let samples: Vec<Duration> = (0..200).map(|seed| backoff(attempt, seed)).collect();
            let max = Duration::from_secs(ceiling);
            assert!(samples.iter().all(|d| *d <= max), "attempt {attempt}");
            assert!(samples.iter().any(|d| *d > max / 2) && samples.iter().any(|d| *d < max / 2), "attempt {attempt}");
        }
    }
}
