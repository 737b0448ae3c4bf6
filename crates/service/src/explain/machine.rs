//! Why a machine is as it is.

use super::{Action, Explanation, RunFacts, run};
use crate::machines::{BEYOND_LABELS, no_active_run, not_held};
use crate::netboot_orders::check_images;
use crate::start_run::may_use;
use crate::states::{desired_of_machine, execution_of_machine};
use crate::{Call, Service};
use domain::boot_node::{BootNode, BootState};
use domain::condition::ConditionType;
use domain::lifecycle::{Guard, Owner, State as _, Verdict, allowed_next, judge};
use domain::machine::{Machine, Phase, SET_PHASE, may_start_run};
use domain::plan::Plan;
use domain::plan_defaults::{default_plan_id, tailored};
use domain::run::RunType;
use domain::{Error, MachineId, Reason, Timestamp};
use std::collections::BTreeMap;
use store::hold::{self, Hold};
use store::switch::{self, Freeze};
use store::{Tx, TxResult, boot_node, machine};

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    pub machine: Machine,
    /// The run that holds it, if one does.
    pub run: Option<RunFacts>,
    /// Whether its provider can be asked, or why not.
    pub provider: Result<(), Error>,
    /// The types of run that its provider cannot carry out, and why not.
    pub unable: Vec<(RunType, Error)>,
    pub frozen: Option<Freeze>,
    /// Who does something to it by hand right now.
    pub hold: Option<Hold>,
    /// The same hardware, as network boot knows it.
    pub boot_node: Option<BootNode>,
    pub now: Timestamp,
}

pub(super) fn gather(
    tx: &mut Tx<'_>,
    call: &Call,
    service: &Service,
    id: &MachineId,
) -> TxResult<Option<MachineFacts>> {
    let Some(machine) = machine::get(tx, id)?.filter(|m| call.sees(m)) else { return Ok(None) };
    let active = machine.active_run.as_ref().filter(|r| !r.phase.is_terminal());
    let run = match active {
        Some(active) => run::gather(tx, call, &active.id)?,
        None => None,
    };
    let name = machine.spec.provider_name(&machine.labels);
    let provider = service.inner.providers.get(name).map(drop);
    let unable = match &provider {
        Ok(()) => {
            let mut unable = Vec::new();
            for run_type in RunType::ALL {
                if let Err(e) = able(tx, service, &machine, run_type)? {
                    unable.push((run_type, e));
                }
            }
            unable
        }
        Err(_) => Vec::new(),
    };
    let (frozen, hold) = (switch::frozen(tx)?, hold::of(tx, id)?);
    // boot nodes are the fleet's alone
    let boot_node = if call.by.is_scoped() { None } else { tx.point(&boot_node::by_machine(id))? };
    Ok(Some(MachineFacts { machine, run, provider, unable, frozen, hold, boot_node, now: tx.now() }))
}

/// Whether its provider, or network boot, can carry out the default plan of a type.
fn able(tx: &mut Tx<'_>, service: &Service, machine: &Machine, run_type: RunType) -> TxResult<Result<(), Error>> {
    let providers = &service.inner.providers;
    let checked = default_plan(machine, run_type).and_then(|plan| {
        providers.check(machine, &plan.steps)?;
        Ok(plan)
    });
    match checked {
        Ok(plan) => match check_images(tx, providers, machine, &plan.steps) {
            Ok(()) => Ok(Ok(())),
            Err(store::Failure::Refused(e)) => Ok(Err(e)),
            Err(failed) => Err(failed),
        },
        Err(e) => Ok(Err(e)),
    }
}

/// What a run of this type would carry out here, with clusters filled in.
fn default_plan(machine: &Machine, run_type: RunType) -> Result<Plan, Error> {
    let cluster = &machine.spec.target_cluster_ref;
    let id = default_plan_id(run_type, !cluster.is_empty());
    let plan = crate::plans::built_in(id).ok_or_else(|| crate::plans::not_found(id))?;
    let mut plan = tailored(plan, !cluster.is_empty());
    plan.steps = plan.resolve(&BTreeMap::new(), cluster)?;
    Ok(plan)
}

/// What a machine in this phase waits for, when no run holds it; empty: nothing.
fn waits_for(phase: Phase, provider: &str) -> String {
    match phase {
        Phase::FactoryReady => {
            let by = if provider.is_empty() { "its provider".to_owned() } else { format!("provider {provider}") };
            format!("a first look through {by} that proves we can manage it, or an operator's word")
        }
        Phase::Provisioning => "its run, which has ended without letting it go: an operator must move it".to_owned(),
        Phase::Maintenance => "an operator to say that it is ready again".to_owned(),
        Phase::Rma => "its repair or replacement, and an operator's word".to_owned(),
        Phase::Ready | Phase::InService | Phase::Retired => String::new(),
    }
}

