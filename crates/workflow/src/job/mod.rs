//! The job: a kind's stages in order, on one node. How jobs begin, how operators act on them, how nodes follow.

mod act;
mod begin;
mod boot;
mod follow;
mod hands;
mod maas;
mod order;
mod record;
mod seen;
mod stage;
mod task_stage;

pub use act::{Act, Acted, act};
pub use begin::{NewJob, adopt_orphan, begin, lock_node};
pub use boot::{NoRuns, RepaveWish, Runs, is_out, repave_request, runs_of};
pub use follow::{agent_is_steady, blocked_or_not, tell_machine};
pub use hands::{Allocations, Bundles, Hands, MadeBundle, NoAllocations, NoBundles};
pub use maas::cloud_init;
pub use maas::{Learned, MaasWish, NODE_ANNOTATION, PowerWish};
pub use order::{by_hand as task_by_hand, encoded as encoded_order};
pub use record::ended_outside;
pub use seen::{NodePolicy, failing_probes, hardware_of, observed, probes_pass, untold_probes};
pub use task_stage::requeue_expired;

use crate::job::stage::{JobWork, compensation, forward};
use async_trait::async_trait;
use domain::job::{Job, Purpose};
use domain::{Error, ExecutionId, FindingId, JobId, MachineId};
use engine::{Work, Workflow};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::execution::Execution;
use store::{Store, Tx, TxResult, job, machine, node};

pub const JOB_WORKFLOW: &str = "job";
pub const JOB_WORKFLOW_VERSION: u32 = 1;

/// The actor of everything that the engine does by itself.
const EXECUTOR: &str = "executor";

/// Ids for what may come to be in a transaction: made outside of it, since it may be run again.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub job: JobId,
    pub execution: ExecutionId,
    pub finding: FindingId,
    pub machine: MachineId,
}

impl Fresh {
    pub fn make(ambient: &dyn store::Ambient) -> Self {
        Self {
            job: JobId::generate(ambient.uuid()),
            execution: ExecutionId::generate(ambient.uuid()),
            finding: FindingId::generate(ambient.uuid()),
            machine: MachineId::generate(ambient.uuid()),
        }
    }
}

/// What a job's stages are told; kept with it as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// For what runs on the node, before a drain fails or ends it.
    pub grace_seconds: u32,
    /// End what still runs after that.
    pub force: bool,
    /// Emptied, beside those of the configuration.
    pub scratch_paths: Vec<String>,
    /// Of jobs on a MAAS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maas: Option<MaasWish>,
    /// What a reimage over the network installs: a boot workflow, or an image in the place of its own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// The stage that somebody wants adopted as it is found, until it is or another attempt begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopting: Option<Adopting>,
}

/// In the place of a stage: what could not be taken back in MAAS stays there as it is.
const TAKING_BACK: &str = "taking back";

/// By whose wish a stage's own look counts as adoption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopting {
    pub stage: String,
    pub by: String,
}

impl Parameters {
    fn of(job: &Job) -> Self {
        serde_json::from_str(&job.parameters).unwrap_or_default()
    }

    fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

pub struct JobWorkflow {
    policy: Arc<NodePolicy>,
    hands: Hands,
}

impl JobWorkflow {
    pub fn new(policy: NodePolicy, hands: Hands) -> Self {
        Self { policy: Arc::new(policy), hands }
    }
}

fn gone(what: &str, id: impl std::fmt::Display) -> Error {
    Error::internal(format!("{what} {id} is not in the store"))
}

#[async_trait]
impl Workflow for JobWorkflow {
    fn name(&self) -> &'static str {
        JOB_WORKFLOW
    }

    fn version(&self) -> u32 {
        JOB_WORKFLOW_VERSION
    }

    async fn load(&self, store: &Store, execution: &Execution) -> Result<Arc<dyn Work>, Error> {
        let id = JobId::from_text(execution.subject.clone());
        let wanted = id.clone();
        let loaded = store
            .read(move |tx| {
                let Some(job) = tx.point(&job::by_id(&wanted))? else { return Ok(None) };
                let Some(node) = tx.point(&node::by_id(&job.node_id))? else { return Ok(None) };
                let machine = match &node.machine_id {
                    Some(id) => machine::get(tx, id)?,
                    None => None,
                };
                Ok(Some((job, machine)))
            })
            .await?;
        let Some((job, machine)) = loaded else { return Err(gone("job or node of", &id)) };
        let ours = job.execution_id == execution.id;
        let bodies = match job.purpose {
            _ if !ours => Vec::new(),
            Purpose::Forward => forward(&job),
            Purpose::Compensate => compensation(&job),
        };
        Ok(Arc::new(JobWork {
            store: store.clone(),
            policy: self.policy.clone(),
            hands: self.hands.clone(),
            execution: execution.id.clone(),
            job_id: id,
            node_id: job.node_id,
            kind: job.kind,
            purpose: job.purpose,
            decls: bodies.iter().map(stage::decl).collect(),
            bodies,
            rack: machine.map_or(String::new(), |m| m.spec.rack),
            fresh: Fresh::make(store.ambient().as_ref()),
        }))
    }

    fn record_ended_from_outside(
        &self,
        tx: &mut Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> TxResult<()> {
        ended_outside(tx, execution, by, reason)
    }
}
