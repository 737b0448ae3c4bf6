//! A lane's sweeps: one goes over all machines of the lane, page by page, so many looks at a time.

use crate::options::{FAREWELL, PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use crate::record::{Read, Recorded};
use crate::watch::{Due, Periods, Watch};
use domain::observation::Lane;
use domain::{Error, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::sweep::{self, Claim, Sweep};
use store::{Caller, Tx, machine, switch};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

type Looked = Result<Result<Recorded, Error>, JoinError>;

/// Sweeps until told to stop.
pub(crate) async fn run(core: Arc<Core>, lane: Lane) {
    let mut watch = Watch::default();
    loop {
        let pause = match turn(&core, lane, &mut watch).await {
            Ok(pause) => pause,
            Err(e) if e.reason == Reason::ShuttingDown => return,
            Err(e) => {
                tracing::warn!(error = %e, lane = lane.as_str(), "sweeping");
                TROUBLE_PAUSE
            }
        };
        tokio::select! {
            biased;
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause + jitter(&core, pause)) => {}
        }
    }
}

/// Up to a tenth more: many servers and lanes that started together do not go on in step.
fn jitter(core: &Core, pause: Duration) -> Duration {
    let random = core.store.ambient().uuid().as_u64_pair().1 & 0xffff;
    pause.mul_f64(random as f64 / f64::from(0xffff_u32) / 10.0)
}

/// Sweeps if it is time, and says when to look again.
async fn turn(core: &Arc<Core>, lane: Lane, watch: &mut Watch) -> Result<Duration, Error> {
    let (row, empty) =
        core.store.read(move |tx| Ok((sweep::get(tx, lane)?, machine::list_lane(tx, lane, "", 1)?.is_empty()))).await?;
    let period = core.options.period;
    if empty {
        // nothing to confirm, nothing to write
        return Ok(period);
    }
    let after = match due(core, watch, row.as_ref()) {
        // others may be faster, and then it is their round that counts
        Due::In(left) if core.store.is_shared() => return Ok(left.min(period / 4)),
        Due::In(left) => return Ok(left),
        Due::Now { after } => after,
    };
    let (sweeper, stale_after) = (core.options.sweeper.clone(), core.options.stale_after);
    let claim = move |tx: &mut Tx<'_>| sweep::claim(tx, lane, after, &sweeper, stale_after);
    let round = match core.store.write(&Caller::reconciler(), lane.as_str(), claim).await? {
        Claim::Taken { round } => round,
        Claim::Lost => return Ok(Duration::ZERO),
        Claim::SchemaMoved(version) => {
            tracing::warn!(version, "a newer server has migrated the database: this one observes no more");
            core.stop.cancel();
            return Ok(Duration::ZERO);
        }
    };
    // after the claim, so that two rounds never begin within one period
    let started = Instant::now();
    watch.began(round, started);
    sweep_once(core, lane, round).await?;
    let took = started.elapsed();
    if took > period {
        tracing::warn!(
            lane = lane.as_str(),
            seconds = took.as_secs(),
            "a sweep took longer than observe.period_seconds; observe.concurrency raises how many looks are made at a time"
        );
    }
    Ok(period.saturating_sub(took))
}

fn due(core: &Core, watch: &mut Watch, row: Option<&Sweep>) -> Due {
    let periods = Periods { period: core.options.period, take_over_after: core.options.take_over_after() };
    watch.judge(row, &core.options.sweeper, !core.store.is_shared(), Instant::now(), &periods)
}

/// A look that takes longer keeps its deadline, but gives its place to the next: when a site goes dark, the
/// machines that answer are not looked at any later for it.
const PROMPT: Duration = Duration::from_secs(1);
/// So many times `observe.concurrency` may wait beyond that.
const OVERDUE_FACTOR: usize = 16;

/// Looks that have given up their place.
#[derive(Default)]
struct Overdue {
    count: AtomicUsize,
    grew: Notify,
}

/// One of them, until it is dropped.
struct Waiting(Arc<Overdue>);

impl Overdue {
    fn one_more(self: &Arc<Self>) -> Waiting {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.grew.notify_one();
        Waiting(self.clone())
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The looks of one sweep that are in the air.
struct Looks {
    core: Arc<Core>,
    lane: Lane,
    round: u64,
    running: JoinSet<Result<Recorded, Error>>,
    overdue: Arc<Overdue>,
    beat_at: Instant,
    /// Looks whose result is not in the store.
    failed: usize,
}

/// Why a sweep ends early.
enum Cut {
    Stopped,
    TakenOver,
    Failed(Error),
}

impl From<Error> for Cut {
    fn from(e: Error) -> Self {
        Cut::Failed(e)
    }
}

async fn sweep_once(core: &Arc<Core>, lane: Lane, round: u64) -> Result<(), Error> {
    let mut looks = Looks {
        core: core.clone(),
        lane,
        round,
        running: JoinSet::new(),
        overdue: Arc::default(),
        beat_at: Instant::now() + core.options.period,
        failed: 0,
    };
    let stopped = match looks.over_all().await {
        Ok(()) => false,
        // another server need not wait until it takes us for dead
        Err(Cut::Stopped) => true,
        Err(Cut::TakenOver) => {
            tracing::warn!(lane = lane.as_str(), round, "another server has taken over this sweep");
            return Ok(());
        }
        Err(Cut::Failed(e)) => return Err(e),
    };
    if looks.failed > 0 {
        tracing::warn!(
            lane = lane.as_str(),
            failed = looks.failed,
            "some looks could not be kept; the next sweep repeats them"
        );
    }
    let complete = !stopped && looks.failed == 0;
    let finish = move |tx: &mut Tx<'_>| sweep::finish(tx, lane, round, complete);
    let caller = Caller::reconciler();
    let finishing = core.store.write(&caller, lane.as_str(), finish);
    let finished =
        if stopped { tokio::time::timeout(FAREWELL, finishing).await.unwrap_or(Ok(false)) } else { finishing.await };
    finished.map(drop)
}

impl Looks {
    async fn over_all(&mut self) -> Result<(), Cut> {
        let (mut after, lane) = (String::new(), self.lane);
        loop {
            let from = after.clone();
            let (page, frozen) = self
                .core
                .store
                .read(move |tx| Ok((machine::list_lane(tx, lane, &from, PAGE)?, switch::frozen(tx)?.is_some())))
                .await?;
            let Some(last) = page.last() else { break };
            after = last.id.to_string();
            for machine in page {
                while !self.has_room() {
                    self.wait().await?;
                }
                let (core, read) = (self.core.clone(), Read { machine, frozen });
                let overdue = self.overdue.clone();
                self.running.spawn(async move {
                    let mut look = std::pin::pin!(core.look_at(&read));
                    let looked = match tokio::time::timeout(PROMPT, look.as_mut()).await {
                        Ok(looked) => looked,
                        Err(_) => {
                            let _waiting = overdue.one_more();
                            look.await
                        }
                    };
                    if matches!(looked, Ok(Recorded::Outdated)) {
                        core.store.signals().look_at(&read.machine.id);
                    }
                    looked
                });
            }
        }
        while !self.running.is_empty() {
            self.wait().await?;
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let (most, overdue) = (self.core.options.concurrency, self.overdue.count());
        self.running.len().saturating_sub(overdue) < most && overdue < most * OVERDUE_FACTOR
    }

    /// Until one look has ended, or given up its place.
    async fn wait(&mut self) -> Result<(), Cut> {
        loop {
            tokio::select! {
                biased;
                () = self.core.stop.cancelled() => return Err(Cut::Stopped),
                () = tokio::time::sleep_until(self.beat_at) => self.beat().await?,
                () = self.overdue.grew.notified(), if !self.has_room() => return Ok(()),
                looked = self.running.join_next() => {
                    self.ended(looked);
                    return Ok(());
                }
            }
        }
    }

    fn ended(&mut self, looked: Option<Looked>) {
        match looked {
            None | Some(Ok(Ok(_))) => {}
            Some(Ok(Err(e))) => {
                tracing::debug!(error = %e, "keeping what a look has shown");
                self.failed += 1;
            }
            Some(Err(e)) => {
                tracing::error!(error = %e, "a look died");
                self.failed += 1;
            }
        }
    }

    async fn beat(&mut self) -> Result<(), Cut> {
        self.beat_at = Instant::now() + self.core.options.period;
        let (lane, round) = (self.lane, self.round);
        let beat = move |tx: &mut Tx<'_>| sweep::beat(tx, lane, round);
        let ours = self.core.store.write(&Caller::reconciler(), lane.as_str(), beat).await?;
        if ours { Ok(()) } else { Err(Cut::TakenOver) }
    }
}
