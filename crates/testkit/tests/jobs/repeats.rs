//! The same action twice is one action: a task that is queued or held is left alone, one that expired or whose lease is
//! stale is handed out again under its own id and a higher fence, two at the same moment make one.

use crate::audit::audit;
use crate::world::{Moment, Play, World};
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{AGENT_COMES_WITHIN, Ground, JobKind};
use domain::stage::FailureClass;
use domain::task::{LEASE, Task, TaskKind, TaskStatus};
use std::time::Duration;
use store::{Store, execution, task};
use testkit::fleet::Database;
use testkit::pretend_agent::{Answer, failure};
use tokio_util::sync::CancellationToken;
use workflow::job::{Act, act};

async fn tasks(play: &Play<'_>) -> Vec<Task> {
    let id = play.node.clone();
    play.world.read(move |tx| task::list(tx, &task::FILTER.parse(&format!("node_id = \"{id}\""))?, "", 50)).await
}

/// A job whose engine is gone while its task waits, or is being carried out.
async fn left_at(world: &World, kind: JobKind, moment: Moment) -> Play<'_> {
    let play = Play::start(world, kind, &format!("{kind} at {moment:?}")).await;
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let stop = CancellationToken::new();
    play.live_until(&stop, moment, world.patience()).await;
    assert!(stop.is_cancelled(), "{}", play.name);
    engine.kill();
    engine.ended().await;
    play
}

/// Those that go on with a job under way.
const GO_ON: [JobAction; 4] = [JobAction::Resume, JobAction::RetryStage, JobAction::Rerun, JobAction::Reconcile];

#[tokio::test(start_paused = true)]
async fn a_task_that_is_queued_or_held_is_left_alone() {
    let world = World::new(Database::Memory);
    for kind in [JobKind::Drain, JobKind::Removal] {
        for moment in [Moment::Queued(1), Moment::AtWork(1)] {
            let play = left_at(&world, kind, moment).await;
            let before = tasks(&play).await;
            assert_eq!(before.len(), 1);
            for action in GO_ON {
                play.act(action).await.expect("is allowed");
                assert_eq!(tasks(&play).await, before, "{kind} at {moment:?}: {action} made another");
            }
            audit(&play).await;
        }
    }
    world.store().close();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_nobody_took_is_queued_again_as_itself() {
    let world = World::new(Database::Memory);
    let play = left_at(&world, JobKind::Drain, Moment::Queued(1)).await;
    let first = tasks(&play).await.remove(0);
    world.fleet.pass(AGENT_COMES_WITHIN + Duration::from_secs(1));
    world.sweep().await;
    assert_eq!(tasks(&play).await[0].status, TaskStatus::Expired);
    play.act(JobAction::Resume).await.expect("is allowed");
    play.act(JobAction::Resume).await.expect("and once more");
    let again = tasks(&play).await;
    assert_eq!(again.len(), 1);
    assert_eq!((&again[0].id, again[0].status, again[0].requeues), (&first.id, TaskStatus::Queued, 1));
    play.agent.lives().await;
    assert_eq!(play.agent.carried().len(), 1);
    audit(&play).await;
    world.store().close();
}

/// The lease ran out, and whether or not a sweep has seen that: the same task under a higher fence, run once.
#[tokio::test(start_paused = true)]
async fn a_stale_lease_is_handed_out_again_under_a_higher_fence() {
    let world = World::new(Database::Memory);
    for swept in [false, true] {
        let play = left_at(&world, JobKind::Removal, Moment::AtWork(1)).await;
        let held = tasks(&play).await.remove(0);
        world.fleet.pass(LEASE + Duration::from_secs(1));
        if swept {
            world.sweep().await;
        }
        play.act(JobAction::Resume).await.expect("is allowed");
        let again = tasks(&play).await.remove(0);
        assert_eq!((&again.id, again.status), (&held.id, TaskStatus::Queued), "swept: {swept}");
        // the agent, which was at it all the time, says its word under the old fence: too late
        let done = domain::task::TaskResult { ok: true, ..failure("", FailureClass::Transient) };
        assert!(!play.agent.says(&held.id, held.fence, done).await, "an old fence");
        play.agent.lives().await;
        let taken = tasks(&play).await.remove(0);
        assert!(taken.fence > held.fence, "{} after {}", taken.fence, held.fence);
        let engine = world.engine(None);
        engine.start().await.expect("starts");
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Completed);
        assert_eq!(play.agent.carried().len(), 1, "run once");
        engine.stop().await;
        audit(&play).await;
    }
    world.store().close();
}

/// A task of somebody else's is on the node by now: the action waits for it rather than fail.
#[tokio::test(start_paused = true)]
async fn another_task_on_the_node_is_waited_for() {
    let world = World::new(Database::Memory);
    let play = left_at(&world, JobKind::Drain, Moment::Queued(1)).await;
    world.fleet.pass(AGENT_COMES_WITHIN + Duration::from_secs(1));
    world.sweep().await;
    let (node, now) = (play.node.clone(), world.fleet.ambient.now());
    let id = domain::TaskId::generate(world.fleet.ambient.uuid());
    world
        .write(play.node.as_str(), move |tx| {
            let new = task::NewTask {
                id: &id,
                node_id: &node,
                job: None,
                operation: "by hand",
                kind: TaskKind::NodeValidateClean,
                order: &[],
                take_by: now.plus(AGENT_COMES_WITHIN),
            };
            task::queue(tx, &new, &store::Cause::operator("bob", domain::task::QUEUED, ""))
        })
        .await
        .expect("queues");
    for action in GO_ON {
        play.act(action).await.unwrap_or_else(|e| panic!("{action}: {e:?}"));
    }
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Completed);
    assert_eq!(play.agent.carried().len(), 2, "his, then ours");
    engine.stop().await;
    audit(&play).await;
    world.store().close();
}

