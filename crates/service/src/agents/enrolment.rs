//! How an agent gets its identity: a one-time token for the first key that comes with it, and fresh certificates for
//! that key from then on.

use super::refusals::certificate_refused;
use super::{AgentCertificate, AgentKey, AgentPeer, caller, one_line, token_hash};
use crate::Service;
use domain::agent::{AgentIdentity, BootstrapToken, IdentityState, TokenRefusal};
use domain::job_stage::{Ground, JobKind};
use domain::limits::{MAC_ADDRESSES_MAX, NAME_MAX, TEXT_MAX};
use domain::node::{AgentMode, Node, NodeStatus, ONBOARD};
use domain::task::WITHDRAWN;
use domain::{Code, Error, NodeId, Reason, Secret, Timestamp, metric};
use serde::Serialize;
use store::audit::Entry;
use store::{Cause, Failure, Tx, TxResult, agent, audit, execution, machine, node, task};
use workflow::job::{Fresh, NewJob, Parameters, begin};

/// Longer than any token: not worth hashing.
const TOKEN_MAX: usize = 256;
pub(super) const ENROLL: &str = "AgentService/Enroll";
pub(super) const RENEW: &str = "AgentService/Renew";

/// Who the hardware says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub system_uuid: String,
    pub serial_number: String,
    pub mac_addresses: Vec<String>,
    pub vendor: String,
    pub model: String,
    pub hostname: String,
    pub boot_id: String,
}

impl Facts {
    /// Short, and of one line each.
    #[must_use]
    pub fn kept(&self) -> Self {
        let text = |text: &str| one_line(text, TEXT_MAX);
        Self {
            system_uuid: text(&self.system_uuid).to_ascii_lowercase(),
            serial_number: text(&self.serial_number),
            mac_addresses: self
                .mac_addresses
                .iter()
                .take(MAC_ADDRESSES_MAX)
                .map(|mac| one_line(mac, NAME_MAX))
                .collect(),
            vendor: text(&self.vendor),
            model: text(&self.model),
            hostname: text(&self.hostname),
            boot_id: text(&self.boot_id),
        }
    }
}

/// What an agent enrols with.
#[derive(Clone, Debug)]
pub struct Enrolment {
    pub token: Secret,
    pub csr: Vec<u8>,
    pub facts: Facts,
    pub agent_version: String,
}

#[derive(Clone, Debug)]
pub struct Enrolled {
    pub node_id: NodeId,
    pub certificate: AgentCertificate,
    /// For its first word.
    pub session: u64,
    pub epoch: u64,
}

/// Of unknown ones nothing is told but that.
fn unknown_token() -> Error {
    Error::new(Reason::BootstrapTokenInvalid, "the token is not known here; ask for a new bundle")
}

fn token_refused(refusal: TokenRefusal) -> Error {
    let message = match refusal {
        TokenRefusal::Expired => "the token has expired; ask for a new bundle",
        TokenRefusal::Withdrawn => "the token was withdrawn: a newer bundle was made, or its node is gone",
        TokenRefusal::UsedByAnother => {
            "the token was used with another key; if that was not you, have the node removed"
        }
        TokenRefusal::Spent => "the token was used, too long ago to be repeated; ask for a new bundle",
    };
    Error::new(Reason::BootstrapTokenInvalid, message)
}

fn not_this_node(why: &str) -> Error {
    Error::new(Reason::BootstrapTokenInvalid, format!("{why}; ask for a new bundle"))
}

/// Whether this node takes that key.
fn may_enrol(node: &Node, there: Option<&AgentIdentity>, key_sha256: &str) -> Result<(), Error> {
    // somebody wants another key for it, also in the place of one that was taken back
    let asked = node.agent_mode == AgentMode::Rebootstrap;
    let gone = match node.status {
        NodeStatus::Deleted | NodeStatus::Removing => true,
        NodeStatus::Retired => !asked && there.is_none_or(|there| there.state == IdentityState::Revoked),
        NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Draining => false,
    };
    if gone {
        return Err(not_this_node("the node of this token is gone"));
    }
    let Some(there) = there else { return Ok(()) };
    match there.state {
        IdentityState::Revoked if asked && there.key_sha256 != key_sha256 => Ok(()),
        IdentityState::Revoked => Err(not_this_node("the identity of this node was taken back")),
        IdentityState::Good if there.key_sha256 == key_sha256 => Ok(()),
        IdentityState::Suspended if there.key_sha256 == key_sha256 => {
            Err(not_this_node("the identity of this node is stopped, since it was seen twice"))
        }
        // another key: somebody has asked for it, or the first one never got far
        IdentityState::Good | IdentityState::Suspended => {
            let awaited = matches!(node.status, NodeStatus::BootstrapIssued | NodeStatus::Enrolling);
            if asked || awaited {
                Ok(())
            } else {
                Err(not_this_node("the node has an agent with another key, and nobody asked for a new one"))
            }
        }
    }
}

