//! What holds an act back although the machine is clear: the brake, and a call that a lost server may have sent. And
//! what keeps a server from being taken for lost.

use crate::{start_command, until_ended};
use domain::plan::{BootMode, Plan, RebootMode, Step, StepKind};
use domain::run::RunPhase;
use engine::{Engine, EngineOptions};
use futures::future::BoxFuture;
use provider::{
    Ack, BootControl, Command, Exec, ExecProgress, ImageControl, Inspect, Operation, PowerControl, Provider,
    ProviderResult, Providers, Target,
};
use service::{Service, StartRun};
use sim::SimFleet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::session;
use testkit::fleet::{Database, Fleet, admin, eventually, labelled, quick, start};

/// A host that is looked at in the moment before somebody pulls the brake.
struct BrakedHost {
    sim: Arc<SimFleet>,
    service: OnceLock<Service>,
    braked: AtomicBool,
}

impl Provider for BrakedHost {
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Exec for BrakedHost {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        self.sim.start(target, command, op).await
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        let seen = self.sim.poll(target, op, offset).await;
        if !self.braked.swap(true, Ordering::SeqCst) {
            self.service.get().expect("set").freeze(&admin(), "power work").await.expect("freezes");
        }
        seen
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.sim.kill(target, op).await
    }
}

/// The stage has been entered and the host was found clear; but nothing is sent once the brake is on.
#[tokio::test(start_paused = true)]
async fn the_brake_holds_an_act_that_was_about_to_be_sent() {
    let fleet = Fleet::new(Database::Memory, 1);
    let sim = fleet.sim.clone();
    let host = Arc::new(BrakedHost { sim, service: OnceLock::new(), braked: AtomicBool::new(false) });
    let engine = fleet.engine_with(quick("one"), Providers::default().with("sim", host.clone()), None);
    let service = fleet.service(&engine).await;
    host.service.set(service.clone()).ok().expect("set once");
    engine.start().await.expect("starts");
    let run = start_command(&service).await;
    let starts = || fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "exec_started").count();
    eventually("the brake is on", || async { host.braked.load(Ordering::SeqCst).then_some(()) }).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(starts(), 0);
    service.unfreeze(&admin()).await.expect("unfreezes");
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    assert_eq!(starts(), 1);
}

/// A BMC that is slow to carry out the first call of one kind; the server that sent it dies meanwhile.
struct SlowBmc {
    sim: Arc<SimFleet>,
    slow: &'static str,
    engine: OnceLock<Engine>,
    sent: AtomicBool,
    landed: Arc<AtomicBool>,
}

impl SlowBmc {
    async fn call(&self, what: &str, call: BoxFuture<'static, ProviderResult<Ack>>) -> ProviderResult<Ack> {
        if what != self.slow || self.sent.swap(true, Ordering::SeqCst) {
            return call.await;
        }
        let landed = self.landed.clone();
        let landing = tokio::spawn(async move {
            tokio::time::sleep(quick("one").call_timeout * 9 / 10).await;
            landed.store(true, Ordering::SeqCst);
            call.await
        });
        self.engine.get().expect("set").kill();
        landing.await.expect("lands")
    }
}

impl Provider for SlowBmc {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self.sim.as_ref())
    }

    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self)
    }

    fn boot(&self) -> Option<&dyn BootControl> {
        Some(self)
    }

    fn image(&self) -> Option<&dyn ImageControl> {
        Some(self.sim.as_ref())
    }
}

#[async_trait::async_trait]
impl PowerControl for SlowBmc {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        let (sim, target, op) = (self.sim.clone(), target.clone(), op.clone());
        self.call("reset", Box::pin(async move { sim.reset(&target, mode, &op).await })).await
    }

    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.sim.power_off(target, op).await
    }
}

#[async_trait::async_trait]
impl BootControl for SlowBmc {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack> {
        self.sim.set_boot(target, mode, persistent, op).await
    }

    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let (sim, target, op) = (self.sim.clone(), target.clone(), op.clone());
        self.call("clear_boot", Box::pin(async move { sim.clear_boot(&target, &op).await })).await
    }
}

