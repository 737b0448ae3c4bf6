//! A visit to one machine: it exists, what ended is recorded, and nobody else changes it meanwhile.

use crate::change::Change;
use crate::fault::{Fault, Rule};
use crate::fleet::SimFleet;
use crate::identity::Identity;
use crate::machine::Machine;
use crate::world::{Cause, World};
use domain::Timestamp;
use domain::stage::FailureClass;
use provider::{ProviderError, ProviderResult, Target};
use std::io;

pub(crate) struct Visit<'a> {
    pub now: Timestamp,
    world: &'a mut World,
    id: &'a str,
}

/// Why a visit ended without a result: the answer is no, or the journal could not be kept.
pub(crate) enum Failure {
    Answer(ProviderError),
    Journal(io::Error),
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Failure::Answer(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Journal(error)
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Answer(error) => error,
            Failure::Journal(error) => ProviderError::refused(
                FailureClass::DependencyDown,
                format!("the journal of the simulated fleet cannot be used: {error}"),
            ),
        }
    }
}

impl SimFleet {
    pub(crate) fn visit<T>(
        &self,
        target: &Target,
        work: impl FnOnce(&mut Visit<'_>) -> Result<T, Failure>,
    ) -> ProviderResult<T> {
        let id = target.machine_id.as_str();
        let visited = self.world().alone(|world| {
            let now = (self.clock)();
            if world.machine(id).is_none() {
                let Identity { serial_number, system_uuid } = Identity::of(target);
                let created = Change::Created { serial_number, system_uuid };
                world.change(now.micros(), id, Cause::default(), created)?;
            }
            world.settle(id, now.micros())?;
            work(&mut Visit { now, world, id })
        });
        Ok(visited?)
    }
}

impl Visit<'_> {
    pub(crate) fn machine(&self) -> Result<&Machine, Failure> {
        let missing = || Failure::Journal(io::Error::other(format!("machine {} is not in the world", self.id)));
        self.world.machine(self.id).ok_or_else(missing)
    }

    pub(crate) fn change(&mut self, cause: Cause<'_>, change: Change) -> Result<(), Failure> {
        Ok(self.world.change(self.now.micros(), self.id, cause, change)?)
    }

    /// The fault that strikes this call, if the rule has strikes left. Strikes that are counted are
    /// always recorded, so that a restart does not hand them out again; others only if `record` says so.
    pub(crate) fn strike(
        &mut self,
        cause: Cause<'_>,
        step: &str,
        rule: Option<Rule>,
        record: bool,
    ) -> Result<Option<Fault>, Failure> {
        let Some(rule) = rule else { return Ok(None) };
        if rule.times.is_some_and(|times| self.machine().is_ok_and(|m| m.strikes(step, &rule.text) >= times)) {
            return Ok(None);
        }
        if rule.times.is_some() || (record && !matches!(rule.fault, Fault::Slow(_))) {
            self.change(cause, Change::Fault { step: step.to_owned(), rule: rule.text })?;
        }
        Ok(Some(rule.fault))
    }
}
