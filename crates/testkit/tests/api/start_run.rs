//! StartRun: one active run for each machine, one run for each request, whoever asks how often.

use crate::fixture::{Api, map, on_both, start, start_plan};
use crate::refusal::refused;
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use std::collections::BTreeSet;
use tonic::{Code, Status};

/// Each request from a program of its own: ten connections, ten calls at once.
async fn at_once(api: &Api, requests: Vec<pb::StartRunRequest>) -> Vec<Result<pb::Run, Status>> {
    let mut clients = Vec::new();
    for _ in &requests {
        clients.push(api.server.runs().await);
    }
    let calls = clients.iter_mut().zip(requests).map(|(client, request)| client.start_run(request));
    join_all(calls).await.into_iter().map(|r| r.map(tonic::Response::into_inner)).collect()
}

// G-12-03, G-20-07, G-21-02; one wins, nine FAILED_PRECONDITION
on_both!(ten_starts_with_different_ids_have_one_winner, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let requests = (0..10).map(|i| start("m-1", "REPAVE", &format!("req-{i}"))).collect();
    let (won, lost): (Vec<_>, Vec<_>) = at_once(&api, requests).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    let winner = won.into_iter().next().and_then(Result::ok).expect("one");
    for refusal in lost {
        let refusal = refused(refusal, Code::FailedPrecondition, "ACTIVE_RUN").says(&winner.run_id);
        assert_eq!(refusal.details["run_id"], winner.run_id);
    }
    assert_eq!(api.list_runs("machine_id=m-1").await.len(), 1, "the losers left nothing");
    assert_eq!(api.status("m-1").await.active_run_id, winner.run_id);
});

// G-12-02, G-20-06; with the same id one run, ten equal answers
on_both!(ten_starts_with_the_same_id_are_one_run, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let answers = at_once(&api, vec![start("m-1", "REPAVE", "req-1"); 10]).await;
    let runs: Vec<pb::Run> = answers.into_iter().map(|r| r.expect("every one is answered")).collect();
    // what it waits for is told by the clock; all else is equal
    let plain = |r: &pb::Run| pb::Run { why: String::new(), ..r.clone() };
    assert!(runs.iter().all(|r| plain(r) == plain(&runs[0])), "{runs:?}");
    assert_eq!(api.list_runs("machine_id=m-1").await.len(), 1);
    api.unfreeze().await;
    assert_eq!(api.ended(&runs[0].run_id).await.phase(), RunPhase::Succeeded);
    assert_eq!(api.count_effects("m-1", "repave_started"), 1, "and it was carried out once");
});

// T-23: one id, ten bodies: one is the request, the others are refused
on_both!(ten_bodies_with_the_same_id_have_one_winner, |api| async move {
    api.sim("m-1", &[("sim.fault.net", "hang")]).await;
    let body = |i: u32| pb::StartRunRequest {
        parameters: map(&[("mtu", &i.to_string())]),
        ..start("m-1", "NET_RECONFIG", "req-1")
    };
    let answers = at_once(&api, (0..10).map(body).collect()).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    let winner = won.into_iter().next().and_then(Result::ok).expect("one");
    for refusal in lost {
        let refusal = refused(refusal, Code::AlreadyExists, "REQUEST_ID_REUSED");
        assert_eq!(refusal.details["run_id"], winner.run_id);
    }
});

// one after another: each start finds the machine free or names who holds it
on_both!(starts_that_race_with_ends_never_overlap, |api| async move {
    api.sim("m-1", &[]).await;
    let mut started = BTreeSet::new();
    for round in 0..8 {
        let requests = (0..4).map(|i| start("m-1", "REBOOT", &format!("req-{round}-{i}"))).collect();
        for answer in at_once(&api, requests).await {
            match answer {
                Ok(run) => drop(started.insert(run.run_id)),
                Err(status) => drop(refused(Err::<(), _>(status), Code::FailedPrecondition, "ACTIVE_RUN")),
            }
        }
    }
    let mut spans = Vec::new();
    for id in &started {
        let run = api.ended(id).await;
        assert_eq!(run.phase(), RunPhase::Succeeded);
        let time = |t: Option<prost_reflect::prost_types::Timestamp>| t.map(|t| (t.seconds, t.nanos)).expect("a time");
        spans.push((time(run.created_at), time(run.finished_at)));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "two held the machine at once: {spans:?}");
    assert_eq!(api.count_effects("m-1", "reset"), started.len());
});

// SetPhase and StartRun cannot both win
on_both!(a_start_and_a_retirement_at_once_leave_no_active_run_on_a_retired_machine, |api| async move {
    for i in 0..8 {
        let id = format!("m-{i}");
        api.sim(&id, &[("sim.fault.reboot", "hang")]).await;
        let (started, retired) =
            tokio::join!(api.try_start(start(&id, "REBOOT", "r1")), api.try_set_phase(&id, Phase::Retired));
        match (started, retired) {
            (Ok(run), Err(status)) => {
                assert_eq!(status.code(), Code::FailedPrecondition);
                assert_eq!(api.status(&id).await.active_run_id, run.run_id);
            }
            (Err(status), Ok(_)) => {
                refused(Err::<(), _>(status), Code::FailedPrecondition, "PHASE_FORBIDS_RUN");
                assert_eq!(api.status(&id).await.active_run_id, "");
            }
            (started, retired) => panic!("{started:?} and {retired:?}"),
        }
    }
});

