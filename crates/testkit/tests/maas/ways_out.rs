//! Where nothing can be put right any more, a person's word ends a job; and no word reaches further than it may.

use crate::plant::{Plant, mac};
use crate::play::{Before, FULL, Play, REIMAGE};
use domain::job::{Job, JobStatus};
use domain::job_action::{JobAction, judge_action};
use domain::job_stage::JobStage;
use domain::maas_stage::MaasStage;
use domain::node::NodeStatus;
use domain::node_action::NodeAction;
use service::{MaasWish, NodeAct};
use std::collections::BTreeMap;
use testkit::fleet::admin;
use testkit::maas_sim::status;

/// What changes a machine, and how often it was asked for.
fn changes(play: &Play) -> BTreeMap<String, u64> {
    let changing = |call: &str| {
        call.starts_with("DELETE") || [" deploy", " release", " allocate"].iter().any(|op| call.ends_with(op))
    };
    play.plant.sim.calls().into_iter().filter(|(call, _)| changing(call)).collect()
}

fn code(job: &Job) -> Option<&str> {
    job.failure.as_ref().map(|failure| failure.code.as_str())
}

/// A MAAS that lets nobody in any more: what was ordered there cannot be taken back, ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_taken_back_is_left_on_a_persons_word() {
    for afterwards in [JobAction::Cancel, JobAction::RestartClean] {
        let mut play = Play::onboarding(&format!("{afterwards} without a MAAS"), Before::Ready).await;
        play.killed_at(JobStage::WaitForAgentEnrollment).await;
        let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
        play.plant.sim.revoke(&account);
        play.act(afterwards).await.expect("is asked for");
        let engine = play.plant.life(None).await;
        let (node, job) = play.rests().await;
        assert_eq!(code(&job), Some("COMPENSATION_FAILED"), "{job:#?}");
        assert_eq!(job.status, JobStatus::FailedManualIntervention);
        let preview = judge_action(JobAction::AdoptObservedState, &job, node.status).expect("is offered");
        assert!(preview.describe(&job).contains("stays there as it is, on your word"), "{}", preview.describe(&job));
        let before = changes(&play);
        play.act(JobAction::AdoptObservedState).await.expect("is left");
        match afterwards {
            JobAction::Cancel => {
                let (node, job) = play.rests().await;
                assert_eq!(job.status, JobStatus::Cancelled, "{job:#?}");
                assert_eq!(node.status, NodeStatus::Quarantined);
                let there = node.maas.expect("it came from a site");
                assert_eq!(there.system_id, "", "the node lays no claim to what was left");
                play.called_off_node_can_go().await;
            }
            _ => {
                // it begins anew, and says that nobody lets it in
                let job = play.fails_with("LOGIN_REFUSED").await;
                assert!(job.done.iter().all(|done| done.stage != JobStage::Maas(MaasStage::DeployViaMaas)), "{job:#?}");
            }
        }
        assert_eq!(changes(&play), before, "{}: nothing was asked for any more", play.name);
        assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED, "{}", play.name);
        play.over(Some(engine)).await;
    }
}

/// Called off while MAAS shows another machine under the id: that one is not released, nor its record removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_machine_under_our_id_is_not_taken_back() {
    let serial_number = format!("SN{}", mac(1).replace(':', "").to_uppercase());
    let wish = MaasWish { serial_number, ..Plant::wish(1) };
    let play = Play::onboarding_of("called off, another machine", Before::Ready, |_| {}, wish).await;
    play.killed_at(JobStage::WaitForAgentEnrollment).await;
    let id = play.system_id().await;
    play.plant.sim.as_somebody().change_identity(&id, None, "SNSWAPPED");
    play.plant.sim.claim(&id, false);
    let before = changes(&play);
    play.act(JobAction::Cancel).await.expect("is asked for");
    let engine = play.plant.life(None).await;
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.status), (JobStatus::Cancelled, NodeStatus::Quarantined), "{job:#?}");
    let there = play.plant.sim.machine(&id).expect("its record is there");
    assert_eq!(there.status, status::DEPLOYED, "{there:#?}");
    assert_eq!(changes(&play), before, "nothing was done to it");
    play.over(Some(engine)).await;
}

