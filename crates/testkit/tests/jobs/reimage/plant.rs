//! One node on a machine that our own network boot installs: a server with runs and jobs, a guest that boots what it is
//! served, and the agent that comes with what its seed says.

use super::by_network::ByNetwork;
use super::starts::{Fault, Starts};
use crate::rows::rows_hold;
use crate::table;
use crate::world::{Hardware, hardware, new_node, way_to};
use base64::Engine as _;
use boot::door::Door;
use domain::boot_node::{BootNode, BootState};
use domain::boot_workflow::BootWorkflow;
use domain::install_order::Closing;
use domain::job::{Job, JobStatus};
use domain::job_action::{JobAction, recommend};
use domain::job_stage::{Ground, JobKind, Mode};
use domain::node::{self as nodes, Node, NodeStatus};
use domain::run::Run;
use domain::{BootNodeId, Error, JobId, MachineId, NodeId, OrderId, Secret, Timestamp};
use engine::{Engine, EngineOptions, JournalObserver};
use reconcile::{Reconciler, ReconcilerOptions};
use service::agents::{AgentSetup, Enrolment, Facts, LateBundles};
use service::{
    Begun, BootNodeMove, BootRequest, BootSetup, JobAct, JobActed, JobsOf, NetbootOrders, NewBootNode, NewDecommission,
    NewMachine, NodeAct, Report, Service,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Caller, Cause, job, node, run};
use testkit::agent_client::request;
use testkit::fleet::{Database, Fleet, admin, machine};
use testkit::pretend_agent::PretendAgent;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use workflow::job::Hands;
use workflow::{JobWorkflow, NodePolicy, RunWorkflow};

pub const KIND: JobKind = JobKind::Decommission(Mode::Reimage(Ground::Boot));
pub const MACHINE: &str = "rack-1";
pub const AGENT_URL: &str = "https://files.example/millwright-agent";
/// Turns without anything new before it counts as stuck: a bound, not a verdict.
const TURNS_MAX: u32 = 4_000;

pub struct Plant {
    pub fleet: Fleet,
    pub service: Service,
    /// Never started: it is asked to stop executions, as a door does.
    door: Engine,
    pub policy: NodePolicy,
    database: Database,
    bundles: Arc<LateBundles>,
    starts: Arc<Starts>,
    pub node: NodeId,
    pub boot: BootNodeId,
    hardware: Hardware,
    pub agent: PretendAgent,
    /// Its installer's token, of which attempt it is, and what its seed has said.
    installer: Mutex<Option<(OrderId, u32, String, String)>>,
    /// What every installation was told.
    pub seeds: Mutex<Vec<String>>,
    /// The order whose system runs.
    runs: Mutex<Option<OrderId>>,
    fails: AtomicBool,
    stalls: AtomicBool,
    no_agent: AtomicBool,
    /// Where the machines' own door is, if anywhere.
    at: Mutex<Option<std::net::SocketAddr>>,
    sweeps: Mutex<Option<Reconciler>>,
}

pub fn setup(heartbeat: domain::agent::HeartbeatPolicy) -> AgentSetup {
    let (agent_url, agent_sha256) = (AGENT_URL.to_owned(), "ab".repeat(32));
    AgentSetup { agent_url, agent_sha256, heartbeat, ..AgentSetup::default() }
}

fn workflow(template: &str) -> BootWorkflow {
    BootWorkflow {
        id: "debian".to_owned(),
        name: "Debian".to_owned(),
        kernel: "vmlinuz".to_owned(),
        initrd: "initrd".to_owned(),
        cmdline: "quiet".to_owned(),
        image: String::new(),
        image_sha256: String::new(),
        arch: String::new(),
        boot_mode: String::new(),
        template: template.to_owned(),
        disk: "auto".to_owned(),
        created_at: Timestamp::default(),
        created_by: String::new(),
    }
}

impl Plant {
    pub async fn new(database: Database) -> Self {
        Self::with(database, setup, "").await
    }

