//! StartRun: existence, replay, active run, plan, all in one transaction.

use crate::machines::{no_active_run, not_held, required};
use crate::netboot_orders::check_images;
use crate::reimage::{is_asked_for, job_named};
use crate::runs::{RunView, view};
use crate::{Call, Service, machines, plans};
use domain::limits;
use domain::machine::{Machine, check_text, may_start_run};
use domain::plan::{Plan, Step, StepKind};
use domain::plan_defaults::{default_plan_id, tailored};
use domain::run::{REQUESTED, RunChange, RunType, START_WITHIN};
use domain::token::Role;
use domain::{Error, ExecutionId, JobId, MachineId, Reason, RunId};
use provider::Providers;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::execution::{self, NewExecution};
use store::{Cause, Tx, TxResult, hold, idempotency, job, machine, node, run, task};
use workflow::job::{RepaveWish, runs_of};
use workflow::{RUN_WORKFLOW, RUN_WORKFLOW_VERSION};

#[derive(Clone, Debug, Default)]
pub struct StartRun {
    pub request_id: String,
    pub machine_id: String,
    /// Empty: only a plan is named.
    pub run_type: String,
    pub plan_id: String,
    pub parameters: BTreeMap<String, String>,
    pub override_reason: String,
}

impl StartRun {
    fn checked_type(&self) -> Result<Option<RunType>, Error> {
        required("request_id", &self.request_id)?;
        check_text("request_id", &self.request_id, limits::REQUEST_ID_MAX)?;
        required("machine_id", &self.machine_id)?;
        check_text("override_reason", &self.override_reason, limits::COMMENT_MAX)?;
        check_text("plan_id", &self.plan_id, limits::NAME_MAX)?;
        if self.parameters.len() > limits::PARAMETERS_MAX {
            return Err(Error::field("parameters", format!("more than {} entries", limits::PARAMETERS_MAX)));
        }
        for (name, value) in &self.parameters {
            check_text("parameters (name)", name, limits::LABEL_KEY_MAX)?;
            check_text(&format!("parameters.{name}"), value, limits::PARAMETERS_BYTES_MAX)?;
        }
        let bytes: usize = self.parameters.iter().map(|(k, v)| k.len() + v.len()).sum();
        if bytes > limits::PARAMETERS_BYTES_MAX {
            let problem = format!("have {bytes} bytes together, at most {} are allowed", limits::PARAMETERS_BYTES_MAX);
            return Err(Error::field("parameters", problem));
        }
        match (self.run_type.as_str(), self.plan_id.as_str()) {
            ("", "") => Err(Error::field("type", "name a type or a plan_id")),
            ("", _) => Ok(None),
            (text, _) => RunType::parse(text).map(Some),
        }
    }

    pub(crate) fn fingerprint(&self) -> String {
        let parameters = self.parameters.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]);
        idempotency::fingerprint(
            [self.run_type.as_str(), &self.plan_id, &self.override_reason].into_iter().chain(parameters),
        )
    }
}

impl Service {
    /// Starts a run and returns at once. The same request again returns the run it started.
    pub async fn start_run(&self, call: &Arc<Call>, request: StartRun) -> Result<RunView, Error> {
        let run_type = request.checked_type()?;
        if request.parameters.get("user_data_ref").is_some_and(|named| job_named(named).is_some()) {
            let problem = "names a job, whose own runs alone are told what it tells; name a credential";
            return Err(Error::field("parameters.user_data_ref", problem));
        }
        if !request.override_reason.is_empty() {
            call.needs(Role::Admin, "override_reason")?;
            call.for_fleet("override_reason")?;
        }
        let new = NewRun {
            run_id: RunId::generate(self.store().ambient().uuid()),
            execution_id: ExecutionId::generate(self.store().ambient().uuid()),
            machine_id: MachineId::from_text(request.machine_id.clone()),
            run_type,
            fingerprint: request.fingerprint(),
            call: call.clone(),
            providers: self.inner.providers.clone(),
            request,
            for_job: None,
        };
        let key = new.machine_id.to_string();
        self.change(call, &key, move |tx| new.start(tx)).await
    }
}

