//! The lease protocol of the engine as a model, checked to exhaustion.
//!
//! Processes share a store of linearizable transactions and drive machines that know no fences:
//!
//! * A process opens a *session* at start; the same transaction marks dead what its instance left live.
//! * It renews by `renewals += 1 where id = me and state = live`; no row changed means lost, and it stops. A device
//!   call may begin only while the last successful renewal *began* less than `lease - call_timeout` ago.
//! * A taker judges a foreign session by its own clock: it remembers `(session, renewals)`, stamped once the read has
//!   returned, and when the counter has not moved for `lease` it marks the session dead by compare-and-swap.
//! * A claim takes an execution that is unheld or whose holder is not live: `holder = me, fence += 1`.
//! * Every write checks `not ended and fence = mine and holder = me and my session is live` in its own transaction.
//! * Work is intent (write), probe, act (device call), result (write). Whoever finds an intent without a result probes
//!   before acting, and adopts the effect of this attempt if the machine already shows it.
//! * Who claims from a *dead* session, however it died, leaves a stage in hand that is not repeatable alone until no
//!   call of the dead can land any more. This *settling* lasts until more than `call_timeout` has passed since the
//!   claim, or `lease + call_timeout` since the last renewal observed. Until then the claimant does not probe, act on,
//!   end or hand over the execution.
//! * A cancel ends an execution at once if nothing has been entered; otherwise its holder ends it, between calls.
//! * A hand-over is one transaction, between calls: `holder = none`, session released. The next claimant may act at
//!   once.
//!
//! How it is modelled: time is a global tick which moves every age. Ages saturate where the protocol no longer tells
//! them apart, so the space is finite without a bound on time; it is bounded by the number of sessions ever opened, of
//! executions and of attempts. A pause (SIGSTOP) is a process that is not scheduled: any number of ticks may pass
//! between any two steps of a process, while a call it has sent lands or expires within its time-out. The counter of
//! renewals is only ever compared with an earlier reading of itself, so a renewal drops the readings that others hold
//! of it. Processes and executions are interchangeable and numbered by first use.
//!
//! What is assumed: clocks run at one rate and go on while their process is stopped, a machine never acts on a call
//! later than `call_timeout` after it was sent, and at most one process of an instance is alive.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

/// Ticks without a renewal after which a taker may mark a session dead.
const LEASE: u8 = 3;
/// Ticks within which a device call takes effect or never does.
const CALL_TIMEOUT: u8 = 1;
/// Effects are counted up to here: one more than is allowed.
const MANY: u8 = 2;

/// A [`Lease::late_send`] without bound.
const ANY_PAUSE: Option<u8> = Some(u8::MAX);

type ProcessId = usize;
type SessionId = usize;
type ExecutionId = usize;

// --- state

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SessionState {
    Live,
    Released,
    /// By a restart of its instance, or else by observation. The protocol does not tell the two apart.
    Dead {
        restarted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    instance: ProcessId,
    state: SessionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Open,
    Done,
    Canceled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Execution {
    holder: Option<SessionId>,
    fence: u8,
    /// The attempt entered last; 0 while nothing has been entered.
    attempt: u8,
    cancel_requested: bool,
    status: Status,
    /// For the properties only: fence and session of the write accepted last.
    last_write: Option<(u8, SessionId)>,
}

/// A device call on its way. It outlives the process that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    execution: ExecutionId,
    session: SessionId,
    attempt: u8,
    age: u8,
}

/// Where a process stands with one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    /// Claimed, nothing entered yet: write the intent.
    Enter,
    /// Claimed from the dead: wait until its calls can no longer land.
    Settle {
        from: SessionId,
        age: u8,
    },
    /// Ask the machine whether the attempt has taken effect; `inherited`: it was entered by another session.
    Probe {
        inherited: bool,
    },
    /// The probe showed nothing: act.
    Act,
    /// The lease has been checked but the call not yet sent. Only with `late_send`.
    Send {
        age: u8,
    },
    Calling,
    /// The effect is known: write the result.
    Finish,
    /// The machine refused the call for good: enter the next attempt.
    Retry,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    step: Step,
    fence: u8,
    attempt: u8,
}

const IDLE: Worker = Worker { step: Step::Idle, fence: 0, attempt: 0 };

/// A renewal under way, with its age since it began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Renewal {
    None,
    Begun { age: u8 },
    Committed { age: u8, renewed: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    session: SessionId,
    /// Age of the lease as its holder judges it, since the last successful renewal began.
    lease_age: u8,
    renewal: Renewal,
    /// For each session: how long its counter is known not to have moved.
    observed: Vec<Option<u8>>,
    /// Age of a clock reading taken before the store was read. Only with [`Defect::StampBeforeRead`].
    stamp: Option<u8>,
    workers: Vec<Worker>,
}

/// What the last step was, where the properties of reachability want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    TakeoverAfterCrash,
    TakeoverOfPaused,
    RestartReclaim,
    CancelBeforeStart,
    CancelDuringCall,
    CancelByHolder,
    CancelAfterEffect,
    ResultBeatsCancel,
    StaleWriteRefused,
    AdoptedByProbe,
    HandOver,
    ClaimAfterHandOver,
}

