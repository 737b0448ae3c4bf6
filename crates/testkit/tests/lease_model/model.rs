//! The steps that can be taken, each atomic.

use crate::properties::{reachability, safety};
use crate::size::{Defect, Lease};
use crate::state::*;
use stateright::{Model, Property};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Tick,
    /// A tick that the clock of one process misses.
    TickMissedBy(ProcessId),
    /// A tick of one process's clock alone.
    TickOnlyOf(ProcessId),
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
    OperatorTerminate(ExecutionId),
    CallLands {
        call: usize,
        answered: bool,
    },
    CallRefused {
        call: usize,
    },
}

impl Lease {
    pub fn has(&self, defect: Defect) -> bool {
        self.defects.contains(&defect)
    }

    /// Age from which a holder may not begin a call.
    pub fn call_deadline(&self) -> u8 {
        if self.has(Defect::CallUntilLeaseEnds) { self.lease } else { self.lease - self.call_timeout }
    }

    pub fn may_begin_call(&self, process: &Process) -> bool {
        process.lease_age < self.call_deadline()
    }

    pub fn may_mark_dead(&self, age: u8) -> bool {
        age >= self.lease || self.has(Defect::MarkAtOnce)
    }

    /// How long a claimant from the dead leaves a stage alone.
    pub fn settle(&self) -> u8 {
        self.call_timeout + self.settle_margin
    }

    pub fn settling_is_over(&self, process: &Process, from: SessionId, age: u8) -> bool {
        let since_observed = process.observed[from].is_some_and(|seen| seen >= self.settle() + self.lease);
        age > self.settle() || since_observed
    }

    pub fn must_settle(&self, from: &Session) -> bool {
        let skipped = self.has(match from.state {
            SessionState::Dead { restarted: true } => Defect::NoSettlingAfterRestart,
            _ => Defect::NoSettlingAfterObservation,
        });
        !self.repeatable && !skipped && !self.has(Defect::NoSettling)
    }

    // --- the model: time

    /// What one process's clock shows.
    fn tick_of(&self, process: &mut Process) {
        let older = |age: &mut u8, most: u8| *age = (*age + 1).min(most);
        older(&mut process.lease_age, self.call_deadline());
        match &mut process.renewal {
            Renewal::None => {}
            Renewal::Begun { age } | Renewal::Committed { age, .. } => older(age, self.call_deadline()),
        }
        for age in process.observed.iter_mut().flatten().chain(&mut process.stamp) {
            older(age, self.lease + self.settle());
        }
        for worker in &mut process.workers {
            match &mut worker.step {
                Step::Settle { age, .. } => older(age, self.settle() + 1),
                Step::Send { .. } if self.late_send == ANY_PAUSE => {}
                Step::Send { age } if Some(*age) < self.late_send => *age += 1,
                Step::Send { .. } => worker.step = Step::Act,
                _ => {}
            }
        }
    }

    pub fn tick(&self, s: &mut State, missed_by: Option<ProcessId>) {
        for (p, process) in s.processes.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            process.steady = process.steady.saturating_sub(1);
            if missed_by == Some(p) {
                process.steady = self.drift.unwrap_or(0);
            } else {
                self.tick_of(process);
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

    pub fn start(&self, s: &mut State, p: ProcessId) {
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
            steady: 0,
            observed: vec![None; self.sessions],
            stamp: None,
            workers: vec![IDLE; self.executions],
        });
    }

    /// The transaction of a renewal: whether a row changed.
    pub fn commit_renewal(&self, s: &mut State, p: ProcessId) -> bool {
        let session = s.session_of(p);
        let renewed = s.is_live(session) || self.has(Defect::RenewalIgnoresState);
        if renewed && !self.has(Defect::MarkIgnoresCounter) {
            s.forget_observations_of(session);
        }
        renewed
    }

    pub fn take_renewal_answer(&self, s: &mut State, p: ProcessId, age: u8, renewed: bool) {
        if renewed {
            let process = s.running(p);
            process.lease_age = if self.has(Defect::LeaseFromAnswer) { 0 } else { age };
            process.renewal = Renewal::None;
        } else {
            s.processes[p] = None;
        }
    }

