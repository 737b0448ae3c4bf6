//! A node that may hold something of a tenant's: whatever ends its cleanup short of the proof, nothing and nobody's word
//! brings it back into service.

use crate::world::{Play, World, spelt};
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{Ground, JobKind, JobStage, Mode};
use domain::node::{AgentMode, Node, NodeStatus};
use domain::node_action::{NodeAction, NodeFacts};
use domain::stage::FailureClass;
use domain::task::TaskKind;
use testkit::fleet::Database;
use testkit::pretend_agent::Answer;

/// Why an operator is not let.
async fn refused(world: &World, node: &Node, action: NodeAction) -> String {
    let id = node.id.clone();
    let agent = world.read(move |tx| tx.point(&store::agent::by_node(&id))).await;
    let facts = NodeFacts {
        node,
        agent: agent.as_ref(),
        job: None,
        policy: domain::agent::HeartbeatPolicy::default(),
        now: world.store().ambient().now(),
    };
    facts.judge(action).expect_err("a node that is not proven clean stays out of service")
}

#[tokio::test(start_paused = true)]
async fn a_cleanup_that_is_called_off_leaves_the_node_in_quarantine() {
    for mode in [Mode::SoftReset, Mode::StorageCleanup, Mode::FullDecommission(Ground::Bundle)] {
        let world = World::new(Database::Memory);
        let kind = JobKind::Decommission(mode);
        let play = Play::start(&world, kind, &spelt(kind)).await;
        let class = FailureClass::Transient;
        play.agent.answers(TaskKind::NodeCleanupStorage, Answer::Fails { code: "CHECK_FAILED".into(), class });
        let engine = world.engine(None);
        engine.start().await.expect("starts");
        let (node, job) = play.rests().await;
        assert_eq!((node.status, job.status), (NodeStatus::Quarantined, JobStatus::FailedRetryable), "{mode:?}");
        play.act(JobAction::Cancel).await.expect("is allowed");
        let (node, job) = play.rests().await;
        assert_eq!((node.status, job.status), (NodeStatus::Quarantined, JobStatus::Cancelled), "{mode:?}");
        assert!(!node.unclean.is_empty() && !node.is_cordoned(), "{mode:?}: {node:?}");
        assert!(refused(&world, &node, NodeAction::Recover).await.contains("soft_reset"), "{mode:?}");
        engine.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cleanup_that_is_proven_frees_it() {
    let world = World::new(Database::Memory);
    let kind = JobKind::Decommission(Mode::SoftReset);
    let play = Play::start(&world, kind, &spelt(kind)).await;
    let class = FailureClass::NeedsOperator;
    play.agent.answers(TaskKind::NodeValidateClean, Answer::Fails { code: "NOT_CLEAN".into(), class });
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let (node, _) = play.rests().await;
    assert!(node.status == NodeStatus::Quarantined && !node.unclean.is_empty(), "{node:?}");
    play.agent.answers(TaskKind::NodeValidateClean, Answer::Done);
    play.act(JobAction::Resume).await.expect("is allowed");
    let (node, job) = play.rests().await;
    assert_eq!((node.status, job.status), (NodeStatus::Quarantined, JobStatus::Completed));
    assert_eq!(node.unclean, "", "it was proven");
    assert!(!job.clean_record.is_empty() && node.agent_mode == AgentMode::Keep);
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_somebody_vouched_for_is_not_used_again() {
    let world = World::new(Database::Memory);
    let kind = JobKind::Decommission(Mode::FullDecommission(Ground::Bundle));
    let play = Play::start(&world, kind, &spelt(kind)).await;
    let class = FailureClass::NeedsOperator;
    for task in
        [TaskKind::NodeCleanupStorage, TaskKind::NodeScrubGpu, TaskKind::NodeValidateClean, TaskKind::NodeUninstall]
    {
        play.agent.answers(task, Answer::Fails { code: "BROKEN".into(), class });
    }
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    for stage in [JobStage::CleanupStorage, JobStage::ScrubGpu, JobStage::ValidateCleanNode] {
        let (_, job) = play.rests().await;
        assert_eq!(job.stage, Some(stage));
        play.act(JobAction::AdoptObservedState).await.expect("is allowed");
    }
    let (node, job) = play.rests().await;
    assert_eq!((node.status, job.stage), (NodeStatus::Retired, Some(JobStage::RemoveGpuaasNodeRecord)));
    play.act(JobAction::Cancel).await.expect("is allowed");
    let (node, _) = play.rests().await;
    assert_eq!(node.status, NodeStatus::Retired);
    assert!(refused(&world, &node, NodeAction::Reactivate).await.contains("not proven clean"));
    engine.stop().await;
}
