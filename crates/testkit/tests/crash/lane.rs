//! One store, one simulated fleet, and one disturbed run after another on them, each on a machine of its own.

use crate::case::{CLUSTER, Case};
use crate::model::{self, End, Ending, Injected, World};
use crate::script::{Life, Script, What};
use crate::tap::{Ask, Seen, Struck, Tap};
use crate::tapped::Tapped;
use domain::ExecutionId;
use domain::lifecycle::State as _;
use domain::run::RunPhase;
use engine::EngineOptions;
use provider::{
    ClusterControl as _, Inspect as _, NetworkControl as _, Operation, PowerState, RmaControl as _, Target,
};
use service::{RunView, Service};
use sim::Effect;
use std::sync::Arc;
use std::time::Duration;
use store::execution;
use testkit::fleet::{Database, Fleet, admin, eventually};
use tokio::sync::mpsc;

/// Runs on one store before it is changed for a fresh one: the effect journal is read whole each time.
const RUNS_PER_FLEET: usize = 25;

pub struct Lane {
    database: Database,
    fleet: Fleet,
    service: Service,
    runs: usize,
}

/// What was seen in the last life, and what struck in all of them.
pub struct Played {
    pub seen: Vec<Seen>,
    pub struck: Vec<Struck>,
}

/// The run in hand.
struct Hand<'a> {
    case: &'a Case,
    script: &'a Script,
    machine: String,
    run: String,
    /// Effects before the run was asked for.
    before: usize,
    struck: Vec<Struck>,
    canceled: Option<End>,
}

impl Lane {
    pub async fn open(database: Database) -> Self {
        let (fleet, service) = furnish(database).await;
        Self { database, fleet, service, runs: 0 }
    }

    /// Plays a script to its end and judges it.
    pub async fn play(&mut self, case: &Case, script: &Script) -> Played {
        if self.runs == RUNS_PER_FLEET {
            self.close();
            (self.fleet, self.service) = furnish(self.database).await;
            self.runs = 0;
        }
        self.runs += 1;
        let mut hand = self.begin(case, script, format!("m-{}", self.runs)).await;
        let mut seen = Vec::new();
        let mut entered: usize = 0;
        for (number, life) in script.lives.iter().enumerate() {
            if life.canceled_before {
                let stage = entered.checked_sub(1);
                self.cancel(&mut hand, stage, false, false).await;
            }
            let last = number + 1 == script.lives.len();
            let tap = self.live(&mut hand, life, entered, last).await;
            (entered, seen) = (tap.entered(), tap.seen());
            hand.struck.extend(tap.struck());
        }
        self.judge(&hand).await;
        Played { seen, struck: hand.struck }
    }

    /// Gives its connections back.
    pub fn close(&self) {
        self.fleet.store.close();
    }

    async fn begin<'a>(&self, case: &'a Case, script: &'a Script, machine: String) -> Hand<'a> {
        let new = case.machine(&machine);
        let target = Target {
            machine_id: domain::MachineId::from_text(machine.clone()),
            labels: new.labels.clone(),
            spec: new.spec.clone(),
            notes: provider::Notes::default(),
            by: provider::By::System,
        };
        if case.member {
            let mut at_once = target.clone();
            at_once.labels.insert("sim.latency_ms".into(), "0".into());
            let op = Operation {
                execution: ExecutionId::from_text("exe_before"),
                stage: "join".into(),
                attempt: 1,
                fence: "0.0".into(),
            };
            assert!(self.fleet.sim.join(&at_once, CLUSTER, &op).await.is_ok(), "the machine joins beforehand");
        }
        self.service.register_machine(&admin(), new).await.expect("registers");
        if let Some(plan) = case.plan() {
            self.service.create_plan(&admin(), plan, "api").await.expect("a plan");
        }
        let before = self.effects(&machine).len();
        let run = self.service.start_run(&admin(), case.request(&machine)).await.expect("starts").run.id.to_string();
        Hand { case, script, machine, run, before, struck: Vec::new(), canceled: None }
    }

    /// One engine, from its start to its crash or to the end of the run.
    async fn live(&self, hand: &mut Hand<'_>, life: &Life, entered: usize, last: bool) -> Arc<Tap> {
        let name = &hand.script.name;
        let (tap, mut asks) = Tap::new(life, hand.case.stages, &hand.machine, self.fleet.sim.clone(), entered);
        let tapped = Tapped { sim: self.fleet.sim.clone(), tap: tap.clone() };
        let providers = provider::Providers::default().with("sim", Arc::new(tapped));
        let engine = self.fleet.engine_with(self.options(hand), providers, Some(tap.observer()));
        tap.watch(&engine);
        engine.start().await.expect("an engine starts");
        let lived = tokio::time::timeout(self.patience(hand), self.until_over(hand, &tap, &mut asks, last)).await;
        if lived.is_err() {
            let why = self.service.get_run(&admin(), &hand.run).await.expect("reads");
            panic!("{name}: the run does not come to its end: {} {} {}", why.run.phase, why.why, why.execution);
        }
        if last {
            engine.stop().await;
        } else {
            engine.ended().await;
        }
        tap
    }

