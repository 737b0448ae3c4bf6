//! Three records speak of one server: its node, its boot node, its machine. None is computed from another; which of their
//! states belong together is this table. Everything else is a finding, once it has lasted: a move takes its time.

use crate::boot_node::BootState;
use crate::lifecycle::State as _;
use crate::machine::Phase;
use crate::node::NodeStatus;
use std::time::Duration;

/// So long after the last move of any of the three nothing is said.
pub const GRACE: Duration = Duration::from_secs(15 * 60);

/// States that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub situation: &'static str,
    /// Empty: there is none.
    pub node: &'static [NodeStatus],
    pub boot_node: &'static [BootState],
    pub phase: &'static [Phase],
}

use BootState as B;
use NodeStatus as N;

const ANY_AT_REST: &[Phase] = &[Phase::FactoryReady, Phase::Ready, Phase::InService, Phase::Maintenance];

/// As the documents name them, and what they leave unsaid: nodes that are enrolled by hand, on machines that no run has
/// touched.
pub const TABLE: &[Row] = &[
    Row {
        situation: "first contact",
        node: &[],
        boot_node: &[B::Discovered],
        phase: &[Phase::FactoryReady, Phase::Ready],
    },
    Row {
        situation: "approved, workflow assigned",
        node: &[N::BootstrapIssued, N::Enrolling],
        boot_node: &[B::Pending],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::Provisioning],
    },
    Row {
        situation: "system being installed",
        node: &[N::BootstrapIssued, N::Enrolling],
        boot_node: &[B::Installing],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::Provisioning],
    },
    Row {
        situation: "third install failure",
        node: &[N::BootstrapIssued, N::Enrolling, N::Quarantined],
        boot_node: &[B::InstallFailed],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::Maintenance],
    },
    Row {
        situation: "system on disk, agent not enrolled",
        node: &[N::BootstrapIssued, N::Enrolling],
        boot_node: &[B::Installed, B::Active],
        phase: ANY_AT_REST,
    },
    Row {
        situation: "in use",
        node: &[N::Active],
        boot_node: &[B::Active, B::Installed],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::InService, Phase::Maintenance, Phase::Provisioning],
    },
    Row {
        situation: "heartbeat lost",
        node: &[N::Offline],
        boot_node: &[B::Active, B::Installed],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::InService, Phase::Maintenance, Phase::Provisioning],
    },
    Row { situation: "blocked", node: &[N::Quarantined], boot_node: BootState::ALL, phase: Phase::ALL },
    Row { situation: "retire drain", node: &[N::Draining], boot_node: &[B::Active, B::Installed], phase: ANY_AT_REST },
    Row {
        situation: "reimage",
        node: &[N::Retired],
        boot_node: &[B::Reprovision, B::Pending, B::Installing, B::InstallFailed, B::Installed, B::Active],
        phase: &[Phase::Ready, Phase::Provisioning, Phase::Maintenance],
    },
    Row {
        situation: "secure erase",
        node: &[N::Retired, N::Removing],
        boot_node: &[B::Deprovisioning],
        phase: &[Phase::Ready, Phase::Provisioning, Phase::Maintenance],
    },
    Row {
        situation: "hardware swap",
        node: &[N::Retired],
        boot_node: &[B::Migrating],
        phase: &[Phase::Rma, Phase::Maintenance],
    },
    Row {
        situation: "kept but out of use",
        node: &[N::Retired, N::Removing],
        boot_node: &[B::Active, B::Installed, B::Retired],
        phase: &[Phase::FactoryReady, Phase::Ready, Phase::InService, Phase::Maintenance, Phase::Rma, Phase::Retired],
    },
    Row { situation: "gone", node: &[N::Deleted], boot_node: BootState::ALL, phase: Phase::ALL },
];

/// What one server is, in each of the three; `None`: there is no such record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    pub node: Option<NodeStatus>,
    pub boot_node: Option<BootState>,
    pub phase: Option<Phase>,
}

impl Layers {
    /// The situation that they describe together; `None`: none that belongs together.
    pub fn situation(&self) -> Option<&'static str> {
        let fits = |row: &&Row| {
            self.node.is_none_or(|node| row.node.contains(&node))
                && self.boot_node.is_none_or(|boot| row.boot_node.contains(&boot))
                && self.phase.is_none_or(|phase| row.phase.contains(&phase))
        };
        TABLE.iter().find(fits).map(|row| row.situation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(node: NodeStatus, boot: BootState, phase: Phase) -> Layers {
        Layers { node: Some(node), boot_node: Some(boot), phase: Some(phase) }
    }

    #[test]
    fn the_documents_own_rows_belong_together() {
        use Phase::{FactoryReady, InService, Maintenance, Provisioning, Ready, Retired, Rma};
        for (node, boot, phase) in [
            (N::Enrolling, B::Pending, Ready),
            (N::Enrolling, B::Installing, Provisioning),
            (N::Quarantined, B::InstallFailed, Maintenance),
            (N::Enrolling, B::Installed, Ready),
            (N::Active, B::Active, InService),
            (N::Offline, B::Active, InService),
            (N::Quarantined, B::Active, InService),
            (N::Draining, B::Active, Maintenance),
            (N::Retired, B::Reprovision, Provisioning),
            (N::Retired, B::Active, Provisioning),
            (N::Removing, B::Deprovisioning, Provisioning),
            (N::Quarantined, B::Migrating, Rma),
            (N::Retired, B::Installed, Maintenance),
            (N::Deleted, B::Retired, Retired),
        ] {
            assert!(layers(node, boot, phase).situation().is_some(), "{node} {boot} {phase:?}");
        }
        let first = Layers { node: None, boot_node: Some(B::Discovered), phase: Some(FactoryReady) };
        assert_eq!(first.situation(), Some("first contact"));
    }

    #[test]
    fn what_contradicts_itself_is_in_no_row() {
        for (node, boot, phase) in [
            (N::Active, B::Installing, Phase::InService),
            (N::Active, B::Active, Phase::Retired),
            (N::Active, B::Retired, Phase::Ready),
            (N::Offline, B::Deprovisioning, Phase::Ready),
            (N::Draining, B::Reprovision, Phase::Maintenance),
            (N::Enrolling, B::Deprovisioning, Phase::Ready),
        ] {
            assert_eq!(layers(node, boot, phase).situation(), None, "{node} {boot} {phase:?}");
        }
    }

    #[test]
    fn a_record_that_is_not_there_contradicts_nothing() {
        for node in NodeStatus::ALL {
            let alone = Layers { node: Some(*node), boot_node: None, phase: None };
            assert!(alone.situation().is_some(), "{node}");
        }
    }
}
