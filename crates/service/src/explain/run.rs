//! Why a run is where it is.

use super::{Action, Explanation, seconds_until};
use crate::Call;
use crate::machines::no_active_run;
use crate::start_run::may_use;
use crate::states::{desired_of_run, execution_of_run, observed_of_run};
use crate::why::{at_hand, why};
use domain::machine::{Machine, may_start_run};
use domain::plan::{Plan, Step};
use domain::run::{Run, RunPhase, RunType};
use domain::stage::{Position, StageDecl, UNDO_RETRIES};
use domain::{Error, Reason, RunId, Timestamp};
use store::execution::{self, Execution, Status, attempt_of};
use store::switch::{self, Freeze};
use store::{Tx, TxResult, machine};

/// Everything that the answer follows from.
#[derive(Clone, Debug)]
pub struct RunFacts {
    pub run: Run,
    pub steps: Vec<Step>,
    pub execution: Option<Execution>,
    pub machine: Option<Machine>,
    pub frozen: Option<Freeze>,
    pub now: Timestamp,
}

pub(super) fn gather(tx: &mut Tx<'_>, call: &Call, id: &RunId) -> TxResult<Option<RunFacts>> {
    let Some((run, steps)) = store::run::get_with_steps(tx, id)? else { return Ok(None) };
    if !call.by.sees_customer(&run.customer_id) {
        return Ok(None);
    }
    let machine = machine::get(tx, &run.machine_id)?;
    let execution = execution::by_subject(tx, run.id.as_str())?;
    let frozen = switch::frozen(tx)?;
    Ok(Some(RunFacts { run, steps, execution, machine, frozen, now: tx.now() }))
}

impl RunFacts {
    pub fn explain(&self, call: &Call) -> Explanation {
        let run = &self.run;
        let base = Explanation {
            id: run.id.to_string(),
            kind: "run",
            state: run.phase.to_string(),
            projected: run.phase.to_string(),
            desired: desired_of_run(run, self.execution.as_ref()),
            observed: observed_of_run(run, self.execution.as_ref()),
            execution: execution_of_run(run, self.execution.as_ref()),
            actions: self.actions(call),
            ..Explanation::default()
        };
        match run.phase {
            RunPhase::Succeeded | RunPhase::Failed | RunPhase::Canceled => self.ended(base),
            RunPhase::Pending | RunPhase::Running => self.active(base),
        }
    }

    fn ended(&self, base: Explanation) -> Explanation {
        let run = &self.run;
        let said = run.error.as_ref().map_or(String::new(), |e| format!(": {}", e.message));
        let at = run.finished_at.unwrap_or(run.created_at);
        let problems = match (&run.error, run.phase) {
            (Some(e), RunPhase::Failed) => vec![format!("{} ({}): {}", e.code, e.class, e.message)],
            (_, _) => Vec::new(),
        };
        Explanation {
            at_rest: true,
            since: Some(at),
            summary: format!("run {} on machine {} has ended as {}{said}", run.id, run.machine_id, run.phase),
            last_seen: run
                .steps
                .iter()
                .rev()
                .find(|s| !s.message.is_empty())
                .map_or(String::new(), |s| format!("step {}: {}", s.name, s.message)),
            last_seen_at: Some(at),
            problems,
            ..base
        }
    }

    fn active(&self, base: Explanation) -> Explanation {
        let (run, now) = (&self.run, self.now);
        let why = why(run, self.execution.as_ref(), self.frozen.as_ref(), now);
        let summary = format!("run {} on machine {} is {}: {why}", run.id, run.machine_id, run.phase);
        let step = self.steps.iter().find(|s| s.name == run.current_step).or_else(|| self.steps.first());
        let expected = step.map_or("its steps to be done".to_owned(), |s| s.kind.expected());
        let started = run.steps.iter().find(|s| s.name == run.current_step).and_then(|s| s.started_at);
        let since = Some(started.or(run.started_at).unwrap_or(run.created_at));
        let mut problems = Vec::new();
        if let Some(freeze) = &self.frozen {
            problems
                .push(format!("all automation is frozen by {} since {}: {}", freeze.by, freeze.since, freeze.reason));
        }
        let Some(e) = &self.execution else {
            problems.push("the engine has no record of this run, which must not happen: terminate it".to_owned());
            return Explanation {
                summary,
                since,
                expected,
                waiting_for: why,
                problems,
                last_seen: "nothing".to_owned(),
                ..base
            };
        };
        let position = e.position;
        let sleeps = matches!(e.status, Status::Ready | Status::Waiting);
        Explanation {
            summary,
            since,
            waiting_for: match (&self.frozen, e.waiting_for.as_str()) {
                (Some(freeze), _) if sleeps => format!("somebody to unfreeze: {} ({})", freeze.reason, freeze.by),
                (_, "") => at_hand(e, now),
                (_, on) => on.to_owned(),
            },
            last_seen: match base.observed.as_str() {
                "" => format!("{} ({})", e.status.as_str(), e.id),
                seen => seen.to_owned(),
            },
            last_seen_at: Some(e.updated_at),
            expected,
            next_try: (sleeps && self.frozen.is_none()).then_some(e.wake_at.max(now)),
            attempt: (position != Position::Start).then(|| attempt_of(position)),
            attempts_left: self.attempts_left(e),
            deadline: Some(e.deadline),
            seconds_left: Some(seconds_until(e.deadline, now)),
            held_by: match &e.holder {
                Some(session) => format!("server session {session}"),
                None if e.status.is_terminal() => "nobody: its execution has ended".to_owned(),
                None => "nobody: the next free worker takes it".to_owned(),
            },
            problems,
            ..base
        }
    }

