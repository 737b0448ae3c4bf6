//! What others do at the same MAAS meanwhile, what a MAAS that is away does to jobs, and who else wants the same machine:
//! nothing of somebody else's is touched, nothing is guessed, and what is settled goes on.

use crate::plant::{Plant, SITE, bmc_address, mac};
use crate::play::{Before, ONBOARDING, Play, REIMAGE, fabric_mac, side_by_side};
use domain::Reason;
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::JobStage;
use domain::maas_stage::MaasStage;
use domain::node::NodeStatus;
use service::{MaasWish, NewOnboarding};
use std::time::Duration;
use testkit::fleet::{Database, admin};
use testkit::maas_sim::status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Released,
    DeployedBySomebody,
    DeployedWithOurAccount,
    Broken,
    Renamed,
}

const EVERY_MOVE: [Moved; 5] =
    [Moved::Released, Moved::DeployedBySomebody, Moved::DeployedWithOurAccount, Moved::Broken, Moved::Renamed];

fn moves(play: &Play, id: &str, moved: Moved) {
    let (sim, somebody) = (&play.plant.sim, play.plant.sim.as_somebody());
    let stands = sim.machine(id).expect("a machine").status;
    match moved {
        Moved::Released if stands == status::DEPLOYED => somebody.release(id),
        Moved::Released => {}
        Moved::DeployedBySomebody | Moved::DeployedWithOurAccount => {
            let account = if moved == Moved::DeployedBySomebody { "somebody" } else { sim.account() };
            let who = sim.as_account(account);
            match stands {
                status::NEW => who.commission(id),
                status::DEPLOYED => who.release(id),
                _ => {}
            }
            // as it is in life: with a layout and a link, which ours may not have made yet
            who.deploy(id, "noble");
            if moved == Moved::DeployedBySomebody {
                sim.claim(id, false);
            }
        }
        Moved::Broken => somebody.set_status(id, status::BROKEN),
        Moved::Renamed => somebody.rename(id, "quite-another"),
    }
}

/// It is as if nobody had been there; but what was deployed is gone.
fn settled(play: &Play, id: &str) {
    let (sim, somebody) = (&play.plant.sim, play.plant.sim.as_somebody());
    let there = sim.machine(id).expect("a machine");
    match there.status {
        status::DEPLOYED => sim.as_account(there.owner.as_deref().unwrap_or("somebody")).release(id),
        status::BROKEN => {
            somebody.set_owner(id, None);
            somebody.set_status(id, status::READY);
        }
        _ => {}
    }
    sim.claim(id, true);
}

async fn moved_at(stage: JobStage, moved: Moved) {
    let play = Play::onboarding(&format!("{moved:?} in {stage}"), Before::Ready).await;
    play.killed_at(stage).await;
    let id = play.system_id().await;
    moves(&play, &id, moved);
    let engine = play.plant.life(None).await;
    let (_, job) = play.rests().await;
    let theirs = matches!(moved, Moved::DeployedBySomebody | Moved::DeployedWithOurAccount | Moved::Broken);
    if !theirs && job.status == JobStatus::Completed {
        play.audited().await;
        return play.over(Some(engine)).await;
    }
    assert_eq!(job.failure.as_ref().map(|f| f.code.as_str()), Some("STATE_DISAGREES"), "{}: {job:#?}", play.name);
    assert_eq!(job.status, JobStatus::FailedManualIntervention, "{}", play.name);
    let before = play.plant.sim.machine(&id).expect("still there");
    assert_eq!(play.offences().await, Vec::<String>::new(), "{}", play.name);
    // whoever calls it off now takes nothing of somebody else's
    if moved == Moved::DeployedBySomebody && matches!(stage, JobStage::Maas(MaasStage::WaitForDeployed)) {
        play.act(JobAction::Cancel).await.expect("is called off");
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Cancelled, "{}: {job:#?}", play.name);
        let after = play.plant.sim.machine(&id).expect("still there");
        assert_eq!((after.status, after.owner), (before.status, before.owner), "{}", play.name);
        assert_eq!(play.offences().await, Vec::<String>::new(), "{}", play.name);
        return play.over(Some(engine)).await;
    }
    settled(&play, &id);
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_moved_behind_our_back_is_not_taken_for_ours() {
    let stages = ONBOARDING.stages();
    let from = stages.iter().position(|s| *s == JobStage::Maas(MaasStage::CommissionNode)).expect("a stage");
    let to = stages.iter().position(|s| *s == JobStage::WaitForAgentEnrollment).expect("a stage");
    let mut plays = Vec::new();
    for (n, stage) in stages[from..=to].iter().enumerate() {
        for (m, moved) in EVERY_MOVE.into_iter().enumerate() {
            // a move of each kind at every third stage; with MAAS_LENGTH above one, at all
            if crate::length() > 1 || (n + m) % 3 == 0 {
                plays.push(moved_at(*stage, moved));
            }
        }
    }
    side_by_side("moved behind our back", plays).await;
}

