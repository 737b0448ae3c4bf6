//! The reference: what sessions, claims, fences, remembered keys, sweeps, tokens and the brake must do, as plain
//! lists in memory, written from the contract and without a line of the store. Told only which runs were
//! accepted; everything else it says by itself, after every operation.

use crate::records::{Keep, key, lane, scope};
use crate::{Op, World};
use domain::observation::Lane;
use domain::token::TokenState;
use domain::{Error, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;
use store::execution::Status;
use store::{Tx, audit, execution, idempotency, session, sweep, switch, token};

/// Of every session of the model.
const CALL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq)]
struct Execution {
    status: Status,
    holder: Option<usize>,
    fence: u64,
    entries: u64,
    asked_to_stop: bool,
    wake_at: Timestamp,
    settle: Duration,
}

#[derive(Clone, Debug, PartialEq)]
struct Sweep {
    round: u64,
    beats: u64,
    sweeper: String,
    finished: bool,
}

/// What can be seen of both, the reference and the store.
#[derive(Debug, PartialEq)]
pub struct Picture {
    frozen: bool,
    live: Vec<(usize, u64)>,
    executions: Vec<Execution>,
    keys: Vec<(String, String)>,
    sweeps: Vec<Option<Sweep>>,
    tokens: BTreeMap<String, bool>,
    audit: usize,
}

struct Session {
    instance: u8,
    renewals: u64,
    live: bool,
}

/// An execution as its claimant last knew it.
#[derive(Clone)]
struct Held {
    session: usize,
    execution: usize,
    fence: u64,
    entries: u64,
    asked_to_stop: bool,
    wake_at: Timestamp,
    status: Status,
}

#[derive(Default)]
pub struct Reference {
    frozen: bool,
    sessions: Vec<Session>,
    seen: Vec<(usize, u64)>,
    executions: Vec<Execution>,
    /// Whether a stage was ever entered.
    staged: Vec<bool>,
    held: Vec<Held>,
    keys: BTreeMap<(String, String), Timestamp>,
    sweeps: BTreeMap<&'static str, Sweep>,
    tokens: BTreeMap<String, bool>,
    audit: usize,
}

fn pick(len: usize, n: u8) -> Option<usize> {
    (len > 0).then(|| usize::from(n) % len)
}

impl Reference {
    /// Does what the operation must do. `started`: a run was accepted.
    pub fn apply(&mut self, op: &Op, started: bool, now: Timestamp) {
        match *op {
            Op::Start { .. } if started => {
                let (status, wake_at, settle) = (Status::Ready, now, Duration::ZERO);
                let new =
                    Execution { status, holder: None, fence: 0, entries: 1, asked_to_stop: false, wake_at, settle };
                self.executions.push(new);
                self.staged.push(false);
            }
            Op::Freeze => self.frozen = true,
            Op::Unfreeze => self.frozen = false,
            Op::Session { instance } => {
                let same = |s: &Session| s.live && s.instance == instance % 2;
                let before: Vec<usize> = (0..self.sessions.len()).filter(|n| same(&self.sessions[*n])).collect();
                before.into_iter().for_each(|n| self.dies(n, now));
                self.sessions.push(Session { instance: instance % 2, renewals: 0, live: true });
            }
            Op::Look => self.seen = self.live(),
            Op::Renew { session } => {
                if let Some(n) = pick(self.sessions.len(), session).filter(|n| self.sessions[*n].live) {
                    self.sessions[n].renewals += 1;
                }
            }
            Op::DeclareDead { seen } => {
                if let Some((n, renewals)) = pick(self.seen.len(), seen).map(|n| self.seen[n])
                    && self.sessions[n].live
                    && self.sessions[n].renewals == renewals
                {
                    self.dies(n, now);
                }
            }
            Op::Release { session } => {
                let Some(n) = pick(self.sessions.len(), session) else { return };
                self.sessions[n].live = false;
                self.let_go(n, now);
            }
            Op::Claim { session, limit } => self.claim(session, limit, now),
            Op::Record { held, kind, wait } => self.record(held, kind, now, wait),
            Op::Cancel { execution } => {
                let Some(n) = pick(self.executions.len(), execution) else { return };
                let e = &mut self.executions[n];
                if !e.status.is_terminal() && !e.asked_to_stop {
                    e.asked_to_stop = true;
                    if e.status != Status::Running {
                        e.wake_at = now;
                    }
                }
            }
            Op::End { execution } => {
                let Some(n) = pick(self.executions.len(), execution) else { return };
                let e = &mut self.executions[n];
                if !e.status.is_terminal() {
                    (e.status, e.holder) = (Status::Terminated, None);
                    e.fence += 1;
                    e.entries += 1;
                }
            }
            Op::Token { id } => drop(self.tokens.entry(format!("h{}", id % 4)).or_insert(false)),
            Op::Keep(keep) => self.keep(keep, now),
            _ => {}
        }
    }

