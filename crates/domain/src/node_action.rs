//! What an operator can do about a node: eleven actions, and for each status whether it is allowed, what will happen, and
//! why not. Pure, so that a preview and the deed cannot differ.

use crate::agent::{AgentIdentity, HeartbeatPolicy, IdentityState};
use crate::job::Job;
use crate::job_action::{self, Effect, JobAction};
use crate::job_stage::{JobKind, Mode};
use crate::node::{AgentMode, Node, NodeStatus};
use crate::time::Timestamp;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeAction {
    Drain,
    Cordon,
    Uncordon,
    Reactivate,
    Remove,
    Quarantine,
    Recover,
    Resume,
    Rebootstrap,
    Repair,
    Revoke,
}

impl NodeAction {
    pub const ALL: [NodeAction; 11] = [
        NodeAction::Drain,
        NodeAction::Cordon,
        NodeAction::Uncordon,
        NodeAction::Reactivate,
        NodeAction::Remove,
        NodeAction::Quarantine,
        NodeAction::Recover,
        NodeAction::Resume,
        NodeAction::Rebootstrap,
        NodeAction::Repair,
        NodeAction::Revoke,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            NodeAction::Drain => "drain",
            NodeAction::Cordon => "cordon",
            NodeAction::Uncordon => "uncordon",
            NodeAction::Reactivate => "reactivate",
            NodeAction::Remove => "remove",
            NodeAction::Quarantine => "quarantine",
            NodeAction::Recover => "recover",
            NodeAction::Resume => "resume",
            NodeAction::Rebootstrap => "rebootstrap",
            NodeAction::Repair => "repair",
            NodeAction::Revoke => "revoke",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == text)
    }

    /// Whether it must be said why.
    pub const fn needs_reason(self) -> bool {
        match self {
            NodeAction::Quarantine | NodeAction::Recover | NodeAction::Repair | NodeAction::Revoke => true,
            NodeAction::Drain
            | NodeAction::Cordon
            | NodeAction::Uncordon
            | NodeAction::Reactivate
            | NodeAction::Remove
            | NodeAction::Resume
            | NodeAction::Rebootstrap => false,
        }
    }

    /// Whether it may be taken on many nodes at once. What concerns an identity is one node's: a bundle is a secret.
    pub const fn in_bulk(self) -> bool {
        match self {
            NodeAction::Drain
            | NodeAction::Cordon
            | NodeAction::Uncordon
            | NodeAction::Reactivate
            | NodeAction::Remove
            | NodeAction::Quarantine
            | NodeAction::Recover
            | NodeAction::Resume => true,
            NodeAction::Rebootstrap | NodeAction::Repair | NodeAction::Revoke => false,
        }
    }
}

impl fmt::Display for NodeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an allowed action does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEffect {
    /// A job begins, and takes the node.
    Begin(JobKind),
    /// This is done about the job that holds it.
    OnJob(JobAction, Effect),
    Cordon,
    Uncordon,
    Reactivate,
    Quarantine,
    Recover,
    /// A new bundle; those before it are good no more.
    Issue {
        mode: AgentMode,
    },
    Repair,
    /// What it came with, or would come with, is good no more.
    Revoke,
    /// It is so already.
    Nothing(&'static str),
}

/// Everything that a judgement follows from.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    pub node: &'a Node,
    /// The job that has not ended.
    pub job: Option<&'a Job>,
    /// `None`: no agent has enrolled.
    pub agent: Option<&'a AgentIdentity>,
    pub policy: HeartbeatPolicy,
    pub now: Timestamp,
}

impl NodeEffect {
    /// For a preview, and for the answer.
    pub fn describe(&self, facts: &NodeFacts<'_>) -> String {
        match self {
            NodeEffect::Begin(kind) => {
                let stages: Vec<&str> = kind.stages().iter().map(|s| s.as_str()).collect();
                format!("a job begins and holds the node: {kind} ({})", stages.join(", "))
            }
            NodeEffect::OnJob(action, effect) => match facts.job {
                Some(job) => format!("{action} of job {} ({}): {}", job.id, job.kind, effect.describe(job)),
                None => action.to_string(),
            },
            NodeEffect::Cordon => format!("no new work is placed on it; it stays {}", facts.node.status),
            NodeEffect::Uncordon => "its cordon is lifted".to_owned(),
            NodeEffect::Reactivate => {
                "it is offline, with the identity it has, and active once its heartbeat is steady".to_owned()
            }
            NodeEffect::Quarantine => {
                "it is quarantined: nothing is placed on it until somebody recovers it".to_owned()
            }
            NodeEffect::Recover => "its quarantine ends: it is active".to_owned(),
            NodeEffect::Issue { mode: AgentMode::Rebootstrap } => {
                "a new bundle is issued; the agent's present key is good until another has come with it".to_owned()
            }
            NodeEffect::Issue { mode: AgentMode::Keep | AgentMode::Repair } => {
                "a new bundle is issued; the one before it is good no more".to_owned()
            }
            NodeEffect::Repair => "the next agent that comes with its key is taken as the one".to_owned(),
            NodeEffect::Revoke => match facts.agent {
                Some(_) => "its agent's identity is taken back at once, and its bundle, if one is out".to_owned(),
                None => "its bundle is good no more".to_owned(),
            },
            NodeEffect::Nothing(is) => format!("{is}: nothing happens"),
        }
    }
}

