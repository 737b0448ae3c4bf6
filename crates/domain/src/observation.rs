//! What is known of a machine from looking at it, how old that is, and how it is shown beside what is
//! stored. Kept apart from the machine's own row: being seen is no change of the machine.
//!
//! A row is written only when something changed. That it still holds is known from the sweep: every
//! machine of a lane is looked at between a sweep's start and its end, so what was not written again is
//! confirmed as of the start of the last sweep that ended.

use crate::condition::{Condition, ConditionType};
use crate::limits::short;
use crate::look::{WRONG_MACHINE, is_looked_at};
use crate::machine::{Machine, Phase};
use crate::time::Timestamp;
use std::time::Duration;

/// Machines that answer are looked at apart from those that do not, which take all the time they are
/// given: however many are silent, the others do not wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    Quick,
    Slow,
}

impl Lane {
    pub const ALL: [Lane; 2] = [Lane::Quick, Lane::Slow];

    pub const fn as_str(self) -> &'static str {
        match self {
            Lane::Quick => "quick",
            Lane::Slow => "slow",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.as_str() == text)
    }
}

/// Why a look did not show what it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub reason: String,
    pub message: String,
}

impl Trouble {
    pub fn new(reason: &str, message: &str) -> Self {
        Self { reason: reason.to_owned(), message: short(message) }
    }
}

/// A condition as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub condition: Condition,
    /// Whether each look still shows it. If not, it is only getting older.
    pub confirmed: bool,
}

/// By what the age of an observation is judged; read together with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// The start of the last sweep of its lane that ended.
    pub swept_at: Option<Timestamp>,
    pub stale_after: Duration,
    /// When it was read.
    pub as_of: Timestamp,
}

/// Until a sweep has said otherwise: three of the usual periods.
pub const STALE_AFTER: Duration = Duration::from_secs(90);

impl Freshness {
    pub const fn of_look(at: Timestamp) -> Self {
        Self { swept_at: None, stale_after: STALE_AFTER, as_of: at }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Raised by every write of its row.
    pub version: u64,
    pub lane: Lane,
    /// Who was asked.
    pub source: String,
    /// At most one of each kind, in the order of [`ConditionType::OBSERVED`].
    pub conditions: Vec<Observed>,
    /// What the hardware last said, in words.
    pub facts: String,
    pub trouble: Option<Trouble>,
    /// When the machine itself last answered, as written; see [`Observation::last_seen`].
    pub last_seen: Option<Timestamp>,
    /// The look that wrote it.
    pub observed_at: Timestamp,
    pub fresh: Freshness,
}

/// The trouble of a machine that nobody looks at.
const NOT_LOOKED_AT: &str = "NotLookedAt";
const NEVER_OBSERVED: &str = "NeverObserved";

impl Observation {
    pub fn get(&self, kind: ConditionType) -> Option<&Observed> {
        self.conditions.iter().find(|o| o.condition.kind == kind)
    }

    /// Whether writing `other` in its place would tell anything new. Words that change from look to
    /// look (a count, a time) are not news.
    pub fn same(&self, other: &Observation) -> bool {
        let news = |o: &Observation| {
            let conditions: Vec<_> = o
                .conditions
                .iter()
                .map(|o| (o.condition.kind, o.condition.status, o.condition.reason.clone(), o.confirmed))
                .collect();
            let trouble = o.trouble.as_ref().map(|t| t.reason.clone());
            (o.lane, o.source.clone(), o.facts.clone(), trouble, conditions)
        };
        news(self) == news(other)
    }

    fn confirmed_at(&self, written: Timestamp, confirmed: bool) -> Timestamp {
        if confirmed { self.fresh.swept_at.map_or(written, |swept| swept.max(written)) } else { written }
    }

    /// When a condition was last seen to be as it is.
    pub fn seen_at(&self, observed: &Observed) -> Timestamp {
        self.confirmed_at(observed.condition.observed_at, observed.confirmed)
    }

    /// The same condition, kept although this look did not show it.
    pub(crate) fn unconfirmed(&self, kind: ConditionType) -> Option<Observed> {
        let was = self.get(kind)?;
        let condition = Condition { observed_at: self.seen_at(was), ..was.condition.clone() };
        Some(Observed { condition, confirmed: false })
    }

