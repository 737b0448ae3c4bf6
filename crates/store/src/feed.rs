//! Following the log: one tail for the whole process, its runs folded once, shared by every watcher. A
//! watcher that falls behind what is kept in memory reads from the database: it lags, it never loses.

use crate::backup;
use crate::error::{DbError, DbFailure, Failure, TxResult};
use crate::log::{self, LogRow};
use crate::rising::{Follower, Rising};
use crate::run;
use crate::store::Store;
use crate::tx::Tx;
use domain::run::Run;
use domain::{Error, RunId, Timestamp};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEvent {
    pub sequence: u64,
    pub at: Timestamp,
    /// The run as it was at that moment.
    pub run: Arc<Run>,
    pub message: String,
}

/// One row of the log; for a run's, with the run as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    pub row: Arc<LogRow>,
    pub run: Option<RunEvent>,
}

/// Events kept in memory for those who follow closely.
const RING_MAX: usize = 2048;
/// Folded runs kept by the tail; any other is folded again when it moves.
const FOLDS_MAX: usize = 4096;
const BATCH: usize = 512;
/// How often to look for what other processes wrote.
const POLL: Duration = Duration::from_millis(100);
/// How often to look all the same where nobody else can write.
const IDLE: Duration = Duration::from_secs(5);
/// Pause after the database failed.
const TROUBLE: Duration = Duration::from_secs(1);

pub struct Feed {
    store: Store,
    ring: Mutex<Ring>,
    head: Rising,
}

#[derive(Default)]
struct Ring {
    /// The ring knows every event after this sequence …
    after: u64,
    /// … up to this one.
    up_to: u64,
    events: VecDeque<LogEvent>,
}

impl Feed {
    /// Begins at the present head. [`Feed::tail`] must run for events to arrive.
    pub async fn new(store: Store) -> Result<Arc<Self>, Error> {
        let head = store.read(log::range).await?.head;
        let ring = Ring { after: head, up_to: head, events: VecDeque::new() };
        Ok(Arc::new(Self { store, ring: Mutex::new(ring), head: Rising::new(head) }))
    }

    /// Changes when there is more to read.
    pub fn head(&self) -> Follower {
        self.head.follow()
    }

    /// Follows the log until the store closes.
    pub async fn tail(self: Arc<Self>) {
        let mut folds = HashMap::new();
        let mut grew = self.store.signals().log_grew();
        let mut last = self.head.follow().look();
        loop {
            grew.look();
            let known = std::mem::take(&mut folds);
            match self.store.snapshot(move |tx| read_events(tx, last, known)).await {
                Ok(batch) => {
                    folds = batch.folds;
                    if batch.up_to > last {
                        last = batch.up_to;
                        self.publish(batch.events, last);
                        continue;
                    }
                }
                Err(e) if e.reason == domain::Reason::ShuttingDown => return,
                Err(e) => {
                    tracing::warn!(error = %e, "following the log");
                    tokio::time::sleep(TROUBLE).await;
                    continue;
                }
            }
            let pause = if self.store.is_shared() { POLL } else { IDLE };
            // either way the answer is to look again
            drop(tokio::time::timeout(pause, grew.grew()).await);
        }
    }

    fn publish(&self, events: Vec<LogEvent>, up_to: u64) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.extend(events);
        ring.up_to = up_to;
        while ring.events.len() > RING_MAX {
            if let Some(gone) = ring.events.pop_front() {
                ring.after = gone.row.sequence;
            }
        }
        drop(ring);
        self.head.raise_to(up_to);
    }

    /// The events after a sequence (some of them, in order), and where to go on.
    pub async fn after(&self, sequence: u64) -> Result<(Vec<LogEvent>, u64), Error> {
        if let Some(found) = self.recent(sequence) {
            return Ok(found);
        }
        let batch = self.store.snapshot(move |tx| read_events(tx, sequence, HashMap::new())).await?;
        Ok((batch.events, batch.up_to))
    }

    fn recent(&self, sequence: u64) -> Option<(Vec<LogEvent>, u64)> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if sequence < ring.after {
            return None;
        }
        let start = ring.events.partition_point(|e| e.row.sequence <= sequence);
        let events: Vec<LogEvent> = ring.events.iter().skip(start).take(BATCH).cloned().collect();
        let up_to = if events.len() == BATCH {
            events.last().map_or(sequence, |e| e.row.sequence)
        } else {
            ring.up_to.max(sequence)
        };
        Some((events, up_to))
    }
}

struct Batch {
    events: Vec<LogEvent>,
    up_to: u64,
    folds: HashMap<RunId, Run>,
}

fn read_events(tx: &mut Tx<'_>, after: u64, mut folds: HashMap<RunId, Run>) -> TxResult<Batch> {
    let rows = log::after(tx, after, BATCH)?;
    let up_to = rows.last().map_or(after, |row| row.sequence);
    if let Some(first) = rows.first()
        && first.sequence != after + 1
        && !backup::is_leap(first)
    {
        return Err(DbError::Defect(format!("the log jumps from {after} to {}", first.sequence)).into());
    }
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let run = match run::is_run_row(&row).then(|| event(tx, &row, &mut folds)).transpose() {
            Ok(run) => run,
            // one row that does not fold must not silence all the others
            Err(Failure::Db(DbFailure(DbError::Defect(m)))) => {
                tracing::error!(sequence = row.sequence, error = %m, "a log row does not fold");
                None
            }
            Err(e) => return Err(e),
        };
        events.push(LogEvent { row: Arc::new(row), run });
    }
    if folds.len() > FOLDS_MAX {
        folds.clear();
    }
    Ok(Batch { events, up_to, folds })
}

fn event(tx: &mut Tx<'_>, row: &LogRow, folds: &mut HashMap<RunId, Run>) -> TxResult<RunEvent> {
    let id = RunId::from_text(row.subject.clone());
    let before = match folds.remove(&id) {
        Some(run) if run.version + 1 == row.version => Some(run),
        _ => run::fold(tx, &id, row.sequence - 1)?,
    };
    let (run, change) = run::fold_row(before, row)?;
    if !run.phase.is_terminal() {
        folds.insert(id, run.clone());
    }
    Ok(RunEvent { sequence: row.sequence, at: row.at, run: Arc::new(run), message: change.describe() })
}
