//! One configured cluster: whether a machine is a member, whether it is drained, and the way out of it.

use crate::drain;
use crate::kubeconfig::Access;
use crate::node::{Node, NodeOf};
use crate::objects::NodeObject;
use crate::rest::{Ask, Session, encoded};
use crate::shared::Shared;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use http::{Method, StatusCode};
use provider::{Ack, Drain, Membership, ProviderError, ProviderResult};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How old the news may be for who only watches.
const WATCH_AGE: Duration = Duration::from_secs(5);
/// Calls to one API server at a time; the others wait their turn within their deadline.
const AT_ONCE: usize = 8;
/// Four times what Kubernetes is made for.
const NODES_MAX: usize = 20_000;

/// One for each configured cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// Name and address, for messages.
    what: String,
    access: Access,
    deadline: Duration,
    watch_age: Duration,
    turns: Semaphore,
    nodes: Shared<Vec<Node>>,
    /// What runs on cordoned nodes, for who watches.
    pods: Mutex<HashMap<String, Arc<Shared<Drain>>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("name", &self.inner.name).field("server", &self.inner.access.url).finish()
    }
}

impl Cluster {
    /// Reads the kubeconfig and asks nobody yet. Each call ends within the deadline, all its requests together.
    pub fn new(name: &str, kubeconfig: &Secret, deadline: Duration) -> ProviderResult<Self> {
        Self::with_limits(name, kubeconfig, deadline, WATCH_AGE)
    }

    /// With another age that news may have for who only watches.
    pub fn with_limits(
        name: &str,
        kubeconfig: &Secret,
        deadline: Duration,
        watch_age: Duration,
    ) -> ProviderResult<Self> {
        let access = Access::parse(name, kubeconfig)?;
        let inner = Inner {
            name: name.to_owned(),
            what: format!("cluster {name:?} ({})", access.url),
            access,
            deadline,
            watch_age,
            turns: Semaphore::new(AT_ONCE),
            nodes: Shared::default(),
            pods: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The address of its API server.
    pub fn server(&self) -> &str {
        &self.inner.access.url
    }

    /// Name and address, for messages.
    pub(crate) fn what(&self) -> &str {
        &self.inner.what
    }

    pub(crate) fn access(&self) -> &Access {
        &self.inner.access
    }

    pub(crate) async fn session(&self) -> ProviderResult<Session<'_>> {
        self.session_until(self.until()).await
    }

    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.inner.deadline
    }