/// A stage is not tried for ever; its message names the action that begins anew, and that does.
#[tokio::test(start_paused = true)]
async fn so_many_tasks_of_a_stage_and_no_more() {
    let world = World::new(Database::Memory);
    let play = Play::start(&world, JobKind::Removal, "removal, tried again and again").await;
    let class = FailureClass::NeedsOperator;
    play.agent.answers(TaskKind::NodeUninstall, Answer::Fails { code: "WANTED".into(), class });
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let spent = loop {
        let (_, job) = play.rests().await;
        let failure = job.failure.clone().expect("it stands still");
        if failure.code == "TASKS_SPENT" {
            break failure;
        }
        assert!(job.attempt < 100, "without an end");
        play.act(JobAction::RetryStage).await.expect("is allowed");
    };
    let carried = play.agent.carried().len();
    play.act(JobAction::RetryStage).await.expect("is allowed");
    play.rests().await;
    assert_eq!(play.agent.carried().len(), carried, "nothing more is tried");
    assert!(spent.message.contains("restart_clean"), "{}", spent.message);
    audit(&play).await;
    play.agent.behaves();
    play.act(JobAction::RestartClean).await.expect("is allowed");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Completed);
    engine.stop().await;
    audit(&play).await;
    world.store().close();
}

/// A bundle that was issued for an onboarding is good no more once that is called off, however early.
#[tokio::test(start_paused = true)]
async fn a_bundle_ends_with_the_onboarding_that_it_was_for() {
    let world = World::new(Database::Memory);
    for begun in [false, true] {
        let play =
            Play::start(&world, JobKind::Onboarding(Ground::Bundle), &format!("called off, begun: {begun}")).await;
        let engine = world.engine(None);
        if begun {
            engine.start().await.expect("starts");
            play.live(Duration::from_secs(5)).await;
        }
        play.act(JobAction::Cancel).await.expect("is allowed");
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Cancelled);
        let of = play.node.clone();
        let tokens = world.read(move |tx| store::agent::tokens_of(tx, &of)).await;
        assert!(tokens.len() == 1 && tokens[0].withdrawn, "begun: {begun}: {tokens:?}");
        engine.stop().await;
        audit(&play).await;
    }
    world.store().close();
}

/// The same wish from two sides at the same moment, on one store or two.
async fn both(play: &Play<'_>, action: JobAction, other: &Store) {
    let once = |store: Store| {
        let (fresh, engine) = (play.world.fresh(), play.world.door.clone());
        let wish = Act { job: play.job.clone(), action, by: "alice".into(), reason: "twice".into() };
        let key = play.node.to_string();
        tokio::spawn(async move {
            let caller = store::Caller::new("tester");
            store.write(&caller, &key, move |tx| act(tx, &engine, &wish, &fresh)).await.map(drop)
        })
    };
    let (one, two) = (once(play.world.store().clone()), once(other.clone()));
    for ended in [one.await, two.await] {
        let acted = ended.expect("no panic");
        // of two that end it one comes too late, and is told so
        let late = acted.as_ref().is_err_and(|e| e.reason == domain::Reason::ActionNotAllowed);
        assert!(acted.is_ok() || late && action == JobAction::Cancel, "{action}: {acted:?}");
    }
}

async fn two_at_once(world: &World, other: &Store) {
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    for action in
        [JobAction::Resume, JobAction::RetryStage, JobAction::Rerun, JobAction::RestartClean, JobAction::Cancel]
    {
        let play = Play::start(world, JobKind::Drain, &format!("{action} by two")).await;
        let class = FailureClass::NeedsOperator;
        play.agent.answers(TaskKind::NodeDrain, Answer::Fails { code: "WANTED".into(), class });
        let (_, stands) = play.rests().await;
        assert_eq!(stands.status, JobStatus::FailedManualIntervention);
        play.agent.behaves();
        // on real time the engine may be at it before the second of the two has come back
        let carried = play.agent.carried().len();
        both(&play, action, other).await;
        let id = play.job.clone();
        let open = world.read(move |tx| execution::list_open(tx, workflow::JOB_WORKFLOW, 100)).await;
        assert!(open.iter().filter(|e| e.subject == id.as_str()).count() <= 1, "{action}: {open:?}");
        let (_, job) = play.rests().await;
        assert!(job.status.is_terminal(), "{action}: {job:#?}");
        let more = usize::from(action != JobAction::Cancel);
        assert_eq!(play.agent.carried().len(), carried + more, "{action}: one task for the two of them");
        audit(&play).await;
    }
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_at_the_same_moment_make_one_in_memory() {
    let world = World::new(Database::Memory);
    two_at_once(&world, world.store()).await;
    world.store().close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_at_the_same_moment_make_one_on_two_servers() {
    let world = World::new(Database::Postgres);
    let options = store::Options::Postgres(Box::new(world.fleet.postgres().expect("a database").clone()));
    let ambient = world.fleet.ambient.clone();
    let other = tokio::task::spawn_blocking(move || Store::open(&options, ambient)).await.expect("no panic");
    let other = other.expect("opens");
    two_at_once(&world, &other).await;
    other.close();
    world.store().close();
}
