//! One simulated machine: its power, its disk, its host, and the work under way on it. It changes by
//! applying records and by nothing else, so that a replay ends where the original did.

use crate::change::Change;
use crate::controller::{self, Controller};
use crate::effect::Record;
use crate::job::{End, JOBS_MAX, Job};
use crate::output::Printout;
use domain::plan::BootMode;
use provider::Install;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Joins and returns whose keys a machine remembers.
const KEYS_MAX: usize = 64;
/// Fault rules whose strikes a machine counts; the first one met is forgotten first.
const RULES_MAX: usize = 64;
/// Acts that a lying machine may still owe.
pub(crate) const DEFERRED_MAX: usize = 64;

/// Work that ends at a known time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pending<T> {
    pub operation: String,
    pub fence: String,
    pub due_micros: i64,
    pub what: T,
}

/// Something whose time has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Due {
    pub at_micros: i64,
    pub operation: String,
    pub fence: String,
    pub change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BootOverride {
    pub mode: BootMode,
    pub persistent: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Strikes {
    step: String,
    rule: String,
    count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    pub powered: bool,
    /// The system on it answers.
    pub up: bool,
    pub boots: u64,
    pub boot_override: Option<BootOverride>,
    pub installed: Option<Install>,
    /// The image being written.
    pub installing: Option<Pending<String>>,
    /// The cluster it is a member of.
    pub member: Option<String>,
    pub network: BTreeMap<String, String>,
    pub open_return: Option<String>,
    /// What people find and leave at its management controller; nothing for most machines of a large fleet.
    controller: Option<Box<Controller>>,
    /// Out of its cluster's scheduling.
    pub cordoned: bool,
    /// Acts that took effect: a count for the dice, which a replay restores.
    pub acts: u64,
    booting: Option<Pending<()>>,
    joining: Option<Pending<String>>,
    jobs: VecDeque<Job>,
    deferred: Vec<Pending<Change>>,
    keys: VecDeque<String>,
    strikes: VecDeque<Strikes>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self {
            powered: true,
            up: true,
            boots: 1,
            boot_override: None,
            installed: None,
            installing: None,
            member: None,
            network: BTreeMap::new(),
            open_return: None,
            controller: None,
            cordoned: false,
            acts: 0,
            booting: None,
            joining: None,
            jobs: VecDeque::new(),
            deferred: Vec::new(),
            keys: VecDeque::new(),
            strikes: VecDeque::new(),
        }
    }

    pub(crate) fn controller(&self) -> &Controller {
        static UNTOUCHED: Controller = Controller::new();
        self.controller.as_deref().unwrap_or(&UNTOUCHED)
    }

    fn controller_mut(&mut self) -> &mut Controller {
        self.controller.get_or_insert_default()
    }

    pub(crate) fn job(&self, operation: &str) -> Option<&Job> {
        self.jobs.iter().find(|job| job.operation == operation)
    }

    pub(crate) fn running_jobs(&self) -> usize {
        self.jobs.iter().filter(|job| job.end.is_none()).count()
    }

    /// Whether an act with this key was taken on, be it done or only promised.
    pub(crate) fn knows(&self, operation: &str) -> bool {
        self.job(operation).is_some()
            || self.keys.iter().any(|key| key == operation)
            || self.deferred.iter().any(|d| d.operation == operation)
    }

    pub(crate) fn owes(&self) -> usize {
        self.deferred.len()
    }

    /// Whether `operation` can kill something: a command that runs, or one still to be started.
    pub(crate) fn can_kill(&self, operation: &str) -> bool {
        self.job(operation).is_some_and(|job| job.end.is_none())
            || self.deferred.iter().any(|d| d.operation == operation && starts_command(&d.what))
    }

    /// Whether the stage of `operation` has an installation under way, or still to be started.
    pub(crate) fn can_abort(&self, operation: &str) -> bool {
        self.installing.as_ref().is_some_and(|i| same_stage(&i.operation, operation))
            || self.deferred.iter().any(|d| same_stage(&d.operation, operation) && starts_install(&d.what))
    }

    pub(crate) fn strikes(&self, step: &str, rule: &str) -> u64 {
        self.strikes.iter().find(|s| s.step == step && s.rule == rule).map_or(0, |s| s.count)
    }

    /// What ended first by `now` and is not yet recorded.
    pub(crate) fn next_due(&self, now: i64) -> Option<Due> {
        fn due<T>(pending: &Pending<T>, change: Change) -> Due {
            Due {
                at_micros: pending.due_micros,
                operation: pending.operation.clone(),
                fence: pending.fence.clone(),
                change,
            }
        }
        let ready = |due_micros: i64| due_micros <= now;
        let deferred = self.deferred.iter().filter(|d| ready(d.due_micros)).map(|d| due(d, d.what.clone()));
        let booted = self.booting.iter().filter(|b| ready(b.due_micros)).map(|b| due(b, Change::Booted {}));
        let repaved = self.installing.iter().filter(|i| ready(i.due_micros)).map(|i| due(i, Change::Repaved {}));
        let exited = self.jobs.iter().filter(|j| j.end.is_none() && ready(j.due_micros)).map(|j| Due {
            at_micros: j.due_micros,
            operation: j.operation.clone(),
            fence: j.fence.clone(),
            change: Change::ExecFinished { exit_code: j.printout.exit_code },
        });
        let joined = self
            .joining
            .iter()
            .filter(|j| ready(j.due_micros))
            .map(|j| due(j, Change::Joined { cluster: j.what.clone() }));
        let updated =
            self.controller().updating.iter().filter(|u| ready(u.due_micros)).map(|u| due(u, Change::Updated {}));
        deferred.chain(booted).chain(repaved).chain(exited).chain(joined).chain(updated).min_by_key(|d| d.at_micros)
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        if let Some(event) = controller::event(&record.change) {
            self.controller_mut().note(record.at_micros, event);
        }
        // What a machine owed is no longer owed once it happens, which is at the very time it was due.
        if let Some(paid) = self.deferred.iter().position(|d| {
            d.operation == record.operation && d.due_micros == record.at_micros && d.what == record.change
        }) {
            self.deferred.remove(paid);
        }
        match &record.change {
            Change::Created { .. } => {}
            Change::Fault { step, rule } => self.count_strike(step, rule),
            Change::Deferred { due_micros, change } => {
                self.deferred.push(pending(record, *due_micros, (**change).clone()));
            }
            Change::Netboot { mode, persistent } => {
                self.boot_override = Some(BootOverride { mode: *mode, persistent: *persistent });
                self.acts += 1;
            }
            Change::ClearNetboot {} => {
                self.boot_override = None;
                self.acts += 1;
            }
            Change::Reset { due_micros, .. } => {
                self.stop_everything();
                self.powered = true;
                self.up = false;
                self.booting = Some(pending(record, *due_micros, ()));
                self.boot_override = self.boot_override.filter(|o| o.persistent);
                self.acts += 1;
            }
            Change::Booted {} => self.boot(),
            Change::PowerOff {} => {
                self.lose_power();
                self.acts += 1;
            }
            Change::PowerLost {} => self.lose_power(),
            Change::RepaveStarted { image, due_micros, .. } => {
                // The disk is being overwritten: what lived on it is gone.
                self.stop_host_work();
                self.member = None;
                self.installed = None;
                self.installing = Some(pending(record, *due_micros, image.clone()));
                self.powered = true;
                self.acts += 1;
            }
            Change::Repaved {} => {
                if let Some(done) = self.installing.take() {
                    self.installed = Some(Install { image: done.what, operation: done.operation });
                }
                // an installation that had to power the machine on ends with a boot
                if !self.up && self.booting.is_none() {
                    self.boot();
                }
            }
            Change::RepaveAborted {} => {
                self.installing.take_if(|i| same_stage(&i.operation, &record.operation));
                self.deferred.retain(|d| !(same_stage(&d.operation, &record.operation) && starts_install(&d.what)));
            }
            Change::ExecStarted { command, args, output_bytes, exit_code, due_micros, .. } => {
                let printout = Printout {
                    command: command.clone(),
                    args: args.clone(),
                    output_bytes: *output_bytes,
                    exit_code: *exit_code,
                };
                let job = pending(record, *due_micros, Arc::new(printout));
                self.jobs.push_back(Job {
                    operation: job.operation,
                    fence: job.fence,
                    due_micros: job.due_micros,
                    printout: job.what,
                    end: None,
                });
                shorten(&mut self.jobs, JOBS_MAX);
                self.acts += 1;
            }
            Change::ExecFinished { exit_code } => {
                self.end_job(&record.operation, End { exit_code: *exit_code, killed: false });
            }
            Change::ExecKilled { exit_code } => {
                self.end_job(&record.operation, End { exit_code: *exit_code, killed: true });
                self.deferred.retain(|d| !(d.operation == record.operation && starts_command(&d.what)));
            }
            Change::JoinStarted { cluster, due_micros } => {
                self.joining = Some(pending(record, *due_micros, cluster.clone()));
                self.remember(&record.operation);
                self.acts += 1;
            }
            Change::Joined { cluster } => {
                self.joining = None;
                self.member = Some(cluster.clone());
                self.cordoned = false;
            }
            Change::NetApplied { parameters } => {
                self.network.clone_from(parameters);
                self.acts += 1;
            }
            Change::ReturnOpened { .. } => {
                self.open_return = Some(record.operation.clone());
                self.remember(&record.operation);
                self.acts += 1;
            }
            Change::Cordoned { on } => {
                self.cordoned = *on;
                self.acts += 1;
            }
            Change::NodeDeleted {} => {
                self.member = None;
                self.cordoned = false;
                self.acts += 1;
            }
            Change::Updated {} => self.controller_mut().apply(record),
            Change::Lamp { .. }
            | Change::MediaInserted { .. }
            | Change::MediaEjected {}
            | Change::BiosSet { .. }
            | Change::UpdateStarted { .. }
            | Change::PasswordRotated {}
            | Change::Repinned {} => {
                self.controller_mut().apply(record);
                self.acts += 1;
            }
        }
    }

    fn boot(&mut self) {
        self.booting = None;
        self.up = true;
        self.boots += 1;
        if let Some(controller) = &mut self.controller {
            controller.booted();
        }
    }

    fn lose_power(&mut self) {
        self.stop_everything();
        self.booting = None;
        self.powered = false;
        self.up = false;
    }

    fn stop_everything(&mut self) {
        self.stop_host_work();
        self.installing = None;
    }

    fn stop_host_work(&mut self) {
        self.joining = None;
        self.jobs.iter_mut().for_each(Job::kill);
    }

    fn end_job(&mut self, operation: &str, end: End) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.operation == operation) {
            job.end.get_or_insert(end);
        }
    }

    fn remember(&mut self, operation: &str) {
        self.keys.push_back(operation.to_owned());
        shorten(&mut self.keys, KEYS_MAX);
    }

    fn count_strike(&mut self, step: &str, rule: &str) {
        match self.strikes.iter_mut().find(|s| s.step == step && s.rule == rule) {
            Some(strikes) => strikes.count += 1,
            None => {
                self.strikes.push_back(Strikes { step: step.to_owned(), rule: rule.to_owned(), count: 1 });
                shorten(&mut self.strikes, RULES_MAX);
            }
        }
    }
}

pub(crate) fn pending<T>(record: &Record, due_micros: i64, what: T) -> Pending<T> {
    Pending { operation: record.operation.clone(), fence: record.fence.clone(), due_micros, what }
}

pub(crate) fn shorten<T>(queue: &mut VecDeque<T>, max: usize) {
    while queue.len() > max {
        queue.pop_front();
    }
}

fn starts_command(change: &Change) -> bool {
    matches!(change, Change::ExecStarted { .. })
}

fn starts_install(change: &Change) -> bool {
    matches!(change, Change::RepaveStarted { .. })
}

/// Keys end in the attempt; an abort may come from another attempt of the same stage.
fn same_stage(a: &str, b: &str) -> bool {
    let stage = |key: &str| key.rsplit_once('.').map(|(stage, _)| stage.to_owned());
    stage(a).is_some() && stage(a) == stage(b)
}