    fn live(&self) -> Vec<(usize, u64)> {
        let live = self.sessions.iter().enumerate().filter(|(_, s)| s.live);
        live.map(|(n, s)| (n, s.renewals)).collect()
    }

    /// What a session held can be claimed at once; how many that were is answered.
    fn let_go(&mut self, session: usize, now: Timestamp) -> Vec<usize> {
        let mut orphans = Vec::new();
        for (n, e) in self.executions.iter_mut().enumerate() {
            if e.holder == Some(session) && e.status == Status::Running {
                (e.status, e.holder, e.wake_at) = (Status::Ready, None, now);
                orphans.push(n);
            }
        }
        orphans
    }

    fn dies(&mut self, session: usize, now: Timestamp) {
        self.sessions[session].live = false;
        for n in self.let_go(session, now) {
            let e = &mut self.executions[n];
            e.entries += 1;
            e.settle = if self.staged[n] { CALL } else { Duration::ZERO };
        }
    }

    fn claim(&mut self, session: u8, limit: u8, now: Timestamp) {
        let newest: Vec<usize> = (0..self.sessions.len()).rev().take(3).collect();
        let Some(session) = pick(newest.len(), session).map(|n| newest[n]) else { return };
        if !self.sessions[session].live {
            return;
        }
        let is_due = |e: &Execution| matches!(e.status, Status::Ready | Status::Waiting) && e.wake_at <= now;
        let mut due: Vec<usize> = (0..self.executions.len()).filter(|n| is_due(&self.executions[*n])).collect();
        due.sort_by_key(|n| (self.executions[*n].wake_at, *n));
        for n in due.into_iter().take(usize::from(limit % 4)) {
            let e = &mut self.executions[n];
            (e.status, e.holder) = (Status::Running, Some(session));
            e.fence += 1;
            self.held.push(Held {
                session,
                execution: n,
                fence: e.fence,
                entries: e.entries,
                asked_to_stop: e.asked_to_stop,
                wake_at: e.wake_at,
                status: e.status,
            });
        }
    }

    fn record(&mut self, held: u8, kind: u8, now: Timestamp, wait: u8) {
        let from = self.held.len().saturating_sub(3);
        let Some(at) = pick(self.held.len() - from, held).map(|n| from + n) else { return };
        let mut mine = self.held[at].clone();
        let e = &mut self.executions[mine.execution];
        let accepted = e.status == Status::Running
            && e.holder == Some(mine.session)
            && e.fence == mine.fence
            && e.entries == mine.entries
            && self.sessions[mine.session].live;
        if !accepted {
            return;
        }
        match kind % 6 {
            0..3 => {}
            3 | 4 => {
                mine.status = Status::Waiting;
                mine.wake_at = now.plus(Duration::from_secs(wait.into()));
            }
            _ => mine.status = Status::Done,
        }
        mine.entries += u64::from(kind % 3);
        e.status = mine.status;
        e.holder = (mine.status == Status::Running).then_some(mine.session);
        e.entries = mine.entries;
        e.settle = Duration::from_millis(kind.into());
        // who did not know that it was asked to stop finds it due at once
        e.wake_at = if e.asked_to_stop && !mine.asked_to_stop { now } else { mine.wake_at };
        self.staged[mine.execution] = true;
        self.held[at] = mine;
    }

