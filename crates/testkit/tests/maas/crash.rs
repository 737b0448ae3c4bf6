//! Every kind of job on a MAAS disturbed everywhere: the engine is killed after every journal entry (and again in its next
//! life), every operator's action is taken there, every call to MAAS goes wrong in every way that a MAAS has. Then what is
//! recommended is taken until the job has ended, and everything is audited.

use crate::length;
use crate::plant::Plant;
use crate::play::{Before, FULL, ONBOARDING, Play, REIMAGE, side_by_side};
use crate::strike::Strike;
use domain::Reason;
use domain::job::JobStatus;
use domain::job_action::JobAction;
use domain::job_stage::{JobKind, Mode};
use domain::node::NodeStatus;
use engine::Engine;
use std::sync::Arc;
use testkit::fleet::Database;
use testkit::maas_sim::log::{By, Kind};
use testkit::maas_sim::{Calls, Misbehaviour, Pace};

/// The jobs of a machine's life, one after the other on the same node.
const LIFE: [JobKind; 3] = [ONBOARDING, REIMAGE, FULL];

async fn life(play: &Play, at: usize, kills: bool) -> (Engine, Arc<Strike>) {
    let strike = Strike::new(at, kills);
    let engine = play.plant.engine(Some(strike.observer()));
    strike.watch(&engine);
    engine.start().await.expect("starts");
    (engine, strike)
}

/// Until it is struck, or rests without it.
async fn struck(play: &Play, strike: &Strike) -> bool {
    play.lives_until(|_| strike.struck.is_cancelled()).await;
    strike.struck.is_cancelled()
}