/// What must never happen, noted when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Violations {
    foreign_or_decreasing_fence: bool,
    terminal_changed: bool,
    call_begun_after_end: bool,
    effect_after_end: bool,
    write_of_ended_session: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    sessions: Vec<Session>,
    executions: Vec<Execution>,
    /// Effects that the machine of each execution has seen, by attempt.
    effects: Vec<Vec<u8>>,
    /// Calls on their way, in order.
    calls: Vec<Call>,
    /// `None`: not running.
    processes: Vec<Option<Process>>,
    started: usize,
    violations: Violations,
    event: Option<Event>,
}

impl State {
    fn is_live(&self, session: SessionId) -> bool {
        self.sessions[session].state == SessionState::Live
    }

    fn running(&mut self, p: ProcessId) -> &mut Process {
        self.processes[p].as_mut().expect("a step of a process that is not running")
    }

    fn worker(&mut self, p: ProcessId, e: ExecutionId) -> &mut Worker {
        &mut self.running(p).workers[e]
    }

    fn session_of(&self, p: ProcessId) -> SessionId {
        self.processes[p].as_ref().expect("a process that is not running has no session").session
    }

    /// The worker that awaits the answer to a call, if its process still runs.
    fn caller(&mut self, call: &Call) -> Option<&mut Worker> {
        let instance = self.sessions[call.session].instance;
        let process = self.processes[instance].as_mut().filter(|process| process.session == call.session)?;
        Some(&mut process.workers[call.execution]).filter(|worker| worker.step == Step::Calling)
    }

    /// Every execution has ended and nobody has anything to do with one any more: only sessions come and go.
    fn is_at_rest(&self) -> bool {
        self.calls.is_empty()
            && self.executions.iter().all(|row| row.status != Status::Open)
            && self.processes.iter().flatten().all(|process| process.workers.iter().all(|worker| *worker == IDLE))
    }

    /// Forgets what can no longer matter of sessions that have ended and hold nothing: readings, and how they ended.
    fn forget_the_ended(&mut self) {
        for session in 0..self.sessions.len() {
            if !self.is_watched(session) {
                self.sessions[session].state = SessionState::Released;
                self.forget_observations_of(session);
            }
        }
    }

    fn forget_observations_of(&mut self, session: SessionId) {
        for process in self.processes.iter_mut().flatten() {
            process.observed[session] = None;
        }
    }

    fn holds_anything(&self, session: SessionId) -> bool {
        self.executions.iter().any(|row| row.holder == Some(session) && row.status == Status::Open)
    }

    fn is_watched(&self, session: SessionId) -> bool {
        let settling = |worker: &Worker| matches!(worker.step, Step::Settle { from, .. } if from == session);
        self.is_live(session)
            || self.holds_anything(session)
            || self.processes.iter().flatten().any(|process| process.workers.iter().any(settling))
    }
}

// --- model

/// Deliberate departures from the protocol, each of which the checker has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// A write checks neither fence, holder nor session.
    NoFenceCheck,
    /// A write checks fence and holder but not that the session is live.
    NoSessionCheck,
    /// A write does not check that the execution is still open.
    NoTerminalCheck,
    /// A claimant from the dead does not settle.
    NoSettling,
    /// A claimant does not settle if the session was marked dead by a restart.
    NoSettlingAfterRestart,
    /// A claimant does not settle if the session was marked dead by observation.
    NoSettlingAfterObservation,
    /// A claimant probes when it claims, and only then settles.
    ProbeBeforeSettling,
    /// A claimant ends a canceled execution without settling.
    CancelBeforeSettling,
    /// A process hands over an execution while it settles.
    ReleaseBeforeSettling,
    /// A claimant acts on a stage in hand without probing.
    NoProbe,
    /// A renewal does not check that the session is live.
    RenewalIgnoresState,
    /// Marking dead does not compare the counter.
    MarkIgnoresCounter,
    /// Marking dead does not wait for the lease to run out.
    MarkAtOnce,
    /// The holder begins calls for the whole lease, not only until `lease - call_timeout`.
    CallUntilLeaseEnds,
    /// The holder counts its lease from the answer to its renewal.
    LeaseFromAnswer,
    /// The taker stamps its reading before it reads the store.
    StampBeforeRead,
}

/// The model: its size, and how it departs from the protocol.
#[derive(Clone, Copy, Debug)]
struct Lease {
    processes: usize,
    /// How many sessions are opened at most; what exceeds `processes` are restarts.
    sessions: usize,
    executions: usize,
    attempts: u8,
    repeatable: bool,
    lease: u8,
    call_timeout: u8,
    /// Begin, commit and answer of a renewal are steps of their own.
    split_renewal: bool,
    /// Whether the operator may cancel.
    cancels: bool,
    /// Takers read only the sessions that hold an execution. Saves states.
    watch_holders_only: bool,
    /// Longest pause, in ticks, between checking the lease and sending the call. `None`: the two are one step.
    late_send: Option<u8>,
    defects: &'static [Defect],
    /// Names of the reachability properties which hold for this size.
    reaches: &'static [&'static str],
}