/// Somebody deploys it by hand, and installs the agent with a bundle: the job finishes from what is true.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_deployed_by_hand_is_adopted() {
    let play = Play::onboarding("deployed by hand", Before::Ready).await;
    play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
    let id = play.system_id().await;
    play.plant.sim.as_somebody().tell(&id, "deploy", &[("distro_series", "noble"), ("enable_hw_sync", "true")]);
    let engine = play.plant.life(None).await;
    play.fails_with("STATE_DISAGREES").await;
    play.act(JobAction::AdoptObservedState).await.expect("is adopted");
    play.lives_until(|job| job.stage == Some(JobStage::WaitForAgentEnrollment)).await;
    play.plant.installed_by_hand(&play.node, &id).await;
    let (node, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Reconciled, "{job:#?}");
    assert_eq!(node.status, NodeStatus::Active);
    assert!(job.done.iter().any(|done| !done.adopted_by.is_empty()), "on record: {:?}", job.done);
    assert_eq!(play.offences().await, Vec::<String>::new(), "nothing was done to it");
    play.over(Some(engine)).await;
}

/// Somebody releases it by hand after it was deployed: adopted as it is, it is deployed once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_released_by_hand_is_adopted_and_deployed_again() {
    let released = |stage: JobStage| async move {
        let play = Play::onboarding(&format!("released by hand in {stage}, adopted"), Before::Ready).await;
        play.killed_at(stage).await;
        let id = play.system_id().await;
        play.plant.sim.as_somebody().release(&id);
        let engine = play.plant.life(None).await;
        play.fails_with("STATE_DISAGREES").await;
        play.act(JobAction::AdoptObservedState).await.expect("is adopted");
        let (_, job) = play.ends().await;
        assert!(matches!(job.status, JobStatus::Reconciled | JobStatus::Completed), "{}: {job:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let stages = [
        JobStage::Maas(MaasStage::WaitForDeployed),
        JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy),
        JobStage::WaitForAgentEnrollment,
    ];
    side_by_side("released by hand", stages.map(released).into()).await;
}

/// Somebody fixes by hand what failed, and the job goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_fixed_by_hand_is_adopted() {
    let play = Play::onboarding("fixed by hand", Before::New).await;
    play.plant.sim.trouble(&mac(1), testkit::maas_sim::Trouble::CommissioningFails, 2);
    let engine = play.plant.life(None).await;
    play.fails_with("COMMISSIONING_FAILED").await;
    let id = play.system_id().await;
    play.plant.sim.as_account(play.plant.sim.account()).commission(&id);
    let account = play.plant.sim.account().to_owned();
    let there = play.plant.sim.machine(&id).expect("a machine");
    if there.status != status::READY {
        play.plant.sim.as_account(&account).commission(&id);
    }
    play.act(JobAction::AdoptObservedState).await.expect("is adopted");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Reconciled, "{job:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

