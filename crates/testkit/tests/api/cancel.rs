//! CancelRun: before the start, in the middle of a step, again, and too late.

use crate::fixture::{Api, on_both, reboot, ssh, start, start_plan, states, step};
use crate::refusal::refused;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use tonic::Code;

// G-9-05, T-06: PENDING -> CANCELED
on_both!(a_pending_run_is_canceled_before_it_starts, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!((canceled.phase(), states(&canceled)), (RunPhase::Canceled, vec![State::Waiting; 3]));
    assert!(canceled.started_at.is_none() && canceled.finished_at.is_some());
    assert_eq!(canceled.error.as_ref().map(|e| e.code.as_str()), Some("CANCELED"));
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Maintenance, ""), "G-21-07");
    api.unfreeze().await;
    let next = api.carry_out(start("m-1", "REBOOT", "r2")).await;
    assert_eq!(next.phase(), RunPhase::Succeeded);
    assert_eq!(api.run(&run.run_id).await, canceled, "it was not started after all");
    assert_eq!(api.count_effects("m-1", "repave_started"), 0);
});

// T-06: the step in flight becomes FAILED "canceled", unreached steps stay WAITING; G-17-08
on_both!(a_hung_step_is_canceled_in_flight, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "repave").await;
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!(canceled.phase(), RunPhase::Canceled, "{canceled:?}");
    assert_eq!(states(&canceled), [State::Succeeded, State::Failed, State::Waiting]);
    assert_eq!(canceled.steps[1].message, "canceled");
    assert!(canceled.error.as_ref().is_some_and(|e| e.code == "CANCELED" && e.message.contains("tester")));
    assert_eq!(api.phase("m-1").await, Phase::Maintenance);
    assert_eq!(api.effect_kinds("m-1"), ["netboot", "fault", "clear_netboot"], "and its boot override is taken back");
});

// as above, where there is something to stop
#[tokio::test]
async fn a_slow_installation_is_stopped() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "slow:600000")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    let started = |_: &pb::Run| api.count_effects("m-1", "repave_started") == 1;
    api.until(&run.run_id, "installing", started).await;
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!((canceled.phase(), canceled.steps[1].message.as_str()), (RunPhase::Canceled, "canceled"));
    assert_eq!(api.effect_kinds("m-1"), ["netboot", "repave_started", "repave_aborted", "clear_netboot"]);
}

// as above, for a command on the host
#[tokio::test]
async fn a_long_command_is_killed() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.ssh", "slow:600000")]).await;
    api.create_plan("p", vec![step("cmd", ssh("sleep", &["600"])), step("after", reboot())]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    let started = |_: &pb::Run| api.count_effects("m-1", "exec_started") == 1;
    api.until(&run.run_id, "under way", started).await;
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!((canceled.phase(), states(&canceled)), (RunPhase::Canceled, vec![State::Failed, State::Waiting]));
    assert_eq!(api.effect_kinds("m-1"), ["exec_started", "exec_killed"]);
}

// between two attempts, too
#[tokio::test]
async fn a_step_in_backoff_is_canceled() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "fail")]).await;
    let mut patient = step("reboot", reboot());
    patient.max_retries = Some(20);
    api.create_plan("p", vec![patient]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    api.until(&run.run_id, "in backoff", |r| r.steps[0].retry_count >= 1).await;
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!((canceled.phase(), canceled.steps[0].state()), (RunPhase::Canceled, State::Failed));
    assert_eq!(canceled.steps[0].message, "canceled");
}

// G-17-12: canceled again returns it unchanged
on_both!(canceling_again_returns_the_same_run, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    let first = api.try_cancel(&run.run_id).await.expect("cancels");
    assert_eq!(first.phase(), RunPhase::Canceled);
    assert_eq!(api.try_cancel(&run.run_id).await.expect("again"), first);
});

// many at once are one cancel
on_both!(ten_cancels_at_once_are_one, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    let api = &api;
    let cancels = futures::future::join_all((0..10).map(|_| api.try_cancel(&run.run_id))).await;
    let answers: Vec<pb::Run> = cancels.into_iter().map(|c| c.expect("cancels")).collect();
    assert!(answers.iter().all(|a| *a == answers[0] && a.phase() == RunPhase::Canceled), "{answers:?}");
    let (_, journal) = api.execution(&run.run_id).await;
    assert_eq!(journal.iter().filter(|e| e.entry == "ended").count(), 1);
});

// G-17-12: refused on SUCCEEDED and FAILED
#[tokio::test]
async fn an_ended_run_cannot_be_canceled() {
    let api = Api::new().await;
    api.sim("ok", &[]).await;
    api.sim("bad", &[("sim.fault.reboot", "wrong-machine")]).await;
    for (id, phase) in [("ok", "SUCCEEDED"), ("bad", "FAILED")] {
        let run = api.carry_out(start(id, "REBOOT", "r1")).await;
        let (machine, refusal) = (api.machine(id).await, api.try_cancel(&run.run_id).await);
        let refusal = refused(refusal, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
        assert_eq!(refusal.says(&run.run_id).details["phase"], phase);
        assert_eq!((api.run(&run.run_id).await, api.machine(id).await), (run, machine));
    }
}

// a cancel and the natural end at once: one of them is the end, and the machine is free
on_both!(a_cancel_that_races_with_the_end_has_one_outcome, |api| async move {
    for i in 0..6 {
        let id = format!("m-{i}");
        api.sim(&id, &[("sim.latency_ms", &(i * 4).to_string())]).await;
        let run = api.start(start(&id, "REPAVE", "r1")).await;
        let canceled = api.try_cancel(&run.run_id).await;
        let ended = api.ended(&run.run_id).await;
        match canceled {
            // asked in time, and the run may still have come to its end first
            Ok(answer) => assert_eq!(answer, ended),
            Err(e) => drop(refused(Err::<(), _>(e), Code::FailedPrecondition, "RUN_ALREADY_ENDED")),
        }
        let status = api.status(&id).await;
        assert_eq!(status.active_run_id, "");
        let expected = match ended.phase() {
            RunPhase::Canceled => Phase::Maintenance,
            RunPhase::Succeeded => Phase::Ready,
            other => panic!("{other:?} is neither end"),
        };
        assert_eq!(status.phase(), expected, "{ended:?}");
    }
});

// CONTRACT: freed by the cancel, the machine takes the next run
#[tokio::test]
async fn the_machine_is_free_after_a_cancel() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    api.try_cancel(&run.run_id).await.expect("cancels");
    // the cancel may have come before the call that hangs
    api.sim("m-1", &[]).await;
    assert_eq!(api.carry_out(start("m-1", "REBOOT", "r2")).await.phase(), RunPhase::Succeeded);
}