    pub fn release(&self, s: &mut State, p: ProcessId) {
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

    pub fn may_release(&self, process: &Process) -> bool {
        process.workers.iter().all(|worker| match worker.step {
            Step::Calling | Step::Send { .. } => false,
            Step::Settle { .. } => self.has(Defect::ReleaseBeforeSettling),
            _ => true,
        })
    }

    // --- the model: executions

    pub fn may_claim(&self, s: &State, p: ProcessId, e: ExecutionId) -> bool {
        let row = &s.executions[e];
        row.status == Status::Open
            && row.holder.is_none_or(|holder| !s.is_live(holder))
            && s.is_live(s.session_of(p))
            && is_next_unused(s, e)
    }

    /// Between calls only.
    pub fn may_end_canceled(&self, step: Step) -> bool {
        match step {
            Step::Probe { .. } | Step::Act | Step::Finish | Step::Retry => true,
            Step::Settle { .. } => self.has(Defect::CancelBeforeSettling),
            Step::Idle | Step::Enter | Step::Send { .. } | Step::Calling => false,
        }
    }

    pub fn claim(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
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
    pub fn write(
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

    pub fn operator_cancel(&self, s: &mut State, e: ExecutionId) {
        let row = &mut s.executions[e];
        row.cancel_requested = true;
        if row.attempt == 0 {
            row.status = Status::Canceled;
            s.event = Some(Event::CancelBeforeStart);
        } else if s.calls.iter().any(|call| call.execution == e) {
            s.event = Some(Event::CancelDuringCall);
        }
    }

    pub fn operator_terminate(&self, s: &mut State, e: ExecutionId) {
        let row = &mut s.executions[e];
        row.status = Status::Terminated;
        row.fence += 1;
        row.holder = None;
    }

    // --- the model: devices

    /// What a claimant does with a stage in hand once no foreign call can land any more.
    pub fn settled_step(&self) -> Step {
        let probes = !self.has(Defect::NoProbe) && !self.has(Defect::ProbeBeforeSettling);
        if probes { Step::Probe { inherited: true } } else { Step::Act }
    }

    pub fn probe(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
        let Worker { attempt, step, .. } = *s.worker(p, e);
        let inherited = step == Step::Probe { inherited: true };
        let shown = s.effects[e][usize::from(attempt)] > 0;
        s.worker(p, e).step = if shown { Step::Finish } else { Step::Act };
        if shown && inherited {
            s.event = Some(Event::AdoptedByProbe);
        }
    }

    pub fn send_call(&self, s: &mut State, p: ProcessId, e: ExecutionId) {
        let session = s.session_of(p);
        let worker = s.worker(p, e);
        worker.step = Step::Calling;
        let attempt = worker.attempt;
        s.violations.call_begun_after_end |= s.executions[e].status.ended_by_its_holder();
        s.calls.push(Call { execution: e, session, attempt, age: 0 });
        s.calls.sort_by_key(call_order);
    }

    pub fn call_lands(&self, s: &mut State, call: usize, answered: bool) {
        let call = s.calls.remove(call);
        let effects = &mut s.effects[call.execution][usize::from(call.attempt)];
        *effects = (*effects + 1).min(MANY);
        let status = s.executions[call.execution].status;
        s.violations.effect_after_end |= status.ended_by_its_holder();
        if status == Status::Terminated {
            s.event = Some(Event::EffectAfterTermination);
        }
        if let Some(worker) = s.caller(&call) {
            worker.step = if answered { Step::Finish } else { Step::Probe { inherited: false } };
        }
    }

    pub fn call_refused(&self, s: &mut State, call: usize) {
        let call = s.calls.remove(call);
        if let Some(worker) = s.caller(&call) {
            worker.step = Step::Retry;
        }
    }

    // --- the model: what is enabled

    pub fn process_actions(&self, s: &State, p: ProcessId, process: &Process, actions: &mut Vec<Action>) {
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

    pub fn may_observe(&self, s: &State, p: ProcessId, other: SessionId) -> bool {
        let foreign_and_live = s.sessions[other].instance != p && s.is_live(other);
        foreign_and_live && (!self.watch_holders_only || s.holds_anything(other))
    }

    pub fn worker_actions(
        &self,
        s: &State,
        p: ProcessId,
        process: &Process,
        e: ExecutionId,
        actions: &mut Vec<Action>,
    ) {
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

pub fn call_order(call: &Call) -> (ExecutionId, SessionId, u8, u8) {
    (call.execution, call.session, call.attempt, call.age)
}

/// Executions are interchangeable: one is used for the first time only when all before it have been.
pub fn is_next_unused(s: &State, e: ExecutionId) -> bool {
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
            if self.drift.is_some() && process.as_ref().is_some_and(|process| process.steady == 0) {
                actions.push(Action::TickMissedBy(p));
                actions.push(Action::TickOnlyOf(p));
            }
        }
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
            if self.terminates && row.status == Status::Open && row.fence > 0 {
                actions.push(Action::OperatorTerminate(e));
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
            Action::Tick => self.tick(s, None),
            Action::TickMissedBy(p) => self.tick(s, Some(p)),
            Action::TickOnlyOf(p) => {
                let process = s.running(p);
                process.steady = self.drift.unwrap_or(0);
                self.tick_of(process);
            }
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
            Action::OperatorTerminate(e) => self.operator_terminate(s, e),
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
