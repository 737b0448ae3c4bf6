//! A connection of an agent, from its first word to its end. A copied identity is noticed by the number of the
//! connection; whoever is stopped, replaced or gone is told so, and its stream ends.

use super::heartbeats::Pulse;
use super::tasks::Work;
use super::{AgentKey, AgentPeer, caller, one_line};
use crate::Service;
use domain::agent::{AgentIdentity, Greeting, IdentityState};
use domain::finding::FindingKind;
use domain::limits::{NAME_MAX, TEXT_MAX};
use domain::node::{AgentMode, Node, NodeStatus};
use domain::task::WITHDRAWN;
use domain::{Error, FindingId, NodeId, Reason, Timestamp, metric};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use store::audit::Entry;
use store::{Caller, Cause, Failure, Tx, TxResult, agent, audit, execution, finding, node, task};

pub(super) const CONNECT: &str = "AgentService/Connect";
/// How often what other servers did is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a stop, so that not all come back at once.
const SPREAD_SECONDS: u64 = 20;
/// Stopped until somebody repairs it: it asks again that often.
const STOPPED_RETRY_SECONDS: u32 = 60;

/// More connections than any agent ever has.
const SESSION_MAX: u64 = 1 << 48;

/// The first word of a connection.
#[derive(Clone, Debug, Default)]
pub struct Hello {
    /// The highest that it has seen.
    pub epoch: u64,
    pub session: u64,
    pub agent_version: String,
    pub boot_id: String,
    pub clock: Option<Timestamp>,
}

/// Why a stream ends, as the agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    pub reason: &'static str,
    pub message: String,
    /// 0: not with this identity.
    pub retry_after_seconds: u32,
}

impl Farewell {
    fn new(reason: &'static str, message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self { reason, message: message.into(), retry_after_seconds }
    }

    pub fn retry(message: impl Into<String>, after_seconds: u32) -> Self {
        Self::new("RETRY", message, after_seconds.max(1))
    }

    fn revoked(message: impl Into<String>) -> Self {
        Self::new("REVOKED", message, 0)
    }

    /// Rows of nodes do not go away: the database is older than the agent.
    fn unknown() -> Self {
        Self::retry("no agent of this node is known here; if that stays so, ask for a new bundle", 300)
    }

    /// The database is an old copy, brought back without a new epoch: all it knows of the agent is old, and it has no
    /// orders to give.
    fn outdated(own: u64, seen: u64) -> Self {
        let message = format!(
            "this server is of epoch {own}, and the agent has seen {seen}: it is an old copy, or was restored without \
             `millwright restore`"
        );
        Self::retry(message, STOPPED_RETRY_SECONDS)
    }

    fn cloned() -> Self {
        let message = "this identity was seen twice, and is stopped until somebody repairs it";
        Self::new("CLONED", message, STOPPED_RETRY_SECONDS)
    }

    /// Each node comes back at a moment of its own.
    pub fn shutting_down(node: &NodeId) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let after = 1 + u32::try_from(hasher.finish() % SPREAD_SECONDS).unwrap_or(0);
        Self::new("SHUTTING_DOWN", "the server is shutting down", after)
    }
}

/// The place of a stream among those of this server; given back when it is dropped.
struct Held {
    service: Service,
    node: NodeId,
    session: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.service.held();
        if held.get(&self.node) == Some(&self.session) {
            held.remove(&self.node);
        }
        tell(&held);
    }
}

fn tell(held: &HashMap<NodeId, u64>) {
    metrics::gauge!(metric::AGENTS_CONNECTED.name).set(held.len() as f64);
}

/// A connection that was welcomed.
pub struct AgentSession {
    pub node_id: NodeId,
    pub session: u64,
    pub epoch: u64,
    pub(super) key: AgentKey,
    key_sha256: String,
    pub(super) certificate_until: Timestamp,
    mode: AgentMode,
    pub(super) pulse: Pulse,
    pub(super) work: Work,
    _held: Held,
}

enum Greeted {
    Welcome(Box<AgentIdentity>, AgentMode),
    Farewell(Farewell),
}

/// What a first word is judged by.
#[derive(Clone)]
struct Judging {
    peer: AgentPeer,
    hello: Hello,
    skew_ms: i64,
    skewed: Option<String>,
    finding: FindingId,
}