pub(crate) struct NewRun {
    pub run_id: RunId,
    pub execution_id: ExecutionId,
    pub machine_id: MachineId,
    pub run_type: Option<RunType>,
    pub fingerprint: String,
    pub call: Arc<Call>,
    pub providers: Providers,
    pub request: StartRun,
    /// The job that wants it, which holds the node on the machine.
    pub for_job: Option<RepaveWish>,
}

impl NewRun {
    pub(crate) fn start(&self, tx: &mut Tx<'_>) -> TxResult<RunView> {
        let id = &self.machine_id;
        let machine = machine::get_for_update(tx, id)?.filter(|m| self.call.sees(m));
        let machine = machine.ok_or_else(|| machines::not_found(id.as_str()))?;
        if let Some(known) = self.replay(tx)? {
            return Ok(known);
        }
        no_active_run(&machine)?;
        not_held(id, hold::of(tx, id)?.as_ref())?;
        if let Some(wish) = &self.for_job {
            is_asked_for(tx, wish)?;
        }
        node_is_free(tx, id, self.for_job.as_ref().map(|wish| &wish.job))?;
        self.check_phase(&machine)?;
        let plan = self.plan(tx, &machine)?;
        may_use(&self.call, &machine, &plan, &self.request.parameters)?;
        let steps = plan.resolve(&self.request.parameters, &machine.spec.target_cluster_ref)?;
        self.providers.check(&machine, &steps)?;
        check_images(tx, &self.providers, &machine, &steps)?;
        self.insert(tx, &machine, &plan, &steps)
    }

    /// The run that this very request has started, if any.
    fn replay(&self, tx: &mut Tx<'_>) -> TxResult<Option<RunView>> {
        let Some(known) = idempotency::find(tx, &self.scope(), &self.request.request_id)? else { return Ok(None) };
        let run_id = RunId::from_text(known.answer);
        let run = run::get(tx, &run_id)?.ok_or_else(|| Error::internal(format!("run {run_id} is not in the store")))?;
        let used = format!("request_id {:?} was used for another request", self.request.request_id);
        if !self.call.by.sees_customer(&run.customer_id) {
            let message = format!("{used} on machine {}, before it was yours; use a new request_id", self.machine_id);
            return Err(Error::new(Reason::RequestIdReused, message).into());
        }
        if known.fingerprint != self.fingerprint {
            let message =
                format!("{used} on machine {}: it started run {run_id}; use a new request_id", self.machine_id);
            return Err(Error::new(Reason::RequestIdReused, message).with("run_id", run_id.as_str()).into());
        }
        Ok(Some(view(tx, run)?))
    }

    fn scope(&self) -> String {
        runs_of(&self.machine_id)
    }

    fn check_phase(&self, machine: &Machine) -> Result<(), Error> {
        if may_start_run(machine.phase, self.run_type == Some(RunType::Rma)) {
            return Ok(());
        }
        Err(Error::new(
            Reason::PhaseForbidsRun,
            format!(
                "machine {} is {}: no run may start there; move it to another phase first, where that is possible",
                machine.id, machine.phase
            ),
        )
        .with("phase", machine.phase.to_string()))
    }

    fn plan(&self, tx: &mut Tx<'_>, machine: &Machine) -> TxResult<Plan> {
        let has_cluster =
            !machine.spec.target_cluster_ref.is_empty() || self.request.parameters.contains_key("cluster_ref");
        let id = match (&self.request.plan_id, self.run_type) {
            (id, Some(run_type)) if id.is_empty() => default_plan_id(run_type, has_cluster).to_owned(),
            (id, _) => id.clone(),
        };
        Ok(tailored(plans::find(tx, &id)?, has_cluster))
    }

