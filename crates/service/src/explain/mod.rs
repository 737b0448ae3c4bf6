//! Why something is as it is: what it waits for, since when, what was last seen and is expected, when it
//! is tried next, what is left of attempts and time, who holds it, and which ways lead on. One file per
//! noun gathers the facts; the answers themselves are pure functions of those facts.

mod action;
mod boot_node;
mod job;
mod machine;
mod node;
mod others;
mod run;
mod task;

pub use action::Action;
pub use boot_node::{BootNodeFacts, of_finding};
pub use job::JobWhy;
pub use machine::MachineFacts;
pub use node::NodeWhy;
pub use run::RunFacts;
pub use task::TaskWhy;

use crate::machines::required;
use crate::{Call, Service};
use domain::{Error, MachineId, Reason, RunId, Timestamp};
use std::sync::Arc;
use store::{Tx, TxResult};

/// The whole answer. Empty texts and `None` mean that there is nothing of the kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    pub id: String,
    pub kind: &'static str,
    pub state: String,
    /// Nothing is pending: it may stay so for ever.
    pub at_rest: bool,
    pub summary: String,
    pub waiting_for: String,
    pub since: Option<Timestamp>,
    pub last_seen: String,
    pub last_seen_at: Option<Timestamp>,
    pub expected: String,
    pub next_try: Option<Timestamp>,
    pub attempt: Option<u32>,
    pub attempts_left: Option<u32>,
    pub deadline: Option<Timestamp>,
    pub seconds_left: Option<i64>,
    pub held_by: String,
    pub actions: Vec<Action>,
    pub desired: String,
    pub observed: String,
    pub execution: String,
    pub projected: String,
    /// What calls for somebody, in words.
    pub problems: Vec<String>,
}

pub(crate) fn seconds_until(deadline: Timestamp, now: Timestamp) -> i64 {
    deadline.micros().saturating_sub(now.micros()).div_euclid(1_000_000)
}

fn unknown(id: &str) -> Error {
    let message = format!(
        "nothing has the id {id:?}: no machine, run, execution, boot node, node, job, task, finding, plan or token"
    );
    Error::new(Reason::IdNotFound, message).with("id", id)
}

/// Anything by its id. Machines may have any name, so they come first.
fn explain(tx: &mut Tx<'_>, call: &Call, service: &Service, id: &str) -> TxResult<Explanation> {
    if let Some(facts) = machine::gather(tx, call, service, &MachineId::from_text(id))? {
        return Ok(facts.explain(call));
    }
    if let Some(facts) = run::gather(tx, call, &RunId::from_text(id))? {
        return Ok(facts.explain(call));
    }
    if let Some(explanation) = boot_node::explain(tx, call, service, id)? {
        return Ok(explanation);
    }
    if let Some(explanation) = node::explain(tx, call, service, id)? {
        return Ok(explanation);
    }
    if let Some(explanation) = job::explain(tx, call, id)? {
        return Ok(explanation);
    }
    if let Some(explanation) = task::explain(tx, call, id)? {
        return Ok(explanation);
    }
    match others::explain(tx, call, id)? {
        Some(explanation) => Ok(explanation),
        None => Err(unknown(id).into()),
    }
}

impl Service {
    pub async fn explain(&self, call: &Arc<Call>, id: &str) -> Result<Explanation, Error> {
        let id = required("id", id)?;
        let (call, service) = (call.clone(), self.clone());
        self.store().snapshot(move |tx| explain(tx, &call, &service, &id)).await
    }

    pub async fn explain_machine(&self, call: &Arc<Call>, id: &str) -> Result<Explanation, Error> {
        let id = MachineId::from_text(required("machine_id", id)?);
        let (call, service) = (call.clone(), self.clone());
        self.store()
            .snapshot(move |tx| match machine::gather(tx, &call, &service, &id)? {
                Some(facts) => Ok(facts.explain(&call)),
                None => Err(crate::machines::not_found(id.as_str()).into()),
            })
            .await
    }

    pub async fn explain_run(&self, call: &Arc<Call>, id: &str) -> Result<Explanation, Error> {
        let id = RunId::from_text(required("run_id", id)?);
        let call = call.clone();
        self.store()
            .snapshot(move |tx| match run::gather(tx, &call, &id)? {
                Some(facts) => Ok(facts.explain(&call)),
                None => Err(crate::runs::not_found(id.as_str()).into()),
            })
            .await
    }
}
