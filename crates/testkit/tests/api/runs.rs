//! Reading runs: one, and lists of them; and that an ended run never changes again.

use crate::fixture::{Api, map, on_both, start, start_plan, states};
use crate::refusal::{refused, refused_field};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step_status::State;
use proto::millwright::v1 as mw;
use tonic::{Code, Status};

async fn page(api: &Api, filter: &str, size: i32, token: &str) -> Result<pb::ListRunsResponse, Status> {
    let request = pb::ListRunsRequest { filter: filter.into(), page_size: size, page_token: token.into() };
    Ok(api.runs().list_runs(request).await?.into_inner())
}

fn at(time: Option<prost_reflect::prost_types::Timestamp>) -> (i64, i32) {
    time.map(|t| (t.seconds, t.nanos)).expect("a time")
}

// G-5-03, G-9-06, G-14-04: phase, step states and times, by step name
#[tokio::test]
async fn a_finished_run_tells_its_whole_story() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REPAVE", "req-1")).await;
    assert_eq!(run, api.run(&run.run_id).await);
    assert_eq!((run.phase(), states(&run)), (RunPhase::Succeeded, vec![State::Succeeded; 3]));
    let mut times = vec![at(run.created_at), at(run.started_at)];
    for step in &run.steps {
        times.extend([at(step.started_at), at(step.finished_at)]);
        assert!(!step.message.is_empty(), "{step:?}");
    }
    times.push(at(run.finished_at));
    assert!(times.is_sorted(), "{times:?}");
}

// G-21-09
#[tokio::test]
async fn an_unknown_run_is_not_found_everywhere() {
    let api = Api::new().await;
    let id = || "run_404".to_owned();
    let mut runs = api.runs();
    let not_found = |r: Result<(), Status>| refused(r, Code::NotFound, "RUN_NOT_FOUND").says("run_404");
    not_found(runs.get_run(pb::GetRunRequest { run_id: id() }).await.map(drop));
    not_found(api.try_cancel("run_404").await.map(drop));
    not_found(runs.stream_run_logs(pb::StreamRunLogsRequest { run_id: id(), ..Default::default() }).await.map(drop));
    let watch = pb::WatchRunsRequest { filter: "run_id=run_404".into(), after_sequence: None };
    not_found(runs.watch_runs(watch).await.map(drop));
    refused_field(runs.get_run(pb::GetRunRequest::default()).await, "run_id");
    refused_field(api.try_cancel("").await, "run_id");
    refused_field(runs.stream_run_logs(pb::StreamRunLogsRequest::default()).await.map(drop), "run_id");
}

// G-17-06: filters by every field
on_both!(runs_are_filtered_by_their_fields, |api| async move {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[("sim.fault.reboot", "wrong-machine")]).await;
    let a = api.carry_out(start("m-1", "REBOOT", "req-1")).await.run_id;
    let b = api.carry_out(start_plan("m-1", "default-reboot", "req-2")).await.run_id;
    let c = api.carry_out(start("m-2", "REBOOT", "req-1")).await.run_id;
    api.freeze().await;
    let d = api.start(start("m-2", "REPAVE", "req-3")).await.run_id;
    for (filter, expected) in [
        (String::new(), vec![&d, &c, &b, &a]),
        ("machine_id=m-1".into(), vec![&b, &a]),
        (format!("run_id={c}"), vec![&c]),
        ("request_id=req-1".into(), vec![&c, &a]),
        ("type=REBOOT".into(), vec![&c, &a]),
        ("type=\"\"".into(), vec![&b]),
        ("plan_id=default-reboot".into(), vec![&c, &b, &a]),
        ("phase=PENDING".into(), vec![&d]),
        ("phase=SUCCEEDED OR phase=FAILED".into(), vec![&c, &b, &a]),
        ("machine_id=m-2 AND NOT phase=FAILED".into(), vec![&d]),
        ("phase=CANCELED".into(), vec![]),
    ] {
        let found: Vec<String> = api.list_runs(&filter).await.into_iter().map(|r| r.run_id).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter}");
    }
});

