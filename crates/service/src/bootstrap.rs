//! STAND-IN for the agents' port (`service::agents`): how a bootstrap token is made and a bundle written. To be replaced
//! by `agents::new_bootstrap_token` and its `Service::agent_bundle`, which have the same shape.

use crate::Service;
use crate::access::{hash, new_secret};
use domain::{Error, NodeId, Secret, Timestamp};

pub(crate) fn new_bootstrap_token() -> Result<(Secret, String), Error> {
    let secret = new_secret()?;
    let hash = hash(&secret);
    Ok((Secret::new(secret), hash))
}

impl Service {
    pub(crate) async fn agent_bundle(
        &self,
        node: &NodeId,
        token: &Secret,
        expires_at: Timestamp,
    ) -> Result<String, Error> {
        let bundle = serde_json::json!({
            "server": "https://127.0.0.1:7701",
            "token": token.reveal(),
            "authority_pem": "",
            "node_id": node.as_str(),
            "expires_at": expires_at.to_string(),
        });
        Ok(format!("{bundle:#}\n"))
    }
}
