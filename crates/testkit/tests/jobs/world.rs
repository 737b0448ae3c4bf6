//! A store with nodes, their pretended agents and an engine that can be killed; and one job on one of them, driven step
//! by step with its rows compared to the table at every step.

use crate::table;
use domain::job::{Job, REQUESTED};
use domain::job_action::JobAction;
use domain::job_stage::{Ground, JobKind, Mode};
use domain::node::{self as nodes, Node, NodeStatus};
use domain::task::TaskStatus;
use domain::{Error, JobId, NodeId};
use engine::{Engine, EngineOptions, JournalObserver};
use reconcile::{Reconciler, ReconcilerOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Caller, Cause, Store, Tx, TxResult, job, node, task};
use testkit::fleet::{Database, Fleet};
use testkit::pretend_agent::PretendAgent;
use tokio_util::sync::CancellationToken;
use workflow::job::{Act, Acted, Fresh, NewJob, Parameters, act, begin, lock_node};
use workflow::{JobWorkflow, NodePolicy};

pub struct World {
    pub fleet: Fleet,
    pub policy: NodePolicy,
    /// Never started: it is asked to stop executions, as a door does.
    pub door: Engine,
    database: Database,
    made: AtomicU64,
}

/// Kinds that need nobody but the node's agent. Those on a MAAS have a harness of their own.
pub const BY_HAND: [JobKind; 6] = [
    JobKind::Onboarding(Ground::Bundle),
    JobKind::Drain,
    JobKind::Removal,
    JobKind::Decommission(Mode::SoftReset),
    JobKind::Decommission(Mode::StorageCleanup),
    JobKind::Decommission(Mode::FullDecommission(Ground::Bundle)),
];

/// Hardware that is nobody else's.
pub struct Hardware {
    pub serial: String,
    pub uuid: String,
    pub mac: String,
}