/// Two processes, one restart, one execution: the size which shows everything.
const BASE: Lease = Lease {
    processes: 2,
    sessions: 3,
    executions: 1,
    attempts: 1,
    repeatable: false,
    lease: LEASE,
    call_timeout: CALL_TIMEOUT,
    split_renewal: false,
    cancels: true,
    watch_holders_only: false,
    late_send: None,
    defects: &[],
    reaches: EVERYTHING,
};

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    Start(ProcessId),
    Crash(ProcessId),
    Renew(ProcessId),
    BeginRenewal(ProcessId),
    CommitRenewal(ProcessId),
    TakeRenewalAnswer(ProcessId),
    Stamp(ProcessId),
    Observe(ProcessId, SessionId),
    MarkDead(ProcessId, SessionId),
    Claim(ProcessId, ExecutionId),
    WriteIntent(ProcessId, ExecutionId),
    EndSettling(ProcessId, ExecutionId),
    Probe(ProcessId, ExecutionId),
    CheckLease(ProcessId, ExecutionId),
    SendCall(ProcessId, ExecutionId),
    WriteResult(ProcessId, ExecutionId),
    WriteNextAttempt(ProcessId, ExecutionId),
    WriteCanceled(ProcessId, ExecutionId),
    Release(ProcessId),
    OperatorCancel(ExecutionId),
    CallLands { call: usize, answered: bool },
    CallRefused { call: usize },
}

impl Lease {
    fn has(&self, defect: Defect) -> bool {
        self.defects.contains(&defect)
    }

    /// Age from which a holder may not begin a call.
    fn call_deadline(&self) -> u8 {
        if self.has(Defect::CallUntilLeaseEnds) { self.lease } else { self.lease - self.call_timeout }
    }

    fn may_begin_call(&self, process: &Process) -> bool {
        process.lease_age < self.call_deadline()
    }

    fn may_mark_dead(&self, age: u8) -> bool {
        age >= self.lease || self.has(Defect::MarkAtOnce)
    }

    fn settling_is_over(&self, process: &Process, from: SessionId, age: u8) -> bool {
        let since_observed = process.observed[from].is_some_and(|seen| seen >= self.lease + self.call_timeout);
        age > self.call_timeout || since_observed
    }

    fn must_settle(&self, from: &Session) -> bool {
        let skipped = self.has(match from.state {
            SessionState::Dead { restarted: true } => Defect::NoSettlingAfterRestart,
            _ => Defect::NoSettlingAfterObservation,
        });
        !self.repeatable && !skipped && !self.has(Defect::NoSettling)
    }

    // --- the model: time

    fn tick(&self, s: &mut State) {
        let older = |age: &mut u8, most: u8| *age = (*age + 1).min(most);
        for process in s.processes.iter_mut().flatten() {
            older(&mut process.lease_age, self.call_deadline());
            match &mut process.renewal {
                Renewal::None => {}
                Renewal::Begun { age } | Renewal::Committed { age, .. } => older(age, self.call_deadline()),
            }
            for age in process.observed.iter_mut().flatten().chain(&mut process.stamp) {
                older(age, self.lease + self.call_timeout);
            }
            for worker in &mut process.workers {
                match &mut worker.step {
                    Step::Settle { age, .. } => older(age, self.call_timeout + 1),
                    Step::Send { .. } if self.late_send == ANY_PAUSE => {}
                    Step::Send { age } if Some(*age) < self.late_send => *age += 1,
                    Step::Send { .. } => worker.step = Step::Act,
                    _ => {}
                }
            }
        }
        for call in std::mem::take(&mut s.calls) {
            if call.age < self.call_timeout {
                s.calls.push(Call { age: call.age + 1, ..call });
            } else if let Some(worker) = s.caller(&call) {
                worker.step = Step::Probe { inherited: false };
            }
        }
        s.calls.sort_by_key(call_order);
    }

    // --- the model: sessions

    fn start(&self, s: &mut State, p: ProcessId) {
        for session in s.sessions.iter_mut().filter(|session| session.instance == p) {
            if session.state == SessionState::Live {
                session.state = SessionState::Dead { restarted: true };
            }
        }
        s.sessions.push(Session { instance: p, state: SessionState::Live });
        s.started = s.started.max(p + 1);
        s.processes[p] = Some(Process {
            session: s.sessions.len() - 1,
            lease_age: 0,
            renewal: Renewal::None,
            observed: vec![None; self.sessions],
            stamp: None,
            workers: vec![IDLE; self.executions],
        });
    }

    /// The transaction of a renewal: whether a row changed.
    fn commit_renewal(&self, s: &mut State, p: ProcessId) -> bool {
        let session = s.session_of(p);
        let renewed = s.is_live(session) || self.has(Defect::RenewalIgnoresState);
        if renewed && !self.has(Defect::MarkIgnoresCounter) {
            s.forget_observations_of(session);
        }
        renewed
    }

    fn take_renewal_answer(&self, s: &mut State, p: ProcessId, age: u8, renewed: bool) {
        if renewed {
            let process = s.running(p);
            process.lease_age = if self.has(Defect::LeaseFromAnswer) { 0 } else { age };
            process.renewal = Renewal::None;
        } else {
            s.processes[p] = None;
        }
    }

