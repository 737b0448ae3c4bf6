//! The brake, and the cap on destructive stages in one rack.

use crate::fixture::{Api, brisk, on_both, patient, reboot, repave, sim_machine, start, start_plan, states, step};
use crate::refusal::refused_field;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use proto::millwright::v1 as mw;
use testkit::fleet::{Database, eventually};

fn time(at: Option<prost_reflect::prost_types::Timestamp>) -> i64 {
    at.map(|t| t.seconds * 1_000_000 + i64::from(t.nanos) / 1000).expect("a time")
}

// DESIGN section 7 "brake": shown everywhere, the first one's words stay
#[tokio::test]
async fn a_freeze_says_who_and_why_until_it_is_released() {
    let api = Api::new().await;
    let get = || async { api.engines().get_freeze(mw::GetFreezeRequest {}).await.expect("reads").into_inner() };
    assert_eq!(get().await, mw::FreezeState::default());
    let frozen = api.freeze().await;
    assert!(frozen.frozen && frozen.by == "tester" && frozen.reason.contains("a test") && frozen.since.is_some());
    let again = api.engines().freeze(mw::FreezeRequest { reason: "another reason".into() }).await;
    assert_eq!(again.expect("frozen already").into_inner(), frozen);
    assert_eq!(get().await, frozen);
    refused_field(api.engines().freeze(mw::FreezeRequest::default()).await, "reason");
    assert_eq!(api.unfreeze().await, mw::FreezeState::default());
    assert_eq!(api.unfreeze().await, mw::FreezeState::default(), "released already");
    assert_eq!(get().await, mw::FreezeState::default());
}

// DESIGN section 7 "brake": no claim while frozen
on_both!(a_freeze_holds_pending_runs_until_it_is_released, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    let held = api.run(&run.run_id).await;
    assert_eq!(held.phase(), RunPhase::Pending);
    assert!(held.why.contains("frozen") && held.why.contains("tester"), "{}", held.why);
    let before = api.server.fleet.ambient.now().micros();
    api.unfreeze().await;
    let ended = api.ended(&run.run_id).await;
    assert_eq!(ended.phase(), RunPhase::Succeeded);
    assert!(time(ended.started_at) >= before, "it did not start before the brake was released");
});

// DESIGN section 7 "brake": no stage is entered while frozen; what is in hand is finished
on_both!(a_freeze_holds_the_next_stage_until_it_is_released, patient(), |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "slow:3000")]).await;
    api.create_plan("p", vec![step("first", repave("an-image")), step("second", reboot())]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    // in hand: begun, and not only entered
    eventually("the installation to begin", || async {
        (api.count_effects("m-1", "repave_started") == 1).then_some(())
    })
    .await;
    api.freeze().await;
    let first_done = |r: &pb::Run| r.steps[0].state() == State::Succeeded;
    let held = api.until(&run.run_id, "through its first step", first_done).await;
    assert_eq!((held.phase(), states(&held)), (RunPhase::Running, vec![State::Succeeded, State::Waiting]));
    eventually("the execution to be set down", || async {
        let (execution, _) = api.execution(&run.run_id).await;
        (execution.status == "waiting" && execution.waiting_for.contains("brake")).then_some(())
    })
    .await;
    let held = api.run(&run.run_id).await;
    assert!(held.why.contains("frozen"), "{}", held.why);
    assert_eq!(api.count_effects("m-1", "reset"), 0);
    let before = api.server.fleet.ambient.now().micros();
    api.unfreeze().await;
    let ended = api.ended(&run.run_id).await;
    assert_eq!(ended.phase(), RunPhase::Succeeded, "{ended:?}");
    assert!(time(ended.steps[1].started_at) >= before);
});

