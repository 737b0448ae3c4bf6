//! The engine's own surface for operators: what it carries out, and the ways to stop it.

use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::limits::COMMENT_MAX;
use domain::machine::check_text;
use domain::run::{Run, START_WITHIN};
use domain::{Error, ExecutionId, MachineId, Reason, RunId};
use std::sync::Arc;
use store::execution::{self, Execution, JournalRow, NewExecution};
use store::switch::{self, Freeze};
use store::{Tx, TxResult};
use workflow::{RUN_WORKFLOW, RUN_WORKFLOW_VERSION};

/// Entries shown of one journal.
const JOURNAL_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    pub execution: Execution,
    pub journal: Vec<JournalRow>,
}

fn not_found(id: &str) -> Error {
    Error::new(Reason::ExecutionNotFound, format!("there is no execution {id:?}, nor a run of that id"))
        .with("execution_id", id)
}

/// By its own id, or by that of the run it carries out.
fn look_up(tx: &mut Tx<'_>, id: &str) -> TxResult<Option<Execution>> {
    match execution::get(tx, &ExecutionId::from_text(id))? {
        Some(e) => Ok(Some(e)),
        None => execution::by_subject(tx, id),
    }
}

fn find(tx: &mut Tx<'_>, id: &str) -> TxResult<Execution> {
    Ok(look_up(tx, id)?.ok_or_else(|| not_found(id))?)
}

/// The run of that id, if it has not ended.
fn active_run(tx: &mut Tx<'_>, id: &str) -> TxResult<Option<Run>> {
    Ok(store::run::get(tx, &RunId::from_text(id))?.filter(|r| !r.phase.is_terminal()))
}

/// In the place of an execution that is gone, so that its run can be ended as any other.
fn stand_in(tx: &mut Tx<'_>, id: &ExecutionId, run: &Run) -> TxResult<Execution> {
    execution::insert(
        tx,
        &NewExecution {
            id,
            workflow: RUN_WORKFLOW,
            workflow_version: RUN_WORKFLOW_VERSION,
            subject: run.id.as_str(),
            machine_id: &run.machine_id,
            start_within: START_WITHIN,
        },
    )?;
    find(tx, id.as_str())
}

fn machine_of(tx: &mut Tx<'_>, id: &str) -> TxResult<MachineId> {
    if let Some(execution) = look_up(tx, id)? {
        return Ok(execution.machine_id);
    }
    Ok(active_run(tx, id)?.ok_or_else(|| not_found(id))?.machine_id)
}

fn still_open(e: &Execution) -> Result<(), Error> {
    if e.status.is_terminal() {
        let message = format!("execution {} has already ended as {}", e.id, e.status.as_str());
        return Err(Error::new(Reason::RunAlreadyEnded, message));
    }
    Ok(())
}

impl Answer for Execution {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        find(tx, id)
    }
}

/// The brake is one thing, set or not.
impl Answer for Option<Freeze> {
    fn id(&self) -> String {
        "freeze".to_owned()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, _: &str) -> TxResult<Self> {
        switch::frozen(tx)
    }
}

impl Service {
    pub async fn list_executions(&self, request: &PageRequest) -> Result<Page<Execution>, Error> {
        let size = request.size()?;
        let filter = execution::FILTER.parse(&request.filter)?;
        let before = request.cursor("executions")?;
        let items = self.store().read(move |tx| execution::list(tx, &filter, &before, size + 1)).await?;
        Ok(request.page("executions", items, size, |e| e.id.to_string()))
    }

    pub async fn describe_execution(&self, id: &str) -> Result<Described, Error> {
        let id = required("execution_id", id)?;
        self.store()
            .snapshot(move |tx| {
                let execution = find(tx, &id)?;
                let journal = execution::journal(tx, &execution.id, JOURNAL_MAX)?;
                Ok(Described { execution, journal })
            })
            .await
    }

    /// Asks an execution to stop; its stage is aborted and what can be undone is undone.
    pub async fn cancel_execution(&self, call: &Arc<Call>, id: &str, reason: &str) -> Result<Execution, Error> {
        check_text("reason", reason, COMMENT_MAX)?;
        let (engine, actor, reason) = (self.engine().clone(), call.by.name.clone(), reason.to_owned());
        self.change_execution(call, id, move |tx, e| engine.request_cancel(tx, e, &actor, &reason)).await
    }

    /// Ends an execution now, running no more of its code.
    pub async fn terminate_execution(&self, call: &Arc<Call>, id: &str, reason: &str) -> Result<Execution, Error> {
        required("reason", reason)?;
        check_text("reason", reason, COMMENT_MAX)?;
        let (engine, actor, reason) = (self.engine().clone(), call.by.name.clone(), reason.to_owned());
        let id = required("execution_id", id)?;
        let looked = id.clone();
        let machine = self.store().read(move |tx| machine_of(tx, &looked)).await?;
        let fresh = ExecutionId::generate(self.store().ambient().uuid());
        let key = machine.to_string();
        self.change(call, &key, move |tx| {
            store::machine::get_for_update(tx, &machine)?;
            let execution = match (look_up(tx, &id)?, active_run(tx, &id)?) {
                (Some(execution), _) => execution,
                (None, Some(run)) => stand_in(tx, &fresh, &run)?,
                (None, None) => return Err(not_found(&id).into()),
            };
            if !execution.status.is_terminal() {
                engine.terminate(tx, &execution, &actor, &reason)?;
            } else if active_run(tx, &execution.subject)?.is_some() {
                // its end never reached the run, which would hold its machine for ever
                engine.record_end(tx, &execution, &actor, &reason)?;
            } else {
                still_open(&execution)?;
            }
            find(tx, execution.id.as_str())
        })
        .await
    }

    async fn change_execution(
        &self,
        call: &Arc<Call>,
        id: &str,
        change: impl Fn(&mut Tx<'_>, &Execution) -> TxResult<()> + Send + 'static,
    ) -> Result<Execution, Error> {
        let machine = self.describe_execution(id).await?.execution.machine_id;
        let key = machine.to_string();
        let id = id.to_owned();
        self.change(call, &key, move |tx| {
            store::machine::get_for_update(tx, &machine)?;
            let execution = find(tx, &id)?;
            still_open(&execution)?;
            change(tx, &execution)?;
            find(tx, &id)
        })
        .await
    }

    /// Stops all automation until it is released. Frozen already: stays as it is.
    pub async fn freeze(&self, call: &Arc<Call>, reason: &str) -> Result<Option<Freeze>, Error> {
        required("reason", reason)?;
        check_text("reason", reason, COMMENT_MAX)?;
        let (actor, reason) = (call.by.name.clone(), reason.to_owned());
        self.change(call, "freeze", move |tx| {
            switch::freeze(tx, &actor, &reason)?;
            switch::frozen(tx)
        })
        .await
    }

    pub async fn unfreeze(&self, call: &Arc<Call>) -> Result<Option<Freeze>, Error> {
        self.change(call, "freeze", |tx| {
            switch::unfreeze(tx)?;
            switch::frozen(tx)
        })
        .await
    }

    pub async fn frozen(&self) -> Result<Option<Freeze>, Error> {
        self.store().read(switch::frozen).await
    }
}
