//! Every stage that an agent carries out fails in every class, on a real store with a real engine; there every action is
//! taken: what is allowed leads on to an end, what is not is refused with those that are, and changes nothing.

use crate::audit::audit;
use crate::length;
use crate::world::{BY_HAND, Play, World, spelt};
use domain::Reason;
use domain::job::{Job, JobStatus};
use domain::job_action::{Effect, JobAction, judge_action};
use domain::job_stage::{Ground, JobKind, JobStage};
use domain::node::{Node, NodeStatus};
use domain::stage::FailureClass;
use domain::task::TaskKind;
use engine::Engine;
use std::time::Duration;
use testkit::fleet::Database;
use testkit::pretend_agent::Answer;

const PLAYS_PER_WORLD: usize = 40;

/// A job that stands still because its agent failed so at that stage.
async fn stood_still<'a>(
    world: &'a World,
    kind: JobKind,
    stage: JobStage,
    class: FailureClass,
) -> (Play<'a>, Engine, Node, Job) {
    let task = stage.task(kind).expect("a stage that an agent carries out");
    let name = format!("{}, {class} at {stage}", spelt(kind));
    let play = Play::start(world, kind, &name).await;
    let code = if stage == JobStage::ValidateCleanNode { "NOT_CLEAN" } else { "WANTED" };
    play.agent.answers(task, Answer::Fails { code: code.to_owned(), class });
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let (node, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::after_failure(class), "{name}");
    assert_eq!(job.stage, Some(stage), "{name}");
    let told = job.failure.as_ref().map(|f| (f.class, f.code.as_str()));
    assert_eq!(told, Some((class, code)), "{name}");
    assert!(job.observed.starts_with("agent: "), "{name}: {}", job.observed);
    let attempts = play.agent.carried().iter().filter(|c| c.kind == task).count();
    assert_eq!(attempts, 1 + class.retry_budget().min(2) as usize, "{name}: tried as often as its class is worth");
    rests_where_it_should(&name, kind, stage, &node);
    audit(&play).await;
    (play, engine, node, job)
}

fn rests_where_it_should(name: &str, kind: JobKind, stage: JobStage, node: &Node) {
    let wanted = match (kind, stage) {
        // what was begun to be cleaned is not proven clean: cleanup validation is an owner of quarantine
        (_, JobStage::CleanupStorage | JobStage::ScrubGpu | JobStage::ValidateCleanNode) => NodeStatus::Quarantined,
        (JobKind::Onboarding(Ground::Bundle), _) => NodeStatus::Enrolling,
        (_, JobStage::RemoveGpuaasNodeRecord) => NodeStatus::Retired,
        (JobKind::Drain, _) => NodeStatus::Offline,
        (kind, _) if kind.removes() => NodeStatus::Offline,
        _ => NodeStatus::Active,
    };
    assert_eq!(node.status, wanted, "{name}");
    assert!(node.status != NodeStatus::Quarantined || !node.status_reason.is_empty(), "{name}: says why");
}

/// One action on one job that stands still.
async fn taken(world: &World, kind: JobKind, stage: JobStage, class: FailureClass, action: JobAction) {
    let (mut play, engine, node, job) = stood_still(world, kind, stage, class).await;
    play.name = format!("{}, then {action}", play.name);
    let name = &play.name;
    match judge_action(action, &job, node.status) {
        Err(_) => {
            let refused = play.act(action).await.expect_err("is not allowed");
            assert_eq!(refused.reason, Reason::ActionNotAllowed, "{name}");
            assert!(
                !refused.allowed.is_empty() && !refused.allowed.contains(&action.to_string()),
                "{name}: {refused:?}"
            );
            let (node_then, job_then) = play.look().await;
            assert_eq!((node_then, job_then), (node, job), "{name}: a refusal changes nothing");
        }
        Ok(effect) => {
            let acted = play.act(action).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert_eq!(acted.effect, effect, "{name}: the preview and the deed are the same");
            leads_on(&play, &effect).await;
        }
    }
    play.agent.behaves();
    let (_, ended) = play.ends().await;
    assert!(ended.status.is_terminal(), "{name}");
    engine.stop().await;
    world.sweep().await;
    audit(&play).await;
}