    fn insert(&self, tx: &mut Tx<'_>, machine: &Machine, plan: &Plan, steps: &[Step]) -> TxResult<RunView> {
        let change = RunChange::Requested {
            machine_id: self.machine_id.clone(),
            customer_id: machine.spec.customer_id.clone(),
            request_id: self.request.request_id.clone(),
            run_type: self.run_type,
            plan_id: plan.id.clone(),
            steps: steps.iter().map(|s| s.name.clone()).collect(),
            parameters: self.request.parameters.clone(),
        };
        let comment = match self.request.override_reason.as_str() {
            "" => String::new(),
            reason => format!("override: {reason}"),
        };
        let run =
            run::insert(tx, &self.run_id, &change, steps, &Cause::operator(&self.call.by.name, REQUESTED, &comment))?;
        machine::set_hold(tx, machine, Some(&self.run_id), &machine.conditions)?;
        execution::insert(
            tx,
            &NewExecution {
                id: &self.execution_id,
                workflow: RUN_WORKFLOW,
                workflow_version: RUN_WORKFLOW_VERSION,
                subject: self.run_id.as_str(),
                machine_id: &self.machine_id,
                start_within: START_WITHIN,
            },
        )?;
        idempotency::remember(tx, &self.scope(), &self.request.request_id, &self.fingerprint, self.run_id.as_str())?;
        view(tx, run)
    }
}

/// One hold for a machine: what a job or a task does to its node must not be met by a run. In a transaction that has the
/// machine's row it stays so. A run that its own job wants is no such meeting.
fn node_is_free(tx: &mut Tx<'_>, machine: &MachineId, own: Option<&JobId>) -> TxResult<()> {
    let Some(enrolled) = tx.point(&node::by_machine(machine))? else { return Ok(()) };
    let held = |by: String| {
        let message = format!("machine {machine} is node {} ({}), which {by}", enrolled.id, enrolled.name);
        Error::new(Reason::MachineHeld, message).with("node_id", enrolled.id.as_str()).allowing(["wait", "cancel"])
    };
    if let Some(open) = tx.point(&job::open_of_node(&enrolled.id))?.filter(|open| Some(&open.id) != own) {
        let (id, kind, status) = (&open.id, open.kind, open.status);
        let by = format!(
            "job {id} ({kind}, {status}) holds; wait for its end, or call it off: 'millwright job cancel {id}'"
        );
        return Err(held(by).with("job_id", id.as_str()).into());
    }
    if let Some(live) = tx.point(&task::live_of_node(&enrolled.id))? {
        let (id, kind, status) = (&live.id, live.kind, live.status);
        let by = format!(
            "is at task {id} ({kind}, {status}); wait for its end, or take it back: 'millwright task cancel {id}'"
        );
        return Err(held(by).with("task_id", id.as_str()).into());
    }
    Ok(())
}

/// Parameters must not be a way around what only an administrator may put into a plan, nor a plan or
/// parameters a way out of a customer's scope.
pub(crate) fn may_use(
    call: &Call,
    machine: &Machine,
    plan: &Plan,
    parameters: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let given = |name: &str| parameters.get(name);
    let has = |f: fn(&StepKind) -> bool| plan.steps.iter().any(|s| f(&s.kind));
    let own = &machine.spec.target_cluster_ref;
    if given("command").is_some() && has(|k| matches!(k, StepKind::Ssh { .. })) {
        call.needs(Role::Admin, "parameters.command")?;
        call.for_fleet("parameters.command")?;
    }
    let named = plan.steps.iter().filter_map(|s| s.kind.cluster_ref()).filter(|c| !c.is_empty());
    if named.map(String::as_str).chain(given("cluster_ref").map(String::as_str)).any(|c| c != own) {
        call.for_fleet("another cluster than the machine's own")?;
    }
    if given("user_data_ref").is_some() {
        call.for_fleet("parameters.user_data_ref")?;
    }
    if has(|k| matches!(k, StepKind::Rma { .. })) {
        call.for_fleet("returning hardware")?;
    }
    Ok(())
}
