//! Why for boot nodes and findings.

use super::{Action, Explanation, seconds_until};
use crate::boot_nodes;
use crate::{Call, Service};
use domain::boot_node::{BootNode, BootState, MAX_INSTALL_ATTEMPTS};
use domain::finding::{Finding, FindingState};
use domain::install_order::{InstallOrder, OrderTask};
use domain::lifecycle::{Owner, allowed_next};
use domain::machine::Machine;
use domain::node::Node;
use domain::{BootNodeId, FindingId, MacAddress, Timestamp};
use std::time::Duration;
use store::switch::{self, Freeze};
use store::{Tx, TxResult, boot_node, finding};

const SET: &str = "millwright.v1.BootService/SetBootNodeState";

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct BootNodeFacts {
    pub node: BootNode,
    /// The machine that it is, if it is one.
    pub machine: Option<Machine>,
    /// What that machine is enrolled as.
    pub enrolled: Option<Node>,
    /// What is not resolved about it.
    pub findings: Vec<Finding>,
    pub frozen: Option<Freeze>,
    /// When the last freeze ended.
    pub thawed: Option<Timestamp>,
    /// After how long without a word an attempt has failed, as this server is set up.
    pub silent_after: Duration,
    pub now: Timestamp,
}

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, service: &Service, id: &str) -> TxResult<Option<Explanation>> {
    // both are the fleet's alone
    if call.by.is_scoped() {
        return Ok(None);
    }
    if let Some(f) = tx.point(&finding::by_id(&FindingId::from_text(id)))? {
        return Ok(Some(of_finding(call, &f)));
    }
    let found = match MacAddress::parse(id) {
        Some(mac) => tx.point(&boot_node::by_mac(&mac))?,
        None => tx.point(&boot_node::by_id(&BootNodeId::from_text(id)))?,
    };
    let Some(node) = found else { return Ok(None) };
    let findings = finding::unresolved(tx, node.id.as_str())?;
    let (machine, enrolled) = boot_nodes::linked(tx, &node)?;
    let (frozen, thawed) = (switch::frozen(tx)?, switch::thawed(tx)?);
    let (silent_after, now) = (service.silent_after(), tx.now());
    Ok(Some(BootNodeFacts { node, machine, enrolled, findings, frozen, thawed, silent_after, now }.explain(call)))
}

impl BootNodeFacts {
    pub fn explain(&self, call: &Call) -> Explanation {
        let (node, order) = (&self.node, self.node.open_order());
        let waiting_for = self.waiting_for(order);
        // nothing runs out while all automation is frozen
        let running = order.filter(|_| self.frozen.is_none());
        let deadline = running.map(|order| order.due(self.silent_after, self.thawed));
        let id = &node.id;
        let summary = match waiting_for.as_str() {
            "" => format!("boot node {id} ({}) is {}", node.mac, node.state),
            on => format!("boot node {id} ({}) is {} and waits for {on}", node.mac, node.state),
        };
        Explanation {
            id: id.to_string(),
            kind: "boot_node",
            state: node.state.to_string(),
            at_rest: waiting_for.is_empty(),
            summary,
            waiting_for,
            since: Some(node.state_changed_at),
            last_seen: last_seen(node),
            last_seen_at: node.last_seen,
            expected: expected(node.state).to_owned(),
            next_try: None,
            attempt: order.map(|order| order.attempt),
            // beside the one that is under way
            attempts_left: order.map(|_| MAX_INSTALL_ATTEMPTS.saturating_sub(node.install_attempts + 1)),
            deadline,
            seconds_left: deadline.map(|at| seconds_until(at, self.now)),
            held_by: order
                .and_then(|order| order.run.as_ref())
                .map(|(run, _)| format!("run {run}"))
                .unwrap_or_default(),
            actions: self.actions(call),
            desired: desired(node, order),
            observed: last_seen(node),
            execution: String::new(),
            projected: node.state.to_string(),
            problems: self.problems(),
        }
    }