/// What must be seen for it to go on.
fn expects(phase: Phase) -> &'static str {
    match phase {
        Phase::FactoryReady => "its identity, read through BMC or SSH",
        Phase::Provisioning => "its run to end",
        Phase::Maintenance => "SetPhase to READY, or a run that succeeds",
        Phase::Rma => "SetPhase to READY (repaired) or RETIRED (returned)",
        Phase::Ready => "nothing: it is ready for a run",
        Phase::InService => "nothing: it serves its cluster",
        Phase::Retired => "nothing: it is gone; register the hardware anew if it comes back",
    }
}

impl MachineFacts {
    pub fn explain(&self, call: &Call) -> Explanation {
        let m = &self.machine;
        let provider = m.spec.provider_name(&m.labels);
        let base = Explanation {
            id: m.id.to_string(),
            kind: "machine",
            state: m.effective_state().to_string(),
            projected: m.phase.to_string(),
            desired: desired_of_machine(m),
            execution: execution_of_machine(m),
            observed: m.observed_words(),
            last_seen: m.observed_words(),
            last_seen_at: m.last_seen(),
            since: Some(m.phase_set_at),
            problems: self.problems(),
            actions: self.actions(call),
            ..Explanation::default()
        };
        if let Some(run) = &self.run {
            let of_run = run.explain(call);
            return Explanation {
                held_by: format!("run {}", run.run.id),
                summary: format!("machine {} is held: {}", m.id, of_run.summary),
                waiting_for: of_run.waiting_for,
                since: of_run.since,
                expected: of_run.expected,
                next_try: of_run.next_try,
                attempt: of_run.attempt,
                attempts_left: of_run.attempts_left,
                deadline: of_run.deadline,
                seconds_left: of_run.seconds_left,
                ..base
            };
        }
        let waiting_for = match (m.phase, &self.provider, &self.frozen) {
            (Phase::FactoryReady, Err(e), _) => format!("a provider that can look at it: {}", e.message),
            (Phase::FactoryReady, Ok(()), Some(freeze)) if m.observation.is_some() => {
                format!("somebody to unfreeze: {} ({})", freeze.reason, freeze.by)
            }
            (phase, _, _) => waits_for(phase, provider),
        };
        let because = match self.needs_person() {
            Some(message) => format!("; somebody must look: {message}"),
            None if waiting_for.is_empty() => String::new(),
            None => format!("; it waits for {waiting_for}"),
        };
        Explanation {
            held_by: self.hold.as_ref().map_or(String::new(), |hold| {
                format!("{}: {}, until {} at the latest", hold.by, hold.what, hold.until)
            }),
            at_rest: m.phase.deadline() == domain::lifecycle::Deadline::AtRest && self.needs_person().is_none(),
            summary: format!("machine {} is {} since {}{because}", m.id, base.state, m.phase_set_at),
            waiting_for: self.needs_person().map_or(waiting_for, |message| format!("a person: {message}")),
            expected: expects(m.phase).to_owned(),
            ..base
        }
    }

