//! The bodies of a job's stages. What the engine sees of a job.

use super::boot::OnBoot;
use super::maas::{Asks, OnMaas};
use super::task_stage::TaskStage;
use super::{EXECUTOR, Fresh, Hands, NodePolicy, follow, hardware_of, record, seen};
use async_trait::async_trait;
use domain::agent::IdentityState;
use domain::finding::FindingKind;
use domain::job::{Job, JobStatus, Purpose};
use domain::job_stage::{Ground, JobKind, JobStage, Mode, Undo};
use domain::link::{Candidate, Link, link_node, record_of_node};
use domain::node::{Node, NodeStatus, PROBES};
use domain::stage::{FailureClass, StageDecl};
use domain::{Error, ExecutionId, JobId, NodeId};
use engine::{Aborted, Acted, Event, Failure, Look, Seen, StageCx, Work};
use std::sync::Arc;
use store::{Caller, Cause, Store, Tx, TxResult, agent, finding, job, machine, node};

/// A stage as it is carried out, or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Do(JobStage),
    TakeBack(JobStage, Undo),
}

pub(super) fn forward(job: &Job) -> Vec<Body> {
    job.stages().iter().skip(job.first_stage).map(|stage| Body::Do(*stage)).collect()
}

pub(super) fn compensation(job: &Job) -> Vec<Body> {
    let undo = |stage: JobStage| stage.undo().map(|undo| Body::TakeBack(stage, undo));
    job.to_take_back().into_iter().filter_map(undo).collect()
}

pub(super) fn decl(body: &Body) -> StageDecl {
    match body {
        Body::Do(stage) => stage.decl(),
        Body::TakeBack(stage, _) => StageDecl { name: format!("undo {stage}"), destructive: false, ..stage.decl() },
    }
}

pub(super) struct JobWork {
    pub store: Store,
    pub policy: Arc<NodePolicy>,
    pub hands: Hands,
    pub execution: ExecutionId,
    pub job_id: JobId,
    pub node_id: NodeId,
    pub kind: JobKind,
    pub purpose: Purpose,
    pub bodies: Vec<Body>,
    pub decls: Vec<StageDecl>,
    pub rack: String,
    pub fresh: Fresh,
}

pub(super) fn failed(e: &Error) -> Failure {
    Failure::new(e.reason.as_str(), FailureClass::Transient, e.message.clone())
}

/// A stage of an attempt that is not the job's any more: whoever ended it has said how the job goes on.
fn not_ours() -> Failure {
    Failure::new("SUPERSEDED", FailureClass::NeedsOperator, "another attempt of this job has begun")
}

/// Everything that a stage looks at, read at once.
pub(super) struct Sight {
    pub job: Job,
    pub node: Node,
    pub agent: Option<domain::agent::AgentIdentity>,
}

impl JobWork {
    pub(super) async fn sight(&self) -> Result<Sight, Failure> {
        let (job, node) = (self.job_id.clone(), self.node_id.clone());
        let read = self.store.read(move |tx| {
            let agent = tx.point(&agent::by_node(&node))?;
            Ok(tx.point(&job::by_id(&job))?.zip(tx.point(&node::by_id(&node))?).map(|(job, node)| (job, node, agent)))
        });
        let (job, node, agent) = read.await.map_err(|e| failed(&e))?.ok_or_else(not_ours)?;
        if job.execution_id != self.execution {
            return Err(not_ours());
        }
        Ok(Sight { job, node, agent })
    }

    /// Whether a stage is a MAAS's here: an agent that comes with a bundle by hand is awaited without one.
    fn asks_maas(&self, stage: JobStage) -> Option<Asks> {
        match stage {
            JobStage::Maas(stage) => Some(Asks::Stage(stage)),
            JobStage::WaitForAgentEnrollment if self.kind.ground() == Ground::Maas => Some(Asks::Enrolment),
            _ => None,
        }
    }

    /// Whether a stage is our network boot's here.
    fn asks_boot(&self, stage: JobStage) -> bool {
        match stage {
            JobStage::RepaveMachine => true,
            JobStage::WaitForAgentEnrollment => self.kind == JobKind::Decommission(Mode::Reimage(Ground::Boot)),
            _ => false,
        }
    }

    fn body(&self, index: usize) -> Result<Body, Failure> {
        self.bodies.get(index).copied().ok_or_else(|| {
            Failure::new("UNKNOWN_STAGE", FailureClass::NeedsOperator, format!("there is no stage {index}"))
        })
    }

