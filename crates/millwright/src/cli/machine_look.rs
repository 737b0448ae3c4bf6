//! `machine register|update|phase --dry-run`: the domain's own rules, and a look at the machine as it stands.

use super::connect::{Clients, call};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::output::Format;
use domain::lifecycle::{Owner, State as _, Verdict, allowed_next, judge};
use domain::machine::{self, SET_PHASE, check_labels};
use proto::baremetal::v1::{
    GetMachineRequest, Machine, MachineSpec, RegisterMachineRequest, SetPhaseRequest, UpdateMachineRequest,
};

/// The machine, if there is one.
async fn find(clients: &Clients, id: &str) -> Result<Option<Machine>, CliError> {
    match call(clients.machines.clone().get_machine(GetMachineRequest { machine_id: id.to_owned() })).await {
        Ok(machine) => Ok(Some(machine)),
        Err(e) if e.exit() == Exit::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether the facts are sound in themselves.
fn check(trial: &mut DryRun, machine: &Machine) {
    let spec = machine.spec.clone().unwrap_or_default();
    let sound = domain_spec(spec).normalized().and_then(|_| check_labels(&machine.labels));
    match sound {
        Ok(()) => trial.fine("the facts are sound"),
        Err(e) => trial.obstacle(CliError::from(&e)),
    }
}

fn domain_spec(spec: MachineSpec) -> machine::MachineSpec {
    machine::MachineSpec {
        ssh_endpoint: spec.ssh_endpoint,
        bmc_endpoint: spec.bmc_endpoint,
        target_cluster_ref: spec.target_cluster_ref,
        mac_addresses: spec.mac_addresses,
        provider: spec.provider,
        location: spec.location,
        rack: spec.rack,
        serial_number: spec.serial_number,
        customer_id: spec.customer_id,
        system_uuid: spec.system_uuid,
        credentials_ref: spec.credentials_ref,
    }
}

pub async fn register(clients: &Clients, request: &RegisterMachineRequest, format: Format) -> Result<(), CliError> {
    let machine = request.machine.clone().unwrap_or_default();
    let id = machine.machine_id.clone();
    let mut trial = DryRun::new("baremetal.v1.MachineService/RegisterMachine", &id, request)?;
    check(&mut trial, &machine);
    match id.as_str() {
        "" => trial.fine("the server would choose its id"),
        id => match find(clients, id).await? {
            Some(known) => {
                trial.fine(format!("{id} is known, at version {}: it would get exactly these facts", known.version));
            }
            None => trial.fine(format!("{id} is new")),
        },
    }
    trial.print(format)
}

pub async fn update(clients: &Clients, request: &UpdateMachineRequest, format: Format) -> Result<(), CliError> {
    let machine = request.machine.clone().unwrap_or_default();
    let id = machine.machine_id.clone();
    let mut trial = DryRun::new("baremetal.v1.MachineService/UpdateMachine", &id, &machine)?;
    trial.mask(request.update_mask.as_ref().map(|mask| mask.paths.as_slice()).unwrap_or_default());
    check(&mut trial, &machine);
    match find(clients, &id).await? {
        None => trial.obstacle(not_found(&id)),
        Some(known) if machine.version != 0 && machine.version != known.version => trial.obstacle(
            CliError::refused(format!("{id} is at version {}, not {}", known.version, machine.version))
                .because("VERSION_MISMATCH")
                .hint("somebody else changed it; look at it again with `show` and repeat"),
        ),
        Some(known) => trial.fine(format!("{id} is there, at version {}", known.version)),
    }
    trial.print(format)
}

fn not_found(id: &str) -> CliError {
    CliError::not_found(format!("there is no machine {id}"))
        .because("MACHINE_NOT_FOUND")
        .hint("millwright machine list")
}

pub async fn phase(clients: &Clients, request: &SetPhaseRequest, format: Format) -> Result<(), CliError> {
    let id = &request.machine_id;
    let mut trial = DryRun::new("baremetal.v1.MachineService/SetPhase", id, request)?;
    match find(clients, id).await? {
        None => trial.obstacle(not_found(id)),
        Some(known) => judge_move(&mut trial, &known, request.phase().as_str_name()),
    }
    trial.print(format)
}

fn judge_move(trial: &mut DryRun, machine: &Machine, to: &str) {
    let id = &machine.machine_id;
    let status = machine.status.clone().unwrap_or_default();
    let from = status.phase().as_str_name();
    let run = &status.active_run_id;
    if !run.is_empty() {
        let error = CliError::refused(format!("{id} is held by {run}")).because("ACTIVE_RUN");
        trial.obstacle(error.hint(format!("millwright run watch {run}, or: millwright run cancel {run}")));
        return;
    }
    let (Some(now), Some(then)) = (machine::Phase::parse(from), machine::Phase::parse(to)) else {
        trial.fine(format!("{id} is {from}; whether it may be {to} only the server can tell"));
        return;
    };
    match judge(Some(now), then, SET_PHASE, Owner::Operator) {
        _ if now == then => trial.fine(format!("{id} is {to} already")),
        Verdict::Allowed(guard) => {
            trial.fine(format!("{id} may go from {from} to {to} (needs: {})", guard.describe()));
        }
        Verdict::NotYours(_) | Verdict::Illegal => {
            let next = allowed_next(Some(now), Owner::Operator);
            let error = CliError::refused(format!("{id} is {from}, and no operator moves it from there to {to}"));
            trial.obstacle(error.because("ILLEGAL_TRANSITION").allowing(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::{MachineStatus, machine_status::Phase};

    fn moved(from: Phase, to: Phase, active: &str) -> Option<u8> {
        let status = MachineStatus { phase: from.into(), active_run_id: active.to_owned(), ..Default::default() };
        let machine = Machine { machine_id: "m-1".to_owned(), status: Some(status), ..Default::default() };
        let request = SetPhaseRequest { machine_id: "m-1".to_owned(), phase: to.into(), reason: String::new() };
        let mut trial = DryRun::new("x", "m-1", &request).expect("shown");
        judge_move(&mut trial, &machine, to.as_str_name());
        trial.verdict().map(Exit::code)
    }

    #[test]
    fn a_move_is_judged_by_the_table() {
        assert_eq!(moved(Phase::Ready, Phase::Maintenance, ""), None);
        assert_eq!(moved(Phase::Ready, Phase::Maintenance, "run_1"), Some(4));
        assert_eq!(moved(Phase::FactoryReady, Phase::InService, ""), Some(4));
        assert_eq!(moved(Phase::Ready, Phase::Ready, ""), None);
    }

    #[test]
    fn facts_are_checked_before_anybody_is_asked() {
        let spec = MachineSpec { mac_addresses: vec!["not-a-mac".to_owned()], ..Default::default() };
        let machine = Machine { machine_id: "m-1".to_owned(), spec: Some(spec), ..Default::default() };
        let mut trial = DryRun::new("x", "m-1", &machine).expect("shown");
        check(&mut trial, &machine);
        assert_eq!(trial.verdict().map(Exit::code), Some(2));
    }
}
