//! What stops a job until a person has looked (N-7): each for its own reason, with what was seen, and with a way on that
//! works when it is taken.

use crate::plant::{self, Plant, mac};
use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use domain::job::{Job, JobStatus};
use domain::job_action::{JobAction, recommend};
use domain::job_stage::{JobKind, JobStage};
use domain::maas_stage::MaasStage;
use domain::node::NodeStatus;
use domain::site::DiskRule;
use domain::stage::FailureClass;
use service::MaasWish;
use testkit::maas_sim::{Trouble, status};

/// What a person is told: a reason of its own, what MAAS said last, and what to do.
async fn stopped(play: &Play, code: &str, evidence: &str) -> Job {
    let job = play.fails_with(code).await;
    assert_eq!(job.status, JobStatus::FailedManualIntervention, "{}: {job:#?}", play.name);
    let failure = job.failure.as_ref().expect("told");
    assert!(failure.message.contains(evidence), "{}: {failure:?}", play.name);
    assert!(failure.message.contains("'millwright "), "{}: names no way on: {failure:?}", play.name);
    let (node, _) = play.look().await;
    let (action, why) = recommend(&job, node.status);
    assert!(action.is_some() && !why.is_empty(), "{}: {action:?} {why}", play.name);
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_records_with_the_mac_stop_it_until_one_is_left() {
    let play = Play::onboarding("two records", Before::New).await;
    let other = play.plant.sim.as_somebody().create("twin", &plant::mac(77), "10.9.9.9");
    // a late duplicate: it is found to have the same card
    play.plant.sim.as_somebody().give_mac(&other, &mac(1));
    let engine = play.plant.life(None).await;
    let job = stopped(&play, "CONFLICTING_CANDIDATES", &other).await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::CreateOrFindInMaas)));
    assert_eq!(job.failure.map(|f| f.class), Some(FailureClass::Conflict));
    play.plant.sim.as_somebody().delete(&other);
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serial_number_that_says_another_machine_stops_it() {
    let wish = MaasWish { serial_number: "SNANOTHER".to_owned(), ..Plant::wish(1) };
    let play = Play::onboarding_of("another serial", Before::Ready, |_| {}, wish).await;
    let engine = play.plant.life(None).await;
    let found = play.plant.sim.with_mac(&mac(1))[0].clone();
    stopped(&play, "CONFLICTING_CANDIDATES", &found.serial).await;
    let asked = play.plant.sim.calls();
    assert!(!asked.keys().any(|call| call.starts_with("POST")), "nothing is done to it: {asked:?}");
    // it was the wrong number: called off, and asked for again
    play.act(JobAction::Cancel).await.expect("is called off");
    let (_, ended) = play.rests().await;
    assert_eq!(ended.status, JobStatus::Cancelled);
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boot_disk_that_is_not_there_is_nobodys_guess() {
    let rule = DiskRule { model: "NoSuchModel".to_owned(), ..DiskRule::default() };
    let play = Play::onboarding_with("no boot disk", Before::New, |site| site.profiles[0].boot_disk = rule).await;
    let engine = play.plant.life(None).await;
    let job = stopped(&play, "BOOT_DISK_NOT_FOUND", "DELLBOSS VD").await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::ConfigureStorage)));
    assert!(!play.plant.sim.calls().keys().any(|call| call.contains("set_storage_layout")), "nothing was wiped");
    play.plant.edit_site(|site| site.profiles[0].boot_disk.model = "boss".to_owned()).await;
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pxe_interface_that_cannot_be_mended_stops_it() {
    let change = |site: &mut domain::site::Site| site.profiles[0].pxe_subnet = "name:nowhere".to_owned();
    let play = Play::onboarding_with("no PXE subnet", Before::New, change).await;
    let engine = play.plant.life(None).await;
    let job = stopped(&play, "PXE_NOT_FIXABLE", "nowhere").await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::EnsurePxeInterfaceAuto)));
    play.plant.edit_site(|site| site.profiles[0].pxe_subnet.clear()).await;
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

