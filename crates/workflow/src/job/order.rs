//! Orders to agents, as the wire has them.

use super::{NodePolicy, Parameters};
use domain::task::TaskKind;
use prost::Message as _;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{
    CleanPolicy, HostExec, HostReboot, NodeCleanupStorage, NodeDrain, NodeScrubGpu, NodeUninstall, NodeValidateClean,
    Task,
};

/// Without its id and fence: those are the dispatch's.
pub fn encoded(kind: TaskKind, order: Kind) -> Vec<u8> {
    let timeout_seconds = u32::try_from(kind.timeout().as_secs()).unwrap_or(u32::MAX);
    Task { timeout_seconds, kind: Some(order), ..Task::default() }.encode_to_vec()
}

/// What somebody orders by hand; `None`: not a kind for that.
pub fn by_hand(kind: TaskKind, policy: &NodePolicy, boot_id: &str, script: Option<HostExec>) -> Option<Vec<u8>> {
    let order = match kind {
        TaskKind::HostExec => Kind::HostExec(script?),
        TaskKind::HostReboot => Kind::HostReboot(HostReboot { boot_id: boot_id.to_owned() }),
        TaskKind::NodeValidateClean => Kind::NodeValidateClean(NodeValidateClean { policy: Some(clean(policy, &[])) }),
        TaskKind::NodeDrain | TaskKind::NodeUninstall | TaskKind::NodeCleanupStorage | TaskKind::NodeScrubGpu => {
            return None;
        }
    };
    Some(encoded(kind, order))
}

/// Where nothing is said about it.
const GRACE_SECONDS: u32 = 600;

/// What a stage orders.
pub(super) fn of_stage(kind: TaskKind, policy: &NodePolicy, told: &Parameters) -> Option<Vec<u8>> {
    let clean = || Some(clean(policy, &told.scratch_paths));
    let order = match kind {
        TaskKind::NodeDrain => {
            let grace_seconds = if told.grace_seconds == 0 { GRACE_SECONDS } else { told.grace_seconds };
            Kind::NodeDrain(NodeDrain { grace_seconds, force: told.force })
        }
        TaskKind::NodeUninstall => Kind::NodeUninstall(NodeUninstall {}),
        TaskKind::NodeValidateClean => Kind::NodeValidateClean(NodeValidateClean { policy: clean() }),
        TaskKind::NodeCleanupStorage => Kind::NodeCleanupStorage(NodeCleanupStorage { policy: clean() }),
        TaskKind::NodeScrubGpu => Kind::NodeScrubGpu(NodeScrubGpu { reserve_mib: 0 }),
        TaskKind::HostExec | TaskKind::HostReboot => return None,
    };
    Some(encoded(kind, order))
}

fn clean(policy: &NodePolicy, more: &[String]) -> CleanPolicy {
    CleanPolicy {
        scratch_paths: policy.scratch_paths.iter().chain(more).cloned().collect(),
        kept_users: policy.kept_users.clone(),
        uid_min: policy.uid_min,
        kept_mounts: policy.kept_mounts.clone(),
    }
}
