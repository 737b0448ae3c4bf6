//! What operators do about a node. Whether it is allowed and what happens is judged in the domain, the same for a preview
//! and the deed; here it is done, in one transaction.

use crate::change::Answer;
use crate::jobs::{self, JobView, checked_reason, parameters};
use crate::nodes::{Bundle, IssuedNode, Known, NodeRef, NodeView, find_node, known, lock_node, view, view_again};
use crate::{Call, Service};
use domain::agent::{BUNDLE_LIFE, HeartbeatPolicy, IdentityState};
use domain::job_action::JobAction;
use domain::lifecycle::{Guard, NodeGuard};
use domain::node::{self as nodes, AgentMode, Node, NodeStatus};
use domain::node_action::{NodeAction, NodeEffect};
use domain::task::WITHDRAWN;
use domain::{Error, JobId, Reason};
use engine::Engine;
use serde_json::json;
use std::sync::Arc;
use store::{Cause, Tx, TxResult, agent, job, node, task};
use workflow::job::{Act, Fresh, NewJob, Parameters, act, begin, blocked_or_not, tell_machine};

/// An operator's word about one node.
#[derive(Clone, Debug, Default)]
pub struct NodeAct {
    /// Or its name.
    pub id: String,
    pub reason: String,
    pub dry_run: bool,
    pub grace_seconds: u32,
    pub force: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeActed {
    pub view: NodeView,
    /// The one that carries it out, where one does.
    pub job: Option<JobView>,
    pub effect: String,
    /// `false`: a preview.
    pub done: bool,
}

impl Answer for NodeActed {
    fn id(&self) -> String {
        self.view.node.id.to_string()
    }

    fn kept(&self) -> String {
        format!("{} {}", self.id(), self.effect)
    }

