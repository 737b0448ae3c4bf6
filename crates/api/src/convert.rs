//! Between the wire's messages and the domain's nouns.

use domain::machine::{Machine, MachineSpec, Phase};
use domain::observation::Shown;
use domain::plan::{BootMode, Plan, RebootMode, RmaAction, Step, StepKind};
use domain::run::{Run, RunPhase};
use domain::step::StepState;
use domain::{Error, Reason, Timestamp};
use proto::baremetal::v1 as pb;
use service::explain::Explanation;
use service::{RunView, states};

pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    let micros = at.micros();
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000)).unwrap_or(0) * 1000,
    }
}

fn phase(phase: Phase) -> pb::machine_status::Phase {
    use pb::machine_status::Phase as P;
    match phase {
        Phase::FactoryReady => P::FactoryReady,
        Phase::Ready => P::Ready,
        Phase::Provisioning => P::Provisioning,
        Phase::InService => P::InService,
        Phase::Maintenance => P::Maintenance,
        Phase::Rma => P::Rma,
        Phase::Retired => P::Retired,
    }
}

pub(crate) fn phase_from_proto(number: i32) -> Result<Phase, Error> {
    use pb::machine_status::Phase as P;
    match P::try_from(number) {
        Ok(P::FactoryReady) => Ok(Phase::FactoryReady),
        Ok(P::Ready) => Ok(Phase::Ready),
        Ok(P::Provisioning) => Ok(Phase::Provisioning),
        Ok(P::InService) => Ok(Phase::InService),
        Ok(P::Maintenance) => Ok(Phase::Maintenance),
        Ok(P::Rma) => Ok(Phase::Rma),
        Ok(P::Retired) => Ok(Phase::Retired),
        Ok(P::Unspecified) => Err(Error::field("phase", "must be given")),
        Err(_) => Err(Error::field("phase", format!("{number} is not a phase"))),
    }
}

fn condition(c: Shown) -> pb::Condition {
    pb::Condition {
        r#type: c.kind.as_str().to_owned(),
        status: c.status,
        reason: c.reason,
        last_transition: c.last_transition.map(timestamp),
        message: c.message,
        observed_at: c.observed_at.map(timestamp),
        stale: c.stale,
    }
}

pub(crate) fn machine(m: Machine) -> pb::Machine {
    let active = m.active_run.as_ref().filter(|r| !r.phase.is_terminal());
    let status = pb::MachineStatus {
        phase: phase(m.phase).into(),
        conditions: m.shown_conditions().into_iter().map(condition).collect(),
        active_run_id: active.map_or(String::new(), |r| r.id.to_string()),
        effective_state: phase(m.effective_state()).into(),
        last_seen: m.last_seen().map(timestamp),
        phase_set_by: m.phase_set_by.to_string(),
        desired: states::desired_of_machine(&m),
        observed: m.observed_words(),
        execution: states::execution_of_machine(&m),
    };
    pb::Machine {
        machine_id: m.id.into_text(),
        labels: m.labels,
        spec: Some(spec(m.spec)),
        status: Some(status),
        version: m.version,
    }
}

pub(crate) fn spec(s: MachineSpec) -> pb::MachineSpec {
    pb::MachineSpec {
        ssh_endpoint: s.ssh_endpoint,
        bmc_endpoint: s.bmc_endpoint,
        target_cluster_ref: s.target_cluster_ref,
        mac_addresses: s.mac_addresses,
        provider: s.provider,
        location: s.location,
        rack: s.rack,
        serial_number: s.serial_number,
        customer_id: s.customer_id,
        system_uuid: s.system_uuid,
        credentials_ref: s.credentials_ref,
    }
}

pub(crate) fn spec_from_proto(spec: Option<pb::MachineSpec>) -> MachineSpec {
    let s = spec.unwrap_or_default();
    MachineSpec {
        ssh_endpoint: s.ssh_endpoint,
        bmc_endpoint: s.bmc_endpoint,
        target_cluster_ref: s.target_cluster_ref,
        mac_addresses: s.mac_addresses,
        provider: s.provider,
        location: s.location,
        rack: s.rack,
        serial_number: s.serial_number,
        customer_id: s.customer_id,
        system_uuid: s.system_uuid,
        credentials_ref: s.credentials_ref,
    }
}

pub(crate) fn plan(p: &Plan) -> pb::Plan {
    pb::Plan { plan_id: p.id.clone(), display_name: p.display_name.clone(), steps: p.steps.iter().map(step).collect() }
}

fn step(s: &Step) -> pb::Step {
    use pb::step::Kind;
    let kind = match s.kind.clone() {
        StepKind::Ssh { command, args, environment } => Kind::Ssh(pb::SshCommand { command, args, environment }),
        StepKind::Reboot { mode } => Kind::Reboot(pb::Reboot { mode: mode.to_string() }),
        StepKind::Netboot { mode, persistent } => Kind::Netboot(pb::SetNetboot { mode: mode.to_string(), persistent }),
        StepKind::Repave { image, user_data_ref } => Kind::Repave(pb::RepaveImage { image, user_data_ref }),
        StepKind::Join { cluster_ref } => Kind::Join(pb::KubeadmJoin { cluster_ref }),
        StepKind::Verify { cluster_ref } => Kind::Verify(pb::VerifyInCluster { cluster_ref }),
        StepKind::Net { parameters } => Kind::Net(pb::NetReconfig { parameters }),
        StepKind::Rma { action, reason } => Kind::Rma(pb::RmaAction { action: action.to_string(), reason }),
    };
    pb::Step { name: s.name.clone(), timeout_seconds: s.timeout_seconds, max_retries: s.max_retries, kind: Some(kind) }
}

