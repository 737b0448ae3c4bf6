//! A site with its MAAS, a server that onboards from it, and agents that come with what cloud-init was told.

use base64::Engine as _;
use domain::job::{Job, JobStatus};
use domain::job_action::JobAction;
use domain::node::{Node, NodeStatus};
use domain::site::{Profile, Site, SitePolicy, SiteState};
use domain::{Error, JobId, NodeId, Secret, Timestamp};
use engine::{Engine, EngineOptions};
use maas::{Clients, Options};
use reconcile::{Reconciler, ReconcilerOptions, SiteReach};
use service::agents::{Enrolment, Facts, LateBundles};
use service::{
    Begun, JobAct, JobActed, JobsOf, MaasWish, NewCredential, NewDecommission, NewOnboarding, NodeAct, PowerWish,
    Service,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Caller, execution, job, node};
use testkit::agent_client::request;
use testkit::fleet::{Database, Fleet, admin, quick};
use testkit::maas_sim::status::DEPLOYED;
use testkit::maas_sim::{FirstBoot, MaasSim, Pace, Racked, Trouble, auditor};
use testkit::pretend_agent::PretendAgent;
use workflow::job::Hands;
use workflow::{JobWorkflow, NodePolicy};

pub const SITE: &str = "ams";
pub const KEY: &str = "ams-key";
pub const BMC: &str = "bmc";

pub struct Plant {
    pub fleet: Fleet,
    pub sim: MaasSim,
    pub service: Service,
    pub door: Engine,
    pub policy: NodePolicy,
    pub clients: Arc<Clients>,
    bundles: Arc<LateBundles>,
    boots: Arc<Mutex<Vec<FirstBoot>>>,
    /// With the machine that each runs on.
    agents: Mutex<BTreeMap<NodeId, (Arc<PretendAgent>, String)>>,
    turns: AtomicU64,
    no_agent: AtomicBool,
    mute: AtomicBool,
    held: AtomicBool,
}

pub fn profile(name: &str) -> Profile {
    Profile {
        agent_url: "https://images.example/millwright-agent".to_owned(),
        agent_sha256: "ab".repeat(32),
        ..testkit::sites::profile(name)
    }
}