    fn release(&self, s: &mut State, p: ProcessId) {
        let session = s.session_of(p);
        if s.is_live(session) {
            s.sessions[session].state = SessionState::Released;
            for row in s.executions.iter_mut().filter(|row| row.status == Status::Open) {
                if row.holder == Some(session) {
                    row.holder = None;
                    s.event = Some(Event::HandOver);
                }
            }
        }
        s.processes[p] = None;
    }

    fn may_release(&self, process: &Process) -> bool {
        process.workers.iter().all(|worker| match worker.step {
            Step::Calling | Step::Send { .. } => false,
            Step::Settle { .. } => self.has(Defect::ReleaseBeforeSettling),
            _ => true,
        })
    }

    // --- the model: executions

    fn may_claim(&self, s: &State, p: ProcessId, e: ExecutionId) -> bool {
        let row = &s.executions[e];
        row.status == Status::Open
            && row.holder.is_none_or(|holder| !s.is_live(holder))
            && s.is_live(s.session_of(p))
            && is_next_unused(s, e)
    }

    /// Between calls only.
    fn may_end_canceled(&self, step: Step) -> bool {
        match step {
            Step::Probe { .. } | Step::Act | Step::Finish | Step::Retry => true,
            Step::Settle { .. } => self.has(Defect::CancelBeforeSettling),
            Step::Idle | Step::Enter | Step::Send { .. } | Step::Calling => false,
        }
    }

    fn claim(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
        let session = s.session_of(p);
        let row = &mut s.executions[e];
        let dead = row.holder.replace(session);
        row.fence += 1;
        let (fence, attempt) = (row.fence, row.attempt);
        let step = match dead {
            _ if attempt == 0 => Step::Enter,
            Some(from) if self.must_settle(&s.sessions[from]) => Step::Settle { from, age: 0 },
            _ => self.settled_step(),
        };
        s.event = match dead.map(|from| (from, s.sessions[from].instance)) {
            Some((_, instance)) if instance == p => Some(Event::RestartReclaim),
            Some((from, instance)) => match &s.processes[instance] {
                Some(process) if process.session == from => Some(Event::TakeoverOfPaused),
                _ => Some(Event::TakeoverAfterCrash),
            },
            None if fence > 1 => Some(Event::ClaimAfterHandOver),
            None => None,
        };
        *s.worker(p, e) = Worker { step, fence, attempt };
        if self.has(Defect::ProbeBeforeSettling) && s.effects[e][usize::from(attempt)] > 0 {
            s.worker(p, e).step = Step::Finish;
        }
    }

    /// A write of an execution's row by its worker, with the guard in the same transaction. If it is refused the
    /// worker stops.
    fn write(
        &self,
        s: &mut State,
        p: ProcessId,
        e: ExecutionId,
        next: Step,
        change: impl FnOnce(&mut Execution),
    ) -> bool {
        let session = s.session_of(p);
        let fence = s.worker(p, e).fence;
        let row = &s.executions[e];
        let owned = row.fence == fence && row.holder == Some(session);
        let live = s.is_live(session);
        let open = row.status == Status::Open;
        let accepted = (open || self.has(Defect::NoTerminalCheck))
            && (owned || self.has(Defect::NoFenceCheck))
            && (live || self.has(Defect::NoFenceCheck) || self.has(Defect::NoSessionCheck));
        if !accepted {
            if !owned || !live {
                s.event = Some(Event::StaleWriteRefused);
            }
            *s.worker(p, e) = IDLE;
            return false;
        }
        let before = s.executions[e].last_write;
        if before.is_some_and(|(last, writer)| fence < last || fence == last && writer != session) {
            s.violations.foreign_or_decreasing_fence = true;
        }
        s.violations.terminal_changed |= !open;
        s.violations.write_of_ended_session |= !live;
        let row = &mut s.executions[e];
        row.last_write = Some((fence, session));
        change(row);
        let attempt = row.attempt;
        *s.worker(p, e) = match next {
            Step::Idle => IDLE,
            step => Worker { step, fence, attempt },
        };
        true
    }

    fn operator_cancel(&self, s: &mut State, e: ExecutionId) {
        let row = &mut s.executions[e];
        row.cancel_requested = true;
        if row.attempt == 0 {
            row.status = Status::Canceled;
            s.event = Some(Event::CancelBeforeStart);
        } else if s.calls.iter().any(|call| call.execution == e) {
            s.event = Some(Event::CancelDuringCall);
        }
    }

    // --- the model: devices

    /// What a claimant does with a stage in hand once no foreign call can land any more.
    fn settled_step(&self) -> Step {
        let probes = !self.has(Defect::NoProbe) && !self.has(Defect::ProbeBeforeSettling);
        if probes { Step::Probe { inherited: true } } else { Step::Act }
    }

    fn probe(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
        let Worker { attempt, step, .. } = *s.worker(p, e);
        let inherited = step == Step::Probe { inherited: true };
        let shown = s.effects[e][usize::from(attempt)] > 0;
        s.worker(p, e).step = if shown { Step::Finish } else { Step::Act };
        if shown && inherited {
            s.event = Some(Event::AdoptedByProbe);
        }
    }