/// What is written when a key becomes a node's.
#[derive(Clone)]
struct Enrolling {
    hash: String,
    key: AgentKey,
    key_sha256: String,
    facts: Facts,
    agent_version: String,
    certificate_until: Timestamp,
    fresh: Fresh,
}

impl Enrolling {
    fn token(&self, tx: &mut Tx<'_>) -> TxResult<BootstrapToken> {
        let token = tx.point(&agent::token(&self.hash))?.ok_or_else(unknown_token)?;
        token.judge(&self.key_sha256, tx.now()).map_err(token_refused)?;
        Ok(token)
    }

    /// The identity as it is then, and whether the key was there before.
    fn write(&self, tx: &mut Tx<'_>) -> TxResult<(AgentIdentity, bool)> {
        let token = self.token(tx)?;
        let node = locked(tx, &token.node_id)?;
        let there = agent::get_for_update(tx, &node.id)?;
        may_enrol(&node, there.as_ref(), &self.key_sha256)?;
        if tx.point(&agent::by_key(&self.key_sha256))?.is_some_and(|other| other.node_id != node.id) {
            return Err(not_this_node("the key is another node's").into());
        }
        if token.key_sha256.is_none() && !agent::bind(tx, &self.hash, &self.key_sha256)? {
            return Err(Failure::Lost("a bootstrap token".to_owned()));
        }
        let again = there.as_ref().is_some_and(|there| there.key_sha256 == self.key_sha256);
        let identity = match there {
            Some(there) if again => {
                agent::certified(tx, &node.id, self.certificate_until)?;
                agent::came_with(tx, &node.id, &self.hash)?;
                AgentIdentity { token_id: self.hash.clone(), ..there }
            }
            there => {
                // whoever has this key knows nothing of what the one before it has done, and must not do it again
                let cause = Cause::executor("agents", WITHDRAWN, "its node's agent has another key since");
                task::withdraw_of_node(tx, &node.id, &cause)?;
                self.enrol(tx, &node, there.as_ref())?
            }
        };
        if node.status == NodeStatus::BootstrapIssued {
            let new = NewJob {
                kind: JobKind::Onboarding(Ground::Bundle),
                parameters: Parameters::default(),
                reason: "its agent has enrolled".to_owned(),
            };
            begin(tx, &node, &new, &self.fresh, &Cause::executor("agents", ONBOARD, "its agent has enrolled"))?;
        }
        let (id, key) = (node.id.to_string(), &self.key_sha256);
        audit::insert(
            tx,
            &Entry {
                actor: id.clone(),
                role: "agent".to_owned(),
                call: ENROLL.to_owned(),
                target: id,
                message: format!("{} key {key}", if again { "again with" } else { "enrolled with" }),
                ..Entry::default()
            },
        );
        Ok((identity, again))
    }

    fn enrol(&self, tx: &mut Tx<'_>, node: &Node, before: Option<&AgentIdentity>) -> TxResult<AgentIdentity> {
        let identity = AgentIdentity {
            node_id: node.id.clone(),
            key_sha256: self.key_sha256.clone(),
            key_spki: self.key.spki().to_vec(),
            state: IdentityState::Good,
            state_reason: String::new(),
            epoch: execution::epoch(tx)?,
            // above that of the key before it, whose stream ends by it
            session: before.map_or(0, |before| before.session) + 1,
            confirmed: false,
            enrolled_at: tx.now(),
            token_id: self.hash.clone(),
            certificate_until: self.certificate_until,
            agent_version: self.agent_version.clone(),
            boot_id: self.facts.boot_id.clone(),
            beats: 0,
            last_beat: None,
            skew_ms: 0,
            inventory: String::new(),
            inventory_digest: String::new(),
            health: String::new(),
        };
        agent::enrol(tx, &identity)?;
        let facts = serde_json::json!({ "facts": self.facts }).to_string();
        agent::set_inventory(tx, &node.id, identity.session, &facts, "")?;
        Ok(identity)
    }
}