/// A plan as sent or read from a file; unknown kinds and words are refused by field.
pub fn plan_from_proto(p: pb::Plan) -> Result<Plan, Error> {
    let steps = p.steps.into_iter().enumerate().map(|(i, s)| step_from_proto(i, s)).collect::<Result<_, _>>()?;
    Ok(Plan { id: p.plan_id, display_name: p.display_name, steps })
}

fn step_from_proto(i: usize, s: pb::Step) -> Result<Step, Error> {
    use pb::step::Kind;
    let field = |name: &str| format!("steps[{i}].{name}");
    let kind = match s.kind {
        None => {
            let message = format!(
                "steps[{i}]: names no known kind; use one of ssh, reboot, netboot, repave, join, verify, net, rma"
            );
            return Err(Error::new(Reason::InvalidPlan, message).with("field", format!("steps[{i}].kind")));
        }
        Some(Kind::Ssh(k)) => StepKind::Ssh { command: k.command, args: k.args, environment: k.environment },
        Some(Kind::Reboot(k)) => {
            StepKind::Reboot { mode: RebootMode::parse(&field("reboot.mode"), default(&k.mode, "bmc"))? }
        }
        Some(Kind::Netboot(k)) => StepKind::Netboot {
            mode: BootMode::parse(&field("netboot.mode"), default(&k.mode, "PXE"))?,
            persistent: k.persistent,
        },
        Some(Kind::Repave(k)) => StepKind::Repave { image: k.image, user_data_ref: k.user_data_ref },
        Some(Kind::Join(k)) => StepKind::Join { cluster_ref: k.cluster_ref },
        Some(Kind::Verify(k)) => StepKind::Verify { cluster_ref: k.cluster_ref },
        Some(Kind::Net(k)) => StepKind::Net { parameters: k.parameters },
        Some(Kind::Rma(k)) => {
            StepKind::Rma { action: RmaAction::parse(&field("rma.action"), &k.action)?, reason: k.reason }
        }
    };
    Ok(Step { name: s.name, timeout_seconds: s.timeout_seconds, max_retries: s.max_retries, kind })
}

fn default<'a>(text: &'a str, when_empty: &'a str) -> &'a str {
    if text.is_empty() { when_empty } else { text }
}

fn run_phase(phase: RunPhase) -> pb::run::Phase {
    match phase {
        RunPhase::Pending => pb::run::Phase::Pending,
        RunPhase::Running => pb::run::Phase::Running,
        RunPhase::Succeeded => pb::run::Phase::Succeeded,
        RunPhase::Failed => pb::run::Phase::Failed,
        RunPhase::Canceled => pb::run::Phase::Canceled,
    }
}

fn step_state(state: StepState) -> pb::step_status::State {
    match state {
        StepState::Waiting => pb::step_status::State::Waiting,
        StepState::Running => pb::step_status::State::Running,
        StepState::Succeeded => pb::step_status::State::Succeeded,
        StepState::Failed => pb::step_status::State::Failed,
    }
}

pub(crate) fn run_view(view: RunView) -> pb::Run {
    pb::Run {
        why: view.why,
        desired: view.desired,
        observed: view.observed,
        execution: view.execution,
        ..run(&view.run)
    }
}

pub(crate) fn run(r: &Run) -> pb::Run {
    pb::Run {
        run_id: r.id.to_string(),
        machine_id: r.machine_id.to_string(),
        request_id: r.request_id.clone(),
        r#type: r.type_text().to_owned(),
        plan_id: r.plan_id.clone(),
        phase: run_phase(r.phase).into(),
        steps: r
            .steps
            .iter()
            .map(|s| pb::StepStatus {
                name: s.name.clone(),
                state: step_state(s.state).into(),
                retry_count: small(s.retry_count),
                started_at: s.started_at.map(timestamp),
                finished_at: s.finished_at.map(timestamp),
                message: s.message.clone(),
            })
            .collect(),
        current_step: r.current_step.clone(),
        created_at: Some(timestamp(r.created_at)),
        started_at: r.started_at.map(timestamp),
        finished_at: r.finished_at.map(timestamp),
        parameters: r.parameters.clone(),
        error: r.error.as_ref().map(|e| pb::RunError {
            code: e.code.clone(),
            class: e.class.clone(),
            message: e.message.clone(),
            retryable: e.retryable,
        }),
        why: String::new(),
        version: r.version,
        desired: String::new(),
        observed: String::new(),
        execution: String::new(),
    }
}

fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(crate) fn explanation(e: Explanation) -> pb::Explanation {
    let actions = e.actions.into_iter().map(|a| pb::Action {
        name: a.name,
        allowed: a.allowed,
        why_not: a.why_not,
        command: a.command,
    });
    pb::Explanation {
        id: e.id,
        kind: e.kind.to_owned(),
        state: e.state,
        at_rest: e.at_rest,
        summary: e.summary,
        waiting_for: e.waiting_for,
        since: e.since.map(timestamp),
        last_seen: e.last_seen,
        last_seen_at: e.last_seen_at.map(timestamp),
        expected: e.expected,
        next_try: e.next_try.map(timestamp),
        attempt: e.attempt.map(small),
        attempts_left: e.attempts_left.map(small),
        deadline: e.deadline.map(timestamp),
        seconds_left: e.seconds_left,
        held_by: e.held_by,
        actions: actions.collect(),
        desired: e.desired,
        observed: e.observed,
        execution: e.execution,
        projected: e.projected,
        problems: e.problems,
    }
}
