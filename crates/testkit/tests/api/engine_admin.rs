//! The engine's own surface: what it carries out, and the ways to stop it.

use crate::fixture::{Api, is_terminal, on_both, patient, sim_machine, start, states};
use crate::refusal::{refused, refused_field};
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use proto::millwright::v1 as mw;
use testkit::fleet::eventually;
use tonic::{Code, Status};

async fn list(api: &Api, filter: &str, size: i32, token: &str) -> Result<mw::ListExecutionsResponse, Status> {
    let request = mw::ListExecutionsRequest { filter: filter.into(), page_size: size, page_token: token.into() };
    Ok(api.engines().list_executions(request).await?.into_inner())
}

async fn cancel(api: &Api, id: &str) -> Result<mw::Execution, Status> {
    let request = mw::CancelExecutionRequest { execution_id: id.into(), reason: "enough".into() };
    Ok(api.engines().cancel_execution(request).await?.into_inner())
}

async fn terminate(api: &Api, id: &str, reason: &str) -> Result<mw::Execution, Status> {
    let request = mw::TerminateExecutionRequest { execution_id: id.into(), reason: reason.into() };
    Ok(api.engines().terminate_execution(request).await?.into_inner())
}

// DESIGN section 4: executions have records of their own
#[tokio::test]
async fn an_execution_is_described_with_its_journal() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "fail:1")]).await;
    let run = api.carry_out(start("m-1", "REPAVE", "r1")).await;
    let (execution, journal) = api.execution(&run.run_id).await;
    assert_eq!((execution.subject.as_str(), execution.machine_id.as_str()), (run.run_id.as_str(), "m-1"));
    assert_eq!((execution.workflow.as_str(), execution.workflow_version), ("run", 1));
    assert_eq!((execution.status.as_str(), execution.holder.as_str()), ("done", ""));
    assert!(execution.wake_at.is_none() && execution.deadline.is_none(), "it waits for nothing more");
    assert!(execution.fence.contains('.') && execution.created_at.is_some() && execution.updated_at.is_some());
    assert_eq!(journal.iter().map(|e| e.number).collect::<Vec<_>>(), (1..=journal.len() as i64).collect::<Vec<_>>());
    let entries: Vec<&str> = journal.iter().map(|e| e.entry.as_str()).collect();
    assert_eq!((entries[0], entries[entries.len() - 1]), ("requested", "ended"));
    assert_eq!(entries.iter().filter(|e| **e == "stage_entered").count(), 3);
    assert_eq!(entries.iter().filter(|e| **e == "attempt_failed").count(), 1);
    assert_eq!(entries.iter().filter(|e| **e == "stage_done").count(), 3);
    for entry in &journal {
        serde_json::from_str::<serde_json::Value>(&entry.detail_json).expect("JSON");
        assert!(entry.at.is_some() && !entry.fence.is_empty());
    }
    assert_eq!(api.execution(&execution.execution_id).await.0, execution, "by its own id, too");
}

// lists: newest first, filtered, paged
on_both!(executions_are_listed_newest_first_filtered_and_paged, |api| async move {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[("sim.fault.reboot", "wrong-machine")]).await;
    let mut runs = Vec::new();
    for (i, machine) in ["m-1", "m-2", "m-1", "m-1"].into_iter().enumerate() {
        runs.push(api.carry_out(start(machine, "REBOOT", &format!("r{i}"))).await.run_id);
    }
    runs.reverse();
    let subjects =
        |page: mw::ListExecutionsResponse| page.executions.into_iter().map(|e| e.subject).collect::<Vec<_>>();
    assert_eq!(subjects(list(&api, "", 0, "").await.expect("lists")), runs);
    assert_eq!(subjects(list(&api, "status=failed", 0, "").await.expect("lists")), [runs[2].clone()]);
    assert_eq!(subjects(list(&api, "machine_id=m-1 AND workflow=run", 0, "").await.expect("lists")).len(), 3);
    assert_eq!(subjects(list(&api, &format!("subject={}", runs[0]), 0, "").await.expect("lists")), [runs[0].clone()]);
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(&api, "", 3, &token).await.expect("a page");
        token.clone_from(&page.next_page_token);
        seen.extend(subjects(page));
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, runs);
    refused(list(&api, "status=sleepy", 0, "").await, Code::InvalidArgument, "INVALID_FILTER").says("running");
});

// an active execution tells who has it and how long it may take
#[tokio::test]
async fn an_active_execution_names_its_holder_stage_and_deadline() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "repave").await;
    let (execution, _) = api.execution(&run.run_id).await;
    assert_eq!((execution.status.as_str(), execution.stage.as_str(), execution.attempt), ("running", "repave", 1));
    assert!(execution.holder.starts_with("ses_") && execution.deadline.is_some(), "{execution:?}");
    assert_eq!(list(&api, "status=running", 0, "").await.expect("lists").executions.len(), 1);
}

// the same stop as CancelRun, through the engine's own door
on_both!(canceling_an_execution_cancels_its_run, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "repave").await;
    let (execution, _) = api.execution(&run.run_id).await;
    let asked = cancel(&api, &execution.execution_id).await.expect("is asked to stop");
    assert_eq!(asked.cancel_requested_by, "tester");
    let ended = api.ended(&run.run_id).await;
    assert_eq!((ended.phase(), states(&ended)[1]), (RunPhase::Canceled, State::Failed));
    assert!(ended.error.is_some_and(|e| e.code == "CANCELED" && e.message.contains("enough")));
    assert_eq!(api.execution(&run.run_id).await.0.status, "canceled", "T-43: the engine's own spelling");
    assert!(!api.needs_intervention("m-1").await);
});

