//! A site that is slow, full or away costs nobody an attempt: nothing was sent, so that is waited for, and the job says on
//! what.

use crate::plant::{KEY, SITE, mac};
use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use domain::Secret;
use domain::job::JobStatus;
use domain::job_stage::{JobKind, JobStage};
use domain::maas_stage::MaasStage;
use provider::{MaasAccess, MaasClients as _};
use std::time::Duration;
use testkit::maas_sim::{Calls, Misbehaviour};

/// So often as would spend every attempt that a stage has, several times over.
const OFTEN: usize = 24;

/// What a deed reads before it sends anything is not answered, though the look before it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deed_that_could_not_be_sent_spends_no_attempt() {
    let unsent = |kind: JobKind, stage: MaasStage, calls: Calls| async move {
        let play = Play::of(kind, &format!("{kind}: nothing is sent in {}", stage.as_str()), Before::New).await;
        play.killed_at(JobStage::Maas(stage)).await;
        let first = play.plant.sim.misbehave(calls, Misbehaviour::ResetBefore, OFTEN);
        let engine = play.plant.life(None).await;
        let mut told = String::new();
        let mut turns = 0;
        while play.plant.sim.hits(first) < OFTEN {
            let (_, job) = play.look().await;
            assert_eq!(
                (job.status, job.stage),
                (JobStatus::Running, Some(JobStage::Maas(stage))),
                "{}: {job:#?}",
                play.name
            );
            let waits = play.plant.waits_for(&job).await;
            assert!(!waits.contains("attempt"), "{}: an attempt was spent: {waits}", play.name);
            if waits.contains("the site to answer") {
                told = waits;
            }
            turns += 1;
            assert!(turns < 2_000, "{}: {} of {OFTEN}", play.name, play.plant.sim.hits(first));
            if turns % 10 == 0 {
                // the pauses grow with time, not the attempts
                play.plant.fleet.pass(Duration::from_secs(20));
            }
            play.plant.turn().await;
        }
        assert!(!told.is_empty(), "{}: it was told what is waited for", play.name);
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Completed, "{}: {job:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let events = || Calls::method("GET", "/events/");
    side_by_side(
        "nothing is sent",
        vec![
            unsent(ONBOARDING, MaasStage::DeployViaMaas, events()),
            unsent(REIMAGE, MaasStage::DeployViaMaas, events()),
        ],
    )
    .await;
}

/// All turns at the site are taken: a look says so, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_no_turn_at_a_site_waits_for_one() {
    let play = Play::onboarding_with("no turn", Before::New, |site| site.policy.calls_max = 1).await;
    play.killed_at(JobStage::Maas(MaasStage::ConfigureStorage)).await;
    let access = MaasAccess {
        site: SITE.to_owned(),
        url: play.plant.sim.url(),
        ca_pem: String::new(),
        key: Secret::new(play.plant.sim.key()),
        calls_max: 1,
    };
    let taken = play.plant.clients.in_turn(&access, Duration::from_secs(5)).await.expect("the only turn");
    let engine = play.plant.life(None).await;
    let mut turns = 0;
    loop {
        let (_, job) = play.look().await;
        assert!(job.status.is_under_way(), "{}: {job:#?}", play.name);
        if play.plant.waits_for(&job).await.contains("others have its turn") {
            break;
        }
        turns += 1;
        assert!(turns < 1_500, "{}", play.plant.waits_for(&job).await);
        play.plant.turn().await;
    }
    // and whoever has the turn is not kept from using it
    assert!(taken.account().await.is_ok_and(|account| account.is_admin), "{KEY}");
    drop(taken);
    play.completes().await;
    play.audited().await;
    play.over(Some(engine)).await;
}

/// No look comes back in time: the site takes every call and answers none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_takes_calls_and_answers_none_is_outlasted() {
    let hung = |kind: JobKind, stage: JobStage| async move {
        let play = Play::of(kind, &format!("{kind}: it hangs in {stage}"), Before::New).await;
        play.killed_at(stage).await;
        play.plant.sim.hang(true);
        let engine = play.plant.hasty_life().await;
        for _ in 0..60 {
            for _ in 0..8 {
                play.plant.turn().await;
            }
            play.plant.fleet.pass(Duration::from_secs(60));
            let (_, job) = play.look().await;
            assert_eq!((job.status, job.stage), (JobStatus::Running, Some(stage)), "{}: {job:#?}", play.name);
            assert!(!play.plant.waits_for(&job).await.contains("attempt"), "{}: an attempt was spent", play.name);
        }
        play.plant.sim.hang(false);
        engine.stop().await;
        let engine = play.plant.life(None).await;
        play.completes().await;
        play.audited().await;
        play.over(Some(engine)).await;
    };
    side_by_side(
        "a site that hangs",
        vec![
            hung(ONBOARDING, JobStage::Maas(MaasStage::CreateOrFindInMaas)),
            hung(ONBOARDING, JobStage::Maas(MaasStage::WaitForHardwareSyncHealthy)),
            hung(REIMAGE, JobStage::Maas(MaasStage::ReleaseMaasNode)),
            hung(FULL, JobStage::Maas(MaasStage::RemoveMaasRecord)),
        ],
    )
    .await;
}

/// A deployment that could not be sent is no try of it: the bound on tries counts what was deployed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_could_not_be_sent_is_not_counted() {
    let play = Play::onboarding("recovery that waits", Before::New).await;
    play.plant.sim.trouble(&mac(1), testkit::maas_sim::Trouble::NoDatasource, 2);
    let engine = play.plant.life(None).await;
    let mut turns = 0;
    play.lives_until(|job| {
        turns += 1;
        if turns % 20 == 0 {
            play.plant.sim.advance(Duration::from_secs(65 * 60));
        }
        job.stage == Some(JobStage::Maas(MaasStage::RecoverForDatasourceRetry))
    })
    .await;
    let rule = play.plant.sim.misbehave(Calls::method("GET", "/events/"), Misbehaviour::ResetBefore, 12);
    let job = play.with_maas_timeouts().await;
    assert_eq!(job.status, JobStatus::Completed, "{job:#?}");
    assert_eq!(play.plant.sim.hits(rule), 12, "it was kept from it");
    assert_eq!(play.plant.sim.hardware(&mac(1)).installs, 3, "the first, and two more");
    play.audited().await;
    play.over(Some(engine)).await;
}
