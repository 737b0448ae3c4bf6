//! Which record a machine is: looked for by whatever names it, in every spelling, and made only where everything was seen. The
//! site is observed beside the jobs, as it is in life.

use crate::plant::{self, Plant, mac};
use crate::play::{Before, Play, side_by_side};
use domain::identity::swapped_uuid;
use domain::job::JobStatus;
use domain::job_stage::JobStage;
use domain::maas_stage::MaasStage;
use domain::stage::FailureClass;
use service::MaasWish;
use std::time::Duration;

const SERIAL: &str = "SN525400000001";
const UUID: &str = "4d570000-0000-4000-8000-525400000001";

fn soon_seen(site: &mut domain::site::Site) {
    site.policy.poll = Duration::from_secs(1);
}

/// A MAC that MAAS does not know yet: the record that is there has only another card.
fn by_other_names(change: impl FnOnce(&mut MaasWish)) -> MaasWish {
    let mut wish = MaasWish { macs: vec![crate::play::fabric_mac(9)], ..Plant::wish(1) };
    change(&mut wish);
    wish
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_second_record_is_made_of_a_machine_that_is_known_by_another_name() {
    let found = |name: &'static str, wish: MaasWish| async move {
        let play = Play::onboarding_of(name, Before::Ready, soon_seen, wish).await;
        let there = play.plant.sim.with_mac(&mac(1))[0].system_id.clone();
        // nobody has looked at the site yet: it waits, and says for what
        let engine = play.plant.life(None).await;
        let mut turns = 0;
        loop {
            let (_, job) = play.look().await;
            assert!(job.status.is_under_way(), "{}: {job:#?}", play.name);
            if play.plant.waits_for(&job).await.contains("a look at all machines of site") {
                break;
            }
            turns += 1;
            assert!(turns < 1_500, "{}: {}", play.name, play.plant.waits_for(&job).await);
            play.plant.turn().await;
        }
        assert_eq!(play.plant.sim.machines().len(), 1, "{}", play.name);
        let observer = play.plant.observer();
        play.completes().await;
        assert_eq!(play.system_id().await, there, "{}: the one that is there is taken", play.name);
        assert_eq!(play.plant.sim.machines().len(), 1, "{}", play.name);
        play.audited().await;
        observer.stop().await;
        play.over(Some(engine)).await;
    };
    let swapped = swapped_uuid(UUID).expect("a UUID").to_uppercase();
    side_by_side(
        "known by another name",
        vec![
            found("by serial", by_other_names(|wish| wish.serial_number = SERIAL.to_lowercase())),
            found("by UUID", by_other_names(|wish| wish.system_uuid = UUID.to_uppercase())),
            found("by UUID, the other way round", by_other_names(|wish| wish.system_uuid = swapped)),
        ],
    )
    .await;
}

