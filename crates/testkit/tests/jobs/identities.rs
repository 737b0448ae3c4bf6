//! What becomes of a job whose agent's identity is stopped, or replaced, while the job needs it: a person is asked at once,
//! and told the way out.

use crate::audit::audit;
use crate::world::{Moment, Play, World, hardware};
use domain::agent::IdentityState;
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::JobKind;
use domain::stage::FailureClass;
use domain::task::{TaskStatus, WITHDRAWN};
use store::{Cause, agent, task};
use testkit::fleet::Database;
use tokio_util::sync::CancellationToken;

async fn identity_is(play: &Play<'_>, state: IdentityState) {
    let id = play.node.clone();
    let write = move |tx: &mut store::Tx<'_>| {
        agent::set_state(tx, &id, state, "a test")?;
        task::withdraw_of_node(tx, &id, &Cause::operator("alice", WITHDRAWN, "a test"))
    };
    play.world.write(play.node.as_str(), write).await.expect("writes");
}

#[tokio::test(start_paused = true)]
async fn a_stage_whose_agent_is_stopped_fails_at_once_and_names_the_way_out() {
    let world = World::new(Database::Memory);
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    for state in [IdentityState::Suspended, IdentityState::Revoked] {
        for moment in [Moment::Queued(1), Moment::AtWork(1)] {
            let play = Play::start(&world, JobKind::Drain, &format!("{state} at {moment:?}")).await;
            let stop = CancellationToken::new();
            play.live_until(&stop, moment, world.patience()).await;
            assert!(stop.is_cancelled(), "{}", play.name);
            play.agent.falls_silent();
            identity_is(&play, state).await;
            let begun = world.fleet.ambient.now();
            let (_, job) = play.rests().await;
            let failure = job.failure.as_ref().expect("why");
            assert_eq!((failure.code.as_str(), failure.class), ("IDENTITY_STOPPED", FailureClass::NeedsOperator));
            assert_eq!(job.status, JobStatus::FailedManualIntervention, "{}", play.name);
            for way in ["node rebootstrap", "job adopt_observed_state"] {
                assert!(failure.message.contains(way), "{}: {}", play.name, failure.message);
            }
            assert_eq!(failure.message.contains("node repair"), state == IdentityState::Suspended);
            // by the clock that the engine keeps: not by the hours that an agent has to come
            let took = world.fleet.ambient.now().since(begun);
            assert!(took < domain::job_stage::AGENT_COMES_WITHIN / 2, "{}: {took:?}", play.name);
            // repaired, its own word about the task counts, or it is told anew; nothing is carried out twice
            identity_is(&play, IdentityState::Good).await;
            play.agent.speaks();
            let (_, job) = play.ends().await;
            assert!(job.status.is_terminal(), "{}: {job:#?}", play.name);
            audit(&play).await;
        }
    }
    engine.stop().await;
    world.store().close();
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_was_at_when_another_key_came_waits_for_a_person() {
    let world = World::new(Database::Memory);
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    let play = Play::start(&world, JobKind::Drain, "another key").await;
    let stop = CancellationToken::new();
    play.live_until(&stop, Moment::AtWork(1), world.patience()).await;
    assert!(stop.is_cancelled());
    play.agent.falls_silent();
    world.fleet.pass(std::time::Duration::from_secs(1));
    let id = play.node.clone();
    let withdraw =
        move |tx: &mut store::Tx<'_>| task::withdraw_of_node(tx, &id, &Cause::executor("agents", WITHDRAWN, "a test"));
    world.write(play.node.as_str(), withdraw).await.expect("withdraws");
    // an empty disk, and a key of its own
    let (other, hardware) = (world.stranger(&play.node), hardware(world.number()));
    other.enrol(&hardware.serial, &hardware.uuid, &[&hardware.mac]).await;
    let (_, job) = play.rests().await;
    let failure = job.failure.as_ref().expect("why");
    assert_eq!((failure.code.as_str(), failure.class), ("AGENT_REPLACED", FailureClass::NeedsOperator));
    assert_eq!(job.status, JobStatus::FailedManualIntervention);
    other.lives().await;
    assert!(other.carried().is_empty(), "nothing is carried out by itself");
    // somebody has looked at the machine
    play.act(JobAction::RetryStage).await.expect("is allowed");
    let play = Play { agent: other, ..play };
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Completed, "{job:#?}");
    let live = play.node.clone();
    assert!(world.read(move |tx| tx.point(&task::live_of_node(&live))).await.is_none());
    let last = play.job.clone();
    let last = world.read(move |tx| tx.point(&task::last_of_job(&last))).await.expect("a task");
    assert_eq!((last.status, play.agent.carried().len()), (TaskStatus::Done, 1));
    engine.stop().await;
    world.store().close();
}
