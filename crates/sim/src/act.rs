//! An act, from the call to its effect and its answer: how long it takes, and all the ways in which it
//! can go wrong. Every act of every capability passes through [`SimFleet::act`].

use crate::change::Change;
use crate::control;
use crate::fault::{Fault, Rule, step};
use crate::fleet::SimFleet;
use crate::identity::wrong_machine;
use crate::job::JOBS_MAX;
use crate::machine::DEFERRED_MAX;
use crate::visit::{Failure, Visit};
use crate::world::Cause;
use provider::{Ack, Operation, ProviderError, ProviderResult, Target};
use std::time::Duration;

/// How much later than promised a lying machine acts.
const LIE: Duration = Duration::from_secs(1);

/// Where the time goes that an act takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The caller waits, then it is done.
    InCall,
    /// Accepted at once; it ends later.
    Background,
    /// The caller waits until it is accepted; it ends later still.
    Both,
}

/// What kind of act it is.
pub(crate) struct Manner {
    name: &'static str,
    /// The kind of step whose fault rule applies.
    step: &'static str,
    pace: Pace,
    /// The upstream knows the operation's key, and does nothing twice for one.
    keyed: bool,
    /// Goes through the system on the machine, which must answer.
    needs_host: bool,
}

const fn in_call(name: &'static str, step: &'static str) -> Manner {
    Manner { name, step, pace: Pace::InCall, keyed: false, needs_host: false }
}

pub(crate) const SET_BOOT: Manner = in_call("set_boot", step::NETBOOT);
pub(crate) const CLEAR_BOOT: Manner = in_call("clear_boot", step::NETBOOT);
// Only the RMA plan powers machines off.
pub(crate) const POWER_OFF: Manner = in_call("power_off", step::RMA);
pub(crate) const APPLY: Manner = in_call("apply", step::NET);
pub(crate) const OPEN_RETURN: Manner = Manner { keyed: true, ..in_call("open_return", step::RMA) };
// Management controllers and installers know no keys: what is asked twice is done twice, and shows.
pub(crate) const RESET: Manner = Manner { pace: Pace::Both, ..in_call("reset", step::REBOOT) };
pub(crate) const INSTALL: Manner = Manner { pace: Pace::Background, ..in_call("install", step::REPAVE) };
pub(crate) const START: Manner =
    Manner { name: "start", step: step::SSH, pace: Pace::Background, keyed: true, needs_host: true };
pub(crate) const JOIN: Manner =
    Manner { name: "join", step: step::JOIN, pace: Pace::Background, keyed: true, needs_host: true };

// What people do with one machine's controller, see `bmc`.
pub(crate) const PERSON_OFF: Manner = in_call("power_off", step::REBOOT);
pub(crate) const PERSON_BMC: Manner = in_call("bmc", step::BMC);
pub(crate) const UPDATE: Manner = Manner { pace: Pace::Background, ..in_call("update", step::BMC) };
pub(crate) const CORDON: Manner = in_call("cordon", step::VERIFY);

impl Manner {
    const fn answer(&self) -> Ack {
        match self.pace {
            Pace::InCall => Ack::Done,
            Pace::Background | Pace::Both => Ack::Accepted,
        }
    }
}

/// One call of an act.
struct Call<'a> {
    target: &'a Target,
    key: &'a str,
    fence: &'a str,
    manner: &'a Manner,
}

impl Call<'_> {
    fn cause(&self) -> Cause<'_> {
        Cause { operation: self.key, fence: self.fence }
    }

    /// Whether the upstream knows this call by its key. Asked again at the last moment: a twin may have
    /// come first while this call waited.
    fn is_known(&self, visit: &Visit<'_>) -> Result<bool, Failure> {
        Ok(self.manner.keyed && visit.machine()?.knows(self.key))
    }
}

/// What is settled before the call takes any time.
struct Course {
    fault: Option<Fault>,
    /// The caller waits so long,
    wait: Duration,
    /// and what begins then ends so much later.
    after: Duration,
}

