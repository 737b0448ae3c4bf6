//! Every kind of job disturbed after every journal entry, and before and during every task: the engine is killed there (and again in its next life), every
//! operator's action is taken there, with the engine gone or at work; its execution is cancelled or terminated past it;
//! its agent falls silent past the lease, is killed, or fails. After each: one sweep, then the audit; then what is
//! recommended is taken until the job has ended, and the audit once more.

use crate::audit::audit;
use crate::length;
use crate::strike::Strike;
use crate::world::{BY_HAND, Moment, Play, World, spelt};
use domain::Reason;
use domain::job::{JobStatus, START_WITHIN};
use domain::job_action::{JobAction, judge_action};
use domain::job_stage::JobKind;
use domain::stage::FailureClass;
use domain::task::{LEASE, TaskKind};
use std::time::Duration;
use store::execution;
use testkit::fleet::Database;
use testkit::pretend_agent::Answer;

/// Plays on one store before it is changed for a fresh one.
const PLAYS_PER_WORLD: usize = 40;

/// What happens while what was done is being taken back, with no engine there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    Act(JobAction),
    CancelExecution,
    TerminateExecution,
    /// Nobody comes for longer than a start may take.
    NobodyComes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturb {
    /// It is called off, or begun anew, and disturbed once more on the way back.
    TakenBack(JobAction, Back),
    /// So many lives of the engine end at the same count of entries; the last one goes on.
    Crash(usize),
    /// By an operator, with no engine there, or beside one at work.
    Act(JobAction),
    ActBeside(JobAction),
    /// Past the job, by the engine's own doors.
    CancelExecution,
    TerminateExecution,
    Silence,
    AgentKilled,
    TaskFails(FailureClass),
}

impl Disturb {
    fn kills(self) -> bool {
        match self {
            Disturb::Crash(_)
            | Disturb::Act(_)
            | Disturb::TakenBack(..)
            | Disturb::CancelExecution
            | Disturb::TerminateExecution => true,
            Disturb::ActBeside(_) | Disturb::Silence | Disturb::AgentKilled | Disturb::TaskFails(_) => false,
        }
    }
}

/// One undisturbed play: the moments that there are, with names for people.
async fn rehearse(world: &World, kind: JobKind) -> Vec<(Moment, String)> {
    let play = Play::start(world, kind, &format!("{} undisturbed", spelt(kind))).await;
    let strike = Strike::new(0, false);
    let engine = world.engine(Some(strike.observer()));
    strike.watch(&engine);
    engine.start().await.expect("starts");
    let (_, job) = play.rests().await;
    assert_eq!(job.status, JobStatus::Completed, "{}: {job:#?}", play.name);
    engine.stop().await;
    world.sweep().await;
    audit(&play).await;
    let entries = strike.seen().into_iter().enumerate().map(|(i, e)| (Moment::Entry(i + 1), e));
    let orders = play.agent.carried().into_iter().enumerate().flat_map(|(i, order)| {
        [Moment::Queued(i + 1), Moment::AtWork(i + 1)].map(|moment| (moment, order.kind.to_string()))
    });
    entries.chain(orders).collect()
}

async fn disturbed(world: &World, kind: JobKind, at: Moment, entry: &str, disturb: Disturb) {
    let name = format!("{}: {disturb:?} at {at:?} ({entry})", spelt(kind));
    let play = Play::start(world, kind, &name).await;
    let lives = if let Disturb::Crash(lives) = disturb { lives } else { 1 };
    let counted = if let Moment::Entry(count) = at { count } else { 0 };
    let (mut engine, mut strike) = begin_life(world, counted, disturb.kills()).await;
    for life in 1..=lives {
        let moment = if life == 1 { at } else { Moment::Entry(0) };
        play.live_until(&strike.struck, moment, world.patience()).await;
        // the rows may be seen before the engine tells of its entry
        if life == 1 {
            drop(tokio::time::timeout(std::time::Duration::from_secs(10), strike.struck.cancelled()).await);
        }
        // a later life may have fewer entries left than that
        assert!(strike.struck.is_cancelled() || life > 1, "{name}: never struck; seen were {:?}", strike.seen());
        if disturb.kills() && strike.struck.is_cancelled() {
            engine.kill();
            engine.ended().await;
        }
        if life < lives && strike.struck.is_cancelled() {
            (engine, strike) = begin_life(world, life, true).await;
        }
    }
    happens(&play, disturb).await;
    world.sweep().await;
    audit(&play).await;
    let last = if disturb.kills() { begin_life(world, 0, false).await.0 } else { engine.clone() };
    play.ends().await;
    last.stop().await;
    engine.stop().await;
    world.sweep().await;
    audit(&play).await;
}