    fn send_call(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
        let session = s.session_of(p);
        let worker = s.worker(p, e);
        worker.step = Step::Calling;
        let attempt = worker.attempt;
        s.violations.call_begun_after_end |= s.executions[e].status != Status::Open;
        s.calls.push(Call { execution: e, session, attempt, age: 0 });
        s.calls.sort_by_key(call_order);
    }

    fn call_lands(&self, s: &mut State, call: usize, answered: bool) {
        let call = s.calls.remove(call);
        let effects = &mut s.effects[call.execution][usize::from(call.attempt)];
        *effects = (*effects + 1).min(MANY);
        s.violations.effect_after_end |= s.executions[call.execution].status != Status::Open;
        if let Some(worker) = s.caller(&call) {
            worker.step = if answered { Step::Finish } else { Step::Probe { inherited: false } };
        }
    }

    fn call_refused(&self, s: &mut State, call: usize) {
        let call = s.calls.remove(call);
        if let Some(worker) = s.caller(&call) {
            worker.step = Step::Retry;
        }
    }

    // --- the model: what is enabled

    fn process_actions(&self, s: &State, p: ProcessId, process: &Process, actions: &mut Vec<Action>) {
        actions.push(Action::Crash(p));
        match process.renewal {
            Renewal::None if self.split_renewal => actions.push(Action::BeginRenewal(p)),
            Renewal::None => actions.push(Action::Renew(p)),
            Renewal::Begun { .. } => actions.push(Action::CommitRenewal(p)),
            Renewal::Committed { .. } => actions.push(Action::TakeRenewalAnswer(p)),
        }
        if self.may_release(process) {
            actions.push(Action::Release(p));
        }
        let stamps_first = self.has(Defect::StampBeforeRead);
        if stamps_first && process.stamp.is_none() {
            actions.push(Action::Stamp(p));
        }
        for other in (0..s.sessions.len()).filter(|&other| self.may_observe(s, p, other)) {
            match process.observed[other] {
                None if !stamps_first || process.stamp.is_some() => actions.push(Action::Observe(p, other)),
                Some(age) if self.may_mark_dead(age) => actions.push(Action::MarkDead(p, other)),
                _ => {}
            }
        }
        for e in 0..self.executions {
            self.worker_actions(s, p, process, e, actions);
        }
    }

    fn may_observe(&self, s: &State, p: ProcessId, other: SessionId) -> bool {
        let foreign_and_live = s.sessions[other].instance != p && s.is_live(other);
        foreign_and_live && (!self.watch_holders_only || s.holds_anything(other))
    }

    fn worker_actions(&self, s: &State, p: ProcessId, process: &Process, e: ExecutionId, actions: &mut Vec<Action>) {
        let step = process.workers[e].step;
        actions.extend(match step {
            Step::Idle => self.may_claim(s, p, e).then_some(Action::Claim(p, e)),
            Step::Enter => Some(Action::WriteIntent(p, e)),
            Step::Settle { from, age } => {
                self.settling_is_over(process, from, age).then_some(Action::EndSettling(p, e))
            }
            Step::Probe { .. } => Some(Action::Probe(p, e)),
            Step::Act if !self.may_begin_call(process) => None,
            Step::Act if self.late_send.is_some() => Some(Action::CheckLease(p, e)),
            Step::Act | Step::Send { .. } => Some(Action::SendCall(p, e)),
            Step::Calling => None,
            Step::Finish => Some(Action::WriteResult(p, e)),
            Step::Retry => Some(Action::WriteNextAttempt(p, e)),
        });
        if s.executions[e].cancel_requested && self.may_end_canceled(step) {
            actions.push(Action::WriteCanceled(p, e));
        }
    }
}

fn call_order(call: &Call) -> (ExecutionId, SessionId, u8, u8) {
    (call.execution, call.session, call.attempt, call.age)
}

