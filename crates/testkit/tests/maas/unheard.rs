//! What was asked for and never heard of, what somebody made in its place, and what nobody told of: none of it is lost, and
//! none of it is taken for ours.

use crate::plant::{self, SITE, mac};
use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{JobKind, JobStage};
use domain::maas_stage::MaasStage;
use domain::node::NodeStatus;
use service::MaasWish;
use testkit::maas_sim::{Calls, Misbehaviour, Pace, status};

/// Called off after the record was asked for and before anything was seen of it: it is looked for, also if it comes late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_made_without_an_answer_is_removed_again() {
    let called_off = |what: Misbehaviour, made: usize| async move {
        let play = Play::onboarding(&format!("{what:?} of the create, called off"), Before::Nothing).await;
        play.plant.sim.misbehave(Calls::method("POST", "/machines/").with_op(""), what, 1);
        // it is looked for once, and is not there; then nobody is told what is
        play.plant.sim.misbehave_after(Calls::reads(), 1, Misbehaviour::Refuse(503, "busy".to_owned()), 1_000_000);
        let engine = play.plant.life(None).await;
        let asked = |sim: &testkit::maas_sim::MaasSim| sim.calls().get("POST machines").copied().unwrap_or(0) > 0;
        play.lives_until(|_| asked(&play.plant.sim)).await;
        play.act(JobAction::Cancel).await.expect("is called off");
        play.lives_until(|job| job.status == JobStatus::Compensating).await;
        assert_eq!(play.plant.sim.with_mac(&mac(1)).len(), made, "{}", play.name);
        play.plant.sim.behave();
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::Cancelled, "{}: {job:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let plays = vec![called_off(Misbehaviour::ResetAfter, 1), called_off(Misbehaviour::ResetBefore, 0)];
    side_by_side("creates that were not heard of", plays).await;
}

/// Somebody makes a record of the machine while nothing was heard of ours: both are told of, none is chosen, and ours goes
/// when the job is called off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_records_that_came_at_the_same_moment_are_told_of() {
    let play = Play::onboarding("both were made", Before::Nothing).await;
    play.plant.sim.misbehave(Calls::method("POST", "/machines/").with_op(""), Misbehaviour::ResetAfter, 1);
    play.plant.sim.misbehave_after(Calls::reads(), 1, Misbehaviour::Refuse(503, "busy".to_owned()), 1_000_000);
    let engine = play.plant.life(None).await;
    play.lives_until(|_| !play.plant.sim.with_mac(&mac(1)).is_empty()).await;
    let theirs = play.plant.sim.as_somebody().create("theirs", &plant::mac(77), "10.9.9.9");
    play.plant.sim.as_somebody().give_mac(&theirs, &mac(1));
    play.plant.sim.behave();
    let job = play.fails_with("CONFLICTING_CANDIDATES").await;
    assert!(job.failure.is_some_and(|f| f.message.contains(&theirs)));
    play.act(JobAction::Cancel).await.expect("is called off");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Cancelled, "{job:#?}");
    let left: Vec<String> = play.plant.sim.with_mac(&mac(1)).into_iter().map(|m| m.system_id).collect();
    assert_eq!(left, [theirs], "ours is gone, theirs is not");
    play.over(Some(engine)).await;
}

/// Released and deployed again with the very key that is ours: that is somebody's system now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deployed_anew_with_our_own_key_is_not_erased() {
    let anew = |kind: JobKind| async move {
        let play = Play::of(kind, &format!("{kind}: deployed anew with our key"), Before::New).await;
        play.killed_at(JobStage::Maas(MaasStage::ReleaseMaasNode)).await;
        let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
        let somebody = play.plant.sim.as_account(&account);
        somebody.release(&id);
        play.plant.sim.finish(&id);
        somebody.deploy(&id, "noble");
        play.plant.sim.finish(&id);
        let engine = play.plant.life(None).await;
        let job = play.fails_with("STATE_DISAGREES").await;
        assert!(job.failure.is_some_and(|f| f.message.contains("deployed for this node")), "{}", play.name);
        assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 0, "{}", play.name);
        assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED, "{}", play.name);
        play.over(Some(engine)).await;
    };
    side_by_side("deployed anew", vec![anew(REIMAGE), anew(FULL)]).await;
}