    /// After the one in hand.
    fn attempts_left(&self, e: &Execution) -> Option<u32> {
        match e.position {
            Position::Start => None,
            Position::Stage { index, attempt } => {
                self.steps.get(index).map(|s| (StageDecl::of_step(s).max_retries + 1).saturating_sub(attempt))
            }
            Position::Undo { attempt, .. } => Some((UNDO_RETRIES + 1).saturating_sub(attempt)),
        }
    }

    fn actions(&self, call: &Call) -> Vec<Action> {
        let run = &self.run;
        let id = &run.id;
        let mut actions = vec![
            Action::new(
                call,
                "baremetal.v1.RunService/CancelRun",
                "cancel",
                format!("millwright run cancel {id}"),
                self.may_cancel(),
            ),
            Action::new(
                call,
                "millwright.v1.EngineService/TerminateExecution",
                "terminate",
                format!("millwright engine terminate {id} --reason WHY"),
                self.may_terminate(),
            ),
            Action::new(
                call,
                "baremetal.v1.RunService/StartRun",
                "start again",
                format!("millwright run start {} {}", run.machine_id, again(run)),
                self.may_start_again(call),
            ),
        ];
        if self.frozen.is_some() {
            let rpc = "millwright.v1.EngineService/Unfreeze";
            actions.push(Action::new(call, rpc, "unfreeze", "millwright unfreeze".to_owned(), Ok(())));
        }
        actions
    }

    /// Once is enough: asking again changes nothing.
    pub(super) fn may_cancel(&self) -> Result<(), Error> {
        self.may_terminate()?;
        if self.execution.as_ref().is_none_or(|e| e.status.is_terminal()) {
            let message = "nothing carries it out any more; terminate ends it";
            return Err(Error::new(Reason::RunAlreadyEnded, message));
        }
        match self.execution.as_ref().and_then(|e| e.cancel.as_ref()) {
            Some(cancel) => {
                let message = format!("{} has asked for it already; terminate if it cannot finish", cancel.by);
                Err(Error::new(Reason::RunAlreadyEnded, message))
            }
            None => Ok(()),
        }
    }

    pub(super) fn may_terminate(&self) -> Result<(), Error> {
        if self.run.phase.is_terminal() {
            return Err(Error::new(Reason::RunAlreadyEnded, format!("it has ended as {}", self.run.phase)));
        }
        Ok(())
    }

    fn may_start_again(&self, call: &Call) -> Result<(), Error> {
        let Some(machine) = &self.machine else { return Ok(()) };
        no_active_run(machine)?;
        if !may_start_run(machine.phase, self.run.run_type == Some(RunType::Rma)) {
            let message = format!("machine {} is {}: no run may start there", machine.id, machine.phase);
            return Err(Error::new(Reason::PhaseForbidsRun, message));
        }
        let plan = Plan { id: self.run.plan_id.clone(), display_name: String::new(), steps: self.steps.clone() };
        may_use(call, machine, &plan, &self.run.parameters)
    }
}

/// The arguments that name the same work once more.
fn again(run: &Run) -> String {
    let kind = run.run_type.map(|t| format!("--type {t} ")).unwrap_or_default();
    let parameters: String =
        run.parameters.iter().map(|(k, v)| format!(" --param {}", quoted(&format!("{k}={v}")))).collect();
    format!("{kind}--plan {}{parameters}", run.plan_id)
}

/// For a shell: one word, whatever is in it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
