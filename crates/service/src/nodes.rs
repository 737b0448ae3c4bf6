//! Nodes: made with a bundle, listed by view, read with their lifecycle and their history. What operators do about them
//! is in `node_actions`; what their agents do, in `agents`.

use crate::agents::new_bootstrap_token;
use crate::change::Answer;
use crate::jobs::{self, JobView};
use crate::machines::{no_active_run, required};
use crate::sites::{OnMaas, on_maas};
use crate::{Call, Page, PageRequest, Service};
use domain::agent::{AgentIdentity, BUNDLE_LIFE, BootstrapToken, HeartbeatPolicy, IdentityState};
use domain::id::check_name;
use domain::job::Job;
use domain::job_stage::{Ground, JobKind};
use domain::machine::{Machine, Phase};
use domain::node::{AgentMode, ISSUED, Node, NodeStatus, ONBOARD, View};
use domain::node_action::NodeFacts;
use domain::{BootNodeId, Error, MachineId, NodeId, Reason, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Cause, Failure, LogRow, Tx, TxResult, agent, boot_node, job, machine, node};
use workflow::job::{Fresh, NewJob, Parameters, begin};

/// A node that is wished for.
#[derive(Clone, Debug, Default)]
pub struct NewNode {
    pub name: String,
    /// Empty: which one it is shows when its agent comes.
    pub machine_id: String,
    /// 0: a day.
    pub bundle_seconds: i32,
    pub onboard: bool,
}

/// The six fields of a node's lifecycle, always filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleView {
    pub job_id: String,
    pub kind: String,
    pub workflow_state: String,
    pub current_stage: String,
    pub attempts: u32,
    pub failure_class: String,
    pub last_observed_state: String,
    pub recommended: String,
    pub message: String,
}

/// A node, and what is known beside its row.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub node: Node,
    pub agent: Option<AgentIdentity>,
    /// Its agent was heard of within the time that it has.
    pub connected: bool,
    pub boot_node_id: Option<BootNodeId>,
    /// What its MAAS says, of one that is on a machine of a site.
    pub maas: Option<OnMaas>,
    /// Of the bundle that is out, also when that is over.
    pub bundle_expires_at: Option<Timestamp>,
    /// Only of one.
    pub lifecycle: Option<LifecycleView>,
}

impl NodeView {
    /// Whether new work may be placed on it, and why not. Also of a node that is well itself: nobody can be told what to do
    /// there while its agent's identity is stopped.
    pub fn schedulable(&self) -> Result<(), String> {
        self.node.schedulable()?;
        match &self.agent {
            Some(agent) if agent.state != IdentityState::Good => {
                Err(format!("the identity of its agent is {}: {}", agent.state, agent.state_reason))
            }
            Some(_) => Ok(()),
            None => Err("no agent is enrolled".to_owned()),
        }
    }

    /// Whether somebody who follows it has something new to see. A heartbeat as such is no news.
    pub(crate) fn is_news_after(&self, before: &Self) -> bool {
        let still = |view: &Self| {
            let agent = view.agent.clone().map(|a| AgentIdentity { beats: 0, last_beat: None, skew_ms: 0, ..a });
            Self { agent, maas: view.maas.clone().map(OnMaas::still), ..view.clone() }
        };
        still(self) != still(before)
    }
}

/// A node that was made, or given a new bundle; by an earlier sending of the same request, or just now.
#[derive(Clone)]
pub struct IssuedNode {
    pub view: NodeView,
    /// Only in the first answer: it is stored nowhere.
    pub bundle: Option<String>,
    pub effect: String,
    /// `false`: a preview.
    pub done: bool,
}

pub(crate) fn not_found(id: &str) -> Error {
    let message = format!("there is no node {id:?}; 'millwright node list --view all' shows those there are");
    Error::new(Reason::NodeNotFound, message).with("node_id", id)
}

/// By its id, or by its name: a name never looks like an id.
#[derive(Clone, Debug)]
pub(crate) struct NodeRef(String);