    async fn until_over(
        &self,
        hand: &mut Hand<'_>,
        tap: &Arc<Tap>,
        asks: &mut mpsc::UnboundedReceiver<Ask>,
        last: bool,
    ) {
        let mut grew = self.fleet.store.signals().log_grew();
        loop {
            grew.look();
            if tap.crashed.is_cancelled() || (last && self.view(hand).await.run.phase.is_terminal()) {
                return;
            }
            tokio::select! {
                () = tap.crashed.cancelled() => {}
                () = grew.grew() => {}
                ask = asks.recv() => {
                    let struck = tap.struck();
                    let at = struck.last().expect("a fault asked");
                    let in_flight = at.fault.what == What::CancelBefore && at.seen.acts;
                    self.cancel(hand, at.seen.stage, in_flight, true).await;
                    ask.expect("a tap").send(()).unwrap_or_default();
                }
            }
            if !last && self.view(hand).await.run.phase.is_terminal() {
                // the end is told just before the crash after it
                let crashed = tokio::time::timeout(Duration::from_secs(10), tap.crashed.cancelled()).await;
                assert!(crashed.is_ok(), "{}: ended before it crashed", hand.script.name);
            }
        }
    }

    /// Asks for a cancel and returns once that is durable, as a client that does not wait for the end.
    async fn cancel(&self, hand: &mut Hand<'_>, stage: Option<usize>, in_flight: bool, live: bool) {
        let effects = self.effects(&hand.machine).len() - hand.before;
        let ended = self.view(hand).await.run.phase.is_terminal();
        let (service, run) = (self.service.clone(), hand.run.clone());
        let asked = tokio::spawn(async move { service.cancel_run(&admin(), &run).await });
        if ended {
            let refused = asked.await.expect("no panic").expect_err("nothing left to cancel");
            assert_eq!(refused.reason, domain::Reason::RunAlreadyEnded, "{}", hand.script.name);
            return;
        }
        eventually("the cancel is durable", || async {
            let run = hand.run.clone();
            let execution = self.fleet.store.read(move |tx| execution::by_subject(tx, &run)).await.expect("reads");
            execution.filter(|e| e.cancel.is_some() || e.status.is_terminal()).map(drop)
        })
        .await;
        hand.canceled = Some(End { ending: Ending::Canceled, effects, stage, in_flight, live });
    }

    async fn view(&self, hand: &Hand<'_>) -> RunView {
        self.service.get_run(&admin(), &hand.run).await.expect("reads")
    }

    fn effects(&self, machine: &str) -> Vec<Effect> {
        let all = self.fleet.sim.effects().expect("the effect journal reads");
        all.into_iter().filter(|e| e.machine == machine).collect()
    }

    /// The verdict: by the effect journal and the model; then that the product's rows agree with it.
    async fn judge(&self, hand: &Hand<'_>) {
        let (name, stages) = (&hand.script.name, hand.case.stages);
        assert_eq!(hand.struck.len(), hand.script.faults(), "{name}: struck were {:?}", hand.struck);
        let mut injected = injected(hand);
        if let Some(late) = injected.heard_too_late(stages)
            && self.view(hand).await.run.phase == RunPhase::Succeeded
        {
            injected = late;
        }
        let all = self.effects(&hand.machine);
        let world = World::of(&all);
        let told = |verdict: Result<(), String>| {
            if let Err(why) = verdict {
                let effects: Vec<String> = all[hand.before..]
                    .iter()
                    .map(|e| format!("{} by {} with {}", e.kind, e.operation, e.fence))
                    .collect();
                panic!("{name}: {why}\ninjected: {injected:?}\neffects: {effects:#?}");
            }
        };
        told(model::judge(stages, &all[hand.before..], &injected));
        told(model::at_rest(stages, &world, &injected));
        self.physical(hand, &world).await;
        self.rows(hand, &injected).await;
    }

    /// What a look at the machine shows is what its effects add up to.
    async fn physical(&self, hand: &Hand<'_>, world: &World) {
        let name = &hand.script.name;
        let new = hand.case.machine(&hand.machine);
        let machine_id = domain::MachineId::from_text(hand.machine.clone());
        let target = Target {
            machine_id,
            labels: new.labels,
            spec: new.spec,
            notes: provider::Notes::default(),
            by: provider::By::System,
        };
        let sim = &self.fleet.sim;
        let seen = sim.inspect(&target).await.expect("a look");
        assert_eq!(seen.power == PowerState::On, world.powered, "{name}: power");
        assert_eq!(seen.reachable, world.up, "{name}: reachable");
        assert_eq!(seen.boot_id, world.boots.to_string(), "{name}: boots");
        assert_eq!(seen.boot_override.map(|o| o.mode.to_string()), world.boot_override, "{name}: boot override");
        assert_eq!(seen.installed.map(|i| i.image), world.image, "{name}: image");
        assert_eq!(sim.current(&target).await.expect("a look"), world.network, "{name}: network");
        let open = sim.open_return_of(&target).await.expect("a look").is_some();
        assert_eq!(open, world.return_open, "{name}: return");
        let member = sim.membership(&target, CLUSTER).await.expect("a look");
        let found = member != provider::Membership::NotFound;
        assert_eq!(found, world.member.as_deref() == Some(CLUSTER), "{name}: {member:?}");
    }

