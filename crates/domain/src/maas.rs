//! What a MAAS says of a machine, and what to think of it. Its statuses are its own: they are kept as they came, and
//! classified by one function that has an answer for every number. What belongs to which state of a node is a table.

use crate::node::NodeStatus;
use crate::words::words;

words!(
/// What an upstream status amounts to.
MaasClass {
    /// Discovered, not accepted.
    New = "new",
    Commissioning = "commissioning",
    /// Editable, not deployed.
    Ready = "ready",
    /// Somebody has it, and nothing runs there yet.
    Allocated = "allocated",
    Deploying = "deploying",
    Deployed = "deployed",
    /// Something went wrong there, or it is out of use: nothing goes on by itself.
    Failed = "failed",
    /// MAAS is at it: released, erased, tested or rescued.
    Transitional = "transitional",
    /// A status that this product does not know: a finding, never an error.
    Unknown = "unknown",
});

/// The statuses by their numbers, which are what counts; the names are for people.
pub const STATUSES: [(i64, &str, MaasClass); 23] = [
    (0, "New", MaasClass::New),
    (1, "Commissioning", MaasClass::Commissioning),
    (2, "Failed commissioning", MaasClass::Failed),
    (3, "Missing", MaasClass::Failed),
    (4, "Ready", MaasClass::Ready),
    (5, "Reserved", MaasClass::Allocated),
    (6, "Deployed", MaasClass::Deployed),
    (7, "Retired", MaasClass::Failed),
    (8, "Broken", MaasClass::Failed),
    (9, "Deploying", MaasClass::Deploying),
    (10, "Allocated", MaasClass::Allocated),
    (11, "Failed deployment", MaasClass::Failed),
    (12, "Releasing", MaasClass::Transitional),
    (13, "Releasing failed", MaasClass::Failed),
    (14, "Disk erasing", MaasClass::Transitional),
    (15, "Failed disk erasing", MaasClass::Failed),
    (16, "Rescue mode", MaasClass::Transitional),
    (17, "Entering rescue mode", MaasClass::Transitional),
    (18, "Failed to enter rescue mode", MaasClass::Failed),
    (19, "Exiting rescue mode", MaasClass::Transitional),
    (20, "Failed to exit rescue mode", MaasClass::Failed),
    (21, "Testing", MaasClass::Transitional),
    (22, "Failed testing", MaasClass::Failed),
];

pub const NEW: i64 = 0;
pub const COMMISSIONING: i64 = 1;
pub const FAILED_COMMISSIONING: i64 = 2;
pub const READY: i64 = 4;
pub const RESERVED: i64 = 5;
pub const DEPLOYED: i64 = 6;
pub const BROKEN: i64 = 8;
pub const DEPLOYING: i64 = 9;
pub const ALLOCATED: i64 = 10;
pub const FAILED_DEPLOYMENT: i64 = 11;
pub const RELEASING: i64 = 12;
pub const RELEASING_FAILED: i64 = 13;
pub const DISK_ERASING: i64 = 14;
pub const FAILED_DISK_ERASING: i64 = 15;
pub const TESTING: i64 = 21;
pub const FAILED_TESTING: i64 = 22;

/// Every number has a class: those that MAAS may add one day are unknown.
pub fn classify(status: i64) -> MaasClass {
    STATUSES.iter().find(|(number, _, _)| *number == status).map_or(MaasClass::Unknown, |(_, _, class)| *class)
}

words!(
    /// Apart from the status: a machine that is off can be in any of them.
    MaasPower { On = "on", Off = "off", Unknown = "unknown", Error = "error" });

impl MaasPower {
    /// Whatever else it may say one day is not known.
    pub fn read(text: &str) -> Self {
        Self::ALL.iter().copied().find(|power| power.as_str() == text).unwrap_or(MaasPower::Unknown)
    }
}

/// What is known of a machine upstream. That it is gone is a sight of its own, not the want of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    There { class: MaasClass, power: MaasPower },
    Absent,
}