impl NodeFacts<'_> {
    fn held(&self, job: &Job) -> String {
        format!(
            "job {} ({}) holds it and is {}; wait for its end, or call it off: 'millwright job cancel {}'",
            job.id, job.kind, job.status, job.id
        )
    }

    /// Goes on with the job that holds it.
    fn on_job(&self, action: JobAction, job: &Job) -> Result<NodeEffect, String> {
        let effect = job_action::judge_action(action, job, self.node.status)
            .map_err(|why| format!("job {} ({}) holds it: {why}", job.id, job.kind))?;
        Ok(NodeEffect::OnJob(action, effect))
    }

    fn is_steady(&self) -> bool {
        self.agent
            .is_some_and(|a| a.state == IdentityState::Good && self.policy.is_steady(a.beats, a.last_beat, self.now))
    }

    pub fn judge(&self, action: NodeAction) -> Result<NodeEffect, String> {
        if self.node.status == NodeStatus::Deleted {
            return Err("it is deleted, and its identity never comes back; enrol the machine as a new node".to_owned());
        }
        match action {
            NodeAction::Drain => self.drain(),
            NodeAction::Cordon if self.node.is_cordoned() => Ok(NodeEffect::Nothing("it is cordoned already")),
            NodeAction::Cordon => Ok(NodeEffect::Cordon),
            NodeAction::Uncordon if self.node.is_cordoned() => Ok(NodeEffect::Uncordon),
            NodeAction::Uncordon => Ok(NodeEffect::Nothing("it is not cordoned")),
            NodeAction::Reactivate => self.reactivate(),
            NodeAction::Remove => self.remove(),
            NodeAction::Quarantine => self.quarantine(),
            NodeAction::Recover => self.recover(),
            NodeAction::Resume => self.resume(),
            NodeAction::Rebootstrap => self.rebootstrap(),
            NodeAction::Repair => self.repair(),
            NodeAction::Revoke => match self.agent.map(|a| a.state) {
                Some(IdentityState::Revoked) => Ok(NodeEffect::Nothing("its identity was taken back already")),
                Some(IdentityState::Good | IdentityState::Suspended) | None => Ok(NodeEffect::Revoke),
            },
        }
    }

    /// All of them, with what each would do or why it is not offered.
    pub fn judge_all(&self) -> Vec<(NodeAction, Result<NodeEffect, String>)> {
        NodeAction::ALL.into_iter().map(|action| (action, self.judge(action))).collect()
    }

    /// The names of those that are allowed.
    pub fn allowed(&self) -> Vec<&'static str> {
        NodeAction::ALL.into_iter().filter(|a| self.judge(*a).is_ok()).map(NodeAction::as_str).collect()
    }

    fn drain(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined | NodeStatus::Draining => {
                match self.job {
                    None => Ok(NodeEffect::Begin(JobKind::Drain)),
                    Some(job) if drains(job.kind) => self.on_job(JobAction::Resume, job),
                    Some(job) => Err(self.held(job)),
                }
            }
            NodeStatus::Retired => Ok(NodeEffect::Nothing("it is drained and retired already")),
            NodeStatus::Removing => Err("it is drained, and being removed".to_owned()),
            NodeStatus::BootstrapIssued => {
                Err("no agent of it has come, so nothing runs there; take its bundle back: 'millwright node revoke NODE --reason WHY'".to_owned())
            }
            NodeStatus::Enrolling => Err("it is being onboarded; cancel that, and it is quarantined: then it can be drained".to_owned()),
            NodeStatus::Deleted => Err("it is deleted".to_owned()),
        }
    }

    fn remove(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::Retired if self.job.is_none() && self.has_machine_in_maas() => Err(
                "its machine would stay deployed in MAAS: 'millwright node decommission NODE --mode full_decommission' releases it there, then removes the node"
                    .to_owned(),
            ),
            NodeStatus::Retired | NodeStatus::Removing => match self.job {
                None => Ok(NodeEffect::Begin(JobKind::Removal)),
                Some(job) if job.kind.removes() => self.on_job(JobAction::Resume, job),
                Some(job) => Err(self.held(job)),
            },
            status @ (NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined) => {
                Err(format!("it is {status}: drain it first, or decommission it fully"))
            }
            NodeStatus::Draining => Err("it is being drained; once it is retired it can be removed".to_owned()),
            NodeStatus::BootstrapIssued | NodeStatus::Enrolling => {
                Err("it was never in service; begin its onboarding and cancel it: then it can be drained and removed"
                    .to_owned())
            }
            NodeStatus::Deleted => Err("it is deleted".to_owned()),
        }
    }

    fn has_machine_in_maas(&self) -> bool {
        self.node.maas.as_ref().is_some_and(|there| !there.system_id.is_empty())
    }

    fn quarantine(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::Active | NodeStatus::Offline | NodeStatus::Enrolling => match self.job {
                None => Ok(NodeEffect::Quarantine),
                Some(job) => self.on_job(JobAction::Quarantine, job),
            },
            // what probes have blocked is a person's from now on
            NodeStatus::Quarantined if self.node.quarantined_by == crate::node::PROBES => Ok(NodeEffect::Quarantine),
            NodeStatus::Quarantined => Ok(NodeEffect::Nothing("it is quarantined already")),
            status @ (NodeStatus::BootstrapIssued
            | NodeStatus::Draining
            | NodeStatus::Retired
            | NodeStatus::Removing
            | NodeStatus::Deleted) => Err(format!("it is {status}, and nothing is placed on it as it is")),
        }
    }

    /// Nobody's word brings a node back that may hold something of a tenant's.
    fn is_clean(&self) -> Result<(), String> {
        match self.node.unclean.as_str() {
            "" => Ok(()),
            why => Err(format!(
                "it is not proven clean ({why}); clean and check it: 'millwright node decommission NODE --mode soft_reset'"
            )),
        }
    }

    fn recover(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::Quarantined => {}
            NodeStatus::Active => return Ok(NodeEffect::Nothing("it is active already")),
            status @ (NodeStatus::BootstrapIssued
            | NodeStatus::Enrolling
            | NodeStatus::Offline
            | NodeStatus::Draining
            | NodeStatus::Retired
            | NodeStatus::Removing
            | NodeStatus::Deleted) => return Err(format!("it is {status}, and not quarantined")),
        }
        if let Some(job) = self.job {
            return Err(self.held(job));
        }
        self.is_clean()?;
        if self.node.machine_id.is_none() {
            return Err("it was never linked to a machine, since its onboarding did not end; drain and remove it, and enrol the machine again".to_owned());
        }
        let Some(agent) = self.agent else {
            return Err("no agent of it has enrolled; give it a bundle: 'millwright node rebootstrap NODE'".to_owned());
        };
        match agent.state {
            IdentityState::Good => {}
            IdentityState::Suspended => {
                return Err(
                    "its agent's identity is stopped; settle that first: 'millwright node repair NODE --reason WHY'"
                        .to_owned(),
                );
            }
            IdentityState::Revoked => {
                return Err("its agent's identity was taken back; give it another: 'millwright node rebootstrap NODE'"
                    .to_owned());
            }
        }
        if !self.is_steady() {
            let last = agent.last_beat.map_or("never".to_owned(), |at| format!("last at {at}"));
            return Err(format!(
                "its heartbeat is not steady: {} without a gap ({last}), and {} are needed, the last within {} s",
                agent.beats,
                self.policy.back_after,
                self.policy.lost_after.as_secs()
            ));
        }
        Ok(NodeEffect::Recover)
    }

    fn reactivate(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::Retired => {}
            NodeStatus::Offline | NodeStatus::Active => return Ok(NodeEffect::Nothing("it is in use already")),
            status @ (NodeStatus::BootstrapIssued
            | NodeStatus::Enrolling
            | NodeStatus::Quarantined
            | NodeStatus::Draining
            | NodeStatus::Removing
            | NodeStatus::Deleted) => return Err(format!("it is {status}, and not retired")),
        }
        if let Some(job) = self.job {
            return Err(self.held(job));
        }
        self.is_clean()?;
        match self.agent.map(|a| a.state) {
            Some(IdentityState::Good | IdentityState::Suspended) => Ok(NodeEffect::Reactivate),
            Some(IdentityState::Revoked) | None => {
                Err("its agent's identity was not kept; give it another first: 'millwright node rebootstrap NODE'"
                    .to_owned())
            }
        }
    }

    fn resume(&self) -> Result<NodeEffect, String> {
        if let Some(job) = self.job {
            return self.on_job(JobAction::Resume, job);
        }
        match self.node.status {
            // its job is lost: it is made anew
            NodeStatus::Enrolling => Ok(NodeEffect::Begin(JobKind::Onboarding(self.node.ground()))),
            NodeStatus::Draining => Ok(NodeEffect::Begin(JobKind::Drain)),
            NodeStatus::Removing => Ok(NodeEffect::Begin(JobKind::Removal)),
            NodeStatus::BootstrapIssued => {
                Err("nothing is under way: it waits for its agent, which begins its onboarding".to_owned())
            }
            status @ (NodeStatus::Active
            | NodeStatus::Offline
            | NodeStatus::Quarantined
            | NodeStatus::Retired
            | NodeStatus::Deleted) => Err(format!("it is {status}, and nothing is under way")),
        }
    }

    fn rebootstrap(&self) -> Result<NodeEffect, String> {
        match self.node.status {
            NodeStatus::BootstrapIssued
            | NodeStatus::Enrolling
            | NodeStatus::Active
            | NodeStatus::Offline
            | NodeStatus::Quarantined
            | NodeStatus::Draining
            | NodeStatus::Retired => {
                // the first key of all needs nobody's wish
                let first = matches!(self.node.status, NodeStatus::BootstrapIssued | NodeStatus::Enrolling);
                let mode = if first && self.agent.is_none() { AgentMode::Keep } else { AgentMode::Rebootstrap };
                Ok(NodeEffect::Issue { mode })
            }
            NodeStatus::Removing => Err("it is being removed, and its identity with it".to_owned()),
            NodeStatus::Deleted => Err("it is deleted".to_owned()),
        }
    }

    fn repair(&self) -> Result<NodeEffect, String> {
        match self.agent.map(|a| a.state) {
            Some(IdentityState::Suspended) if self.node.agent_mode == AgentMode::Repair => {
                Ok(NodeEffect::Nothing("the next agent that comes with its key is taken already"))
            }
            Some(IdentityState::Suspended) => Ok(NodeEffect::Repair),
            Some(IdentityState::Good) => Err("its agent's identity is good: there is nothing to repair".to_owned()),
            Some(IdentityState::Revoked) => {
                Err("its agent's identity was taken back for good; give it another: 'millwright node rebootstrap NODE'"
                    .to_owned())
            }
            None => Err("no agent of it has enrolled".to_owned()),
        }
    }

    /// What is best done next, where no job is at it.
    pub fn recommend(&self, bundle_expired: bool) -> (&'static str, &'static str) {
        match self.node.status {
            NodeStatus::BootstrapIssued if bundle_expired => {
                ("rebootstrap", "its bundle has expired, and no agent has come with it")
            }
            NodeStatus::BootstrapIssued => ("wait", "its agent has not come yet: install it with the bundle"),
            NodeStatus::Enrolling | NodeStatus::Draining | NodeStatus::Removing => {
                ("resume", "its job is missing: it is made anew")
            }
            NodeStatus::Active => ("none", "nothing: it is in service"),
            NodeStatus::Offline => match self.agent.map(|a| a.state) {
                Some(IdentityState::Suspended) => ("repair", "its agent's identity is stopped"),
                Some(IdentityState::Revoked) => ("rebootstrap", "its agent's identity was taken back"),
                Some(IdentityState::Good) | None => ("wait", "its heartbeat has not come back; look at the machine"),
            },
            NodeStatus::Quarantined => match self.recover() {
                Ok(_) => ("recover", "when what is wrong is settled"),
                Err(_) => ("drain", "it cannot be recovered as it is: settle that, or take it out of service"),
            },
            NodeStatus::Retired if self.has_machine_in_maas() => {
                ("none", "nothing: it is out of service; reactivate it, or decommission it fully")
            }
            NodeStatus::Retired => ("none", "nothing: it is out of service; reactivate or remove it"),
            NodeStatus::Deleted => ("none", "nothing: it is gone"),
        }
    }
}

/// Whether its end is that the node is retired, or gone.
const fn drains(kind: JobKind) -> bool {
    match kind {
        JobKind::Drain | JobKind::Decommission(Mode::FullDecommission(_)) => true,
        JobKind::Onboarding(_)
        | JobKind::Removal
        | JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup | Mode::Reimage(_)) => false,
    }
}

#[cfg(test)]
#[path = "node_action_tests.rs"]
mod tests;
