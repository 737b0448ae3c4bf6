//! One REPAVE with join over the real adapters, by the real engine: undisturbed, then with the engine dropped after
//! every journal entry and after every act that it has not recorded yet, and taken up by the next one with a provider
//! that remembers nothing; then with the answer of every act lost once. Every point is named and counted; one that is
//! declared and never hit fails.
//!
//! The verdict comes from the counterparts: the install script ran once (a file on the host), the BMC was told to reset
//! once, `kubeadm join` was called once, the node is there.
//!
//! `MILLWRIGHT_CRASH_POINTS=all` also drops it just before every act, and crashes once more inside every recovery.

use crate::ground::{CLUSTER, Ground, SCRIPT_IMAGE, cluster, options};
use crate::suite_provider::member_to_be;
use async_trait::async_trait;
use datacenter::Datacenter;
use domain::machine::MachineSpec;
use domain::plan::{BootMode, Plan, RebootMode, Step, StepKind};
use domain::run::RunPhase;
use engine::{Engine, EngineOptions, JournalObserver};
use futures::StreamExt as _;
use provider::{
    Ack, BootControl, ClusterControl, Command, Drain, Exec, ExecProgress, ImageControl, Inspect, Joining, Membership,
    Operation, PowerControl, Provider, ProviderError, ProviderResult, Providers, Target,
};
use service::{CallerLimits, NewMachine, Service, StartRun};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, start, vault};
use tokio_util::sync::CancellationToken;

const PLAN: &str = "repave-join";
const PROVIDER: &str = "datacenter";

/// What goes wrong in one play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The engine is gone after so many journal entries.
    CrashAfterEntry(usize),
    /// It is gone just before, or just after the act of this number.
    CrashBeforeAct(usize),
    CrashAfterAct(usize),
    /// The answer of the act of this number is lost.
    LoseAnswer(usize),
}

/// Watches one life of the engine, and strikes.
struct Tap {
    fault: Fault,
    engine: OnceLock<Engine>,
    crashed: CancellationToken,
    struck: AtomicBool,
    entries: Mutex<Vec<String>>,
    acts: Mutex<Vec<String>>,
}

fn names(list: &Mutex<Vec<String>>) -> Vec<String> {
    list.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn add(list: &Mutex<Vec<String>>, name: String) -> usize {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.push(name);
    list.len()
}

impl Tap {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            fault,
            engine: OnceLock::new(),
            crashed: CancellationToken::new(),
            struck: AtomicBool::new(false),
            entries: Mutex::default(),
            acts: Mutex::default(),
        })
    }

    fn observer(self: &Arc<Self>) -> JournalObserver {
        let tap = self.clone();
        Arc::new(move |_, entry| {
            if Fault::CrashAfterEntry(add(&tap.entries, entry.to_owned())) == tap.fault {
                tap.crash();
            }
        })
    }

    fn crash(&self) {
        self.struck.store(true, Ordering::Release);
        self.engine.get().expect("an engine").kill();
        self.crashed.cancel();
    }

    async fn act(
        &self,
        name: &str,
        op: &Operation,
        call: impl Future<Output = ProviderResult<Ack>>,
    ) -> ProviderResult<Ack> {
        let number = add(&self.acts, format!("{name} of {}", op.stage));
        if self.fault == Fault::CrashBeforeAct(number) {
            self.crash();
            return std::future::pending().await;
        }
        let answer = call.await;
        if self.fault == Fault::CrashAfterAct(number) {
            self.crash();
            return std::future::pending().await;
        }
        if self.fault == Fault::LoseAnswer(number) {
            self.struck.store(true, Ordering::Release);
            assert!(answer.is_ok(), "{name}: {answer:?}");
            return Err(ProviderError::unknown("injected: the answer was lost"));
        }
        answer
    }
}

/// The provider with a tap on its acts.
struct Tapped {
    dc: Datacenter,
    tap: Arc<Tap>,
}

impl Provider for Tapped {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Provider::inspect(&self.dc)
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self)
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        Some(self)
    }
    fn image(&self) -> Option<&dyn ImageControl> {
        Some(self)
    }
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        Some(self)
    }
    fn lacks(&self, spec: &MachineSpec, step: &StepKind) -> Option<String> {
        self.dc.lacks(spec, step)
    }
}