/// An hour without a MAAS in the middle of every stage that waits for it costs nobody a job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maas_that_is_down_for_an_hour_is_waited_for() {
    let away = |stage: JobStage, kind: domain::job_stage::JobKind| async move {
        let play = Play::of(kind, &format!("{kind}: MAAS is away in {stage}"), Before::New).await;
        play.killed_at(stage).await;
        play.plant.sim.down().await;
        let engine = play.plant.life(None).await;
        for _ in 0..12 {
            for _ in 0..8 {
                play.plant.turn().await;
            }
            play.plant.fleet.pass(Duration::from_secs(300));
            let (_, job) = play.look().await;
            assert_eq!(job.status, JobStatus::Running, "{}: {job:#?}", play.name);
            assert_eq!(job.stage, Some(stage), "{}", play.name);
        }
        play.plant.sim.up();
        play.completes().await;
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let mut plays: Vec<_> = [
        MaasStage::LoadSiteConfig,
        MaasStage::CreateOrFindInMaas,
        MaasStage::CommissionNode,
        MaasStage::WaitForReady,
        MaasStage::ConfigureStorage,
        MaasStage::ApplyRocePhase2,
        MaasStage::EnsurePxeInterfaceAuto,
        MaasStage::DeployViaMaas,
        MaasStage::WaitForDeployed,
        MaasStage::ClassifyDeployFailure,
        MaasStage::RecoverForDatasourceRetry,
        MaasStage::EnsureHardwareSyncConfigured,
        MaasStage::WaitForHardwareSyncHealthy,
    ]
    .map(|stage| away(JobStage::Maas(stage), ONBOARDING))
    .into();
    plays.push(away(JobStage::Maas(MaasStage::ReleaseMaasNode), REIMAGE));
    plays.push(away(JobStage::Maas(MaasStage::ReleaseMaasNode), crate::play::FULL));
    plays.push(away(JobStage::Maas(MaasStage::PowerOffMaasNode), crate::play::FULL));
    plays.push(away(JobStage::Maas(MaasStage::RemoveMaasRecord), crate::play::FULL));
    side_by_side("MAAS is away for an hour", plays).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maas_that_is_down_for_an_hour_is_waited_for_to_take_back_what_was_done() {
    let play = Play::onboarding("MAAS is away, called off", Before::Nothing).await;
    play.killed_at(JobStage::WaitForAgentEnrollment).await;
    play.plant.sim.down().await;
    play.act(JobAction::Cancel).await.expect("is called off");
    let engine = play.plant.life(None).await;
    play.lives_until(|job| job.status == JobStatus::Compensating).await;
    for _ in 0..12 {
        for _ in 0..8 {
            play.plant.turn().await;
        }
        play.plant.fleet.pass(Duration::from_secs(300));
        let (_, job) = play.look().await;
        assert_eq!(job.status, JobStatus::Compensating, "{job:#?}");
    }
    play.plant.sim.up();
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Cancelled, "{job:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn networks_are_linked_once_each_and_doubled_links_become_one() {
    let play = Play::onboarding("networks", Before::Ready).await;
    play.killed_at(JobStage::Maas(MaasStage::ApplyRocePhase2)).await;
    let id = play.system_id().await;
    // somebody has asked twice for what was there
    let json = play.plant.sim.json(&id).expect("a machine");
    let interface = json["boot_interface"]["id"].as_u64().expect("an interface");
    let path = format!("nodes/{id}/interfaces/{interface}/");
    let (answer, body) =
        play.plant.sim.as_somebody().ask("POST", &path, "link_subnet", &[("mode", "AUTO"), ("subnet", "1")]);
    assert_eq!(answer, 200, "{body}");
    assert_eq!(play.plant.sim.machine(&id).expect("a machine").links["eth0"].len(), 2, "the trap");
    let engine = play.plant.life(None).await;
    play.completes().await;
    let links = play.plant.sim.machine(&id).expect("a machine").links;
    assert_eq!((links["eth0"].len(), links["eth1"].len()), (1, 1), "{links:?}");
    assert!(play.plant.sim.machine(&id).is_some_and(|m| m.macs.contains(&fabric_mac(1))));
    play.audited().await;
    play.over(Some(engine)).await;
}

/// One that came with a bundle of another deployment proves nothing for this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_another_bundle_does_not_pass_for_this_runs() {
    let play = Play::of(REIMAGE, "an older agent", Before::New).await;
    // the system that is deployed never brings an agent; the one of the system before it goes on
    play.plant.no_agent_comes(true);
    let engine = play.plant.life(None).await;
    play.lives_until(|job| job.stage == Some(JobStage::WaitForAgentEnrollment)).await;
    for _ in 0..100 {
        play.plant.turn().await;
    }
    let (node, job) = play.look().await;
    assert_eq!((job.status, job.stage), (JobStatus::Running, Some(JobStage::WaitForAgentEnrollment)), "{job:#?}");
    assert_eq!(node.status, NodeStatus::Retired);
    play.plant.no_agent_comes(false);
    play.completes().await;
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_onboardings_of_one_machine_one_is_refused() {
    let plant = Plant::new(Database::Memory).await;
    plant.rack(1);
    let (node, job) = plant.onboard(Plant::wish(1)).await;
    let call = admin();
    let mut spelt = Plant::wish(1);
    spelt.macs = vec![mac(1).to_uppercase().replace(':', "-")];
    let again = NewOnboarding { name: "another".to_owned(), wish: spelt, ..NewOnboarding::default() };
    let refused = plant.service.onboard_node(&call, again).await.err().expect("is refused");
    assert_eq!(refused.reason, Reason::IdentityTaken, "{refused:?}");
    assert_eq!(refused.details.get("node_id").map(String::as_str), Some(node.as_str()), "{refused:?}");
    plant.start().await;
    assert_eq!(plant.rests(&job).await.status, JobStatus::Completed);
    plant.audited().await;
}

/// Two servers on one store, and two more machines than one: nobody makes a record twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_at_work_make_no_record_twice() {
    let plant = Plant::new(Database::Sqlite).await;
    let (one, two) = (plant.engine_named("one", None), plant.engine_named("two", None));
    let mut jobs = Vec::new();
    for number in 1..=8 {
        plant.rack(number);
        jobs.push(plant.onboard(Plant::wish(number)).await.1);
    }
    one.start().await.expect("starts");
    two.start().await.expect("starts");
    for job in &jobs {
        let ended = plant.rests(job).await;
        assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    }
    assert_eq!(plant.sim.machines().len(), jobs.len());
    plant.audited().await;
    one.stop().await;
    two.stop().await;
}

