//! The store against a reference model, by random sequences of operations that are shrunk when one fails.
//!
//! The same operations, with the same clock and the same ids, give the same answers and leave the same contents
//! in memory, in a SQLite file and in PostgreSQL; and after every one of them the store in memory looks as the
//! reference says (`reference`), which shares no code with it.
//!
//! By default 24 sequences of up to 60 operations on all three, and 200 of up to 120 in memory;
//! `PROPTEST_CASES=1000` tries so many of each.
#![allow(clippy::expect_used, clippy::panic)] // helpers of tests fail as tests do

mod records;
mod reference;

use domain::condition::{Condition, ConditionType};
use domain::filter::Filter;
use domain::lifecycle::State as _;
use domain::machine::{Labels, MachineSpec, Phase, REGISTERED, RUN_STARTED, SET_PHASE};
use domain::plan::{Plan, RebootMode, Step, StepKind};
use domain::run::{REQUESTED, RunChange, RunError, RunPhase, RunType};
use domain::stage::Position;
use domain::token::{Role, Token};
use domain::{Error, ExecutionId, MachineId, Reason, RunId, SessionId, TokenId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use records::{Keep, keep};
use reference::{Reference, picture_of};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use store::execution::{self, CancelRequest, Entry, Execution, NewExecution, Status};
use store::machine::PhaseChange;
use store::session::{self, LiveSession};
use store::{Ambient as _, Caller, Cause, Options, Store, Tx, TxResult, machine, run, step_log, switch, token};
use testkit::ambient::VirtualAmbient;

/// One operation. Numbers point at what exists by then, round and round.
#[derive(Clone, Debug)]
enum Op {
    Register { machine: u8, serial: u8, label: u8 },
    Update { machine: u8, serial: u8, label: u8 },
    UpdateStale { machine: u8 },
    SetPhase { machine: u8, to: u8, by_executor: bool },
    Conditions { machine: u8, kind: u8, status: bool },
    Start { machine: u8 },
    Change { run: u8, kind: u8 },
    ChangeTwice { run: u8, first: u8, second: u8 },
    Output { run: u8, data: Vec<u8> },
    Session { instance: u8 },
    Look,
    Renew { session: u8 },
    DeclareDead { seen: u8 },
    Release { session: u8 },
    Claim { session: u8, limit: u8 },
    Record { held: u8, kind: u8, wait: u8 },
    Cancel { execution: u8 },
    End { execution: u8 },
    Count { rack: u8 },
    Freeze,
    Unfreeze,
    Plan { id: u8 },
    Token { id: u8 },
    Refused { machine: u8 },
    Keep(Keep),
    Advance { seconds: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    let n = || any::<u8>();
    prop_oneof![
        2 => (n(), n(), n()).prop_map(|(machine, serial, label)| Op::Register { machine, serial, label }),
        2 => (n(), n(), n()).prop_map(|(machine, serial, label)| Op::Update { machine, serial, label }),
        1 => n().prop_map(|machine| Op::UpdateStale { machine }),
        4 => (n(), n(), any::<bool>()).prop_map(|(machine, to, by_executor)| Op::SetPhase { machine, to, by_executor }),
        1 => (n(), n(), any::<bool>()).prop_map(|(machine, kind, status)| Op::Conditions { machine, kind, status }),
        6 => n().prop_map(|machine| Op::Start { machine }),
        10 => (n(), n()).prop_map(|(run, kind)| Op::Change { run, kind }),
        3 => (n(), n(), n()).prop_map(|(run, first, second)| Op::ChangeTwice { run, first, second }),
        2 => (n(), prop::collection::vec(n(), 0..20)).prop_map(|(run, data)| Op::Output { run, data }),
        1 => n().prop_map(|instance| Op::Session { instance }),
        2 => Just(Op::Look),
        2 => n().prop_map(|session| Op::Renew { session }),
        1 => n().prop_map(|seen| Op::DeclareDead { seen }),
        1 => n().prop_map(|session| Op::Release { session }),
        6 => (n(), n()).prop_map(|(session, limit)| Op::Claim { session, limit }),
        8 => (n(), n(), n()).prop_map(|(held, kind, wait)| Op::Record { held, kind, wait }),
        2 => n().prop_map(|execution| Op::Cancel { execution }),
        1 => n().prop_map(|execution| Op::End { execution }),
        2 => n().prop_map(|rack| Op::Count { rack }),
        1 => Just(Op::Freeze),
        2 => Just(Op::Unfreeze),
        1 => n().prop_map(|id| Op::Plan { id }),
        1 => n().prop_map(|id| Op::Token { id }),
        1 => n().prop_map(|machine| Op::Refused { machine }),
        8 => keep().prop_map(Op::Keep),
        3 => any::<u16>().prop_map(|seconds| Op::Advance { seconds }),
    ]
}

/// What every sequence begins with, so that the rest has something to work on.
fn prologue() -> Vec<Op> {
    let mut ops: Vec<Op> = (0..4).map(|n| Op::Register { machine: n, serial: n, label: n }).collect();
    ops.extend((0..2).map(|instance| Op::Session { instance }));
    ops.extend((0..3).map(|machine| Op::Start { machine }));
    ops.push(Op::Claim { session: 0, limit: 2 });
    ops
}

/// One store, and what a caller of it has in hand.
struct World {
    store: Store,
    clock: Arc<VirtualAmbient>,
    runs: Vec<RunId>,
    executions: Vec<ExecutionId>,
    sessions: Vec<SessionId>,
    seen: Vec<LiveSession>,
    held: Vec<(SessionId, Execution)>,
    _folder: Option<tempfile::TempDir>,
}

fn pick<T: Clone>(list: &[T], n: u8) -> Option<T> {
    (!list.is_empty()).then(|| list[usize::from(n) % list.len()].clone())
}

fn machine_id(n: u8) -> MachineId {
    // ids that a language would sort otherwise than bytes do
    MachineId::from_text(["m-1", "M-2", "m.1", "_m", "m1"][usize::from(n) % 5])
}

fn spec(serial: u8) -> MachineSpec {
    MachineSpec {
        serial_number: format!("S{}", serial % 6),
        rack: format!("r{}", serial % 2),
        location: "zürich".into(),
        ..MachineSpec::default()
    }
}

fn labels(n: u8) -> Labels {
    (0..n % 3).map(|i| (format!("k{i}"), format!("v{n}"))).collect()
}

const STEPS: [&str; 2] = ["a", "b"];

fn steps() -> Vec<Step> {
    let kind = StepKind::Reboot { mode: RebootMode::Bmc };
    STEPS.map(|name| Step { name: name.into(), timeout_seconds: None, max_retries: Some(1), kind: kind.clone() }).into()
}

fn change(kind: u8) -> RunChange {
    let step = || STEPS[usize::from(kind / 8) % 2].to_owned();
    let error =
        || Some(RunError { code: "X".into(), class: "transient".into(), message: "ü".into(), retryable: true });
    match kind % 8 {
        0 | 1 => RunChange::Started,
        2 => RunChange::StepStarted { step: step() },
        3 => RunChange::StepRetrying { step: step(), retry_count: u32::from(kind), message: "again".into() },
        4 => RunChange::StepSucceeded { step: step(), message: String::new() },
        5 => RunChange::StepFailed { step: step(), message: "broken".into() },
        6 => RunChange::Finished { phase: RunPhase::Succeeded, error: None },
        _ => RunChange::Finished { phase: RunPhase::Canceled, error: error() },
    }
}

fn entry(entry: &'static str) -> Entry {
    Entry { entry, detail: serde_json::json!({"a": [1, "ü"]}) }
}

fn known(tx: &mut Tx<'_>, id: &MachineId) -> TxResult<domain::machine::Machine> {
    machine::get_for_update(tx, id)?.ok_or_else(|| Error::new(Reason::MachineNotFound, "no such machine").into())
}

/// What StartRun does, in short.
fn start(tx: &mut Tx<'_>, id: &MachineId, run: &RunId, execution: &ExecutionId) -> TxResult<RunId> {
    if switch::frozen(tx)?.is_some() {
        return Err(Error::new(Reason::Frozen, "frozen").into());
    }
    let m = known(tx, id)?;
    if m.active_run.as_ref().is_some_and(|r| !r.phase.is_terminal()) {
        return Err(Error::new(Reason::ActiveRun, "a run is active").into());
    }
    let change = RunChange::Requested {
        machine_id: id.clone(),
        customer_id: String::new(),
        request_id: run.to_string(),
        run_type: Some(RunType::Reboot),
        plan_id: "p".into(),
        steps: STEPS.map(str::to_owned).into(),
        parameters: BTreeMap::from([("k".into(), "v".into())]),
    };
    let made = run::insert(tx, run, &change, &steps(), &Cause::operator("model", REQUESTED, ""))?;
    store::idempotency::remember(tx, "start", run.as_str(), "print", run.as_str())?;
    machine::set_hold(tx, &m, Some(run), &m.conditions)?;
    let start_within = Duration::from_secs(600);
    let subject = run.as_str();
    execution::insert(
        tx,
        &NewExecution { id: execution, workflow: "run", workflow_version: 1, subject, machine_id: id, start_within },
    )?;
    Ok(made.id)
}

fn change_run(tx: &mut Tx<'_>, id: &RunId, changes: &[RunChange]) -> TxResult<u64> {
    let mut run = run::get(tx, id)?.ok_or_else(|| Error::new(Reason::RunNotFound, "no such run"))?;
    run::change(tx, &mut run, changes, "model")?;
    Ok(run.version)
}

fn set_phase(tx: &mut Tx<'_>, id: &MachineId, to: Phase, cause: &Cause) -> TxResult<store::Moved> {
    let m = known(tx, id)?;
    let change = PhaseChange {
        to,
        active_run: m.active_run.as_ref().map(|r| r.id.clone()),
        previous_phase: Some(m.phase),
        conditions: m.conditions.clone(),
    };
    machine::set_phase(tx, &m, &change, cause, |_| Ok(()))
}

impl World {
    fn open(options: &Options, clock: Arc<VirtualAmbient>, folder: Option<tempfile::TempDir>) -> Self {
        let store = Store::open(options, clock.clone()).expect("opens");
        let (runs, executions, sessions, seen, held) = Default::default();
        Self { store, clock, runs, executions, sessions, seen, held, _folder: folder }
    }

    async fn put<T: Send + 'static>(
        &self,
        f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.store.write(&Caller::new("model"), "key", f).await
    }

    /// Carries out one operation and answers what came of it, in words.
    async fn apply(&mut self, op: &Op) -> String {
        match op.clone() {
            Op::Register { .. } | Op::Update { .. } | Op::UpdateStale { .. } | Op::SetPhase { .. } => {
                self.apply_to_machine(op).await
            }
            Op::Session { .. } | Op::Look | Op::Renew { .. } | Op::DeclareDead { .. } | Op::Release { .. } => {
                self.apply_to_session(op).await
            }
            Op::Claim { .. } | Op::Record { .. } | Op::Cancel { .. } | Op::End { .. } => {
                self.apply_to_execution(op).await
            }
            Op::Conditions { machine, kind, status } => {
                let (id, at) = (machine_id(machine), self.clock.now());
                let kind = ConditionType::ALL[usize::from(kind) % ConditionType::ALL.len()];
                let set = move |tx: &mut Tx<'_>| {
                    let m = known(tx, &id)?;
                    let mut conditions = m.conditions.clone();
                    domain::condition::set(&mut conditions, Condition::new(kind, status, "Model", at));
                    let active = m.active_run.as_ref().map(|r| r.id.clone());
                    machine::set_hold(tx, &m, active.as_ref(), &conditions)
                };
                say(self.put(set).await)
            }
            Op::Start { machine } => {
                let (id, run) = (machine_id(machine), RunId::generate(self.clock.uuid()));
                let execution = ExecutionId::generate(self.clock.uuid());
                let (r, e) = (run.clone(), execution.clone());
                let started = self.put(move |tx| start(tx, &id, &r, &e)).await;
                if started.is_ok() {
                    self.runs.push(run);
                    self.executions.push(execution);
                }
                say(started)
            }
            Op::Change { run, kind } => self.change(run, vec![change(kind)]).await,
            Op::ChangeTwice { run, first, second } => self.change(run, vec![change(first), change(second)]).await,
            Op::Output { run, data } => {
                let Some(run) = pick(&self.runs, run) else { return String::new() };
                let chunks = vec![("stdout", data), ("stderr", b"x".to_vec())];
                say(self.put(move |tx| step_log::append(tx, &run, "a", &chunks)).await)
            }
            Op::Count { rack } => {
                let (rack, id) = (format!("r{}", rack % 2), ExecutionId::from_text("exe_0"));
                say(self.put(move |tx| execution::count_destructive(tx, &rack, 2, &id, "flash")).await)
            }
            Op::Freeze => say(self.put(|tx| switch::freeze(tx, "model", "why")).await),
            Op::Unfreeze => say(self.put(switch::unfreeze).await),
            Op::Plan { id } => {
                let plan = Plan { id: format!("p{}", id % 4), display_name: id.to_string(), steps: steps() };
                let insert = move |tx: &mut Tx<'_>| match store::plan::get(tx, &plan.id)? {
                    Some(_) => Err(Error::new(Reason::PlanExists, "there already").into()),
                    None => store::plan::insert(tx, &plan, "api", "model"),
                };
                say(self.put(insert).await)
            }
            Op::Token { id } => {
                let hash = format!("h{}", id % 4);
                let fresh = TokenId::generate(self.clock.uuid());
                let insert = move |tx: &mut Tx<'_>| {
                    let token = Token::new(fresh.clone(), "t", Role::Admin, "mw", tx.now(), "model");
                    let there = tx.point(&token::by_hash(&hash))?.is_some();
                    let cause = Cause::operator("model", domain::token::CREATED, "");
                    if there { Ok(()) } else { token::insert(tx, &token, &hash, &cause) }
                };
                say(self.put(insert).await)
            }
            Op::Refused { machine } => {
                let id = machine_id(machine);
                let refuse = move |tx: &mut Tx<'_>| {
                    switch::freeze(tx, "nobody", "never")?;
                    let _moved = set_phase(tx, &id, Phase::Rma, &Cause::operator("model", SET_PHASE, ""))?;
                    Err::<(), _>(Error::new(Reason::NotConfirmed, "after all, no").into())
                };
                say(self.put(refuse).await)
            }
            Op::Keep(keep) => self.apply_to_records(keep).await,
            Op::Advance { .. } => String::new(),
        }
    }

    async fn change(&self, run: u8, changes: Vec<RunChange>) -> String {
        // the newest are the ones that can still change
        let newest: Vec<RunId> = self.runs.iter().rev().take(4).cloned().collect();
        let Some(run) = pick(&newest, run) else { return String::new() };
        say(self.put(move |tx| change_run(tx, &run, &changes)).await)
    }

    async fn apply_to_machine(&self, op: &Op) -> String {
        match *op {
            Op::Register { machine, serial, label } => {
                let (id, spec, labels) = (machine_id(machine), spec(serial), labels(label));
                let register = move |tx: &mut Tx<'_>| match machine::get_for_update(tx, &id)? {
                    Some(there) => machine::update_spec(tx, &there, &spec, &labels),
                    None => machine::insert(tx, &id, &spec, &labels, &Cause::operator("model", REGISTERED, "ü")),
                };
                say(self.put(register).await)
            }
            Op::Update { machine, serial, label } => {
                let (id, spec, labels) = (machine_id(machine), spec(serial), labels(label));
                let update = move |tx: &mut Tx<'_>| {
                    let there = known(tx, &id)?;
                    machine::update_spec(tx, &there, &spec, &labels)
                };
                say(self.put(update).await)
            }
            Op::UpdateStale { machine } => {
                let id = machine_id(machine);
                let update = move |tx: &mut Tx<'_>| {
                    let mut stale = known(tx, &id)?;
                    stale.version -= 1;
                    machine::update_spec(tx, &stale, &MachineSpec::default(), &labels(2))
                };
                say(self.put(update).await)
            }
            Op::SetPhase { machine, to, by_executor } => {
                let (id, to) = (machine_id(machine), Phase::ALL[usize::from(to) % Phase::ALL.len()]);
                let cause = match by_executor {
                    true => Cause::executor("model", RUN_STARTED, ""),
                    false => Cause::operator("model", SET_PHASE, "because"),
                };
                say(self.put(move |tx| set_phase(tx, &id, to, &cause)).await)
            }
            _ => String::new(),
        }
    }

    async fn apply_to_session(&mut self, op: &Op) -> String {
        let lease = Duration::from_secs(10);
        match *op {
            Op::Session { instance } => {
                let (id, instance) = (SessionId::generate(self.clock.uuid()), format!("i{}", instance % 2));
                self.sessions.push(id.clone());
                say(self.put(move |tx| session::open(tx, &id, &instance, lease, lease)).await)
            }
            Op::Look => {
                self.seen = self.store.read(session::live).await.expect("reads");
                say(Ok(&self.seen))
            }
            Op::Renew { session } => {
                let Some(id) = pick(&self.sessions, session) else { return String::new() };
                say(self.put(move |tx| session::renew(tx, &id)).await)
            }
            Op::DeclareDead { seen } => {
                let Some(seen) = pick(&self.seen, seen) else { return String::new() };
                say(self.put(move |tx| session::declare_dead(tx, &seen, "silent")).await)
            }
            Op::Release { session } => {
                let Some(id) = pick(&self.sessions, session) else { return String::new() };
                say(self.put(move |tx| session::release(tx, &id)).await)
            }
            _ => String::new(),
        }
    }

    async fn apply_to_execution(&mut self, op: &Op) -> String {
        match *op {
            Op::Claim { session, limit } => {
                let newest: Vec<SessionId> = self.sessions.iter().rev().take(3).cloned().collect();
                let Some(id) = pick(&newest, session) else { return String::new() };
                let (row, limit) = (id.clone(), usize::from(limit % 4));
                let claimed = self.put(move |tx| execution::claim(tx, &row, limit)).await;
                self.held.extend(claimed.iter().flatten().map(|e| (id.clone(), e.clone())));
                say(claimed)
            }
            Op::Record { held, kind, wait } => {
                let newest = self.held.len().saturating_sub(3);
                let Some(at) = pick(&(newest..self.held.len()).collect::<Vec<_>>(), held) else { return String::new() };
                let (session, before) = self.held[at].clone();
                let after = worked(&before, kind, self.clock.now().plus(Duration::from_secs(wait.into())));
                let entries: Vec<Entry> = (0..kind % 3).map(|_| entry("worked")).collect();
                let record = move |tx: &mut Tx<'_>| {
                    let mut e = after.clone();
                    execution::record(tx, &session, &mut e, &entries)?;
                    Ok(e)
                };
                let recorded = self.put(record).await;
                if let Ok(e) = &recorded {
                    self.held[at].1 = e.clone();
                }
                say(recorded)
            }
            Op::Cancel { execution } => {
                let Some(id) = pick(&self.executions, execution) else { return String::new() };
                let request = CancelRequest { by: "model".into(), reason: "why".into() };
                say(self.put(move |tx| execution::request_cancel(tx, &id, &request)).await)
            }
            Op::End { execution } => {
                let Some(id) = pick(&self.executions, execution) else { return String::new() };
                let end = move |tx: &mut Tx<'_>| {
                    let e = execution::get_for_update(tx, &id)?.expect("is there");
                    execution::end_from_outside(tx, &e, Status::Terminated, &entry("terminated"))
                };
                say(self.put(end).await)
            }
            _ => String::new(),
        }
    }

    /// Everything that can be read, in words.
    async fn contents(&self) -> Vec<String> {
        let (runs, executions) = (self.runs.clone(), self.executions.clone());
        let sessions = self.sessions.clone();
        let read = move |tx: &mut Tx<'_>| {
            let mut all =
                vec![format!("{:?}", (store::log_range(tx)?, execution::next_wake(tx)?, switch::frozen(tx)?))];
            let mut add = |items: Vec<String>| all.extend(items);
            add(each(machine::list(tx, &Filter::Everything, "", 1000)?));
            for label in ["labels.k0=v2", "NOT labels:k1", "active_run_id!=x"] {
                let found = machine::list(tx, &machine::FILTER.parse(label)?, "", 1000)?;
                add(each(found.into_iter().map(|m| m.id)));
            }
            add(each(store::log_after(tx, 0, 10_000)?));
            add(each(run::list(tx, &Filter::Everything, "", 1000)?));
            add(each(run::list_active(tx, "", "", 1000)?.into_iter().map(|r| r.id)));
            add(each(execution::list(tx, &Filter::Everything, "", 1000)?));
            add(each(session::live(tx)?));
            add(each(store::plan::list(tx)?));
            add(records::contents(tx)?);
            for run in &runs {
                run::check_fold(tx, run)?.map_err(Error::internal)?;
                add(each(step_log::after(tx, run, 0, 1000)?));
                add(each(store::idempotency::find(tx, "start", run.as_str())?.map(|k| (k.fingerprint, k.answer))));
            }
            for id in &executions {
                add(each(execution::journal(tx, id, 1000)?));
            }
            for id in &sessions {
                add(each(execution::held_by(tx, id)?));
            }
            for n in 0..4 {
                add(each(tx.point(&token::by_hash(&format!("h{n}")))?));
            }
            Ok(all)
        };
        self.store.snapshot(read).await.expect("reads everything")
    }
}

