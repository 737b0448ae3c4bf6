//! Attempts: how many, which failures are worth another, and what a time-out is.

use crate::fixture::{Api, netboot, reboot, repave, ssh, start, start_plan, states, step};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;

/// A plan with one step.
async fn one_step(api: &Api, id: &str, step: pb::Step) {
    api.create_plan(id, vec![step]).await;
}

fn retrying(mut step: pb::Step, max_retries: i32) -> pb::Step {
    step.max_retries = Some(max_retries);
    step
}

// G-11-07, G-11-10: total attempts = 1 + max_retries, counted where they arrive
#[tokio::test]
async fn two_failures_and_two_retries_succeed_at_the_third_attempt() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "fail:2")]).await;
    one_step(&api, "p", retrying(step("repave", repave("i-1")), 2)).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!((run.phase(), run.steps[0].retry_count), (RunPhase::Succeeded, 2), "{run:?}");
    assert_eq!(api.effect_kinds("m-1"), ["fault", "fault", "repave_started", "repaved"]);
    let attempts: Vec<String> =
        api.effects("m-1").into_iter().filter(|e| e.kind != "created").map(|e| e.operation).collect();
    let ends: Vec<&str> = attempts.iter().filter_map(|key| key.rsplit('.').next()).collect();
    assert_eq!(ends, ["1", "2", "3", "3"], "every attempt has its own key");
}

// G-11-10, G-21-04
#[tokio::test]
async fn one_failure_too_many_fails_the_run() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.netboot", "fail:2")]).await;
    one_step(&api, "p", retrying(step("netboot", netboot()), 1)).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!((run.phase(), states(&run)), (RunPhase::Failed, vec![State::Failed]), "{run:?}");
    assert_eq!(run.steps[0].retry_count, 1);
    let error = run.error.expect("an error");
    assert!(error.retryable && error.class == "transient" && error.message.contains("netboot"), "{error:?}");
    assert_eq!(api.count_effects("m-1", "fault"), 2);
    assert_eq!(api.count_effects("m-1", "netboot"), 0);
}

// G-11-10, T-40: an explicit 0 still runs once, and only once
#[tokio::test]
async fn max_retries_zero_runs_once() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.netboot", "fail:1")]).await;
    one_step(&api, "p", retrying(step("netboot", netboot()), 0)).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!((run.phase(), run.steps[0].retry_count), (RunPhase::Failed, 0));
    assert_eq!(api.count_effects("m-1", "fault"), 1);
    let again = api.carry_out(start_plan("m-1", "p", "r2")).await;
    assert_eq!(again.phase(), RunPhase::Succeeded, "0 means no retry, not no attempt");
}

// G-3-07, CONTRACT "Step defaults": unset is 2
#[tokio::test]
async fn max_retries_unset_is_two() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "fail")]).await;
    one_step(&api, "p", step("reboot", reboot())).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!((run.phase(), run.steps[0].retry_count), (RunPhase::Failed, 2));
    assert_eq!(api.count_effects("m-1", "fault"), 3);
}

// CONTRACT: a step in backoff stays RUNNING and says so in `message`
#[tokio::test]
async fn a_step_in_backoff_is_running_and_says_so() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "fail")]).await;
    one_step(&api, "p", retrying(step("reboot", reboot()), 20)).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    let waiting = |r: &pb::Run| r.steps[0].retry_count >= 1;
    let run = api.until(&run.run_id, "in backoff", waiting).await;
    assert_eq!((run.phase(), run.steps[0].state()), (RunPhase::Running, State::Running));
    assert!(run.steps[0].message.contains("failed") && run.steps[0].message.contains("tries again"), "{run:?}");
    assert!(!run.why.is_empty());
    api.try_cancel(&run.run_id).await.expect("cancels");
}

// G-11-09: a step exceeding timeout_seconds is a failed attempt
#[tokio::test]
async fn a_timeout_is_a_failed_attempt() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "forget:1")]).await;
    // a busy machine may lose another second, which is not what this is about
    let mut short = retrying(step("repave", repave("i-1")), 5);
    short.timeout_seconds = Some(1);
    one_step(&api, "p", short).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert!(run.phase() == RunPhase::Succeeded && run.steps[0].retry_count >= 1, "{run:?}");
    assert_eq!(api.effect_kinds("m-1"), ["fault", "repave_started", "repaved"]);
}