async fn begin_life(world: &World, at: usize, kills: bool) -> (engine::Engine, std::sync::Arc<Strike>) {
    let strike = Strike::new(at, kills);
    let engine = world.engine(Some(strike.observer()));
    strike.watch(&engine);
    engine.start().await.expect("starts");
    (engine, strike)
}

async fn happens(play: &Play<'_>, disturb: Disturb) {
    match disturb {
        Disturb::Crash(_) => {}
        Disturb::Act(action) | Disturb::ActBeside(action) => acts(play, action).await,
        Disturb::TakenBack(action, back) => taken_back(play, action, back).await,
        Disturb::CancelExecution => ends_execution(play, false).await,
        Disturb::TerminateExecution => ends_execution(play, true).await,
        Disturb::Silence => {
            play.agent.falls_silent();
            let looks_after = play.world.reconciler();
            play.live(LEASE * 3).await;
            play.agent.speaks();
            play.live(LEASE).await;
            looks_after.stop().await;
        }
        Disturb::AgentKilled => play.agent.is_killed(),
        Disturb::TaskFails(class) => {
            for kind in TaskKind::ALL {
                play.agent.answers(kind, Answer::Fails { code: "WANTED".into(), class });
            }
            play.live(Duration::from_secs(60)).await;
        }
    }
}

/// Past the job, by the engine's own doors.
async fn ends_execution(play: &Play<'_>, terminate: bool) {
    let (engine, job) = (play.world.door.clone(), play.look().await.1);
    let id = job.execution_id;
    play.world
        .write(play.node.as_str(), move |tx| match execution::get_for_update(tx, &id)? {
            Some(e) if e.status.is_terminal() => Ok(()),
            Some(e) if terminate => engine.terminate(tx, &e, "mallory", "from outside"),
            Some(e) => engine.request_cancel(tx, &e, "mallory", "from outside"),
            None => Ok(()),
        })
        .await
        .unwrap_or_else(|e| panic!("{}: {e:?}", play.name));
}

async fn taken_back(play: &Play<'_>, action: JobAction, back: Back) {
    acts(play, action).await;
    if play.look().await.1.status == JobStatus::Running {
        // whoever had it is gone: the next one stops it, and is killed as soon as that is durable
        let ended = Strike::at_end();
        let engine = play.world.engine(Some(ended.observer()));
        ended.watch(&engine);
        engine.start().await.expect("starts");
        play.live_until(&ended.struck, Moment::Entry(0), play.world.patience()).await;
        engine.kill();
        engine.ended().await;
    }
    match back {
        Back::Act(action) => acts(play, action).await,
        Back::CancelExecution => ends_execution(play, false).await,
        Back::TerminateExecution => ends_execution(play, true).await,
        Back::NobodyComes => play.world.fleet.pass(START_WITHIN + Duration::from_secs(60)),
    }
}

/// Takes an action, whether or not it is allowed: then it is refused with those that are, and nothing has changed.
async fn acts(play: &Play<'_>, action: JobAction) {
    for again in [false, true] {
        let (node, job) = play.look().await;
        let verdict = judge_action(action, &job, node.status);
        match (play.act(action).await, verdict) {
            (Ok(_), _) => {}
            // the engine beside us may have moved it meanwhile
            (Err(e), verdict) => {
                assert_eq!(e.reason, Reason::ActionNotAllowed, "{}: {e:?}", play.name);
                let (node_then, job_then) = play.look().await;
                let changed = (job_then.version, node_then.version) != (job.version, node.version);
                assert!(verdict.is_err() || changed, "{}: judged {verdict:?} and refused: {e:?}", play.name);
                assert_eq!(job_then.status.is_terminal(), e.allowed.is_empty(), "{}: {e:?}", play.name);
            }
        }
        // the same once more is safe
        if again {
            break;
        }
    }
}