    /// Writes as long as the job is this attempt's.
    pub(super) async fn write(
        &self,
        make: impl Fn(&mut Tx<'_>, Node, Job) -> TxResult<()> + Send + 'static,
    ) -> Result<bool, Error> {
        let (id, execution) = (self.job_id.clone(), self.execution.clone());
        self.store
            .write(&Caller::engine(), self.node_id.as_str(), move |tx| {
                let (node, job) = follow::lock(tx, &id)?;
                if job.execution_id != execution || !job.status.is_under_way() {
                    return Ok(false);
                }
                make(tx, node, job)?;
                Ok(true)
            })
            .await
    }

    async fn look_at(&self, stage: JobStage, cx: &StageCx) -> Result<Look, Failure> {
        let sight = self.sight().await?;
        if let Some(kind) = stage.task(self.kind) {
            return TaskStage { work: self, stage, kind }.look(cx, &sight).await;
        }
        if let Some(asks) = self.asks_maas(stage) {
            return OnMaas { work: self }.look(asks, cx, sight).await;
        }
        if self.asks_boot(stage) {
            return OnBoot { work: self }.look(stage, cx, sight).await;
        }
        let waiting = |on: String| Seen::Waiting { on, look_again: cx.look_again() };
        let seen = match stage {
            JobStage::WaitForAgentEnrollment => match &sight.agent {
                Some(agent) if agent.state != IdentityState::Good => Seen::Failed(Failure::new(
                    "IDENTITY_STOPPED",
                    FailureClass::NeedsOperator,
                    format!("the agent's identity is {}: {}", agent.state, agent.state_reason),
                )),
                Some(agent) if agent.confirmed && agent.last_beat.is_some() => {
                    Seen::Done(format!("enrolled at {}, and heard of", agent.enrolled_at))
                }
                Some(_) => waiting("the agent's first heartbeat".to_owned()),
                None => self.awaits_an_agent(&sight, cx).await?,
            },
            JobStage::LinkMachine => match &sight.node.machine_id {
                Some(machine) => self.agrees(machine, &sight).await?,
                None => self.machine_is_free(&sight, cx).await?,
            },
            // the heartbeats themselves bring it back, once nothing is left against it
            JobStage::CheckHealth if matches!(self.kind, JobKind::Decommission(Mode::Reimage(_))) => {
                match sight.node.status {
                    NodeStatus::Active => Seen::Done("its heartbeat is steady: it is active".to_owned()),
                    // what a person has said outlasts the job; what probes have said they take back
                    NodeStatus::Quarantined if sight.node.quarantined_by != PROBES => {
                        let (by, id) = (&sight.node.quarantined_by, &sight.node.id);
                        Seen::Done(format!(
                            "{by} has quarantined it meanwhile, until 'millwright node recover {id} --reason WHY'"
                        ))
                    }
                    status => waiting(format!("its heartbeats to bring it from {status} to active")),
                }
            }
            JobStage::CheckHealth => {
                let now = self.store.ambient().now();
                let steady = follow::agent_is_steady(sight.agent.as_ref(), &self.policy.heartbeat, now);
                match (steady, sight.agent.as_ref().map_or(Ok(()), seen::probes_pass)) {
                    (Err(why), _) => waiting(format!("a steady heartbeat: {why}")),
                    (Ok(()), Err(why)) => waiting(format!("its probes to pass: {why}")),
                    (Ok(()), Ok(())) => Seen::Done("its heartbeat is steady, and its probes pass".to_owned()),
                }
            }
            JobStage::DisableNode if sight.node.is_cordoned() => {
                Seen::Done(format!("cordoned by {}", sight.node.cordoned_by))
            }
            JobStage::DisableNode => Seen::Clear,
            JobStage::ForceReleaseAllocations => match self.hands.allocations.on(&sight.node.id).await {
                Ok(placed) if placed.is_empty() => Seen::Done("nothing is allocated on it".to_owned()),
                Ok(placed) if cx.acted => waiting(format!("the release of {}", placed.join(", "))),
                Ok(_) => Seen::Clear,
                Err(e) => Seen::Failed(failed(&e)),
            },
            // the move itself is in the commit of this
            JobStage::RetireGpuaasNode => Seen::Done("drained".to_owned()),
            JobStage::CleanupSecrets => self.secrets_gone(&sight).await?,
            // its system is gone, and the agent with it: the move itself is in the commit of this
            JobStage::RemoveGpuaasNodeRecord => Seen::Done("its system was given back".to_owned()),
            JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode
            | JobStage::RepaveMachine
            | JobStage::Maas(_) => Seen::Failed(not_ours()),
        };
        Ok(seen.into())
    }

    /// Somebody may still come with the bundle; where none is good any more, nobody will.
    async fn awaits_an_agent(&self, sight: &Sight, cx: &StageCx) -> Result<Seen, Failure> {
        let id = sight.node.id.clone();
        let read = self.store.read(move |tx| Ok((agent::tokens_of(tx, &id)?, tx.now())));
        let (tokens, now) = read.await.map_err(|e| failed(&e))?;
        if tokens.iter().any(|token| !token.withdrawn && token.key_sha256.is_none() && token.expires_at > now) {
            let on = "an agent to enrol with the bundle that was issued".to_owned();
            return Ok(Seen::Waiting { on, look_again: cx.look_again() });
        }
        let message = format!(
            "no bundle of node {0} is good any more; issue one with 'millwright node rebootstrap {0}', then try again",
            sight.node.id
        );
        Ok(Seen::Failed(Failure::new("NO_BUNDLE", FailureClass::NeedsOperator, message)))
    }

    /// A machine that a run is at is not linked before that has ended: one of the two holds it at a time.
    async fn machine_is_free(&self, sight: &Sight, cx: &StageCx) -> Result<Seen, Failure> {
        let facts = sight.agent.as_ref().map(hardware_of).unwrap_or_default();
        let read = self.store.read(move |tx| {
            for holder in node::holders(tx, &facts)? {
                if let Some(run) = machine::get(tx, &holder)?.and_then(|machine| machine.active_run) {
                    return Ok(Some((holder, run.id)));
                }
            }
            Ok(None)
        });
        Ok(match read.await.map_err(|e| failed(&e))? {
            Some((machine, run)) => {
                Seen::Waiting { on: format!("run {run} on machine {machine} to end"), look_again: cx.look_again() }
            }
            None => Seen::Clear,
        })
    }

    /// Whether the machine it is linked to is the one that its agent runs on.
    pub(super) async fn agrees(&self, id: &domain::MachineId, sight: &Sight) -> Result<Seen, Failure> {
        let wanted = id.clone();
        let there = self.store.read(move |tx| machine::get(tx, &wanted)).await.map_err(|e| failed(&e))?;
        let facts = sight.agent.as_ref().map(hardware_of).unwrap_or_default();
        let contradiction =
            there.and_then(|m| domain::identity::another_machine(&m.spec, &facts.serial_number, &facts.system_uuid));
        Ok(match contradiction {
            Some(why) => {
                let message = format!("node {} is linked to machine {id}, but {why}", sight.node.id);
                self.conflict(&message).await?;
                Seen::Failed(Failure::new("IDENTITY_CONFLICT", FailureClass::Conflict, message))
            }
            None => Seen::Done(format!("it is machine {id}")),
        })
    }

    async fn conflict(&self, message: &str) -> Result<(), Failure> {
        let (fresh, message) = (self.fresh.finding.clone(), message.to_owned());
        let raised = self.write(move |tx, node, _| {
            let kind = FindingKind::NodeIdentityConflict;
            finding::raise(tx, fresh.clone(), kind, node.id.as_str(), &message, EXECUTOR)
        });
        raised.await.map(drop).map_err(|e| failed(&e))
    }

    async fn secrets_gone(&self, sight: &Sight) -> Result<Seen, Failure> {
        let id = sight.node.id.clone();
        let tokens = self.store.read(move |tx| agent::tokens_of(tx, &id)).await.map_err(|e| failed(&e))?;
        let revoked = sight.agent.as_ref().is_none_or(|agent| agent.state == IdentityState::Revoked);
        Ok(if tokens.is_empty() && revoked { Seen::Done("no token, no identity".to_owned()) } else { Seen::Clear })
    }

    async fn do_stage(&self, stage: JobStage, cx: &StageCx) -> Acted {
        if let Some(kind) = stage.task(self.kind) {
            return TaskStage { work: self, stage, kind }.act(cx).await;
        }
        if let Some(asks) = self.asks_maas(stage) {
            return OnMaas { work: self }.act(asks, cx).await;
        }
        let written = match stage {
            JobStage::DisableNode => {
                self.write(|tx, node, job| {
                    if node.is_cordoned() {
                        return Ok(());
                    }
                    let cordoned_by = follow::cordon_of(&job);
                    node::save(tx, &Node { cordoned_by, cordon_reason: job.kind.to_string(), ..node }).map(drop)
                })
                .await
            }
            JobStage::LinkMachine => return self.link().await,
            JobStage::RepaveMachine => return OnBoot { work: self }.repave(cx).await,
            JobStage::CleanupSecrets => {
                self.write(|tx, node, _| {
                    agent::forget_tokens(tx, &node.id)?;
                    agent::set_state(tx, &node.id, IdentityState::Revoked, "its node was removed")
                })
                .await
            }
            JobStage::ForceReleaseAllocations => {
                let reason = format!("{} of job {}", self.kind, self.job_id);
                self.hands.allocations.release(&self.node_id, &reason).await.map(|()| true)
            }
            // they only look, or are another's
            JobStage::WaitForAgentEnrollment
            | JobStage::CheckHealth
            | JobStage::RetireGpuaasNode
            | JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode
            | JobStage::RemoveGpuaasNodeRecord
            | JobStage::Maas(_) => Ok(true),
        };
        acted(written)
    }

    /// Links the node to the machine that its identifiers name, or writes that machine down; what is ambiguous is a
    /// finding, and for a person.
    async fn link(&self) -> Acted {
        let (policy, fresh) = (self.policy.clone(), self.fresh.clone());
        let (id, execution, of) = (self.job_id.clone(), self.execution.clone(), self.node_id.clone());
        let caller = Caller::engine();
        let linked = self.store.write(&caller, self.node_id.as_str(), move |tx| {
            let Some(agent) = tx.point(&agent::by_node(&of))? else { return Ok(Ok(())) };
            let facts = hardware_of(&agent);
            // machines before nodes, as everybody locks them: a run that begins meanwhile finds the node, or we find the run
            for holder in node::holders(tx, &facts)? {
                let held = machine::get_for_update(tx, &holder)?.and_then(|machine| machine.active_run);
                if let Some(run) = held {
                    let message = format!("run {} is active on machine {holder}", run.id);
                    return Err(Error::new(domain::Reason::ActiveRun, message).into());
                }
            }
            let (node, job) = follow::lock(tx, &id)?;
            // whoever has stopped the job meanwhile finds the node as it was
            if !is_current(&job, &execution) || node.machine_id.is_some() {
                return Ok(Ok(()));
            }
            if !facts.tell() {
                return Ok(Err("its agent tells neither a serial number nor a UUID nor a card".to_owned()));
            }
            let mut candidates = Vec::new();
            for holder in node::holders(tx, &facts)? {
                let Some(machine) = machine::get(tx, &holder)? else { continue };
                let taken = tx.point(&node::by_machine(&holder))?.is_some_and(|other| other.id != node.id);
                candidates.push(Candidate { id: holder, spec: machine.spec, expected: true, taken });
            }
            let machine = match link_node(&facts, &candidates) {
                Link::Linked(machine) | Link::Proposed(machine) => machine,
                Link::New => {
                    let spec = record_of_node(&facts, &policy.provider);
                    let cause = Cause::operator(&job.requested_by, domain::machine::REGISTERED, "a node is on it");
                    machine::insert(tx, &fresh.machine, &spec, &domain::machine::Labels::default(), &cause)?.id
                }
                Link::Conflict(why) => {
                    let message = format!("node {}: {why}", node.id);
                    let kind = FindingKind::NodeIdentityConflict;
                    finding::raise(tx, fresh.finding.clone(), kind, node.id.as_str(), &message, EXECUTOR)?;
                    return Ok(Err(message));
                }
            };
            finding::gone(tx, FindingKind::NodeIdentityConflict, node.id.as_str(), "it is linked", EXECUTOR)?;
            node::save(tx, &Node { machine_id: Some(machine), ..node })?;
            Ok(Ok(()))
        });
        match linked.await {
            Ok(Ok(())) => Acted::Yes,
            Ok(Err(why)) => Acted::No(Failure::new("IDENTITY_CONFLICT", FailureClass::Conflict, why)),
            Err(e) => Acted::No(failed(&e)),
        }
    }

    async fn look_back(&self, undo: Undo, cx: &StageCx) -> Result<Look, Failure> {
        let sight = self.sight().await?;
        let done = match undo {
            Undo::GiveBack | Undo::RemoveCreated => {
                return OnMaas { work: self }.look_back(undo, cx, sight).await;
            }
            Undo::CancelRun => return OnBoot { work: self }.look_back(cx, sight).await,
            Undo::LiftCordon => sight.node.cordoned_by != follow::cordon_of(&sight.job),
            Undo::WithdrawBundle => {
                let id = sight.node.id.clone();
                let tokens = self.store.read(move |tx| agent::tokens_of(tx, &id)).await.map_err(|e| failed(&e))?;
                tokens.iter().all(|token| token.withdrawn || token.key_sha256.is_some())
            }
        };
        Ok(if done { Seen::Done("taken back".to_owned()) } else { Seen::Clear }.into())
    }

    async fn take_back(&self, undo: Undo) -> Acted {
        if matches!(undo, Undo::GiveBack | Undo::RemoveCreated) {
            return match self.sight().await {
                Ok(sight) => OnMaas { work: self }.take_back(undo, sight).await,
                Err(failure) => Acted::No(failure),
            };
        }
        if undo == Undo::CancelRun {
            return OnBoot { work: self }.take_back().await;
        }
        let written = self.write(move |tx, node, job| match undo {
            Undo::LiftCordon if node.cordoned_by == follow::cordon_of(&job) => {
                node::save(tx, &Node { cordoned_by: String::new(), cordon_reason: String::new(), ..node }).map(drop)
            }
            Undo::LiftCordon => Ok(()),
            Undo::WithdrawBundle => agent::withdraw(tx, &node.id),
            Undo::GiveBack | Undo::RemoveCreated | Undo::CancelRun => Ok(()),
        });
        acted(written.await)
    }
}

fn acted(written: Result<bool, Error>) -> Acted {
    match written {
        Ok(true) => Acted::Yes,
        Ok(false) => Acted::No(not_ours()),
        Err(e) => Acted::No(failed(&e)),
    }
}

#[async_trait]
impl Work for JobWork {
    fn stages(&self) -> &[StageDecl] {
        &self.decls
    }

