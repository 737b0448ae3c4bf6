//! What is allowed about a node, as a table, and what follows from its agent and its job.

use super::*;
use crate::id::{ExecutionId, JobId, NodeId};
use crate::job::{JobStatus, Purpose};
use crate::lifecycle::State as _;

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

fn node(status: NodeStatus) -> Node {
    Node {
        machine_id: Some(crate::id::MachineId::from_text("m-1")),
        ..Node::new(NodeId::from_text("nod_1"), "gpu-1", status, "", "ann", NOW)
    }
}

fn agent(state: IdentityState, beats: u32) -> AgentIdentity {
    AgentIdentity {
        node_id: NodeId::from_text("nod_1"),
        key_sha256: "k".into(),
        key_spki: Vec::new(),
        state,
        state_reason: String::new(),
        epoch: 1,
        session: 1,
        confirmed: true,
        enrolled_at: NOW,
        token_id: String::new(),
        certificate_until: NOW,
        agent_version: String::new(),
        boot_id: String::new(),
        beats,
        last_beat: Some(NOW),
        skew_ms: 0,
        inventory: String::new(),
        inventory_digest: String::new(),
        health: String::new(),
    }
}

fn job(kind: JobKind, status: JobStatus) -> Job {
    Job {
        id: JobId::from_text("job_1"),
        kind,
        node_id: NodeId::from_text("nod_1"),
        status,
        version: 1,
        stage: kind.stages().first().copied(),
        attempt: 1,
        execution_id: ExecutionId::from_text("exe_1"),
        purpose: Purpose::Forward,
        first_stage: 0,
        afterwards: None,
        tasks_since: 1,
        failure: None,
        observed: String::new(),
        done: Vec::new(),
        parameters: String::new(),
        learned: "{}".to_owned(),
        clean_record: String::new(),
        requested_by: "ann".into(),
        reason: String::new(),
        created_at: NOW,
        updated_at: NOW,
        finished_at: None,
    }
}

fn facts<'a>(node: &'a Node, job: Option<&'a Job>, agent: Option<&'a AgentIdentity>) -> NodeFacts<'a> {
    NodeFacts { node, job, agent, policy: HeartbeatPolicy::default(), now: NOW }
}

#[test]
fn the_table_of_what_is_allowed_at_rest() {
    let agent = agent(IdentityState::Good, 3);
    // beside cordon, uncordon and revoke, which every node that is not deleted takes
    let table: [(NodeStatus, &[&str]); 9] = [
        (NodeStatus::BootstrapIssued, &["rebootstrap"]),
        (NodeStatus::Enrolling, &["quarantine", "resume", "rebootstrap"]),
        (NodeStatus::Active, &["drain", "reactivate", "quarantine", "recover", "rebootstrap"]),
        (NodeStatus::Offline, &["drain", "reactivate", "quarantine", "rebootstrap"]),
        (NodeStatus::Quarantined, &["drain", "quarantine", "recover", "rebootstrap"]),
        (NodeStatus::Draining, &["drain", "resume", "rebootstrap"]),
        (NodeStatus::Retired, &["drain", "reactivate", "remove", "rebootstrap"]),
        (NodeStatus::Removing, &["remove", "resume"]),
        (NodeStatus::Deleted, &[]),
    ];
    assert_eq!(table.map(|row| row.0), NodeStatus::ALL, "every status has its row");
    for (status, expected) in table {
        let node = node(status);
        let allowed = facts(&node, None, Some(&agent)).allowed();
        let always = ["cordon", "uncordon", "revoke"];
        let beside: Vec<&str> = allowed.iter().copied().filter(|a| !always.contains(a)).collect();
        assert_eq!(beside, expected, "{status}");
        let has_always = always.iter().all(|a| allowed.contains(a));
        assert_eq!(has_always, status != NodeStatus::Deleted, "{status}");
    }
}

