//! After the faults everything must come to rest, within a bounded time of the virtual clock; and at rest
//! the database must be whole, hold what the clients were told, and show the machines as they are.

use crate::clients::{Clients, Ledger, Told};
use crate::watcher::Seen;
use crate::world::{SWEEP, World};
use domain::condition::ConditionType;
use domain::filter::Filter;
use domain::look::is_looked_at;
use domain::machine::Machine;
use domain::run::{Run, RunPhase};
use provider::{ClusterControl as _, Inspect as _, Membership, Target};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use store::execution::{self, Execution, JournalRow, Status};
use store::{LogRow, Tx, TxResult, audit, machine, run, session};

/// More than any step and its retries take.
const REST_WITHIN: Duration = Duration::from_secs(6 * 3600);
const LOOK: Duration = Duration::from_secs(5);
const ALL: usize = 100_000;

/// Everything that the database holds.
pub struct Books {
    pub log: Vec<LogRow>,
    pub runs: Vec<(Run, Vec<domain::plan::Step>)>,
    pub executions: Vec<(Execution, Vec<JournalRow>)>,
    pub machines: Vec<Machine>,
    folds: Vec<String>,
    sessions: usize,
    audit: Vec<audit::Entry>,
}

fn read(tx: &mut Tx<'_>) -> TxResult<Books> {
    let mut books = Books {
        log: store::log_after(tx, 0, ALL)?,
        runs: Vec::new(),
        executions: Vec::new(),
        machines: machine::list(tx, &Filter::Everything, "", ALL)?,
        folds: Vec::new(),
        sessions: session::live(tx)?.len(),
        audit: audit::list(tx, &Filter::Everything, None, ALL)?,
    };
    for r in run::list(tx, &Filter::Everything, "", ALL)? {
        if let Err(e) = run::check_fold(tx, &r.id)? {
            books.folds.push(format!("{}: {e}", r.id));
        }
        books.runs.extend(run::get_with_steps(tx, &r.id)?);
    }
    for e in execution::list(tx, &Filter::Everything, "", ALL)? {
        let journal = execution::journal(tx, &e.id, ALL)?;
        books.executions.push((e, journal));
    }
    Ok(books)
}

pub async fn books(world: &World) -> Option<Books> {
    match world.store.snapshot(read).await {
        Ok(books) => Some(books),
        Err(e) => {
            world.nature.wrong(format!("the books cannot be read: {e}"));
            None
        }
    }
}

/// Waits until nothing is under way. What never ends is wrong.
pub async fn come_to_rest(world: &World) {
    let until = world.nature.passed() + REST_WITHIN;
    loop {
        tokio::time::sleep(LOOK).await;
        let open =
            world.store.read(|tx| execution::list_open(tx, workflow::RUN_WORKFLOW, ALL)).await.unwrap_or_default();
        if open.is_empty() {
            break;
        }
        if world.nature.passed() > until {
            for e in open {
                let (status, stage) = (e.status.as_str(), &e.stage);
                world
                    .nature
                    .wrong(format!("{} never ends: {status} in {stage:?}, waits for {:?}", e.id, e.waiting_for));
            }
            return;
        }
    }
    // everything is looked at once more, also what is slow to answer, and the watchers catch up
    tokio::time::sleep(SWEEP * 3).await;
}

pub async fn check(world: &World, books: &Books, clients: &Clients, watchers: &[std::sync::Arc<Seen>]) {
    let nature = &world.nature;
    books.folds.iter().for_each(|e| nature.wrong(format!("a run is not the fold of its rows: {e}")));
    check_log(world, &books.log);
    for seen in watchers {
        let seen: Vec<LogRow> = seen.rows().iter().map(|row| (**row).clone()).collect();
        if seen != books.log {
            let first = seen.iter().zip(&books.log).position(|(a, b)| a != b);
            let (saw, has) = (seen.len(), books.log.len());
            nature.wrong(format!("a watcher saw {saw} rows, the log has {has}; they first differ at {first:?}"));
        }
    }
    check_ended(world, books);
    check_told(world, books, &clients.ledger.lock().unwrap_or_else(PoisonError::into_inner));
    let servers = world.processes().len();
    if books.sessions != servers {
        nature.wrong(format!("{} sessions live, and {servers} servers", books.sessions));
    }
    for machine in &books.machines {
        check_conditions(world, machine).await;
    }
}

/// No gap in the log, and each entity's rows are one chain from its making to what it is.
fn check_log(world: &World, log: &[LogRow]) {
    let mut states: BTreeMap<(&str, &str), (&str, u64)> = BTreeMap::new();
    for (row, expected) in log.iter().zip(1u64..) {
        if row.sequence != expected {
            return world.nature.wrong(format!("the log has {} in the place of {expected}", row.sequence));
        }
        let entity = (row.entity_kind.as_str(), row.entity_id.as_str());
        let (was, version) = states.get(&entity).copied().unwrap_or(("", 0));
        // a step that has not begun has no row yet, nor has a condition that was never seen
        let unsaid =
            was.is_empty() && matches!((entity.0, row.from_state.as_str()), ("step", "WAITING") | ("condition", _));
        if (row.from_state != was && !unsaid) || row.version <= version {
            let (from, at) = (&row.from_state, row.sequence);
            world
                .nature
                .wrong(format!("row {at}: {entity:?} goes from {from:?} {}, and was {was:?} {version}", row.version));
        }
        states.insert(entity, (&row.to_state, row.version));
    }
}

