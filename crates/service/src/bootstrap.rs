//! STAND-IN for the agents' port (`service::agents`) and for what the workflow crate is about to have: how a bootstrap
//! token is made and a bundle written, the heartbeat's policy, a machine's condition, orders as the wire has them.

use crate::Service;
use crate::access::{hash, new_secret};
use domain::agent::HeartbeatPolicy;
use domain::node::Node;
use domain::task::TaskKind;
use domain::{Error, NodeId, Secret, Timestamp};
use prost::Message as _;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{HostExec, HostReboot, NodeValidateClean, Task};
use store::{Tx, TxResult};

pub(crate) fn new_bootstrap_token() -> Result<(Secret, String), Error> {
    let secret = new_secret()?;
    let hash = hash(&secret);
    Ok((Secret::new(secret), hash))
}

pub(crate) fn needs_intervention(_: &mut Tx<'_>, _: &Node, _: Option<&str>) -> TxResult<()> {
    Ok(())
}

pub(crate) fn task_by_hand(kind: TaskKind, boot_id: &str, script: Option<HostExec>) -> Option<Vec<u8>> {
    let kind = match kind {
        TaskKind::HostExec => Kind::HostExec(script?),
        TaskKind::HostReboot => Kind::HostReboot(HostReboot { boot_id: boot_id.to_owned() }),
        TaskKind::NodeValidateClean => Kind::NodeValidateClean(NodeValidateClean::default()),
        TaskKind::NodeDrain | TaskKind::NodeUninstall | TaskKind::NodeCleanupStorage | TaskKind::NodeScrubGpu => {
            return None;
        }
    };
    Some(Task { kind: Some(kind), ..Task::default() }.encode_to_vec())
}

impl Service {
    pub(crate) fn heartbeat_policy(&self) -> HeartbeatPolicy {
        HeartbeatPolicy::default()
    }

    pub(crate) async fn agent_bundle(
        &self,
        node: &NodeId,
        token: &Secret,
        expires_at: Timestamp,
    ) -> Result<String, Error> {
        Ok(serde_json::json!({
            "server": "https://127.0.0.1:7701",
            "token": token.reveal(),
            "authority_pem": "",
            "node_id": node.as_str(),
            "expires_at": expires_at.to_string(),
        })
        .to_string())
    }
}