    /// With agents set up otherwise, or a workflow that has words of its own.
    pub async fn with(
        database: Database,
        agents: impl FnOnce(domain::agent::HeartbeatPolicy) -> AgentSetup,
        template: &str,
    ) -> Self {
        crate::log_if_asked();
        let mut fleet = tokio::task::spawn_blocking(move || Fleet::new(database, 23)).await.expect("a fleet");
        let orders = NetbootOrders::new(fleet.store.clone());
        fleet.provide("net", Arc::new(ByNetwork { sim: fleet.sim.clone(), orders }));
        let mut policy = NodePolicy { provider: "net".to_owned(), ..NodePolicy::default() };
        if database != Database::Memory {
            // waits are real there
            policy.heartbeat.interval = Duration::from_millis(100);
        }
        let bundles = Arc::<LateBundles>::default();
        let starts = Arc::new(Starts::new(&bundles));
        let door = engine(&fleet, database, &policy, (&bundles, &starts), "the door", None);
        let service = fleet.service(&door).await;
        service.keeps_nodes_by(policy.clone());
        service.serves_agents(agents(policy.heartbeat));
        bundles.come_from(&service);
        let (hardware, call) = (hardware(1), admin());
        let mut spec = machine(MACHINE).spec;
        spec.provider = "net".to_owned();
        spec.serial_number.clone_from(&hardware.serial);
        spec.system_uuid.clone_from(&hardware.uuid);
        spec.mac_addresses = vec![hardware.mac.clone()];
        let new = NewMachine { spec, ..machine(MACHINE) };
        service.register_machine(&call, new).await.expect("a machine");
        service.create_workflow(&call, workflow(template)).await.expect("a workflow");
        let new = NewBootNode {
            mac_address: hardware.mac.clone(),
            workflow_id: "debian".to_owned(),
            machine_id: MACHINE.to_owned(),
            ..NewBootNode::default()
        };
        let boot = service.create_boot_node(&call, new).await.expect("a boot node").id;
        let node = NodeId::generate(fleet.ambient.uuid());
        let agent = PretendAgent::new(&fleet.store, &node, policy.heartbeat);
        if database != Database::Memory {
            agent.takes(Duration::from_millis(30));
        }
        let plant = Self {
            fleet,
            service,
            door,
            policy,
            database,
            bundles,
            starts,
            node,
            boot,
            hardware,
            agent,
            installer: Mutex::default(),
            seeds: Mutex::default(),
            runs: Mutex::default(),
            fails: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            no_agent: AtomicBool::new(false),
            at: Mutex::default(),
            sweeps: Mutex::default(),
        };
        plant.installed_once().await;
        plant.enrolled_once().await;
        let sweeps = plant.reconciler();
        *plant.sweeps.lock().expect("a lock") = Some(sweeps);
        plant
    }

    /// By an operator, long ago.
    async fn installed_once(&self) {
        self.moves("pending").await;
        while self.boot_node().await.state != BootState::Installed {
            self.guest_turn().await;
        }
        self.guest_turn().await;
        self.moves("active").await;
    }

    async fn moves(&self, state: &str) {
        let change = BootNodeMove {
            id: self.boot.to_string(),
            state: state.to_owned(),
            comment: "a test".to_owned(),
            force: false,
            link: false,
            mac_address: None,
        };
        self.service.move_boot_node(&admin(), change).await.expect("it moves");
    }

    async fn enrolled_once(&self) {
        let (row, linked) = (new_node(&self.node, self.fleet.ambient.now()), MachineId::from_text(MACHINE));
        let caller = Caller::new("tester");
        let written = self.fleet.store.write(&caller, self.node.as_str(), move |tx| {
            let mut there = node::insert(tx, &row, &Cause::operator("tester", nodes::ISSUED, ""))?;
            there = node::save(tx, &Node { machine_id: Some(linked.clone()), ..there })?;
            for (to, cause) in way_to(NodeStatus::Active) {
                let after = Node { status: to, ..there.clone() };
                there = node::move_to(tx, &there, &after, &serde_json::json!({}), &cause, |_| Ok(()))?;
            }
            Ok(())
        });
        written.await.expect("a node");
        let Hardware { serial, uuid, mac } = &self.hardware;
        self.agent.enrol(serial, uuid, &[mac]).await;
    }