    fn needs_person(&self) -> Option<String> {
        let mut needs =
            self.machine.conditions.iter().filter(|c| c.kind == ConditionType::NeedsIntervention && c.status);
        needs.next().map(|c| if c.message.is_empty() { c.reason.clone() } else { c.message.clone() })
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for c in self.machine.shown_conditions() {
            let bad = match c.kind {
                ConditionType::Degraded | ConditionType::NeedsIntervention => c.status,
                ConditionType::Reconciled => !c.status,
                ConditionType::Reachable
                | ConditionType::BmcReachable
                | ConditionType::Provisioned
                | ConditionType::InCustomerCluster
                | ConditionType::Drained => false,
            };
            if bad {
                let message = if c.message.is_empty() { String::new() } else { format!(": {}", c.message) };
                let since = c.last_transition.map_or(String::new(), |at| format!(" since {at}"));
                problems.push(format!("{}={}{since} ({}){message}", c.kind.as_str(), c.status, c.reason));
            }
        }
        if let Err(e) = &self.provider {
            problems.push(e.message.clone());
        }
        if let Some(node) = self.boot_node.as_ref().filter(|node| node.state == BootState::InstallFailed) {
            let why = node.last_install_error.as_deref().unwrap_or("it was canceled");
            problems.push(format!("boot node {} is install_failed since {}: {why}", node.id, node.state_changed_at));
        }
        if let Some(freeze) = &self.frozen {
            problems
                .push(format!("all automation is frozen by {} since {}: {}", freeze.by, freeze.since, freeze.reason));
        }
        problems
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let m = &self.machine;
        let mut actions = Vec::new();
        if let Some(run) = &self.run {
            actions.push(Action::new(
                call,
                "baremetal.v1.RunService/CancelRun",
                "cancel its run",
                format!("millwright run cancel {}", run.run.id),
                run.may_cancel(),
            ));
            // for when it cannot finish
            actions.push(Action::new(
                call,
                "millwright.v1.EngineService/TerminateExecution",
                "terminate its run",
                format!("millwright engine terminate {} --reason WHY", run.run.id),
                run.may_terminate(),
            ));
        }
        for run_type in RunType::ALL {
            actions.push(Action::new(
                call,
                "baremetal.v1.RunService/StartRun",
                format!("start {run_type}"),
                format!("millwright run start {} --type {run_type}", m.id),
                self.may_start(call, run_type),
            ));
        }
        for to in Phase::ALL.iter().copied().filter(|to| *to != m.phase) {
            actions.push(Action::new(
                call,
                "baremetal.v1.MachineService/SetPhase",
                format!("set phase {to}"),
                format!("millwright machine phase {} {to}", m.id),
                self.may_set(to),
            ));
        }
        if self.provider.is_err() {
            let (rpc, command) = (
                "baremetal.v1.MachineService/UpdateMachine",
                format!("millwright machine update {} --provider NAME", m.id),
            );
            actions.push(Action::new(call, rpc, "name its provider", command, call.for_fleet(BEYOND_LABELS)));
        }
        if self.frozen.is_some() {
            let rpc = "millwright.v1.EngineService/Unfreeze";
            actions.push(Action::new(call, rpc, "unfreeze", "millwright unfreeze".to_owned(), Ok(())));
        }
        actions
    }

    fn may_start(&self, call: &Call, run_type: RunType) -> Result<(), Error> {
        no_active_run(&self.machine)?;
        not_held(&self.machine.id, self.hold.as_ref())?;
        if !may_start_run(self.machine.phase, run_type == RunType::Rma) {
            let message = format!("no {run_type} run may start in {}", self.machine.phase);
            return Err(Error::new(Reason::PhaseForbidsRun, message));
        }
        self.provider.clone()?;
        may_use(call, &self.machine, &default_plan(&self.machine, run_type)?, &BTreeMap::new())?;
        self.unable.iter().find(|u| u.0 == run_type).map_or(Ok(()), |u| Err(u.1.clone()))
    }

    fn may_set(&self, to: Phase) -> Result<(), Error> {
        let from = self.machine.phase;
        match judge(Some(from), to, SET_PHASE, Owner::Operator) {
            Verdict::Allowed(Guard::None) => Ok(()),
            Verdict::Allowed(Guard::NoActiveRun | Guard::Inspected) => no_active_run(&self.machine),
            Verdict::Allowed(
                Guard::WorkflowAssigned | Guard::ForcedReset | Guard::AttemptsSpent | Guard::NotInUse | Guard::Node(_),
            ) => Err(domain::Error::internal("not a guard of machines")),
            Verdict::Allowed(Guard::InClusterAndNoActiveRun) => {
                no_active_run(&self.machine)?;
                if self.machine.spec.target_cluster_ref.is_empty() {
                    let message = "its cluster would have to confirm it, and spec.target_cluster_ref is empty";
                    return Err(Error::new(Reason::NotConfirmed, message));
                }
                self.provider.clone()?;
                match self.machine.observation.as_ref().and_then(|o| o.get(ConditionType::InCustomerCluster)) {
                    // the cluster itself is asked when the move is made; this is what it said last
                    Some(seen) if !seen.condition.status => {
                        let c = &seen.condition;
                        let message = format!("its cluster does not confirm it ({}); join it by a run", c.reason);
                        Err(Error::new(Reason::NotConfirmed, message))
                    }
                    Some(_) | None => Ok(()),
                }
            }
            Verdict::NotYours(owner) => {
                Err(Error::new(Reason::NotYourTransition, format!("from {from} it is made by the {owner}")))
            }
            Verdict::Illegal => {
                let ways: Vec<&str> =
                    allowed_next(Some(from), Owner::Operator).into_iter().map(Phase::as_str).collect();
                let ways = if ways.is_empty() {
                    "there is no way on".to_owned()
                } else {
                    format!("only to {}", ways.join(", "))
                };
                Err(Error::new(Reason::IllegalTransition, format!("not from {from}: {ways}")))
            }
        }
    }
}
