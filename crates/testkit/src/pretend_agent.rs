//! A node's agent without a network: it enrols, beats, takes tasks and answers them directly on the store, by the same
//! rules as the real one. What it has carried out it writes into an effect journal of its own, which an auditor reads:
//! no row of the product is asked about that.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::agent::{AgentIdentity, HeartbeatPolicy, IdentityState};
use domain::stage::FailureClass;
use domain::task::{RESULT, Task, TaskFence, TaskKind, TaskResult, TaskStatus};
use domain::{NodeId, TaskId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{Caller, Cause, Store, Tx, TxResult, agent, task};

/// How it answers tasks of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Fails { code: String, class: FailureClass },
}

/// One order that it began to carry out, to effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub task: TaskId,
    pub operation: String,
    pub kind: TaskKind,
    pub at: Timestamp,
}

/// A word of its own that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotTaken {
    pub task: TaskId,
    pub fence: TaskFence,
    pub why: &'static str,
}

/// What is on its disk: a kill does not touch it.
#[derive(Default)]
struct Disk {
    highest: TaskFence,
    begun: BTreeSet<TaskId>,
    results: BTreeMap<TaskId, TaskResult>,
}

#[derive(Clone)]
struct Hand {
    task: TaskId,
    fence: TaskFence,
    kind: TaskKind,
    since: Timestamp,
}

#[derive(Default)]
struct State {
    disk: Disk,
    /// What it is at.
    hand: Option<Hand>,
    silent: bool,
    enrolled: bool,
    session: u64,
    plans: Vec<(TaskKind, Answer)>,
    takes: Duration,
    beats: u32,
    last_beat: Option<Timestamp>,
    carried: Vec<Carried>,
    not_taken: Vec<NotTaken>,
}

pub struct PretendAgent {
    store: Store,
    pub node: NodeId,
    policy: HeartbeatPolicy,
    state: Mutex<State>,
}

impl PretendAgent {
    /// Not enrolled yet. Its tasks take a moment, so that something can happen meanwhile.
    pub fn new(store: &Store, node: &NodeId, policy: HeartbeatPolicy) -> Self {
        let state = State { takes: Duration::from_secs(2), ..State::default() };
        Self { store: store.clone(), node: node.clone(), policy, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.store.ambient().now()
    }

    pub fn answers(&self, kind: TaskKind, answer: Answer) {
        let mut state = self.state();
        state.plans.retain(|(of, _)| *of != kind);
        state.plans.push((kind, answer));
    }

    /// From now on it does what it is told.
    pub fn behaves(&self) {
        let mut state = self.state();
        state.plans.clear();
        state.silent = false;
    }

    pub fn takes(&self, span: Duration) {
        self.state().takes = span;
    }

    /// Says nothing, takes nothing; what it is at goes on.
    pub fn falls_silent(&self) {
        self.state().silent = true;
    }

    pub fn speaks(&self) {
        self.state().silent = false;
    }

    /// Its process is gone in the middle of whatever it was at, and comes up again.
    pub fn is_killed(&self) {
        self.state().hand = None;
    }

    pub fn is_at_work(&self) -> bool {
        self.state().hand.is_some()
    }

    pub fn carried(&self) -> Vec<Carried> {
        self.state().carried.clone()
    }

    pub fn not_taken(&self) -> Vec<NotTaken> {
        self.state().not_taken.clone()
    }

    pub fn is_enrolled(&self) -> bool {
        self.state().enrolled
    }

    async fn write<T: Send + 'static>(&self, f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static) -> T {
        let caller = Caller::new("agent");
        self.store.write(&caller, self.node.as_str(), f).await.expect("the agent's word is written")
    }

    /// Comes with a key of its own, on the hardware that these facts are of, and has its session on its disk.
    pub async fn enrol(&self, serial: &str, uuid: &str, macs: &[&str]) {
        let now = self.now();
        let identity = AgentIdentity {
            node_id: self.node.clone(),
            key_sha256: format!("key of {}", self.node),
            key_spki: b"key".to_vec(),
            state: IdentityState::Good,
            state_reason: String::new(),
            epoch: 1,
            session: 1,
            confirmed: false,
            enrolled_at: now,
            token_id: String::new(),
            certificate_until: now.plus(Duration::from_secs(86_400)),
            agent_version: "0".into(),
            boot_id: "b".into(),
            beats: 0,
            last_beat: None,
            skew_ms: 0,
            inventory: String::new(),
            inventory_digest: String::new(),
            health: String::new(),
        };
        self.write(move |tx| agent::enrol(tx, &identity)).await;
        self.connects(1, serial, uuid, macs).await;
    }

