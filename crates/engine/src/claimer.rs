//! Takes due executions and gives each to a worker, as many as there are free.

use crate::engine::Core;
use crate::lease::Lease;
use crate::options::CLAIM_MAX;
use crate::sight::{self, execution_span};
use crate::worker;
use domain::{Error, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use store::execution::{self, Execution, Status};
use store::{Caller, switch};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

struct Claimed {
    executions: Vec<Execution>,
    next: Option<Timestamp>,
}

/// Claims until told to stop, then waits for the workers to reach their next checkpoint.
pub(crate) async fn run(core: Arc<Core>, lease: Arc<Lease>, claiming: CancellationToken) {
    let free = Arc::new(Semaphore::new(core.options.workers));
    let mut workers = JoinSet::new();
    let mut cancels = core.store.signals().cancels();
    // by a time of its own: where work never ceases to come, no pause is ever slept through
    let mut look_at = Instant::now() + core.options.poll;
    let mut more = false;
    loop {
        let room = free.available_permits().min(CLAIM_MAX);
        let mut pause = core.options.poll;
        if room > 0 && lease.remaining() > core.options.call_timeout {
            match claim(&core, &lease, room, more).await {
                Ok(claimed) => {
                    sight::claimed(&claimed.executions);
                    more = claimed.executions.len() == room;
                    for execution in claimed.executions {
                        start(&core, &lease, &free, &mut workers, execution).await;
                    }
                    if more {
                        pause = Duration::ZERO;
                    } else if let Some(next) = claimed.next.filter(|next| *next > core.store.ambient().now()) {
                        // what is due and was not taken is somebody else's, or not for a session like ours
                        pause = pause.min(next.since(core.store.ambient().now()));
                    }
                }
                Err(e) => tracing::warn!(error = %e, "claiming work"),
            }
        }
        tokio::select! {
            biased;
            () = claiming.cancelled() => break,
            () = lease.lost.cancelled() => break,
            id = cancels.recv() => match id {
                Ok(id) => core.cancel_here(&id),
                // missed some: the rows tell
                Err(_) => look_at = Instant::now(),
            },
            Some(_) = workers.join_next(), if !workers.is_empty() => {}
            () = core.store.signals().work_ready() => {}
            () = tokio::time::sleep_until(look_at.min(Instant::now() + pause)) => {}
        }
        if Instant::now() >= look_at {
            look_at_own(&core, &lease, &free, &mut workers).await;
            look_at = Instant::now() + core.options.poll;
        }
    }
    while workers.join_next().await.is_some() {}
}

/// `more`: the last claim found as much as there was room for, so there is no need to look first; the look
/// would wait behind the reads of all that was claimed.
async fn claim(core: &Core, lease: &Lease, room: usize, more: bool) -> Result<Claimed, Error> {
    if !more {
        // an idle look costs no write
        let (next, now) = core.store.read(|tx| Ok((execution::next_wake(tx)?, tx.now()))).await?;
        if next.is_none_or(|next| next > now) {
            return Ok(Claimed { executions: Vec::new(), next });
        }
    }
    let session = lease.id.clone();
    let caller = Caller::engine();
    let claimed = core.store.write(&caller, "claims", move |tx| {
        if switch::frozen(tx)?.is_some() {
            return Ok(Claimed { executions: Vec::new(), next: None });
        }
        let executions = execution::claim(tx, &session, room)?;
        Ok(Claimed { executions, next: execution::next_wake(tx)? })
    });
    claimed.await
}

async fn start(
    core: &Arc<Core>,
    lease: &Arc<Lease>,
    free: &Arc<Semaphore>,
    workers: &mut JoinSet<()>,
    execution: Execution,
) {
    // never waits: there were as many permits as executions were claimed
    let Ok(permit) = free.clone().acquire_owned().await else { return };
    let (core, lease) = (core.clone(), lease.clone());
    let cancel = core.register(&execution.id);
    if execution.cancel.is_some() {
        cancel.cancel();
    }
    let span = execution_span(&execution);
    let work = async move {
        let id = execution.id.clone();
        tokio::select! {
            biased;
            () = lease.lost.cancelled() => {}
            () = worker::run(&core, &lease, execution, cancel) => {}
        }
        core.unregister(&id);
        drop(permit);
    };
    workers.spawn(work.instrument(span));
}

/// What the rows say that we hold: cancels that no signal told us of, and executions that nobody here
/// works on, because the answer to their claim was lost or their worker died.
async fn look_at_own(core: &Arc<Core>, lease: &Arc<Lease>, free: &Arc<Semaphore>, workers: &mut JoinSet<()>) {
    let session = lease.id.clone();
    let held = match core.store.read(move |tx| execution::held_by(tx, &session)).await {
        Ok(held) => held,
        Err(e) => return tracing::warn!(error = %e, "looking at the executions held here"),
    };
    for own in held {
        if own.cancel_requested {
            core.cancel_here(&own.id);
        }
        if core.is_running(&own.id) || free.available_permits() == 0 {
            continue;
        }
        let id = own.id.clone();
        match core.store.read(move |tx| execution::get(tx, &id)).await {
            Ok(Some(e)) if e.holder.as_ref() == Some(&lease.id) && e.status == Status::Running => {
                tracing::warn!(execution = %e.id, "held here and worked on by nobody: taken up again");
                start(core, lease, free, workers, worker::in_doubt(e, core.options.call_timeout)).await;
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(error = %e, "reading an execution held here"),
        }
    }
}