#[async_trait]
impl PowerControl for Tapped {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("reset", op, self.dc.reset(target, mode, op)).await
    }
    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("power_off", op, self.dc.power_off(target, op)).await
    }
}

#[async_trait]
impl BootControl for Tapped {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("set_boot", op, BootControl::set_boot(&self.dc, target, mode, persistent, op)).await
    }
    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("clear_boot", op, self.dc.clear_boot(target, op)).await
    }
}

#[async_trait]
impl ImageControl for Tapped {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("install", op, self.dc.install(target, image, user_data_ref, op)).await
    }
    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("abort_install", op, self.dc.abort_install(target, op)).await
    }
}

#[async_trait]
impl Exec for Tapped {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("start", op, self.dc.start(target, command, op)).await
    }
    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        self.dc.poll(target, op, offset).await
    }
    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("kill", op, self.dc.kill(target, op)).await
    }
}

#[async_trait]
impl ClusterControl for Tapped {
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        self.tap.act("join", op, self.dc.join(target, cluster_ref, op)).await
    }
    async fn joining(&self, target: &Target, op: &Operation) -> ProviderResult<Joining> {
        self.dc.joining(target, op).await
    }
    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.dc.membership(target, cluster_ref).await
    }
    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.dc.drain_state(target, cluster_ref).await
    }
}

fn plan() -> Plan {
    let step = |name: &str, kind| Step { name: name.into(), timeout_seconds: Some(120), max_retries: None, kind };
    let repave = StepKind::Repave { image: SCRIPT_IMAGE.into(), user_data_ref: String::new() };
    Plan {
        id: PLAN.into(),
        display_name: String::new(),
        steps: vec![
            step("set-netboot", StepKind::Netboot { mode: BootMode::Pxe, persistent: false }),
            step("repave", repave),
            step("reboot", StepKind::Reboot { mode: RebootMode::Bmc }),
            step("join-cluster", StepKind::Join { cluster_ref: CLUSTER.into() }),
        ],
    }
}

/// Long enough for a busy machine, and waited out after every crash in the middle of an act.
const CALL: Duration = Duration::from_secs(5);

fn engine_options() -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(20),
        call_timeout: CALL,
        poll: Duration::from_millis(50),
        ..EngineOptions::new("crash-1")
    }
}

fn provider_options() -> datacenter::Options {
    datacenter::Options { call_timeout: CALL * 8 / 10, ..options() }
}

/// What a play showed.
struct Played {
    entries: Vec<String>,
    acts: Vec<String>,
}

