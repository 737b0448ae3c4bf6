//! Heartbeats: an active node that is not heard of is offline, one that is steadily heard of is active again. Nothing
//! else follows from them. Probes that are named for it block a node while they fail, and free what they blocked.

use crate::every::{Page, settle_all};
use crate::options::PAGE;
use crate::reconciler::Core;
use domain::lifecycle::{Guard, NodeGuard};
use domain::node::{HEARTBEAT_BACK, HEARTBEAT_LOST, Node, NodeStatus, PROBES, PROVEN_HEALTHY, QUARANTINE};
use domain::{Error, NodeId, Reason};
use serde_json::json;
use std::sync::Arc;
use store::{Cause, Tx, TxResult, agent, node};
use workflow::NodePolicy;
use workflow::job::{agent_is_steady, blocked_or_not, failing_probes, tell_machine, untold_probes};

/// In whose name.
const BY: &str = "heartbeat";

fn texts(ids: Vec<NodeId>) -> Page {
    ids.into_iter().map(NodeId::into_text).collect()
}

pub(crate) async fn sweep(core: &Core) -> Result<(), Error> {
    const WHAT: &str = "settling a node by its heartbeats";
    let policy = core.options.nodes.heartbeat;
    let nodes = Arc::new(core.options.nodes.clone());
    let settle = move |tx: &mut Tx<'_>, id: &str| judge(tx, &NodeId::from_text(id), &nodes);
    let lost = move |tx: &mut Tx<'_>, after: &str| {
        let before = tx.now().minus(policy.lost_after);
        agent::lost(tx, after, before, PAGE).map(texts)
    };
    settle_all(core, WHAT, lost, settle.clone()).await?;
    let back = move |tx: &mut Tx<'_>, after: &str| {
        let since = tx.now().minus(policy.lost_after);
        agent::back(tx, after, since, policy.back_after, PAGE).map(texts)
    };
    settle_all(core, WHAT, back, settle.clone()).await?;
    if core.options.nodes.blocking_probes.is_empty() {
        return Ok(());
    }
    let unwell = |tx: &mut Tx<'_>, after: &str| agent::unwell(tx, after, PAGE).map(texts);
    settle_all(core, WHAT, unwell, settle.clone()).await?;
    let well = move |tx: &mut Tx<'_>, after: &str| {
        let since = tx.now().minus(policy.lost_after);
        agent::steady_in_quarantine(tx, after, since, policy.back_after, PAGE).map(texts)
    };
    settle_all(core, WHAT, well, settle).await
}

/// Judged again in the transaction that writes: a heartbeat may have come meanwhile.
fn judge(tx: &mut Tx<'_>, id: &NodeId, policy: &NodePolicy) -> TxResult<()> {
    let Some(seen) = tx.point(&node::by_id(id))? else { return Ok(()) };
    // its machine before it, as everybody does
    if let Some(machine) = &seen.machine_id {
        store::machine::get_for_update(tx, machine)?;
    }
    let Some(there) = node::get_for_update(tx, id)? else { return Ok(()) };
    let Some(agent) = tx.point(&agent::by_node(id))? else { return lost_without_agent(tx, &there, policy) };
    let now = tx.now();
    let heard = agent.last_beat.map_or("never".to_owned(), |at| at.to_string());
    let since = there.status_changed_at;
    if let Some(to) = policy.heartbeat.calls_for(there.status, agent.beats, agent.last_beat, since, now) {
        let (trigger, why) = match to {
            NodeStatus::Offline => (HEARTBEAT_LOST, format!("last heard of: {heard}")),
            _ => (HEARTBEAT_BACK, format!("{} heartbeats without a gap", agent.beats)),
        };
        let steady = agent_is_steady(Some(&agent), &policy.heartbeat, now);
        return go(tx, &there, to, trigger, &why, &steady);
    }
    let named = Some(policy.blocking_probes.as_slice());
    let failing = failing_probes(&agent, named);
    match there.status {
        NodeStatus::Active if !failing.is_empty() => {
            let why = format!("probes: {}", failing.join("; "));
            go(tx, &there, NodeStatus::Quarantined, QUARANTINE, &why, &Ok(()))
        }
        NodeStatus::Quarantined
            if there.quarantined_by == PROBES
                && there.unclean.is_empty()
                && there.active_job.is_none()
                && failing.is_empty() =>
        {
            let steady = agent_is_steady(Some(&agent), &policy.heartbeat, now);
            // a probe that has blocked it and of which nothing is told any more does not pass
            let untold = untold_probes(&agent, &policy.blocking_probes);
            if steady.is_err() || untold.iter().any(|name| there.status_reason.contains(name)) {
                return Ok(());
            }
            let why = format!("its probes pass again: {}", policy.blocking_probes.join(", "));
            go(tx, &there, NodeStatus::Active, PROVEN_HEALTHY, &why, &steady)
        }
        NodeStatus::Active
        | NodeStatus::Quarantined
        | NodeStatus::BootstrapIssued
        | NodeStatus::Enrolling
        | NodeStatus::Offline
        | NodeStatus::Draining
        | NodeStatus::Retired
        | NodeStatus::Removing
        | NodeStatus::Deleted => Ok(()),
    }
}

/// Active without an agent to hear of: nobody can tell that it is well.
fn lost_without_agent(tx: &mut Tx<'_>, there: &Node, policy: &NodePolicy) -> TxResult<()> {
    let (now, since) = (tx.now(), there.status_changed_at);
    match policy.heartbeat.calls_for(there.status, 0, None, since, now) {
        Some(to) => go(tx, there, to, HEARTBEAT_LOST, "no agent is enrolled", &Ok(())),
        None => Ok(()),
    }
}

fn go(
    tx: &mut Tx<'_>,
    there: &Node,
    to: NodeStatus,
    trigger: &'static str,
    why: &str,
    steady: &Result<(), String>,
) -> TxResult<()> {
    let after = blocked_or_not(there, to, why, PROBES);
    let guard = |guard: Guard| match guard {
        Guard::None => Ok(()),
        Guard::Node(NodeGuard::SteadyHeartbeat | NodeGuard::ProbesPass) => {
            steady.clone().map_err(|why| Error::new(Reason::NotConfirmed, format!("node {}: {why}", there.id)))
        }
        other => Err(Error::internal(format!("heartbeats have no guard {other:?}"))),
    };
    let cause = Cause::reconciler(BY, trigger, why);
    let moved = node::move_to(tx, there, &after, &json!({ "evidence": why }), &cause, guard)?;
    tell_machine(tx, there, &moved)
}