pub fn hardware(number: u64) -> Hardware {
    Hardware {
        serial: format!("SER{number:05}"),
        uuid: format!("4d570000-0001-4002-8000-{number:012x}"),
        mac: format!("52:54:00:{:02x}:{:02x}:{:02x}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff),
    }
}

impl World {
    pub fn new(database: Database) -> Self {
        crate::log_if_asked();
        let fleet = Fleet::new(database, 11);
        let mut policy = NodePolicy { provider: "sim".to_owned(), ..NodePolicy::default() };
        if database != Database::Memory {
            // waits are real there
            policy.heartbeat.interval = Duration::from_millis(100);
        }
        let workflows: Vec<Arc<dyn engine::Workflow>> = vec![Arc::new(JobWorkflow::new(policy.clone(), fleet.hands()))];
        let door = Engine::new(fleet.store.clone(), EngineOptions::new("the door"), workflows, None);
        Self { fleet, policy, door, database, made: AtomicU64::new(0) }
    }

    pub fn store(&self) -> &Store {
        &self.fleet.store
    }

    pub fn fresh(&self) -> Fresh {
        Fresh::make(self.fleet.ambient.as_ref())
    }

    pub fn number(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub async fn write<T: Send + 'static>(
        &self,
        key: &str,
        f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.store().write(&Caller::new("tester"), key, f).await
    }

    pub async fn read<T: Send + 'static>(&self, f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static) -> T {
        self.store().snapshot(f).await.expect("reads")
    }

    /// A node in that status, come to it by legal moves.
    pub async fn node(&self, status: NodeStatus) -> NodeId {
        let id = NodeId::generate(self.fleet.ambient.uuid());
        let (row, now) = (new_node(&id, self.fleet.ambient.now()), id.clone());
        self.write(now.as_str(), move |tx| {
            let mut there = node::insert(tx, &row, &Cause::operator("tester", nodes::ISSUED, ""))?;
            for (to, cause) in way_to(status) {
                there = node::move_to(
                    tx,
                    &there,
                    &Node { status: to, status_reason: cause.comment.clone(), ..there.clone() },
                    &serde_json::json!({}),
                    &cause,
                    |_| Ok(()),
                )?;
            }
            Ok(())
        })
        .await
        .expect("a node");
        id
    }

    /// Its agent, not enrolled.
    pub fn stranger(&self, node: &NodeId) -> PretendAgent {
        let agent = PretendAgent::new(self.store(), node, self.policy.heartbeat);
        if self.database != Database::Memory {
            agent.takes(Duration::from_millis(30));
        }
        agent
    }

    /// Its agent, on hardware of its own.
    pub async fn agent(&self, node: &NodeId) -> PretendAgent {
        let agent = self.stranger(node);
        let hardware = hardware(self.number());
        agent.enrol(&hardware.serial, &hardware.uuid, &[&hardware.mac]).await;
        agent
    }

    pub async fn begin(&self, node: &NodeId, kind: JobKind) -> Result<Job, Error> {
        let (id, fresh) = (node.clone(), self.fresh());
        self.write(node.as_str(), move |tx| {
            let there = lock_node(tx, &id)?.ok_or_else(|| Error::internal("no node"))?;
            if there.status == NodeStatus::BootstrapIssued && store::agent::tokens_of(tx, &id)?.is_empty() {
                let now = tx.now();
                store::agent::issue(tx, &bundle_of(&id, now))?;
            }
            let new = NewJob { kind, parameters: Parameters::default(), reason: "the test wants it".into() };
            begin(tx, &there, &new, &fresh, &Cause::operator("alice", REQUESTED, "the test wants it"))
        })
        .await
    }

    pub async fn act(&self, job: &JobId, action: JobAction) -> Result<Acted, Error> {
        let (fresh, engine) = (self.fresh(), self.door.clone());
        let wish = Act { job: job.clone(), action, by: "alice".into(), reason: "the test wants it".into() };
        let there = self.job(job).await;
        self.write(there.node_id.as_str(), move |tx| act(tx, &engine, &wish, &fresh)).await
    }

    pub async fn job(&self, id: &JobId) -> Job {
        let id = id.clone();
        self.read(move |tx| tx.point(&job::by_id(&id))).await.expect("a job")
    }

    pub async fn node_row(&self, id: &NodeId) -> Node {
        let id = id.clone();
        self.read(move |tx| tx.point(&node::by_id(&id))).await.expect("a node")
    }

    pub fn engine(&self, observer: Option<JournalObserver>) -> Engine {
        let options = EngineOptions::new("one");
        let options = match self.database {
            Database::Memory => {
                EngineOptions { lease: Duration::from_secs(60), poll: Duration::from_secs(5), ..options }
            }
            Database::Sqlite | Database::Postgres => EngineOptions {
                lease: Duration::from_secs(8),
                call_timeout: Duration::from_millis(700),
                poll: Duration::from_millis(100),
                ..options
            },
        };
        let workflows: Vec<Arc<dyn engine::Workflow>> =
            vec![Arc::new(JobWorkflow::new(self.policy.clone(), self.fleet.hands()))];
        Engine::new(self.store().clone(), options, workflows, observer)
    }

    /// Looks after nodes from now on, now and then.
    pub fn reconciler(&self) -> Reconciler {
        let mut options = ReconcilerOptions::new("test");
        options.nodes = self.policy.clone();
        options.node_period = Duration::from_secs(15);
        options.period = Duration::from_secs(365 * 24 * 3600);
        self.fleet.reconciler(options)
    }

    /// One look after all nodes and tasks: the first is made at once, and a stop waits for it.
    pub async fn sweep(&self) {
        self.reconciler().stop().await;
    }

    /// How long something may take here: a bound, not a verdict.
    pub fn patience(&self) -> Duration {
        match self.database {
            Database::Memory => Duration::from_secs(60 * 3600),
            Database::Sqlite | Database::Postgres => Duration::from_secs(90),
        }
    }

    pub fn tick(&self) -> Duration {
        match self.database {
            Database::Memory => Duration::from_secs(3),
            Database::Sqlite | Database::Postgres => Duration::from_millis(20),
        }
    }
}

