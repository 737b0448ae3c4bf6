//! One action on everything that a filter finds: each by itself, several at a time, with a result for each. The same
//! request again is about the same ones, whatever the filter would find by then.

use crate::change::Key;
use crate::jobs::{JobAct, JobsOf, checked_reason, job_action};
use crate::node_actions::{NodeAct, node_action};
use crate::{Call, Service};
use domain::node_action::NodeAction;
use domain::{Code, Error};
use futures::stream::{StreamExt as _, iter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{Tx, TxResult, job, node};

/// How many can be meant by one call.
const BULK_MAX: usize = 1000;
const CONCURRENCY_DEFAULT: u32 = 4;
const CONCURRENCY_MAX: u32 = 16;

/// How a bulk action is carried out.
#[derive(Clone, Debug, Default)]
pub struct Bulk {
    pub filter: String,
    pub action: String,
    pub reason: String,
    pub dry_run: bool,
    /// 0: 4.
    pub concurrency: u32,
    pub stop_on_failure: bool,
    /// Of drains.
    pub grace_seconds: u32,
    pub force: bool,
}

/// What became of one of them.
#[derive(Clone, Debug, PartialEq)]
pub enum BulkOutcome {
    /// What was done, or would be.
    Done(String),
    Refused(Error),
    /// It was not begun, because another one had failed.
    Untried,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BulkResult {
    pub id: String,
    pub outcome: BulkOutcome,
}

impl Bulk {
    fn width(&self) -> Result<usize, Error> {
        match self.concurrency {
            0 => Ok(CONCURRENCY_DEFAULT as usize),
            n if n <= CONCURRENCY_MAX => Ok(n as usize),
            n => Err(Error::field(
                "concurrency",
                format!("{n} is outside 0 (which is {CONCURRENCY_DEFAULT}) to {CONCURRENCY_MAX}"),
            )),
        }
    }

    fn filter(&self) -> Result<&str, Error> {
        if self.filter.trim().is_empty() {
            return Err(Error::field(
                "filter",
                "must say which are meant; what is for all of them is said as well, e.g. \"status=active\"",
            ));
        }
        Ok(&self.filter)
    }
}

fn bounded(ids: Vec<String>) -> Result<Vec<String>, Error> {
    if ids.len() > BULK_MAX {
        return Err(Error::field("filter", format!("finds more than {BULK_MAX}; narrow it, and act on them in parts")));
    }
    Ok(ids)
}

/// That nothing could be decided is about the call, and not about the one that it was tried on.
fn is_about_the_call(e: &Error) -> bool {
    matches!(e.code(), Code::Unavailable | Code::Internal | Code::DeadlineExceeded)
}

impl Service {
    pub async fn act_on_nodes(&self, call: &Arc<Call>, bulk: Bulk) -> Result<Vec<BulkResult>, Error> {
        let action = node_action(&bulk.action)?;
        if !action.in_bulk() {
            let known: Vec<&str> =
                NodeAction::ALL.into_iter().filter(|a| a.in_bulk()).map(NodeAction::as_str).collect();
            let message =
                format!("{action} concerns one identity, and is for one node; in bulk there are {}", known.join(", "));
            return Err(Error::field("action", message).allowing(known));
        }
        checked_reason(action.needs_reason(), &bulk.reason, action.as_str())?;
        let filter = node::FILTER.parse(bulk.filter()?)?;
        let find = move |tx: &mut Tx<'_>| {
            let found = node::list(tx, &filter, None, "", BULK_MAX + 1)?;
            Ok(found.into_iter().map(|n| n.id.into_text()).collect())
        };
        let one = |service: Service, call: Arc<Call>, id: String, bulk: Bulk| async move {
            let Bulk { reason, dry_run, grace_seconds, force, .. } = bulk;
            let wish = NodeAct { id, reason, dry_run, grace_seconds, force };
            Ok(service.act_on_node(&call, action, wish).await?.effect)
        };
        self.in_bulk(call, bulk, find, one).await
    }

    pub async fn act_on_jobs(&self, call: &Arc<Call>, bulk: Bulk) -> Result<Vec<BulkResult>, Error> {
        let action = job_action(&bulk.action)?;
        checked_reason(action.needs_reason(), &bulk.reason, action.as_str())?;
        let filter = job::FILTER.parse(bulk.filter()?)?;
        let find = move |tx: &mut Tx<'_>| {
            let found = job::list(tx, &filter, "", BULK_MAX + 1)?;
            Ok(found.into_iter().map(|j| j.id.into_text()).collect())
        };
        let one = |service: Service, call: Arc<Call>, id: String, bulk: Bulk| async move {
            let act = JobAct { id, action: bulk.action, reason: bulk.reason, dry_run: bulk.dry_run, of: JobsOf::All };
            Ok(service.act_on_job(&call, act).await?.effect)
        };
        self.in_bulk(call, bulk, find, one).await
    }

    /// Which ones are meant: as the filter finds them, or as an earlier sending of the same request did.
    async fn meant(
        &self,
        call: &Arc<Call>,
        dry_run: bool,
        find: impl Fn(&mut Tx<'_>) -> TxResult<Vec<String>> + Send + 'static,
    ) -> Result<Vec<String>, Error> {
        match Key::of(call).filter(|_| !dry_run) {
            None => bounded(self.store().read(find).await?),
            Some(key) => {
                let (caller, entity) = (call.by.caller(), format!("bulk/{}", call.by.token_id));
                let meant = move |tx: &mut Tx<'_>| {
                    if let Some(known) = key.known(tx)? {
                        return Ok(known.split(' ').filter(|id| !id.is_empty()).map(str::to_owned).collect());
                    }
                    let found = bounded(find(tx)?)?;
                    key.remember(tx, &found.join(" "))?;
                    Ok(found)
                };
                self.store().write(&caller, &entity, meant).await
            }
        }
    }

    async fn in_bulk<F>(
        &self,
        call: &Arc<Call>,
        bulk: Bulk,
        find: impl Fn(&mut Tx<'_>) -> TxResult<Vec<String>> + Send + 'static,
        one: impl Fn(Service, Arc<Call>, String, Bulk) -> F + Send + Sync,
    ) -> Result<Vec<BulkResult>, Error>
    where
        F: Future<Output = Result<String, Error>> + Send,
    {
        let width = bulk.width()?;
        let ids = self.meant(call, bulk.dry_run, find).await?;
        let stopped = AtomicBool::new(false);
        let (one, stopped, bulk) = (&one, &stopped, &bulk);
        let each = ids.into_iter().map(|id| async move {
            if stopped.load(Ordering::Acquire) {
                return BulkResult { id, outcome: BulkOutcome::Untried };
            }
            // a key of its own for each, so that the whole can be repeated
            let part = Arc::new(call.part(&id));
            let outcome = match one(self.clone(), part, id.clone(), bulk.clone()).await {
                Ok(effect) => BulkOutcome::Done(effect),
                Err(e) => {
                    if bulk.stop_on_failure || is_about_the_call(&e) {
                        stopped.store(true, Ordering::Release);
                    }
                    BulkOutcome::Refused(e)
                }
            };
            BulkResult { id, outcome }
        });
        Ok(iter(each).buffered(width).collect().await)
    }
}