/// What an undisturbed job goes through: its journal, and the changes that it asks MAAS for.
struct Rehearsed {
    kind: JobKind,
    before: Before,
    entries: Vec<String>,
    /// By method, what kind of thing it is about, and operation.
    changes: Vec<(String, &'static str, String)>,
    reads: usize,
}

async fn rehearse(before: Before) -> Vec<Rehearsed> {
    let mut play = Play::onboarding("undisturbed", before).await;
    let mut all = Vec::new();
    for kind in LIFE {
        if kind != ONBOARDING {
            play.goes_on_with(kind).await;
        }
        let from = play.plant.sim.log_len();
        let (engine, strike) = life(&play, 0, false).await;
        play.completes().await;
        engine.stop().await;
        play.audited().await;
        let log = play.plant.sim.log();
        let ours = log[from..].iter().filter(|entry| matches!(entry.by, By::Account(_)));
        let (mut changes, mut reads) = (Vec::new(), 0);
        for entry in ours {
            match &entry.kind {
                Kind::Request { method, .. } if method == "GET" => reads += 1,
                Kind::Request { method, path, op, .. } => {
                    let kinds = ["/tags/", "/interfaces/", "/blockdevices/", "/machines/"];
                    let about = kinds.into_iter().find(|kind| path.contains(kind)).unwrap_or("");
                    changes.push((method.clone(), about, op.clone()));
                }
                _ => {}
            }
        }
        all.push(Rehearsed { kind, before, entries: strike.seen(), changes, reads });
    }
    play.over(None).await;
    all
}

/// One machine's life, with every job of it killed at its entry of that number.
async fn crashed(before: Before, at: usize, lives: usize) {
    goes_through(Play::onboarding(&format!("killed at {at}, {lives} times"), before).await, at, lives).await;
}

async fn crashed_on_postgres(at: usize, lives: usize) {
    let plant = Play::plant_on(Database::Postgres, Pace::Instant, |_| {}).await;
    let name = format!("on PostgreSQL, killed at {at}, {lives} times");
    goes_through(Play::on(plant, &name, Plant::wish(1), None).await, at, lives).await;
}

async fn goes_through(mut play: Play, at: usize, lives: usize) {
    for kind in LIFE {
        if kind != ONBOARDING {
            play.goes_on_with(kind).await;
        }
        let mut count = at;
        for _ in 0..lives {
            let (engine, strike) = life(&play, count, true).await;
            if !struck(&play, &strike).await {
                engine.stop().await;
                break;
            }
            engine.ended().await;
            count = 1 + at % 3;
        }
        let last = play.plant.life(None).await;
        play.completes().await;
        play.audited().await;
        last.stop().await;
    }
    play.over(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_after_every_journal_entry_loses_and_doubles_nothing() {
    let rehearsed = rehearse(Before::Nothing).await;
    let most = rehearsed.iter().map(|job| job.entries.len()).max().unwrap_or(0);
    for job in &rehearsed {
        println!("maas: {} has {} entries", job.kind, job.entries.len());
    }
    let mut plays = Vec::new();
    // every other entry; with MAAS_LENGTH above one, all of them
    for at in (1..=most).step_by(if length() > 1 { 1 } else { 2 }) {
        for n in 0..length() {
            let lives = if (at + n) % 5 == 0 { 2 + n } else { 1 + n };
            plays.push(crashed(Before::of(at + n), at, lives));
        }
    }
    assert!(side_by_side("crashes", plays).await >= 20);
}

/// The whole life on the other database, undisturbed and with some crashes in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_postgres() {
    let points = [(0, 1), (8, 1), (18, 2), (30, 1)];
    side_by_side("on PostgreSQL", points.map(|(at, lives)| crashed_on_postgres(at, lives)).into()).await;
}

/// What can go wrong with one call.
fn wrong(number: usize) -> Misbehaviour {
    match number % 9 {
        0 => Misbehaviour::HangAfter,
        1 => Misbehaviour::FailAfter,
        2 => Misbehaviour::Conflict("Something else is going on.".to_owned()),
        3 => Misbehaviour::TryAgain,
        4 => Misbehaviour::Refuse(503, "No rack controller can be reached.".to_owned()),
        5 => Misbehaviour::ResetAfter,
        6 => Misbehaviour::Garbage,
        7 => Misbehaviour::HangBefore,
        _ => Misbehaviour::ResetBefore,
    }
}

/// One machine's life, in which the call of that number goes wrong in each of its jobs.
async fn answered_badly(rehearsed: Arc<Vec<Rehearsed>>, number: usize, how: usize, read: bool) {
    let what = if read { "read" } else { "change" };
    let before = rehearsed[0].before;
    let mut play = Play::onboarding(&format!("{what} {number} goes wrong: {:?}", wrong(how)), before).await;
    for job in rehearsed.iter() {
        if job.kind != ONBOARDING {
            play.goes_on_with(job.kind).await;
        }
        let rule = if read {
            (number < job.reads)
                .then(|| play.plant.sim.misbehave_after(Calls::method("GET", ""), number, wrong(how), 1))
        } else {
            job.changes.get(number).map(|change| {
                let first = job.changes[..number].iter().filter(|c| *c == change).count();
                let (method, about, op) = change;
                let calls = Calls::method(method, about).with_op(op);
                play.plant.sim.misbehave_after(calls, first, wrong(how), 1)
            })
        };
        let engine = play.plant.life(None).await;
        let (_, ended) = play.ends().await;
        assert_eq!(ended.status, JobStatus::Completed, "{}: {ended:#?}", play.name);
        if let Some(rule) = rule.filter(|_| !read) {
            assert_eq!(play.plant.sim.hits(rule), 1, "{}: it went well in {}", play.name, job.kind);
        }
        play.plant.sim.behave();
        play.audited().await;
        engine.stop().await;
    }
    play.over(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_to_maas_may_go_wrong_in_every_way() {
    let rehearsed = Arc::new(rehearse(Before::Nothing).await);
    for job in rehearsed.iter() {
        println!("maas: {} asks for {:?} and reads {} times", job.kind, job.changes, job.reads);
    }
    let most = rehearsed.iter().map(|job| job.changes.len()).max().unwrap_or(0);
    let reads = rehearsed.iter().map(|job| job.reads).max().unwrap_or(0);
    let mut plays = Vec::new();
    for number in 0..most {
        let ways = if length() > 1 { (0..9).collect() } else { vec![number * 4] };
        plays.extend(ways.into_iter().map(|how| answered_badly(rehearsed.clone(), number, how, false)));
    }
    let some = (0..reads).filter(|n| length() > 1 || n % 12 == 3);
    plays.extend(some.map(|number| answered_badly(rehearsed.clone(), number, number * 5 + 1, true)));
    assert!(side_by_side("answers gone wrong", plays).await >= 15);
}

/// An action at one journal entry, with no engine there or beside one at work.
async fn acted(kind: JobKind, at: usize, entry: String, action: JobAction, beside: bool) {
    let way = if beside { "beside the engine" } else { "with the engine gone" };
    let mut play = Play::of(kind, &format!("{kind}: {action} at entry {at} ({entry}), {way}"), Before::of(at)).await;
    let (engine, strike) = life(&play, at, !beside).await;
    if !struck(&play, &strike).await {
        // it went another way than the one before it, and had fewer
        play.ends().await;
    }
    if !beside {
        engine.stop().await;
    }
    for _ in 0..2 {
        let (_, job) = play.look().await;
        match play.act(action).await {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.reason, Reason::ActionNotAllowed, "{}: {e:?}", play.name);
                assert!(!e.allowed.contains(&action.to_string()), "{}: {e:?}", play.name);
                assert!(beside || job.status.is_terminal() == e.allowed.is_empty(), "{}: {e:?}", play.name);
            }
        }
    }
    let last = if beside { engine.clone() } else { play.plant.life(None).await };
    let (node, job) = play.ends().await;
    play.audited().await;
    if job.status == JobStatus::Cancelled && node.status != NodeStatus::Deleted {
        // what was called off is not stuck: the node goes for good, or is made anew
        play.called_off_node_can_go().await;
    }
    play.over(Some(last)).await;
}

/// Which actions at which entries: one in so many of all, others at each.
async fn every_action(kind: JobKind, one_in: usize, beside: bool) {
    let rehearsed = rehearse(Before::Nothing).await;
    let job = rehearsed.into_iter().find(|job| job.kind == kind).expect("rehearsed");
    let mut plays = Vec::new();
    for (at, entry) in job.entries.iter().enumerate() {
        for (n, action) in JobAction::ALL.into_iter().enumerate() {
            if length() > 1 || (n * 5 + at).is_multiple_of(one_in) {
                plays.push(acted(kind, at + 1, entry.clone(), action, beside));
            }
        }
    }
    let way = if beside { "beside the engine" } else { "with the engine gone" };
    assert!(side_by_side(&format!("actions in {kind} {way}"), plays).await >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_action_at_every_stage_of_an_onboarding() {
    every_action(ONBOARDING, 17, false).await;
    every_action(ONBOARDING, 53, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_action_at_every_stage_of_a_reimage() {
    every_action(REIMAGE, 19, false).await;
    every_action(REIMAGE, 67, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_action_at_every_stage_of_a_full_decommission() {
    every_action(FULL, 17, false).await;
}

/// Modes that ask nothing of MAAS, on a node that is of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_maas_is_cleaned_without_it() {
    let kinds = [JobKind::Decommission(Mode::SoftReset), JobKind::Decommission(Mode::StorageCleanup)];
    let cleaned = |kind: JobKind, at: usize| async move {
        let play = Play::of(kind, &format!("{kind}, killed at {at}"), Before::Ready).await;
        let from = play.plant.sim.log_len();
        let (engine, strike) = life(&play, at, true).await;
        assert!(struck(&play, &strike).await, "{}: {:?}", play.name, strike.seen());
        engine.ended().await;
        let last = play.plant.life(None).await;
        play.completes().await;
        play.audited().await;
        let asked = play.plant.sim.log()[from..].iter().filter(|e| matches!(e.by, By::Account(_))).count();
        assert_eq!(asked, 0, "{}: MAAS has nothing to do with it", play.name);
        play.over(Some(last)).await;
    };
    let plays = kinds.into_iter().flat_map(|kind| [2, 5, 8].map(|at| (kind, at))).map(|(kind, at)| cleaned(kind, at));
    side_by_side("cleaned without MAAS", plays.collect()).await;
}
