//! The harness: rehearses a run, declares the points it could be disturbed at, and disturbs it at each.

use crate::case::Case;
use crate::lane::{Lane, Played};
use crate::script::{Fault, Ledger, Moment, Script, What};
use crate::tap::Seen;
use futures::FutureExt as _;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use testkit::fleet::Database;

/// How many lanes work at the same time where waits are real.
const LANES: usize = 12;

pub struct Harness {
    database: Database,
    ledger: Ledger,
    title: String,
}

/// A script to be played, of which case.
pub type Job = (Case, Script);

impl Harness {
    pub fn new(database: Database, title: &str) -> Self {
        Self { database, ledger: Ledger::default(), title: format!("{title}, {database:?}") }
    }

    /// Plays undisturbed or half-disturbed scripts, only to see what there is to disturb.
    async fn rehearse(&self, jobs: Vec<Job>) -> Vec<(Job, Played)> {
        play_all(self.database, jobs).await
    }

    /// Plays each script; every one is a point, and must have struck with all its faults.
    async fn strike(&mut self, jobs: Vec<Job>) -> Vec<(Job, Played)> {
        jobs.iter().for_each(|(_, script)| self.ledger.declare(&script.name));
        let played = play_all(self.database, jobs).await;
        for ((_, script), played) in &played {
            if played.struck.len() == script.faults() {
                self.ledger.hit(&script.name);
            }
        }
        played
    }

    /// Disturbs each case at every moment of its undisturbed run for which `what` has something.
    pub async fn everywhere(&mut self, cases: &[Case], what: impl Fn(&Seen) -> Vec<What>) -> Vec<(Job, Played)> {
        let undisturbed = cases.iter().map(|c| (*c, Script::undisturbed(c.title()))).collect();
        let rehearsed = self.rehearse(undisturbed).await;
        let jobs = rehearsed.iter().flat_map(|(job, played)| disturbed(job, worth(&played.seen), &what)).collect();
        self.strike(jobs).await
    }

    /// Disturbs what was played already once more, after the last fault of its last life: at so many moments at
    /// most for which `what` has something.
    pub async fn again(
        &mut self,
        played: &[(Job, Played)],
        at_most: usize,
        what: impl Fn(&Seen) -> Vec<What>,
    ) -> Vec<(Job, Played)> {
        let jobs = played.iter().filter(|(job, _)| !is_half_a_commit(&job.1.name)).flat_map(|(job, played)| {
            let last = job.1.lives.last().and_then(|l| l.faults.last()).map(|f| f.at);
            let after = last.and_then(|at| played.seen.iter().position(|s| s.moment == at)).map_or(0, |p| p + 1);
            let moments = worth(&played.seen[after..]).filter(|s| !is_half_a_commit(&s.name) && !what(s).is_empty());
            let moments = moments.take(at_most);
            disturbed(job, moments, &what)
        });
        let jobs = jobs.collect();
        self.strike(jobs).await
    }

    /// Somebody cancels before the first engine, and after each crash of these.
    pub async fn canceled(&mut self, cases: &[Case], crashed: &[(Job, Played)]) -> Vec<(Job, Played)> {
        let before = cases.iter().map(|c| (*c, Script::undisturbed(c.title()).then_canceled()));
        let after = crashed.iter().map(|((case, script), _)| (*case, script.then_canceled()));
        let jobs = before.chain(after).collect();
        self.strike(jobs).await
    }

    pub fn close(self, at_least: usize) -> usize {
        self.ledger.close(&self.title, at_least)
    }
}

fn disturbed<'a>(job: &Job, seen: impl IntoIterator<Item = &'a Seen>, what: &impl Fn(&Seen) -> Vec<What>) -> Vec<Job> {
    let (case, script) = job;
    let faults = |s: &Seen| -> Vec<Job> {
        let with = |w: What| (*case, script.and(Fault { at: s.moment, what: w }, &s.name));
        what(s).into_iter().map(with).collect()
    };
    seen.into_iter().flat_map(faults).collect()
}

/// The end of a step is committed together with what comes next: the second crash of a pair there would be the
/// same crash once more.
fn is_half_a_commit(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|last| last.contains("(stage_done "))
}

/// Of a row of the same looks, as a long wait makes them, the first two and the last.
fn worth(seen: &[Seen]) -> impl Iterator<Item = &Seen> {
    let same = |a: &Seen, b: &Seen| !a.acts && !a.method.is_empty() && a.method == b.method && a.stage == b.stage;
    seen.iter().enumerate().filter_map(move |(at, s)| {
        let within = at >= 2 && same(&seen[at - 1], s) && same(&seen[at - 2], s);
        let goes_on = seen.get(at + 1).is_some_and(|next| same(next, s));
        (!(within && goes_on)).then_some(s)
    })
}

pub fn is_entry(seen: &Seen) -> bool {
    matches!(seen.moment, Moment::Entry(_))
}

/// In the order of the jobs. On the virtual clock one after the other, on the real one in lanes side by side.
async fn play_all(database: Database, jobs: Vec<Job>) -> Vec<(Job, Played)> {
    let lanes = if database == Database::Memory { 1 } else { LANES.min(jobs.len()) };
    let queue: Arc<Mutex<VecDeque<(usize, Job)>>> = Arc::new(Mutex::new(jobs.into_iter().enumerate().collect()));
    let mut working = tokio::task::JoinSet::new();
    for _ in 0..lanes {
        let queue = queue.clone();
        working.spawn(async move {
            let mut lane = Lane::open(database).await;
            let (mut done, mut failed) = (Vec::new(), Vec::new());
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some((number, (case, script))) = next else { break };
                match AssertUnwindSafe(lane.play(&case, &script)).catch_unwind().await {
                    Ok(played) => done.push((number, ((case, script), played))),
                    // the others are still worth knowing; what failed has said why
                    Err(_) => {
                        failed.push(script.name);
                        lane.close();
                        lane = Lane::open(database).await;
                    }
                }
            }
            lane.close();
            (done, failed)
        });
    }
    let (mut all, mut all_failed) = (Vec::new(), Vec::new());
    while let Some(joined) = working.join_next().await {
        let (done, failed) = joined.expect("a lane ends");
        all.extend(done);
        all_failed.extend(failed);
    }
    assert!(all_failed.is_empty(), "{} points failed: {all_failed:#?}", all_failed.len());
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, played)| played).collect()
}
