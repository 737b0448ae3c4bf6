//! What a look leaves behind: nothing, if it showed what was known; otherwise one transaction with the new
//! observation, the flips, and the move to READY if this was the proof.

use crate::reconciler::Core;
use domain::Error;
use domain::lifecycle::Guard;
use domain::look::{Look, is_looked_at, observe};
use domain::machine::{INSPECTED, Machine, Phase};
use domain::observation::Observation;
use store::machine::{self, PhaseChange};
use store::{Caller, Cause, Tx, TxResult, observation, switch};

/// The actor of everything that is done here.
const RECONCILER: &str = "reconciler";

/// A machine as it was read, and whether automation was frozen then.
pub(crate) struct Read {
    pub machine: Machine,
    pub frozen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// All as it was known, or somebody else has looked since.
    Nothing,
    Written,
    /// The machine was described anew meanwhile: what was seen may be another's.
    Outdated,
}

impl Core {
    /// Looks at a machine and keeps what is new.
    pub(crate) async fn look_at(&self, read: &Read) -> Result<Recorded, Error> {
        let at = self.store.ambient().now();
        if !is_looked_at(read.machine.phase) {
            return self.rest(&read.machine).await;
        }
        let look = crate::ask::look(&self.providers, &read.machine, at, self.options.timeout).await;
        let proves = !read.frozen && awaits_proof(&read.machine, &look);
        if !proves && !is_news(&read.machine, &observe(&read.machine, &look)) {
            return Ok(Recorded::Nothing);
        }
        let looked_at = read.machine.clone();
        let key = looked_at.id.to_string();
        self.store.write(&Caller::reconciler(), &key, move |tx| record(tx, &looked_at, &look)).await
    }

    /// A machine that is no longer looked at: what is known of it is not confirmed any more.
    async fn rest(&self, machine: &Machine) -> Result<Recorded, Error> {
        let resting = |m: &Machine, at| {
            let new = m.observation.as_ref().map(|o| o.at_rest(m.phase, at));
            new.filter(|new| is_news(m, new))
        };
        if resting(machine, self.store.ambient().now()).is_none() {
            return Ok(Recorded::Nothing);
        }
        let id = machine.id.clone();
        let write = move |tx: &mut Tx<'_>| {
            let now = tx.now();
            let there = machine::get_for_update(tx, &id)?.filter(|m| !is_looked_at(m.phase));
            let Some((there, new)) = there.and_then(|m| resting(&m, now).map(|new| (m, new))) else {
                return Ok(Recorded::Nothing);
            };
            observation::record(tx, &there, &new, RECONCILER)?;
            Ok(Recorded::Written)
        };
        self.store.write(&Caller::reconciler(), machine.id.as_str(), write).await
    }
}

fn is_news(machine: &Machine, new: &Observation) -> bool {
    !machine.observation.as_ref().is_some_and(|old| old.same(new))
}

/// Whether this look is the proof that the machine is waiting for.
fn awaits_proof(machine: &Machine, look: &Look) -> bool {
    machine.phase == Phase::FactoryReady && machine.running().is_none() && look.proves_manageable(&machine.spec)
}

fn record(tx: &mut Tx<'_>, looked_at: &Machine, look: &Look) -> TxResult<Recorded> {
    let Some(there) = machine::get_for_update(tx, &looked_at.id)?.filter(|m| is_looked_at(m.phase)) else {
        return Ok(Recorded::Nothing);
    };
    if there.spec != looked_at.spec || there.labels != looked_at.labels {
        return Ok(Recorded::Outdated);
    }
    if there.observation.as_ref().is_some_and(|o| o.observed_at > look.at) {
        return Ok(Recorded::Nothing);
    }
    let mut recorded = Recorded::Nothing;
    let new = observe(&there, look);
    if is_news(&there, &new) {
        observation::record(tx, &there, &new, RECONCILER)?;
        recorded = Recorded::Written;
    }
    // a freeze stops what we do, not what we see
    if awaits_proof(&there, look) && switch::frozen(tx)?.is_none() {
        move_to_ready(tx, &there, look)?;
        recorded = Recorded::Written;
    }
    Ok(recorded)
}

fn move_to_ready(tx: &mut Tx<'_>, machine: &Machine, look: &Look) -> TxResult<()> {
    let change = PhaseChange {
        to: Phase::Ready,
        active_run: machine.active_run.as_ref().map(|run| run.id.clone()),
        previous_phase: machine.previous_phase,
        conditions: machine.conditions.clone(),
    };
    let cause = Cause::reconciler(RECONCILER, INSPECTED, &format!("it has told {} who it is", look.source));
    let guard = |guard| match guard {
        Guard::Inspected if awaits_proof(machine, look) => Ok(()),
        Guard::Inspected
        | Guard::None
        | Guard::NoActiveRun
        | Guard::InClusterAndNoActiveRun
        | Guard::WorkflowAssigned
        | Guard::ForcedReset
        | Guard::AttemptsSpent
        | Guard::NotInUse
        | Guard::Node(_) => Err(Error::internal("a reconciler moves only what it has inspected")),
    };
    machine::set_phase(tx, machine, &change, &cause, guard).map(drop)
}