/// The node, locked after its machine.
fn locked(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Node> {
    let gone = || not_this_node("the node of this token is gone");
    let seen = tx.point(&node::by_id(id))?.ok_or_else(gone)?;
    if let Some(machine) = &seen.machine_id {
        machine::get_for_update(tx, machine)?;
    }
    let node = node::get_for_update(tx, id)?.ok_or_else(gone)?;
    if node.machine_id != seen.machine_id {
        return Err(Failure::Lost(format!("node {id}")));
    }
    Ok(node)
}

impl Service {
    /// Trades a token for a certificate. The same key may ask again.
    pub async fn enrol_agent(&self, asked: Enrolment) -> Result<Enrolled, Error> {
        let enrolled = self.try_enrol(asked).await;
        let outcome = match &enrolled {
            Ok((_, false)) => "enrolled",
            Ok((_, true)) => "again",
            Err((_, e)) if matches!(e.code(), Code::Unauthenticated | Code::InvalidArgument) => "refused",
            Err(_) => "failed",
        };
        metrics::counter!(metric::AGENT_ENROLMENTS.name, "outcome" => outcome).increment(1);
        match enrolled {
            Ok((enrolled, _)) => Ok(enrolled),
            Err((node, error)) => {
                if error.code() == Code::Unauthenticated {
                    self.record_agent(ENROLL, node.as_ref(), &error).await;
                }
                Err(error)
            }
        }
    }

    async fn try_enrol(&self, asked: Enrolment) -> Result<(Enrolled, bool), (Option<NodeId>, Error)> {
        let nobody = |error: Error| (None, error);
        self.takes_calls().map_err(nobody)?;
        if asked.token.is_empty() || asked.token.reveal().len() > TOKEN_MAX {
            return Err(nobody(unknown_token()));
        }
        let hash = token_hash(&asked.token);
        let token = self.store().point(agent::token(&hash)).await.map_err(nobody)?;
        let token = token.ok_or_else(|| nobody(unknown_token()))?;
        let node = token.node_id.clone();
        let somebody = |error: Error| (Some(node.clone()), error);
        let key = AgentKey::of_request(&asked.csr).map_err(somebody)?;
        let (key_sha256, now) = (key.sha256(), self.now());
        token.judge(&key_sha256, now).map_err(|refusal| somebody(token_refused(refusal)))?;
        let authority = self.agent_authority().await.map_err(somebody)?;
        let certificate = authority.certify(&node, &key, now, self.agent_setup().certificate_life).map_err(somebody)?;
        let enrolling = Enrolling {
            hash,
            key,
            key_sha256,
            facts: asked.facts.kept(),
            agent_version: one_line(&asked.agent_version, NAME_MAX),
            certificate_until: certificate.not_after,
            fresh: Fresh::make(self.store().ambient().as_ref()),
        };
        let written = self.store().write(&caller(&node), node.as_str(), move |tx| enrolling.write(tx)).await;
        let (identity, again) = written.map_err(somebody)?;
        let (session, epoch) = (identity.session, identity.epoch);
        Ok((Enrolled { node_id: node, certificate, session, epoch }, again))
    }

    /// A fresh certificate for the key that the caller has proven to hold.
    pub async fn renew_agent(&self, peer: &AgentPeer, csr: &[u8]) -> Result<AgentCertificate, Error> {
        self.takes_calls()?;
        let identity = self.known_agent(peer, RENEW).await?;
        let mode =
            self.store().point(node::by_id(&peer.node_id)).await?.map_or(AgentMode::Keep, |node| node.agent_mode);
        if !identity.may_renew(mode) {
            let error =
                certificate_refused("the identity is stopped, since it was seen twice; it must be repaired first");
            self.turned_away("suspended", RENEW, Some(&peer.node_id), &error).await;
            return Err(error);
        }
        let key = AgentKey::of_request(csr)?;
        if key.sha256() != identity.key_sha256 {
            return Err(Error::field("csr_der", "is of another key; a certificate is renewed for the same one"));
        }
        let authority = self.agent_authority().await?;
        let certificate = authority.certify(&peer.node_id, &key, self.now(), self.agent_setup().certificate_life)?;
        let (node, until, known) = (peer.node_id.clone(), certificate.not_after, identity.key_sha256);
        self.store()
            .write(&caller(&node.clone()), node.clone().as_str(), move |tx| {
                let mode = tx.point(&node::by_id(&node))?.map_or(AgentMode::Keep, |node| node.agent_mode);
                let there = agent::get_for_update(tx, &node)?;
                let good = |there: &AgentIdentity| there.key_sha256 == known && there.may_renew(mode);
                if !there.as_ref().is_some_and(good) {
                    return Err(certificate_refused("the identity was stopped or replaced just now").into());
                }
                agent::certified(tx, &node, until)
            })
            .await?;
        Ok(certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_of_itself_is_short_and_of_one_line() {
        let long = Facts {
            system_uuid: "AB\nCD".to_owned(),
            hostname: "x".repeat(10_000),
            mac_addresses: vec!["02:00:00:00:00:01\u{1b}[31m".repeat(20); 1000],
            ..Facts::default()
        };
        let kept = long.kept();
        assert_eq!((kept.system_uuid.as_str(), kept.hostname.len()), ("ab cd", TEXT_MAX));
        assert_eq!(kept.mac_addresses.len(), MAC_ADDRESSES_MAX);
        assert!(kept.mac_addresses.iter().all(|mac| mac.len() <= NAME_MAX && !mac.contains(char::is_control)));
    }
}