/// Also after this very job has had the machine erased: what came since is not what it was to erase.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deployed_after_our_erasure_is_not_erased_again() {
    let play = Play::of(REIMAGE, "deployed after our erasure", Before::New).await;
    play.killed_at(JobStage::Maas(MaasStage::ConfigureStorage)).await;
    let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
    let erases = play.plant.sim.hardware(&mac(1)).erases;
    assert_eq!(erases, 1, "its own");
    play.plant.sim.as_account(&account).deploy(&id, "noble");
    play.plant.sim.finish(&id);
    let engine = play.plant.life(None).await;
    for _ in 0..2 {
        play.fails_with("STATE_DISAGREES").await;
        play.act(JobAction::Rerun).await.expect("from its beginning");
    }
    let job = play.fails_with("STATE_DISAGREES").await;
    assert_eq!(job.stage, Some(JobStage::Maas(MaasStage::ReleaseMaasNode)), "{job:#?}");
    assert_eq!(play.plant.sim.hardware(&mac(1)).erases, erases);
    assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED);
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deployed_anew_with_our_own_key_is_not_released_when_the_job_is_called_off() {
    let play = Play::onboarding("deployed anew, called off", Before::Ready).await;
    play.killed_at(JobStage::WaitForAgentEnrollment).await;
    let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
    let somebody = play.plant.sim.as_account(&account);
    somebody.release(&id);
    play.plant.sim.finish(&id);
    somebody.deploy(&id, "noble");
    play.plant.sim.finish(&id);
    play.act(JobAction::Cancel).await.expect("is called off");
    let engine = play.plant.life(None).await;
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.status), (JobStatus::Cancelled, NodeStatus::Quarantined), "{job:#?}");
    assert_eq!(play.plant.sim.machine(&id).expect("is there").status, status::DEPLOYED);
    play.over(Some(engine)).await;
}

/// Deleted, and enlisted anew by somebody: another record, of which nothing is true that was of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_record_of_the_machine_inherits_nothing() {
    let play = Play::onboarding("another record", Before::Nothing).await;
    play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
    let first = play.system_id().await;
    let somebody = play.plant.sim.as_somebody();
    somebody.delete(&first);
    let second = somebody.create("anew", &mac(1), &plant::bmc_address(1));
    somebody.commission(&second);
    play.plant.sim.finish(&second);
    let engine = play.plant.life(None).await;
    play.fails_with("MACHINE_GONE").await;
    play.plant.no_agent_comes(true);
    play.act(JobAction::Rerun).await.expect("begins again");
    play.lives_until(|job| job.stage == Some(JobStage::WaitForAgentEnrollment)).await;
    assert_eq!(play.system_id().await, second);
    let laid = play.plant.sim.calls().into_iter().find(|(call, _)| call.ends_with(" set_storage_layout"));
    assert!(laid.is_some_and(|(_, count)| count >= 2), "its disks are laid out, too");
    play.act(JobAction::Cancel).await.expect("is called off");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Cancelled, "{job:#?}");
    assert_eq!(play.plant.sim.machine(&second).expect("somebody made it").status, status::READY);
    play.over(Some(engine)).await;
}

/// A record that was there is told what one that we make is told, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wished_of_a_record_that_was_there_is_told_to_maas() {
    for (before, told) in [(Before::New, 1), (Before::Ready, 1), (Before::Nothing, 0)] {
        let play = Play::onboarding("told its power", before).await;
        let engine = play.plant.life(None).await;
        play.completes().await;
        let puts = play.plant.sim.calls().get("PUT machines/*").copied().unwrap_or(0);
        assert_eq!(puts, told, "{}: {:?}", play.name, play.plant.sim.calls());
        if before == Before::New {
            assert!(play.plant.sim.with_mac(&mac(1))[0].hostname.starts_with("node-"), "it is called as was wished");
        }
        play.audited().await;
        play.over(Some(engine)).await;
    }
}