    fn is_stale(&self, observed: &Observed) -> bool {
        self.fresh.as_of.since(self.seen_at(observed)) > self.fresh.stale_after
    }

    /// When the machine itself last answered.
    pub fn last_seen(&self) -> Option<Timestamp> {
        let answers = self.get(ConditionType::BmcReachable).is_some_and(|o| o.confirmed && o.condition.status);
        self.last_seen.map(|at| self.confirmed_at(at, answers))
    }

    /// When somebody last looked, whatever came of it.
    fn looked_at(&self) -> Timestamp {
        let rests = self.trouble.as_ref().is_some_and(|t| t.reason == NOT_LOOKED_AT);
        self.confirmed_at(self.observed_at, !rests)
    }

    /// As it stays when the machine is no longer looked at.
    #[must_use]
    pub fn at_rest(&self, phase: Phase, at: Timestamp) -> Self {
        let keep = |kind| self.unconfirmed(kind);
        Self {
            version: self.version + 1,
            lane: Lane::Quick,
            source: self.source.clone(),
            conditions: ConditionType::OBSERVED.into_iter().filter_map(keep).collect(),
            facts: self.facts.clone(),
            trouble: Some(Trouble::new(NOT_LOOKED_AT, &format!("machines in {phase} are not looked at"))),
            last_seen: self.last_seen(),
            observed_at: self.looked_at(),
            fresh: Freshness::of_look(at),
        }
    }
}

/// A condition as a person or a program is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: ConditionType,
    pub status: bool,
    pub reason: String,
    pub message: String,
    /// Unset: nobody has ever seen it otherwise.
    pub last_transition: Option<Timestamp>,
    /// Unset: nobody has ever looked.
    pub observed_at: Option<Timestamp>,
    pub stale: bool,
}

impl Shown {
    fn set(c: &Condition) -> Self {
        Self {
            kind: c.kind,
            status: c.status,
            reason: c.reason.clone(),
            message: c.message.clone(),
            last_transition: Some(c.last_transition),
            observed_at: Some(c.observed_at),
            stale: false,
        }
    }

    /// What nobody has said anything about.
    fn unsaid(kind: ConditionType, reason: &str, stale: bool) -> Self {
        Self {
            kind,
            status: false,
            reason: reason.to_owned(),
            message: String::new(),
            last_transition: None,
            observed_at: None,
            stale,
        }
    }
}

impl Machine {
    /// All conditions, one of each type, in a fixed order.
    pub fn shown_conditions(&self) -> Vec<Shown> {
        ConditionType::ALL.into_iter().map(|kind| self.shown(kind)).collect()
    }

    fn shown(&self, kind: ConditionType) -> Shown {
        match kind {
            ConditionType::Reconciled => self.reconciled(),
            ConditionType::NeedsIntervention => match self.conditions.iter().find(|c| c.kind == kind) {
                Some(condition) => Shown::set(condition),
                None => Shown::unsaid(kind, "NothingPending", false),
            },
            ConditionType::Reachable
            | ConditionType::BmcReachable
            | ConditionType::Provisioned
            | ConditionType::InCustomerCluster
            | ConditionType::Drained
            | ConditionType::Degraded => {
                let seen = self.observation.as_ref().and_then(|o| o.get(kind).map(|seen| (o, seen)));
                match seen {
                    Some((o, seen)) => Shown {
                        observed_at: Some(o.seen_at(seen)),
                        stale: o.is_stale(seen),
                        ..Shown::set(&seen.condition)
                    },
                    None => Shown::unsaid(kind, NEVER_OBSERVED, true),
                }
            }
        }
    }

    pub fn last_seen(&self) -> Option<Timestamp> {
        self.observation.as_ref().and_then(Observation::last_seen)
    }

    /// What looks at it show, in words, with source and time.
    pub fn observed_words(&self) -> String {
        let Some(o) = &self.observation else { return "never observed".to_owned() };
        let seen = match (&o.trouble, o.last_seen()) {
            (None, _) => o.facts.clone(),
            (Some(t), None) => format!("{} ({})", t.message, t.reason),
            (Some(t), Some(at)) => format!("{} ({}); last seen at {at}: {}", t.message, t.reason, o.facts),
        };
        let source = if o.source.is_empty() { "no provider" } else { &o.source };
        format!("{seen}; {source}, {}", o.looked_at())
    }