// DESIGN section 4: terminate ends it now, running no more of its code
on_both!(terminating_an_execution_ends_its_run_at_once, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "repave").await;
    let terminated = terminate(&api, &run.run_id, "it hangs").await.expect("terminates");
    assert_eq!((terminated.status.as_str(), terminated.holder.as_str()), ("terminated", ""));
    let ended = api.run(&run.run_id).await;
    assert_eq!(
        (ended.phase(), states(&ended)),
        (RunPhase::Canceled, vec![State::Succeeded, State::Failed, State::Waiting])
    );
    let error = ended.error.expect("an error");
    assert_eq!(error.code, "TERMINATED");
    assert!(error.message.contains("tester") && error.message.contains("it hangs"), "{error:?}");
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Maintenance, ""));
    assert!(api.needs_intervention("m-1").await, "nobody tidied up: a person should look");
    let (_, journal) = api.execution(&run.run_id).await;
    assert_eq!(journal.last().map(|e| e.entry.as_str()), Some("terminated"));
});

// the worker that had it comes back to a fence
on_both!(the_worker_of_a_terminated_execution_writes_nothing_more, patient(), |api| async move {
    api.sim("m-1", &[("sim.fault.netboot", "slow:700")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "set-netboot").await;
    terminate(&api, &run.run_id, "a test").await.expect("terminates");
    let (ended, described) = (api.run(&run.run_id).await, api.execution(&run.run_id).await);
    assert_eq!(ended.phase(), RunPhase::Canceled);
    // its call was in the air and takes effect; what it would do next, it must not
    eventually("the call in the air to land", || async { (api.count_effects("m-1", "netboot") == 1).then_some(()) })
        .await;
    let next = api.carry_out(start("m-1", "REBOOT", "r2")).await;
    assert_eq!(next.phase(), RunPhase::Succeeded);
    assert_eq!((api.run(&run.run_id).await, api.execution(&run.run_id).await), (ended, described));
    assert_eq!(api.count_effects("m-1", "repave_started"), 0);
});

// before anything has begun there is nothing to tidy up
#[tokio::test]
async fn terminating_a_pending_run_cancels_it() {
    let api = Api::new().await;
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    terminate(&api, &run.run_id, "not wanted").await.expect("terminates");
    let ended = api.run(&run.run_id).await;
    assert_eq!((ended.phase(), api.phase("m-1").await), (RunPhase::Canceled, Phase::Maintenance));
    assert!(ended.error.is_some_and(|e| e.message.contains("not wanted")));
    api.unfreeze().await;
    assert_eq!(api.carry_out(start("m-1", "REBOOT", "r2")).await.phase(), RunPhase::Succeeded);
}

// DESIGN section 1: always a reason, always a way out
#[tokio::test]
async fn a_run_whose_provider_is_gone_says_so_and_can_be_ended() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "fail")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.until(&run.run_id, "in backoff", |r| r.steps[0].retry_count >= 1).await;
    let mut elsewhere = sim_machine("m-1", &[]);
    elsewhere.spec.as_mut().expect("a spec").provider = "gone".into();
    api.register(elsewhere).await;
    let stuck = api.until(&run.run_id, "without its provider", |r| r.why.contains("gone") || is_terminal(r)).await;
    if !is_terminal(&stuck) {
        assert!(stuck.why.contains("terminate"), "the way out is named: {}", stuck.why);
        terminate(&api, &run.run_id, "its provider is gone").await.expect("terminates");
    }
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Maintenance, ""));
}

// CONTRACT: codes
#[tokio::test]
async fn bad_engine_calls_are_refused() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REBOOT", "r1")).await;
    let describe = mw::DescribeExecutionRequest { execution_id: "exe_404".into() };
    refused(api.engines().describe_execution(describe).await, Code::NotFound, "EXECUTION_NOT_FOUND").says("exe_404");
    refused(cancel(&api, "exe_404").await, Code::NotFound, "EXECUTION_NOT_FOUND");
    refused(terminate(&api, "exe_404", "x").await, Code::NotFound, "EXECUTION_NOT_FOUND");
    refused_field(api.engines().describe_execution(mw::DescribeExecutionRequest::default()).await, "execution_id");
    refused_field(cancel(&api, "").await, "execution_id");
    refused_field(terminate(&api, &run.run_id, "").await, "reason");
    refused_field(terminate(&api, &run.run_id, &"x".repeat(3000)).await, "reason");
    refused(terminate(&api, &run.run_id, "late").await, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
    refused(cancel(&api, &run.run_id).await, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
}

// promise 1: no state without a way out, not even one that only damage can make
on_both!(a_run_whose_execution_has_ended_without_it_can_be_ended, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await.run_id;
    api.at_step(&run, "reboot").await;
    let store = api.server.service.store().clone();
    let subject = run.clone();
    let end = move |tx: &mut store::Tx<'_>| {
        let execution = store::execution::by_subject(tx, &subject)?.expect("is there");
        let entry = store::execution::Entry { entry: "damage", detail: serde_json::json!({}) };
        store::execution::end_from_outside(tx, &execution, store::execution::Status::Failed, &entry)
    };
    assert_eq!(store.write(&store::Caller::new("test"), "m-1", end).await, Ok(true));
    let why = api.server.service.explain(&testkit::fleet::admin(), &run).await.expect("explains");
    let allowed: Vec<&str> = why.actions.iter().filter(|a| a.allowed).map(|a| a.name.as_str()).collect();
    assert_eq!(allowed, ["terminate"], "{why:?}");
    terminate(&api, &run, "left behind").await.expect("ends the run");
    let ended = api.run(&run).await;
    assert_eq!(ended.phase(), RunPhase::Canceled);
    assert_eq!(api.phase("m-1").await, Phase::Maintenance, "and lets the machine go");
    refused(terminate(&api, &run, "again").await, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
});