    fn keep(&mut self, keep: Keep, now: Timestamp) {
        match keep {
            Keep::Audit { .. } => self.audit += 1,
            Keep::Remember { scope: s, key: k } => drop(self.keys.entry((scope(s), key(k))).or_insert(now)),
            Keep::Forget { scope: s, minutes } => {
                let old = now.minus(Duration::from_secs(60 * u64::from(minutes)));
                self.keys.retain(|(of, _), at| *of != scope(s) || *at >= old);
            }
            Keep::Sweep { slow, sweeper, behind } => {
                let round = self.sweeps.get(lane(slow).as_str()).map_or(0, |s| s.round);
                // only the next of the present round can be claimed, and the first only where there is none
                if round == 0 || !behind {
                    let new =
                        Sweep { round: round + 1, beats: 0, sweeper: format!("i{}", sweeper % 2), finished: false };
                    self.sweeps.insert(lane(slow).as_str(), new);
                }
            }
            Keep::Beat { slow, behind } => {
                if let Some(s) = self.sweeps.get_mut(lane(slow).as_str()).filter(|s| !s.finished && !behind) {
                    s.beats += 1;
                }
            }
            Keep::Finish { slow, behind, .. } => {
                if let Some(s) = self.sweeps.get_mut(lane(slow).as_str()).filter(|_| !behind) {
                    s.finished = true;
                }
            }
            Keep::Revoke { token } => drop(self.tokens.get_mut(&format!("h{}", token % 4)).map(|t| *t = true)),
            Keep::Observe { .. } => {}
        }
    }

    pub fn picture(&self) -> Picture {
        Picture {
            frozen: self.frozen,
            live: self.live(),
            executions: self.executions.clone(),
            keys: self.keys.keys().cloned().collect(),
            sweeps: Lane::ALL.iter().map(|lane| self.sweeps.get(lane.as_str()).cloned()).collect(),
            tokens: self.tokens.clone(),
            audit: self.audit,
        }
    }
}

/// The same of a store.
pub async fn picture_of(world: &World) -> Result<Picture, Error> {
    let (sessions, executions) = (world.sessions.clone(), world.executions.clone());
    let read = move |tx: &mut Tx<'_>| {
        let place = |id: &domain::SessionId| sessions.iter().position(|s| s == id);
        let mut picture = Picture {
            frozen: switch::frozen(tx)?.is_some(),
            live: session::live(tx)?.iter().filter_map(|s| place(&s.id).map(|n| (n, s.renewals))).collect(),
            executions: Vec::new(),
            keys: Vec::new(),
            sweeps: Vec::new(),
            tokens: BTreeMap::new(),
            audit: audit::list(tx, &domain::filter::Filter::Everything, None, 1000)?.len(),
        };
        for id in &executions {
            let e = execution::get(tx, id)?.ok_or_else(|| Error::internal(format!("{id} is gone")))?;
            picture.executions.push(Execution {
                status: e.status,
                holder: e.holder.as_ref().and_then(place),
                fence: e.fence.counter,
                entries: e.entries,
                asked_to_stop: e.cancel.is_some(),
                wake_at: e.wake_at,
                settle: e.settle,
            });
        }
        for (s, k) in (0..2).flat_map(|s| (0..5).map(move |k| (s, k))) {
            if idempotency::find(tx, &scope(s), &key(k))?.is_some() {
                picture.keys.push((scope(s), key(k)));
            }
        }
        for lane in Lane::ALL {
            picture.sweeps.push(sweep::get(tx, lane)?.map(|s| Sweep {
                round: s.round,
                beats: s.beats,
                sweeper: s.sweeper,
                finished: s.finished_at.is_some(),
            }));
        }
        for hash in (0..4).map(|n| format!("h{n}")) {
            if let Some(token) = tx.point(&token::by_hash(&hash))? {
                picture.tokens.insert(hash, token.state == TokenState::Revoked);
            }
        }
        Ok(picture)
    };
    world.store.snapshot(read).await
}
