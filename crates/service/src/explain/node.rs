//! Why a node is as it is.

use super::{Action, Explanation, seconds_until};
use crate::nodes::{Known, heard, known};
use crate::sites::{OnMaas, on_maas};
use crate::{Call, Service};
use domain::agent::{AgentIdentity, BootstrapToken, HeartbeatPolicy};
use domain::finding::Finding;
use domain::job::Job;
use domain::node::{AgentMode, Node, NodeStatus};
use domain::node_action::{NodeAction, NodeFacts};
use domain::{Error, NodeId, Reason, Timestamp};
use store::switch::{self, Freeze};
use store::{Tx, TxResult, finding, node};

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct NodeWhy {
    pub node: Node,
    /// The job that has not ended.
    pub job: Option<Job>,
    pub agent: Option<AgentIdentity>,
    /// One that nobody has used.
    pub bundle: Option<BootstrapToken>,
    /// What is not resolved about it.
    pub findings: Vec<Finding>,
    /// What its MAAS says, of one that is on a machine of a site.
    pub maas: Option<OnMaas>,
    pub frozen: Option<Freeze>,
    pub policy: HeartbeatPolicy,
    pub now: Timestamp,
}

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, service: &Service, id: &str) -> TxResult<Option<Explanation>> {
    // the fleet's alone
    if call.by.is_scoped() {
        return Ok(None);
    }
    let found = match tx.point(&node::by_id(&NodeId::from_text(id)))? {
        Some(found) => Some(found),
        None => tx.point(&node::by_name(id))?,
    };
    let Some(found) = found else { return Ok(None) };
    let Known { node, job, agent, bundle, policy, now } = known(tx, found, service.heartbeat_policy())?;
    let findings = finding::unresolved(tx, node.id.as_str())?;
    let frozen = switch::frozen(tx)?;
    let maas = on_maas(tx, node.maas.as_ref())?;
    Ok(Some(NodeWhy { node, job, agent, bundle, findings, maas, frozen, policy, now }.explain(call)))
}

/// The call that an action is made by.
const fn rule_of(action: NodeAction) -> &'static str {
    match action {
        NodeAction::Drain => "millwright.v1.NodeService/DrainNode",
        NodeAction::Cordon => "millwright.v1.NodeService/CordonNode",
        NodeAction::Uncordon => "millwright.v1.NodeService/UncordonNode",
        NodeAction::Reactivate => "millwright.v1.NodeService/ReactivateNode",
        NodeAction::Remove => "millwright.v1.NodeService/RemoveNode",
        NodeAction::Quarantine => "millwright.v1.NodeService/QuarantineNode",
        NodeAction::Recover => "millwright.v1.NodeService/RecoverNode",
        NodeAction::Resume => "millwright.v1.NodeService/ResumeNode",
        NodeAction::Rebootstrap => "millwright.v1.NodeService/RebootstrapNode",
        NodeAction::Repair => "millwright.v1.NodeService/RepairNode",
        NodeAction::Revoke => "millwright.v1.NodeService/RevokeNode",
    }
}