impl Judging {
    fn write(&self, tx: &mut Tx<'_>) -> TxResult<Greeted> {
        let id = &self.peer.node_id;
        // before its agent and its task, as everybody does: a copy takes them both
        let Some(node) = node::get_for_update(tx, id)? else { return Ok(Greeted::Farewell(Farewell::unknown())) };
        if node.status == NodeStatus::Deleted {
            return Ok(Greeted::Farewell(Farewell::new("DELETED", "this node is gone", 0)));
        }
        let Some(there) = agent::get_for_update(tx, id)? else { return Ok(Greeted::Farewell(Farewell::unknown())) };
        if there.key_sha256 != self.peer.key_sha256 {
            return Ok(Greeted::Farewell(Farewell::revoked("this node has another key by now")));
        }
        let epoch = execution::epoch(tx)?;
        if self.hello.epoch > epoch {
            return Ok(Greeted::Farewell(Farewell::outdated(epoch, self.hello.epoch)));
        }
        match there.greet(self.hello.session, epoch, node.agent_mode) {
            Greeting::Revoked => Ok(Greeted::Farewell(Farewell::revoked("this identity was taken back"))),
            Greeting::Stopped => Ok(Greeted::Farewell(Farewell::cloned())),
            Greeting::Copy => self.copy(tx, &there),
            Greeting::Welcome { session } => {
                let identity = AgentIdentity {
                    epoch,
                    session,
                    agent_version: one_line(&self.hello.agent_version, NAME_MAX),
                    boot_id: one_line(&self.hello.boot_id, TEXT_MAX),
                    skew_ms: self.skew_ms,
                    ..there
                };
                agent::begin_session(tx, &identity)?;
                skew_found(tx, id, self.skewed.as_deref(), &self.finding)?;
                Ok(Greeted::Welcome(Box::new(identity), node.agent_mode))
            }
        }
    }

    /// Both stop, and somebody must look.
    fn copy(&self, tx: &mut Tx<'_>, there: &AgentIdentity) -> TxResult<Greeted> {
        let id = &self.peer.node_id;
        let why = format!(
            "its agent came with connection {}, and {} was passed on already: its identity is in two places",
            self.hello.session, there.session
        );
        agent::set_state(tx, id, IdentityState::Suspended, &why)?;
        let withdrawn =
            Cause::executor("agents", WITHDRAWN, "the identity of its agent was seen twice, and is stopped");
        task::withdraw_of_node(tx, id, &withdrawn)?;
        finding::raise(tx, self.finding.clone(), FindingKind::AgentCloned, id.as_str(), &why, "agents")?;
        let error = Error::new(Reason::AgentCertificateRefused, why);
        audit::insert(tx, &Entry { actor: id.to_string(), call: CONNECT.to_owned(), ..crate::audit::refused(&error) });
        Ok(Greeted::Farewell(Farewell::cloned()))
    }
}

/// Raised, or resolved.
pub(super) fn skew_found(tx: &mut Tx<'_>, node: &NodeId, skewed: Option<&str>, id: &FindingId) -> TxResult<()> {
    match skewed {
        Some(why) => finding::raise(tx, id.clone(), FindingKind::ClockSkew, node.as_str(), why, "agents"),
        None => finding::gone(tx, FindingKind::ClockSkew, node.as_str(), "its clock is right again", "agents"),
    }
}

impl Service {
    fn held(&self) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        self.inner.agents.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the first word of a connection: a session of its own, or why there is none.
    pub async fn greet_agent(&self, peer: &AgentPeer, hello: Hello) -> Result<Result<AgentSession, Farewell>, Error> {
        if hello.session > SESSION_MAX {
            return Ok(Err(Farewell::retry("that number is none that was ever given out", STOPPED_RETRY_SECONDS)));
        }
        let skew_ms = self.skew_of(hello.clock);
        let judging = Judging {
            skewed: self.skewed(skew_ms),
            skew_ms,
            peer: peer.clone(),
            hello,
            finding: FindingId::generate(self.store().ambient().uuid()),
        };
        let node = peer.node_id.clone();
        let skewed = judging.skewed.is_some();
        let greeted = self.store().write(&caller(&node), node.as_str(), move |tx| judging.write(tx)).await?;
        let (identity, mode) = match greeted {
            Greeted::Farewell(farewell) => return Ok(Err(farewell)),
            Greeted::Welcome(identity, mode) => (identity, mode),
        };
        let key = AgentKey::stored(&identity.key_spki).ok_or_else(|| Error::internal("a stored key does not read"))?;
        let session = identity.session;
        let held = Held { service: self.clone(), node: node.clone(), session };
        {
            let mut all = self.held();
            all.insert(node.clone(), session);
            tell(&all);
        }
        Ok(Ok(AgentSession {
            node_id: node,
            session,
            epoch: identity.epoch,
            key,
            key_sha256: identity.key_sha256.clone(),
            certificate_until: identity.certificate_until,
            mode,
            pulse: Pulse::of(&identity, skewed),
            work: Work::default(),
            _held: held,
        }))
    }