pub fn new_node(id: &NodeId, now: domain::Timestamp) -> Node {
    Node::new(id.clone(), &format!("name of {id}"), NodeStatus::BootstrapIssued, "", "tester", now)
}

/// The moves from `bootstrap_issued` to a status, each with its owner's cause.
/// One that is good for longer than any of these jobs.
fn bundle_of(node: &NodeId, now: domain::Timestamp) -> domain::agent::BootstrapToken {
    domain::agent::BootstrapToken {
        hash: format!("token of {node}"),
        node_id: node.clone(),
        expires_at: now.plus(Duration::from_secs(90 * 24 * 3600)),
        issued_by: "alice".to_owned(),
        issued_at: now,
        key_sha256: None,
        bound_at: None,
        withdrawn: false,
    }
}

pub fn way_to(status: NodeStatus) -> Vec<(NodeStatus, Cause)> {
    let enrolling = (NodeStatus::Enrolling, Cause::executor("tester", nodes::ONBOARD, ""));
    let active = (NodeStatus::Active, Cause::executor("tester", nodes::ONBOARDED, ""));
    let draining = (NodeStatus::Draining, Cause::operator("tester", nodes::DRAIN, ""));
    let retired = (NodeStatus::Retired, Cause::executor("tester", nodes::DRAINED, ""));
    let removing = (NodeStatus::Removing, Cause::executor("tester", nodes::REMOVE, ""));
    let mut way = vec![enrolling, active];
    match status {
        NodeStatus::BootstrapIssued => way.clear(),
        NodeStatus::Enrolling => way.truncate(1),
        NodeStatus::Active => {}
        NodeStatus::Offline => way.push((status, Cause::reconciler("tester", nodes::HEARTBEAT_LOST, ""))),
        NodeStatus::Quarantined => way.push((status, Cause::reconciler("tester", nodes::QUARANTINE, "by a person"))),
        NodeStatus::Draining => way.push(draining),
        NodeStatus::Retired => way.extend([draining, retired]),
        NodeStatus::Removing => way.extend([draining, retired, removing]),
        NodeStatus::Deleted => {
            let deleted = (status, Cause::executor("tester", nodes::REMOVED, ""));
            way.extend([draining, retired, removing, deleted]);
        }
    }
    way
}

/// Where a node is when a job of this kind begins.
pub fn begins_at(kind: JobKind) -> NodeStatus {
    kind.begins_from().first().copied().expect("from somewhere")
}

/// Where something can happen to a job; counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Right after this journal entry of an engine's life is durable.
    Entry(usize),
    /// Before the agent takes its order of this number, and while it is at it.
    Queued(usize),
    AtWork(usize),
}

/// One job on one node.
pub struct Play<'a> {
    pub world: &'a World,
    pub kind: JobKind,
    pub node: NodeId,
    pub job: JobId,
    pub agent: PretendAgent,
    pub name: String,
}