/// Somebody else has allocated it: that is theirs, whatever anybody says here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobodys_word_has_somebody_elses_machine_deployed() {
    let play = Play::onboarding("allocated by somebody", Before::Ready).await;
    play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
    let id = play.system_id().await;
    play.plant.sim.as_somebody().set_status(&id, status::ALLOCATED);
    play.plant.sim.as_somebody().set_owner(&id, Some("somebody"));
    let engine = play.plant.life(None).await;
    for _ in 0..2 {
        let job = play.fails_with("STATE_DISAGREES").await;
        let told = job.failure.expect("told").message;
        assert!(told.contains("somebody") && !told.contains("adopt_observed_state"), "{told}");
        play.act(JobAction::AdoptObservedState).await.expect("is looked at again");
    }
    play.fails_with("STATE_DISAGREES").await;
    assert_eq!(changes(&play), BTreeMap::new(), "nothing was done to it");
    play.plant.sim.as_somebody().release(&id);
    let (_, ended) = play.ends().await;
    assert!(matches!(ended.status, JobStatus::Completed | JobStatus::Reconciled), "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

/// What was deployed by hand and taken as it was is not released when the job is called off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_adopted_is_not_taken_back() {
    let play = Play::onboarding("adopted, called off", Before::Ready).await;
    play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
    let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
    // with the very key that is ours
    play.plant.sim.as_account(&account).tell(&id, "deploy", &[("distro_series", "noble"), ("enable_hw_sync", "true")]);
    let engine = play.plant.life(None).await;
    play.fails_with("STATE_DISAGREES").await;
    play.act(JobAction::AdoptObservedState).await.expect("is adopted");
    play.lives_until(|job| job.stage == Some(JobStage::WaitForAgentEnrollment)).await;
    play.act(JobAction::Cancel).await.expect("is called off");
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.status), (JobStatus::Cancelled, NodeStatus::Quarantined), "{job:#?}");
    assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED);
    play.over(Some(engine)).await;
}

/// A node whose machine MAAS has deployed is given back there, and not only forgotten here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retired_node_is_not_removed_past_its_maas() {
    let play = Play::onboarding("retired, removed", Before::New).await;
    let engine = play.plant.life(None).await;
    play.completes().await;
    let id = play.system_id().await;
    let wish = || NodeAct { id: play.node.to_string(), reason: "a test".to_owned(), ..NodeAct::default() };
    let drained = play.plant.service.act_on_node(&admin(), NodeAction::Drain, wish()).await.expect("is drained");
    play.plant.rests(&drained.job.expect("a job").job.id).await;
    let removed = play.plant.service.act_on_node(&admin(), NodeAction::Remove, wish()).await;
    let refused = removed.expect_err("is refused");
    assert!(refused.message.contains("--mode full_decommission"), "{refused:?}");
    assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED);
    let job = play.plant.decommission(&play.node, FULL.mode()).await;
    let ended = play.plant.rests(&job).await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    assert!(play.plant.sim.with_mac(&mac(1)).is_empty(), "it was given back");
    play.over(Some(engine)).await;
}

/// From its last stage on a reimaged node has its system: neither a quarantine nor a cancel takes that away again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reimage_at_its_last_stage_leaves_the_node_its_system() {
    for action in [JobAction::Quarantine, JobAction::Cancel] {
        let play = Play::of(REIMAGE, &format!("{action} of a reimaged node"), Before::New).await;
        play.killed_at(JobStage::CheckHealth).await;
        let id = play.system_id().await;
        let before = changes(&play);
        play.act(action).await.expect("is done");
        let engine = play.plant.life(None).await;
        let (node, job) = match action {
            JobAction::Quarantine => play.ends().await,
            _ => play.rests().await,
        };
        match action {
            JobAction::Quarantine => {
                assert_eq!(job.status, JobStatus::Completed, "{job:#?}");
                assert_eq!(node.status, NodeStatus::Quarantined, "its own matter: {}", node.status_reason);
            }
            _ => {
                assert_eq!(job.status, JobStatus::Cancelled, "{job:#?}");
                assert!(matches!(node.status, NodeStatus::Offline | NodeStatus::Active), "{}", node.status);
            }
        }
        assert_eq!(changes(&play), before, "{}: nothing was taken back", play.name);
        assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED);
        assert!(!node.is_cordoned(), "{}", play.name);
        play.over(Some(engine)).await;
    }
}