fn each<T: Debug>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| format!("{item:?}")).collect()
}

fn say<T: Debug>(answer: Result<T, Error>) -> String {
    format!("{answer:?}")
}

/// An execution as a worker leaves it.
fn worked(before: &Execution, kind: u8, until: domain::Timestamp) -> Execution {
    let mut e = before.clone();
    e.position = Position::Stage { index: usize::from(kind % 5), attempt: u32::from(kind / 50) };
    e.stage = format!("stage {kind}");
    e.settle = Duration::from_millis(kind.into());
    e.facts = format!("{{\"n\":{kind}}}");
    match kind % 6 {
        0..3 => {}
        3 | 4 => {
            e.status = Status::Waiting;
            e.holder = None;
            e.wake_at = until;
        }
        _ => {
            e.status = Status::Done;
            e.holder = None;
        }
    }
    e
}

/// The three worlds, begun at one moment of one held clock.
fn worlds(clock: &tokio::runtime::Handle) -> [World; 3] {
    let ambient = || VirtualAmbient::on(Some(clock.clone()), 5);
    let folder = testkit::scratch::folder();
    let file = Options::Sqlite(folder.path().join("millwright.db"));
    let postgres = Options::Postgres(Box::new(testkit::postgres::database()));
    [
        World::open(&Options::Memory, ambient(), None),
        World::open(&file, ambient(), Some(folder)),
        World::open(&postgres, ambient(), None),
    ]
}