const NODE_PREFIX: &str = "nod_";

impl NodeRef {
    pub(crate) fn new(field: &str, text: &str) -> Result<Self, Error> {
        Ok(Self(required(field, text)?))
    }
}

pub(crate) fn find_node(tx: &mut Tx<'_>, named: &NodeRef) -> TxResult<Node> {
    let text = named.0.as_str();
    let found = if text.starts_with(NODE_PREFIX) {
        tx.point(&node::by_id(&NodeId::from_text(text)))?
    } else {
        tx.point(&node::by_name(text))?
    };
    Ok(found.ok_or_else(|| not_found(text))?)
}

/// A node that nobody else writes now, and its machine, which was locked before it.
pub(crate) struct Locked {
    pub node: Node,
    pub machine: Option<Machine>,
}

impl Locked {
    /// One hold for a machine: a run keeps jobs away, as a job keeps runs away.
    pub fn is_free(&self) -> Result<(), Error> {
        self.machine.as_ref().map_or(Ok(()), no_active_run)
    }
}

/// In the order that everybody keeps: the machine, then the node.
pub(crate) fn lock_node(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Locked> {
    let seen = tx.point(&node::by_id(id))?.ok_or_else(|| not_found(id.as_str()))?;
    let machine = match &seen.machine_id {
        Some(machine) => machine::get_for_update(tx, machine)?,
        None => None,
    };
    let node = node::get_for_update(tx, id)?.ok_or_else(|| not_found(id.as_str()))?;
    if node.machine_id != seen.machine_id {
        return Err(Failure::Lost(format!("node {id}, which was linked meanwhile")));
    }
    Ok(Locked { node, machine })
}

/// What judgements about a node follow from, as of one transaction.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub node: Node,
    pub job: Option<Job>,
    pub agent: Option<AgentIdentity>,
    pub bundle: Option<BootstrapToken>,
    pub policy: HeartbeatPolicy,
    pub now: Timestamp,
}

impl Known {
    pub fn facts(&self) -> NodeFacts<'_> {
        NodeFacts {
            node: &self.node,
            job: self.job.as_ref(),
            agent: self.agent.as_ref(),
            policy: self.policy,
            now: self.now,
        }
    }

    pub fn is_expired(&self) -> bool {
        self.bundle.as_ref().is_some_and(|b| b.expires_at <= self.now)
    }
}

/// The bundle that nobody has used.
fn bundle_out(tx: &mut Tx<'_>, id: &NodeId) -> TxResult<Option<BootstrapToken>> {
    Ok(agent::tokens_of(tx, id)?.into_iter().find(|t| !t.withdrawn && t.key_sha256.is_none()))
}

pub(crate) fn known(tx: &mut Tx<'_>, node: Node, policy: HeartbeatPolicy) -> TxResult<Known> {
    let job = tx.point(&job::open_of_node(&node.id))?;
    let agent = tx.point(&agent::by_node(&node.id))?;
    let bundle = bundle_out(tx, &node.id)?;
    Ok(Known { node, job, agent, bundle, policy, now: tx.now() })
}

fn is_connected(agent: Option<&AgentIdentity>, policy: HeartbeatPolicy, now: Timestamp) -> bool {
    agent.and_then(|a| a.last_beat).is_some_and(|last| now.since(last) < policy.lost_after)
}

/// What was last heard of an agent, in words.
pub(crate) fn heard(agent: Option<&AgentIdentity>) -> String {
    match agent {
        None => "no agent has enrolled".to_owned(),
        Some(a) => {
            let beat = a.last_beat.map_or("no heartbeat yet".to_owned(), |at| format!("last heartbeat at {at}"));
            format!("its agent's identity is {}, {beat}, {} without a gap", a.state, a.beats)
        }
    }
}

