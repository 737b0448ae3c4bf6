//! What `run wait --for` can wait for, and when it is reached.
//!
//! What was reached stays reached: a step that has ended has been RUNNING, whoever looks too late to see it.

use super::exit::CliError;
use super::progress::{is_terminal, phase_word};
use super::text::clean;
use proto::baremetal::v1::run::Phase;
use proto::baremetal::v1::step_status::State;
use proto::baremetal::v1::{Run, StepStatus};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Any end.
    Terminal,
    Phase(Phase),
    Step(String, State),
}

pub const GOALS: &str = "SUCCEEDED, FAILED, CANCELED, RUNNING, terminal, step=NAME or step=NAME:STATE";
const STEP_STATES: &str = "RUNNING, SUCCEEDED, FAILED";

pub fn parse(text: &str) -> Result<Goal, String> {
    let text = text.trim();
    if let Some(step) = text.strip_prefix("step=") {
        let (name, state) = step.split_once(':').unwrap_or((step, "SUCCEEDED"));
        let state = match state.to_ascii_uppercase().as_str() {
            "RUNNING" => State::Running,
            "SUCCEEDED" => State::Succeeded,
            "FAILED" => State::Failed,
            _ => return Err(format!("{state:?} is no state to wait for; use one of: {STEP_STATES}")),
        };
        return match name {
            "" => Err("step= needs the step's name, as in step=repave".to_owned()),
            name => Ok(Goal::Step(name.to_owned(), state)),
        };
    }
    match text.to_ascii_uppercase().as_str() {
        "TERMINAL" => Ok(Goal::Terminal),
        "SUCCEEDED" => Ok(Goal::Phase(Phase::Succeeded)),
        "FAILED" => Ok(Goal::Phase(Phase::Failed)),
        "CANCELED" | "CANCELLED" => Ok(Goal::Phase(Phase::Canceled)),
        "RUNNING" => Ok(Goal::Phase(Phase::Running)),
        _ => Err(format!("use one of: {GOALS}")),
    }
}

impl Goal {
    /// Whether a step of that name exists; told before anything is waited for.
    pub fn check(&self, run: &Run) -> Result<(), CliError> {
        match self {
            Goal::Step(name, _) if !run.steps.iter().any(|step| step.name == *name) => {
                Err(CliError::usage(format!("{} has no step {name:?}", run.run_id))
                    .allowing(run.steps.iter().map(|step| clean(&step.name))))
            }
            Goal::Step(..) | Goal::Terminal | Goal::Phase(_) => Ok(()),
        }
    }

    pub fn is_reached(&self, run: &Run) -> bool {
        match self {
            Goal::Terminal => is_terminal(run),
            Goal::Phase(Phase::Running) => run.phase == i32::from(Phase::Running) || run.started_at.is_some(),
            Goal::Phase(phase) => run.phase == i32::from(*phase),
            Goal::Step(name, state) => run.steps.iter().any(|step| step.name == *name && step_reached(step, *state)),
        }
    }

    /// The end of a wait that did not reach it.
    pub fn missed(&self, run: &Run) -> CliError {
        let died = run.error.as_ref().map(|error| format!(": {}", clean(&error.message))).unwrap_or_default();
        let ended = format!("{} {}{died}", run.run_id, phase_word(run));
        let error = match self {
            Goal::Step(name, state) => {
                CliError::failed(format!("step {name} was never {}; {ended}", state.as_str_name()))
            }
            Goal::Terminal | Goal::Phase(_) => CliError::failed(ended),
        };
        let code = run.error.as_ref().map(|error| error.code.as_str()).filter(|code| !code.is_empty());
        let error = error.because(code.unwrap_or(phase_word(run)));
        error.hint(format!("millwright why {0}, or: millwright run logs {0}", run.run_id))
    }

    /// Whether the run as a whole is the goal, so that its end is what is printed.
    pub fn is_an_end(&self) -> bool {
        match self {
            Goal::Terminal => true,
            Goal::Phase(phase) => *phase != Phase::Running,
            Goal::Step(..) => false,
        }
    }
}

fn step_reached(step: &StepStatus, goal: State) -> bool {
    let state = State::try_from(step.state).unwrap_or(State::Unspecified);
    match goal {
        State::Running => matches!(state, State::Running | State::Succeeded | State::Failed),
        State::Succeeded | State::Failed | State::Waiting | State::Unspecified => state == goal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(phase: Phase, steps: &[(&str, State)]) -> Run {
        let step = |(name, state): &(&str, State)| StepStatus {
            name: (*name).to_owned(),
            state: (*state).into(),
            ..StepStatus::default()
        };
        Run {
            run_id: "run_1".to_owned(),
            phase: phase.into(),
            steps: steps.iter().map(step).collect(),
            ..Run::default()
        }
    }

    #[test]
    fn goals_are_read_as_typed() {
        assert_eq!(parse("terminal"), Ok(Goal::Terminal));
        assert_eq!(parse("succeeded"), Ok(Goal::Phase(Phase::Succeeded)));
        assert_eq!(parse("step=repave"), Ok(Goal::Step("repave".to_owned(), State::Succeeded)));
        assert_eq!(parse("step=repave:running"), Ok(Goal::Step("repave".to_owned(), State::Running)));
        for bad in ["", "lunch", "step=", "step=a:napping", "PENDING"] {
            assert!(parse(bad).is_err_and(|e| e.contains("step=") || e.contains("SUCCEEDED")), "{bad:?}");
        }
    }

    #[test]
    fn what_was_reached_stays_reached() {
        let began = Goal::Step("a".to_owned(), State::Running);
        assert!(!began.is_reached(&run(Phase::Running, &[("a", State::Waiting)])));
        for state in [State::Running, State::Succeeded, State::Failed] {
            assert!(began.is_reached(&run(Phase::Running, &[("a", state)])));
        }
        let done = Goal::Step("a".to_owned(), State::Succeeded);
        assert!(!done.is_reached(&run(Phase::Failed, &[("a", State::Failed)])));
        let running = Goal::Phase(Phase::Running);
        assert!(!running.is_reached(&run(Phase::Canceled, &[])), "it ended before it began");
        let mut ended = run(Phase::Succeeded, &[]);
        ended.started_at = Some(prost_types::Timestamp::default());
        assert!(running.is_reached(&ended));
    }

    #[test]
    fn a_step_that_is_not_there_is_told_with_those_that_are() {
        let goal = Goal::Step("repvae".to_owned(), State::Succeeded);
        let error = goal.check(&run(Phase::Running, &[("repave", State::Waiting)])).expect_err("a slip");
        assert_eq!(error.exit().code(), 2);
        assert!(format!("{error:?}").contains("\"repave\""), "{error:?}");
    }

    #[test]
    fn only_what_was_asked_for_is_success() {
        for (phase, reached) in [(Phase::Succeeded, true), (Phase::Failed, false), (Phase::Canceled, false)] {
            let goal = Goal::Phase(Phase::Succeeded);
            assert_eq!(goal.is_reached(&run(phase, &[])), reached);
            assert_eq!(goal.missed(&run(phase, &[])).exit().code(), 1);
        }
    }
}
