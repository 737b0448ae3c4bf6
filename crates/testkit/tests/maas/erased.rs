//! What a machine held is gone when it is given back: by an erasure that this job has asked for and followed to its end. That
//! MAAS says Ready proves nothing.

use crate::plant::mac;
use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{JobKind, JobStage};
use domain::maas_stage::MaasStage;
use domain::node::NodeStatus;
use domain::site::Erase;
use testkit::maas_sim::{Trouble, status};

const RELEASE: JobStage = JobStage::Maas(MaasStage::ReleaseMaasNode);

/// Somebody has released it in MAAS, and nothing was erased by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_somebody_has_released_is_erased_all_the_same() {
    let released = |kind: JobKind| async move {
        let play = Play::of(kind, &format!("{kind}: released by somebody"), Before::New).await;
        play.killed_at(RELEASE).await;
        let id = play.system_id().await;
        play.plant.sim.as_account(play.plant.sim.account()).release(&id);
        assert_eq!(play.plant.sim.machine(&id).expect("a machine").status, status::READY);
        assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 0, "{}: the trap", play.name);
        let engine = play.plant.life(None).await;
        play.completes().await;
        assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 1, "{}: it was erased by us", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    side_by_side("released by somebody", vec![released(REIMAGE), released(FULL)]).await;
}

/// The erasure failed, and somebody has released it then without one: that it was asked for is not that it was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_failed_and_was_passed_over_by_hand_is_made_up_for() {
    let play = Play::of(FULL, "a failed erasure, passed over", Before::New).await;
    play.plant.sim.trouble(&mac(1), Trouble::EraseFails, 10);
    let engine = play.plant.life(None).await;
    play.fails_with("ERASE_FAILED").await;
    let id = play.system_id().await;
    play.plant.sim.as_account(play.plant.sim.account()).release(&id);
    assert_eq!(play.plant.sim.machine(&id).expect("a machine").status, status::READY);
    play.plant.sim.cure(&mac(1));
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 1);
    play.audited().await;
    play.over(Some(engine)).await;
}

/// A site that does not erase is taken at its word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_is_to_be_erased_ready_is_enough() {
    let play = Play::of(FULL, "no erasure", Before::New).await;
    play.plant.edit_site(|site| site.policy.erase = Erase::None).await;
    play.killed_at(RELEASE).await;
    let id = play.system_id().await;
    play.plant.sim.as_account(play.plant.sim.account()).release(&id);
    let engine = play.plant.life(None).await;
    play.completes().await;
    assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 0);
    play.over(Some(engine)).await;
}

/// What is New cannot be erased by MAAS: a person decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_new_again_is_for_a_person() {
    let play = Play::of(FULL, "New again", Before::New).await;
    play.killed_at(RELEASE).await;
    let id = play.system_id().await;
    play.plant.sim.as_account(play.plant.sim.account()).release(&id);
    play.plant.sim.as_somebody().set_status(&id, status::NEW);
    let engine = play.plant.life(None).await;
    let job = play.fails_with("NOT_ERASED").await;
    assert_eq!(job.status, JobStatus::FailedManualIntervention, "{job:#?}");
    play.act(JobAction::AdoptObservedState).await.expect("somebody vouches for it");
    let (node, ended) = play.rests().await;
    assert_eq!((ended.status, node.status), (JobStatus::Reconciled, NodeStatus::Deleted), "{ended:#?}");
    assert!(ended.done.iter().any(|done| done.stage == RELEASE && !done.adopted_by.is_empty()), "on record");
    play.over(Some(engine)).await;
}

/// A site whose policy erases whatever is released: a deployment that is tried again goes through that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_tried_again_where_every_release_erases() {
    let play = Play::slow(ONBOARDING, "a site that always erases", Before::New).await;
    play.plant.sim.configure("enable_disk_erasing_on_release", true.into());
    play.plant.sim.trouble(&mac(1), Trouble::NoDatasource, 2);
    let engine = play.plant.life(None).await;
    let job = play.with_maas_timeouts().await;
    assert_eq!(job.status, JobStatus::Completed, "{job:#?}");
    assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 2, "one for each release");
    assert_eq!(play.plant.sim.hardware(&mac(1)).installs, 3);
    play.audited().await;
    play.over(Some(engine)).await;
}

/// … and one that fails there is told, and goes on when it is resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_fails_between_two_tries_is_told_and_overcome() {
    let play = Play::onboarding("the site's own erasure fails", Before::New).await;
    play.plant.sim.configure("enable_disk_erasing_on_release", true.into());
    play.plant.sim.trouble(&mac(1), Trouble::NoDatasource, 1);
    play.plant.sim.trouble(&mac(1), Trouble::EraseFails, 1);
    let engine = play.plant.life(None).await;
    let job = play.with_maas_timeouts().await;
    assert_eq!(job.failure.as_ref().map(|f| f.code.as_str()), Some("RELEASE_FAILED"), "{job:#?}");
    assert_eq!(play.plant.sim.with_mac(&mac(1))[0].status, status::FAILED_DISK_ERASING);
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}
