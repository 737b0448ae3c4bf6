//! Bad hardware between the provider and a BMC: late, torn, reset, busy, nonsense, a session that ends, a yes that did
//! nothing; at every question of every act. Never is anything done twice, never is a yes a lie where the BMC can be
//! asked, and the next look is fine.

use crate::ground::{Ground, MEDIA_IMAGE, operation, options};
use domain::plan::{BootMode, Plan, RebootMode, Step, StepKind};
use domain::run::RunPhase;
use engine::Engine;
use provider::{Ack, BootControl as _, ImageControl as _, PowerControl as _, ProviderResult, Providers};
use service::{CallerLimits, NewMachine, RunView, Service, StartRun};
use std::sync::Arc;
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, eventually, quick, start, vault};
use testkit::http_faults::Fault;
use testkit::redfish_responder::What;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Reset,
    PowerOff,
    SetBoot,
    Install,
}

impl Act {
    async fn ask(self, g: &Ground) -> ProviderResult<Ack> {
        let (t, op) = (&g.target, operation("any", 1));
        match self {
            Act::Reset => g.dc.reset(t, RebootMode::Force, &op).await,
            Act::PowerOff => g.dc.power_off(t, &op).await,
            Act::SetBoot => g.dc.set_boot(t, BootMode::Pxe, false, &op).await,
            Act::Install => g.dc.install(t, MEDIA_IMAGE, "", &op).await,
        }
    }

    /// How often it was really done.
    fn done(self, g: &Ground) -> usize {
        let is_it = |what: &What| match self {
            Act::Reset | Act::PowerOff | Act::Install => matches!(what, What::Power { .. }),
            Act::SetBoot => matches!(what, What::BootSet { .. }),
        };
        g.responder.done_to(1).iter().filter(|what| is_it(what)).count()
    }
}

#[tokio::test]
async fn every_fault_at_every_question_of_every_act() {
    let faults = [
        Fault::Delay(Duration::from_millis(20)),
        Fault::Truncate,
        Fault::Reset,
        Fault::LoseAnswer,
        Fault::Status(500, "{}".into()),
        Fault::Status(401, "{}".into()),
        Fault::Busy(0),
        Fault::Malformed,
        Fault::DoNothing,
    ];
    let mut plays = 0;
    for act in [Act::Reset, Act::PowerOff, Act::SetBoot, Act::Install] {
        for fault in &faults {
            for (method, path) in [("GET", "/Systems/1"), ("POST", ""), ("PATCH", "")] {
                let what = format!("{act:?}, {fault:?} at {method} {path}");
                let g = Ground::bmc_only(options()).await;
                g.look().await;
                g.responder.faults.arm(method, path, fault.clone(), 1);
                let answer = act.ask(&g).await;
                let struck = g.responder.faults.disarm();
                plays += usize::from(struck > 0);
                assert!(act.done(&g) <= 1, "{what}: done twice");
                // where nothing went wrong at the act itself it was done; where it shows, a yes is true
                let lied = *fault == Fault::DoNothing && method == "POST" && act != Act::SetBoot;
                if answer.is_ok() && !lied {
                    assert_eq!(act.done(&g), 1, "{what}: a yes, and nothing done");
                }
                if struck == 0 {
                    assert!(answer.is_ok(), "{what}: {answer:?}");
                }
                // a login that was refused in the middle is not tried again by the same adapter, and rightly
                if *fault != Fault::Status(401, "{}".into()) {
                    g.look().await;
                }
            }
        }
    }
    assert!(plays >= 70, "{plays} plays had their fault");
    println!("{plays} plays had their fault");
}

/// Sessions end whenever a controller likes.
#[tokio::test]
async fn a_session_that_ends_in_the_middle_is_renewed_and_nothing_is_done_twice() {
    for act in [Act::Reset, Act::PowerOff, Act::SetBoot, Act::Install] {
        let g = Ground::bmc_only(options()).await;
        g.look().await;
        g.responder.end_sessions();
        act.ask(&g).await.map(drop).unwrap_or_else(|e| panic!("{act:?}: {e}"));
        assert_eq!(act.done(&g), 1, "{act:?}");
        assert_eq!(g.responder.open_sessions(), 1);
    }
}

/// The machine, registered with a service.
async fn registered(g: &Ground) -> (Fleet, Engine, Service) {
    let fleet = Fleet::new(Database::Memory, 1);
    let providers = || Providers::default().with("datacenter", Arc::new(g.dc.clone()));
    let engine = fleet.engine_with(quick("test"), providers(), None);
    let (store, limits) = (fleet.store.clone(), CallerLimits::default());
    let service = Service::with_vault(store.clone(), engine.clone(), providers(), limits, vault(&store));
    let service = service.await.expect("the service starts");
    crate::ground::known(&service, &["bmc"]).await;
    let spec = domain::machine::MachineSpec { provider: "datacenter".into(), ..g.target.spec.clone() };
    let machine = NewMachine { id: g.target.machine_id.to_string(), spec, ..NewMachine::default() };
    service.register_machine(&admin(), machine).await.expect("registers");
    (fleet, engine, service)
}

/// A run of this one step, by the engine, to its end.
async fn run_of(g: &Ground, kind: StepKind) -> RunView {
    let (_fleet, engine, service) = registered(g).await;
    let step = Step { name: "it".into(), timeout_seconds: Some(3), max_retries: Some(0), kind };
    let plan = Plan { id: "one".into(), display_name: String::new(), steps: vec![step] };
    service.create_plan(&admin(), plan, "api").await.expect("a plan");
    let request = StartRun { plan_id: "one".into(), ..start(g.target.machine_id.as_str(), "", "request-1") };
    let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
    engine.start().await.expect("an engine starts");
    let ended = eventually("the run ends", || async {
        let view = service.get_run(&admin(), &run).await.expect("reads");
        view.run.phase.is_terminal().then_some(view)
    })
    .await;
    engine.stop().await;
    ended
}

/// A controller that breaks whenever it is told to reset: it is told once, looked at, and quoted in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_breaks_at_every_change_is_told_once_and_quoted_in_the_end() {
    let g = Ground::bmc_only(options()).await;
    let info = r#"{"error": {"@Message.ExtendedInfo": [{"Message": "Out of memory."}]}}"#;
    g.responder.faults.arm("POST", "ComputerSystem.Reset", Fault::Status(500, info.into()), usize::MAX);
    let ended = run_of(&g, StepKind::Reboot { mode: RebootMode::Force }).await;
    assert_eq!(g.responder.faults.disarm(), 1, "sent once");
    assert_eq!(ended.run.phase, RunPhase::Failed, "{:?}", ended.run);
    let error = ended.run.error.expect("a reason");
    assert_eq!(error.code, "STEP_TIMED_OUT", "{error:?}");
    assert!(error.message.contains("HTTP status 500") && error.message.contains("Out of memory."), "{error:?}");
}

/// A person's act asks once who it is, and the adapter once how it stands: each a question to a slow controller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_act_asks_once_who_it_is() {
    let g = Ground::bmc_only(options()).await;
    g.look().await;
    let (_fleet, _engine, service) = registered(&g).await;
    g.responder.take_questions();
    service.set_power(&admin(), g.target.machine_id.as_str(), "force-off", "").await.expect("done");
    let asked = g.responder.take_questions();
    let looks = asked.iter().filter(|question| *question == "GET /redfish/v1/Systems/1").count();
    assert_eq!(looks, 2, "{asked:?}");
    assert_eq!(g.resets(), ["ForceOff"]);
}
