//! Fault rules: `sim.fault.STEPKIND=RULE` on a machine makes the calls of that kind of step go wrong.

use crate::control::invalid;
use domain::machine::Labels;
use provider::ProviderResult;
use std::time::Duration;

/// The kinds of step a rule can name, as plan files spell them.
pub(crate) mod step {
    pub(crate) const SSH: &str = "ssh";
    pub(crate) const REBOOT: &str = "reboot";
    pub(crate) const NETBOOT: &str = "netboot";
    pub(crate) const REPAVE: &str = "repave";
    pub(crate) const JOIN: &str = "join";
    pub(crate) const VERIFY: &str = "verify";
    pub(crate) const NET: &str = "net";
    pub(crate) const RMA: &str = "rma";
    /// No step, but what every look at the machine's BMC goes through.
    pub(crate) const INSPECT: &str = "inspect";
    /// No step either: what a person does with its BMC, other than power and boot.
    pub(crate) const BMC: &str = "bmc";
}

/// A call can be slowed by at most this.
const SLOW_MAX: Duration = Duration::from_secs(24 * 3600);
const USE: &str = "use fail, hang, forget, lie, drop or power-loss (each also as RULE:TIMES), slow:MS or wrong-machine";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answers no. A command runs, and exits 1.
    Fail,
    /// Never answers, and does nothing.
    Hang,
    Slow(Duration),
    /// Answers yes and does nothing.
    Forget,
    /// Answers that it is done, and does it later.
    Lie,
    /// Does it, and the answer is lost.
    Drop,
    /// Power goes half-way, and with it the answer.
    PowerLoss,
    /// Another machine answers.
    WrongMachine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// As the label spells it: strikes are counted per text, so another text counts anew.
    pub text: String,
    pub fault: Fault,
    /// How often it strikes; always, if unset.
    pub times: Option<u64>,
}

impl Rule {
    pub(crate) fn of(labels: &Labels, step: &str) -> ProviderResult<Option<Self>> {
        let label = format!("sim.fault.{step}");
        let Some(text) = labels.get(&label) else { return Ok(None) };
        match Self::parse(text) {
            Some(rule) => Ok(Some(rule)),
            None => Err(invalid(&label, text, USE)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (word, number) = match text.split_once(':') {
            Some((word, number)) => (word, Some(number.parse::<u64>().ok()?)),
            None => (text, None),
        };
        let (fault, times) = match (word, number) {
            ("fail", times) => (Fault::Fail, times),
            ("hang", times) => (Fault::Hang, times),
            ("forget", times) => (Fault::Forget, times),
            ("lie", times) => (Fault::Lie, times),
            ("drop", times) => (Fault::Drop, times),
            ("power-loss", times) => (Fault::PowerLoss, times),
            ("slow", Some(ms)) if Duration::from_millis(ms) <= SLOW_MAX => {
                (Fault::Slow(Duration::from_millis(ms)), None)
            }
            ("wrong-machine", None) => (Fault::WrongMachine, None),
            _ => return None,
        };
        Some(Self { text: text.to_owned(), fault, times })
    }

    /// Whether a look at the machine shows another one. Only the kinds of step that look before they
    /// act count, so that a plan can get as far as the step whose rule it is.
    pub(crate) fn another_machine_shows(labels: &Labels) -> bool {
        [step::REBOOT, step::NETBOOT, step::REPAVE, step::RMA, step::INSPECT]
            .iter()
            .any(|step| matches!(Self::of(labels, step), Ok(Some(Rule { fault: Fault::WrongMachine, .. }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_one_spelling() {
        for (text, fault, times) in [
            ("fail", Fault::Fail, None),
            ("fail:3", Fault::Fail, Some(3)),
            ("hang", Fault::Hang, None),
            ("slow:250", Fault::Slow(Duration::from_millis(250)), None),
            ("forget", Fault::Forget, None),
            ("lie", Fault::Lie, None),
            ("drop", Fault::Drop, None),
            ("drop:1", Fault::Drop, Some(1)),
            ("power-loss", Fault::PowerLoss, None),
            ("power-loss:2", Fault::PowerLoss, Some(2)),
            ("wrong-machine", Fault::WrongMachine, None),
        ] {
            assert_eq!(Rule::parse(text), Some(Rule { text: text.into(), fault, times }), "{text}");
        }
        for bad in ["", "fial", "fail:", "fail:x", "fail:-1", "slow", "slow:99999999999", "wrong-machine:1", "fail:1:2"]
        {
            assert_eq!(Rule::parse(bad), None, "{bad:?}");
        }
    }
}