// G-12-02, G-14-03, G-21-08: replay while PENDING
on_both!(a_replay_while_pending_returns_the_run, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let first = api.start(start("m-1", "REPAVE", "req-1")).await;
    assert_eq!(first.phase(), RunPhase::Pending);
    let again = api.start(start("m-1", "REPAVE", "req-1")).await;
    assert_eq!((again.phase(), again.run_id), (RunPhase::Pending, first.run_id));
});

// G-14-03: the same run with phase RUNNING, not FAILED_PRECONDITION
on_both!(a_replay_while_running_returns_the_run, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let first = api.start(start("m-1", "REPAVE", "req-1")).await;
    api.at_step(&first.run_id, "repave").await;
    let again = api.start(start("m-1", "REPAVE", "req-1")).await;
    assert_eq!((again.phase(), again.run_id), (RunPhase::Running, first.run_id));
});

// G-12-02: and after every kind of end
on_both!(a_replay_after_the_end_returns_the_run_and_does_nothing, |api| async move {
    let cases = [
        ("ok", [("sim.latency_ms", "0")], RunPhase::Succeeded),
        ("bad", [("sim.fault.reboot", "wrong-machine")], RunPhase::Failed),
        ("stopped", [("sim.fault.reboot", "hang")], RunPhase::Canceled),
    ];
    for (id, labels, phase) in cases {
        api.sim(id, &labels).await;
        let run = api.start(start(id, "REBOOT", "req-1")).await;
        if phase == RunPhase::Canceled {
            api.at_step(&run.run_id, "reboot").await;
            api.try_cancel(&run.run_id).await.expect("cancels");
        }
        let ended = api.ended(&run.run_id).await;
        assert_eq!(ended.phase(), phase);
        let (machine, effects) = (api.machine(id).await, api.effects(id));
        assert_eq!(api.start(start(id, "REBOOT", "req-1")).await, ended);
        assert_eq!(api.list_runs(&format!("machine_id={id}")).await, [ended]);
        assert_eq!((api.machine(id).await, api.effects(id)), (machine, effects));
    }
});

// a replay is answered even when the machine could no longer start it
#[tokio::test]
async fn a_replay_is_answered_on_a_machine_that_has_been_retired_since() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    api.set_phase("m-1", Phase::Retired).await;
    assert_eq!(api.start(start("m-1", "REBOOT", "req-1")).await, run);
}

// T-23: the same id with another body is refused, naming the run; any part of the body counts
on_both!(a_reused_id_with_another_body_is_refused_and_names_the_run, |api| async move {
    api.sim("m-1", &[]).await;
    let first = api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    let same = || start("m-1", "REBOOT", "req-1");
    for other in [
        start("m-1", "REPAVE", "req-1"),
        start_plan("m-1", "default-reboot", "req-1"),
        pb::StartRunRequest { plan_id: "default-reboot".into(), ..same() },
        pb::StartRunRequest { parameters: map(&[("mode", "force")]), ..same() },
        pb::StartRunRequest { override_reason: "because".into(), ..same() },
    ] {
        let refusal = refused(api.try_start(other).await, Code::AlreadyExists, "REQUEST_ID_REUSED");
        assert_eq!(refusal.says(&first.run_id).details["run_id"], first.run_id);
    }
    assert_eq!(api.list_runs("").await.len(), 1);
});

// G-20-05: request ids are scoped to the machine
on_both!(the_same_id_on_another_machine_is_a_new_run, |api| async move {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[]).await;
    let one = api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    let two = api.carry_out(start("m-2", "NET_RECONFIG", "req-1")).await;
    assert_ne!(one.run_id, two.run_id);
    assert_eq!((one.machine_id.as_str(), two.machine_id.as_str()), ("m-1", "m-2"));
});

// G-20-08, G-14-02: StartRun returns at once with a handle
#[tokio::test]
async fn a_start_answers_with_a_pending_handle() {
    let api = Api::new().await;
    api.freeze().await;
    api.sim("m-1", &[]).await;
    let request = pb::StartRunRequest { parameters: map(&[("image", "i-1")]), ..start("m-1", "REPAVE", "req-1") };
    let run = api.start(request).await;
    assert!(run.run_id.starts_with("run_") && run.run_id.len() == 36);
    assert_eq!((run.machine_id.as_str(), run.request_id.as_str()), ("m-1", "req-1"));
    assert_eq!((run.r#type.as_str(), run.plan_id.as_str()), ("REPAVE", "default-repave"));
    assert_eq!((run.phase(), run.current_step.as_str(), run.version), (RunPhase::Pending, "", 1));
    assert_eq!(run.parameters, map(&[("image", "i-1")]));
    assert!(run.created_at.is_some() && run.started_at.is_none() && run.finished_at.is_none());
    assert!(run.steps.iter().all(|s| s.state() == pb::step_status::State::Waiting && s.started_at.is_none()));
    let status = api.status("m-1").await;
    assert_eq!((status.active_run_id.as_str(), status.phase()), (run.run_id.as_str(), Phase::FactoryReady));
    assert_eq!(status.effective_state(), Phase::Provisioning, "G-8-02, T-09");
}

// G-20-17, G-20-18: the run does not live in the call that started it
#[tokio::test]
async fn a_run_outlives_the_client_that_started_it() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.latency_ms", "20")]).await;
    let run = {
        let mut client = api.server.runs().await;
        client.start_run(start("m-1", "REPAVE", "req-1")).await.expect("starts").into_inner()
    };
    assert_eq!(api.ended(&run.run_id).await.phase(), RunPhase::Succeeded);
}
