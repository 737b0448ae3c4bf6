//! What sweeps have in common: they are made again and again, and settle what they find in short steps, each judged again
//! in the transaction that writes it.

use crate::options::{PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use domain::Error;
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, Tx, TxResult};

/// Sweeps once in a period, until told to stop; sooner where the store failed.
pub(crate) async fn every<S>(core: Arc<Core>, period: Duration, what: &'static str, sweep: S)
where
    S: AsyncFn(&Core) -> Result<(), Error>,
{
    loop {
        let pause = match sweep(&core).await {
            Ok(()) => period,
            Err(e) => {
                tracing::warn!(error = %e, "{what}");
                TROUBLE_PAUSE
            }
        };
        tokio::select! {
            biased;
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What one read has found.
#[derive(Default)]
pub(crate) struct Page {
    /// To be settled.
    pub due: Vec<String>,
    /// Where the next one begins; none after the last.
    pub next: Option<String>,
}

/// Where every row that was read is due, and read in the order of its id.
impl FromIterator<String> for Page {
    fn from_iter<I: IntoIterator<Item = String>>(ids: I) -> Self {
        let due: Vec<String> = ids.into_iter().collect();
        let next = due.last().filter(|_| due.len() >= PAGE).cloned();
        Self { due, next }
    }
}

/// Settles what `page` finds after a place, page by page, each in a transaction of its own that judges it again. One that
/// cannot be settled keeps nobody else waiting.
pub(crate) async fn settle_all<P, S>(core: &Core, what: &'static str, page: P, settle: S) -> Result<(), Error>
where
    P: Fn(&mut Tx<'_>, &str) -> TxResult<Page> + Clone + Send + 'static,
    S: Fn(&mut Tx<'_>, &str) -> TxResult<()> + Clone + Send + 'static,
{
    let mut after = String::new();
    loop {
        let (from, read) = (after, page.clone());
        let found = core.store.read(move |tx| read(tx, &from)).await?;
        for id in &found.due {
            let (settle, name) = (settle.clone(), id.clone());
            if let Err(e) = core.store.write(&Caller::engine(), id, move |tx| settle(tx, &name)).await {
                tracing::warn!(id, error = %e, "{what}");
            }
        }
        match found.next {
            Some(next) => after = next,
            None => return Ok(()),
        }
    }
}