/// What a node of this status may look like upstream, while no job is at it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub node: NodeStatus,
    pub classes: &'static [MaasClass],
    /// In whatever status, as long as it is powered off.
    pub powered_off: bool,
    pub absent: bool,
}

use MaasClass as C;

const IN_HAND: &[MaasClass] = &[C::New, C::Commissioning, C::Ready, C::Allocated, C::Deploying, C::Deployed];

const fn row(node: NodeStatus, classes: &'static [MaasClass], powered_off: bool, absent: bool) -> Expected {
    Expected { node, classes, powered_off, absent }
}

/// The drift detector's table.
pub const EXPECTED: [Expected; 9] = [
    row(NodeStatus::BootstrapIssued, MaasClass::ALL, true, true),
    row(NodeStatus::Enrolling, IN_HAND, false, false),
    row(NodeStatus::Active, &[C::Deployed], false, false),
    row(NodeStatus::Offline, &[C::Deployed], false, false),
    row(NodeStatus::Quarantined, &[C::Ready, C::Failed, C::Deployed], false, true),
    row(NodeStatus::Draining, &[C::Deployed, C::Ready], false, false),
    row(NodeStatus::Retired, &[C::Deployed, C::Ready], true, false),
    row(NodeStatus::Removing, &[C::Ready], true, true),
    // kept upstream by policy, or gone; what others make of it there is no business of a node that is no more
    row(NodeStatus::Deleted, MaasClass::ALL, true, true),
];

/// Whether what is seen belongs to a node of this status.
pub fn is_expected(node: NodeStatus, seen: Upstream) -> bool {
    let Some(expected) = EXPECTED.iter().find(|row| row.node == node) else { return false };
    match seen {
        Upstream::Absent => expected.absent,
        Upstream::There { class, power } => {
            expected.classes.contains(&class) || (expected.powered_off && power == MaasPower::Off)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::State as _;

    #[test]
    fn every_status_stands_at_its_number_and_every_other_number_is_unknown() {
        for (n, (number, name, class)) in STATUSES.iter().enumerate() {
            assert_eq!(usize::try_from(*number), Ok(n), "{name}");
            assert_eq!(classify(*number), *class);
            assert_ne!(*class, MaasClass::Unknown, "{name}");
        }
        for number in [-1, 23, 24, i64::MIN, i64::MAX] {
            assert_eq!(classify(number), MaasClass::Unknown, "{number}");
        }
    }

    #[test]
    fn what_failed_upstream_is_called_so() {
        for (_, name, class) in STATUSES {
            let failed = name.contains("Failed") || name.contains("failed") || name == "Broken";
            assert!(!failed || class == MaasClass::Failed, "{name}");
        }
    }

    #[test]
    fn every_status_of_a_node_has_its_row_and_a_node_in_service_one_class() {
        for status in NodeStatus::ALL {
            assert_eq!(EXPECTED.iter().filter(|row| row.node == *status).count(), 1, "{status}");
        }
        let there = |class, power| Upstream::There { class, power };
        for class in MaasClass::ALL {
            let deployed = *class == MaasClass::Deployed;
            assert_eq!(is_expected(NodeStatus::Active, there(*class, MaasPower::On)), deployed);
            assert_eq!(is_expected(NodeStatus::Offline, there(*class, MaasPower::Off)), deployed);
            assert!(is_expected(NodeStatus::Retired, there(*class, MaasPower::Off)));
            assert!(is_expected(NodeStatus::Removing, there(*class, MaasPower::Off)));
        }
        assert!(!is_expected(NodeStatus::Active, Upstream::Absent));
        assert!(is_expected(NodeStatus::Quarantined, Upstream::Absent));
        assert!(is_expected(NodeStatus::Removing, Upstream::Absent));
        assert!(!is_expected(NodeStatus::Enrolling, there(MaasClass::Failed, MaasPower::On)));
        assert!(!is_expected(NodeStatus::Active, there(MaasClass::Unknown, MaasPower::On)));
    }
}
