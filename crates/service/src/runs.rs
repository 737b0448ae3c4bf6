//! Runs: read, list, cancel. Starting is in `start_run`, following in `watch` and `logs`.

use crate::machines::required;
use crate::why::why;
use crate::{Page, PageRequest, Principal, Service};
use domain::run::Run;
use domain::run::RunPhase;
use domain::{Error, Reason, RunId};
use std::collections::HashMap;
use std::time::Duration;
use store::execution::Execution;
use store::{Tx, TxResult, execution, run, switch};
use tokio::time::Instant;

/// A run, and what it waits for right now.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub run: Run,
    pub why: String,
}

pub(crate) fn view(tx: &mut Tx<'_>, run: Run) -> TxResult<RunView> {
    if run.phase.is_terminal() {
        return Ok(RunView { run, why: String::new() });
    }
    let execution = execution::by_subject(tx, run.id.as_str())?;
    let frozen = switch::frozen(tx)?;
    let why = why(&run, execution.as_ref(), frozen.as_ref(), tx.now());
    Ok(RunView { run, why })
}

/// The same for a page of them, in a few statements.
fn views(tx: &mut Tx<'_>, runs: Vec<Run>) -> TxResult<Vec<RunView>> {
    let active: Vec<String> = runs.iter().filter(|r| !r.phase.is_terminal()).map(|r| r.id.to_string()).collect();
    let executions = execution::open_of_subjects(tx, &active)?;
    let executions: HashMap<&str, &Execution> = executions.iter().map(|e| (e.subject.as_str(), e)).collect();
    let (frozen, now) = (switch::frozen(tx)?, tx.now());
    let view = |run: Run| {
        let why = why(&run, executions.get(run.id.as_str()).copied(), frozen.as_ref(), now);
        RunView { run, why }
    };
    Ok(runs.into_iter().map(view).collect())
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::RunNotFound, format!("there is no run {id:?}")).with("run_id", id)
}

/// How long CancelRun waits for the machine to be let go before it answers with the run as it is.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

impl Service {
    pub async fn get_run(&self, id: &str) -> Result<RunView, Error> {
        let key = RunId::from_text(required("run_id", id)?);
        let found = self
            .store()
            .read(move |tx| match run::get(tx, &key)? {
                Some(run) => view(tx, run).map(Some),
                None => Ok(None),
            })
            .await?;
        found.ok_or_else(|| not_found(id))
    }

    pub async fn list_runs(&self, request: &PageRequest) -> Result<Page<RunView>, Error> {
        let size = request.size()?;
        let filter = run::FILTER.parse(&request.filter)?;
        let before = request.cursor("runs")?;
        let items = self
            .store()
            .read(move |tx| {
                let runs = run::list(tx, &filter, &before, size + 1)?;
                views(tx, runs)
            })
            .await?;
        Ok(request.page("runs", items, size, |v: &RunView| v.run.id.to_string()))
    }

    /// Asks an active run to stop, and waits a moment for it. A canceled run is returned as it is; one
    /// that succeeded or failed is refused.
    pub async fn cancel_run(&self, by: &Principal, id: &str) -> Result<RunView, Error> {
        let run_id = RunId::from_text(required("run_id", id)?);
        let (engine, actor, text) = (self.engine().clone(), by.name.clone(), id.to_owned());
        let machine = self.get_run(id).await?.run.machine_id;
        let key = machine.to_string();
        self.store()
            .write(&by.caller(), &key, move |tx| {
                // the machine's row first, as everywhere
                store::machine::get_for_update(tx, &machine)?;
                let run = run::get(tx, &run_id)?.ok_or_else(|| not_found(&text))?;
                match run.phase {
                    RunPhase::Canceled => return Ok(()),
                    RunPhase::Succeeded | RunPhase::Failed => return Err(ended(&run).into()),
                    RunPhase::Pending | RunPhase::Running => {}
                }
                let execution = execution::by_subject(tx, run.id.as_str())?;
                let execution = execution.ok_or_else(|| Error::internal(format!("run {} has no execution", run.id)))?;
                engine.request_cancel(tx, &execution, &actor, "")
            })
            .await?;
        self.wait_until_ended(id, CANCEL_WAIT).await
    }

    /// The run once it has ended, or as it is when the time is up.
    async fn wait_until_ended(&self, id: &str, within: Duration) -> Result<RunView, Error> {
        let deadline = Instant::now() + within;
        let mut grew = self.store().signals().log_grew();
        loop {
            grew.borrow_and_update();
            let view = self.get_run(id).await?;
            if view.run.phase.is_terminal() || Instant::now() >= deadline {
                return Ok(view);
            }
            // another process may hold it: look also without a signal
            drop(tokio::time::timeout(Duration::from_millis(100), grew.changed()).await);
        }
    }
}

fn ended(run: &Run) -> Error {
    Error::new(
        Reason::RunAlreadyEnded,
        format!("run {} has already ended as {}: there is nothing to cancel", run.id, run.phase),
    )
    .with("phase", run.phase.to_string())
}