/// Runs these steps on a machine whose BMC is slow, with a second server that goes on when the first has died.
/// Answers how it ended, and whether the slow call had landed by then.
async fn run_over_a_death(slow: &'static str, fault: (&str, &str), steps: Vec<StepKind>) -> (Fleet, RunPhase, bool) {
    let fleet = Fleet::new(Database::Memory, 1);
    let (sent, landed) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let bmc = SlowBmc { sim: fleet.sim.clone(), slow, engine: OnceLock::new(), sent, landed: landed.clone() };
    let bmc = Arc::new(bmc);
    let engine = || fleet.engine_with(quick("one"), Providers::default().with("sim", bmc.clone()), None);
    let first = engine();
    bmc.engine.set(first.clone()).ok().expect("set once");
    let service = fleet.service(&first).await;
    service.register_machine(&admin(), labelled("m-1", &[fault])).await.expect("registers");
    let step = |(n, kind)| Step { name: format!("step-{n}"), timeout_seconds: None, max_retries: Some(0), kind };
    let steps = steps.into_iter().enumerate().map(step).collect();
    let plan = Plan { id: "steps".into(), display_name: String::new(), steps };
    service.create_plan(&admin(), plan, "api").await.expect("creates");
    let request = StartRun { plan_id: "steps".into(), ..start("m-1", "", "r") };
    let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
    first.start().await.expect("starts");
    eventually("the server dies", || async { bmc.sent.load(Ordering::SeqCst).then_some(()) }).await;
    engine().start().await.expect("starts again");
    let phase = until_ended(&service, &run).await.run.phase;
    let in_time = landed.load(Ordering::SeqCst);
    // whatever is still under way has its effect
    tokio::time::sleep(quick("one").call_timeout * 2).await;
    (fleet, phase, in_time)
}

/// The next server finds the machine as if nothing had been sent, and must not believe it: a reset has no key by
/// which the BMC would know the second one.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_lost_server_had_sent_is_waited_out_before_it_is_sent_again() {
    let steps = vec![StepKind::Reboot { mode: RebootMode::Bmc }];
    let (fleet, phase, _) = run_over_a_death("reset", ("note", ""), steps).await;
    assert_eq!(phase, RunPhase::Succeeded);
    assert_eq!(fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "reset").count(), 1);
}

/// Nothing of a run is in the air any more when it has ended: the next one may have begun by then.
#[tokio::test(start_paused = true)]
async fn what_a_lost_server_was_taking_back_has_landed_when_the_run_ends() {
    let repave = StepKind::Repave { image: "i".into(), user_data_ref: String::new() };
    let steps = vec![StepKind::Netboot { mode: BootMode::Pxe, persistent: false }, repave];
    let (_, phase, landed) = run_over_a_death("clear_boot", ("sim.fault.repave", "fail"), steps).await;
    assert_eq!(phase, RunPhase::Failed);
    assert!(landed, "the run has ended while a call of it was under way");
}

/// A way to the database that fails the next write when it is told to.
#[derive(Default)]
struct FailingWay(Arc<AtomicBool>);