/// Right after it, before anything else has happened to it.
async fn leads_on(play: &Play<'_>, effect: &Effect) {
    let (_, job) = play.look().await;
    let expected: &[JobStatus] = match effect {
        Effect::Go { .. } => &[JobStatus::Running],
        Effect::TakeBack { .. } | Effect::LeaveBehind { .. } => {
            &[JobStatus::Compensating, JobStatus::Running, JobStatus::Cancelled]
        }
        Effect::EndCancelled => &[JobStatus::Cancelled],
        Effect::Adopt { .. } => &[JobStatus::Running, JobStatus::Completed, JobStatus::Reconciled],
        Effect::Quarantine { .. } | Effect::Nothing | Effect::Reconcile => {
            &[JobStatus::FailedRetryable, JobStatus::FailedManualIntervention]
        }
        Effect::Nudge | Effect::Stop { .. } | Effect::Freeze => panic!("{}: it was not under way", play.name),
    };
    // on the virtual clock the engine may be faster than this look
    let ended = job.status.is_terminal() || !job.status.is_under_way();
    assert!(expected.contains(&job.status) || ended, "{}: {effect:?} led to {}", play.name, job.status);
}

fn agent_stages(kind: JobKind) -> impl Iterator<Item = JobStage> {
    kind.stages().iter().copied().filter(move |stage| stage.task(kind).is_some())
}

