//! The server's side of the agents: who signs for them, how they enrol, connect, are heard, and get their tasks. What
//! an agent says may be anything: it is bounded and cleaned before it is kept.

mod authority;
mod bundles;
mod enrolment;
mod heartbeats;
mod key;
mod refusals;
mod results;
mod sessions;
mod tasks;

pub use authority::{AgentCertificate, Authority, SERVER_NAME, ServerPair};
pub use bundles::LateBundles;
pub use enrolment::{Enrolled, Enrolment, Facts};
pub use heartbeats::Heartbeat;
pub(crate) use key::uri_of;
pub use key::{AgentKey, AgentPeer, Unreadable, validity};
pub use refusals::SMALL_DIFFERENCE;
pub use results::{Kept, Refusal, Said};
pub use sessions::{AgentSession, Farewell, Hello};
pub use tasks::{ForAgent, OutputPiece};

use self::heartbeats::Beats;
use self::refusals::Refusals;
use crate::{Service, access};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::agent::{CERTIFICATE_LIFE, HeartbeatPolicy, RENEW_GRACE};
use domain::{Error, NodeId, Reason, Secret, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use store::Caller;
use tokio::sync::OnceCell;

/// How agents are served.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// Where agents come to, or why they cannot come to this server.
    pub public_url: Result<String, String>,
    pub certificate_life: Duration,
    /// How long after its end a certificate may still be renewed.
    pub renew_grace: Duration,
    pub heartbeat: HeartbeatPolicy,
    /// A clock that is further off is worth a finding.
    pub max_skew: Duration,
    /// Where a machine that our network boot installs fetches its agent, and what that must be; empty: nowhere.
    pub agent_url: String,
    pub agent_sha256: String,
}

impl Default for AgentSetup {
    fn default() -> Self {
        Self {
            public_url: Ok("https://127.0.0.1:7701".to_owned()),
            certificate_life: CERTIFICATE_LIFE,
            renew_grace: RENEW_GRACE,
            heartbeat: HeartbeatPolicy::default(),
            max_skew: Duration::from_secs(300),
            agent_url: String::new(),
            agent_sha256: String::new(),
        }
    }
}

/// What a server keeps of agents in memory.
#[derive(Default)]
pub(crate) struct Agents {
    setup: OnceLock<AgentSetup>,
    authority: OnceCell<Arc<Authority>>,
    /// The streams of this server: which connection of which node.
    held: Mutex<HashMap<NodeId, u64>>,
    beats: Beats,
    refusals: Refusals,
}

/// Each agent has its own share of the store's queue: none holds up another.
fn caller(node: &NodeId) -> Caller {
    Caller::new(node.as_str())
}

/// What an agent says may be anything: what is kept is short, and one line.
pub fn one_line(text: &str, max: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut kept = String::with_capacity(text.len().min(max));
    for c in text.chars().map(printable) {
        if kept.len() + c.len_utf8() > max {
            break;
        }
        kept.push(c);
    }
    kept.trim().to_owned()
}

const TOKEN_PREFIX: &str = "mwb_";

/// A fresh bootstrap token, shown once, and its hash, which is kept.
pub fn new_bootstrap_token() -> Result<(Secret, String), Error> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::internal(format!("the system gave no randomness: {e}")))?;
    let token = Secret::new(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)));
    let hash = token_hash(&token);
    Ok((token, hash))
}

pub(crate) fn token_hash(token: &Secret) -> String {
    access::hash(token.reveal())
}

impl Service {
    /// Said once, when the server starts.
    pub fn serves_agents(&self, setup: AgentSetup) {
        self.inner.agents.setup.get_or_init(|| setup);
    }

    pub fn agent_setup(&self) -> &AgentSetup {
        self.inner.agents.setup.get_or_init(AgentSetup::default)
    }

    /// What a machine is given to enrol with, as JSON: where to come to, whom to trust there, and its token.
    pub async fn agent_bundle(&self, node_id: &NodeId, token: &Secret, expires_at: Timestamp) -> Result<String, Error> {
        let server = self.agent_setup().public_url.as_ref();
        let server = server.map_err(|why| Error::new(Reason::CapabilityMissing, why.clone()))?;
        let authority = self.agent_authority().await?;
        let bundle = serde_json::json!({
            "server": server,
            "authority_pem": authority.pem(),
            "node_id": node_id.as_str(),
            "token": token.reveal(),
            "expires_at": expires_at.to_string(),
        });
        Ok(format!("{bundle:#}\n"))
    }
}