fn check_ended(world: &World, books: &Books) {
    let nature = &world.nature;
    let runs: BTreeMap<&str, &Run> = books.runs.iter().map(|(r, _)| (r.id.as_str(), r)).collect();
    for (run, _) in &books.runs {
        nature.count(match run.phase {
            RunPhase::Succeeded => "run: SUCCEEDED",
            RunPhase::Failed => "run: FAILED",
            RunPhase::Canceled => "run: CANCELED",
            RunPhase::Pending | RunPhase::Running => "run: OPEN",
        });
        if !run.phase.is_terminal() {
            nature.wrong(format!("run {} is still {}", run.id, run.phase));
        }
        let own = books.executions.iter().filter(|(e, _)| e.subject == run.id.as_str()).count();
        if own != 1 {
            nature.wrong(format!("run {} has {own} executions", run.id));
        }
    }
    for (e, journal) in &books.executions {
        let Some(run) = runs.get(e.subject.as_str()) else {
            nature.wrong(format!("execution {} is about no run: {}", e.id, e.subject));
            continue;
        };
        let fits = match e.status {
            Status::Done => run.phase == RunPhase::Succeeded,
            Status::Failed => run.phase == RunPhase::Failed,
            Status::Canceled | Status::Terminated => run.phase == RunPhase::Canceled,
            Status::Ready | Status::Running | Status::Waiting => false,
        };
        if !fits || e.holder.is_some() {
            let (status, holder) = (e.status.as_str(), &e.holder);
            nature.wrong(format!("execution {} is {status} (held by {holder:?}) and its run {}", e.id, run.phase));
        }
        if journal.iter().zip(1u64..).any(|(row, number)| row.number != number) {
            nature.wrong(format!("the journal of {} has a gap", e.id));
        }
        let lost = journal.iter().filter(|row| row.entry == "holder_lost").count() as u64;
        nature.count_many("execution: lost its holder", lost);
        if lost > 0 && journal.last().is_some_and(|row| row.entry == "ended") {
            nature.count("execution: went on after a lost holder");
        }
    }
    for m in &books.machines {
        if let Some(active) = &m.active_run {
            nature.wrong(format!("machine {} is held by {active:?}", m.id));
        }
        let last = books.log.iter().rev().find(|row| row.entity_kind == "machine" && row.entity_id == m.id.as_str());
        if last.is_none_or(|row| row.to_state != m.phase.to_string()) {
            let state = last.map(|row| &row.to_state);
            nature.wrong(format!("machine {} is {}, and the log says {state:?}", m.id, m.phase));
        }
    }
}

/// What was answered with yes is there once; what was refused is not; of the rest there is at most one.
fn check_told(world: &World, books: &Books, ledger: &Ledger) {
    let nature = &world.nature;
    let mut told: BTreeMap<(&str, &str), Vec<&Told>> = BTreeMap::new();
    for start in &ledger.starts {
        let key = (start.request.machine_id.as_str(), start.request.request_id.as_str());
        told.entry(key).or_default().push(&start.told);
    }
    for ((machine, request), answers) in told {
        let made: Vec<&str> = books
            .runs
            .iter()
            .filter(|(r, _)| r.machine_id.as_str() == machine && r.request_id == request)
            .map(|(r, _)| r.id.as_str())
            .collect();
        if made.len() > 1 {
            nature.wrong(format!("request {request} on {machine} started {made:?}"));
        }
        for answer in answers {
            match answer {
                Told::Yes(run) if made != [run.as_str()] => {
                    nature
                        .wrong(format!("request {request} on {machine} was answered with {run}, and started {made:?}"));
                }
                Told::Yes(_) | Told::No | Told::Nothing => {}
            }
        }
    }
    for (request, told) in &ledger.changes {
        let made = books.audit.iter().filter(|e| e.request_id == *request && e.code.is_empty()).count();
        let right = match told {
            Told::Yes(_) => made == 1,
            Told::No => made == 0,
            Told::Nothing => made <= 1,
        };
        if !right {
            nature.wrong(format!("change {request} was answered with {told:?}, and is on record {made} times"));
        }
    }
}

/// What is shown of a machine is what the fleet itself says, and not stale.
async fn check_conditions(world: &World, machine: &Machine) {
    if !is_looked_at(machine.phase) {
        return;
    }
    let target = Target::of(machine);
    let Ok(really) = world.sim.inspect(&target).await else {
        return world.nature.wrong(format!("the device of {} does not answer after the faults", machine.id));
    };
    let cluster = &machine.spec.target_cluster_ref;
    let member =
        !cluster.is_empty() && matches!(world.sim.watch_membership(&target, cluster).await, Ok(Membership::Ready));
    for shown in machine.shown_conditions() {
        let expected = match shown.kind {
            ConditionType::BmcReachable => Some(true),
            ConditionType::Reachable => Some(really.reachable),
            ConditionType::Provisioned => Some(really.installed.is_some()),
            ConditionType::InCustomerCluster => Some(member),
            ConditionType::Drained
            | ConditionType::Degraded
            | ConditionType::NeedsIntervention
            | ConditionType::Reconciled => None,
        };
        if shown.stale || expected.is_some_and(|expected| expected != shown.status) {
            let (id, kind) = (&machine.id, shown.kind.as_str());
            world.nature.wrong(format!("{id}: {kind} is shown as {shown:?}, and is {expected:?}"));
        }
    }
}