impl store::Way for FailingWay {
    fn there(&self, writes: bool) -> BoxFuture<'static, store::Fate> {
        let fails = writes && self.0.swap(false, Ordering::SeqCst);
        Box::pin(async move { if fails { store::Fate::Away { after: 0 } } else { store::Fate::Through } })
    }

    fn back(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// A host that answers once after its command was started, and then keeps silent for two polls. What it answered
/// cannot be stored.
struct ForgottenHost {
    sim: Arc<SimFleet>,
    database_fails: Arc<AtomicBool>,
    started: AtomicBool,
    polls: AtomicUsize,
}

impl Provider for ForgottenHost {
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Exec for ForgottenHost {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        self.started.store(true, Ordering::SeqCst);
        self.sim.start(target, command, op).await
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        if self.started.load(Ordering::SeqCst) {
            match self.polls.fetch_add(1, Ordering::SeqCst) {
                0 => self.database_fails.store(true, Ordering::SeqCst),
                1 | 2 => std::future::pending().await,
                _ => {}
            }
        }
        self.sim.poll(target, op, offset).await
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.sim.kill(target, op).await
    }
}

/// That it had acted was known to the worker alone; from its rows it must take it for possible.
#[tokio::test(start_paused = true)]
async fn an_act_that_a_failed_write_forgot_is_not_done_again() {
    let fleet = Fleet::new(Database::Memory, 1);
    let fails = Arc::new(AtomicBool::new(false));
    let store = fleet.store.simulated(fleet.ambient.clone(), Arc::new(FailingWay(fails.clone()))).expect("shares");
    let (started, polls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let host = Arc::new(ForgottenHost { sim: fleet.sim.clone(), database_fails: fails.clone(), started, polls });
    let providers = Providers::default().with("sim", host.clone());
    let engine = Fleet::over(store, &fleet).engine_with(quick("one"), providers, None);
    let service = fleet.service(&engine).await;
    engine.start().await.expect("starts");
    let run = start_command(&service).await;
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    assert!(
        !fails.load(Ordering::SeqCst) && host.polls.load(Ordering::SeqCst) > 3,
        "the write failed, and it was silent"
    );
    assert_eq!(fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "exec_started").count(), 1);
}

/// A server that renews its lease is left alone, however long and however often another one looks at it.
#[tokio::test(start_paused = true)]
async fn servers_that_renew_do_not_take_each_other_for_dead() {
    let fleet = Fleet::new(Database::Memory, 1);
    let server = |options: EngineOptions| {
        let store = fleet.store.simulated(fleet.ambient.clone(), Arc::new(FailingWay::default())).expect("shares");
        Fleet::over(store, &fleet).engine(options, None)
    };
    // renews seldom, so that most looks at it find nothing new
    let slow = EngineOptions { lease: quick("one").lease * 4, ..quick("one") };
    let (one, two) = (server(slow.clone()), server(quick("two")));
    one.start().await.expect("starts");
    two.start().await.expect("starts");
    let live = || async {
        let sessions = fleet.store.read(session::live).await.expect("reads");
        sessions.into_iter().map(|s| s.id).collect::<Vec<_>>()
    };
    let before = live().await;
    assert_eq!(before.len(), 2);
    tokio::time::sleep(slow.lease * 20).await;
    assert_eq!(live().await, before, "the same sessions all along");
    one.stop().await;
    two.stop().await;
}

fn by_hand(stage: &str) -> Operation {
    let execution = domain::ExecutionId::from_text("exe_by_hand");
    Operation { execution, stage: stage.into(), attempt: 1, fence: "0.0".into() }
}

/// What is set for all boots is not what was asked for the next one, nor the other way round.
#[tokio::test(start_paused = true)]
async fn a_boot_override_is_compared_with_how_long_it_is_for() {
    for (n, (asked, there, sets)) in
        [(false, true, 2), (true, false, 2), (false, false, 1), (true, true, 1)].into_iter().enumerate()
    {
        let fleet = Fleet::new(Database::Memory, 1);
        let engine = fleet.engine(quick("one"), None);
        let service = fleet.service(&engine).await;
        let machine = labelled("m-1", &[]);
        let target = Target {
            machine_id: domain::MachineId::from_text("m-1"),
            labels: machine.labels.clone(),
            spec: machine.spec.clone(),
            notes: provider::Notes::default(),
            by: provider::By::System,
        };
        service.register_machine(&admin(), machine).await.expect("registers");
        fleet.sim.set_boot(&target, BootMode::Pxe, there, &by_hand("boot")).await.map(drop).expect("is set");
        let kind = StepKind::Netboot { mode: BootMode::Pxe, persistent: asked };
        let step = Step { name: "netboot".into(), timeout_seconds: None, max_retries: Some(0), kind };
        let plan = Plan { id: "steps".into(), display_name: String::new(), steps: vec![step] };
        service.create_plan(&admin(), plan, "api").await.expect("creates");
        engine.start().await.expect("starts");
        let request = StartRun { plan_id: "steps".into(), ..start("m-1", "", "r") };
        let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
        assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
        let set = Inspect::inspect(fleet.sim.as_ref(), &target).await.expect("a look").boot_override.expect("is set");
        assert_eq!((set.mode, set.persistent), (BootMode::Pxe, asked), "case {n}");
        let effects = fleet.sim.effects().expect("reads");
        assert_eq!(effects.iter().filter(|e| e.kind == "netboot").count(), sets, "case {n}");
    }
}

/// A machine whose system tells nobody its boot id before it was told to reboot.
struct Mute {
    sim: Arc<SimFleet>,
    told: AtomicBool,
    looks: AtomicUsize,
    manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// The controller says yes and does nothing; then the system answers, still in its old boot.
    Ignored,
    /// It reboots, and nothing but its boot id tells.
    Unproven,
    /// It is seen without power on the way.
    SeenOff,
    /// Its controller tells when it was last reset.
    Dated,
}

impl Provider for Mute {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Inspect for Mute {
    async fn inspect(&self, target: &Target) -> ProviderResult<provider::Inspection> {
        let mut seen = Inspect::inspect(self.sim.as_ref(), target).await?;
        if !self.told.load(Ordering::SeqCst) {
            (seen.boot_id, seen.reachable) = (String::new(), false);
            if self.manner == Manner::Dated {
                seen.last_reset = "yesterday".into();
            }
            return Ok(seen);
        }
        match (self.manner, self.looks.fetch_add(1, Ordering::SeqCst)) {
            (Manner::SeenOff, 0) => {
                (seen.power, seen.boot_id, seen.reachable) = (provider::PowerState::Off, String::new(), false);
            }
            (Manner::Dated, _) => seen.last_reset = "now".into(),
            _ => {}
        }
        Ok(seen)
    }
}

#[async_trait::async_trait]
impl PowerControl for Mute {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        self.told.store(true, Ordering::SeqCst);
        assert!(matches!(target.by, provider::By::Run(_)), "on behalf of its run: {:?}", target.by);
        match self.manner {
            Manner::Ignored => Ok(Ack::Accepted),
            _ => self.sim.reset(target, mode, op).await,
        }
    }
    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.sim.power_off(target, op).await
    }
}