pub fn mac(number: u32) -> String {
    format!("52:54:00:{:02x}:{:02x}:{:02x}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}

pub fn bmc_address(number: u32) -> String {
    format!("10.9.{}.{}", number >> 8 & 0xff, number & 0xff)
}

/// A site that is away is asked again soon: these waits are real.
fn impatient() -> Options {
    let ms = Duration::from_millis;
    Options { rest: ms(100), rest_max: ms(200), pause: ms(20), ..Options::default() }
}

impl Plant {
    pub async fn new(database: Database) -> Self {
        Self::with(database, |_| {}).await
    }

    /// With a site that is changed first.
    pub async fn with(database: Database, change: impl FnOnce(&mut Site)) -> Self {
        Self::paced(database, Pace::Instant, change).await
    }

    /// With a MAAS in which things take their time: they go on turn by turn, unless they are held.
    pub async fn paced(database: Database, pace: Pace, change: impl FnOnce(&mut Site)) -> Self {
        crate::log_if_asked();
        let fleet = Fleet::new(database, 17);
        let sim = MaasSim::start(testkit::maas_sim::Options { pace, ..testkit::maas_sim::Options::default() }).await;
        let boots: Arc<Mutex<Vec<FirstBoot>>> = Arc::default();
        let queue = boots.clone();
        sim.on_first_boot(move |boot| queue.lock().expect("a lock").push(boot));
        let mut policy = NodePolicy { provider: "sim".to_owned(), ..NodePolicy::default() };
        // slow enough that a busy machine leaves no gap in them
        policy.heartbeat.interval = Duration::from_millis(200);
        let (clients, bundles) = (Arc::new(Clients::new(impatient())), Arc::<LateBundles>::default());
        let engine = engine(&fleet, &policy, &clients, &bundles, "maas", None);
        let service = fleet.service(&engine).await;
        service.reaches_sites_by(clients.clone());
        service.keeps_nodes_by(policy.clone());
        bundles.come_from(&service);
        let call = admin();
        let key = NewCredential {
            name: KEY.to_owned(),
            kind: "maas".to_owned(),
            api_key: Secret::new(sim.key()),
            ..NewCredential::default()
        };
        service.set_credential(&call, key).await.expect("the key is kept");
        let login = NewCredential {
            name: BMC.to_owned(),
            kind: "bmc".to_owned(),
            username: "u".to_owned(),
            password: Secret::new("p"),
            ..NewCredential::default()
        };
        service.set_credential(&call, login).await.expect("the login is kept");
        let mut site = Site {
            name: SITE.to_owned(),
            state: SiteState::Present,
            version: 0,
            url: sim.url(),
            ca_pem: String::new(),
            credentials_ref: KEY.to_owned(),
            policy: SitePolicy::default(),
            profiles: vec![profile("gpu")],
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
        };
        change(&mut site);
        service.create_site(&call, site).await.expect("the site is made");
        let (agents, turns) = (Mutex::default(), AtomicU64::new(0));
        let (no_agent, mute, held) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        Self { fleet, sim, service, door: engine, policy, clients, bundles, boots, agents, turns, no_agent, mute, held }
    }

    pub async fn start(&self) {
        self.door.start().await.expect("the engine starts");
    }

    /// Another life of the engine, which goes on with what the one before it had.
    pub async fn life(&self, observer: Option<engine::JournalObserver>) -> Engine {
        let engine = self.engine(observer);
        engine.start().await.expect("the engine starts");
        engine
    }

    /// One that gives up a call soon.
    pub async fn hasty_life(&self) -> Engine {
        let call_timeout = Duration::from_millis(400);
        let options = EngineOptions { lease: Duration::from_secs(16), call_timeout, ..quick("maas") };
        let engine = engine_with(&self.fleet, &self.policy, &self.clients, &self.bundles, options, None);
        engine.start().await.expect("the engine starts");
        engine
    }

    pub fn engine(&self, observer: Option<engine::JournalObserver>) -> Engine {
        self.engine_named("maas", observer)
    }

    pub fn engine_named(&self, instance: &str, observer: Option<engine::JournalObserver>) -> Engine {
        engine(&self.fleet, &self.policy, &self.clients, &self.bundles, instance, observer)
    }

    /// Looks after nodes from now on.
    pub fn reconciler(&self) -> Reconciler {
        let mut options = ReconcilerOptions::new("test");
        options.nodes = self.policy.clone();
        options.node_period = Duration::from_millis(200);
        options.period = Duration::from_secs(365 * 24 * 3600);
        self.fleet.reconciler(options)
    }

    /// Looks at the site from now on, at its own pace.
    pub fn observer(&self) -> Reconciler {
        let mut options = ReconcilerOptions::new("observer");
        options.nodes = self.policy.clone();
        options.period = Duration::from_secs(365 * 24 * 3600);
        let keyring = Arc::new(testkit::fleet::vault(&self.fleet.store));
        options.sites = Some(SiteReach { keyring, clients: self.clients.clone() });
        self.fleet.reconciler(options)
    }

    pub fn rack(&self, number: u32) {
        self.sim.rack(Racked::new(&mac(number), &bmc_address(number)));
    }

    pub fn wish(number: u32) -> MaasWish {
        let power = PowerWish {
            kind: "redfish".to_owned(),
            address: bmc_address(number),
            credentials_ref: BMC.to_owned(),
            parameters: BTreeMap::new(),
        };
        MaasWish { site: SITE.to_owned(), macs: vec![mac(number)], power: Some(power), ..MaasWish::default() }
    }

    pub async fn onboard(&self, wish: MaasWish) -> (NodeId, JobId) {
        let call = admin();
        let new = NewOnboarding { wish, reason: "a test".to_owned(), ..NewOnboarding::default() };
        let begun = self.service.onboard_node(&call, new).await.expect("the onboarding begins");
        (begun.node.expect("a node").node.id, begun.job.expect("a job").job.id)
    }

    pub async fn decommission(&self, node: &NodeId, mode: &str) -> JobId {
        let new = NewDecommission {
            node: node.to_string(),
            mode: mode.to_owned(),
            reason: "a test".to_owned(),
            ..NewDecommission::default()
        };
        match self.service.start_decommission(&admin(), new).await.expect("it begins") {
            Begun::Job(view) => view.job.id.clone(),
            Begun::Preview { .. } => panic!("not a preview"),
        }
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

    pub async fn node(&self, id: &NodeId) -> Node {
        let id = id.clone();
        self.fleet.store.read(move |tx| tx.point(&node::by_id(&id))).await.expect("reads").expect("a node")
    }

    pub async fn job(&self, id: &JobId) -> Job {
        let id = id.clone();
        self.fleet.store.read(move |tx| tx.point(&job::by_id(&id))).await.expect("reads").expect("a job")
    }

    /// One turn of everybody's life: machines that have booted, their agents, hardware that tells of itself.
    pub async fn turn(&self) {
        let boots: Vec<FirstBoot> = match self.no_agent.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => std::mem::take(&mut *self.boots.lock().expect("a lock")),
        };
        for boot in boots {
            self.boots(&boot).await;
        }
        let agents: Vec<(Arc<PretendAgent>, String)> = self.agents.lock().expect("a lock").values().cloned().collect();
        for (agent, machine) in agents {
            // it is gone with its system
            if self.sim.machine(&machine).is_some_and(|machine| machine.status == DEPLOYED) {
                agent.lives().await;
            }
        }
        if self.turns.fetch_add(1, Ordering::Relaxed) % 20 == 19 && !self.mute.load(Ordering::Relaxed) {
            for machine in self.sim.machines().iter().filter(|machine| machine.status == DEPLOYED) {
                self.sim.sync(&machine.system_id);
            }
        }
        if !self.held.load(Ordering::Relaxed) {
            for machine in self.sim.machines() {
                self.sim.step(&machine.system_id);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// What runs there reads its user-data, and its agent enrols with the bundle in it.
    async fn boots(&self, boot: &FirstBoot) {
        let Some(bundle) = bundle_in(&boot.user_data) else { return };
        let token = bundle.get("token").and_then(serde_json::Value::as_str).expect("a token");
        self.enrols(boot, token).await;
    }

    async fn enrols(&self, boot: &FirstBoot, token: &str) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let facts = Facts {
            system_uuid: format!("4d570000-0000-4000-8000-{}", boot.macs[0].replace(':', "")),
            serial_number: boot.serial.clone(),
            mac_addresses: boot.macs.clone(),
            hostname: boot.hostname.clone(),
            ..Facts::default()
        };
        let asked = Enrolment {
            token: Secret::new(token),
            csr: request(&key),
            facts: facts.clone(),
            agent_version: "0".to_owned(),
        };
        // one whose bundle was withdrawn meanwhile is not let in
        let Ok(enrolled) = self.service.enrol_agent(asked).await else { return };
        let id = enrolled.node_id.clone();
        let agent = {
            let mut agents = self.agents.lock().expect("a lock");
            let fresh = || Arc::new(PretendAgent::new(&self.fleet.store, &id, self.policy.heartbeat));
            let there = agents.entry(id.clone()).or_insert_with(|| (fresh(), String::new()));
            there.1.clone_from(&boot.system_id);
            there.0.clone()
        };
        agent.takes(Duration::ZERO);
        let macs: Vec<&str> = facts.mac_addresses.iter().map(String::as_str).collect();
        agent.connects(enrolled.session, &facts.serial_number, &facts.system_uuid, &macs).await;
    }

    /// Somebody brings the agent onto a machine with a bundle of their own.
    pub async fn installed_by_hand(&self, node: &NodeId, system_id: &str) {
        let wish = NodeAct { id: node.to_string(), reason: "installed by hand".to_owned(), ..NodeAct::default() };
        let issued = self.service.rebootstrap_node(&admin(), wish).await.expect("a bundle");
        let bundle: serde_json::Value = serde_json::from_str(&issued.bundle.expect("a bundle")).expect("JSON");
        let there = self.sim.machine(system_id).expect("a machine");
        let boot = FirstBoot {
            system_id: there.system_id,
            hostname: there.hostname,
            macs: there.macs,
            serial: there.serial,
            addresses: there.addresses,
            user_data: Vec::new(),
        };
        self.enrols(&boot, bundle["token"].as_str().expect("a token")).await;
    }

    /// What is deployed brings no agent; or those that were kept back come now.
    pub fn no_agent_comes(&self, none: bool) {
        self.no_agent.store(none, Ordering::Relaxed);
    }

    /// Nothing moves upstream until it is let go.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Nothing that is deployed from now on tells of its hardware.
    pub fn hardware_is_mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
        if mute {
            self.sim.trouble(&mac(1), Trouble::SyncNeverMoves, 1);
        }
    }

    pub async fn edit_site(&self, change: impl FnOnce(&mut Site)) {
        let mut site = self.service.get_site(SITE).await.expect("a site").site;
        change(&mut site);
        self.service.update_site(&admin(), site).await.expect("the site is changed");
    }

    pub async fn set_key(&self, key: &str) {
        let key = NewCredential {
            name: KEY.to_owned(),
            kind: "maas".to_owned(),
            api_key: Secret::new(key),
            ..NewCredential::default()
        };
        self.service.set_credential(&admin(), key).await.expect("the key is kept");
    }

    /// Past the job, by the engine's own doors.
    pub async fn ends_execution(&self, job: &JobId, terminate: bool) {
        let (engine, there) = (self.door.clone(), self.job(job).await);
        let (id, caller) = (there.execution_id, Caller::new("tester"));
        let written =
            self.fleet.store.write(&caller, there.node_id.as_str(), move |tx| {
                match execution::get_for_update(tx, &id)? {
                    Some(e) if e.status.is_terminal() => Ok(()),
                    Some(e) if terminate => engine.terminate(tx, &e, "mallory", "from outside"),
                    Some(e) => engine.request_cancel(tx, &e, "mallory", "from outside"),
                    None => Ok(()),
                }
            });
        written.await.expect("it is ended");
    }

    /// Until whoever observes the site has seen that machine.
    pub async fn seen(&self, system_id: &str) {
        let at = domain::node::MaasRef { site: SITE.to_owned(), system_id: system_id.to_owned() };
        for _ in 0..3_000 {
            let wanted = at.clone();
            let read = self.fleet.store.read(move |tx| tx.point(&store::maas_machine::by_ref(&wanted)));
            if read.await.expect("reads").is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{system_id} was never seen");
    }

    pub async fn open_findings(&self, node: &NodeId) -> Vec<domain::finding::Finding> {
        let id = node.to_string();
        self.fleet.store.read(move |tx| store::finding::unresolved(tx, &id)).await.expect("reads")
    }

    /// Until the node is so; everybody lives meanwhile.
    pub async fn is_soon(&self, node: &NodeId, status: NodeStatus, name: &str) {
        let mut turns = 0;
        while !self.is(node, status).await {
            turns += 1;
            assert!(turns < 3_000, "{name}: never {status}");
            self.turn().await;
        }
    }

    /// Until nothing of the job goes on by itself.
    pub async fn rests(&self, id: &JobId) -> Job {
        let mut last = None;
        let mut turns = 0;
        loop {
            let job = self.job(id).await;
            if !job.status.is_under_way() {
                return job;
            }
            let at = (job.status, job.stage, job.attempt);
            if last != Some(at) {
                last = Some(at);
                turns = 0;
            }
            turns += 1;
            assert!(turns < 1_500, "{} is stuck at {at:?}: {:?} {}", job.id, job.failure, self.waits_for(&job).await);
            self.turn().await;
        }
    }

    pub async fn waits_for(&self, job: &Job) -> String {
        let id = job.execution_id.clone();
        let there = self.fleet.store.read(move |tx| store::execution::get(tx, &id)).await.expect("reads");
        there.map_or(String::new(), |e| e.waiting_for)
    }

    pub fn agents_did_nothing_twice(&self, name: &str) {
        for (agent, _) in self.agents.lock().expect("a lock").values() {
            agent.nothing_twice().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// What an independent reader of MAAS's own log has to say.
    pub async fn audited(&self) {
        let ours = auditor::Ours::account(self.sim.account());
        let nodes = self.fleet.store.read(|tx| node::of_site(tx, SITE, "", 10_000)).await.expect("reads");
        let claimed: BTreeSet<String> =
            nodes.iter().filter_map(|n| n.maas.as_ref()).map(|at| at.system_id.clone()).collect();
        let log = self.sim.log();
        let mut offences = auditor::everything(&log, &ours, &claimed);
        offences.extend(auditor::unprepared(&log, &ours));
        assert!(offences.is_empty(), "{offences:#?}");
    }

    pub async fn is(&self, id: &NodeId, status: NodeStatus) -> bool {
        self.node(id).await.status == status
    }

    pub async fn onboarded(&self, number: u32) -> NodeId {
        self.rack(number);
        let (id, begun) = self.onboard(Self::wish(number)).await;
        let ended = self.rests(&begun).await;
        assert_eq!(ended.status, JobStatus::Completed, "{:?}", ended.failure);
        id
    }
}

pub fn engine(
    fleet: &Fleet,
    policy: &NodePolicy,
    clients: &Arc<Clients>,
    bundles: &Arc<LateBundles>,
    instance: &str,
    observer: Option<engine::JournalObserver>,
) -> Engine {
    // as long as a busy machine needs, or calls are given up that would have been answered
    let options =
        EngineOptions { lease: Duration::from_secs(16), call_timeout: Duration::from_secs(4), ..quick(instance) };
    engine_with(fleet, policy, clients, bundles, options, observer)
}

fn engine_with(
    fleet: &Fleet,
    policy: &NodePolicy,
    clients: &Arc<Clients>,
    bundles: &Arc<LateBundles>,
    options: EngineOptions,
    observer: Option<engine::JournalObserver>,
) -> Engine {
    let hands = Hands { maas: clients.clone(), bundles: bundles.clone(), ..fleet.hands() };
    let workflows: Vec<Arc<dyn engine::Workflow>> = vec![Arc::new(JobWorkflow::new(policy.clone(), hands))];
    Engine::new(fleet.store.clone(), options, workflows, observer)
}

/// The bundle that cloud-init writes into a file.
fn bundle_in(user_data: &[u8]) -> Option<serde_json::Value> {
    let text = std::str::from_utf8(user_data).ok()?;
    let after = text.split("millwright-bundle.json").nth(1)?;
    let content = after.lines().find_map(|line| line.trim().strip_prefix("content: "))?;
    let encoded: String = serde_json::from_str(content).ok()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    serde_json::from_slice(&bytes).ok()
}