/// Passes time, carries the operation out in memory, and compares with what the reference says of it.
async fn play_one(memory: &mut World, reference: &mut Reference, op: &Op) -> Result<String, TestCaseError> {
    if let Op::Advance { seconds } = op {
        tokio::time::advance(Duration::from_secs((seconds % 2000).into())).await;
    }
    let (now, runs) = (memory.clock.now(), memory.runs.len());
    let answer = memory.apply(op).await;
    reference.apply(op, memory.runs.len() > runs, now);
    let found = picture_of(memory).await.map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert_eq!(found, reference.picture(), "memory against the reference, after {:?}", op);
    Ok(answer)
}

async fn play_in_memory(memory: &mut World, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut reference = Reference::default();
    for op in prologue().iter().chain(ops) {
        play_one(memory, &mut reference, op).await?;
    }
    Ok(())
}

async fn play(worlds: &mut [World; 3], ops: &[Op]) -> Result<(), TestCaseError> {
    let mut reference = Reference::default();
    for op in prologue().iter().chain(ops) {
        let [memory, file, postgres] = worlds;
        let expected = play_one(memory, &mut reference, op).await?;
        prop_assert_eq!(&file.apply(op).await, &expected, "a file against memory: {:?}", op);
        prop_assert_eq!(&postgres.apply(op).await, &expected, "PostgreSQL against memory: {:?}", op);
    }
    let [memory, file, postgres] = worlds;
    let expected = memory.contents().await;
    for (what, world) in [("a file against memory", file), ("PostgreSQL against memory", postgres)] {
        let found = world.contents().await;
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert_eq!(found, expected, "{}", what);
        }
        prop_assert_eq!(found.len(), expected.len(), "{}", what);
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    TestRunner::new(config)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

#[test]
fn the_databases_agree() {
    let played = runner(24).run(&prop::collection::vec(op(), 30..=60), |ops| {
        let runtime = runtime();
        let mut worlds = worlds(runtime.handle());
        let verdict = runtime.block_on(play(&mut worlds, &ops));
        worlds.iter().for_each(|world| world.store.close());
        verdict
    });
    played.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_store_does_what_the_reference_says() {
    let played = runner(200).run(&prop::collection::vec(op(), 60..=120), |ops| {
        let runtime = runtime();
        let ambient = VirtualAmbient::on(Some(runtime.handle().clone()), 5);
        let mut memory = World::open(&Options::Memory, ambient, None);
        runtime.block_on(play_in_memory(&mut memory, &ops))
    });
    played.unwrap_or_else(|e| panic!("{e}"));
}