// a cancel is kept while the brake is on, and carried out when it is released
#[tokio::test]
async fn a_cancel_during_a_freeze_is_carried_out_after_it() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "fail")]).await;
    let mut patient = step("reboot", reboot());
    patient.max_retries = Some(20);
    api.create_plan("p", vec![patient]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    api.until(&run.run_id, "in backoff", |r| r.steps[0].retry_count >= 1).await;
    api.freeze().await;
    let release = async {
        eventually("the cancel to be on record", || async {
            let why = api.run(&run.run_id).await.why;
            (why.contains("cancel requested by tester") || why.is_empty()).then_some(())
        })
        .await;
        api.unfreeze().await;
    };
    let (canceled, ()) = tokio::join!(api.try_cancel(&run.run_id), release);
    assert_eq!(canceled.expect("cancels").phase(), RunPhase::Canceled);
}

// a frozen control plane still answers and records
#[tokio::test]
async fn a_freeze_does_not_stop_registrations_and_starts() {
    let api = Api::new().await;
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    assert_eq!(api.list_runs("phase=PENDING").await.len(), 1);
    assert_eq!(api.try_cancel(&run.run_id).await.expect("cancels").phase(), RunPhase::Canceled);
}

/// A machine in that rack.
fn in_rack(id: &str, rack: &str) -> pb::Machine {
    let mut machine = sim_machine(id, &[]);
    machine.spec.as_mut().expect("a spec").rack = rack.into();
    machine
}

// DESIGN section 7 "brake": blast-radius caps on destructive stages per rack and hour
#[tokio::test]
async fn the_cap_of_a_rack_lets_one_repave_through_and_the_next_one_waits_and_says_why() {
    let options = engine::EngineOptions { destructive_per_rack_and_hour: 1, ..brisk() };
    let api = Api::with(Database::Sqlite, options).await;
    for (id, rack) in [("a-1", "r1"), ("a-2", "r1"), ("b-1", "r2"), ("none-1", ""), ("none-2", "")] {
        api.register(in_rack(id, rack)).await;
    }
    assert_eq!(api.carry_out(start("a-1", "REPAVE", "r1")).await.phase(), RunPhase::Succeeded);
    let second = api.start(start("a-2", "REPAVE", "r1")).await;
    let waiting = api.until(&second.run_id, "at the cap", |r| r.why.contains("cap of 1")).await;
    assert!(waiting.why.contains("rack r1"), "{}", waiting.why);
    assert_eq!((waiting.phase(), waiting.current_step.as_str()), (RunPhase::Running, "repave"));
    assert_eq!(api.count_effects("a-2", "repave_started"), 0);
    for id in ["b-1", "none-1", "none-2"] {
        assert_eq!(api.carry_out(start(id, "REPAVE", "r1")).await.phase(), RunPhase::Succeeded, "{id}");
    }
    let canceled = api.try_cancel(&second.run_id).await.expect("there is a way out");
    assert_eq!(canceled.phase(), RunPhase::Canceled);
    // what destroys nothing is not counted
    assert_eq!(api.carry_out(start("a-2", "REBOOT", "r2")).await.phase(), RunPhase::Succeeded);
}

// as above, on the shared database, with both at once
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_repaves_at_once_in_one_rack_one_waits_on_postgres() {
    let options = engine::EngineOptions { destructive_per_rack_and_hour: 1, ..brisk() };
    let api = Api::with(Database::Postgres, options).await;
    api.register(in_rack("a-1", "r1")).await;
    api.register(in_rack("a-2", "r1")).await;
    let (one, two) = tokio::join!(api.start(start("a-1", "REPAVE", "r")), api.start(start("a-2", "REPAVE", "r")));
    eventually("one to end and one to wait", || async {
        let runs = [api.run(&one.run_id).await, api.run(&two.run_id).await];
        let ended = runs.iter().filter(|r| r.phase() == RunPhase::Succeeded).count();
        let waiting = runs.iter().filter(|r| r.why.contains("cap of 1")).count();
        assert!(ended < 2, "both went through: {runs:?}");
        (ended == 1 && waiting == 1).then_some(())
    })
    .await;
    let begun = api.count_effects("a-1", "repave_started") + api.count_effects("a-2", "repave_started");
    assert_eq!(begun, 1);
}