impl LifecycleView {
    fn of_job(view: &JobView, known: &Known) -> Self {
        let (recommended, because) = match view.job.status.is_terminal() {
            false => view.recommended(),
            true => known.facts().recommend(known.is_expired()),
        };
        let message = match &view.job.failure {
            Some(failure) => failure.message.clone(),
            None => match view.waiting_for() {
                waits if waits.is_empty() => because.to_owned(),
                waits => waits,
            },
        };
        Self {
            job_id: view.job.id.to_string(),
            kind: view.job.kind.to_string(),
            workflow_state: view.job.status.to_string(),
            current_stage: view.stage_name().to_owned(),
            attempts: view.job.attempt,
            failure_class: view.failure_class().to_owned(),
            last_observed_state: view.observed(),
            recommended: recommended.to_owned(),
            message,
        }
    }

    /// Of a node that no job was ever about.
    fn without_job(known: &Known) -> Self {
        let (recommended, because) = known.facts().recommend(known.is_expired());
        Self {
            job_id: String::new(),
            kind: "none".to_owned(),
            workflow_state: "none".to_owned(),
            current_stage: "none".to_owned(),
            attempts: 0,
            failure_class: "none".to_owned(),
            last_observed_state: heard(known.agent.as_ref()),
            recommended: recommended.to_owned(),
            message: because.to_owned(),
        }
    }
}

/// One node, with everything.
pub(crate) fn view(tx: &mut Tx<'_>, node: Node, policy: HeartbeatPolicy) -> TxResult<NodeView> {
    let known = known(tx, node, policy)?;
    let last = match &known.job {
        Some(job) => Some(job.clone()),
        None => tx.point(&job::last_of_node(&known.node.id))?,
    };
    let lifecycle = match last {
        Some(job) => LifecycleView::of_job(&jobs::view(tx, job)?, &known),
        None => LifecycleView::without_job(&known),
    };
    let boot_node_id = match &known.node.machine_id {
        Some(machine) => tx.point(&boot_node::by_machine(machine))?.map(|n| n.id),
        None => None,
    };
    Ok(NodeView {
        maas: on_maas(tx, known.node.maas.as_ref())?,
        connected: is_connected(known.agent.as_ref(), policy, known.now),
        bundle_expires_at: known.bundle.map(|b| b.expires_at),
        lifecycle: Some(lifecycle),
        boot_node_id,
        node: known.node,
        agent: known.agent,
    })
}

/// A page of them, in a few statements.
fn views(tx: &mut Tx<'_>, nodes: Vec<Node>, policy: HeartbeatPolicy) -> TxResult<Vec<NodeView>> {
    let agents = agent::of_nodes(tx, nodes.iter().map(|n| &n.id))?;
    let mut agents: HashMap<NodeId, AgentIdentity> = agents.into_iter().map(|a| (a.node_id.clone(), a)).collect();
    let boots = boot_node::of_machines(tx, nodes.iter().filter_map(|n| n.machine_id.as_ref()))?;
    let boots: HashMap<MachineId, BootNodeId> = boots.into_iter().collect();
    let now = tx.now();
    let mut all = Vec::with_capacity(nodes.len());
    for node in nodes {
        let waits = matches!(node.status, NodeStatus::BootstrapIssued | NodeStatus::Enrolling)
            || node.agent_mode == AgentMode::Rebootstrap;
        let bundle = if waits { bundle_out(tx, &node.id)? } else { None };
        let agent = agents.remove(&node.id);
        all.push(NodeView {
            maas: on_maas(tx, node.maas.as_ref())?,
            connected: is_connected(agent.as_ref(), policy, now),
            bundle_expires_at: bundle.map(|b| b.expires_at),
            boot_node_id: node.machine_id.as_ref().and_then(|id| boots.get(id)).cloned(),
            lifecycle: None,
            agent,
            node,
        });
    }
    Ok(all)
}

/// Of an answer that is given again nothing is known but the node: not even the site's policy, by which `seen_now` has the
/// last word.
pub(crate) fn view_again(tx: &mut Tx<'_>, id: &str) -> TxResult<NodeView> {
    let node = tx.point(&node::by_id(&NodeId::from_text(id)))?.ok_or_else(|| not_found(id))?;
    view(tx, node, HeartbeatPolicy::default())
}