    fn rack(&self) -> &str {
        &self.rack
    }

    async fn look(&self, cx: &StageCx) -> Look {
        let looked = match self.body(cx.index) {
            Ok(Body::Do(stage)) => self.look_at(stage, cx).await,
            Ok(Body::TakeBack(_, undo)) => self.look_back(undo, cx).await,
            Err(failure) => Err(failure),
        };
        looked.unwrap_or_else(|failure| Seen::Failed(failure).into())
    }

    async fn act(&self, cx: &StageCx) -> Acted {
        match self.body(cx.index) {
            Ok(Body::Do(stage)) => self.do_stage(stage, cx).await,
            Ok(Body::TakeBack(_, undo)) => self.take_back(undo).await,
            Err(failure) => Acted::No(failure),
        }
    }

    async fn abort(&self, cx: &StageCx) -> Result<Aborted, Failure> {
        match self.body(cx.index)? {
            Body::Do(stage) => match stage.task(self.kind) {
                Some(kind) => TaskStage { work: self, stage, kind }.withdraw().await,
                // done by one commit
                None => Ok(Aborted::Stopped),
            },
            Body::TakeBack(..) => Ok(Aborted::Stopped),
        }
    }

    async fn undo(&self, _: &StageCx) -> Result<(), Failure> {
        Ok(())
    }

    fn record(&self, tx: &mut Tx<'_>, events: &[Event]) -> TxResult<()> {
        record::events(tx, self, events)
    }

    fn record_output(&self, _: &mut Tx<'_>, _: usize, _: &[(&'static str, Vec<u8>)]) -> TxResult<()> {
        // what a task prints is kept with the task
        Ok(())
    }
}

/// Whether an attempt may still write.
pub(super) fn is_current(job: &Job, execution: &ExecutionId) -> bool {
    job.execution_id == *execution
        && match job.status {
            JobStatus::Pending | JobStatus::Running | JobStatus::Compensating => true,
            JobStatus::FailedRetryable
            | JobStatus::FailedManualIntervention
            | JobStatus::Completed
            | JobStatus::Cancelled
            | JobStatus::Reconciled => false,
        }
}