async fn rebooted(manner: Manner, retries: i32) -> (Fleet, domain::run::Run) {
    let fleet = Fleet::new(Database::Memory, 1);
    let (told, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mute = Arc::new(Mute { sim: fleet.sim.clone(), told, looks, manner });
    let engine = fleet.engine_with(quick("one"), Providers::default().with("sim", mute), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), labelled("m-1", &[])).await.expect("registers");
    let kind = StepKind::Reboot { mode: RebootMode::Bmc };
    let step = Step { name: "reboot".into(), timeout_seconds: Some(120), max_retries: Some(retries), kind };
    let plan = Plan { id: "steps".into(), display_name: String::new(), steps: vec![step] };
    service.create_plan(&admin(), plan, "api").await.expect("creates");
    engine.start().await.expect("starts");
    let request = StartRun { plan_id: "steps".into(), ..start("m-1", "", "r") };
    let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
    let run = until_ended(&service, &run).await.run;
    (fleet, run)
}

/// Whatever boot id it shows after the order may be the one from before.
#[tokio::test(start_paused = true)]
async fn a_reboot_that_nothing_proves_is_not_claimed() {
    for manner in [Manner::Ignored, Manner::Unproven] {
        let (_, run) = rebooted(manner, 0).await;
        assert_eq!(run.phase, RunPhase::Failed, "{manner:?}");
        let why = format!("{:?}", run.error);
        assert!(why.contains("nobody could tell its boot id before the order"), "{manner:?}: {why}");
    }
    // the next attempt has read the boot id before its order
    let (fleet, run) = rebooted(Manner::Unproven, 1).await;
    assert_eq!(run.phase, RunPhase::Succeeded, "{:?}", run.error);
    assert_eq!(fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "reset").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_without_a_boot_id_before_is_proven_by_its_power_or_its_controller() {
    for manner in [Manner::SeenOff, Manner::Dated] {
        let (fleet, run) = rebooted(manner, 0).await;
        assert_eq!(run.phase, RunPhase::Succeeded, "{manner:?}: {:?}", run.error);
        assert_eq!(fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "reset").count(), 1);
    }
}
