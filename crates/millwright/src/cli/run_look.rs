//! `run start --dry-run`: what a look at the machine and the plan tells about a start, with no start.
//!
//! The rules are the domain's own, the same that the server applies; whether the machine's provider can do
//! each step only the server knows.

use super::connect::{Clients, call};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::output::Format;
use super::token::quoted;
use domain::lifecycle::State as _;
use domain::machine::{Phase, may_start_run};
use domain::plan_defaults::{default_plan_id, tailored};
use domain::run::RunType;
use proto::baremetal::v1::{GetMachineRequest, GetPlanRequest, ListRunsRequest, Machine, StartRunRequest};
use proto::millwright::v1::GetFreezeRequest;

pub async fn look(clients: &Clients, request: &StartRunRequest, format: Format) -> Result<(), CliError> {
    let mut trial = DryRun::new("baremetal.v1.RunService/StartRun", &request.machine_id, request)?;
    if let Some(run) = replayed(clients, request).await? {
        trial.fine(format!("this request has started {run} already: it would be answered with that run again"));
        return trial.print(format);
    }
    let asked = GetMachineRequest { machine_id: request.machine_id.clone() };
    match call(clients.machines.clone().get_machine(asked)).await {
        Ok(machine) => {
            judge_machine(&mut trial, &machine, request);
            judge_plan(&mut trial, clients, &machine, request).await?;
        }
        // whoever is not there tells nothing about the machine
        Err(e) if e.exit() != Exit::NotFound => return Err(e),
        Err(e) => trial.obstacle(e),
    }
    // only told where it may be asked for; a start would be taken, and wait
    if let Ok(state) = call(clients.engine.clone().get_freeze(GetFreezeRequest {})).await
        && state.frozen
    {
        trial.fine(format!("{}; the run would wait", super::freeze::sentence(&state, super::text::now())));
    }
    trial.print(format)
}

/// The run that a request of this id has started on the machine.
async fn replayed(clients: &Clients, request: &StartRunRequest) -> Result<Option<String>, CliError> {
    let (machine, id) = (quoted(&request.machine_id), quoted(&request.request_id));
    let filter = format!("machine_id={machine} AND request_id={id}");
    let request = ListRunsRequest { filter, page_size: 1, page_token: String::new() };
    let page = call(clients.runs.clone().list_runs(request)).await?;
    Ok(page.runs.into_iter().next().map(|run| run.run_id))
}

fn judge_machine(trial: &mut DryRun, machine: &Machine, request: &StartRunRequest) {
    let id = &machine.machine_id;
    let status = machine.status.clone().unwrap_or_default();
    let phase = status.phase().as_str_name();
    let active = status.active_run_id;
    if !active.is_empty() {
        let error = CliError::refused(format!("machine {id} is held by {active}")).because("ACTIVE_RUN");
        trial.obstacle(error.hint(format!("millwright run watch {active}, or: millwright run cancel {active}")));
        return;
    }
    let is_rma = request.r#type == RunType::Rma.as_str();
    match Phase::parse(phase) {
        Some(known) if !may_start_run(known, is_rma) => {
            let error = CliError::refused(format!("machine {id} is {phase}: no run may start there"));
            trial.obstacle(error.because("PHASE_FORBIDS_RUN").hint(format!("millwright why {id}")));
        }
        Some(_) | None => trial.fine(format!("machine {id} is {phase}, and no run is active on it")),
    }
}

async fn judge_plan(
    trial: &mut DryRun,
    clients: &Clients,
    machine: &Machine,
    request: &StartRunRequest,
) -> Result<(), CliError> {
    let cluster = machine.spec.as_ref().map(|spec| spec.target_cluster_ref.as_str()).unwrap_or_default();
    let has_cluster = !cluster.is_empty() || request.parameters.contains_key("cluster_ref");
    let plan_id = match RunType::parse(&request.r#type) {
        Ok(kind) if request.plan_id.is_empty() => default_plan_id(kind, has_cluster).to_owned(),
        Ok(_) | Err(_) => request.plan_id.clone(),
    };
    let plan = match call(clients.plans.clone().get_plan(GetPlanRequest { plan_id })).await {
        Ok(plan) => plan,
        Err(e) if e.exit() != Exit::NotFound => return Err(e),
        Err(e) => {
            trial.obstacle(e);
            return Ok(());
        }
    };
    let resolved = api::plan_from_proto(plan).and_then(|plan| {
        let plan = tailored(plan, has_cluster);
        let steps = plan.resolve(&request.parameters, cluster)?;
        Ok((plan.id, steps))
    });
    match resolved {
        Ok((id, steps)) => {
            let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
            trial.fine(format!("plan {id}: {}", names.join(" → ")));
        }
        Err(e) => trial.obstacle(CliError::from(&e)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::{MachineStatus, machine_status};

    fn judged(phase: machine_status::Phase, active: &str, kind: &str) -> Option<u8> {
        let request = StartRunRequest { machine_id: "m-1".to_owned(), r#type: kind.to_owned(), ..Default::default() };
        let status = MachineStatus { phase: phase.into(), active_run_id: active.to_owned(), ..Default::default() };
        let machine = Machine { machine_id: "m-1".to_owned(), status: Some(status), ..Default::default() };
        let mut trial = DryRun::new("x", "m-1", &request).expect("shown");
        judge_machine(&mut trial, &machine, &request);
        trial.verdict().map(|exit| exit.code())
    }

    #[test]
    fn a_machine_that_is_held_or_retired_stands_in_the_way() {
        use machine_status::Phase::{Ready, Retired, Rma};
        assert_eq!(judged(Ready, "", "REPAVE"), None);
        assert_eq!(judged(Ready, "run_1", "REPAVE"), Some(4));
        assert_eq!(judged(Retired, "", "REPAVE"), Some(4));
        assert_eq!((judged(Rma, "", "REPAVE"), judged(Rma, "", "RMA")), (Some(4), None));
    }
}
