//! The world: all machines and the journal, kept in step. A change is written, then applied; time is
//! let in before anything is asked.

use crate::change::Change;
use crate::effect::Record;
use crate::journal::Journal;
use crate::machine::Machine;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

/// Machines one world can hold.
const MACHINES_MAX: usize = 1 << 20;

pub(crate) struct World {
    pub journal: Journal,
    // apart from the map, whose pages are never full
    machines: BTreeMap<String, Box<Machine>>,
}

/// On whose behalf a change happens.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cause<'a> {
    pub operation: &'a str,
    pub fence: &'a str,
}

impl World {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, machines: BTreeMap::new() }
    }

    pub(crate) fn machine(&self, id: &str) -> Option<&Machine> {
        self.machines.get(id).map(|machine| &**machine)
    }

    pub(crate) fn members(&self, cluster_ref: &str) -> usize {
        self.machines.values().filter(|m| m.member.as_deref() == Some(cluster_ref)).count()
    }

    /// Runs `work` alone among all processes that share the journal, on a world that has caught up.
    pub(crate) fn alone<T, E: From<io::Error>>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.journal.lock()?;
        let machines = &mut self.machines;
        let caught_up = self.journal.catch_up(|record| apply(machines, &record));
        let outcome = caught_up.map_err(E::from).and_then(|()| work(self));
        self.journal.unlock()?;
        outcome
    }

    /// Appends a change and applies it. Only within [`World::alone`].
    pub(crate) fn change(&mut self, at_micros: i64, machine: &str, cause: Cause<'_>, change: Change) -> io::Result<()> {
        let creates = matches!(change, Change::Created { .. });
        if creates && self.machines.len() >= MACHINES_MAX {
            return Err(io::Error::new(ErrorKind::QuotaExceeded, format!("the fleet has {MACHINES_MAX} machines")));
        }
        let record = Record {
            number: self.journal.next_number(),
            at_micros,
            machine: machine.to_owned(),
            operation: cause.operation.to_owned(),
            fence: cause.fence.to_owned(),
            change,
        };
        self.journal.append(&record)?;
        apply(&mut self.machines, &record).map_err(|problem| io::Error::new(ErrorKind::InvalidData, problem))
    }

    /// Records all that ended on a machine by `now`, in the order in which it ended.
    pub(crate) fn settle(&mut self, machine: &str, now: i64) -> io::Result<()> {
        while let Some(due) = self.machine(machine).and_then(|m| m.next_due(now)) {
            let cause = Cause { operation: &due.operation, fence: &due.fence };
            self.change(due.at_micros, machine, cause, due.change)?;
        }
        Ok(())
    }

    pub(crate) fn settle_all(&mut self, now: i64) -> io::Result<()> {
        let ids: Vec<String> =
            self.machines.iter().filter(|(_, m)| m.next_due(now).is_some()).map(|(id, _)| id.clone()).collect();
        ids.iter().try_for_each(|id| self.settle(id, now))
    }

    #[cfg(test)]
    pub(crate) fn machines(&self) -> &BTreeMap<String, Box<Machine>> {
        &self.machines
    }
}

fn apply(machines: &mut BTreeMap<String, Box<Machine>>, record: &Record) -> Result<(), String> {
    if let Change::Created { .. } = record.change {
        machines.entry(record.machine.clone()).or_insert_with(|| Box::new(Machine::new()));
        return Ok(());
    }
    match machines.get_mut(&record.machine) {
        Some(machine) => {
            machine.apply(record);
            Ok(())
        }
        None => Err(format!("machine {} was never created", record.machine)),
    }
}
