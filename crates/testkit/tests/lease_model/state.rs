//! What the store, the processes and the machines look like at one moment.

/// Ticks without a renewal after which a taker may mark a session dead.
pub const LEASE: u8 = 3;
/// Ticks within which a device call takes effect or never does.
pub const CALL_TIMEOUT: u8 = 1;
/// Effects are counted up to here: one more than is allowed.
pub const MANY: u8 = 2;

/// A [`Lease::late_send`] without bound.
pub const ANY_PAUSE: Option<u8> = Some(u8::MAX);

pub type ProcessId = usize;
pub type SessionId = usize;
pub type ExecutionId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    Live,
    Released,
    /// By a restart of its instance, or else by observation. The protocol does not tell the two apart.
    Dead {
        restarted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub instance: ProcessId,
    pub state: SessionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Open,
    Done,
    Canceled,
    /// Ended by an operator, whoever held it. The holder learns of it at its next write.
    Terminated,
}

impl Status {
    pub fn ended_by_its_holder(self) -> bool {
        matches!(self, Status::Done | Status::Canceled)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Execution {
    pub holder: Option<SessionId>,
    pub fence: u8,
    /// The attempt entered last; 0 while nothing has been entered.
    pub attempt: u8,
    pub cancel_requested: bool,
    pub status: Status,
    /// For the properties only: fence and session of the write accepted last.
    pub last_write: Option<(u8, SessionId)>,
}

/// A device call on its way. It outlives the process that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub execution: ExecutionId,
    pub session: SessionId,
    pub attempt: u8,
    pub age: u8,
}

/// Where a process stands with one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
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
pub struct Worker {
    pub step: Step,
    pub fence: u8,
    pub attempt: u8,
}

pub const IDLE: Worker = Worker { step: Step::Idle, fence: 0, attempt: 0 };

/// A renewal under way, with its age since it began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    None,
    Begun { age: u8 },
    Committed { age: u8, renewed: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub session: SessionId,
    /// Age of the lease as its holder judges it, since the last successful renewal began.
    pub lease_age: u8,
    pub renewal: Renewal,
    /// Ticks for which its clock runs right, whatever happens. Only with `drift`.
    pub steady: u8,
    /// For each session: how long its counter is known not to have moved.
    pub observed: Vec<Option<u8>>,
    /// Age of a clock reading taken before the store was read. Only with [`Defect::StampBeforeRead`].
    pub stamp: Option<u8>,
    pub workers: Vec<Worker>,
}

/// What the last step was, where the properties of reachability want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
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
    EffectAfterTermination,
}

/// What must never happen, noted when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Violations {
    pub foreign_or_decreasing_fence: bool,
    pub terminal_changed: bool,
    pub call_begun_after_end: bool,
    pub effect_after_end: bool,
    pub write_of_ended_session: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub sessions: Vec<Session>,
    pub executions: Vec<Execution>,
    /// Effects that the machine of each execution has seen, by attempt.
    pub effects: Vec<Vec<u8>>,
    /// Calls on their way, in order.
    pub calls: Vec<Call>,
    /// `None`: not running.
    pub processes: Vec<Option<Process>>,
    pub started: usize,
    pub violations: Violations,
    pub event: Option<Event>,
}

impl State {
    pub fn is_live(&self, session: SessionId) -> bool {
        self.sessions[session].state == SessionState::Live
    }

    pub fn running(&mut self, p: ProcessId) -> &mut Process {
        self.processes[p].as_mut().expect("a step of a process that is not running")
    }

    pub fn worker(&mut self, p: ProcessId, e: ExecutionId) -> &mut Worker {
        &mut self.running(p).workers[e]
    }

    pub fn session_of(&self, p: ProcessId) -> SessionId {
        self.processes[p].as_ref().expect("a process that is not running has no session").session
    }

    /// The worker that awaits the answer to a call, if its process still runs.
    pub fn caller(&mut self, call: &Call) -> Option<&mut Worker> {
        let instance = self.sessions[call.session].instance;
        let process = self.processes[instance].as_mut().filter(|process| process.session == call.session)?;
        Some(&mut process.workers[call.execution]).filter(|worker| worker.step == Step::Calling)
    }

    /// Every execution has ended and nobody has anything to do with one any more: only sessions come and go.
    pub fn is_at_rest(&self) -> bool {
        self.calls.is_empty()
            && self.executions.iter().all(|row| row.status != Status::Open)
            && self.processes.iter().flatten().all(|process| process.workers.iter().all(|worker| *worker == IDLE))
    }

    /// Forgets what can no longer matter of sessions that have ended and hold nothing: readings, and how they ended.
    pub fn forget_the_ended(&mut self) {
        for session in 0..self.sessions.len() {
            if !self.is_watched(session) {
                self.sessions[session].state = SessionState::Released;
                self.forget_observations_of(session);
            }
        }
    }

    pub fn forget_observations_of(&mut self, session: SessionId) {
        for process in self.processes.iter_mut().flatten() {
            process.observed[session] = None;
        }
    }

    pub fn holds_anything(&self, session: SessionId) -> bool {
        self.executions.iter().any(|row| row.holder == Some(session) && row.status == Status::Open)
    }

    pub fn is_watched(&self, session: SessionId) -> bool {
        let settling = |worker: &Worker| matches!(worker.step, Step::Settle { from, .. } if from == session);
        self.is_live(session)
            || self.holds_anything(session)
            || self.processes.iter().flatten().any(|process| process.workers.iter().any(settling))
    }
}