impl SimFleet {
    pub(crate) async fn act(
        &self,
        target: &Target,
        op: &Operation,
        manner: &Manner,
        change: Change,
    ) -> ProviderResult<Ack> {
        let key = op.key();
        let call = Call { target, key: &key, fence: &op.fence, manner };
        let Some(Course { fault, wait, after }) = self.course(&call)? else { return Ok(manner.answer()) };
        match fault {
            None | Some(Fault::Slow(_)) => {
                self.receive(&call, change, wait, after).await?;
                Ok(manner.answer())
            }
            Some(Fault::Fail) if manner.step == step::SSH => {
                self.perform(&call, change.exiting(1), after)?;
                Ok(manner.answer())
            }
            Some(Fault::Fail) => {
                pause(wait).await;
                Err(ProviderError::transient(format!("simulated: {} of {} failed", manner.name, target.machine_id)))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Forget) => {
                pause(wait).await;
                Ok(manner.answer())
            }
            Some(Fault::Lie) => {
                self.promise(&call, change, wait + after + LIE, Duration::ZERO)?;
                Ok(Ack::Done)
            }
            Some(Fault::Drop) => {
                self.receive(&call, change, wait, after).await?;
                Err(ProviderError::unknown("simulated: the connection was lost"))
            }
            Some(Fault::PowerLoss) => {
                pause((wait + after) / 2).await;
                self.perform_half(&call, change, after)?;
                Err(ProviderError::unknown("simulated: the machine lost power"))
            }
            Some(Fault::WrongMachine) => Err(wrong_machine(target)),
        }
    }

    /// Takes the request on, then waits as long as it takes. It is in the journal before the caller
    /// waits: a controller carries out what it has received, whatever becomes of the caller.
    async fn receive(&self, call: &Call<'_>, change: Change, wait: Duration, after: Duration) -> ProviderResult<()> {
        if wait.is_zero() {
            return self.perform(call, change, after);
        }
        self.promise(call, change, wait, after)?;
        pause(wait).await;
        // a visit records what is due, so that it is in the journal before the answer
        self.visit(call.target, |_| Ok(()))
    }

    /// Decides how the call will go. `None`: it was done before, and its key is known.
    fn course(&self, call: &Call<'_>) -> ProviderResult<Option<Course>> {
        let (labels, manner) = (&call.target.labels, call.manner);
        self.visit(call.target, |visit| {
            let rule = Rule::of(labels, manner.step)?;
            let fixed = control::latency(labels)?;
            if call.is_known(visit)? {
                return Ok(None);
            }
            let machine = visit.machine()?;
            let acts = machine.acts;
            if manner.needs_host && !machine.up {
                return Err(no_answer(call.target).into());
            }
            if manner.step == step::SSH && machine.running_jobs() >= JOBS_MAX {
                return Err(ProviderError::transient(format!("{JOBS_MAX} commands run already")).into());
            }
            let fault = visit.strike(call.cause(), manner.step, rule, true)?;
            let slow = if let Some(Fault::Slow(more)) = fault { more } else { Duration::ZERO };
            let draw = |what| {
                let words = [call.target.machine_id.as_str(), call.key, what];
                fixed.unwrap_or_else(|| control::drawn_latency(self.seed, words, acts)) + slow
            };
            let (wait, after) = match manner.pace {
                Pace::InCall => (draw(manner.name), Duration::ZERO),
                Pace::Background => (Duration::ZERO, draw(manner.name)),
                Pace::Both => (draw(manner.name), draw("boot")),
            };
            Ok(Some(Course { fault, wait, after }))
        })
    }

    /// Lets the act take effect, with its end, if it has one, in the future.
    fn perform(&self, call: &Call<'_>, change: Change, after: Duration) -> ProviderResult<()> {
        self.visit(call.target, |visit| {
            if call.is_known(visit)? {
                return Ok(());
            }
            let due = visit.now.plus(after).micros();
            visit.change(call.cause(), change.ending(due))
        })
    }

    /// Begins what takes time, then takes the power away in the same moment.
    fn perform_half(&self, call: &Call<'_>, change: Change, after: Duration) -> ProviderResult<()> {
        self.visit(call.target, |visit| {
            if call.manner.pace != Pace::InCall {
                let due = visit.now.plus(after).micros();
                visit.change(call.cause(), change.ending(due))?;
            }
            visit.change(call.cause(), Change::PowerLost {})
        })
    }

    /// Leaves the act for later: it takes effect after `wait`, and what it begins ends `after` that.
    fn promise(&self, call: &Call<'_>, change: Change, wait: Duration, after: Duration) -> ProviderResult<()> {
        self.visit(call.target, |visit| {
            if call.is_known(visit)? {
                return Ok(());
            }
            if visit.machine()?.owes() >= DEFERRED_MAX {
                return Err(ProviderError::transient("simulated: too much is promised already").into());
            }
            let due_micros = visit.now.plus(wait).micros();
            let change = Box::new(change.ending(visit.now.plus(wait + after).micros()));
            visit.change(call.cause(), Change::Deferred { due_micros, change })
        })
    }
}

pub(crate) fn no_answer(target: &Target) -> ProviderError {
    ProviderError::transient(format!("simulated: the host of {} does not answer", target.machine_id))
}

/// Waits, but does not give way for nothing.
pub(crate) async fn pause(span: Duration) {
    if !span.is_zero() {
        tokio::time::sleep(span).await;
    }
}
