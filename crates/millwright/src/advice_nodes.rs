//! `why` over every state that a node, a job and a task can be in: nothing is silent, every action that is judged to be
//! allowed is named with a command that this program takes, and whatever has not ended has a way on. Compiled for tests
//! only.
#![allow(clippy::expect_used, clippy::panic)] // for tests only

use crate::advice::{Known, NOW, ago, check};
use domain::agent::{AgentIdentity, BootstrapToken, HeartbeatPolicy, IdentityState};
use domain::job::{Afterwards, Job, JobFailure, JobStatus, Purpose, StageDone};
use domain::job_action::{JobAction, judge_all, recommend};
use domain::job_stage::{JobKind, JobStage};
use domain::lifecycle::State as _;
use domain::node::{AgentMode, Node, NodeStatus};
use domain::node_action::{NodeAction, NodeFacts};
use domain::stage::{FailureClass, Position};
use domain::task::{Task, TaskFence, TaskKind, TaskResult, TaskStatus};
use domain::{ExecutionId, JobId, MachineId, NodeId, TaskId};
use service::explain::{JobWhy, NodeWhy, TaskWhy};
use service::{Call, Execution, Freeze, JobView};
use std::time::Duration;
use store::execution::{Fence, Status};

fn node(status: NodeStatus, job: Option<&Job>) -> Node {
    Node {
        id: NodeId::from_text("nod_1"),
        name: "gpu-1".into(),
        status,
        version: 3,
        status_reason: "somebody said so".into(),
        status_changed_at: ago(100),
        cordoned_by: String::new(),
        cordon_reason: String::new(),
        machine_id: None,
        maas: None,
        active_job: job.map(|job| job.id.clone()),
        agent_mode: AgentMode::Keep,
        agent_mode_by: String::new(),
        quarantined_by: String::new(),
        unclean: String::new(),
        task_fence: 7,
        created_at: ago(1000),
        created_by: "ann".into(),
    }
}

fn agents() -> Vec<Option<AgentIdentity>> {
    let of = |state, beats: u32, last: u64| AgentIdentity {
        node_id: NodeId::from_text("nod_1"),
        key_sha256: "k".into(),
        key_spki: Vec::new(),
        state,
        state_reason: if state == IdentityState::Good { String::new() } else { "seen twice".into() },
        epoch: 1,
        session: 4,
        confirmed: true,
        enrolled_at: ago(900),
        token_id: String::new(),
        certificate_until: NOW.plus(Duration::from_secs(3600)),
        agent_version: "0.1.0".into(),
        boot_id: "b".into(),
        beats,
        last_beat: (beats > 0).then(|| ago(last)),
        skew_ms: 3,
        inventory: String::new(),
        inventory_digest: String::new(),
        health: String::new(),
    };
    let (good, stopped, gone) = (IdentityState::Good, IdentityState::Suspended, IdentityState::Revoked);
    vec![
        None,
        Some(of(good, 0, 0)),
        Some(of(good, 9, 5)),
        Some(of(good, 9, 500)),
        Some(of(stopped, 9, 5)),
        Some(of(gone, 9, 5)),
    ]
}

fn bundles() -> [Option<BootstrapToken>; 3] {
    let until = |expires_at| BootstrapToken {
        hash: "h".into(),
        node_id: NodeId::from_text("nod_1"),
        expires_at,
        issued_by: "ann".into(),
        issued_at: ago(1000),
        key_sha256: None,
        bound_at: None,
        withdrawn: false,
    };
    [None, Some(until(ago(10))), Some(until(NOW.plus(Duration::from_secs(600))))]
}

fn freeze(frozen: bool) -> Option<Freeze> {
    frozen.then(|| Freeze { by: "ann".into(), reason: "power work".into(), since: ago(60) })
}

fn job(kind: JobKind, status: JobStatus, stage: Option<JobStage>, class: Option<FailureClass>) -> Job {
    let failure = class.map(|class| JobFailure { class, code: "NO_ANSWER".into(), message: "no answer".into() });
    let before = kind.stages().iter().take_while(|s| Some(**s) != stage).copied();
    Job {
        id: JobId::from_text("job_1"),
        kind,
        node_id: NodeId::from_text("nod_1"),
        status,
        version: 4,
        stage,
        attempt: 2,
        execution_id: ExecutionId::from_text("exe_1"),
        purpose: if status == JobStatus::Compensating { Purpose::Compensate } else { Purpose::Forward },
        first_stage: 0,
        afterwards: (status == JobStatus::Compensating).then_some(Afterwards::Cancelled),
        tasks_since: 1,
        failure,
        observed: "agent: last heard 3 s before".into(),
        done: match stage {
            None => Vec::new(),
            Some(_) => {
                let done = |stage| StageDone { stage, adopted_by: String::new(), message: "done".into(), at: ago(30) };
                before.map(done).collect()
            }
        },
        parameters: "{}".into(),
        learned: "{}".to_owned(),
        clean_record: String::new(),
        requested_by: "ann".into(),
        reason: "a test".into(),
        created_at: ago(500),
        updated_at: ago(20),
        finished_at: status.is_terminal().then(|| ago(20)),
    }
}