/// From the stage on that knows the machine, to the one that proves it.
fn stages_with_a_machine(kind: JobKind) -> Vec<JobStage> {
    let first = match kind {
        ONBOARDING => JobStage::Maas(MaasStage::CommissionNode),
        _ => JobStage::Maas(MaasStage::ReleaseMaasNode),
    };
    let stages = kind.stages();
    let from = stages.iter().position(|s| *s == first).expect("a stage");
    let to = stages.iter().position(|s| *s == JobStage::WaitForAgentEnrollment).expect("a stage");
    // what is made of the template does not ask for the machine before anything is deployed
    stages[from..=to].iter().copied().filter(|s| *s != JobStage::Maas(MaasStage::RenderCloudInit)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_deleted_in_the_middle_of_a_stage_is_made_anew() {
    let deleted = |stage: JobStage, before: Before| async move {
        let play = Play::onboarding(&format!("deleted in {stage}"), before).await;
        play.killed_at(stage).await;
        let id = play.system_id().await;
        play.plant.sim.as_somebody().delete(&id);
        let engine = play.plant.life(None).await;
        let job = stopped(&play, "MACHINE_GONE", &id).await;
        assert_eq!(job.stage, Some(stage), "{}", play.name);
        assert!(job.observed.contains("absent"), "{}: {}", play.name, job.observed);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        assert_ne!(play.system_id().await, id, "{}: it is another record", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let stages = stages_with_a_machine(ONBOARDING).into_iter().enumerate();
    side_by_side("deleted behind our back", stages.map(|(n, stage)| deleted(stage, Before::of(n))).collect()).await;
}

/// The node of a reimage whose machine is gone is no node of that machine any more: it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_deleted_in_a_reimage_leaves_a_node_that_can_go() {
    let deleted = |stage: JobStage| async move {
        let mut play = Play::of(REIMAGE, &format!("reimage, deleted in {stage}"), Before::New).await;
        play.killed_at(stage).await;
        let id = play.system_id().await;
        play.plant.sim.as_somebody().delete(&id);
        let engine = play.plant.life(None).await;
        stopped(&play, "MACHINE_GONE", &id).await;
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Cancelled, "{}: {ended:#?}", play.name);
        play.called_off_node_can_go().await;
        play.over(Some(engine)).await;
    };
    let stages = [MaasStage::ReleaseMaasNode, MaasStage::ConfigureStorage, MaasStage::WaitForDeployed];
    side_by_side("deleted in a reimage", stages.map(|s| deleted(JobStage::Maas(s))).into()).await;
}

/// What is to go may be gone already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_deleted_in_a_full_decommission_is_no_obstacle() {
    let deleted = |stage: MaasStage| async move {
        let play = Play::of(FULL, &format!("full, deleted in {}", stage.as_str()), Before::New).await;
        play.killed_at(JobStage::Maas(stage)).await;
        let id = play.system_id().await;
        play.plant.sim.as_somebody().delete(&id);
        let engine = play.plant.life(None).await;
        play.completes().await;
        assert!(play.plant.is(&play.node, NodeStatus::Deleted).await);
        play.over(Some(engine)).await;
    };
    let stages = [MaasStage::ReleaseMaasNode, MaasStage::PowerOffMaasNode, MaasStage::RemoveMaasRecord];
    side_by_side("deleted in a full decommission", stages.map(deleted).into()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datasource_that_fails_is_tried_again_within_its_bound() {
    let play = Play::onboarding("datasource, within the bound", Before::New).await;
    play.plant.sim.trouble(&mac(1), Trouble::NoDatasource, 2);
    let engine = play.plant.life(None).await;
    let job = play.with_maas_timeouts().await;
    assert_eq!(job.status, JobStatus::Completed, "{job:#?}");
    assert_eq!(play.plant.sim.hardware(&mac(1)).installs, 3, "the first, and two more");
    let there = play.plant.sim.with_mac(&mac(1))[0].clone();
    assert_eq!(there.annotations.get("millwright-job"), Some(&play.job.to_string()), "it bears our mark again");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datasource_that_fails_beyond_its_bound_is_for_a_person() {
    let play = Play::onboarding("datasource, beyond the bound", Before::New).await;
    play.plant.sim.trouble(&mac(1), Trouble::NoDatasource, 3);
    let engine = play.plant.life(None).await;
    play.with_maas_timeouts().await;
    let job = stopped(&play, "DATASOURCE_REPEATED", "3 times").await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::RecoverForDatasourceRetry)));
    // and once more beyond it, by a person's wish
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_known_failure_of_a_deployment_is_told_as_itself_and_overcome() {
    let failed = |kind: JobKind, trouble: Option<Trouble>, code: &'static str, status: JobStatus| async move {
        let play = Play::of(kind, &format!("{kind}: {code}"), Before::New).await;
        if let Some(trouble) = trouble {
            play.plant.sim.trouble(&mac(1), trouble, 1);
        } else {
            // the order is taken, and its BMC is dead when it is to be carried out
            play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
            play.plant.sim.bmc(&mac(1), testkit::maas_sim::BmcMood::Dead);
        }
        let engine = play.plant.life(None).await;
        let job = play.with_maas_timeouts().await;
        assert_eq!(job.failure.as_ref().map(|f| f.code.as_str()), Some(code), "{}: {job:#?}", play.name);
        assert_eq!(job.status, status, "{}", play.name);
        play.plant.sim.bmc(&mac(1), testkit::maas_sim::BmcMood::Fine);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let manual = JobStatus::FailedManualIntervention;
    let mut plays = Vec::new();
    for kind in [ONBOARDING, REIMAGE] {
        plays.push(failed(kind, Some(Trouble::CurtinFails), "INSTALLATION_FAILED", manual));
        plays.push(failed(kind, Some(Trouble::DeployHangs), "NEVER_BOOTED", JobStatus::FailedRetryable));
        plays.push(failed(kind, None, "POWER_FAILED", JobStatus::FailedRetryable));
    }
    plays.push(failed(
        ONBOARDING,
        Some(Trouble::CommissioningFails),
        "COMMISSIONING_FAILED",
        JobStatus::FailedRetryable,
    ));
    side_by_side("failures of MAAS", plays).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_fails_after_deployed_is_told() {
    let play = Play::onboarding("cloud-init fails", Before::New).await;
    play.plant.sim.trouble(&mac(1), Trouble::CloudInitFails, 1);
    play.plant.no_agent_comes(true);
    let engine = play.plant.life(None).await;
    let job = stopped(&play, "CLOUD_INIT_FAILED", "modules-final").await;
    assert_eq!(job.stage, Some(JobStage::WaitForAgentEnrollment));
    play.plant.no_agent_comes(false);
    play.act(JobAction::RestartClean).await.expect("as the message says");
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardware_sync_that_never_moves_is_no_proof() {
    let play = Play::onboarding("sync never moves", Before::New).await;
    play.plant.sim.configure("hardware_sync_interval", serde_json::json!("1s"));
    play.plant.hardware_is_mute(true);
    let engine = play.plant.life(None).await;
    let job = stopped(&play, "HARDWARE_SYNC_SILENT", "maas_hardware_sync").await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy)));
    play.plant.hardware_is_mute(false);
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_first_deployment_told_of_its_hardware_proves_nothing_for_the_next() {
    let play = Play::onboarding("sync of another deployment", Before::New).await;
    play.plant.sim.configure("hardware_sync_interval", serde_json::json!("1s"));
    play.killed_at(JobStage::WaitForAgentEnrollment).await;
    let synced = play.plant.sim.with_mac(&mac(1))[0].syncs;
    assert!(synced > 0, "the first one was proven");
    play.plant.hardware_is_mute(true);
    play.act(JobAction::RestartClean).await.expect("begins anew");
    let engine = play.plant.life(None).await;
    play.fails_with("HARDWARE_SYNC_SILENT").await;
    play.plant.hardware_is_mute(false);
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_fails_is_told_and_then_works() {
    let failed = |kind: JobKind| async move {
        let play = Play::of(kind, &format!("{kind}: the erasure fails"), Before::New).await;
        play.plant.sim.trouble(&mac(1), Trouble::EraseFails, 2);
        let engine = play.plant.life(None).await;
        let (node, job) = play.rests().await;
        assert_eq!(job.failure.as_ref().map(|f| f.code.as_str()), Some("ERASE_FAILED"), "{}: {job:#?}", play.name);
        assert!(matches!(node.status, NodeStatus::Quarantined | NodeStatus::Retired), "{}: {}", play.name, node.status);
        assert_eq!(play.plant.sim.with_mac(&mac(1))[0].status, status::FAILED_DISK_ERASING);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        assert!(play.plant.sim.hardware(&mac(1)).erases >= 1, "{}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    side_by_side("erasures that fail", vec![failed(REIMAGE), failed(FULL)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_machine_under_our_id_is_left_alone() {
    let another = |kind: JobKind| async move {
        let play = Play::of(kind, &format!("{kind}: another machine"), Before::New).await;
        play.killed_at(JobStage::Maas(MaasStage::ReleaseMaasNode)).await;
        let id = play.system_id().await;
        let there = play.plant.sim.machine(&id).expect("a machine");
        play.plant.sim.as_somebody().change_identity(&id, Some("4d570000-9999-4000-8000-000000000000"), "SNSWAPPED");
        play.plant.sim.claim(&id, false);
        let engine = play.plant.life(None).await;
        stopped(&play, "WRONG_MACHINE", "SNSWAPPED").await;
        assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 0, "{}: nothing was erased", play.name);
        // it was put back
        play.plant.sim.as_somebody().change_identity(&id, there.uuid.as_deref(), &there.serial);
        play.plant.sim.claim(&id, true);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    side_by_side("another machine under our id", vec![another(REIMAGE), another(FULL)]).await;
}

/// Nobody removes a site's profile or key without the jobs on it saying so, and they go on when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_taken_back_is_for_a_person_and_never_told() {
    let play = Play::onboarding("no key", Before::New).await;
    play.killed_at(JobStage::Maas(MaasStage::ConfigureStorage)).await;
    let (account, good) = (play.plant.sim.account().to_owned(), play.plant.sim.key());
    let (rest, secret) = good.rsplit_once(':').expect("a secret");
    // MAAS answers with the very secret that was not known
    play.plant.set_key(&format!("{rest}:NotTheSecretThatItIs")).await;
    let engine = play.plant.life(None).await;
    let job = play.fails_with("LOGIN_REFUSED").await;
    assert_eq!(job.status, JobStatus::FailedManualIntervention);
    let shown = format!("{job:?}");
    assert!(!shown.contains(secret) && !shown.contains("NotTheSecretThatItIs"), "{shown}");
    play.plant.sim.revoke(&account);
    play.act(JobAction::RetryStage).await.expect("tries again");
    play.fails_with("LOGIN_REFUSED").await;
    let fresh = play.plant.sim.add_account(&account, true);
    play.plant.set_key(&fresh).await;
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

/// MAAS has given it up, and then it comes up all the same: the job goes on, and its hardware must still tell of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_that_failed_and_came_up_after_all_goes_on() {
    let late = |stage: MaasStage| async move {
        let play = Play::onboarding(&format!("up after all in {}", stage.as_str()), Before::New).await;
        play.plant.hardware_is_mute(true);
        play.killed_at(JobStage::Maas(MaasStage::WaitForDeployed)).await;
        let id = play.system_id().await;
        let itself = play.plant.sim.as_account(play.plant.sim.account());
        itself.set_status(&id, status::FAILED_DEPLOYMENT);
        if stage != MaasStage::WaitForDeployed {
            play.killed_at(JobStage::Maas(stage)).await;
        }
        itself.set_status(&id, status::DEPLOYED);
        let engine = play.plant.life(None).await;
        play.lives_until(|job| job.stage == Some(JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy))).await;
        for _ in 0..50 {
            play.plant.turn().await;
        }
        let (_, job) = play.look().await;
        let waits = Some(JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy));
        assert_eq!((job.status, job.stage), (JobStatus::Running, waits), "{}: {job:#?}", play.name);
        play.plant.hardware_is_mute(false);
        play.completes().await;
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let stages = [MaasStage::WaitForDeployed, MaasStage::ClassifyDeployFailure, MaasStage::RecoverForDatasourceRetry];
    side_by_side("up after all", stages.map(late).into()).await;
}
