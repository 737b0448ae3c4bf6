//! Looks at the BMC and at the cluster, which fault rules can spoil like acts. Other looks are always honest.

use crate::act::pause;
use crate::change::Change;
use crate::fault::{Fault, Rule};
use crate::fleet::SimFleet;
use crate::identity::wrong_machine;
use crate::world::Cause;
use provider::{ProviderError, ProviderResult, Target};

pub(crate) enum Look {
    /// Say what is so.
    Honest,
    /// Say yes without looking.
    Yes,
    /// Say no without looking.
    No,
}

impl SimFleet {
    /// How a look goes. Takes no time and leaves no trace unless a rule says so; only strikes that are
    /// counted are recorded, since a look may be repeated without end.
    pub(crate) async fn look(&self, target: &Target, step: &str) -> ProviderResult<Look> {
        self.look_with(target, step, Rule::of(&target.labels, step)?).await
    }

    /// An observer's look: it uses up no strike that was meant for a run, and takes nobody's power.
    pub(crate) async fn glance(&self, target: &Target, step: &str) -> ProviderResult<Look> {
        let rule = Rule::of(&target.labels, step)?;
        let lasting = rule.filter(|rule| rule.times.is_none() && rule.fault != Fault::PowerLoss);
        self.look_with(target, step, lasting).await
    }

    async fn look_with(&self, target: &Target, step: &str, rule: Option<Rule>) -> ProviderResult<Look> {
        let cause = Cause::default();
        let fault = self.visit(target, |visit| {
            let fault = visit.strike(cause, step, rule, false)?;
            if fault == Some(Fault::PowerLoss) && visit.machine()?.powered {
                visit.change(cause, Change::PowerLost {})?;
            }
            Ok(fault)
        })?;
        match fault {
            None => Ok(Look::Honest),
            Some(Fault::Slow(span)) => {
                pause(span).await;
                Ok(Look::Honest)
            }
            Some(Fault::Fail) => Ok(Look::No),
            Some(Fault::Forget | Fault::Lie) => Ok(Look::Yes),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Drop) => Err(ProviderError::unknown("simulated: the connection was lost")),
            Some(Fault::PowerLoss) => Err(ProviderError::unknown("simulated: the machine lost power")),
            Some(Fault::WrongMachine) => Err(wrong_machine(target)),
        }
    }
}