    async fn rows(&self, hand: &Hand<'_>, injected: &Injected) {
        let name = &hand.script.name;
        let run = self.view(hand).await.run;
        assert_eq!(run.phase.as_str(), injected.ending().as_str(), "{name}: {:?}", run.error);
        if injected.undo_refused.is_some() {
            let error = run.error.as_ref().map_or("", |e| e.message.as_str());
            assert!(error.contains("could not be taken back"), "{name}: says nothing of what is left: {error}");
        }
        let machine = self.service.get_machine(&admin(), &hand.machine).await.expect("reads");
        assert_eq!(machine.active_run, None, "{name}: the machine is let go");
        let phase = if injected.ending() == Ending::Succeeded { hand.case.phase } else { "MAINTENANCE" };
        assert_eq!(machine.phase.as_str(), phase, "{name}: the machine's phase");
        let needs_person = machine.condition(domain::condition::ConditionType::NeedsIntervention);
        let wanted = injected.ending() == Ending::Failed || injected.undo_refused.is_some() || injected.stop_refused;
        assert_eq!(needs_person, wanted, "{name}: whether a person must look");
        let replay = self.service.start_run(&admin(), hand.case.request(&hand.machine)).await.expect("a replay");
        assert_eq!(replay.run.id, run.id, "{name}: the request again is no second run");
        let (id, machine_id) = (run.id.clone(), machine.id.clone());
        let (folds, open, runs) = self
            .fleet
            .store
            .snapshot(move |tx| {
                let of_machine = store::run::FILTER.parse(&format!("machine_id = \"{machine_id}\""))?;
                let runs = store::run::list(tx, &of_machine, "", 10)?;
                Ok((store::run::check_fold(tx, &id)?, execution::list_open(tx, workflow::RUN_WORKFLOW, 10)?, runs))
            })
            .await
            .expect("reads");
        assert_eq!(folds, Ok(()), "{name}");
        assert!(open.is_empty(), "{name}: not ended: {open:?}");
        assert_eq!(runs.len(), 1, "{name}: {runs:?}");
    }

    fn options(&self, hand: &Hand<'_>) -> EngineOptions {
        let options = EngineOptions::new("one");
        // a run that does nothing twice is not counted twice either, or it would wait an hour for room
        let cap = if hand.script.repeats_nothing() { hand.case.destructive.max(1) } else { 64 };
        let options = EngineOptions { destructive_per_rack_and_hour: cap, ..options };
        match self.database {
            Database::Memory => {
                EngineOptions { lease: Duration::from_secs(60), poll: Duration::from_secs(5), ..options }
            }
            Database::Sqlite | Database::Postgres => EngineOptions {
                lease: Duration::from_secs(8),
                call_timeout: Duration::from_millis(700),
                poll: Duration::from_millis(100),
                ..options
            },
        }
    }

    /// A bound, not a verdict; but on the virtual clock it is shorter than the hour that a rack's cap is for.
    fn patience(&self, hand: &Hand<'_>) -> Duration {
        match self.database {
            Database::Memory if hand.script.repeats_nothing() => Duration::from_secs(1_800),
            Database::Memory => Duration::from_secs(6 * 3_600),
            Database::Sqlite | Database::Postgres => Duration::from_secs(90),
        }
    }
}

async fn furnish(database: Database) -> (Fleet, Service) {
    let fleet = Fleet::new(database, 7);
    let never_started = fleet.engine(EngineOptions::new("the door"), None);
    let service = fleet.service(&never_started).await;
    (fleet, service)
}

/// What the model must know of all that struck.
fn injected(hand: &Hand<'_>) -> Injected {
    let mut injected = Injected { end: hand.canceled.clone(), ..Injected::default() };
    for struck in &hand.struck {
        let undo = struck.seen.method == "boot.clear_boot";
        let stop = matches!(struck.seen.method, "image.abort_install" | "exec.kill");
        let refused_for_good = match struck.fault.what {
            What::Refuse(class) => class.retry_budget() == 0,
            What::RefuseFromNowOn => true,
            _ => false,
        };
        match struck.fault.what {
            What::Refuse(_) | What::RefuseFromNowOn if stop && refused_for_good => {
                injected.stop_refused = true;
            }
            // said once more
            What::Refuse(_) if stop => {}
            What::Refuse(_) | What::RefuseFromNowOn if undo && refused_for_good => {
                injected.undo_refused = struck.seen.stage;
            }
            What::Refuse(_) | What::RefuseFromNowOn if refused_for_good && injected.end.is_none() => {
                let effects = struck.effects - hand.before;
                let end =
                    End { ending: Ending::Failed, effects, stage: struck.seen.stage, in_flight: false, live: false };
                injected.end = Some(end);
            }
            What::Twice => injected.twice = struck.seen.stage,
            _ => {}
        }
    }
    injected
}