#[test]
fn an_identity_decides_what_may_be_done_about_it() {
    let judged = |status, state: Option<IdentityState>, beats, action| {
        let (node, agent) = (node(status), state.map(|state| agent(state, beats)));
        facts(&node, None, agent.as_ref()).judge(action)
    };
    let (quarantined, retired) = (NodeStatus::Quarantined, NodeStatus::Retired);
    use IdentityState::{Good, Revoked, Suspended};
    assert_eq!(judged(quarantined, Some(Good), 3, NodeAction::Recover), Ok(NodeEffect::Recover));
    for (state, beats) in [(None, 0), (Some(Good), 2), (Some(Suspended), 9), (Some(Revoked), 9)] {
        assert!(judged(quarantined, state, beats, NodeAction::Recover).is_err(), "{state:?} {beats}");
    }
    assert_eq!(judged(retired, Some(Good), 0, NodeAction::Reactivate), Ok(NodeEffect::Reactivate));
    for state in [None, Some(Revoked)] {
        assert!(judged(retired, state, 3, NodeAction::Reactivate).is_err(), "{state:?}");
    }
    assert_eq!(judged(NodeStatus::Offline, Some(Suspended), 0, NodeAction::Repair), Ok(NodeEffect::Repair));
    for state in [None, Some(Good), Some(Revoked)] {
        assert!(judged(NodeStatus::Offline, state, 0, NodeAction::Repair).is_err(), "{state:?}");
    }
    let issued = NodeStatus::BootstrapIssued;
    let mode = |state| judged(issued, state, 0, NodeAction::Rebootstrap);
    assert_eq!(mode(None), Ok(NodeEffect::Issue { mode: AgentMode::Keep }), "an expired bundle is issued again");
    assert_eq!(mode(Some(Good)), Ok(NodeEffect::Issue { mode: AgentMode::Rebootstrap }));
}

#[test]
fn pressed_twice_an_action_goes_on_with_what_is_under_way() {
    let agent = agent(IdentityState::Good, 3);
    let of = |status, kind, job_status, action| {
        let (node, job) = (node(status), job(kind, job_status));
        facts(&node, Some(&job), Some(&agent)).judge(action)
    };
    let running = of(NodeStatus::Draining, JobKind::Drain, JobStatus::Running, NodeAction::Drain);
    assert_eq!(running, Ok(NodeEffect::OnJob(JobAction::Resume, Effect::Nudge)), "nothing is done twice");
    // a drain that failed leaves its node offline, and is gone on with
    let failed = of(NodeStatus::Offline, JobKind::Drain, JobStatus::FailedRetryable, NodeAction::Drain);
    assert_eq!(failed, Ok(NodeEffect::OnJob(JobAction::Resume, Effect::Go { from: 0 })));
    let removal = of(NodeStatus::Retired, JobKind::Removal, JobStatus::FailedRetryable, NodeAction::Remove);
    assert_eq!(removal, Ok(NodeEffect::OnJob(JobAction::Resume, Effect::Go { from: 0 })));
    let other = JobKind::Decommission(Mode::SoftReset);
    for action in [NodeAction::Drain, NodeAction::Remove, NodeAction::Reactivate] {
        let status = if action == NodeAction::Drain { NodeStatus::Active } else { NodeStatus::Retired };
        let refused = of(status, other, JobStatus::Running, action);
        assert!(refused.as_ref().is_err_and(|why| why.contains("job_1")), "{action}: {refused:?}");
    }
    let frozen = of(NodeStatus::Active, other, JobStatus::Running, NodeAction::Quarantine);
    assert_eq!(frozen, Ok(NodeEffect::OnJob(JobAction::Quarantine, Effect::Quarantine { freeze: true })));
    // what stands between a quarantined node and service is its job
    let held = of(NodeStatus::Quarantined, other, JobStatus::FailedManualIntervention, NodeAction::Recover);
    assert!(held.is_err_and(|why| why.contains("job cancel")));
}

#[test]
fn what_is_recommended_is_allowed() {
    for status in NodeStatus::ALL.iter().copied() {
        for state in [None, Some(IdentityState::Good), Some(IdentityState::Suspended), Some(IdentityState::Revoked)] {
            for (beats, expired) in [(0, false), (3, true)] {
                let (node, agent) = (node(status), state.map(|s| agent(s, beats)));
                let facts = facts(&node, None, agent.as_ref());
                let (action, why) = facts.recommend(expired);
                assert!(!why.is_empty());
                if let Some(action) = NodeAction::parse(action) {
                    assert!(facts.judge(action).is_ok(), "{status} {state:?}: {action}");
                } else {
                    assert!(["wait", "none"].contains(&action), "{status}: {action}");
                }
            }
        }
    }
}
