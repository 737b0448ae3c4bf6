//! WatchRuns: every change in order, resumable by sequence. The reader pulls: a slow one lags, holds
//! nobody up and costs no memory.

use crate::standing::OpenStream;
use crate::{Call, Service};
use domain::filter::Filter;
use domain::run::Run;
use domain::{Error, Reason, RunId};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::VecDeque;
use std::sync::Arc;
use store::{LogRange, RunEvent, Tx, TxResult, log_range, run};

/// Present snapshots sent at the start of a watch; who has more active runs must filter.
const SNAPSHOTS_MAX: usize = 50_000;
const PAGE: usize = 500;

struct Watch {
    service: Service,
    call: Arc<Call>,
    _place: OpenStream,
    filter: Filter,
    /// The one run that is watched, if the filter names one.
    only: Option<RunId>,
    cursor: u64,
    ready: VecDeque<RunEvent>,
    ended: bool,
}

fn matches(filter: &Filter, run: &Run) -> bool {
    filter.matches(&|field| match field {
        "run_id" => Some(run.id.to_string()),
        "machine_id" => Some(run.machine_id.to_string()),
        "request_id" => Some(run.request_id.clone()),
        "type" => Some(run.type_text().to_owned()),
        _ => None,
    })
}

impl Service {
    /// Replays every event after `after` and follows; without it, sends the present snapshots of the
    /// runs that are not terminal (or of the one run named) and follows from there.
    pub async fn watch_runs(
        &self,
        call: &Arc<Call>,
        filter: &str,
        after: Option<u64>,
    ) -> Result<impl Stream<Item = Result<RunEvent, Error>> + Send + use<>, Error> {
        let filter = run::WATCH_FILTER.parse(filter)?;
        let only = filter.pins("run_id").map(RunId::from_text);
        let (wanted, one, by) = (filter.clone(), only.clone(), call.clone());
        let place = call.by.standing.open_stream()?;
        let first = self.store().snapshot(move |tx| begin(tx, &by, &wanted, one.as_ref(), after)).await?;
        let watch = Watch {
            service: self.clone(),
            call: call.clone(),
            _place: place,
            filter,
            only,
            cursor: first.cursor,
            ready: first.events,
            ended: first.ended,
        };
        Ok(try_unfold(watch, |mut watch| async move { Ok(watch.next().await?.map(|event| (event, watch))) }))
    }
}

/// What to send first, and from where to follow.
struct First {
    events: VecDeque<RunEvent>,
    cursor: u64,
    /// The one run that is watched has ended: there is nothing to follow.
    ended: bool,
}

/// Read in one transaction, so that nothing falls between the snapshots and what follows.
fn begin(tx: &mut Tx<'_>, call: &Call, filter: &Filter, only: Option<&RunId>, after: Option<u64>) -> TxResult<First> {
    let range = log_range(tx)?;
    if let Some(after) = after {
        check_range(after, range)?;
    }
    let Some(id) = only else {
        return Ok(match after {
            Some(cursor) => First { events: VecDeque::new(), cursor, ended: false },
            None => First { events: present(tx, call, filter, range)?.into(), cursor: range.head, ended: false },
        });
    };
    let run = crate::runs::find(tx, call, id)?;
    if !matches(filter, &run) {
        return Err(crate::runs::not_found(id.as_str()).into());
    }
    let ended = run.phase.is_terminal();
    let events = match after {
        // one run's history is read from its own rows, whatever else the log holds
        Some(after) => run::events_after(tx, id, after, range.head)?,
        None => vec![snapshot(tx, range, run)],
    };
    Ok(First { events: events.into(), cursor: range.head, ended })
}

fn snapshot(tx: &Tx<'_>, range: LogRange, run: Run) -> RunEvent {
    let message = format!("is {}", run.phase);
    RunEvent { sequence: range.head, at: tx.now(), run: Arc::new(run), message }
}

fn present(tx: &mut Tx<'_>, call: &Call, filter: &Filter, range: LogRange) -> TxResult<Vec<RunEvent>> {
    let mut events: Vec<RunEvent> = Vec::new();
    let mut last = String::new();
    loop {
        let page = run::list_active(tx, &call.by.customer_id, &last, PAGE)?;
        let full = page.len() == PAGE;
        if let Some(run) = page.last() {
            last = run.id.to_string();
        }
        events.extend(page.into_iter().filter(|r| matches(filter, r)).map(|r| snapshot(tx, range, r)));
        if events.len() > SNAPSHOTS_MAX {
            let message = format!("more than {SNAPSHOTS_MAX} runs are active: watch with a filter, or from a sequence");
            return Err(Error::new(Reason::LimitReached, message).into());
        }
        if !full {
            return Ok(events);
        }
    }
}

pub(crate) fn check_range(after: u64, range: LogRange) -> Result<(), Error> {
    if after.saturating_add(1) >= range.first && after <= range.head {
        return Ok(());
    }
    let (first, head) = (range.first, range.head);
    Err(Error::new(
        Reason::SequenceOutOfRange,
        format!("after_sequence {after} is outside the kept range: events {first} to {head} can be read"),
    )
    .with("first", first.to_string())
    .with("head", head.to_string()))
}

impl Watch {
    async fn next(&mut self) -> Result<Option<RunEvent>, Error> {
        let mut head = self.service.inner.feed.head();
        loop {
            self.call.still_good(self.service.now())?;
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            head.look();
            let (events, cursor) = self.service.inner.feed.after(self.cursor).await?;
            let moved = cursor > self.cursor;
            self.cursor = cursor;
            let wanted = events.into_iter().filter_map(|e| e.run).filter(|e| matches(&self.filter, &e.run));
            self.ready.extend(wanted.filter(|e| self.call.by.sees_customer(&e.run.customer_id)));
            self.ended = self.only.is_some() && self.ready.back().is_some_and(|e| e.run.phase.is_terminal());
            if moved {
                continue;
            }
            tokio::select! {
                biased;
                error = self.service.over(&self.call) => return Err(error),
                () = head.grew() => {}
            }
        }
    }
}

pub(crate) fn closing() -> Error {
    Error::new(Reason::ShuttingDown, "the server is shutting down; go on from the last sequence you saw")
}