impl Answer for IssuedNode {
    fn id(&self) -> String {
        self.view.node.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        let effect = "it was done by an earlier request with this key, whose answer has shown the bundle".to_owned();
        Ok(Self { view: view_again(tx, id)?, bundle: None, effect, done: true })
    }
}

/// A minute is enough to copy a file; a month is longer than anybody remembers one.
const BUNDLE_SECONDS: std::ops::RangeInclusive<i32> = 60..=30 * 24 * 3600;
const HISTORY_DEFAULT: i32 = 50;
const HISTORY_MAX: i32 = 200;

fn bundle_life(seconds: i32) -> Result<Duration, Error> {
    if seconds == 0 {
        return Ok(BUNDLE_LIFE);
    }
    let problem = || {
        let (least, most) = (BUNDLE_SECONDS.start(), BUNDLE_SECONDS.end());
        Error::field("bundle_seconds", format!("{seconds} is not 0 (a day) or within {least} to {most}"))
    };
    if !BUNDLE_SECONDS.contains(&seconds) {
        return Err(problem());
    }
    Ok(Duration::from_secs(u64::try_from(seconds).map_err(|_| problem())?))
}

/// The machine that a new node is to be: known, ours, and no other node's.
fn machine_for(tx: &mut Tx<'_>, id: &str) -> TxResult<MachineId> {
    let id = MachineId::from_text(id);
    let there = machine::get_for_update(tx, &id)?.ok_or_else(|| crate::machines::not_found(id.as_str()))?;
    if there.phase == Phase::Retired {
        let message = format!("machine {id} is retired; register the hardware anew");
        return Err(Error::new(Reason::MachineRetired, message).into());
    }
    if let Some(other) = tx.point(&node::by_machine(&id))? {
        let message = format!(
            "machine {id} is node {} ({}), which is {}; remove that one first",
            other.id, other.name, other.status
        );
        return Err(Error::new(Reason::IdentityTaken, message).with("node_id", other.id.as_str()).into());
    }
    Ok(id)
}

/// What is stored of a bundle that was just made.
pub(crate) struct Bundle {
    pub text: String,
    pub token: BootstrapToken,
}

impl Service {
    /// What was answered may be an earlier answer, made without knowing when a node counts as heard of here.
    pub(crate) async fn seen_now(&self, call: &Call, view: NodeView) -> Result<NodeView, Error> {
        match call.idempotency_key {
            Some(_) => self.get_node(view.node.id.as_str()).await,
            None => Ok(view),
        }
    }

    /// Made outside of any transaction: it may be run again.
    pub(crate) async fn new_bundle(&self, node: &NodeId, life: Duration, by: &str) -> Result<Bundle, Error> {
        let (secret, hash) = new_bootstrap_token()?;
        let now = self.now();
        let expires_at = now.plus(life);
        let token = BootstrapToken {
            hash,
            node_id: node.clone(),
            expires_at,
            issued_by: by.to_owned(),
            issued_at: now,
            key_sha256: None,
            bound_at: None,
            withdrawn: false,
        };
        Ok(Bundle { text: self.agent_bundle(node, &secret, expires_at).await?, token })
    }

