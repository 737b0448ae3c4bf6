//! The run: a plan's steps in order, on one machine.

mod join;
mod net;
mod netboot;
mod reboot;
mod record;
mod repave;
mod rma;
mod ssh;
mod stage;
mod verify;

use crate::run::stage::{Access, Stage};
use async_trait::async_trait;
use domain::plan::{Step, StepKind};
use domain::stage::StageDecl;
use domain::{Error, ExecutionId, Reason, RunId};
use engine::{Aborted, Acted, Event, Failure, Look, StageCx, Work, Workflow};
use provider::{By, Providers, Stream, Target};
use std::sync::Arc;
use store::execution::Execution;
use store::{Store, Tx, TxResult, machine, step_log};

pub const RUN_WORKFLOW: &str = "run";
pub const RUN_WORKFLOW_VERSION: u32 = 1;

pub struct RunWorkflow {
    providers: Providers,
}

impl RunWorkflow {
    pub fn new(providers: Providers) -> Self {
        Self { providers }
    }
}

#[async_trait]
impl Workflow for RunWorkflow {
    fn name(&self) -> &'static str {
        RUN_WORKFLOW
    }

    fn version(&self) -> u32 {
        RUN_WORKFLOW_VERSION
    }

    async fn load(&self, store: &Store, execution: &Execution) -> Result<Arc<dyn Work>, Error> {
        let run_id = RunId::from_text(execution.subject.clone());
        let (id, machine_id) = (run_id.clone(), execution.machine_id.clone());
        let loaded =
            store.read(move |tx| Ok((store::run::get_with_steps(tx, &id)?, machine::get(tx, &machine_id)?))).await?;
        let (Some((_, steps)), Some(machine)) = loaded else {
            return Err(Error::internal(format!(
                "{run_id} or its machine {} is not in the store",
                execution.machine_id
            )));
        };
        let name = machine.spec.provider_name(&machine.labels).to_owned();
        let provider = self.providers.get(&name).map_err(|e| {
            Error::new(Reason::ProviderUnknown, format!("{run_id} on machine {}: {e}", execution.machine_id))
        })?;
        let target = Target::of(&machine).on_behalf_of(By::Run(run_id.clone()));
        let stages = steps.iter().map(StageDecl::of_step).collect();
        Ok(Arc::new(RunWork {
            execution_id: execution.id.clone(),
            run_id,
            bodies: steps.iter().map(|s| body(&s.kind)).collect(),
            steps,
            stages,
            access: Access { target, provider },
        }))
    }

    fn record_ended_from_outside(
        &self,
        tx: &mut Tx<'_>,
        execution: &Execution,
        by: &str,
        reason: &str,
    ) -> TxResult<()> {
        record::ended_from_outside(tx, execution, by, reason)
    }
}

/// The body of each kind of step.
fn body(kind: &StepKind) -> Box<dyn Stage> {
    match kind.clone() {
        StepKind::Ssh { command, args, environment } => Box::new(ssh::Ssh::new(command, args, environment)),
        StepKind::Reboot { mode } => Box::new(reboot::Reboot { mode }),
        StepKind::Netboot { mode, persistent } => Box::new(netboot::Netboot { mode, persistent }),
        StepKind::Repave { image, user_data_ref } => Box::new(repave::Repave { image, user_data_ref }),
        StepKind::Join { cluster_ref } => Box::new(join::Join { cluster_ref }),
        StepKind::Verify { cluster_ref } => Box::new(verify::Verify { cluster_ref }),
        StepKind::Net { parameters } => Box::new(net::Net { parameters }),
        StepKind::Rma { action, reason } => Box::new(rma::Rma { action, reason }),
    }
}

struct RunWork {
    execution_id: ExecutionId,
    run_id: RunId,
    steps: Vec<Step>,
    stages: Vec<StageDecl>,
    bodies: Vec<Box<dyn Stage>>,
    access: Access,
}

impl RunWork {
    fn body(&self, index: usize) -> Result<&dyn Stage, Failure> {
        self.bodies.get(index).map(AsRef::as_ref).ok_or_else(|| {
            Failure::new(
                "UNKNOWN_STAGE",
                domain::stage::FailureClass::NeedsOperator,
                format!("there is no step {index}"),
            )
        })
    }

    fn access<'a>(&'a self, cx: &'a StageCx) -> stage::At<'a> {
        let name = self.steps.get(cx.index).map_or("", |s| s.name.as_str());
        stage::At::new(&self.access, cx, name)
    }
}

#[async_trait]
impl Work for RunWork {
    fn stages(&self) -> &[StageDecl] {
        &self.stages
    }

    fn rack(&self) -> &str {
        &self.access.target.spec.rack
    }

    async fn look(&self, cx: &StageCx) -> Look {
        match self.body(cx.index) {
            Ok(body) => {
                let mut look = body.look(&self.access(cx)).await;
                let notes = self.access.target.notes.take().into_iter().map(|note| format!("[millwright: {note}]\n"));
                let noted = notes.map(|note| (Stream::Stderr.as_str(), note.into_bytes()));
                look.output = noted.chain(look.output).collect();
                look
            }
            Err(failure) => engine::Seen::Failed(failure).into(),
        }
    }

    async fn act(&self, cx: &StageCx) -> Acted {
        match self.body(cx.index) {
            Ok(body) => body.act(&self.access(cx)).await,
            Err(failure) => Acted::No(failure),
        }
    }

    async fn abort(&self, cx: &StageCx) -> Result<Aborted, Failure> {
        self.body(cx.index)?.abort(&self.access(cx)).await
    }

    async fn undo(&self, cx: &StageCx) -> Result<(), Failure> {
        self.body(cx.index)?.undo(&self.access(cx)).await
    }

    fn record(&self, tx: &mut Tx<'_>, events: &[Event]) -> TxResult<()> {
        record::events(tx, &self.run_id, &self.execution_id, &self.steps, events)
    }

    fn record_output(&self, tx: &mut Tx<'_>, index: usize, output: &[(&'static str, Vec<u8>)]) -> TxResult<()> {
        let step = self.steps.get(index).map_or("", |s| s.name.as_str());
        step_log::append(tx, &self.run_id, step, output)
    }
}