/// Every status × stage × failure class of every kind.
fn every_job() -> Vec<Job> {
    let mut all = Vec::new();
    for kind in JobKind::ALL {
        for status in JobStatus::ALL.iter().copied() {
            let failed = matches!(status, JobStatus::FailedRetryable | JobStatus::FailedManualIntervention);
            let classes: Vec<Option<FailureClass>> = match status {
                _ if failed => FailureClass::ALL.into_iter().map(Some).chain([None]).collect(),
                _ => [None, Some(FailureClass::Transient)].into(),
            };
            let stages = std::iter::once(None).chain(kind.stages().iter().copied().map(Some));
            for stage in stages.filter(|stage| stage.is_none() == (status == JobStatus::Pending)) {
                for class in &classes {
                    let plain = job(kind, status, stage, *class);
                    if failed {
                        // what was being taken back has failed, too
                        all.extend(Afterwards::ALL.map(|then| Job { afterwards: Some(then), ..plain.clone() }));
                    }
                    all.push(plain);
                }
            }
        }
    }
    all
}

fn executions() -> Vec<Option<Execution>> {
    let of = |status: Status, position: Position, waiting_for: &str| Execution {
        id: ExecutionId::from_text("exe_1"),
        workflow: "job".into(),
        workflow_version: 1,
        subject: "job_1".into(),
        machine_id: MachineId::from_text("m-1"),
        status,
        position,
        stage: "drain_node".into(),
        settle: Duration::ZERO,
        facts: String::new(),
        failure: String::new(),
        waiting_for: waiting_for.into(),
        wake_at: NOW.plus(Duration::from_secs(5)),
        deadline: NOW.plus(Duration::from_secs(300)),
        holder: None,
        fence: Fence { epoch: 1, counter: 1 },
        cancel: None,
        entries: 1,
        created_at: ago(100),
        updated_at: ago(10),
    };
    let at = Position::Stage { index: 0, attempt: 1 };
    vec![
        None,
        Some(of(Status::Ready, Position::Start, "")),
        Some(of(Status::Waiting, at, "the agent")),
        Some(of(Status::Running, at, "")),
    ]
}

#[test]
fn every_state_of_a_node_is_explained_and_has_a_way_on() {
    let (admin, mut known, policy) = (Call::system(), Known::default(), HeartbeatPolicy::default());
    let jobs: Vec<Option<Job>> = std::iter::once(None)
        .chain(
            every_job().into_iter().filter(|j| !j.status.is_terminal() && j.afterwards.is_none()).step_by(5).map(Some),
        )
        .collect();
    let mut walked = 0;
    for status in NodeStatus::ALL.iter().copied() {
        for agent in agents() {
            for (bundle, mode) in bundles().into_iter().zip(AgentMode::ALL) {
                for (i, job) in jobs.iter().enumerate() {
                    let cordoned_by = if i % 2 == 0 { String::new() } else { "ann".to_owned() };
                    let node = Node { cordoned_by, agent_mode: mode, ..node(status, job.as_ref()) };
                    let frozen = freeze(i % 3 == 0);
                    let (job, agent, bundle) = (job.clone(), agent.clone(), bundle.clone());
                    let why = NodeWhy {
                        node,
                        job,
                        agent,
                        bundle,
                        findings: Vec::new(),
                        maas: None,
                        frozen,
                        policy,
                        now: NOW,
                    };
                    let e = why.explain(&admin);
                    check(&e, &mut known, &why);
                    walked += 1;
                    let (job, agent) = (why.job.as_ref(), why.agent.as_ref());
                    let facts = NodeFacts { node: &why.node, job, agent, policy, now: NOW };
                    let named: Vec<&str> = e.actions.iter().filter(|a| a.allowed).map(|a| a.name.as_str()).collect();
                    let allowed = facts.allowed();
                    assert!(allowed.iter().all(|a| named.contains(a)), "{allowed:?} are not all in {named:?}");
                    let gone = status == NodeStatus::Deleted && why.job.is_none();
                    assert_eq!(named.is_empty(), gone, "no way on: {e:#?}");
                    for (action, judged) in facts.judge_all().into_iter().filter(|_| status != NodeStatus::Deleted) {
                        let told = e.actions.iter().find(|a| a.name == action.as_str()).expect("every action is named");
                        assert_eq!(told.why_not, judged.err().unwrap_or_default(), "{action}");
                    }
                    // nobody waits in silence
                    if why.job.is_some() {
                        assert!(e.waiting_for.contains("job_1") && e.held_by.contains("job_1"), "{e:#?}");
                    }
                }
            }
        }
    }
    assert!(walked > 9_000, "walked {walked}");
    assert_eq!(NodeAction::ALL.len(), 11);
}