/// Somebody else has made the record before us: that one is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_somebody_makes_meanwhile_is_seen() {
    let play = Play::onboarding("somebody is faster", Before::Nothing).await;
    play.killed_at(JobStage::Maas(MaasStage::CreateOrFindInMaas)).await;
    let theirs = play.plant.sim.as_somebody().create("theirs", &mac(1), &bmc_address(1));
    let engine = play.plant.life(None).await;
    play.completes().await;
    assert_eq!(play.system_id().await, theirs, "the one that is there is taken");
    assert_eq!(play.plant.sim.machines().len(), 1);
    play.audited().await;
    play.over(Some(engine)).await;
}

// ---- the four incidents (I-13) ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_ended_from_outside_is_not_shown_as_running() {
    let ended = |stage: JobStage, terminate: bool| async move {
        let play = Play::onboarding(&format!("ended from outside in {stage}"), Before::New).await;
        play.killed_at(stage).await;
        play.plant.ends_execution(&play.job, terminate).await;
        let engine = play.plant.life(None).await;
        let (_, job) = play.rests().await;
        assert!(!job.status.is_under_way(), "{}: {}", play.name, job.status);
        let (_, job) = play.ends().await;
        assert!(job.status.is_terminal(), "{}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let stages =
        [MaasStage::CommissionNode, MaasStage::WaitForReady, MaasStage::DeployViaMaas, MaasStage::WaitForDeployed];
    let plays = stages.into_iter().flat_map(|s| [true, false].map(|t| ended(JobStage::Maas(s), t)));
    side_by_side("ended from outside", plays.collect()).await;
}

/// The agent comes while nobody works on the job, before MAAS's word is read and after: the node does not stay retired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_enrolled_again_does_not_stay_retired() {
    let raced = |stage: JobStage| async move {
        let play = Play::of(REIMAGE, &format!("the agent is there before {stage}"), Before::New).await;
        play.killed_at(stage).await;
        for _ in 0..30 {
            play.plant.turn().await;
        }
        let engine = play.plant.life(None).await;
        play.completes().await;
        assert!(play.plant.is(&play.node, NodeStatus::Active).await);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let stages = [
        JobStage::Maas(MaasStage::WaitForDeployed),
        JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy),
        JobStage::WaitForAgentEnrollment,
        JobStage::CheckHealth,
    ];
    side_by_side("enrolled again", stages.map(raced).into()).await;
}

/// However often it is tried again: one finding, of which it is told once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_that_has_drifted_is_one_finding_however_often_it_is_seen() {
    let wish = MaasWish { serial_number: "SNANOTHER".to_owned(), ..Plant::wish(1) };
    let play = Play::onboarding_of("drift", Before::Ready, |_| {}, wish).await;
    let engine = play.plant.life(None).await;
    for _ in 0..6 {
        play.fails_with("CONFLICTING_CANDIDATES").await;
        play.act(JobAction::RetryStage).await.expect("is tried again");
    }
    play.fails_with("CONFLICTING_CANDIDATES").await;
    let findings = play.plant.open_findings(&play.node).await;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    play.over(Some(engine)).await;
}

/// What MAAS and the machine say is what the rows say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_true_of_the_machine_is_what_is_shown() {
    let play = Play::onboarding("shown", Before::Nothing).await;
    let engine = play.plant.life(None).await;
    let job = play.completes().await;
    let there = play.plant.sim.with_mac(&mac(1))[0].clone();
    let learned: serde_json::Value = serde_json::from_str(&job.learned).expect("JSON");
    assert_eq!(learned["system_id"], there.system_id.as_str());
    assert!(there.addresses.iter().any(|a| learned["address"] == a.as_str()), "{learned} {there:?}");
    let view = play.plant.service.get_node(play.node.as_str()).await.expect("a node");
    assert_eq!(
        view.node.maas.as_ref().map(|at| (at.site.as_str(), at.system_id.as_str())),
        Some((SITE, there.system_id.as_str()))
    );
    play.over(Some(engine)).await;
}
