//! The engine as the rest of the server sees it: start, stop, cancel, terminate.

use crate::claimer;
use crate::lease::Lease;
use crate::options::EngineOptions;
use crate::worker;
use crate::workflow::Workflow;
use domain::{Error, ExecutionId, Reason};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::execution::{self, CancelRequest, Entry, Execution, Status};
use store::{Caller, Store, session};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Sees every journal entry right after it is durable. For tests that end the engine at that moment.
pub type JournalObserver = Arc<dyn Fn(&ExecutionId, &str) + Send + Sync>;

pub(crate) struct Core {
    pub store: Store,
    pub options: EngineOptions,
    pub workflows: HashMap<&'static str, Arc<dyn Workflow>>,
    pub observer: Option<JournalObserver>,
    /// No new stage is entered: the server hands over.
    pub draining: CancellationToken,
    /// Ends every worker at once, leaving things as they are.
    pub killed: CancellationToken,
    /// Somebody asked for the end; without that, draining means that the schema has moved.
    stopping: CancellationToken,
    /// Set when the main task has ended, whatever the reason.
    ended: CancellationToken,
    running: Mutex<HashMap<ExecutionId, CancellationToken>>,
    /// The session that the work is done under, for those who ask how it stands.
    lease: Mutex<Option<Arc<Lease>>>,
}

impl Core {
    fn running(&self) -> MutexGuard<'_, HashMap<ExecutionId, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn register(&self, id: &ExecutionId) -> CancellationToken {
        let token = CancellationToken::new();
        self.running().insert(id.clone(), token.clone());
        token
    }

    pub fn unregister(&self, id: &ExecutionId) {
        self.running().remove(id);
    }

    pub fn is_running(&self, id: &ExecutionId) -> bool {
        self.running().contains_key(id)
    }

    fn hold(&self, lease: Option<Arc<Lease>>) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// Tells the worker that has it, if one here has.
    pub fn cancel_here(&self, id: &ExecutionId) {
        if let Some(token) = self.running().get(id) {
            token.cancel();
        }
    }
}