    /// From now on its seed comes over the wire.
    pub async fn serves_machines(&self) {
        let places = boot::script::Places {
            public_url: "http://127.0.0.1".to_owned(),
            installer_kernel: String::new(),
            installer_initrd: String::new(),
            installer_cmdline: String::new(),
        };
        let door = Door { service: self.service.clone(), setup: BootSetup::default(), places, leases: None };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        *self.at.lock().expect("a lock") = Some(listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, boot::door::router(Arc::new(door))).await });
    }

    async fn seed(&self, token: &str) -> Result<String, Error> {
        let at = *self.at.lock().expect("a lock");
        let Some(at) = at else {
            let ordered = self.service.ordered(token).await?;
            if !ordered.is_of_a_job() {
                return Ok(String::new());
            }
            return Ok(self.service.agent_user_data(&ordered, None).await?.reveal().to_owned());
        };
        let mut stream = tokio::net::TcpStream::connect(at).await.expect("connects");
        let ask =
            format!("GET /api/v1/boot/seed/user-data HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.expect("asks");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("is answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(" 200 "), "{answer}");
        Ok(body.to_owned())
    }

    pub fn engine(&self, observer: Option<JournalObserver>) -> Engine {
        engine(&self.fleet, self.database, &self.policy, (&self.bundles, &self.starts), "one", observer)
    }

    pub async fn life(&self, observer: Option<JournalObserver>) -> Engine {
        let engine = self.engine(observer);
        engine.start().await.expect("starts");
        engine
    }

    fn reconciler(&self) -> Reconciler {
        let mut options = ReconcilerOptions::new("test");
        options.nodes = self.policy.clone();
        options.node_period = match self.database {
            Database::Memory => Duration::from_secs(15),
            Database::Sqlite | Database::Postgres => Duration::from_millis(200),
        };
        options.period = Duration::from_secs(365 * 24 * 3600);
        self.fleet.reconciler(options)
    }

    pub async fn reimage(&self) -> Result<JobId, Error> {
        let new = NewDecommission {
            node: self.node.to_string(),
            mode: "reimage".to_owned(),
            reason: "a test".to_owned(),
            ..NewDecommission::default()
        };
        Ok(match self.service.start_decommission(&admin(), new).await? {
            Begun::Job(view) => view.job.id.clone(),
            Begun::Preview { .. } => panic!("not a preview"),
        })
    }

    pub async fn act(&self, job: &JobId, action: JobAction) -> Result<JobActed, Error> {
        let act = JobAct {
            id: job.to_string(),
            action: action.to_string(),
            reason: "the test wants it".to_owned(),
            dry_run: false,
            of: JobsOf::All,
        };
        self.service.act_on_job(&admin(), act).await
    }

    /// Node and job as they are together; a pair outside the table is a failure.
    pub async fn look(&self, job: &JobId, name: &str) -> (Node, Job) {
        let (id, of) = (job.clone(), self.node.clone());
        let read = self.fleet.store.snapshot(move |tx| Ok((tx.point(&node::by_id(&of))?, tx.point(&job::by_id(&id))?)));
        let (node, job) = read.await.expect("reads");
        let (node, job) = (node.expect("a node"), job.expect("a job"));
        let pair = table::meaning(KIND, job.status, node.status);
        // what becomes of a node after its job has ended is no more its job's
        let since = job.finished_at.is_some_and(|ended| node.status_changed_at > ended);
        let at = (job.stage, &job.failure);
        assert!(pair.is_some() || since, "{name}: the node is {}, the job {} at {at:?}", node.status, job.status);
        (node, job)
    }

    pub async fn boot_node(&self) -> BootNode {
        self.service.get_boot_node(self.boot.as_str()).await.expect("a boot node")
    }

    pub async fn all_runs(&self) -> Vec<Run> {
        let read = self.fleet.store.read(|tx| run::list(tx, &run::FILTER.parse("")?, "", 100));
        read.await.expect("reads")
    }

    /// Something is lost when the next run is started.
    pub fn starts_badly(&self, fault: Fault) {
        self.starts.badly(fault);
    }

    pub fn has_started_badly(&self) -> bool {
        self.starts.hit.load(Ordering::Acquire)
    }

    /// Every installation from now on fails; or does well again.
    pub fn installs_badly(&self, badly: bool) {
        self.fails.store(badly, Ordering::Relaxed);
    }

    /// What is begun does not come to an end; or goes on.
    pub fn stalls(&self, stalls: bool) {
        self.stalls.store(stalls, Ordering::Relaxed);
    }

    pub fn no_agent_comes(&self, none: bool) {
        self.no_agent.store(none, Ordering::Relaxed);
    }

    async fn says(&self, token: &str, status: &str) {
        let report = Report {
            mac: self.hardware.mac.clone(),
            token: Some(Secret::new(token)),
            status: Some(status.to_owned()),
            error: (status == "failed").then(|| "no space left on the disk".to_owned()),
            ..Report::default()
        };
        // one whose order was called off is told so
        drop(self.service.report(report, &BootSetup::default()).await);
    }

    /// The machine: whatever it is served it boots, one step at a time.
    async fn guest_turn(&self) {
        let node = self.boot_node().await;
        let asks = BootRequest { mac: self.hardware.mac.clone(), ..BootRequest::default() };
        let Some(order) = node.order.clone() else { return };
        let at = self.installer.lock().expect("a lock").clone();
        let mine = at.filter(|(id, attempt, ..)| (id, *attempt) == (&order.id, order.attempt));
        match (order.closed.map(|(_, why)| why), mine) {
            (None, None) => {
                let Some(token) = self.service.boot(&asks, &BootSetup::default()).await.expect("an answer").token
                else {
                    return;
                };
                let token = token.reveal().to_owned();
                let Ok(seed) = self.seed(&token).await else {
                    // without its seed it installs nothing
                    return self.says(&token, "failed").await;
                };
                self.seeds.lock().expect("a lock").push(seed.clone());
                *self.runs.lock().expect("a lock") = None;
                self.says(&token, "started").await;
                *self.installer.lock().expect("a lock") = Some((order.id, order.attempt, token, seed));
            }
            (None, Some(_)) if self.stalls.load(Ordering::Relaxed) => {}
            (None, Some((.., token, _))) => {
                let status = if self.fails.load(Ordering::Relaxed) { "failed" } else { "complete" };
                self.says(&token, status).await;
            }
            (Some(Closing::Done), Some((id, _, _, seed))) => {
                if node.state == BootState::Installed && order.disk_boot_at.is_none() {
                    self.service.boot(&asks, &BootSetup::default()).await.expect("an answer");
                }
                let first = self.runs.lock().expect("a lock").replace(id.clone()) != Some(id);
                if first && !self.no_agent.load(Ordering::Relaxed) {
                    self.enrols(&seed).await;
                }
            }
            (Some(Closing::Done | Closing::Failed | Closing::Canceled | Closing::Retired), _) => {}
        }
    }

    /// What runs there reads its seed, and its agent enrols with the bundle in it.
    async fn enrols(&self, seed: &str) {
        if let Some(bundle) = bundle_in(seed) {
            self.comes_with(bundle["token"].as_str().expect("a token")).await.unwrap_or_default();
        }
    }

    async fn comes_with(&self, token: &str) -> Result<(), Error> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let Hardware { serial, uuid, mac } = &self.hardware;
        let facts = Facts {
            system_uuid: uuid.clone(),
            serial_number: serial.clone(),
            mac_addresses: vec![mac.clone()],
            ..Facts::default()
        };
        let (token, csr) = (Secret::new(token), request(&key));
        let asked = Enrolment { token, csr, facts, agent_version: "0".to_owned() };
        let enrolled = self.service.enrol_agent(asked).await?;
        self.agent.connects(enrolled.session, serial, uuid, &[mac]).await;
        Ok(())
    }

    /// Somebody brings an agent onto the machine with a bundle of their own.
    pub async fn installed_by_hand(&self) {
        let wish = NodeAct { id: self.node.to_string(), reason: "by hand".to_owned(), ..NodeAct::default() };
        let issued = self.service.rebootstrap_node(&admin(), wish).await.expect("a bundle");
        let bundle: serde_json::Value = serde_json::from_str(&issued.bundle.expect("a bundle")).expect("JSON");
        self.comes_with(bundle["token"].as_str().expect("a token")).await.expect("is let in");
        *self.runs.lock().expect("a lock") = self.boot_node().await.order.map(|order| order.id);
    }

    /// The seed that was told last, to whoever comes with it now.
    pub async fn comes_with_seed(&self, seed: &str) -> Result<(), Error> {
        let bundle = bundle_in(seed).expect("a bundle");
        self.comes_with(bundle["token"].as_str().expect("a token")).await
    }

    pub async fn turn(&self) {
        self.guest_turn().await;
        // an agent is gone with its system
        let order = self.boot_node().await.order.map(|order| order.id);
        let runs = self.runs.lock().expect("a lock").clone();
        if runs == order {
            self.agent.lives().await;
        }
        let tick = match self.database {
            Database::Memory => Duration::from_secs(2),
            Database::Sqlite | Database::Postgres => Duration::from_millis(20),
        };
        tokio::time::sleep(tick).await;
    }

    pub async fn lives_until(&self, job: &JobId, name: &str, mut is: impl FnMut(&Job) -> bool) -> (Node, Job) {
        let (mut last, mut turns) = (None, 0);
        loop {
            let (node, there) = self.look(job, name).await;
            if !there.status.is_under_way() || is(&there) {
                return (node, there);
            }
            let at = (there.status, there.stage, there.attempt);
            if last != Some(at) {
                (last, turns) = (Some(at), 0);
            }
            turns += 1;
            assert!(turns < TURNS_MAX, "{name}: stuck: {there:#?} {:#?}", self.all_runs().await);
            self.turn().await;
        }
    }

    pub async fn rests(&self, job: &JobId, name: &str) -> (Node, Job) {
        self.lives_until(job, name, |_| false).await
    }

    pub async fn completes(&self, job: &JobId, name: &str) -> Job {
        let (node, there) = self.rests(job, name).await;
        assert_eq!((there.status, node.status), (JobStatus::Completed, NodeStatus::Active), "{name}: {there:#?}");
        there
    }

    pub async fn fails_with(&self, job: &JobId, name: &str, code: &str) -> (Node, Job) {
        let (node, there) = self.rests(job, name).await;
        assert_eq!(there.failure.as_ref().map(|f| f.code.as_str()), Some(code), "{name}: {there:#?}");
        (node, there)
    }

    /// Takes what is recommended until it has ended.
    pub async fn ends(&self, job: &JobId, name: &str) -> (Node, Job) {
        self.agent.behaves();
        let mut taken = Vec::new();
        for _ in 0..8 {
            let (node, there) = self.rests(job, name).await;
            rows_hold(name, &self.fleet.store, job).await;
            if there.status.is_terminal() {
                return (node, there);
            }
            let (action, why) = recommend(&there, node.status);
            let action = action.unwrap_or_else(|| panic!("{name}: nothing is recommended ({why}): {there:#?}"));
            taken.push(format!("{action} at {:?} after {:?}", there.stage, there.failure));
            self.act(job, action)
                .await
                .unwrap_or_else(|e| panic!("{name}: {action} is recommended and refused: {e:?}"));
        }
        panic!("{name}: what is recommended leads nowhere: {taken:#?}");
    }

    /// When it has ended: no run goes on, no order is open, no bundle is out, nothing was done twice, and no run is another's.
    pub async fn audited(&self, job: &JobId, name: &str) -> Vec<Run> {
        let (_, there) = self.look(job, name).await;
        rows_hold(name, &self.fleet.store, job).await;
        assert!(there.status.is_terminal(), "{name}: {}", there.status);
        self.agent.nothing_twice().unwrap_or_else(|e| panic!("{name}: {e}"));
        let runs = self.all_runs().await;
        let open: Vec<&Run> = runs.iter().filter(|run| !run.phase.is_terminal()).collect();
        assert!(open.is_empty(), "{name}: {} and a run goes on: {open:#?}", there.status);
        let prefix = format!("{job}/");
        assert!(runs.iter().all(|run| run.request_id.starts_with(&prefix)), "{name}: {runs:#?}");
        assert!(self.boot_node().await.open_order().is_none(), "{name}: an order is open");
        let of = self.node.clone();
        let tokens = self.fleet.store.read(move |tx| store::agent::tokens_of(tx, &of)).await.expect("reads");
        let out: Vec<_> = tokens.iter().filter(|t| !t.withdrawn && t.key_sha256.is_none()).collect();
        assert!(out.is_empty(), "{name}: {} and a bundle is out: {out:?}", there.status);
        runs
    }

    pub async fn over(self, engine: Engine) {
        engine.stop().await;
        let sweeps = self.sweeps.lock().expect("a lock").take();
        if let Some(sweeps) = sweeps {
            sweeps.stop().await;
        }
        self.fleet.store.close();
    }

    /// Past the job, by the engine's own doors.
    pub async fn terminates(&self, job: &JobId) {
        let (engine, there) = (self.door.clone(), self.look(job, "terminated").await.1);
        let id = there.execution_id;
        let caller = Caller::new("tester");
        let written = self.fleet.store.write(&caller, self.node.as_str(), move |tx| {
            match store::execution::get_for_update(tx, &id)? {
                Some(e) if !e.status.is_terminal() => engine.terminate(tx, &e, "mallory", "from outside"),
                Some(_) | None => Ok(()),
            }
        });
        written.await.expect("it is ended");
    }
}

