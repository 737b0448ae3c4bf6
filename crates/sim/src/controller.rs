//! What a machine's management controller keeps for people: its lamp, its drive, BIOS settings, firmware and a
//! log of its own. Part of the machine: it changes by records only.

use crate::change::Change;
use crate::effect::Record;
use crate::machine::{Pending, pending, shorten};
use std::collections::{BTreeMap, VecDeque};

/// Entries that the controller's own log keeps.
const LOG_MAX: usize = 64;
/// Ended updates whose tasks can still be asked for.
const TASKS_MAX: usize = 16;

/// An update of the firmware.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub task: String,
    pub image: String,
    pub begun_micros: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noted {
    pub number: u64,
    pub at_micros: i64,
    pub severity: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Controller {
    pub lamp: bool,
    pub media: Option<String>,
    pub bios: BTreeMap<String, String>,
    pub bios_pending: BTreeMap<String, String>,
    pub updating: Option<Pending<Update>>,
    pub updated: VecDeque<Update>,
    pub updates: u64,
    pub log: VecDeque<Noted>,
}

impl Controller {
    pub(crate) const fn new() -> Self {
        Self {
            lamp: false,
            media: None,
            bios: BTreeMap::new(),
            bios_pending: BTreeMap::new(),
            updating: None,
            updated: VecDeque::new(),
            updates: 0,
            log: VecDeque::new(),
        }
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        match &record.change {
            Change::Lamp { on } => self.lamp = *on,
            Change::MediaInserted { url } => self.media = Some(url.clone()),
            Change::MediaEjected {} => self.media = None,
            Change::BiosSet { attributes } => self.bios_pending.extend(attributes.clone()),
            Change::UpdateStarted { task, image, due_micros } => {
                let update = Update { task: task.clone(), image: image.clone(), begun_micros: record.at_micros };
                self.updating = Some(pending(record, *due_micros, update));
            }
            Change::Updated {} => {
                if let Some(done) = self.updating.take() {
                    self.updates += 1;
                    self.updated.push_back(done.what);
                    shorten(&mut self.updated, TASKS_MAX);
                }
            }
            _ => {}
        }
    }

    /// Settings that waited for a boot are in force.
    pub(crate) fn booted(&mut self) {
        self.bios.append(&mut self.bios_pending);
    }

    /// Puts an event into the controller's own log.
    pub(crate) fn note(&mut self, at_micros: i64, (severity, message): (&'static str, String)) {
        let number = self.log.back().map_or(1, |last| last.number + 1);
        self.log.push_back(Noted { number, at_micros, severity, message });
        shorten(&mut self.log, LOG_MAX);
    }
}

/// What a controller's own log says of a change, and how bad it is.
pub(crate) fn event(change: &Change) -> Option<(&'static str, String)> {
    Some(match change {
        Change::Reset { mode, .. } => ("OK", format!("System reset ({mode})")),
        Change::Booted {} => ("OK", "System booted".to_owned()),
        Change::PowerOff {} => ("OK", "System powered off".to_owned()),
        Change::PowerLost {} => ("Critical", "Input power lost".to_owned()),
        Change::MediaInserted { .. } => ("OK", "Virtual media inserted".to_owned()),
        Change::MediaEjected {} => ("OK", "Virtual media ejected".to_owned()),
        Change::BiosSet { .. } => ("OK", "BIOS settings are pending".to_owned()),
        Change::UpdateStarted { .. } => ("OK", "Firmware update begun".to_owned()),
        Change::Updated {} => ("OK", "Firmware update ended".to_owned()),
        _ => return None,
    })
}