/// Plays each, on worlds that are changed now and then, so that none becomes large.
async fn play_all(database: Database, plays: Vec<(JobKind, Moment, String, Disturb)>) -> usize {
    let mut world = World::new(database);
    let count = plays.len();
    for (number, (kind, at, entry, disturb)) in plays.into_iter().enumerate() {
        if number % PLAYS_PER_WORLD == PLAYS_PER_WORLD - 1 {
            world.store().close();
            world = World::new(database);
        }
        disturbed(&world, kind, at, &entry, disturb).await;
    }
    world.store().close();
    count
}

/// Every moment of every kind, with what is to happen there.
async fn everywhere(database: Database, title: &str, at_least: usize, what: impl Fn(usize, Moment) -> Vec<Disturb>) {
    let world = World::new(database);
    let mut plays = Vec::new();
    for kind in BY_HAND {
        let moments = rehearse(&world, kind).await;
        for (number, (moment, entry)) in moments.iter().enumerate() {
            plays.extend(what(number, *moment).into_iter().map(|d| (kind, *moment, entry.clone(), d)));
        }
    }
    world.store().close();
    let count = play_all(database, plays).await;
    println!("jobs: {title}, {database:?}: {count} plays");
    assert!(count >= at_least, "{title}: only {count} plays");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_every_moment_and_again_in_the_next_life() {
    everywhere(Database::Memory, "crashes", 130, move |at, _| {
        let lives = if at % 2 == 0 { length() } else { 1 + length() };
        (1..=lives).map(Disturb::Crash).collect()
    })
    .await;
}

/// One in so many of the actions, others at each moment; with `JOBS_LENGTH` above one, all of them.
fn share(at: usize, one_in: usize) -> impl Iterator<Item = JobAction> {
    let all = JobAction::ALL.into_iter().enumerate();
    all.filter(move |(n, _)| length() > 1 || (n + at).is_multiple_of(one_in)).map(|(_, action)| action)
}

#[tokio::test(start_paused = true)]
async fn every_action_at_every_moment_with_the_engine_gone() {
    everywhere(Database::Memory, "actions", 200, |at, _| share(at, 4).map(Disturb::Act).collect()).await;
}

#[tokio::test(start_paused = true)]
async fn every_action_at_every_moment_beside_the_engine() {
    everywhere(Database::Memory, "actions beside", 110, |at, _| share(at, 7).map(Disturb::ActBeside).collect()).await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_ended_past_its_job_at_every_moment() {
    everywhere(Database::Memory, "ended past the job", 90, |at, _| {
        let both = vec![Disturb::CancelExecution, Disturb::TerminateExecution];
        if length() > 1 { both } else { vec![both[at % 2]] }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_silent_killed_or_failing_at_every_moment() {
    everywhere(Database::Memory, "the agent", 120, |_, moment| {
        let mut all = vec![Disturb::Silence];
        match moment {
            Moment::Entry(_) => {}
            Moment::Queued(_) => {
                all.extend([FailureClass::Transient, FailureClass::NeedsOperator].map(Disturb::TaskFails));
            }
            Moment::AtWork(_) => all.push(Disturb::AgentKilled),
        }
        all
    })
    .await;
}

/// At every twelfth moment; with `JOBS_LENGTH` above one, at all.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_taken_back_and_disturbed_on_the_way() {
    everywhere(Database::Memory, "taken back", 90, |at, _| {
        if length() == 1 && at % 12 != 1 {
            return vec![];
        }
        let mut backs = JobAction::ALL.map(Back::Act).to_vec();
        backs.extend([Back::CancelExecution, Back::TerminateExecution, Back::NobodyComes]);
        let first = if at % 2 == 0 { JobAction::Cancel } else { JobAction::RestartClean };
        backs.into_iter().map(|back| Disturb::TakenBack(first, back)).collect()
    })
    .await;
}

/// A sample; with `JOBS_LENGTH` above one, everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_on_postgres() {
    everywhere(Database::Postgres, "a sample", 20, |at, _| {
        let actions = JobAction::ALL;
        if length() > 1 {
            let mut all = actions.map(Disturb::Act).to_vec();
            all.extend([Disturb::Crash(1), Disturb::TerminateExecution]);
            return all;
        }
        match at % 8 {
            0 => vec![Disturb::Crash(1)],
            3 => vec![Disturb::Act(actions[at % actions.len()])],
            _ => vec![],
        }
    })
    .await;
}