    fn waiting_for(&self, order: Option<&InstallOrder>) -> String {
        let node = &self.node;
        match (node.state, order) {
            (BootState::Discovered, _) => "somebody to approve it".to_owned(),
            (BootState::Pending | BootState::Installing | BootState::Deprovisioning, Some(order)) => {
                match (order.started_at, order.offered_at, &self.frozen) {
                    (Some(_), _, _) => {
                        let progress = order.progress.map(|p| format!(", at {p} %")).unwrap_or_default();
                        format!("the installer's next report (attempt {}{progress})", order.attempt)
                    }
                    (None, Some(_), _) => {
                        format!("the installer of attempt {}, which was handed out, to begin", order.attempt)
                    }
                    (None, None, Some(freeze)) => {
                        format!("somebody to unfreeze: {} ({})", freeze.reason, freeze.by)
                    }
                    (None, None, None) => "the machine to boot from the network".to_owned(),
                }
            }
            (BootState::Pending | BootState::Deprovisioning, None) => {
                "somebody to order it again: nothing is ordered any more".to_owned()
            }
            (BootState::Installing, None) => {
                "somebody to retire it: nothing is ordered any more, which must not happen".to_owned()
            }
            (BootState::InstallFailed, _) => "somebody to reset it".to_owned(),
            (BootState::Installed, _) => "somebody to verify it".to_owned(),
            (BootState::Reprovision, _) => "somebody to order its new installation".to_owned(),
            (BootState::Migrating, _) => "somebody to end its migration".to_owned(),
            (BootState::Active | BootState::Retired, _) => String::new(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> =
            self.findings.iter().map(|f| format!("{}: {}", f.kind.as_str(), f.message)).collect();
        if let Some(freeze) = self.frozen.as_ref().filter(|_| self.node.open_order().is_some()) {
            problems
                .push(format!("all automation is frozen by {} since {}: {}", freeze.by, freeze.since, freeze.reason));
        }
        problems
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let (node, machine, enrolled) = (&self.node, self.machine.as_ref(), self.enrolled.as_ref());
        let id = &node.id;
        let mut actions: Vec<Action> = allowed_next(Some(node.state), Owner::Operator)
            .into_iter()
            .map(|to| {
                let (what, command) = way(node, to);
                let rule = if to == BootState::Retired { "millwright.v1.BootService/RetireBootNode" } else { SET };
                // the command names a workflow where none is assigned
                let named = BootNode { workflow_id: workflow_or_placeholder(node).to_owned(), ..node.clone() };
                Action::new(call, rule, what, command, boot_nodes::may_move(&named, machine, enrolled, to))
            })
            .collect();
        let again = match (node.state, node.open_order()) {
            (BootState::Pending, None) => Some(("order it again", "retry", BootState::Pending)),
            (BootState::Deprovisioning, None) => Some(("erase its disks again", "erase", BootState::Deprovisioning)),
            (_, Some(_) | None) => None,
        };
        if let Some((what, verb, to)) = again {
            let command = format!("millwright boot {verb} {id}");
            actions.push(Action::new(call, SET, what, command, boot_nodes::may_move(node, machine, enrolled, to)));
        }
        if let Some((run, _)) = node.open_order().and_then(|order| order.run.as_ref()) {
            let (rule, command) = ("baremetal.v1.RunService/CancelRun", format!("millwright run cancel {run}"));
            actions.push(Action::new(call, rule, "cancel its run, which calls the order off", command, Ok(())));
        }
        if node.state == BootState::Discovered && node.proposed_machine_id.is_some() {
            let rule = "millwright.v1.BootService/UpdateBootNode";
            let command = format!("millwright boot assign {id} --not-proposed");
            actions.push(Action::new(call, rule, "say that it is not the machine that is proposed", command, Ok(())));
        }
        if self.frozen.is_some() && node.open_order().is_some() {
            let rpc = "millwright.v1.EngineService/Unfreeze";
            actions.push(Action::new(call, rpc, "unfreeze", "millwright unfreeze".to_owned(), Ok(())));
        }
        actions
    }
}

/// What an operator's move is called, and how it is made.
fn way(node: &BootNode, to: BootState) -> (&'static str, String) {
    let id = &node.id;
    let workflow = if node.workflow_id.is_empty() { " --workflow ID" } else { "" };
    match to {
        // by another workflow, or by the same with a word: a comment is taken with both
        BootState::Pending if node.state == BootState::InstallFailed => {
            ("reset it", format!("millwright boot retry {id}{workflow} --comment WHY"))
        }
        BootState::Pending => {
            let link = if node.proposed_machine_id.is_some() { " --link" } else { "" };
            ("approve its installation", format!("millwright boot approve {id}{workflow}{link}"))
        }
        BootState::Active if node.state == BootState::Migrating => {
            ("end its migration", format!("millwright boot migrate {id} --done"))
        }
        BootState::Active => ("say that it is well", format!("millwright boot verify {id}")),
        BootState::Reprovision => ("mark it for a new installation", format!("millwright boot reprovision {id}")),
        BootState::Deprovisioning => ("erase its disks", format!("millwright boot erase {id}")),
        BootState::Migrating => ("begin a migration", format!("millwright boot migrate {id}")),
        BootState::Retired => {
            // a run's is called off with the run
            let what = match node.open_order() {
                Some(order) if order.run.is_none() => "retire it: nothing else calls its order off",
                Some(_) | None => "retire it",
            };
            (what, format!("millwright boot retire {id}"))
        }
        BootState::Discovered | BootState::Installing | BootState::InstallFailed | BootState::Installed => {
            ("look at it", format!("millwright boot show {id}"))
        }
    }
}

fn workflow_or_placeholder(node: &BootNode) -> &str {
    if node.workflow_id.is_empty() { "ID" } else { &node.workflow_id }
}

/// What is wanted of it, as far as anybody has said.
fn desired(node: &BootNode, order: Option<&InstallOrder>) -> String {
    match (order, node.state) {
        (Some(order), _) => {
            let by = match order.task {
                OrderTask::Install => format!(" by workflow {:?}", order.workflow_id),
                OrderTask::Erase => String::new(),
            };
            format!("{}{by}, ordered by {}", order.task, order.opened_by)
        }
        (None, BootState::Discovered) => "nobody has said what it is to be".to_owned(),
        (None, BootState::Pending | BootState::Installing | BootState::InstallFailed | BootState::Reprovision) => {
            format!("install by workflow {:?}", node.workflow_id)
        }
        (None, BootState::Deprovisioning) => "erase".to_owned(),
        (None, BootState::Installed | BootState::Active) => format!("installed by workflow {:?}", node.workflow_id),
        (None, BootState::Migrating) => "other hardware".to_owned(),
        (None, BootState::Retired) => String::new(),
    }
}

fn expected(state: BootState) -> &'static str {
    match state {
        BootState::Discovered => "a workflow is assigned, and somebody approves it",
        BootState::Pending => "its installer reports that it has started",
        BootState::Installing => "its installer reports that it is complete",
        BootState::InstallFailed => {
            "somebody tries it again, with another workflow or with a word why this one will do"
        }
        BootState::Installed => "somebody has seen that it does what it should",
        BootState::Active => "it boots from its disk",
        BootState::Reprovision => "somebody orders its installation",
        BootState::Deprovisioning => "its installer proves that its disks are empty",
        BootState::Migrating => "the new hardware is there",
        BootState::Retired => "nothing: it is out of our hands",
    }
}

fn last_seen(node: &BootNode) -> String {
    match (&node.last_install_error, node.last_seen) {
        (Some(error), _) => format!("attempt {} failed: {error}", node.install_attempts),
        (None, Some(at)) => format!("it was heard of at {at}"),
        (None, None) => "it has never been heard of".to_owned(),
    }
}

pub fn of_finding(call: &Call, f: &Finding) -> Explanation {
    let settled = f.state == FindingState::Resolved;
    let action = |what: &str, verb: &str, rule: &'static str| {
        let command = format!("millwright finding {verb} {}", f.id);
        Action::new(call, rule, what, command, Ok(()))
    };
    let resolve = action("say that it is settled", "resolve", "millwright.v1.FindingService/ResolveFinding");
    let acknowledge = action("take it up", "acknowledge", "millwright.v1.FindingService/AcknowledgeFinding");
    Explanation {
        id: f.id.to_string(),
        kind: "finding",
        state: f.state.to_string(),
        at_rest: settled,
        summary: format!("finding {}: {} about {}: {}", f.id, f.kind.as_str(), f.subject, f.message),
        waiting_for: if settled { String::new() } else { "evidence that it is gone, or somebody's word".to_owned() },
        desired: "that it is no more".to_owned(),
        since: Some(f.first_seen),
        last_seen: f.message.clone(),
        last_seen_at: Some(f.last_seen),
        expected: f.kind.next_action().to_owned(),
        actions: match f.state {
            FindingState::Open => vec![acknowledge, resolve],
            FindingState::Acknowledged => vec![resolve],
            FindingState::Resolved => Vec::new(),
        },
        projected: f.state.to_string(),
        ..Explanation::default()
    }
}