/// Without a MAC it is found, or not, and never made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_maas_knows_is_onboarded_by_serial_uuid_or_id() {
    let onboarded = |name: &'static str, wish: fn(&str) -> MaasWish, before: Before| async move {
        let play = Play::plant(testkit::maas_sim::Pace::Instant, soon_seen).await;
        let id = play.sim.as_somebody().create("found", &mac(1), &plant::bmc_address(1));
        if before == Before::Ready {
            play.sim.as_somebody().commission(&id);
            play.sim.finish(&id);
        }
        let observer = play.observer();
        let play = Play::on(play, name, wish(&id), Some(id.clone())).await;
        let engine = play.plant.life(None).await;
        play.completes().await;
        assert_eq!(play.system_id().await, id, "{name}");
        assert_eq!(play.plant.sim.machines().len(), 1, "{name}");
        play.audited().await;
        observer.stop().await;
        play.over(Some(engine)).await;
    };
    fn only(change: impl FnOnce(&mut MaasWish)) -> MaasWish {
        let mut wish = MaasWish { site: plant::SITE.to_owned(), ..MaasWish::default() };
        change(&mut wish);
        wish
    }
    side_by_side(
        "by what MAAS knows",
        vec![
            onboarded("--serial", |_| only(|wish| wish.serial_number = SERIAL.to_owned()), Before::Ready),
            onboarded("--uuid", |_| only(|wish| wish.system_uuid = UUID.to_owned()), Before::Ready),
            onboarded("--from-maas, Ready", |id| only(|wish| wish.system_id = id.to_owned()), Before::Ready),
            onboarded("--from-maas, New", |id| only(|wish| wish.system_id = id.to_owned()), Before::New),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serial_number_that_maas_does_not_have_is_told_when_everything_was_seen() {
    let plant = Play::plant(testkit::maas_sim::Pace::Instant, soon_seen).await;
    let observer = plant.observer();
    let wish = MaasWish { site: plant::SITE.to_owned(), serial_number: "SNNOWHERE".to_owned(), ..MaasWish::default() };
    let play = Play::on(plant, "nobody's serial", wish, None).await;
    let engine = play.plant.life(None).await;
    let job = play.fails_with("NOT_IN_MAAS").await;
    assert_eq!(job.status, JobStatus::FailedManualIntervention);
    observer.stop().await;
    play.over(Some(engine)).await;
}

/// Somebody makes another record of the same machine after it was found: nothing is written to its disks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_duplicate_stops_it_before_anything_is_written() {
    let doubled = |stage: MaasStage, by_mac: bool| async move {
        let by = if by_mac { "MAC" } else { "serial" };
        let name = format!("a late duplicate by {by} before {}", stage.as_str());
        let play = Play::onboarding_with(&name, Before::New, soon_seen).await;
        play.killed_at(JobStage::Maas(stage)).await;
        let id = play.system_id().await;
        let twin = play.plant.sim.as_somebody().create("twin", &plant::mac(77), "10.9.9.9");
        let observer = match by_mac {
            true => {
                play.plant.sim.as_somebody().give_mac(&twin, &mac(1));
                None
            }
            false => {
                play.plant.sim.as_somebody().change_identity(&twin, None, SERIAL);
                let observer = play.plant.observer();
                play.plant.seen(&twin).await;
                Some(observer)
            }
        };
        let before = play.plant.sim.calls();
        let engine = play.plant.life(None).await;
        let job = play.fails_with("CONFLICTING_CANDIDATES").await;
        assert_eq!((job.status, job.stage), (JobStatus::FailedManualIntervention, Some(JobStage::Maas(stage))));
        let failure = job.failure.expect("told");
        assert_eq!(failure.class, FailureClass::Conflict);
        assert!(failure.message.contains(&twin) && failure.message.contains(&id), "{}: {failure:?}", play.name);
        let changes = |calls: &std::collections::BTreeMap<String, u64>| {
            calls.iter().filter(|(call, _)| !call.starts_with("GET")).map(|(_, n)| *n).sum::<u64>()
        };
        assert_eq!(changes(&before), changes(&play.plant.sim.calls()), "{}: nothing was asked for", play.name);
        assert_eq!(play.plant.open_findings(&play.node).await.len(), 1, "{}", play.name);
        play.plant.sim.as_somebody().delete(&twin);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        play.audited().await;
        if let Some(observer) = observer {
            observer.stop().await;
        }
        play.over(Some(engine)).await;
    };
    side_by_side(
        "late duplicates",
        vec![
            doubled(MaasStage::ConfigureStorage, true),
            doubled(MaasStage::DeployViaMaas, true),
            doubled(MaasStage::ConfigureStorage, false),
            doubled(MaasStage::DeployViaMaas, false),
        ],
    )
    .await;
}

/// Behind the back of a job that stands still, too: a finding, which goes when it was put back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_moved_while_its_job_stands_still_is_a_finding() {
    let rule = domain::site::DiskRule { model: "NoSuchModel".to_owned(), ..Default::default() };
    let change = |site: &mut domain::site::Site| {
        soon_seen(site);
        site.profiles[0].boot_disk = rule;
    };
    let play = Play::onboarding_with("moved while it stands still", Before::Ready, change).await;
    let engine = play.plant.life(None).await;
    let observer = play.plant.observer();
    play.fails_with("BOOT_DISK_NOT_FOUND").await;
    let id = play.system_id().await;
    let drifts = |wanted: bool| {
        let play = &play;
        async move {
            for _ in 0..3_000 {
                let open = play.plant.open_findings(&play.node).await;
                let drift = open.iter().find(|f| f.kind == domain::finding::FindingKind::MaasDrift);
                if drift.is_some() == wanted {
                    return drift.map(|f| f.message.clone()).unwrap_or_default();
                }
                play.plant.fleet.pass(Duration::from_secs(5));
                play.plant.turn().await;
            }
            panic!("{}: drift is not {wanted}", play.name);
        }
    };
    play.plant.sim.as_somebody().deploy(&id, "noble");
    play.plant.sim.finish(&id);
    let told = drifts(true).await;
    assert!(told.contains("configure_storage") && told.contains("Deployed"), "{told}");
    play.plant.sim.as_somebody().release(&id);
    play.plant.sim.finish(&id);
    drifts(false).await;
    observer.stop().await;
    play.over(Some(engine)).await;
}