// as above, with no attempt left
#[tokio::test]
async fn a_timeout_without_a_retry_fails_the_run_and_names_itself() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "forget")]).await;
    let mut short = retrying(step("reboot", reboot()), 0);
    short.timeout_seconds = Some(1);
    one_step(&api, "p", short).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    let error = run.error.clone().expect("an error");
    assert_eq!((run.phase(), error.code.as_str()), (RunPhase::Failed, "STEP_TIMED_OUT"), "{run:?}");
    assert!(error.retryable && error.message.contains("1 s"), "{error:?}");
}

// G-3-06, T-40, CONTRACT "Step defaults": unset and 0 are 600 s, read from the engine's own deadline
#[tokio::test]
async fn a_timeout_that_is_unset_or_zero_is_ten_minutes() {
    let api = Api::new().await;
    for (id, seconds, expected) in [("unset", None, 600), ("zero", Some(0), 600), ("set", Some(77), 77)] {
        api.sim(id, &[("sim.fault.reboot", "hang")]).await;
        let mut held = step("reboot", reboot());
        held.timeout_seconds = seconds;
        one_step(&api, id, held).await;
        let run = api.start(start_plan(id, id, "r1")).await;
        let run = api.at_step(&run.run_id, "reboot").await;
        let begun = run.steps[0].started_at.expect("it has begun").seconds;
        let deadline = api.execution(&run.run_id).await.0.deadline.expect("a deadline").seconds;
        let span = deadline - begun;
        assert!((expected - 2..=expected + 2).contains(&span), "{id}: {span} s");
    }
}

// DESIGN section 4: the class decides; another machine is never tried again
#[tokio::test]
async fn a_wrong_machine_is_not_tried_again() {
    let api = Api::new().await;
    for (id, kind) in [("a", netboot()), ("b", repave("i-1")), ("c", reboot())] {
        api.sim(
            id,
            &[
                ("sim.fault.netboot", "wrong-machine"),
                ("sim.fault.repave", "wrong-machine"),
                ("sim.fault.reboot", "wrong-machine"),
            ],
        )
        .await;
        let plan = format!("p-{id}");
        one_step(&api, &plan, retrying(step("only", kind), 5)).await;
        let run = api.carry_out(start_plan(id, &plan, "r1")).await;
        let error = run.error.clone().expect("an error");
        assert_eq!((run.phase(), run.steps[0].retry_count, error.class.as_str()), (RunPhase::Failed, 0, "conflict"));
        let touched: Vec<String> = api.effect_kinds(id).into_iter().filter(|k| k != "fault").collect();
        assert_eq!(touched, Vec::<String>::new(), "nothing was done to it");
    }
}

// the spec's own identity is enough to tell, before anything is touched
#[tokio::test]
async fn a_serial_number_that_does_not_match_stops_the_run() {
    let api = Api::new().await;
    let mut machine = crate::fixture::sim_machine("m-1", &[("sim.fault.repave", "wrong-machine")]);
    machine.spec.as_mut().expect("a spec").serial_number = "SN-1".into();
    api.register(machine).await;
    let run = api.carry_out(start("m-1", "REPAVE", "r1")).await;
    let error = run.error.expect("an error");
    assert_eq!((run.current_step.as_str(), error.code.as_str()), ("set-netboot", "WRONG_MACHINE"), "{error:?}");
    assert!(error.message.contains("SN-1"));
}

// G-4-01: a command that exits with another status than 0 is a failed attempt
#[tokio::test]
async fn a_command_that_fails_is_tried_again_and_its_status_told() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.ssh", "fail")]).await;
    one_step(&api, "p", retrying(step("cmd", ssh("false", &[])), 1)).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    let error = run.error.expect("an error");
    assert_eq!((error.code.as_str(), run.steps[0].retry_count), ("COMMAND_FAILED", 1), "{error:?}");
    assert!(error.message.contains("exit status 1"), "{error:?}");
    assert_eq!(api.count_effects("m-1", "exec_started"), 2);
}

// DESIGN section 4: a call that was sent and never answered is probed, not blindly repeated
#[tokio::test]
async fn a_lost_answer_is_probed_and_not_repeated() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.netboot", "drop"), ("sim.fault.repave", "drop"), ("sim.fault.reboot", "drop")]).await;
    let run = api.carry_out(start("m-1", "REPAVE", "r1")).await;
    assert_eq!(run.phase(), RunPhase::Succeeded, "{run:?}");
    assert!(run.steps.iter().all(|s| s.retry_count == 0));
    for kind in ["netboot", "repave_started", "reset"] {
        assert_eq!(api.count_effects("m-1", kind), 1, "{kind}");
    }
}