    /// Whether what is stored and what is seen agree, as far as that is known.
    fn reconciled(&self) -> Shown {
        let observed_at = self.observation.as_ref().map(Observation::looked_at);
        let verdict = self.divergence();
        let (status, reason, message, since) = match verdict {
            // since when they agree is not kept, and a time that moves without a flip would be a lie
            Ok(reason) => (true, reason, String::new(), None),
            Err(d) => (false, d.reason, d.message, Some(d.since)),
        };
        Shown {
            kind: ConditionType::Reconciled,
            status,
            reason: reason.to_owned(),
            message: short(&message),
            last_transition: since,
            observed_at,
            stale: false,
        }
    }

    fn divergence(&self) -> Result<&'static str, Divergence> {
        if !is_looked_at(self.phase) {
            return Ok(NOT_LOOKED_AT);
        }
        let Some(o) = &self.observation else {
            return Err(Divergence { reason: NEVER_OBSERVED, message: String::new(), since: self.created_at });
        };
        self.unknown(o)?;
        let since = |kind| o.get(kind).map_or(o.observed_at, |s| s.condition.last_transition).max(self.phase_set_at);
        if self.running().is_some() {
            return Ok("RunActive");
        }
        let cluster = since(ConditionType::InCustomerCluster);
        let diverges = |reason, what: &str, since| {
            Err(Divergence { reason, message: format!("the phase is {}, and {what}", self.phase), since })
        };
        match (self.phase, self.condition(ConditionType::InCustomerCluster)) {
            (Phase::FactoryReady | Phase::Ready, true) => {
                diverges("InCluster", "the machine is in its cluster", cluster)
            }
            (Phase::InService, false) => diverges("NotInCluster", "its cluster does not have it ready", cluster),
            (Phase::Provisioning, _) => diverges("NoRun", "no run is at work", self.phase_set_at),
            (Phase::FactoryReady, false) if self.condition(ConditionType::BmcReachable) => {
                let what = "its BMC answers: it becomes READY once it has said who it is and nothing is frozen";
                diverges("NotYetReady", what, since(ConditionType::BmcReachable))
            }
            (Phase::FactoryReady | Phase::Ready, false)
            | (Phase::InService, true)
            | (Phase::Maintenance | Phase::Rma | Phase::Retired, _) => Ok("AsObserved"),
        }
    }

    /// What is not known, or no longer.
    fn unknown(&self, o: &Observation) -> Result<(), Divergence> {
        if let Some(t) = o.trouble.as_ref().filter(|t| t.reason == WRONG_MACHINE) {
            let since = o.get(ConditionType::BmcReachable).map_or(o.observed_at, |s| s.condition.last_transition);
            return Err(Divergence { reason: WRONG_MACHINE, message: t.message.clone(), since });
        }
        let why = o.trouble.as_ref().map_or(String::new(), |t| format!(": {} ({})", t.message, t.reason));
        let names = |kinds: Vec<ConditionType>| kinds.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(", ");
        let never: Vec<_> = ConditionType::OBSERVED.into_iter().filter(|k| o.get(*k).is_none()).collect();
        if !never.is_empty() {
            let message = format!("never observed: {}{why}", names(never));
            return Err(Divergence { reason: NEVER_OBSERVED, message, since: self.created_at });
        }
        let stale: Vec<&Observed> = o.conditions.iter().filter(|s| o.is_stale(s)).collect();
        let Some(oldest) = stale.iter().map(|s| o.seen_at(s)).min() else { return Ok(()) };
        let kinds = stale.iter().map(|s| s.condition.kind).collect();
        let message = format!("not confirmed since {oldest}: {}{why}", names(kinds));
        Err(Divergence { reason: "Stale", message, since: oldest.plus(o.fresh.stale_after) })
    }
}

/// Why what is stored cannot be taken for the truth.
struct Divergence {
    reason: &'static str,
    message: String,
    since: Timestamp,
}

#[cfg(test)]
#[path = "observation_tests.rs"]
mod tests;