impl<'a> Play<'a> {
    pub async fn start(world: &'a World, kind: JobKind, name: &str) -> Play<'a> {
        let node = world.node(begins_at(kind)).await;
        let agent = match kind {
            // comes while its onboarding waits for it
            JobKind::Onboarding(_) => world.stranger(&node),
            JobKind::Drain | JobKind::Removal | JobKind::Decommission(_) => world.agent(&node).await,
        };
        let begun = world.begin(&node, kind).await.unwrap_or_else(|e| panic!("{name}: does not begin: {e:?}"));
        Play { world, kind, node, job: begun.id, agent, name: name.to_owned() }
    }

    /// Node and job as they are together; a pair outside the table is a failure.
    pub async fn look(&self) -> (Node, Job) {
        let (id, of) = (self.job.clone(), self.node.clone());
        let (node, job) =
            self.world.read(move |tx| Ok((tx.point(&node::by_id(&of))?, tx.point(&job::by_id(&id))?))).await;
        let (node, job) = (node.expect("a node"), job.expect("a job"));
        let pair = table::meaning(self.kind, job.status, node.status);
        // what becomes of a node after its job has ended is no more its job's
        let since = job.finished_at.is_some_and(|ended| node.status_changed_at > ended);
        assert!(
            pair.is_some() || since,
            "{}: a node that is {} with a job that is {} at {:?} ({:?})",
            self.name,
            node.status,
            job.status,
            job.stage,
            job.failure
        );
        (node, job)
    }

    async fn agent_turn(&self, node: &Node, moment: Moment) {
        if !self.agent.is_enrolled() && node.status == NodeStatus::Enrolling {
            let hardware = hardware(self.world.number());
            self.agent.enrol(&hardware.serial, &hardware.uuid, &[&hardware.mac]).await;
        }
        // what is to be seen queued must not be taken between a look at it and this
        let awaited = matches!(moment, Moment::Queued(number) if self.agent.carried().len() + 1 == number);
        self.agent.lives_and(!awaited).await;
    }

    /// Whether its agent's order of that number waits to be taken, or is being carried out.
    async fn is_at(&self, moment: Moment) -> bool {
        let carried = self.agent.carried().len();
        match moment {
            Moment::Entry(_) => false,
            Moment::AtWork(number) => self.agent.is_at_work() && carried == number,
            Moment::Queued(number) => {
                let id = self.node.clone();
                let live = self.world.read(move |tx| tx.point(&task::live_of_node(&id))).await;
                carried + 1 == number && live.is_some_and(|t| t.status == TaskStatus::Queued)
            }
        }
    }

    /// Goes on until the job is under way no more, or so much time has passed.
    pub async fn live(&self, within: Duration) -> (Node, Job) {
        self.live_until(&CancellationToken::new(), Moment::Entry(0), within).await
    }

    /// The same; or until `stop` says so, which is also told when its agent has come to a moment.
    pub async fn live_until(&self, stop: &CancellationToken, moment: Moment, within: Duration) -> (Node, Job) {
        let mut grew = self.world.store().signals().log_grew();
        let begun = tokio::time::Instant::now();
        loop {
            grew.look();
            let (node, job) = self.look().await;
            if stop.is_cancelled() || !job.status.is_under_way() || begun.elapsed() >= within {
                return (node, job);
            }
            if self.is_at(moment).await {
                stop.cancel();
                continue;
            }
            self.agent_turn(&node, moment).await;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = grew.grew() => {}
                () = tokio::time::sleep(self.world.tick()) => {}
            }
        }
    }

    /// Goes on until the job has ended or stands still.
    pub async fn rests(&self) -> (Node, Job) {
        let (node, job) = self.live(self.world.patience()).await;
        assert!(!job.status.is_under_way(), "{}: never comes to rest: {job:#?}", self.name);
        (node, job)
    }

    pub async fn act(&self, action: JobAction) -> Result<Acted, Error> {
        self.world.act(&self.job, action).await
    }

    /// Takes what is recommended until it has ended, with an agent that behaves.
    pub async fn ends(&self) -> (Node, Job) {
        self.agent.behaves();
        for _ in 0..6 {
            let (node, job) = self.rests().await;
            if job.status.is_terminal() {
                return (node, job);
            }
            let (action, why) = domain::job_action::recommend(&job, node.status);
            let action = action.unwrap_or_else(|| panic!("{}: nothing is recommended ({why}): {job:#?}", self.name));
            self.act(action)
                .await
                .unwrap_or_else(|e| panic!("{}: {action} is recommended and refused: {e:?}", self.name));
        }
        panic!("{}: what is recommended leads nowhere: {:#?}", self.name, self.look().await.1);
    }
}

/// For messages.
pub fn spelt(kind: JobKind) -> String {
    match kind.mode() {
        "" => kind.as_str().to_owned(),
        mode => mode.to_owned(),
    }
}