/// Of one class every action, of the others a sixth of them each, others at each stage. `JOBS_LENGTH` above one: all.
#[tokio::test(start_paused = true)]
async fn every_action_from_every_failure_of_every_stage() {
    let (mut world, mut count) = (World::new(Database::Memory), 0);
    for kind in BY_HAND {
        for (at, stage) in agent_stages(kind).enumerate() {
            for (nth, class) in FailureClass::ALL.into_iter().enumerate() {
                let whole = class == FailureClass::NeedsOperator || length() > 1;
                let some = JobAction::ALL.into_iter().enumerate().filter(|(n, _)| whole || (n + at + nth) % 6 == 0);
                for (_, action) in some {
                    taken(&world, kind, stage, class, action).await;
                    count += 1;
                    if count % PLAYS_PER_WORLD == 0 {
                        world.store().close();
                        world = World::new(Database::Memory);
                    }
                }
            }
        }
    }
    println!("jobs: {count} actions taken from failures");
    assert!(count >= 170, "only {count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn some_actions_from_a_failure_on_postgres() {
    let world = World::new(Database::Postgres);
    for (kind, action) in [
        (JobKind::Drain, JobAction::Resume),
        (JobKind::Removal, JobAction::AdoptObservedState),
        (JobKind::Drain, JobAction::MarkManualInterventionRequired),
        (BY_HAND[5], JobAction::RestartClean),
    ] {
        let stage = agent_stages(kind).next().expect("a stage");
        taken(&world, kind, stage, FailureClass::NeedsOperator, action).await;
    }
    world.store().close();
}

/// An agent that never comes is told of within a few hours, and every way out is open then.
#[tokio::test(start_paused = true)]
async fn an_agent_that_never_comes_is_no_silence() {
    let world = World::new(Database::Memory);
    for (kind, ends_as) in [(JobKind::Drain, NodeStatus::Offline), (JobKind::Removal, NodeStatus::Retired)] {
        let play = Play::start(&world, kind, &format!("{} without an agent", spelt(kind))).await;
        play.agent.falls_silent();
        let (engine, looks_after) = (world.engine(None), world.reconciler());
        engine.start().await.expect("starts");
        let (node, job) = play.live(Duration::from_secs(6 * 3600)).await;
        assert_eq!(job.status, JobStatus::FailedRetryable, "{kind}: {job:#?}");
        assert_eq!(job.failure.as_ref().map(|f| f.code.as_str()), Some("AGENT_SILENT"), "{kind}");
        assert_eq!(node.status, ends_as, "{kind}");
        assert_eq!(play.agent.carried(), [], "{kind}: nobody was there");
        audit(&play).await;
        // a person vouches for a machine that is scrapped
        play.act(JobAction::AdoptObservedState).await.expect("a person's word");
        let (_, ended) = play.rests().await;
        assert_eq!(ended.status, JobStatus::Reconciled, "{kind}: {ended:#?}");
        assert!(ended.done.iter().any(|d| d.adopted_by == "alice"), "{kind}: on record");
        looks_after.stop().await;
        engine.stop().await;
        audit(&play).await;
    }
    world.store().close();
}

/// What a person stops makes no progress by itself, whatever time does.
#[tokio::test(start_paused = true)]
async fn what_is_frozen_stays_so_for_days() {
    let world = World::new(Database::Memory);
    for kind in [JobKind::Drain, BY_HAND[3]] {
        let play = Play::start(&world, kind, &format!("{} frozen", spelt(kind))).await;
        let (engine, looks_after) = (world.engine(None), world.reconciler());
        engine.start().await.expect("starts");
        while !play.agent.is_at_work() {
            play.live(world.tick()).await;
        }
        play.act(JobAction::MarkManualInterventionRequired).await.expect("stops it");
        let (_, frozen) = play.look().await;
        assert_eq!(frozen.status, JobStatus::FailedManualIntervention);
        let carried = play.agent.carried();
        for _ in 0..60 {
            play.agent.lives().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        for _ in 0..72 {
            world.fleet.pass(Duration::from_secs(3600));
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        let (_, then) = play.look().await;
        assert_eq!(then, frozen, "nothing of it has moved");
        assert_eq!(play.agent.carried(), carried, "nothing was done");
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed);
        looks_after.stop().await;
        engine.stop().await;
        audit(&play).await;
    }
    world.store().close();
}

/// What was told by a failure is gone once it has gone on, and the order of what was done is the kind's.
#[tokio::test(start_paused = true)]
async fn stages_are_done_in_their_order_and_a_clean_record_is_kept() {
    let world = World::new(Database::Memory);
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    for kind in BY_HAND {
        let play = Play::start(&world, kind, &spelt(kind)).await;
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Completed, "{kind}");
        let done: Vec<JobStage> = job.done.iter().map(|d| d.stage).collect();
        assert_eq!(done, kind.stages(), "{kind}");
        assert_eq!((job.attempt, &job.failure), (1, &None), "{kind}");
        let orders: Vec<TaskKind> = play.agent.carried().iter().map(|c| c.kind).collect();
        let wanted: Vec<TaskKind> = kind.stages().iter().filter_map(|s| s.task(kind)).collect();
        assert_eq!(orders, wanted, "{kind}");
        let proves = kind.stages().contains(&JobStage::ValidateCleanNode);
        assert_eq!(!job.clean_record.is_empty(), proves, "{kind}: {}", job.clean_record);
        if proves {
            let record: serde_json::Value = serde_json::from_str(&job.clean_record).expect("JSON");
            assert_eq!(record["signature"], "010203", "{kind}");
            assert_eq!(record["node_id"], play.node.as_str(), "{kind}");
            // as the agent has spelt it, not as the server would today
            let of = |stage: JobStage| {
                let id = play.job.clone();
                world.read(move |tx| tx.point(&store::task::last_done(&id, stage.as_str())))
            };
            let scrubs = kind.stages().contains(&JobStage::ScrubGpu);
            assert_eq!(record["scrubbed"].is_object(), scrubs, "{kind}: {record}");
            for (stage, part) in [(JobStage::ValidateCleanNode, &record), (JobStage::ScrubGpu, &record["scrubbed"])] {
                let Some(task) = of(stage).await else { continue };
                let text = format!("millwright task result v1\n{}\n{}\ntrue\n", task.id, task.fence);
                let signed = part["signed_text"].as_str().expect("a text");
                assert!(signed.starts_with(&text), "{kind}: {signed}");
                assert_eq!(part["agent_public_key"], "6b6579", "{kind}: the key that signed it");
            }
        }
    }
    engine.stop().await;
    world.store().close();
}
