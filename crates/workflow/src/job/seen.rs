//! What is known of a node's agent, as stages and guards judge it: read from what the agent has said.

use domain::agent::{AgentIdentity, HeartbeatPolicy, IdentityState};
use domain::link::HardwareFacts;
use domain::{MacAddress, Timestamp};
use serde_json::Value;

/// What the site wishes of its nodes.
#[derive(Clone, Debug)]
pub struct NodePolicy {
    pub heartbeat: HeartbeatPolicy,
    /// The provider of machines that a node is the first to be on.
    pub provider: String,
    /// Probes that block a node while they fail, and free it once they pass.
    pub blocking_probes: Vec<String>,
    /// Emptied by every cleanup.
    pub scratch_paths: Vec<String>,
    pub kept_users: Vec<String>,
    pub kept_mounts: Vec<String>,
    pub uid_min: u32,
}

impl Default for NodePolicy {
    fn default() -> Self {
        Self {
            heartbeat: HeartbeatPolicy::default(),
            provider: "datacenter".to_owned(),
            blocking_probes: ["gpu_present", "gpu_remapped_rows"].map(str::to_owned).to_vec(),
            scratch_paths: Vec::new(),
            kept_users: Vec::new(),
            kept_mounts: Vec::new(),
            uid_min: 1000,
        }
    }
}

/// One sentence about the agent: the upstream whose word a node's truth is.
pub fn observed(agent: Option<&AgentIdentity>, now: Timestamp) -> String {
    let Some(agent) = agent else { return "agent: none has enrolled".to_owned() };
    let heard = match agent.last_beat {
        Some(last) => format!("last heard {} s before {now}", now.since(last).as_secs()),
        None => "never heard since it enrolled".to_owned(),
    };
    match agent.state {
        IdentityState::Good => format!("agent: {heard}"),
        IdentityState::Suspended | IdentityState::Revoked => {
            format!("agent: identity {} ({}), {heard}", agent.state, agent.state_reason)
        }
    }
}

/// The probes that fail, each with what it says; of `named` ones only, if any are named.
pub fn failing_probes(agent: &AgentIdentity, named: Option<&[String]>) -> Vec<String> {
    let health: Value = serde_json::from_str(&agent.health).unwrap_or_default();
    let probes = health.get("probes").and_then(Value::as_array).cloned().unwrap_or_default();
    probes
        .iter()
        .filter(|probe| probe.get("ok").and_then(Value::as_bool) == Some(false))
        .filter_map(|probe| {
            let name = probe.get("name").and_then(Value::as_str)?;
            let counts = named.is_none_or(|named| named.iter().any(|n| n == name));
            let message = probe.get("message").and_then(Value::as_str).unwrap_or_default();
            counts.then(|| format!("{name}: {message}"))
        })
        .collect()
}

/// Whether its agent has told of its probes, and all of them pass. Nothing told proves nothing.
pub fn probes_pass(agent: &AgentIdentity) -> Result<(), String> {
    let told: Value = serde_json::from_str(&agent.health).unwrap_or_default();
    if told.get("probes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return Err("it has not told of its probes yet".to_owned());
    }
    match failing_probes(agent, None) {
        failing if failing.is_empty() => Ok(()),
        failing => Err(failing.join("; ")),
    }
}

/// Of the named probes, those of which nothing is told.
pub fn untold_probes<'a>(agent: &AgentIdentity, named: &'a [String]) -> Vec<&'a str> {
    let health: Value = serde_json::from_str(&agent.health).unwrap_or_default();
    let probes = health.get("probes").and_then(Value::as_array).cloned().unwrap_or_default();
    let told = |name: &str| probes.iter().any(|probe| probe.get("name").and_then(Value::as_str) == Some(name));
    named.iter().map(String::as_str).filter(|name| !told(name)).collect()
}

/// Who the hardware says it is.
pub fn hardware_of(agent: &AgentIdentity) -> HardwareFacts {
    let inventory: Value = serde_json::from_str(&agent.inventory).unwrap_or_default();
    let facts = inventory.get("facts").cloned().unwrap_or_default();
    let text = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let macs = facts.get("mac_addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    HardwareFacts {
        system_uuid: text("system_uuid"),
        serial_number: text("serial_number"),
        macs: macs.iter().filter_map(Value::as_str).filter_map(MacAddress::parse).collect(),
    }
}