/// What is placed there, or a lock in MAAS, keeps a machine from being erased, whatever was drained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_use_or_locked_is_not_erased() {
    let guarded = |kind: JobKind, code: &'static str| async move {
        let play = Play::of(kind, &format!("{kind}: {code}"), Before::New).await;
        play.killed_at(JobStage::Maas(MaasStage::ReleaseMaasNode)).await;
        let (id, account) = (play.system_id().await, play.plant.sim.account().to_owned());
        let set = |on: bool| match code {
            "STILL_ASSIGNED" => play.plant.fleet.placed.place(play.node.as_str(), on.then_some("allocation-7")),
            _ => play.plant.sim.as_account(&account).tell(&id, if on { "lock" } else { "unlock" }, &[]),
        };
        set(true);
        let engine = play.plant.life(None).await;
        let job = play.fails_with(code).await;
        assert_eq!(job.status, JobStatus::FailedManualIntervention, "{}", play.name);
        assert!(job.failure.is_some_and(|f| f.message.contains("'millwright job")), "{}", play.name);
        assert_eq!(play.plant.sim.hardware(&mac(1)).erases, 0, "{}", play.name);
        set(false);
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    };
    let plays = vec![
        guarded(REIMAGE, "STILL_ASSIGNED"),
        guarded(FULL, "STILL_ASSIGNED"),
        guarded(REIMAGE, "LOCKED"),
        guarded(FULL, "LOCKED"),
    ];
    side_by_side("guards before an erasure", plays).await;
}

/// What is placed on a node is released through whoever placed it, and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_placed_is_released_by_whoever_placed_it() {
    let mut play = Play::onboarding("placed", Before::New).await;
    let engine = play.plant.life(None).await;
    play.completes().await;
    play.plant.fleet.placed.place(play.node.as_str(), Some("allocation-7"));
    play.goes_on_with(FULL).await;
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.status), (JobStatus::Completed, NodeStatus::Deleted), "{job:#?}");
    let released = play.plant.fleet.placed.released();
    assert_eq!(released.len(), 1, "{released:?}");
    assert!(released[0].contains("allocation-7") && released[0].contains(job.id.as_str()), "{released:?}");
    play.over(Some(engine)).await;
}

/// A pattern for the fabric's interfaces never takes the one that the machine boots from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_interface_that_it_boots_from_is_not_the_fabrics() {
    let change = |site: &mut domain::site::Site| {
        site.profiles[0].roce[0].interface = "*".to_owned();
        // brought up, and given no address
        site.profiles[0].roce[0].mode = domain::site::LinkMode::LinkUp;
        site.profiles[0].roce[0].subnet = String::new();
    };
    let play = Play::onboarding_with("any interface", Before::New, change).await;
    let engine = play.plant.life(None).await;
    play.completes().await;
    let there = play.plant.sim.with_mac(&mac(1))[0].clone();
    assert_eq!(there.links.get("eth1"), Some(&vec!["link_up".to_owned()]), "{:?}", there.links);
    // what is AUTO has an address of its own once it is deployed
    assert_eq!(there.links.get("eth0"), Some(&vec!["static".to_owned()]), "{:?}", there.links);
    play.over(Some(engine)).await;
}

/// What MAAS calls a machine goes into what it is told, and so must be a name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_whose_name_is_none_is_not_deployed() {
    const NAME: &str = "x\"\nruncmd:\n  - [reboot]\n\u{1b}[31m{{ bundle_base64 }}$(reboot)'";
    let plant = Play::plant(Pace::Instant, |_| {}).await;
    let id = plant.sim.as_somebody().create("found", &mac(1), &plant::bmc_address(1));
    let wish = MaasWish { site: SITE.to_owned(), system_id: id.clone(), ..MaasWish::default() };
    let play = Play::on(plant, "a hostile name", wish, Some(id.clone())).await;
    play.killed_at(JobStage::Maas(MaasStage::DeployViaMaas)).await;
    let mut said = play.plant.sim.json(&id).expect("a machine");
    said["hostname"] = NAME.into();
    said["fqdn"] = NAME.into();
    play.plant.sim.misbehave(Calls::method("GET", "").of(&id), Misbehaviour::Say(said.to_string()), 1_000_000);
    let engine = play.plant.life(None).await;
    let job = play.fails_with("HOSTNAME_UNUSABLE").await;
    assert_eq!((play.kind, job.status), (ONBOARDING, JobStatus::FailedManualIntervention));
    assert!(!format!("{:?}", job.failure).contains('\u{1b}'), "{:?}", job.failure);
    assert!(!play.plant.sim.calls().keys().any(|call| call.ends_with(" deploy")), "nothing is deployed");
    play.plant.sim.behave();
    let (_, ended) = play.ends().await;
    assert_eq!(ended.status, JobStatus::Completed, "{ended:#?}");
    play.audited().await;
    play.over(Some(engine)).await;
}