#[test]
fn every_state_of_a_job_is_explained_and_has_a_way_on() {
    let (admin, mut known) = (Call::system(), Known::default());
    let mut walked = 0;
    for job in every_job() {
        for node in NodeStatus::ALL.iter().copied() {
            for (i, execution) in executions().into_iter().enumerate() {
                if i > 0 && !job.status.is_under_way() {
                    continue;
                }
                let frozen = freeze(i == 2);
                let view = JobView { job: job.clone(), node, execution, task: None, frozen, now: NOW };
                let why = JobWhy { view, node_name: "gpu-1".into() };
                let e = why.explain(&admin);
                check(&e, &mut known, &why);
                walked += 1;
                assert_eq!(e.at_rest, job.status.is_terminal(), "{e:#?}");
                let told = |action: JobAction| e.actions.iter().find(|a| a.name == action.as_str());
                if job.status.is_terminal() {
                    assert!(JobAction::ALL.into_iter().all(|a| told(a).is_none()), "{e:#?}");
                    continue;
                }
                for (action, judged) in judge_all(&job, node) {
                    let told = told(action).unwrap_or_else(|| panic!("{action} is not named: {e:#?}"));
                    assert_eq!(told.why_not, judged.err().unwrap_or_default(), "{action}");
                }
                assert!(e.actions.iter().any(|a| a.allowed), "no way on: {e:#?}");
                if let (Some(action), _) = recommend(&job, node) {
                    assert!(told(action).is_some_and(|a| a.allowed), "{action} is recommended: {e:#?}");
                    assert!(e.expected.contains(action.as_str()), "{e:#?}");
                }
                // the six fields of its view are never empty
                let view = &why.view;
                let (recommended, because) = view.recommended();
                let observed = view.observed();
                for text in [view.stage_name(), view.failure_class(), &observed, recommended, because, e.state.as_str()]
                {
                    assert!(!text.is_empty(), "{view:?}");
                }
                assert_eq!(view.offers().len(), JobAction::ALL.len());
                assert_eq!(view.stages().len(), job.stages().len());
            }
        }
    }
    assert!(walked > 10_000, "walked {walked}");
}

#[test]
fn every_state_of_a_task_is_explained() {
    let (admin, mut known) = (Call::system(), Known::default());
    for status in TaskStatus::ALL.iter().copied() {
        for kind in TaskKind::ALL {
            for job in [None, Some((JobId::from_text("job_1"), "drain_node".to_owned()))] {
                let result = matches!(status, TaskStatus::Done | TaskStatus::Failed).then(|| TaskResult {
                    ok: status == TaskStatus::Done,
                    code: "NOT_CLEAN".into(),
                    class: FailureClass::NeedsOperator,
                    message: "a user is left".into(),
                    detail: "{}".into(),
                    signature: Vec::new(),
                    signed_by: String::new(),
                    started_at: Some(ago(20)),
                    finished_at: Some(ago(10)),
                });
                let handed = status != TaskStatus::Queued;
                let task = Task {
                    id: TaskId::from_text("tsk_1"),
                    node_id: NodeId::from_text("nod_1"),
                    job: job.clone(),
                    operation: "o".into(),
                    kind,
                    order: Vec::new(),
                    status,
                    version: 1,
                    fence: TaskFence { epoch: 1, counter: 3 },
                    requeues: 1,
                    queued_at: ago(40),
                    dispatched_at: handed.then(|| ago(30)),
                    lease_until: (status == TaskStatus::Dispatched).then_some(NOW),
                    take_by: NOW,
                    result,
                    expired_because: if status == TaskStatus::Expired {
                        "its lease ran out".into()
                    } else {
                        String::new()
                    },
                    output_bytes: 7,
                    ordered_by: "ann".into(),
                };
                let why = TaskWhy { task, node_name: "gpu-1".into(), now: NOW };
                let e = why.explain(&admin);
                check(&e, &mut known, &why);
                assert_eq!(e.at_rest, !status.is_live(), "{e:#?}");
                assert!(e.actions.iter().any(|a| a.allowed), "{e:#?}");
                let cancel = e.actions.iter().find(|a| a.name == "take it back").expect("is named");
                let by_hand = job.is_none() && !matches!(status, TaskStatus::Done | TaskStatus::Failed);
                assert_eq!(cancel.allowed, by_hand, "{e:#?}");
            }
        }
    }
}