#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
    main: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Engine {
    pub fn new(
        store: Store,
        options: EngineOptions,
        workflows: Vec<Arc<dyn Workflow>>,
        observer: Option<JournalObserver>,
    ) -> Self {
        let core = Core {
            store: store.for_engine(),
            options,
            workflows: workflows.into_iter().map(|w| (w.name(), w)).collect(),
            observer,
            draining: CancellationToken::new(),
            killed: CancellationToken::new(),
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
            running: Mutex::new(HashMap::new()),
            lease: Mutex::new(None),
        };
        Self { core: Arc::new(core), main: Arc::new(Mutex::new(None)) }
    }

    /// Begins to claim and work. Returns once the first session is open, so that a caller knows.
    pub async fn start(&self) -> Result<(), Error> {
        let lease = Lease::open(&self.core.store, &self.core.options, self.core.killed.child_token()).await?;
        let core = self.core.clone();
        // dropped also when the task panics
        let ended = self.core.ended.clone().drop_guard();
        let main = tokio::spawn(async move {
            run(core, lease).await;
            drop(ended);
        });
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = Some(main);
        Ok(())
    }

    /// Hands over: no new stage is entered, calls in the air are waited for (bounded), every execution
    /// is left for the next claim.
    pub async fn stop(&self) {
        self.core.stopping.cancel();
        self.core.draining.cancel();
        let main = self.main.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(main) = main
            && tokio::time::timeout(self.core.options.hand_over_within, main).await.is_err()
        {
            tracing::warn!("a call outlasted the hand-over: its execution is taken over when the lease has passed");
            self.core.killed.cancel();
        }
    }

    /// Resolves when the engine works no more: it was stopped, or it has died.
    pub async fn ended(&self) {
        self.core.ended.cancelled().await;
    }

    /// Executions that a worker here has in hand.
    pub fn busy(&self) -> usize {
        self.core.running().len()
    }

    /// The longest a call to a provider may take.
    pub fn call_timeout(&self) -> Duration {
        self.core.options.call_timeout
    }

    pub fn workers(&self) -> usize {
        self.core.options.workers
    }

    /// How long the session lease is sure to hold; zero without one.
    pub fn lease_remaining(&self) -> Duration {
        let lease = self.core.lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lease.filter(|l| !l.lost.is_cancelled()).map_or(Duration::ZERO, |l| l.remaining())
    }

    /// Ends at once, as a crash would: nothing is released, nothing is written.
    pub fn kill(&self) {
        self.core.killed.cancel();
    }

    /// Asks for an execution to stop. What has not begun ends here and now.
    pub fn request_cancel(
        &self,
        tx: &mut store::Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> store::TxResult<()> {
        if execution.holder.is_none() && worker::never_entered(execution) {
            return self.end_from_outside(tx, execution, Status::Canceled, "canceled_before_start", by, reason);
        }
        let request = CancelRequest { by: by.to_owned(), reason: reason.to_owned() };
        execution::request_cancel(tx, &execution.id, &request)?;
        Ok(())
    }

    /// Ends an execution now, running no more of its code.
    pub fn terminate(
        &self,
        tx: &mut store::Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> store::TxResult<()> {
        self.end_from_outside(tx, execution, Status::Terminated, "terminated", by, reason)
    }

    /// The same for a caller that writes the product's rows itself, in the same transaction.
    pub fn end_quietly(
        &self,
        tx: &mut store::Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> store::TxResult<()> {
        let entry = Entry { entry: "terminated", detail: serde_json::json!({"by": by, "reason": reason}) };
        if !execution::end_from_outside(tx, execution, Status::Terminated, &entry)? {
            return Err(store::Failure::Lost(format!("execution {}", execution.id)));
        }
        Ok(())
    }

    /// Writes the product's rows for an execution whose end never reached them.
    pub fn record_end(
        &self,
        tx: &mut store::Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> store::TxResult<()> {
        self.workflow(execution)?.record_ended_from_outside(tx, execution, by, reason)
    }

    fn end_from_outside(
        &self,
        tx: &mut store::Tx<'_>,
        execution: &Execution,
        status: Status,
        entry: &'static str,
        by: &str,
        reason: &str,
    ) -> store::TxResult<()> {
        let workflow = self.workflow(execution)?;
        workflow.record_ended_from_outside(tx, execution, by, reason)?;
        let entry = Entry { entry, detail: serde_json::json!({"by": by, "reason": reason}) };
        if !execution::end_from_outside(tx, execution, status, &entry)? {
            return Err(store::Failure::Lost(format!("execution {}", execution.id)));
        }
        Ok(())
    }

    fn workflow(&self, execution: &Execution) -> Result<&Arc<dyn Workflow>, Error> {
        self.core.workflows.get(execution.workflow.as_str()).ok_or_else(|| {
            Error::new(Reason::NotConfirmed, format!("this server does not know the workflow {:?}", execution.workflow))
        })
    }

    /// Asks everything of one kind that has not ended to stop, and waits until it has (bounded).
    pub async fn cancel_all(&self, workflow: &str, by: &str, reason: &str, within: Duration) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let of = workflow.to_owned();
            let open = self.core.store.read(move |tx| execution::list_open(tx, &of, CANCEL_BATCH)).await?;
            if open.is_empty() || tokio::time::Instant::now() >= deadline {
                if !open.is_empty() {
                    tracing::warn!(
                        left = open.len(),
                        "not everything could be canceled in time; the next start goes on with it"
                    );
                }
                return Ok(());
            }
            for execution in open.into_iter().filter(|e| e.cancel.is_none()) {
                let (engine, by, reason) = (self.clone(), by.to_owned(), reason.to_owned());
                let key = execution.machine_id.to_string();
                self.core
                    .store
                    .write(&Caller::engine(), &key, move |tx| match execution::get_for_update(tx, &execution.id)? {
                        Some(e) if !e.status.is_terminal() => engine.request_cancel(tx, &e, &by, &reason),
                        Some(_) | None => Ok(()),
                    })
                    .await?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Executions looked at in one go when everything is canceled.
const CANCEL_BATCH: usize = 500;

/// One session after another, until the engine stops: a server that lost its lease begins anew.
async fn run(core: Arc<Core>, first: Lease) {
    let mut lease = Arc::new(first);
    loop {
        core.hold(Some(lease.clone()));
        let mut claims = tokio::spawn(claimer::run(core.clone(), lease.clone(), core.draining.clone()));
        // a newer schema ends the claiming just as a hand-over does
        let keep = lease.keep(&core.store, &core.draining);
        tokio::select! {
            biased;
            () = core.killed.cancelled() => return,
            () = keep => {}
            () = handed_over(&core, &mut claims) => {
                core.hold(None);
                release(&core, &lease).await;
                // after a newer server has migrated, this one claims no more but still serves
                core.stopping.cancelled().await;
                return;
            }
        }
        // the lease is lost, and the workers end with it
        drop(claims.await);
        match open_again(&core).await {
            Some(new) => lease = Arc::new(new),
            None => return,
        }
    }
}

/// Resolves when the engine drains and the last worker has reached its checkpoint.
async fn handed_over(core: &Core, claims: &mut JoinHandle<()>) {
    core.draining.cancelled().await;
    drop(claims.await);
}

async fn release(core: &Core, lease: &Lease) {
    let id = lease.id.clone();
    if let Err(e) = core.store.write(&Caller::engine(), "sessions", move |tx| session::release(tx, &id)).await {
        tracing::warn!(error = %e, "giving back the session lease; it runs out by itself");
    }
}

async fn open_again(core: &Core) -> Option<Lease> {
    loop {
        if core.killed.is_cancelled() || core.draining.is_cancelled() {
            return None;
        }
        match Lease::open(&core.store, &core.options, core.killed.child_token()).await {
            Ok(lease) => return Some(lease),
            Err(e) => tracing::warn!(error = %e, "opening a new session"),
        }
        tokio::time::sleep(core.options.poll).await;
    }
}
