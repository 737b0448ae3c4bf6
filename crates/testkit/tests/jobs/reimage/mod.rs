//! The reimage of a node whose machine our own network boot installs: the whole way, every failure of it, and every crash.

mod by_network;
mod plant;
mod starts;

use crate::length;
use crate::strike::Strike;
use domain::job::{Job, JobStatus};
use domain::job_action::JobAction;
use domain::job_stage::JobStage;
use domain::node::NodeStatus;
use domain::run::RunPhase;
use domain::{JobId, Reason};
use engine::Engine;
use plant::{AGENT_URL, KIND, Plant, bundle_in};
use service::agents::AgentSetup;
use starts::Fault;
use std::sync::Arc;
use testkit::fleet::{Database, admin, start};
use workflow::job::Learned;

fn at(stage: JobStage) -> impl FnMut(&Job) -> bool {
    move |job| job.stage == Some(stage)
}

/// Until a run of it is at work.
async fn installing(plant: &Plant, job: &JobId, name: &str) {
    plant.stalls(true);
    let seeds = plant.seeds.lock().expect("a lock").len();
    plant.lives_until(job, name, |_| plant.seeds.lock().expect("a lock").len() > seeds).await;
}

async fn whole_way(database: Database) {
    let plant = Plant::with(database, plant::setup, "#cloud-config\nusers: [default]\n").await;
    plant.serves_machines().await;
    let engine = plant.life(None).await;
    let job = plant.reimage().await.expect("it begins");
    let again = plant.reimage().await.expect("the same");
    assert_eq!(job, again, "what is under way is not begun again");
    let done = plant.completes(&job, "whole way").await;
    let names: Vec<JobStage> = done.done.iter().map(|d| d.stage).collect();
    assert_eq!(names, KIND.stages());
    let runs = plant.audited(&job, "whole way").await;
    assert_eq!((runs.len(), runs[0].phase), (1, RunPhase::Succeeded), "{runs:#?}");
    let learned = Learned::read(&done.learned);
    assert_eq!((learned.bundles, learned.runs), (1, vec![runs[0].id.to_string()]));
    // what the installed system was told, beside the workflow's own words
    let seed = plant.seeds.lock().expect("a lock").pop().expect("a seed");
    assert!(seed.starts_with("Content-Type: multipart/mixed"), "{seed}");
    let bundle = bundle_in(&seed).expect("a bundle");
    assert_eq!(bundle["node_id"], plant.node.as_str());
    let token = bundle["token"].as_str().expect("a token").to_owned();
    assert!(!done.learned.contains(&token) && !done.parameters.contains(&token));
    let order = plant.boot_node().await.order.expect("an order");
    assert_eq!(order.user_data_ref, format!("job:{job}"), "the order names the job, and holds no secret");
    // nobody comes with it a second time
    let refused = plant.comes_with_seed(&seed).await.expect_err("it was used");
    assert_eq!(refused.reason, Reason::BootstrapTokenInvalid);
    if let Some(file) = plant.fleet.database_file() {
        let folder = file.parent().expect("a folder");
        for entry in std::fs::read_dir(folder).expect("reads").filter_map(Result::ok) {
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!found, "the token is stored in {}", entry.path().display());
        }
    }
    // and once more
    let next = plant.reimage().await.expect("it begins");
    plant.completes(&next, "once more").await;
    plant.over(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_way_on_sqlite() {
    whole_way(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_way_on_postgres() {
    whole_way(Database::Postgres).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_fails_is_the_stages_failure_and_another_one_is_its_way_on() {
    let name = "the run fails";
    let plant = Plant::new(Database::Memory).await;
    let engine = plant.life(None).await;
    plant.installs_badly(true);
    let job = plant.reimage().await.expect("it begins");
    let (node, failed) = plant.fails_with(&job, name, "INSTALL_FAILED").await;
    assert_eq!((failed.stage, node.status), (Some(JobStage::RepaveMachine), NodeStatus::Retired));
    let run = plant.all_runs().await[0].clone();
    let message = failed.failure.expect("a failure").message;
    for words in ["no space left on the disk", run.id.as_str(), "millwright job retry_stage"] {
        assert!(message.contains(words), "{words} is not in {message}");
    }
    assert!(!node.unclean.is_empty(), "what was begun to be overwritten is not proven clean");
    plant.installs_badly(false);
    plant.act(&job, JobAction::RetryStage).await.expect("is tried again");
    let done = plant.completes(&job, name).await;
    let runs = plant.audited(&job, name).await;
    let learned = Learned::read(&done.learned);
    assert_eq!((runs.len(), learned.bundles, learned.runs.len()), (2, 2, 2), "each run has a bundle of its own");
    plant.over(engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_cancels_its_run() {
    for restart in [false, true] {
        let name = format!("cancelled, begun anew: {restart}");
        let plant = Plant::new(Database::Memory).await;
        let engine = plant.life(None).await;
        let job = plant.reimage().await.expect("it begins");
        installing(&plant, &job, &name).await;
        let seed = plant.seeds.lock().expect("a lock").last().cloned().expect("a seed");
        let action = if restart { JobAction::RestartClean } else { JobAction::Cancel };
        plant.act(&job, action).await.expect("is stopped");
        if restart {
            plant.lives_until(&job, &name, |job| job.status == JobStatus::Running && job.attempt > 1).await;
            plant.stalls(false);
            plant.completes(&job, &name).await;
        } else {
            let (node, ended) = plant.rests(&job, &name).await;
            assert_eq!((ended.status, node.status), (JobStatus::Cancelled, NodeStatus::Retired), "{ended:#?}");
        }
        let refused = plant.comes_with_seed(&seed).await.expect_err("it was withdrawn");
        assert_eq!(refused.reason, Reason::BootstrapTokenInvalid);
        let runs = plant.audited(&job, &name).await;
        let cancelled = runs.iter().filter(|run| run.phase == RunPhase::Canceled).count();
        assert_eq!((cancelled, runs.len()), (1, 1 + usize::from(restart)), "{name}: {runs:#?}");
        if !restart {
            // what was called off is not stuck
            plant.stalls(false);
            let next = plant.reimage().await.expect("it begins");
            plant.completes(&next, &name).await;
        }
        plant.over(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_agent_is_not_taken_for_what_was_installed() {
    let name = "another bundle";
    let plant = Plant::new(Database::Memory).await;
    let engine = plant.life(None).await;
    plant.no_agent_comes(true);
    let job = plant.reimage().await.expect("it begins");
    plant.lives_until(&job, name, at(JobStage::WaitForAgentEnrollment)).await;
    plant.installed_by_hand().await;
    let (_, failed) = plant.fails_with(&job, name, "NO_BUNDLE").await;
    assert_eq!(failed.stage, Some(JobStage::WaitForAgentEnrollment));
    // a person may say that it is the one; else the machine is installed again
    plant.act(&job, JobAction::AdoptObservedState).await.expect("is taken as it is");
    let (node, ended) = plant.rests(&job, name).await;
    assert_eq!((ended.status, node.status), (JobStatus::Reconciled, NodeStatus::Active), "{ended:#?}");
    assert_eq!(plant.audited(&job, name).await.len(), 1);
    plant.over(engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_brings_no_agent_is_told_of_and_installed_again() {
    let name = "no agent comes";
    let plant = Plant::new(Database::Memory).await;
    let engine = plant.life(None).await;
    plant.no_agent_comes(true);
    let job = plant.reimage().await.expect("it begins");
    let (node, _) = plant.fails_with(&job, name, "AGENT_NOT_COME").await;
    assert_eq!(node.status, NodeStatus::Retired);
    plant.no_agent_comes(false);
    plant.act(&job, JobAction::RestartClean).await.expect("begins anew");
    plant.completes(&job, name).await;
    assert_eq!(plant.audited(&job, name).await.len(), 2);
    plant.over(engine).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_come_to_an_end_is_refused_before_anything_is_drained() {
    let bare = |heartbeat| AgentSetup { heartbeat, ..AgentSetup::default() };
    let plant = Plant::with(Database::Memory, bare, "").await;
    let refused = plant.reimage().await.expect_err("nobody knows where its agent comes from");
    assert_eq!(refused.reason, Reason::CapabilityMissing);
    assert!(refused.message.contains("agents.agent_url") && !refused.message.contains(AGENT_URL), "{refused:?}");
    let engine = plant.life(None).await;
    plant.over(engine).await;

    let plant = Plant::new(Database::Memory).await;
    let engine = plant.life(None).await;
    let mut wish = start(plant::MACHINE, "REPAVE", "r-1");
    wish.parameters.insert("user_data_ref".to_owned(), "job:job_1".to_owned());
    let refused = plant.service.start_run(&admin(), wish).await.expect_err("a job's words are its own runs'");
    assert_eq!(refused.reason, Reason::InvalidField, "{refused:?}");
    // while the job holds the node nobody else's run meets it
    let job = plant.reimage().await.expect("it begins");
    installing(&plant, &job, "held").await;
    let mut wish = start(plant::MACHINE, "REPAVE", "r-2");
    wish.parameters.insert("image".to_owned(), "debian".to_owned());
    plant.service.start_run(&admin(), wish).await.expect_err("it is held");
    plant.stalls(false);
    plant.completes(&job, "held").await;
    plant.over(engine).await;
}

async fn life(plant: &Plant, at: usize, kills: bool) -> (Engine, Arc<Strike>) {
    let strike = Strike::new(at, kills);
    let engine = plant.engine(Some(strike.observer()));
    strike.watch(&engine);
    engine.start().await.expect("starts");
    (engine, strike)
}

/// What an undisturbed one goes through, the run's entries among the job's.
async fn rehearsed() -> Vec<String> {
    let plant = Plant::new(Database::Memory).await;
    let job = plant.reimage().await.expect("it begins");
    let (engine, strike) = life(&plant, 0, false).await;
    plant.completes(&job, "undisturbed").await;
    plant.over(engine).await;
    strike.seen()
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_every_journal_entry_never_makes_two_runs() {
    let entries = rehearsed().await;
    let mut plays = 0;
    for (number, entry) in entries.iter().enumerate() {
        let lives = 1 + (number + 1) % 2 + length() - 1;
        let name = format!("killed at {} ({entry}), {lives} times", number + 1);
        let plant = Plant::new(Database::Memory).await;
        let job = plant.reimage().await.expect("it begins");
        let mut count = number + 1;
        for _ in 0..lives {
            let (engine, strike) = life(&plant, count, true).await;
            plant.lives_until(&job, &name, |_| strike.struck.is_cancelled()).await;
            let struck = strike.struck.is_cancelled();
            engine.kill();
            engine.ended().await;
            if !struck {
                break;
            }
            count = 1 + number % 3;
        }
        let last = plant.life(None).await;
        plant.completes(&job, &name).await;
        assert_eq!(plant.audited(&job, &name).await.len(), 1, "{name}");
        assert_eq!(plant.seeds.lock().expect("a lock").iter().filter(|seed| !seed.is_empty()).count(), 1, "{name}");
        plant.over(last).await;
        plays += 1;
    }
    println!("reimage: {plays} crashes");
    assert!(plays >= 30, "only {plays} entries");
}

/// Between the bundle and the run, and between the run and the word of it, there is no journal entry.
#[tokio::test(start_paused = true)]
async fn a_start_whose_answer_is_lost_is_found_again() {
    for (fault, killed, cancelled) in [
        (Fault::Before, false, false),
        (Fault::After, false, false),
        (Fault::HangsBefore, true, false),
        (Fault::HangsAfter, true, false),
        (Fault::HangsBefore, true, true),
        (Fault::HangsAfter, true, true),
    ] {
        let name = format!("{fault:?}, killed: {killed}, cancelled: {cancelled}");
        let plant = Plant::new(Database::Memory).await;
        plant.starts_badly(fault);
        let mut engine = plant.life(None).await;
        let job = plant.reimage().await.expect("it begins");
        plant.lives_until(&job, &name, |_| plant.has_started_badly()).await;
        if killed {
            engine.kill();
            engine.ended().await;
            engine = plant.engine(None);
        }
        if cancelled {
            plant.act(&job, JobAction::Cancel).await.expect("is called off");
        }
        if killed {
            engine.start().await.expect("starts");
        }
        if cancelled {
            let (_, ended) = plant.rests(&job, &name).await;
            assert_eq!(ended.status, JobStatus::Cancelled, "{name}: {ended:#?}");
            let runs = plant.audited(&job, &name).await;
            assert_eq!(runs.len(), usize::from(fault == Fault::HangsAfter), "{name}: {runs:#?}");
        } else {
            plant.completes(&job, &name).await;
            assert_eq!(plant.audited(&job, &name).await.len(), 1, "{name}");
        }
        plant.over(engine).await;
    }
}

/// One in so many of the actions, others at each entry; with `JOBS_LENGTH` above one, all of them.
#[tokio::test(start_paused = true)]
async fn every_action_at_every_journal_entry_leads_on() {
    let entries = rehearsed().await;
    let mut plays = 0;
    for (number, entry) in entries.iter().enumerate() {
        for (n, action) in JobAction::ALL.into_iter().enumerate() {
            if length() == 1 && (n * 5 + number) % 6 != 0 {
                continue;
            }
            let beside = (n + number) % 4 == 0;
            let name = format!("{action} at {} ({entry}), beside the engine: {beside}", number + 1);
            let plant = Plant::new(Database::Memory).await;
            let job = plant.reimage().await.expect("it begins");
            let (engine, strike) = life(&plant, number + 1, !beside).await;
            plant.lives_until(&job, &name, |_| strike.struck.is_cancelled()).await;
            if !beside {
                engine.kill();
                engine.ended().await;
            }
            for _ in 0..2 {
                if let Err(e) = plant.act(&job, action).await {
                    assert_eq!(e.reason, Reason::ActionNotAllowed, "{name}: {e:?}");
                    assert!(!e.allowed.contains(&action.to_string()), "{name}: {e:?}");
                }
            }
            let last = if beside { engine } else { plant.life(None).await };
            let (node, ended) = plant.ends(&job, &name).await;
            plant.audited(&job, &name).await;
            if ended.status == JobStatus::Cancelled {
                // what was called off is not stuck
                assert_ne!(node.status, NodeStatus::Draining, "{name}");
                let next = plant.reimage().await.unwrap_or_else(|e| panic!("{name}: not begun again: {e:?}"));
                plant.ends(&next, &name).await;
            }
            plant.over(last).await;
            plays += 1;
        }
    }
    println!("reimage: {plays} actions");
    assert!(plays >= 40, "only {plays} plays");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_ended_past_it_goes_on_with_the_run_that_it_had() {
    let name = "terminated";
    let plant = Plant::new(Database::Memory).await;
    let engine = plant.life(None).await;
    let job = plant.reimage().await.expect("it begins");
    installing(&plant, &job, name).await;
    plant.terminates(&job).await;
    plant.fails_with(&job, name, "ENDED_OUTSIDE").await;
    plant.stalls(false);
    plant.act(&job, JobAction::Resume).await.expect("goes on");
    plant.completes(&job, name).await;
    assert_eq!(plant.audited(&job, name).await.len(), 1);
    plant.over(engine).await;
}