impl NodeWhy {
    fn facts(&self) -> NodeFacts<'_> {
        NodeFacts {
            node: &self.node,
            job: self.job.as_ref(),
            agent: self.agent.as_ref(),
            policy: self.policy,
            now: self.now,
        }
    }

    pub fn explain(&self, call: &Call) -> Explanation {
        let node = &self.node;
        let waiting_for = self.waiting_for();
        let cordoned = if node.is_cordoned() { ", cordoned" } else { "" };
        let is = format!("node {} ({}) is {}{cordoned}", node.id, node.name, node.status);
        let summary = match waiting_for.as_str() {
            "" => is,
            on => format!("{is} and waits for {on}"),
        };
        let deadline = self.bundle.as_ref().filter(|_| self.waits_for_its_agent()).map(|b| b.expires_at);
        Explanation {
            id: node.id.to_string(),
            kind: "node",
            state: node.status.to_string(),
            at_rest: waiting_for.is_empty(),
            summary,
            waiting_for,
            since: Some(node.status_changed_at),
            last_seen: heard(self.agent.as_ref()),
            last_seen_at: self.agent.as_ref().and_then(|a| a.last_beat),
            expected: expected(node.status).to_owned(),
            attempt: self.job.as_ref().map(|job| job.attempt),
            deadline,
            seconds_left: deadline.map(|at| seconds_until(at, self.now)),
            held_by: self
                .job
                .as_ref()
                .map(|job| format!("job {} ({}, {})", job.id, job.kind, job.status))
                .unwrap_or_default(),
            actions: self.actions(call),
            desired: self.desired(),
            observed: self.observed(),
            execution: self.job.as_ref().map(|job| format!("execution {}", job.execution_id)).unwrap_or_default(),
            projected: node.status.to_string(),
            problems: self.problems(),
            ..Explanation::default()
        }
    }

    /// What its agent was heard to say, and what its MAAS does.
    fn observed(&self) -> String {
        let heard = heard(self.agent.as_ref());
        match &self.maas {
            Some(maas) => format!("{heard}; {}", maas.says()),
            None => heard,
        }
    }

    fn waits_for_its_agent(&self) -> bool {
        matches!(self.node.status, NodeStatus::BootstrapIssued | NodeStatus::Enrolling)
            || self.node.agent_mode != AgentMode::Keep
    }

    fn waiting_for(&self) -> String {
        if let Some(job) = &self.job {
            return if job.status.is_under_way() {
                format!("job {} ({}), which is {}: 'millwright why {}'", job.id, job.kind, job.status, job.id)
            } else {
                format!(
                    "somebody to act on job {} ({}), which is {}: 'millwright why {}'",
                    job.id, job.kind, job.status, job.id
                )
            };
        }
        match self.node.status {
            NodeStatus::BootstrapIssued => match &self.bundle {
                None => "somebody to issue a bundle: none is out".to_owned(),
                Some(b) if b.expires_at <= self.now => {
                    format!("somebody to issue another bundle: the one that is out has expired at {}", b.expires_at)
                }
                Some(b) => format!("its agent to come with its bundle, which is good until {}", b.expires_at),
            },
            NodeStatus::Enrolling | NodeStatus::Draining | NodeStatus::Removing => {
                "a sweep, or somebody, to make its job anew: it has none, which must not happen".to_owned()
            }
            NodeStatus::Offline => "its agent's heartbeat to come back".to_owned(),
            NodeStatus::Quarantined => "somebody to say that it is well again".to_owned(),
            NodeStatus::Active | NodeStatus::Retired | NodeStatus::Deleted => String::new(),
        }
    }

    fn desired(&self) -> String {
        let agent = match self.node.agent_mode {
            AgentMode::Keep => "",
            AgentMode::Rebootstrap => "; another key for its agent",
            AgentMode::Repair => "; that its agent goes on with its key",
        };
        let wanted = match (&self.job, self.node.status) {
            (Some(job), _) => format!("{}, asked for by {}", job.kind, job.requested_by),
            (None, NodeStatus::BootstrapIssued | NodeStatus::Enrolling) => "to be in service".to_owned(),
            (None, NodeStatus::Active | NodeStatus::Offline) => "to serve".to_owned(),
            (None, NodeStatus::Quarantined) => "to be looked at".to_owned(),
            (None, NodeStatus::Draining) => "to be retired".to_owned(),
            (None, NodeStatus::Removing) => "to be gone".to_owned(),
            (None, NodeStatus::Retired) => "to be out of service".to_owned(),
            (None, NodeStatus::Deleted) => String::new(),
        };
        format!("{wanted}{agent}")
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> =
            self.findings.iter().map(|f| format!("{}: {}", f.kind.as_str(), f.message)).collect();
        let node = &self.node;
        if !node.status_reason.is_empty() && node.status == NodeStatus::Quarantined {
            problems.push(format!("quarantined: {}", node.status_reason));
        }
        if let Some(a) = self.agent.as_ref().filter(|a| !a.state_reason.is_empty()) {
            problems.push(format!("its agent's identity is {}: {}", a.state, a.state_reason));
        }
        if let Some(failure) = self.job.as_ref().and_then(|job| job.failure.as_ref()) {
            problems.push(format!("{} ({}): {}", failure.code, failure.class.as_str(), failure.message));
        }
        if let Some(freeze) = self.frozen.as_ref().filter(|_| self.job.is_some()) {
            problems
                .push(format!("all automation is frozen by {} since {}: {}", freeze.by, freeze.since, freeze.reason));
        }
        problems
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let id = &self.node.id;
        let of_job = self.job.as_ref().map(|job| {
            let (rule, name) =
                ("millwright.v1.ExplainService/Explain", "look at its job, and what can be done about that");
            Action::new(call, rule, name, format!("millwright why {}", job.id), Ok(()))
        });
        if self.node.status == NodeStatus::Deleted {
            return of_job.into_iter().collect();
        }
        let facts = self.facts();
        let mut actions: Vec<Action> = facts
            .judge_all()
            .into_iter()
            .map(|(action, judged)| {
                let reason = if action.needs_reason() { " --reason WHY" } else { "" };
                let command = format!("millwright node {action} {id}{reason}");
                let judged = judged.map(drop).map_err(|why| Error::new(Reason::ActionNotAllowed, why));
                Action::new(call, rule_of(action), action.as_str(), command, judged)
            })
            .collect();
        if self.node.status == NodeStatus::BootstrapIssued {
            let judged = match &self.job {
                None => Ok(()),
                Some(job) => Err(Error::new(Reason::NodeHeld, format!("job {} holds it", job.id))),
            };
            let (rule, name) = ("millwright.v1.JobService/StartOnboarding", "onboard");
            actions.push(Action::new(call, rule, name, format!("millwright node onboard {id}"), judged));
        }
        actions.extend(of_job);
        if self.frozen.is_some() && self.job.is_some() {
            let rpc = "millwright.v1.EngineService/Unfreeze";
            actions.push(Action::new(call, rpc, "unfreeze", "millwright unfreeze".to_owned(), Ok(())));
        }
        actions
    }
}

fn expected(status: NodeStatus) -> &'static str {
    match status {
        NodeStatus::BootstrapIssued => "its agent enrols with the bundle",
        NodeStatus::Enrolling => "its agent has enrolled, is linked to its machine, and is healthy",
        NodeStatus::Active => "its agent's heartbeat, again and again",
        NodeStatus::Offline => "several heartbeats without a gap",
        NodeStatus::Quarantined => "somebody has settled what is wrong, and its heartbeat is steady",
        NodeStatus::Draining => "nothing of a tenant runs there any more",
        NodeStatus::Retired => "somebody uses it again, or removes it",
        NodeStatus::Removing => "its agent is uninstalled, and its identity taken back",
        NodeStatus::Deleted => "nothing: it is gone",
    }
}