    pub(crate) async fn session_until(&self, deadline: Instant) -> ProviderResult<Session<'_>> {
        let inner = &*self.inner;
        let turn = timeout_at(deadline, inner.turns.acquire()).await.ok().and_then(Result::ok).ok_or_else(|| {
            let message = format!("{} has {AT_ONCE} calls under way, and none ended in time", inner.what);
            ProviderError::because(Reason::EndpointBusy, FailureClass::Transient, message)
        })?;
        Session::new(&inner.name, &inner.what, &inner.access, deadline, turn)
    }

    /// Asked now: a listing that began after this call did. Callers at the same time share it.
    pub async fn membership(&self, who: &NodeOf) -> ProviderResult<Membership> {
        self.membership_within(who, Duration::ZERO).await
    }

    /// For who asks about every machine again and again: as it was a few seconds ago at most, at the cost of one
    /// listing for all.
    pub async fn watch_membership(&self, who: &NodeOf) -> ProviderResult<Membership> {
        self.membership_within(who, self.inner.watch_age).await
    }

    async fn membership_within(&self, who: &NodeOf, age: Duration) -> ProviderResult<Membership> {
        let nodes = self.nodes(age, self.until()).await?;
        Ok(who.find(&nodes)?.map_or(Membership::NotFound, Node::membership))
    }

    /// Drained: cordoned, and nothing runs there but what belongs to every node (DaemonSets, static pods).
    pub async fn drain_state(&self, who: &NodeOf) -> ProviderResult<Drain> {
        let until = self.until();
        let nodes = self.nodes(Duration::ZERO, until).await?;
        match self.for_drain(who, &nodes)? {
            Ok(node) => self.drain_of(&node.name, until).await,
            Err(known) => Ok(known),
        }
    }

    /// The same for who asks about every machine again and again.
    pub async fn watch_drain(&self, who: &NodeOf) -> ProviderResult<Drain> {
        let until = self.until();
        let nodes = self.nodes(self.inner.watch_age, until).await?;
        let node = match self.for_drain(who, &nodes)? {
            Ok(node) => node,
            Err(known) => return Ok(known),
        };
        let shared = self.watched_pods(&node.name, &nodes);
        let read = async || self.drain_of(&node.name, until).await;
        shared.get(self.inner.watch_age, until, read).await.map(|drain| Drain::clone(&drain))
    }

    /// The node whose pods must be looked at, or what is known without.
    fn for_drain<'n>(&self, who: &NodeOf, nodes: &'n [Node]) -> ProviderResult<Result<&'n Node, Drain>> {
        match who.find(nodes)? {
            Some(node) if node.cordoned => Ok(Ok(node)),
            Some(node) => Ok(Err(Drain::InUse(format!("node {} is not cordoned", node.name)))),
            None if !who.system_uuid.is_empty() => Ok(Err(Drain::Drained)),
            // it may be there under another name: what is not known to be drained is not drained
            None => Err(ProviderError::refused(
                FailureClass::NeedsOperator,
                format!(
                    "{} has not {}, and the machine has no system UUID to find it by, so nobody can tell whether it is drained; set its spec.system_uuid, or the label that names its node",
                    self.what(),
                    who.describe()
                ),
            )),
        }
    }

    /// Where the news of one cordoned node are shared. Nodes that are no longer cordoned are forgotten.
    fn watched_pods(&self, node: &str, nodes: &[Node]) -> Arc<Shared<Drain>> {
        let mut pods = self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pods.get(node) {
            return known.clone();
        }
        pods.retain(|name, _| nodes.iter().any(|node| node.cordoned && node.name == *name));
        pods.entry(node.to_owned()).or_default().clone()
    }

    async fn drain_of(&self, node: &str, until: Instant) -> ProviderResult<Drain> {
        let mut session = self.session_until(until).await?;
        let pods = drain::pods(&mut session, node).await?;
        Ok(drain::state(&pods))
    }

    pub(crate) async fn nodes(&self, age: Duration, deadline: Instant) -> ProviderResult<Arc<Vec<Node>>> {
        let read = async || {
            let mut session = self.session_until(deadline).await?;
            session.list("/api/v1/nodes", "", "list nodes", NODES_MAX, |node: NodeObject| Node::from(node)).await
        };
        self.inner.nodes.get(age, deadline, read).await
    }

    /// The node to change, as it is now. Contradictions stop us here.
    pub(crate) async fn found(&self, who: &NodeOf, until: Instant) -> ProviderResult<Option<Node>> {
        let nodes = self.nodes(Duration::ZERO, until).await?;
        Ok(who.find(&nodes)?.cloned())
    }

    pub(crate) fn no_node(&self, who: &NodeOf) -> ProviderError {
        let message = format!("{} has not {}; it may not have joined yet", self.what(), who.describe());
        ProviderError::refused(FailureClass::NeedsOperator, message)
    }

    /// Keeps new pods away from the node, or (`on` false) lets them come again.
    pub async fn cordon(&self, who: &NodeOf, on: bool) -> ProviderResult<Ack> {
        let until = self.until();
        let node = self.found(who, until).await?.ok_or_else(|| self.no_node(who))?;
        if node.cordoned != on {
            self.mark(who, &node, on, until).await?;
        }
        Ok(Ack::Done)
    }

    pub(crate) async fn mark(&self, who: &NodeOf, node: &Node, on: bool, until: Instant) -> ProviderResult<()> {
        let wanted = if on { serde_json::Value::Bool(true) } else { serde_json::Value::Null };
        // the uid makes it this very node: one of the same name made meanwhile is a conflict
        let patch = serde_json::json!({ "metadata": { "uid": node.uid }, "spec": { "unschedulable": wanted } });
        let ask = Ask::json(Method::PATCH, path_of(node), &patch, "patch nodes");
        let mut session = self.session_until(until).await?;
        let answer = session.ask(&ask).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(self.no_node(who));
        }
        if !answer.is_yes() {
            return Err(session.refused(&ask, &answer));
        }
        let now: NodeObject = session.parse(&answer).map_err(|_| {
            ProviderError::unknown(format!("{} was told to patch nodes, and its answer cannot be read", self.what()))
        })?;
        if Node::from(now).cordoned != on {
            let why = format!("it said yes, and node {} is as it was", node.name);
            return Err(ProviderError::bad_answer(self.what(), &why));
        }
        Ok(())
    }

    /// Takes the node object out of the cluster. Gone already is done. What runs there is not asked about: drain
    /// first.
    pub async fn delete_node(&self, who: &NodeOf) -> ProviderResult<Ack> {
        let until = self.until();
        let Some(node) = self.found(who, until).await? else { return Ok(Ack::Done) };
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": node.uid },
        });
        let ask = Ask::json(Method::DELETE, path_of(&node), &options, "delete nodes");
        let mut session = self.session_until(until).await?;
        let answer = session.ask(&ask).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(Ack::Done),
            // finalizers may hold it for a while
            StatusCode::ACCEPTED => Ok(Ack::Accepted),
            _ if answer.is_yes() => Ok(Ack::Done),
            _ => Err(session.refused(&ask, &answer)),
        }
    }
}

fn path_of(node: &Node) -> String {
    format!("/api/v1/nodes/{}", encoded(&node.name))
}