    pub async fn create_node(&self, call: &Arc<Call>, new: NewNode) -> Result<IssuedNode, Error> {
        check_name("name", &new.name)?;
        if new.name.starts_with(NODE_PREFIX) {
            let message = format!("{:?} begins with {NODE_PREFIX:?}, which is kept for ids", new.name);
            return Err(Error::field("name", message));
        }
        let life = bundle_life(new.bundle_seconds)?;
        let ambient = self.store().ambient();
        let id = NodeId::generate(ambient.uuid());
        let fresh = Fresh::make(ambient.as_ref());
        let bundle = self.new_bundle(&id, life, &call.by.name).await?;
        let (by, policy, key) = (call.by.name.clone(), self.heartbeat_policy(), new.name.clone());
        let change = self.change(call, &key, move |tx| {
            if let Some(there) = tx.point(&node::by_name(&new.name))? {
                let message =
                    format!("{:?} is node {}, which is {}; names are used once", new.name, there.id, there.status);
                return Err(Error::new(Reason::NodeExists, message).with("node_id", there.id.as_str()).into());
            }
            let machine_id = match new.machine_id.as_str() {
                "" => None,
                machine => Some(machine_for(tx, machine)?),
            };
            let reason = "a bundle was issued; its agent has not come yet";
            let issued = Node::new(id.clone(), &new.name, NodeStatus::BootstrapIssued, reason, &by, tx.now());
            let fresh_node = Node { machine_id, ..issued };
            let made = node::insert(tx, &fresh_node, &Cause::operator(&by, ISSUED, ""))?;
            agent::issue(tx, &bundle.token)?;
            if new.onboard {
                let wish = NewJob {
                    kind: JobKind::Onboarding(Ground::Bundle),
                    parameters: Parameters::default(),
                    reason: String::new(),
                };
                lock_node(tx, &made.id)?.is_free()?;
                begin(tx, &made, &wish, &fresh, &Cause::operator(&by, ONBOARD, ""))?;
            }
            let made = tx.point(&node::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?;
            let effect = "the node was made, and its bundle issued".to_owned();
            Ok(IssuedNode { view: view(tx, made, policy)?, bundle: Some(bundle.text.clone()), effect, done: true })
        });
        let issued = change.await?;
        Ok(IssuedNode { view: self.seen_now(call, issued.view).await?, ..issued })
    }

    /// By its id, or by the name of one that is not deleted.
    pub async fn get_node(&self, id: &str) -> Result<NodeView, Error> {
        let (named, policy) = (NodeRef::new("id", id)?, self.heartbeat_policy());
        self.store()
            .snapshot(move |tx| {
                let node = find_node(tx, &named)?;
                view(tx, node, policy)
            })
            .await
    }

    /// Without a view: the inventory of coarse states, unless the filter itself speaks of a status.
    pub async fn list_nodes(&self, request: &PageRequest, shown: &str) -> Result<Page<NodeView>, Error> {
        let size = request.size()?;
        let filter = node::FILTER.parse(&request.filter)?;
        let chosen = match shown {
            "" if filter.speaks_of("status") => None,
            "" => Some(View::Inventory),
            "all" => None,
            text => Some(View::parse(text).ok_or_else(|| {
                let known = View::ALL.map(View::as_str).into_iter().chain(["all"]);
                let known: Vec<&str> = known.collect();
                Error::field("view", format!("{text:?} is no view; there are {}", known.join(", "))).allowing(known)
            })?),
        };
        let list = format!("admin/nodes/{}", chosen.map_or("all", View::as_str));
        let (after, policy) = (request.cursor(&list)?, self.heartbeat_policy());
        let items = self
            .store()
            .read(move |tx| {
                let nodes = node::list(tx, &filter, chosen, &after, size + 1)?;
                views(tx, nodes, policy)
            })
            .await?;
        Ok(request.page(&list, items, size, |v: &NodeView| v.node.id.to_string()))
    }

    /// Every move of a node, of its jobs and its tasks: the newest first, and how many there are in all.
    pub async fn node_history(&self, id: &str, limit: Option<i32>, offset: i32) -> Result<(Vec<LogRow>, u64), Error> {
        let limit = limit.unwrap_or(HISTORY_DEFAULT);
        if !(1..=HISTORY_MAX).contains(&limit) {
            return Err(Error::field("limit", format!("{limit} is not within 1 to {HISTORY_MAX}")));
        }
        let offset = usize::try_from(offset).map_err(|_| Error::field("offset", "must not be negative"))?;
        let (limit, named) = (usize::try_from(limit).unwrap_or(1), NodeRef::new("id", id)?);
        self.store()
            .snapshot(move |tx| {
                let node = find_node(tx, &named)?;
                node::history(tx, &node.id, limit, offset)
            })
            .await
    }
}
