//! Why for boot nodes and findings.

use super::{Action, Explanation, seconds_until};
use crate::Call;
use crate::boot_nodes;
use domain::boot_node::{BOOTS_WITHIN, BootNode, BootState, MAX_INSTALL_ATTEMPTS, SILENT_AFTER};
use domain::finding::{Finding, FindingState};
use domain::install_order::InstallOrder;
use domain::lifecycle::{Owner, allowed_next};
use domain::machine::Machine;
use domain::{BootNodeId, FindingId, MacAddress, Timestamp};
use store::{Tx, TxResult, boot_node, finding, machine};

const SET: &str = "millwright.v1.BootService/SetBootNodeState";

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Option<Explanation>> {
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
    let machine = match &node.machine_id {
        Some(id) => machine::get(tx, id)?,
        None => None,
    };
    Ok(Some(of_node(call, &node, machine.as_ref(), &findings, tx.now())))
}

fn of_node(
    call: &Call,
    node: &BootNode,
    machine: Option<&Machine>,
    findings: &[Finding],
    now: Timestamp,
) -> Explanation {
    let order = node.open_order();
    let waiting_for = waiting_for(node, order);
    let deadline = order.map(|order| match order.heard_at().or(order.offered_at) {
        Some(heard) => heard.plus(SILENT_AFTER),
        None => order.opened_at.plus(BOOTS_WITHIN),
    });
    let at_rest = waiting_for.is_empty() && node.state != BootState::InstallFailed;
    let id = &node.id;
    let summary = match waiting_for.as_str() {
        "" => format!("boot node {id} ({}) is {}", node.mac, node.state),
        on => format!("boot node {id} ({}) is {} and waits for {on}", node.mac, node.state),
    };
    Explanation {
        id: id.to_string(),
        kind: "boot_node",
        state: node.state.to_string(),
        at_rest,
        summary,
        waiting_for,
        since: Some(node.state_changed_at),
        last_seen: last_seen(node),
        last_seen_at: node.last_seen,
        expected: expected(node.state).to_owned(),
        next_try: None,
        attempt: order.map(|order| order.attempt),
        attempts_left: order.map(|_| MAX_INSTALL_ATTEMPTS.saturating_sub(node.install_attempts)),
        deadline,
        seconds_left: deadline.map(|at| seconds_until(at, now)),
        held_by: order.and_then(|order| order.run.as_ref()).map(|(run, _)| format!("run {run}")).unwrap_or_default(),
        actions: actions(call, node, machine),
        desired: match order {
            Some(order) => {
                format!("{} by workflow {:?}, ordered by {}", order.task, order.workflow_id, order.opened_by)
            }
            None => String::new(),
        },
        observed: last_seen(node),
        execution: String::new(),
        projected: node.state.to_string(),
        problems: findings.iter().map(|f| format!("{}: {}", f.kind.as_str(), f.message)).collect(),
    }
}

fn waiting_for(node: &BootNode, order: Option<&InstallOrder>) -> String {
    match (node.state, order) {
        (BootState::Discovered, _) => "somebody to approve it".to_owned(),
        (BootState::Pending | BootState::Installing | BootState::Deprovisioning, Some(order)) => {
            match (order.started_at, order.offered_at) {
                (Some(_), _) => {
                    let progress = order.progress.map(|p| format!(", at {p} %")).unwrap_or_default();
                    format!("the installer's next report (attempt {}{progress})", order.attempt)
                }
                (None, Some(_)) => {
                    format!("the installer of attempt {}, which was handed out, to begin", order.attempt)
                }
                (None, None) => "the machine to boot from the network".to_owned(),
            }
        }
        (BootState::Pending | BootState::Deprovisioning, None) => {
            "somebody to order it again: nothing is ordered any more".to_owned()
        }
        (BootState::InstallFailed, _) => "somebody to reset it".to_owned(),
        (BootState::Installed, _) => "somebody to verify it".to_owned(),
        (BootState::Reprovision, _) => "somebody to order its new installation".to_owned(),
        (BootState::Migrating, _) => "somebody to end its migration".to_owned(),
        (BootState::Installing, None) | (BootState::Active | BootState::Retired, _) => String::new(),
    }
}

fn expected(state: BootState) -> &'static str {
    match state {
        BootState::Discovered => "a workflow is assigned, and somebody approves it",
        BootState::Pending => "its installer reports that it has started",
        BootState::Installing => "its installer reports that it is complete",
        BootState::InstallFailed => "another workflow is assigned, and somebody resets it with force",
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

fn actions(call: &Call, node: &BootNode, machine: Option<&Machine>) -> Vec<Action> {
    let id = &node.id;
    let mut actions: Vec<Action> = allowed_next(Some(node.state), Owner::Operator)
        .into_iter()
        .map(|to| {
            let (what, command) = match to {
                BootState::Pending if node.state == BootState::InstallFailed => {
                    ("reset it", format!("millwright boot retry {id} --force"))
                }
                BootState::Pending => ("approve its installation", format!("millwright boot approve {id}")),
                BootState::Active if node.state == BootState::Migrating => {
                    ("end its migration", format!("millwright boot verify {id}"))
                }
                BootState::Active => ("say that it is well", format!("millwright boot verify {id}")),
                BootState::Reprovision => {
                    ("mark it for a new installation", format!("millwright boot reprovision {id}"))
                }
                BootState::Deprovisioning => ("erase its disks", format!("millwright boot erase {id}")),
                BootState::Migrating => ("begin a migration", format!("millwright boot migrate {id}")),
                BootState::Retired => ("retire it", format!("millwright boot retire {id}")),
                BootState::Discovered | BootState::Installing | BootState::InstallFailed | BootState::Installed => {
                    ("move it", format!("millwright boot show {id}"))
                }
            };
            let may = boot_nodes::may_move(node, machine, to);
            let rule = if to == BootState::Retired { "millwright.v1.BootService/RetireBootNode" } else { SET };
            Action::new(call, rule, what, command, may)
        })
        .collect();
    if node.state == BootState::Pending && node.open_order().is_none() {
        let command = format!("millwright boot retry {id}");
        actions.push(Action::new(
            call,
            SET,
            "order it again",
            command,
            boot_nodes::may_move(node, machine, BootState::Pending),
        ));
    }
    actions
}

fn of_finding(call: &Call, f: &Finding) -> Explanation {
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
        summary: format!("{} about {}: {}", f.kind.as_str(), f.subject, f.message),
        waiting_for: if settled { String::new() } else { "evidence that it is gone, or somebody's word".to_owned() },
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