    fn again(tx: &mut Tx<'_>, _: &Call, kept: &str) -> TxResult<Self> {
        let (id, effect) = kept.split_once(' ').unwrap_or((kept, ""));
        let view = view_again(tx, id)?;
        let job = match &view.node.active_job {
            Some(id) => job_view(tx, id)?,
            None => None,
        };
        Ok(Self { view, job, effect: effect.to_owned(), done: true })
    }
}

fn job_view(tx: &mut Tx<'_>, id: &JobId) -> TxResult<Option<JobView>> {
    match tx.point(&job::by_id(id))? {
        Some(job) => jobs::view(tx, job).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn node_action(text: &str) -> Result<NodeAction, Error> {
    NodeAction::parse(text).ok_or_else(|| {
        let known = NodeAction::ALL.map(NodeAction::as_str);
        Error::field("action", format!("{text:?} is no action; there are {}", known.join(", "))).allowing(known)
    })
}

/// The judgement, and its refusal with what is allowed instead.
fn judged(known: &Known, action: NodeAction) -> Result<NodeEffect, Error> {
    let (facts, node) = (known.facts(), &known.node);
    facts.judge(action).map_err(|why| {
        let allowed = facts.allowed();
        let instead = if allowed.is_empty() { "nothing is".to_owned() } else { allowed.join(", ") };
        let message = format!("{action} of node {} ({}): {why}; allowed: {instead}", node.id, node.name);
        let refused = Error::new(Reason::ActionNotAllowed, message).with("node_id", node.id.as_str());
        refused.with("status", node.status.to_string()).allowing(allowed)
    })
}

/// Everything that a deed needs beside the transaction.
struct Doing {
    by: String,
    reason: String,
    parameters: Parameters,
    fresh: Fresh,
    engine: Engine,
    bundle: Option<Bundle>,
}

impl Doing {
    fn cause(&self, trigger: &'static str) -> Cause {
        Cause::operator(&self.by, trigger, &self.reason)
    }

    fn make(&self, tx: &mut Tx<'_>, known: &Known, effect: &NodeEffect) -> TxResult<()> {
        let there = &known.node;
        match effect {
            NodeEffect::Nothing(_) => {}
            NodeEffect::Begin(kind) => {
                let parameters = self.parameters.clone();
                let new = NewJob { kind: *kind, parameters, reason: self.reason.clone() };
                begin(tx, there, &new, &self.fresh, &self.cause(domain::job::REQUESTED))?;
            }
            NodeEffect::OnJob(action, _) => {
                let job = known.job.as_ref().ok_or_else(|| Error::internal("an action on a job that is not there"))?;
                self.on_job(tx, &job.id, *action)?;
            }
            NodeEffect::Cordon => {
                let (cordoned_by, cordon_reason) = (self.by.clone(), self.reason.clone());
                node::save(tx, &Node { cordoned_by, cordon_reason, ..there.clone() })?;
            }
            NodeEffect::Uncordon => {
                let (cordoned_by, cordon_reason) = (String::new(), String::new());
                node::save(tx, &Node { cordoned_by, cordon_reason, ..there.clone() })?;
            }
            NodeEffect::Reactivate => {
                let why = format!("reactivated by {}; its heartbeat has not come back yet", self.by);
                self.go(tx, known, NodeStatus::Offline, &why, &self.cause(nodes::REACTIVATE))?;
            }
            NodeEffect::Quarantine => self.quarantine(tx, known)?,
            NodeEffect::Recover => {
                self.go(tx, known, NodeStatus::Active, &self.reason, &self.cause(nodes::RECOVER))?;
            }
            NodeEffect::Issue { mode } => self.issue(tx, there, *mode)?,
            NodeEffect::Repair => {
                let after = Node { agent_mode: AgentMode::Repair, agent_mode_by: self.by.clone(), ..there.clone() };
                node::save(tx, &after)?;
            }
            NodeEffect::Revoke => {
                agent::withdraw(tx, &there.id)?;
                if known.agent.is_some() {
                    let why = format!("taken back by {}: {}", self.by, self.reason);
                    agent::set_state(tx, &there.id, IdentityState::Revoked, &why)?;
                    // nobody is left who could end it
                    task::withdraw_of_node(
                        tx,
                        &there.id,
                        &Cause::operator(&self.by, WITHDRAWN, &format!("the identity of its agent was {why}")),
                    )?;
                }
                node::save(tx, &Node { agent_mode: AgentMode::Keep, agent_mode_by: String::new(), ..there.clone() })?;
            }
        }
        Ok(())
    }

    fn on_job(&self, tx: &mut Tx<'_>, job: &JobId, action: JobAction) -> TxResult<()> {
        let wish = Act { job: job.clone(), action, by: self.by.clone(), reason: self.reason.clone() };
        act(tx, &self.engine, &wish, &self.fresh).map(drop)
    }

    /// The operator's wish is the reconciler's edge, made at once; of an enrolling node it is the operator's own.
    fn quarantine(&self, tx: &mut Tx<'_>, known: &Known) -> TxResult<()> {
        let cause = match known.node.status {
            NodeStatus::Enrolling => self.cause(nodes::QUARANTINE),
            NodeStatus::BootstrapIssued
            | NodeStatus::Active
            | NodeStatus::Offline
            | NodeStatus::Quarantined
            | NodeStatus::Draining
            | NodeStatus::Retired
            | NodeStatus::Removing
            | NodeStatus::Deleted => Cause::reconciler(&self.by, nodes::QUARANTINE, &self.reason),
        };
        if known.node.status == NodeStatus::Quarantined {
            // what probes have blocked is a person's from now on
            let after = blocked_or_not(&known.node, NodeStatus::Quarantined, &self.reason, &self.by);
            let taken = node::save(tx, &after)?;
            return tell_machine(tx, &known.node, &taken);
        }
        self.go(tx, known, NodeStatus::Quarantined, &self.reason, &cause).map(drop)
    }

    /// The guard was judged by the same facts, in this transaction.
    fn go(&self, tx: &mut Tx<'_>, known: &Known, to: NodeStatus, why: &str, cause: &Cause) -> TxResult<Node> {
        let after = blocked_or_not(&known.node, to, why, &self.by);
        let proof = known.agent.as_ref().map_or(json!({}), |a| {
            json!({ "identity": a.state.as_str(), "heartbeats": a.beats, "last_heartbeat": a.last_beat.map(|at| at.to_string()) })
        });
        let moved = node::move_to(tx, &known.node, &after, &proof, cause, |guard| match guard {
            Guard::None | Guard::Node(NodeGuard::SteadyHeartbeat | NodeGuard::IdentityKept) => Ok(()),
            Guard::Node(NodeGuard::EnrolledAndHealthy | NodeGuard::ProbesPass | NodeGuard::OwningJob)
            | Guard::NoActiveRun
            | Guard::InClusterAndNoActiveRun
            | Guard::Inspected
            | Guard::WorkflowAssigned
            | Guard::ForcedReset
            | Guard::AttemptsSpent
            | Guard::NotInUse => {
                Err(Error::internal(format!("not a guard of an operator's move of a node: {guard:?}")))
            }
        })?;
        tell_machine(tx, &known.node, &moved)?;
        Ok(moved)
    }

    fn issue(&self, tx: &mut Tx<'_>, there: &Node, mode: AgentMode) -> TxResult<()> {
        let bundle = self.bundle.as_ref().ok_or_else(|| Error::internal("a bundle that was not made"))?;
        agent::issue(tx, &bundle.token)?;
        let after = Node { agent_mode: mode, agent_mode_by: self.by.clone(), ..there.clone() };
        if after != *there {
            node::save(tx, &after)?;
        }
        Ok(())
    }
}

/// What would happen, and to what.
struct Preview {
    view: NodeView,
    job: Option<JobView>,
    effect: String,
}

fn preview(tx: &mut Tx<'_>, named: &NodeRef, action: NodeAction, policy: HeartbeatPolicy) -> TxResult<Preview> {
    let there = find_node(tx, named)?;
    let known = known(tx, there.clone(), policy)?;
    let effect = judged(&known, action)?.describe(&known.facts());
    let job = known.job.map(|job| jobs::view(tx, job)).transpose()?;
    Ok(Preview { view: view(tx, there, policy)?, job, effect })
}

impl Service {
    /// Safe to repeat: what is under way or so already is answered with success, and nothing is done twice.
    pub async fn act_on_node(&self, call: &Arc<Call>, action: NodeAction, wish: NodeAct) -> Result<NodeActed, Error> {
        let issued = self.node_deed(call, action, wish).await?;
        Ok(issued.acted)
    }

    /// A new key for its agent, by a new bundle, which is in the first answer only.
    pub async fn rebootstrap_node(&self, call: &Arc<Call>, wish: NodeAct) -> Result<IssuedNode, Error> {
        let deed = self.node_deed(call, NodeAction::Rebootstrap, wish).await?;
        let NodeActed { view, effect, done, .. } = deed.acted;
        Ok(IssuedNode { view, bundle: deed.bundle, effect, done })
    }

    async fn node_deed(&self, call: &Arc<Call>, action: NodeAction, wish: NodeAct) -> Result<Deed, Error> {
        checked_reason(action.needs_reason(), &wish.reason, action.as_str())?;
        let parameters = parameters(wish.grace_seconds, wish.force, Vec::new())?;
        let (named, policy) = (NodeRef::new("id", &wish.id)?, self.heartbeat_policy());
        if wish.dry_run {
            let seen = self.store().snapshot(move |tx| preview(tx, &named, action, policy)).await?;
            let Preview { view, job, effect } = seen;
            return Ok(Deed { acted: NodeActed { view, job, effect, done: false }, bundle: None });
        }
        let id = self.store().snapshot(move |tx| find_node(tx, &named)).await?.id;
        let bundle = match action {
            NodeAction::Rebootstrap => Some(self.new_bundle(&id, BUNDLE_LIFE, &call.by.name).await?),
            NodeAction::Drain
            | NodeAction::Cordon
            | NodeAction::Uncordon
            | NodeAction::Reactivate
            | NodeAction::Remove
            | NodeAction::Quarantine
            | NodeAction::Recover
            | NodeAction::Resume
            | NodeAction::Repair
            | NodeAction::Revoke => None,
        };
        let doing = Doing {
            by: call.by.name.clone(),
            reason: wish.reason,
            parameters,
            fresh: Fresh::make(self.store().ambient().as_ref()),
            engine: self.engine().clone(),
            bundle,
        };
        let key = id.to_string();
        let change = self.change(call, &key, move |tx| {
            let locked = lock_node(tx, &id)?;
            let known = known(tx, locked.node.clone(), policy)?;
            let effect = judged(&known, action)?;
            if matches!(effect, NodeEffect::Begin(_)) {
                locked.is_free()?;
            }
            doing.make(tx, &known, &effect)?;
            let after = tx.point(&node::by_id(&id))?.ok_or_else(|| crate::nodes::not_found(id.as_str()))?;
            let job = match (&effect, after.active_job.as_ref().or(known.job.as_ref().map(|j| &j.id))) {
                (NodeEffect::Begin(_) | NodeEffect::OnJob(..), Some(id)) => job_view(tx, id)?,
                (_, Some(_) | None) => None,
            };
            let view = view(tx, after, policy)?;
            let acted = NodeActed { view, job, effect: effect.describe(&known.facts()), done: true };
            Ok(Deed { acted, bundle: doing.bundle.as_ref().map(|b| b.text.clone()) })
        });
        let Deed { acted, bundle } = change.await?;
        let view = self.seen_now(call, acted.view).await?;
        Ok(Deed { acted: NodeActed { view, ..acted }, bundle })
    }
}

/// What was done, with the secret that came of it, where one did.
struct Deed {
    acted: NodeActed,
    bundle: Option<String>,
}

impl Answer for Deed {
    fn id(&self) -> String {
        self.acted.id()
    }

    fn kept(&self) -> String {
        self.acted.kept()
    }

    fn again(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Self> {
        Ok(Self { acted: <NodeActed as Answer>::again(tx, call, id)?, bundle: None })
    }
}