    /// Somebody has enrolled it: it connects for the first time, and tells of its hardware. What it had on its disk before
    /// is another system's.
    pub async fn connects(&self, session: u64, serial: &str, uuid: &str, macs: &[&str]) {
        let facts = serde_json::json!({"system_uuid": uuid, "serial_number": serial, "mac_addresses": macs});
        let inventory = serde_json::json!({ "facts": facts }).to_string();
        let node = self.node.clone();
        let confirmed = self
            .write(move |tx| {
                agent::set_inventory(tx, &node, session, &inventory, "digest")?;
                agent::set_health(tx, &node, session, r#"{"probes":[{"name":"disk_space","ok":true}]}"#)?;
                agent::confirm(tx, &node, session)
            })
            .await;
        assert!(confirmed, "the session is the last one");
        let mut state = self.state();
        (state.enrolled, state.session, state.disk, state.hand) = (true, session, Disk::default(), None);
    }

    /// What its probes say: each with whether it passes.
    pub async fn probes(&self, probes: &[(&str, bool)]) {
        let all: Vec<_> = probes.iter().map(|(name, ok)| serde_json::json!({"name": name, "ok": ok})).collect();
        let health = serde_json::json!({ "probes": all }).to_string();
        let node = self.node.clone();
        self.write(move |tx| agent::set_health(tx, &node, 1, &health)).await;
    }

    /// One heartbeat, now. It goes on with its row if it comes soon enough.
    pub async fn beat(&self) {
        let now = self.now();
        let (beats, session) = {
            let mut state = self.state();
            let goes_on = state.last_beat.is_some_and(|last| self.policy.is_gapless(now.since(last)));
            state.beats = if goes_on { state.beats + 1 } else { 1 };
            state.last_beat = Some(now);
            (state.beats, state.session)
        };
        let beat = agent::Beat { node_id: self.node.clone(), session, at: now, beats, skew_ms: 0 };
        self.write(move |tx| agent::heard(tx, std::slice::from_ref(&beat))).await;
    }

    /// One turn of its life: a heartbeat if it is time, and the task that there is for it.
    pub async fn lives(&self) {
        self.lives_and(true).await;
    }

    /// The same; one that `takes` nothing leaves a task that is queued where it is, and goes on with what it has.
    pub async fn lives_and(&self, takes: bool) {
        let (silent, enrolled, last) = {
            let state = self.state();
            (state.silent, state.enrolled, state.last_beat)
        };
        if silent || !enrolled {
            return;
        }
        if last.is_none_or(|last| self.now().since(last) >= self.policy.interval) {
            self.beat().await;
        }
        let node = self.node.clone();
        let there = self.store.read(move |tx| tx.point(&task::live_of_node(&node))).await.expect("reads");
        self.stops_unless_at(there.as_ref());
        match there {
            None => {}
            Some(there) if there.status == TaskStatus::Queued && !takes => {}
            Some(there) => {
                // handed out, or out already and handed out once more to one that came back
                if let Some(order) = self.take(&there).await {
                    self.obey(&order).await;
                }
                self.work().await;
            }
        }
    }

    /// What nobody wants any more is stopped, and that is its result.
    fn stops_unless_at(&self, there: Option<&Task>) {
        let mut state = self.state();
        let Some(hand) = state.hand.clone() else { return };
        if there.is_none_or(|there| there.id != hand.task) {
            let stopped = failure("CANCELLED", FailureClass::Transient);
            state.disk.results.insert(hand.task, stopped);
            state.hand = None;
        }
    }

    async fn take(&self, there: &Task) -> Option<Task> {
        let (id, actor) = (there.id.clone(), self.node.to_string());
        self.write(move |tx| {
            let Some(there) = task::get_for_update(tx, &id)? else { return Ok(None) };
            match there.status {
                TaskStatus::Queued => task::dispatch(tx, &there, &actor).map(Some),
                TaskStatus::Dispatched => Ok(Some(there)),
                TaskStatus::Done | TaskStatus::Failed | TaskStatus::Expired => Ok(None),
            }
        })
        .await
    }

    async fn obey(&self, order: &Task) {
        let stored = {
            let mut state = self.state();
            if order.fence < state.disk.highest {
                let why = "OLD_FENCE";
                state.not_taken.push(NotTaken { task: order.id.clone(), fence: order.fence, why });
                return;
            }
            state.disk.highest = order.fence;
            if let Some(hand) = state.hand.as_mut().filter(|hand| hand.task == order.id) {
                hand.fence = order.fence;
                return;
            }
            let known = state.disk.results.get(&order.id).cloned();
            match known {
                Some(result) => Some(result),
                None if state.disk.begun.contains(&order.id) => {
                    let interrupted = failure("INTERRUPTED", FailureClass::Transient);
                    state.disk.results.insert(order.id.clone(), interrupted.clone());
                    Some(interrupted)
                }
                None => {
                    state.disk.begun.insert(order.id.clone());
                    let at = self.now();
                    let (task, operation) = (order.id.clone(), order.operation.clone());
                    state.carried.push(Carried { task: task.clone(), operation, kind: order.kind, at });
                    state.hand = Some(Hand { task, fence: order.fence, kind: order.kind, since: at });
                    None
                }
            }
        };
        if let Some(result) = stored {
            self.says(&order.id, order.fence, result).await;
        }
    }

    /// Goes on with what it is at: a word for its lease, or the end.
    async fn work(&self) {
        let (hand, over) = {
            let state = self.state();
            let Some(hand) = state.hand.clone() else { return };
            let over = self.now().since(hand.since) >= state.takes;
            (hand, over)
        };
        if !over {
            let (id, fence) = (hand.task, hand.fence);
            self.write(move |tx| task::renew(tx, &id, fence)).await;
            return;
        }
        let result = {
            let mut state = self.state();
            let plan = state.plans.iter().find(|(kind, _)| *kind == hand.kind).map(|(_, answer)| answer.clone());
            let result = match plan.unwrap_or(Answer::Done) {
                Answer::Done => TaskResult { ok: true, ..failure("", FailureClass::Transient) },
                Answer::Fails { code, class } => failure(&code, class),
            };
            state.disk.results.insert(hand.task.clone(), result.clone());
            state.hand = None;
            result
        };
        self.says(&hand.task, hand.fence, result).await;
    }

    /// Says how a task has ended, under a fence. Only the word under the fence of the last dispatch is taken, and only
    /// while the task is out: the rule of the agents' door.
    pub async fn says(&self, id: &TaskId, fence: TaskFence, result: TaskResult) -> bool {
        let (task_id, node) = (id.clone(), self.node.clone());
        let taken = self
            .write(move |tx| {
                let Some(there) = task::get_for_update(tx, &task_id)?.filter(|t| t.node_id == node) else {
                    return Ok(Err("NOT_YOURS"));
                };
                if there.fence != fence {
                    return Ok(Err("OLD_FENCE"));
                }
                match there.status {
                    TaskStatus::Dispatched => {}
                    TaskStatus::Queued | TaskStatus::Expired => return Ok(Err("EXPIRED")),
                    TaskStatus::Done | TaskStatus::Failed => return Ok(Err("ALREADY_ENDED")),
                }
                let status = if result.ok { TaskStatus::Done } else { TaskStatus::Failed };
                let after = Task { status, lease_until: None, result: Some(result.clone()), ..there.clone() };
                task::move_to(tx, &there, &after, &Cause::node(node.as_str(), RESULT, &result.message))?;
                Ok(Ok(()))
            })
            .await;
        if let Err(why) = taken {
            self.state().not_taken.push(NotTaken { task: id.clone(), fence, why });
        }
        taken.is_ok()
    }

    /// The auditor's word: no order was carried out twice, neither by its id nor by what it was for.
    pub fn nothing_twice(&self) -> Result<(), String> {
        let (mut ids, mut operations) = (BTreeSet::new(), BTreeSet::new());
        for carried in self.carried() {
            if !ids.insert(carried.task.clone()) || !operations.insert(carried.operation.clone()) {
                return Err(format!("carried out twice: {carried:?}"));
            }
        }
        Ok(())
    }
}

/// As a failure would be told; also what success is made from.
pub fn failure(code: &str, class: FailureClass) -> TaskResult {
    TaskResult {
        ok: false,
        code: code.to_owned(),
        class,
        message: format!("as the test wants it: {code}"),
        detail: "{}".to_owned(),
        signature: vec![1, 2, 3],
        signed_by: "6b6579".into(),
        started_at: None,
        finished_at: None,
    }
}