/// `again`: what goes wrong in the life after the first.
async fn play(fault: Fault, again: Fault, name: &str) -> Played {
    let g = member_to_be(provider_options()).await;
    let fleet = Fleet::new(Database::Memory, 1);
    let tap = Tap::new(fault);
    let first = life(&g, &fleet, &tap);
    let providers = Providers::default().with(PROVIDER, Arc::new(g.dc.clone()));
    let service = Service::with_vault(
        fleet.store.clone(),
        first.clone(),
        providers,
        CallerLimits::default(),
        vault(&fleet.store),
    );
    let service = service.await.expect("the service starts");
    let id = g.target.machine_id.to_string();
    let mut spec = g.target.spec.clone();
    (spec.provider, spec.target_cluster_ref) = (PROVIDER.into(), CLUSTER.into());
    crate::ground::known(&service, &["bmc", "ssh"]).await;
    let machine = NewMachine { id: id.clone(), spec, ..NewMachine::default() };
    service.register_machine(&admin(), machine).await.expect("registers");
    service.create_plan(&admin(), plan(), "api").await.expect("a plan");
    let request = StartRun { plan_id: PLAN.into(), ..start(&id, "REPAVE", "request-1") };
    let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
    first.start().await.expect("an engine starts");
    let mut engine = first;
    let begun = tokio::time::Instant::now();
    let mut lives = vec![tap];
    loop {
        let now = lives.last().expect("a life").clone();
        if now.crashed.is_cancelled() {
            engine.ended().await;
            // another process: it knows what is durable, and nothing else
            let next = Tap::new(if lives.len() == 1 { again } else { Fault::Nothing });
            engine = life(&g, &fleet, &next);
            engine.start().await.expect("an engine starts");
            lives.push(next);
            continue;
        }
        let seen = service.get_run(&admin(), &run).await.expect("reads");
        // the end is told just before a crash after it
        if seen.run.phase.is_terminal()
            && (now.struck.load(Ordering::Acquire) || now.fault == Fault::Nothing || lives.len() > 1)
        {
            assert_eq!(seen.run.phase, RunPhase::Succeeded, "{name}: {}", seen.why);
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "{name}: no end: {} {}", seen.run.phase, seen.why);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    engine.stop().await;
    assert_eq!(lives[0].struck.load(Ordering::Acquire), fault != Fault::Nothing, "{name}: the point was hit");
    judge(&g, name);
    fleet.store.close();
    Played { entries: names(&lives[0].entries), acts: lives.iter().flat_map(|tap| names(&tap.acts)).collect() }
}

fn life(g: &Ground, fleet: &Fleet, tap: &Arc<Tap>) -> Engine {
    let dc = Datacenter::new(provider_options(), g.keyring.clone());
    let providers = Providers::default().with(PROVIDER, Arc::new(Tapped { dc, tap: tap.clone() }));
    let engine = fleet.engine_with(engine_options(), providers, Some(tap.observer()));
    assert!(tap.engine.set(engine.clone()).is_ok(), "a tap is for one life");
    engine
}

/// By the counterparts' own records.
fn judge(g: &Ground, name: &str) {
    assert_eq!(g.installs(), 1, "{name}: the script ran once");
    assert_eq!(g.resets(), ["GracefulRestart"], "{name}: one reset");
    assert_eq!(g.boots_from(), ["Pxe"], "{name}: and it booted from where it was told to");
    let log = std::fs::read_to_string(g.host().programs().join("kubeadm.log")).expect("a log");
    assert_eq!(log.matches("args: join").count(), 1, "{name}: {log}");
    let node = format!("/api/v1/nodes/{}", g.target.machine_id);
    let (status, node) = cluster().admin().call("GET", &node, None);
    assert_eq!(status, 200, "{name}: {node}");
    assert_eq!(node["status"]["nodeInfo"]["systemUUID"], g.target.spec.system_uuid.as_str(), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repave_over_real_adapters_survives_every_crash_and_every_lost_answer() {
    let undisturbed = play(Fault::Nothing, Fault::Nothing, "undisturbed").await;
    assert_eq!(
        undisturbed.acts,
        ["set_boot of set-netboot", "install of repave", "reset of reboot", "join of join-cluster"],
        "nothing more, nothing less"
    );
    let all = std::env::var("MILLWRIGHT_CRASH_POINTS").is_ok_and(|v| v == "all");
    let mut points: Vec<(Fault, Fault, String)> = Vec::new();
    for (at, entry) in (1..).zip(&undisturbed.entries) {
        points.push((Fault::CrashAfterEntry(at), Fault::Nothing, format!("crash after entry {at} ({entry})")));
        if all {
            let name = format!("crash after entry {at} ({entry}), and after the first entry of the next life");
            points.push((Fault::CrashAfterEntry(at), Fault::CrashAfterEntry(1), name));
        }
    }
    for (at, act) in (1..).zip(&undisturbed.acts) {
        points.push((Fault::LoseAnswer(at), Fault::Nothing, format!("the answer of act {at} ({act}) lost")));
        points.push((Fault::CrashAfterAct(at), Fault::Nothing, format!("crash after act {at} ({act})")));
        if all {
            points.push((Fault::CrashBeforeAct(at), Fault::Nothing, format!("crash before act {at} ({act})")));
        }
    }
    let declared = points.len();
    let played = futures::stream::iter(points).map(|(fault, again, name)| async move {
        let played = play(fault, again, &name).await;
        println!("{name}: {} acts in all", played.acts.len());
    });
    let hit = played.buffer_unordered(4).count().await;
    println!(
        "{hit} of {declared} points, of {} entries and {} acts",
        undisturbed.entries.len(),
        undisturbed.acts.len()
    );
    assert_eq!(hit, declared);
    assert!(declared >= 18, "there is something to disturb: {:?}", undisturbed.entries);
}
