//! While MAAS is in the middle of something: it commissions, deploys or erases, and somebody calls the job off, begins it
//! anew or stops it.

use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use domain::Reason;
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{JobKind, JobStage};
use domain::maas_stage::MaasStage;
use testkit::maas_sim::status;

/// What is under way upstream, in which stage that is waited for, and the stage before it.
const MIDWAY: [(JobKind, MaasStage, MaasStage, u8); 4] = [
    (ONBOARDING, MaasStage::WaitForReady, MaasStage::CommissionNode, status::COMMISSIONING),
    (ONBOARDING, MaasStage::WaitForDeployed, MaasStage::RenderCloudInit, status::DEPLOYING),
    (REIMAGE, MaasStage::ReleaseMaasNode, MaasStage::LoadSiteConfig, status::DISK_ERASING),
    (FULL, MaasStage::ReleaseMaasNode, MaasStage::LoadSiteConfig, status::DISK_ERASING),
];

async fn acted_midway(
    (kind, stage, hold_from, upstream): (JobKind, MaasStage, MaasStage, u8),
    action: JobAction,
    before: Before,
) {
    let mut play = Play::slow(kind, &format!("{kind}: {action} while {}", status::name(upstream)), before).await;
    let engine = play.plant.life(None).await;
    // from the stage before it on nothing moves upstream
    play.lives_until(|job| {
        let there = job.stage == Some(JobStage::Maas(hold_from)) || job.is_done(JobStage::Maas(hold_from));
        play.plant.hold(there);
        there && job.stage == Some(JobStage::Maas(stage)) && play.plant.sim.machines()[0].status == upstream
    })
    .await;
    let (_, job) = play.look().await;
    assert_eq!(job.status, JobStatus::Running, "{}: {job:#?}", play.name);
    assert_eq!(play.plant.sim.machines()[0].status, upstream, "{}", play.name);
    if let Err(e) = play.act(action).await {
        // what is being given back for good cannot be begun anew
        assert_eq!(e.reason, Reason::ActionNotAllowed, "{}: {e:?}", play.name);
        assert!((kind, action) == (FULL, JobAction::RestartClean), "{}: {e:?}", play.name);
    }
    for _ in 0..40 {
        play.plant.turn().await;
    }
    play.plant.hold(false);
    let (_, job) = play.ends().await;
    // what cannot be called off goes on upstream, to its own end
    for _ in 0..200 {
        if !play.plant.sim.machines().iter().any(|m| status::is_intermediate(m.status)) {
            break;
        }
        play.plant.turn().await;
    }
    play.audited().await;
    if job.status == JobStatus::Cancelled {
        play.called_off_node_can_go().await;
    }
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_maas_is_in_the_middle_of_is_stopped_or_outlasted() {
    let actions = [
        JobAction::Cancel,
        JobAction::RestartClean,
        JobAction::MarkManualInterventionRequired,
        JobAction::AdoptObservedState,
    ];
    let mut plays = Vec::new();
    for (n, midway) in MIDWAY.into_iter().enumerate() {
        for (m, action) in actions.into_iter().enumerate() {
            // one that is ready is not commissioned
            let before = if (n + m) % 2 == 0 { Before::Nothing } else { Before::New };
            plays.push(acted_midway(midway, action, before));
        }
    }
    side_by_side("in the middle of something", plays).await;
}
