//! StreamRunLogs: what the steps printed, from storage, then as it comes, until the run ends.

use crate::machines::required;
use crate::runs;
use crate::standing::OpenStream;
use crate::{Call, Service};
use domain::{Error, Reason, RunId};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::step_log::{self, LogChunk};
use store::{Tx, TxResult};

/// Chunks read at once; each holds at most 64 KiB.
const BATCH: usize = 16;
/// How often to look for what other processes wrote.
const POLL: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(5);

struct Follow {
    service: Service,
    call: Arc<Call>,
    _place: OpenStream,
    run: RunId,
    cursor: u64,
    ready: VecDeque<LogChunk>,
    follow: bool,
}

impl Service {
    pub async fn stream_run_logs(
        &self,
        call: &Arc<Call>,
        id: &str,
        after: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<LogChunk, Error>> + Send + use<>, Error> {
        let run = RunId::from_text(required("run_id", id)?);
        let (key, text, by) = (run.clone(), id.to_owned(), call.clone());
        let place = call.by.standing.open_stream()?;
        self.store()
            .snapshot(move |tx| {
                runs::find(tx, &by, &key)?;
                let head = step_log::head(tx, &key)?;
                if after > head { Err(beyond(&text, after, head).into()) } else { Ok(()) }
            })
            .await?;
        let state = Follow {
            service: self.clone(),
            call: call.clone(),
            _place: place,
            run,
            cursor: after,
            ready: VecDeque::new(),
            follow,
        };
        Ok(try_unfold(state, |mut state| async move { Ok(state.next().await?.map(|chunk| (chunk, state))) }))
    }
}

fn beyond(id: &str, after: u64, head: u64) -> Error {
    let first = u64::from(head > 0);
    Error::new(
        Reason::SequenceOutOfRange,
        format!("after_sequence {after} is outside the log of run {id}: chunks {first} to {head} can be read"),
    )
    .with("first", first.to_string())
    .with("head", head.to_string())
}

/// More chunks, and whether the run had ended before they were read. Its machine may have changed hands.
fn read(tx: &mut Tx<'_>, call: &Call, run: &RunId, after: u64) -> TxResult<(Vec<LogChunk>, bool)> {
    let ended = runs::find(tx, call, run)?.phase.is_terminal();
    Ok((step_log::after(tx, run, after, BATCH)?, ended))
}

impl Follow {
    async fn next(&mut self) -> Result<Option<LogChunk>, Error> {
        let mut output = self.service.store().signals().output_of(&self.run);
        loop {
            self.call.still_good(self.service.now())?;
            if let Some(chunk) = self.ready.pop_front() {
                self.cursor = chunk.sequence;
                return Ok(Some(chunk));
            }
            output.look();
            let (call, run, cursor) = (self.call.clone(), self.run.clone(), self.cursor);
            let (chunks, ended) = self.service.store().read(move |tx| read(tx, &call, &run, cursor)).await?;
            if chunks.is_empty() && (ended || !self.follow) {
                return Ok(None);
            }
            if !chunks.is_empty() {
                self.ready = chunks.into();
                continue;
            }
            let pause = if self.service.store().is_shared() { POLL } else { IDLE };
            tokio::select! {
                biased;
                error = self.service.over(&self.call) => return Err(error),
                _ = tokio::time::timeout(pause, output.grew()) => {}
            }
        }
    }
}
