//! What is done to a run: in each life of the engine, faults at counted moments. And the ledger of points: what
//! was declared must have happened, or the test fails and names it.

use domain::stage::FailureClass;
use std::collections::BTreeMap;
use std::fmt;

/// Counted from 1 within one life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Right after this journal entry is durable.
    Entry(usize),
    /// At this call to the provider.
    Call(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The engine is dropped: after a journal entry, or with a call carried out and not answered.
    Crash,
    /// The engine is dropped with a call about to be sent.
    CrashBefore,
    /// Carried out; the caller hears that the answer was lost.
    LoseAnswer,
    /// Carried out; the caller hears nothing at all.
    NeverAnswer,
    /// Delivered two times.
    Twice,
    /// Answered no, this once.
    Refuse(FailureClass),
    /// Answered no, this time and for ever after.
    RefuseFromNowOn,
    /// Somebody cancels while the call is about to be sent, or is carried out and not answered.
    CancelBefore,
    CancelAfter,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Crash => f.write_str("crash after"),
            What::CrashBefore => f.write_str("crash before"),
            What::LoseAnswer => f.write_str("answer lost:"),
            What::NeverAnswer => f.write_str("never answered:"),
            What::Twice => f.write_str("delivered twice:"),
            What::Refuse(class) => write!(f, "refused ({class}):"),
            What::RefuseFromNowOn => f.write_str("refused from now on:"),
            What::CancelBefore => f.write_str("canceled before"),
            What::CancelAfter => f.write_str("canceled after"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: Moment,
    pub what: What,
}

/// One life of the engine; each but the last ends with a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Somebody cancels while no engine is there.
    pub canceled_before: bool,
    pub faults: Vec<Fault>,
}

/// All lives, and the point that this is about.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub lives: Vec<Life>,
}

impl Script {
    pub fn undisturbed(name: String) -> Self {
        Self { name, lives: vec![Life::default()] }
    }

    /// The same, with one more thing in its last life. A crash begins another life.
    pub fn and(&self, fault: Fault, at: &str) -> Self {
        let mut script = self.clone();
        if let Some(life) = script.lives.last_mut() {
            life.faults.push(fault);
        }
        if matches!(fault.what, What::Crash | What::CrashBefore) {
            script.lives.push(Life::default());
        }
        script.name = format!("{}/{} {at}", self.name, fault.what);
        script
    }

    /// A cancel in the moment after the last crash, or before the first engine.
    pub fn then_canceled(&self) -> Self {
        let mut script = self.clone();
        if let Some(life) = script.lives.last_mut() {
            life.canceled_before = true;
        }
        script.name = format!("{}/canceled while no engine is there", self.name);
        script
    }

    pub fn faults(&self) -> usize {
        self.lives.iter().map(|l| l.faults.len()).sum()
    }

    /// Nothing but crashes and lost answers: whatever is done is done once, and is counted once.
    pub fn repeats_nothing(&self) -> bool {
        let harmless =
            |f: &Fault| matches!(f.what, What::Crash | What::CrashBefore | What::LoseAnswer | What::NeverAnswer);
        self.lives.iter().all(|l| l.faults.iter().all(harmless))
    }
}

/// Declared points, each with how often it was hit.
#[derive(Default)]
pub struct Ledger {
    points: BTreeMap<String, usize>,
}

impl Ledger {
    pub fn declare(&mut self, name: &str) {
        assert!(self.points.insert(name.to_owned(), 0).is_none(), "declared twice: {name}");
    }

    pub fn hit(&mut self, name: &str) {
        match self.points.get_mut(name) {
            Some(count) => *count += 1,
            None => panic!("hit, and never declared: {name}"),
        }
    }

    /// How many points there were; every one of them was hit.
    pub fn close(self, title: &str, at_least: usize) -> usize {
        let missed: Vec<&String> = self.points.iter().filter(|(_, hits)| **hits == 0).map(|(name, _)| name).collect();
        assert!(missed.is_empty(), "{title}: declared and never hit: {missed:#?}");
        let count = self.points.len();
        assert!(count >= at_least, "{title}: only {count} points, expected at least {at_least}");
        println!("crash harness: {title}: {count} points declared and hit");
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "declared and never hit")]
    fn a_point_that_is_never_hit_fails_the_test() {
        let mut ledger = Ledger::default();
        ledger.declare("REPAVE/crash after entry 1");
        ledger.declare("REPAVE/crash after entry 2");
        ledger.hit("REPAVE/crash after entry 1");
        ledger.close("here", 1);
    }
}