/// Executions are interchangeable: one is used for the first time only when all before it have been.
fn is_next_unused(s: &State, e: ExecutionId) -> bool {
    s.executions[..e].iter().all(|row| row.fence > 0 || row.status != Status::Open)
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = Execution {
            holder: None,
            fence: 0,
            attempt: 0,
            cancel_requested: false,
            status: Status::Open,
            last_write: None,
        };
        vec![State {
            sessions: Vec::new(),
            executions: vec![row; self.executions],
            effects: vec![vec![0; usize::from(self.attempts) + 1]; self.executions],
            calls: Vec::new(),
            processes: vec![None; self.processes],
            started: 0,
            violations: Violations::default(),
            event: None,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.is_at_rest() {
            return;
        }
        actions.push(Action::Tick);
        for (p, process) in s.processes.iter().enumerate() {
            match process {
                Some(process) => self.process_actions(s, p, process, actions),
                None if s.sessions.len() < self.sessions && p <= s.started => actions.push(Action::Start(p)),
                None => {}
            }
        }
        for (e, row) in s.executions.iter().enumerate() {
            if self.cancels && row.status == Status::Open && !row.cancel_requested && is_next_unused(s, e) {
                actions.push(Action::OperatorCancel(e));
            }
        }
        for (call, sent) in s.calls.iter().enumerate() {
            actions.push(Action::CallLands { call, answered: true });
            actions.push(Action::CallLands { call, answered: false });
            if sent.attempt < self.attempts {
                actions.push(Action::CallRefused { call });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = State { event: None, ..last.clone() };
        let s = &mut state;
        match action {
            Action::Tick => self.tick(s),
            Action::Start(p) => self.start(s, p),
            Action::Crash(p) => s.processes[p] = None,
            Action::Renew(p) => {
                let renewed = self.commit_renewal(s, p);
                self.take_renewal_answer(s, p, 0, renewed);
            }
            Action::BeginRenewal(p) => s.running(p).renewal = Renewal::Begun { age: 0 },
            Action::CommitRenewal(p) => {
                let renewed = self.commit_renewal(s, p);
                let process = s.running(p);
                if let Renewal::Begun { age } = process.renewal {
                    process.renewal = Renewal::Committed { age, renewed };
                }
            }
            Action::TakeRenewalAnswer(p) => {
                if let Renewal::Committed { age, renewed } = s.running(p).renewal {
                    self.take_renewal_answer(s, p, age, renewed);
                }
            }
            Action::Stamp(p) => s.running(p).stamp = Some(0),
            Action::Observe(p, other) => {
                let process = s.running(p);
                process.observed[other] = Some(process.stamp.take().unwrap_or(0));
            }
            Action::MarkDead(_, other) => s.sessions[other].state = SessionState::Dead { restarted: false },
            Action::Claim(p, e) => self.claim(s, p, e),
            Action::WriteIntent(p, e) => {
                self.write(s, p, e, Step::Probe { inherited: false }, |row| row.attempt = 1);
            }
            Action::EndSettling(p, e) => s.worker(p, e).step = self.settled_step(),
            Action::Probe(p, e) => self.probe(s, p, e),
            Action::CheckLease(p, e) => s.worker(p, e).step = Step::Send { age: 0 },
            Action::SendCall(p, e) => self.send_call(s, p, e),
            Action::WriteResult(p, e) => {
                let written = self.write(s, p, e, Step::Idle, |row| row.status = Status::Done);
                if written && s.executions[e].cancel_requested {
                    s.event = Some(Event::ResultBeatsCancel);
                }
            }
            Action::WriteNextAttempt(p, e) => {
                self.write(s, p, e, Step::Probe { inherited: false }, |row| row.attempt += 1);
            }
            Action::WriteCanceled(p, e) => {
                if self.write(s, p, e, Step::Idle, |row| row.status = Status::Canceled) {
                    let landed = s.effects[e].iter().any(|&effects| effects > 0);
                    s.event = Some(if landed { Event::CancelAfterEffect } else { Event::CancelByHolder });
                }
            }
            Action::Release(p) => self.release(s, p),
            Action::OperatorCancel(e) => self.operator_cancel(s, e),
            Action::CallLands { call, answered } => self.call_lands(s, call, answered),
            Action::CallRefused { call } => self.call_refused(s, call),
        }
        let mut rows = last.executions.iter().zip(&s.executions);
        s.violations.terminal_changed |= rows.any(|(before, after)| before.status != Status::Open && before != after);
        s.forget_the_ended();
        let event = std::mem::replace(&mut state.event, last.event);
        let changed = state != *last;
        state.event = event;
        changed.then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = safety();
        properties.extend(reachability().into_iter().filter(|property| self.reaches.contains(&property.name)));
        properties
    }
}

// --- properties

type Rule = Property<Lease>;

const ONE_WRITER_PER_FENCE: &str = "one writer per fence, and accepted fences never decrease";
const ONE_EFFECT: &str = "a stage that is not repeatable takes effect at most once, over all its attempts";
const ENDS_ONCE: &str = "an execution ends once and never changes after that";
const NO_CALL_AFTER_END: &str = "no call of an ended execution begins";
const NO_EFFECT_AFTER_END: &str = "no call of a stage that is not repeatable lands after the end";
const NO_WRITE_OF_ENDED_SESSION: &str = "no write of a dead or released session is accepted";

fn safety() -> Vec<Rule> {
    vec![
        Rule::always(ONE_WRITER_PER_FENCE, |_, s| !s.violations.foreign_or_decreasing_fence),
        Rule::always(ONE_EFFECT, |m, s| {
            m.repeatable || s.effects.iter().all(|attempts| attempts.iter().sum::<u8>() < MANY)
        }),
        Rule::always(ENDS_ONCE, |_, s| !s.violations.terminal_changed),
        Rule::always(NO_CALL_AFTER_END, |_, s| !s.violations.call_begun_after_end),
        Rule::always(NO_EFFECT_AFTER_END, |m, s| m.repeatable || !s.violations.effect_after_end),
        Rule::always(NO_WRITE_OF_ENDED_SESSION, |_, s| !s.violations.write_of_ended_session),
    ]
}

const TAKEOVER_AFTER_CRASH: &str = "takeover after a crash";
const TAKEOVER_OF_PAUSED: &str = "takeover of a process that is only paused";
const RESTART_RECLAIM: &str = "reclaim after a restart";
const CANCEL_BEFORE_START: &str = "cancel before anything is entered";
const CANCEL_DURING_CALL: &str = "cancel requested while a call is on its way";
const CANCEL_BY_HOLDER: &str = "cancel ended by a holder";
const RESULT_BEATS_CANCEL: &str = "a result is written although a cancel was requested";
const CANCEL_AFTER_EFFECT: &str = "canceled although the effect had landed";
const STALE_WRITE_REFUSED: &str = "a stale write is refused";
const ADOPTED_BY_PROBE: &str = "an effect is adopted by probing";
const HAND_OVER: &str = "hand-over of a held execution";
const CLAIM_AFTER_HAND_OVER: &str = "claim after a hand-over";
const REPEATED: &str = "a repeatable stage takes effect twice";

const EVERYTHING: &[&str] = &[
    TAKEOVER_AFTER_CRASH,
    TAKEOVER_OF_PAUSED,
    RESTART_RECLAIM,
    CANCEL_BEFORE_START,
    CANCEL_DURING_CALL,
    CANCEL_BY_HOLDER,
    RESULT_BEATS_CANCEL,
    CANCEL_AFTER_EFFECT,
    STALE_WRITE_REFUSED,
    ADOPTED_BY_PROBE,
    HAND_OVER,
    CLAIM_AFTER_HAND_OVER,
];

fn reachability() -> Vec<Rule> {
    vec![
        Rule::sometimes(TAKEOVER_AFTER_CRASH, |_, s| s.event == Some(Event::TakeoverAfterCrash)),
        Rule::sometimes(TAKEOVER_OF_PAUSED, |_, s| s.event == Some(Event::TakeoverOfPaused)),
        Rule::sometimes(RESTART_RECLAIM, |_, s| s.event == Some(Event::RestartReclaim)),
        Rule::sometimes(CANCEL_BEFORE_START, |_, s| s.event == Some(Event::CancelBeforeStart)),
        Rule::sometimes(CANCEL_DURING_CALL, |_, s| s.event == Some(Event::CancelDuringCall)),
        Rule::sometimes(CANCEL_BY_HOLDER, |_, s| s.event == Some(Event::CancelByHolder)),
        Rule::sometimes(RESULT_BEATS_CANCEL, |_, s| s.event == Some(Event::ResultBeatsCancel)),
        Rule::sometimes(CANCEL_AFTER_EFFECT, |_, s| s.event == Some(Event::CancelAfterEffect)),
        Rule::sometimes(STALE_WRITE_REFUSED, |_, s| s.event == Some(Event::StaleWriteRefused)),
        Rule::sometimes(ADOPTED_BY_PROBE, |_, s| s.event == Some(Event::AdoptedByProbe)),
        Rule::sometimes(HAND_OVER, |_, s| s.event == Some(Event::HandOver)),
        Rule::sometimes(CLAIM_AFTER_HAND_OVER, |_, s| s.event == Some(Event::ClaimAfterHandOver)),
        Rule::sometimes(REPEATED, |_, s| s.effects.iter().flatten().any(|&effects| effects >= MANY)),
    ]
}

// --- tests

/// Visits every reachable state and asserts every property.
///
/// The checker stops early only once it has a discovery for each property; as no invariant may have one, done means
/// exhausted.
fn exhaust(name: &str, model: Lease) {
    let checker = model.checker().threads(2).spawn_dfs().join();
    println!("{name}: exhausted {} states", checker.unique_state_count());
    assert!(checker.is_done(), "{name}: the state space was not exhausted");
    checker.assert_properties();
}

/// Asserts that the checker finds a counterexample to `property`.
fn refute(name: &str, model: Lease, property: &'static str) {
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: no counterexample to \"{property}\" in {states} states");
    };
    println!("{name}: \"{property}\" refuted after {states} states by {:?}", path.into_actions());
}

fn refute_defect(size: Lease, defects: &'static [Defect], property: &'static str) {
    refute(&format!("{defects:?}"), Lease { defects, ..size }, property);
}

/// Sizes for what needs no cancel, with and without a restart.
const ONE_RESTART: Lease = Lease { cancels: false, reaches: &[], ..BASE };
const NO_RESTART: Lease = Lease { sessions: 2, ..ONE_RESTART };

#[test]
fn two_processes_one_restart() {
    exhaust("two processes, one restart", BASE);
}

#[test]
fn three_processes() {
    let reaches = &[TAKEOVER_AFTER_CRASH, TAKEOVER_OF_PAUSED, STALE_WRITE_REFUSED, ADOPTED_BY_PROBE, HAND_OVER];
    let model = Lease { processes: 3, sessions: 3, lease: 2, watch_holders_only: true, reaches, ..NO_RESTART };
    exhaust("three processes", model);
}

#[test]
fn two_executions() {
    let reaches = &[TAKEOVER_OF_PAUSED, ADOPTED_BY_PROBE, HAND_OVER];
    exhaust("two executions", Lease { executions: 2, lease: 2, reaches, ..NO_RESTART });
}

#[test]
fn two_attempts() {
    let reaches = &[RESTART_RECLAIM, ADOPTED_BY_PROBE, STALE_WRITE_REFUSED];
    exhaust("two attempts", Lease { attempts: 2, reaches, ..ONE_RESTART });
}

#[test]
fn renewals_in_three_steps() {
    let reaches = &[TAKEOVER_OF_PAUSED, ADOPTED_BY_PROBE, STALE_WRITE_REFUSED];
    exhaust("renewals in three steps", Lease { split_renewal: true, reaches, ..NO_RESTART });
}

#[test]
fn long_calls() {
    let reaches = &[RESTART_RECLAIM, TAKEOVER_AFTER_CRASH, ADOPTED_BY_PROBE];
    exhaust("long calls", Lease { call_timeout: 2, reaches, ..ONE_RESTART });
}

/// A repeatable stage is taken over without settling, and may then well take effect twice.
#[test]
fn repeatable_stage() {
    let reaches = &[REPEATED, RESTART_RECLAIM, TAKEOVER_OF_PAUSED];
    exhaust("repeatable stage", Lease { repeatable: true, reaches, ..ONE_RESTART });
}

#[test]
#[ignore = "tens of millions of states: minutes, in a release build"]
fn larger_sizes() {
    let base = Lease { reaches: &[RESTART_RECLAIM], ..BASE };
    exhaust("two restarts", Lease { sessions: 4, ..base });
    exhaust("renewals in three steps, one restart", Lease { split_renewal: true, ..base });
    let narrow = Lease { lease: 2, cancels: false, watch_holders_only: true, ..base };
    exhaust("two executions, one restart", Lease { executions: 2, ..narrow });
    exhaust("three processes, one restart", Lease { processes: 3, sessions: 4, ..narrow });
}

/// The window which no lease over machines without fences closes: the process is stopped between checking its lease
/// and sending the call, for as long as it takes another to take over, probe and act.
///
/// In practice only a pause of more than `call_timeout` in this one place does harm (see
/// [`late_send_within_the_margin`]), probing before repeating adopts whatever late call has landed by then, and both
/// calls stand in the journal.
#[test]
fn late_send_is_seen() {
    let model = Lease { late_send: ANY_PAUSE, ..NO_RESTART };
    refute("late send", model, ONE_EFFECT);
    refute("late send", model, NO_CALL_AFTER_END);
}

/// The protocol has a margin of `call_timeout`, which absorbs late sends up to that length.
#[test]
fn late_send_within_the_margin() {
    exhaust("late send within the margin", Lease { late_send: Some(CALL_TIMEOUT), ..ONE_RESTART });
    let beyond = Lease { late_send: Some(CALL_TIMEOUT + 1), ..NO_RESTART };
    refute("late send beyond the margin", beyond, ONE_EFFECT);
}

/// The holder that stops calling at `lease - call_timeout` and the claimant that settles after an observed death cover
/// each other: each alone is enough while clocks run at one rate, and having both is the margin.
#[test]
fn either_margin_is_enough() {
    use Defect::{CallUntilLeaseEnds, NoSettlingAfterObservation};
    exhaust("no margin of the holder", Lease { defects: &[CallUntilLeaseEnds], ..ONE_RESTART });
    exhaust("no margin of the claimant", Lease { defects: &[NoSettlingAfterObservation], ..ONE_RESTART });
    refute_defect(NO_RESTART, &[CallUntilLeaseEnds, NoSettlingAfterObservation], ONE_EFFECT);
}

#[test]
fn defects_of_the_write_guard_are_seen() {
    refute_defect(NO_RESTART, &[Defect::NoFenceCheck], ONE_WRITER_PER_FENCE);
    refute_defect(NO_RESTART, &[Defect::NoSessionCheck], NO_WRITE_OF_ENDED_SESSION);
    refute_defect(Lease { cancels: true, ..NO_RESTART }, &[Defect::NoTerminalCheck], ENDS_ONCE);
}

#[test]
fn defects_of_settling_are_seen() {
    refute_defect(ONE_RESTART, &[Defect::NoSettling], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::NoSettlingAfterRestart], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::ProbeBeforeSettling], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::ReleaseBeforeSettling], ONE_EFFECT);
    refute_defect(Lease { cancels: true, ..ONE_RESTART }, &[Defect::CancelBeforeSettling], NO_EFFECT_AFTER_END);
}

#[test]
fn acting_without_probing_is_seen() {
    refute_defect(NO_RESTART, &[Defect::NoProbe], ONE_EFFECT);
}

#[test]
fn defects_of_the_lease_are_seen() {
    refute_defect(NO_RESTART, &[Defect::RenewalIgnoresState], ONE_EFFECT);
    refute_defect(NO_RESTART, &[Defect::RenewalIgnoresState], NO_CALL_AFTER_END);
    refute_defect(NO_RESTART, &[Defect::MarkIgnoresCounter], ONE_EFFECT);
    refute_defect(NO_RESTART, &[Defect::MarkAtOnce], ONE_EFFECT);
    let short = Lease { lease: 2, ..NO_RESTART };
    refute_defect(short, &[Defect::StampBeforeRead], ONE_EFFECT);
    refute_defect(Lease { split_renewal: true, ..short }, &[Defect::LeaseFromAnswer], ONE_EFFECT);
}
