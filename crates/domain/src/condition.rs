//! Conditions: derived truths about a machine, each with its source's words and the time it flipped.

use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionType {
    Reachable,
    BmcReachable,
    Provisioned,
    InCustomerCluster,
    Drained,
    Degraded,
    NeedsIntervention,
    /// Whether what is stored agrees with what is seen. Computed on read, never stored.
    Reconciled,
}

impl ConditionType {
    /// In the order in which they are shown.
    pub const ALL: [ConditionType; 8] = [
        ConditionType::Reachable,
        ConditionType::BmcReachable,
        ConditionType::Provisioned,
        ConditionType::InCustomerCluster,
        ConditionType::Drained,
        ConditionType::Degraded,
        ConditionType::NeedsIntervention,
        ConditionType::Reconciled,
    ];

    /// Those that follow from looking at the machine.
    pub const OBSERVED: [ConditionType; 6] = [
        ConditionType::Reachable,
        ConditionType::BmcReachable,
        ConditionType::Provisioned,
        ConditionType::InCustomerCluster,
        ConditionType::Drained,
        ConditionType::Degraded,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            ConditionType::Reachable => "Reachable",
            ConditionType::BmcReachable => "BMCReachable",
            ConditionType::Provisioned => "Provisioned",
            ConditionType::InCustomerCluster => "InCustomerCluster",
            ConditionType::Drained => "Drained",
            ConditionType::Degraded => "Degraded",
            ConditionType::NeedsIntervention => "NeedsIntervention",
            ConditionType::Reconciled => "Reconciled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == text)
    }
}

/// The status of an observed condition as a lifecycle, so that every flip is a row in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// Also before anybody has looked.
    False,
    True,
}

pub const OBSERVED: &str = "observed";

const fn observed(from: ConditionStatus, to: ConditionStatus) -> Edge<ConditionStatus> {
    Edge { from: Some(from), to, trigger: OBSERVED, owner: Owner::Reconciler, guard: Guard::None }
}

static EDGES: &[Edge<ConditionStatus>] =
    &[observed(ConditionStatus::False, ConditionStatus::True), observed(ConditionStatus::True, ConditionStatus::False)];

impl ConditionStatus {
    pub const fn of(status: bool) -> Self {
        if status { ConditionStatus::True } else { ConditionStatus::False }
    }
}

impl State for ConditionStatus {
    const ENTITY: &'static str = "condition";
    const ALL: &'static [Self] = &[ConditionStatus::False, ConditionStatus::True];

    fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::False => "False",
            ConditionStatus::True => "True",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            ConditionStatus::False | ConditionStatus::True => Deadline::AtRest,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: ConditionType,
    pub status: bool,
    pub reason: String,
    pub message: String,
    /// Moves only when `status` flips.
    pub last_transition: Timestamp,
    pub observed_at: Timestamp,
}

impl Condition {
    pub fn new(kind: ConditionType, status: bool, reason: &str, at: Timestamp) -> Self {
        Self { kind, status, reason: reason.to_owned(), message: String::new(), last_transition: at, observed_at: at }
    }
}

/// Puts a condition into the list, keeping one entry for each type.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|c| c.kind == new.kind) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition = old.last_transition;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_each_and_last_transition_moves_only_on_a_flip() {
        let at = Timestamp::from_micros;
        let mut all = vec![];
        set(&mut all, Condition::new(ConditionType::Reachable, true, "PingOK", at(1)));
        set(&mut all, Condition::new(ConditionType::Reachable, true, "PingOK", at(2)));
        assert_eq!((all.len(), all[0].last_transition, all[0].observed_at), (1, at(1), at(2)));
        set(&mut all, Condition::new(ConditionType::Reachable, false, "NoAnswer", at(3)));
        assert_eq!((all.len(), all[0].last_transition), (1, at(3)));
    }
}