    /// The agent has its number on its disk. What was wished for its identity is fulfilled by that.
    pub async fn confirm_agent(&self, session: &mut AgentSession) -> Result<bool, Error> {
        let (id, number, wished) = (session.node_id.clone(), session.session, session.mode != AgentMode::Keep);
        let key = session.key_sha256.clone();
        let confirmed = self
            .store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                if !wished {
                    return agent::confirm(tx, &id, number);
                }
                let node = node::get_for_update(tx, &id)?.ok_or_else(|| Failure::Lost(format!("node {id}")))?;
                let confirmed = agent::confirm(tx, &id, number)?;
                if confirmed && fulfilled(tx, &node, &key)? {
                    let comment = format!("its agent is connected with key {key}");
                    finding::gone(tx, FindingKind::AgentCloned, id.as_str(), &comment, "agents")?;
                    let (actor, call, target) = (id.to_string(), CONNECT.to_owned(), id.to_string());
                    let message = format!("{} is done", node.agent_mode.as_str());
                    audit::insert(tx, &Entry { actor, call, target, message, ..Entry::default() });
                    node::save(tx, &Node { agent_mode: AgentMode::Keep, agent_mode_by: String::new(), ..node })?;
                }
                Ok(confirmed)
            })
            .await?;
        if confirmed {
            session.mode = AgentMode::Keep;
        }
        Ok(confirmed)
    }

    /// Why the stream of a session must end, if it must.
    pub async fn agent_must_go(&self, session: &AgentSession) -> Result<Option<Farewell>, Error> {
        let Some(there) = self.store().point(agent::by_node(&session.node_id)).await? else {
            return Ok(Some(Farewell::unknown()));
        };
        Ok(match there.state {
            _ if there.key_sha256 != session.key_sha256 => Some(Farewell::revoked("this node has another key by now")),
            IdentityState::Revoked => Some(Farewell::revoked("this identity was taken back")),
            IdentityState::Suspended => Some(Farewell::cloned()),
            IdentityState::Good if there.session != session.session => {
                Some(Farewell::retry("a newer connection of this agent has begun", 5))
            }
            IdentityState::Good => None,
        })
    }

    /// Whether the certificate has ended while its stream went on: it could have been renewed long ago.
    pub async fn outlived_its_certificate(&self, session: &mut AgentSession) -> Result<bool, Error> {
        if self.now() <= session.certificate_until {
            return Ok(false);
        }
        if let Some(there) = self.store().point(agent::by_node(&session.node_id)).await? {
            session.certificate_until = there.certificate_until;
        }
        Ok(self.now() > session.certificate_until)
    }

    /// Resolves when the server closes its streams.
    pub async fn closes(&self) {
        self.inner.closing.cancelled().await;
    }

    /// What must go on while agents are served: their heartbeats are written down, and what other servers do about
    /// their nodes is heard of. Ends when the server closes.
    pub async fn attend_agents(self) {
        if self.store().is_shared() {
            tokio::join!(self.write_beats(), self.look_for_strayed(), self.follow_other_servers());
        } else {
            self.write_beats().await;
        }
    }

    /// Identities are stopped and sessions begin through other servers, too: all that are held here are compared.
    async fn look_for_strayed(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.inner.closing.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let held: Vec<(NodeId, u64)> = self.held().iter().map(|(node, session)| (node.clone(), *session)).collect();
            if held.is_empty() {
                continue;
            }
            match self.store().read(move |tx| agent::strayed(tx, &held)).await {
                Ok(strayed) => strayed.iter().for_each(|node| self.store().signals().look_at_node(node)),
                Err(e) => tracing::warn!(error = %e, "looking for agents that were stopped elsewhere"),
            }
        }
    }

    /// Tasks are queued and nodes move through other servers, too: the log has all of it.
    async fn follow_other_servers(&self) {
        let mut head = self.inner.feed.head();
        let mut cursor = head.look();
        loop {
            match self.inner.feed.after(cursor).await {
                Ok((events, next)) => {
                    for event in &events {
                        let ours = matches!(event.row.entity_kind.as_str(), "task" | "node");
                        if ours {
                            self.store().signals().look_at_node(&NodeId::from_text(event.row.subject.clone()));
                        }
                    }
                    if next > cursor {
                        cursor = next;
                        continue;
                    }
                }
                Err(e) => {
                    tracing::warn!(error = %e, "looking for what other servers did about nodes");
                    tokio::select! {
                        biased;
                        () = self.inner.closing.cancelled() => return,
                        () = tokio::time::sleep(LOOK_EVERY) => continue,
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.inner.closing.cancelled() => return,
                () = head.grew() => {}
            }
        }
    }
}

/// Whether what was wished for a node's agent has come about by a connection with this key.
fn fulfilled(tx: &mut Tx<'_>, node: &Node, key_sha256: &str) -> TxResult<bool> {
    Ok(match node.agent_mode {
        AgentMode::Keep => false,
        AgentMode::Repair => true,
        // the old key may still come, until the new one is there
        AgentMode::Rebootstrap => {
            let newest = agent::tokens_of(tx, &node.id)?.into_iter().next();
            newest.is_some_and(|token| token.key_sha256.as_deref() == Some(key_sha256))
        }
    })
}

/// For what is written about many at once.
pub(super) fn together() -> Caller {
    Caller::new("agents")
}