fn engine(
    fleet: &Fleet,
    database: Database,
    policy: &NodePolicy,
    (bundles, starts): (&Arc<LateBundles>, &Arc<Starts>),
    instance: &str,
    observer: Option<JournalObserver>,
) -> Engine {
    let hands = Hands { bundles: bundles.clone(), runs: starts.clone(), ..fleet.hands() };
    let workflows: Vec<Arc<dyn engine::Workflow>> =
        vec![Arc::new(JobWorkflow::new(policy.clone(), hands)), Arc::new(RunWorkflow::new(fleet.providers()))];
    let options = EngineOptions::new(instance);
    let options = match database {
        Database::Memory => EngineOptions { lease: Duration::from_secs(60), poll: Duration::from_secs(5), ..options },
        Database::Sqlite | Database::Postgres => EngineOptions {
            lease: Duration::from_secs(8),
            call_timeout: Duration::from_secs(2),
            poll: Duration::from_millis(50),
            ..options
        },
    };
    Engine::new(fleet.store.clone(), options, workflows, observer)
}

/// The bundle that cloud-init writes into a file.
pub fn bundle_in(seed: &str) -> Option<serde_json::Value> {
    let base64 = base64::engine::general_purpose::STANDARD;
    // where the workflow has words of its own, ours are the second part
    let text = match seed.split("Merge-Type:").nth(1) {
        Some(part) => {
            let body = part.split_once("\n\n")?.1.split("\n--").next()?;
            String::from_utf8(base64.decode(body.replace('\n', "")).ok()?).ok()?
        }
        None => seed.to_owned(),
    };
    let after = text.split("millwright-bundle.json").nth(1)?;
    let content = after.lines().find_map(|line| line.trim().strip_prefix("content: "))?;
    let encoded: String = serde_json::from_str(content).ok()?;
    serde_json::from_slice(&base64.decode(encoded).ok()?).ok()
}
