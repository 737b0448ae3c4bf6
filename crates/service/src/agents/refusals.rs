//! What is refused at the agents' port: counted by its reason, and put on record, some of it.

use super::AgentPeer;
use crate::Service;
use crate::standing::Sampler;
use domain::agent::{AgentIdentity, IdentityState};
use domain::limits::short;
use domain::{Error, NodeId, Reason, metric};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::audit::Entry;
use store::{Caller, agent, audit};

/// A certificate of ours that is not valid yet by so little is another server's clock.
pub const SMALL_DIFFERENCE: Duration = Duration::from_secs(300);

/// Refusals that are put on record one by one; beyond that one stands for many.
const PER_SECOND: u32 = 1;
const AT_ONCE: u32 = 20;
/// Nodes that have a record of their own; those beyond share the strangers'.
const NODES_MAX: usize = 50_000;

/// Of what is refused at the agents' port, what is put on record: so much for each node, whose certificate or token has
/// named it, and so much for all strangers together. One that is refused all the time does not hide what the others do.
pub(super) struct Refusals {
    strangers: Sampler,
    nodes: Mutex<HashMap<NodeId, Sampler>>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { strangers: Sampler::new(PER_SECOND, AT_ONCE), nodes: Mutex::default() }
    }
}

impl Refusals {
    /// How many refusals an entry made now stands for; `None`: make none.
    fn sample(&self, of: Option<&NodeId>) -> Option<u64> {
        let Some(node) = of else { return self.strangers.sample() };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get(node) {
            return known.sample();
        }
        if nodes.len() >= NODES_MAX {
            return self.strangers.sample();
        }
        nodes.entry(node.clone()).or_insert_with(|| Sampler::new(PER_SECOND, AT_ONCE)).sample()
    }
}

pub(super) fn certificate_refused(message: impl Into<String>) -> Error {
    Error::new(Reason::AgentCertificateRefused, message)
}

impl Service {
    /// Counts a refusal, and puts it on record: `claimed` is whoever it says to be.
    pub async fn turned_away(&self, why: &'static str, call: &'static str, claimed: Option<&NodeId>, error: &Error) {
        metrics::counter!(metric::AGENT_REFUSALS.name, "why" => why).increment(1);
        self.record_agent(call, claimed, error).await;
    }

    /// Puts on record what an agent was refused.
    pub(super) async fn record_agent(&self, call: &'static str, claimed: Option<&NodeId>, error: &Error) {
        let Some(count) = self.inner.agents.refusals.sample(claimed) else { return };
        let node = claimed.map(ToString::to_string).unwrap_or_default();
        let entry = Entry {
            actor: node.clone(),
            role: "agent".to_owned(),
            call: call.to_owned(),
            target: node,
            code: error.code().as_str().to_owned(),
            reason: error.reason.as_str().to_owned(),
            message: short(&error.message),
            count,
            ..Entry::default()
        };
        let written = self
            .store()
            .write(&Caller::new("strangers"), "audit", move |tx| {
                audit::insert(tx, &entry);
                Ok(())
            })
            .await;
        if let Err(e) = written {
            tracing::warn!(error = %e, "a refusal of an agent could not be put on record");
        }
    }

    /// The identity behind a certificate of ours, if it is good for anything but its renewal.
    pub async fn known_agent(&self, peer: &AgentPeer, call: &'static str) -> Result<AgentIdentity, Error> {
        let judged = self.judge_agent(peer).await?;
        match judged {
            Ok(identity) => Ok(identity),
            Err((why, error)) => {
                self.turned_away(why, call, Some(&peer.node_id), &error).await;
                Err(error)
            }
        }
    }

    async fn judge_agent(&self, peer: &AgentPeer) -> Result<Result<AgentIdentity, (&'static str, Error)>, Error> {
        let node = &peer.node_id;
        let Some(identity) = self.store().point(agent::by_node(node)).await? else {
            return Ok(Err(("unknown", certificate_refused(format!("no agent of node {node} is known here")))));
        };
        Ok(match identity.state {
            _ if identity.key_sha256 != peer.key_sha256 => {
                Err(("revoked", Error::new(Reason::AgentRevoked, format!("node {node} has another key by now"))))
            }
            IdentityState::Revoked => Err((
                "revoked",
                Error::new(Reason::AgentRevoked, format!("the identity of node {node} was taken back")),
            )),
            IdentityState::Good | IdentityState::Suspended => Ok(identity),
        })
    }

    /// Whether a certificate is within its time, or so little out of it that it may be renewed. What is further out is
    /// refused in the handshake.
    pub fn is_in_its_time(&self, peer: &AgentPeer) -> Result<(), (&'static str, Error)> {
        let now = self.now();
        if now > peer.not_after {
            return Err((
                "expired",
                certificate_refused(format!("the certificate has ended on {}; renew it", peer.not_after)),
            ));
        }
        if now < peer.not_before {
            let message = format!("the certificate begins only on {}; renew it", peer.not_before);
            return Err(("not_yet_valid", certificate_refused(message)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_refused_all_the_time_does_not_hide_the_others() {
        let refusals = Refusals::default();
        let node = |n: usize| NodeId::from_text(format!("nod_{n:032x}"));
        let recorded = |of: Option<&NodeId>| (0..1000).filter(|_| refusals.sample(of).is_some()).count();
        assert!((20..100).contains(&recorded(Some(&node(0)))));
        assert_eq!(refusals.sample(Some(&node(1))), Some(1), "another node's stands for itself");
        assert!((20..100).contains(&recorded(None)));
        assert_eq!(refusals.sample(Some(&node(1))), Some(1), "nor do strangers hide it");
        for n in 0..NODES_MAX + 10 {
            refusals.sample(Some(&node(n)));
        }
        assert_eq!(refusals.nodes.lock().map(|nodes| nodes.len()).ok(), Some(NODES_MAX), "there is a bound");
    }
}