// CONTRACT: a bad filter is INVALID_ARGUMENT
#[tokio::test]
async fn bad_run_filters_are_refused() {
    let api = Api::new().await;
    for (filter, says) in [("phase=DONE", "PENDING"), ("labels.env=prod", "labels"), ("type=DANCE", "REPAVE")] {
        refused(page(&api, filter, 0, "").await, Code::InvalidArgument, "INVALID_FILTER").says(says);
    }
}

// CONTRACT ListRunsRequest: pages, newest first, each run once, also while runs are added
on_both!(run_pages_are_complete_and_newest_first, |api| async move {
    api.sim("m-1", &[]).await;
    let mut ids = Vec::new();
    for i in 0..11 {
        ids.push(api.carry_out(start("m-1", "NET_RECONFIG", &format!("req-{i}"))).await.run_id);
    }
    ids.reverse();
    for size in [1, 4, 11, 12] {
        let (mut seen, mut token, mut extra) = (Vec::new(), String::new(), 0);
        loop {
            let next = page(&api, "machine_id=m-1", size, &token).await.expect("a page");
            seen.extend(next.runs.into_iter().map(|r| r.run_id));
            token = next.next_page_token;
            if token.is_empty() {
                break;
            }
            // a newer one stands before the place where we are
            if size == 4 && extra < 2 {
                extra += 1;
                api.carry_out(start("m-1", "NET_RECONFIG", &format!("late-{extra}"))).await;
            }
        }
        assert_eq!(seen, ids, "pages of {size}");
        ids = api.list_runs("").await.into_iter().map(|r| r.run_id).collect();
    }
});

// G-5-04, T-06: nothing moves a run that has ended
on_both!(an_ended_run_never_changes, |api| async move {
    api.sim("ok", &[]).await;
    api.sim("bad", &[("sim.fault.reboot", "wrong-machine")]).await;
    api.sim("stopped", &[("sim.fault.reboot", "hang")]).await;
    let mut ended = Vec::new();
    for id in ["ok", "bad"] {
        ended.push(api.carry_out(start(id, "REBOOT", "req-1")).await);
    }
    let run = api.start(start("stopped", "REBOOT", "req-1")).await;
    api.at_step(&run.run_id, "reboot").await;
    ended.push(api.try_cancel(&run.run_id).await.expect("cancels"));
    for run in &ended {
        let id = &run.run_id;
        drop(api.try_cancel(id).await);
        let terminate = mw::TerminateExecutionRequest { execution_id: id.clone(), reason: "a test".into() };
        refused(api.engines().terminate_execution(terminate).await, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
        let cancel = mw::CancelExecutionRequest { execution_id: id.clone(), reason: "a test".into() };
        refused(api.engines().cancel_execution(cancel).await, Code::FailedPrecondition, "RUN_ALREADY_ENDED");
        api.sim(&run.machine_id, &[("changed", "since")]).await;
        api.carry_out(start(&run.machine_id, "REPAVE", "req-2")).await;
        api.set_phase(&run.machine_id, Phase::Rma).await;
        assert_eq!(api.run(id).await, *run);
    }
});

// G-9-07, G-9-08: what happened stands on the run, and the machine's own fields say nothing of steps
#[tokio::test]
async fn parameters_and_override_reason_are_kept_with_the_run() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let request = pb::StartRunRequest {
        parameters: map(&[("mode", "force")]),
        override_reason: "the rack burns".into(),
        ..start("m-1", "REBOOT", "req-1")
    };
    let run = api.carry_out(request).await;
    assert_eq!(api.run(&run.run_id).await.parameters, map(&[("mode", "force")]));
    let reset = api.effects("m-1").into_iter().find(|e| e.kind == "reset").expect("a reset");
    assert_eq!(reset.detail["mode"], "force");
}
