//! Runs: read, list, cancel. Starting is in `start_run`, following in `watch` and `logs`.

use crate::change::Answer;
use crate::machines::required;
use crate::machines::within_scope;
use crate::states::{desired_of_run, execution_of_run, observed_of_run};
use crate::why::why;
use crate::{Call, Page, PageRequest, Service};
use domain::run::Run;
use domain::run::RunPhase;
use domain::{Error, Reason, RunId, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::execution::Execution;
use store::switch::Freeze;
use store::{Tx, TxResult, execution, machine, run, switch};
use tokio::time::Instant;

/// A run, what it waits for right now, and the states beside its phase.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub run: Run,
    pub why: String,
    pub desired: String,
    pub observed: String,
    pub execution: String,
}

impl RunView {
    fn new(run: Run, execution: Option<&Execution>, frozen: Option<&Freeze>, now: Timestamp) -> Self {
        Self {
            why: why(&run, execution, frozen, now),
            desired: desired_of_run(&run, execution),
            observed: observed_of_run(&run, execution),
            execution: execution_of_run(&run, execution),
            run,
        }
    }
}

pub(crate) fn view(tx: &mut Tx<'_>, run: Run) -> TxResult<RunView> {
    if run.phase.is_terminal() {
        return Ok(RunView::new(run, None, None, tx.now()));
    }
    let execution = execution::by_subject(tx, run.id.as_str())?;
    let frozen = switch::frozen(tx)?;
    Ok(RunView::new(run, execution.as_ref(), frozen.as_ref(), tx.now()))
}

/// The same for a page of them, in a few statements.
fn views(tx: &mut Tx<'_>, runs: Vec<Run>) -> TxResult<Vec<RunView>> {
    let active: Vec<String> = runs.iter().filter(|r| !r.phase.is_terminal()).map(|r| r.id.to_string()).collect();
    let executions = execution::open_of_subjects(tx, &active)?;
    let executions: HashMap<&str, &Execution> = executions.iter().map(|e| (e.subject.as_str(), e)).collect();
    let (frozen, now) = (switch::frozen(tx)?, tx.now());
    let view = |run: Run| {
        let execution = executions.get(run.id.as_str()).copied();
        RunView::new(run, execution, frozen.as_ref(), now)
    };
    Ok(runs.into_iter().map(view).collect())
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::RunNotFound, format!("there is no run {id:?}")).with("run_id", id)
}

/// How long CancelRun waits for the machine to be let go before it answers with the run as it is.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

impl Answer for RunView {
    fn id(&self) -> String {
        self.run.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Self> {
        let run = find(tx, call, &RunId::from_text(id))?;
        view(tx, run)
    }
}

/// The run, if it is the caller's to see. What is not is not there.
pub(crate) fn find(tx: &mut Tx<'_>, call: &Call, id: &RunId) -> TxResult<Run> {
    let run = run::get(tx, id)?.filter(|r| call.by.sees_customer(&r.customer_id));
    Ok(run.ok_or_else(|| not_found(id.as_str()))?)
}

impl Service {
    pub async fn get_run(&self, call: &Arc<Call>, id: &str) -> Result<RunView, Error> {
        let key = RunId::from_text(required("run_id", id)?);
        let call = call.clone();
        self.store()
            .read(move |tx| {
                let run = find(tx, &call, &key)?;
                view(tx, run)
            })
            .await
    }

    pub async fn list_runs(&self, call: &Call, request: &PageRequest) -> Result<Page<RunView>, Error> {
        let size = request.size()?;
        let filter = within_scope(call, run::FILTER.parse(&request.filter)?);
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
    pub async fn cancel_run(&self, call: &Arc<Call>, id: &str) -> Result<RunView, Error> {
        let run_id = RunId::from_text(required("run_id", id)?);
        let (engine, by) = (self.engine().clone(), call.clone());
        let machine_id = self.get_run(call, id).await?.run.machine_id;
        let key = machine_id.to_string();
        self.change(call, &key, move |tx| {
            // the machine's row first, as everywhere
            machine::get_for_update(tx, &machine_id)?;
            let run = find(tx, &by, &run_id)?;
            match run.phase {
                RunPhase::Canceled => return view(tx, run),
                RunPhase::Succeeded | RunPhase::Failed => return Err(ended(&run).into()),
                RunPhase::Pending | RunPhase::Running => {}
            }
            let execution = execution::by_subject(tx, run.id.as_str())?;
            let execution = execution.ok_or_else(|| Error::internal(format!("run {} has no execution", run.id)))?;
            engine.request_cancel(tx, &execution, &by.by.name, "")?;
            view(tx, run)
        })
        .await?;
        self.wait_until_ended(call, id, CANCEL_WAIT).await
    }

    /// The run once it has ended, or as it is when the time is up.
    async fn wait_until_ended(&self, call: &Arc<Call>, id: &str, within: Duration) -> Result<RunView, Error> {
        let deadline = Instant::now() + within;
        let mut grew = self.store().signals().log_grew();
        loop {
            grew.look();
            let view = self.get_run(call, id).await?;
            if view.run.phase.is_terminal() || Instant::now() >= deadline {
                return Ok(view);
            }
            // another process may hold it: look also without a signal
            drop(tokio::time::timeout(Duration::from_millis(100), grew.grew()).await);
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
