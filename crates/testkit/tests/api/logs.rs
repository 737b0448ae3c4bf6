//! StreamRunLogs: what the steps printed, stored first, in order, the two streams apart.

use crate::fixture::{Api, on_both, reboot, repave, ssh, start, start_plan, step, within};
use crate::refusal::refused;
use futures::StreamExt as _;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run::Phase as RunPhase;
use tonic::{Code, Status, Streaming};

async fn try_logs(api: &Api, run: &str, after: u64, no_follow: bool) -> Result<Streaming<pb::LogChunk>, Status> {
    let request = pb::StreamRunLogsRequest { run_id: run.into(), after_sequence: after, no_follow };
    Ok(api.runs().stream_run_logs(request).await?.into_inner())
}

/// To the end of the stream.
async fn logs(api: &Api, run: &str, after: u64, no_follow: bool) -> Vec<pb::LogChunk> {
    let stream = try_logs(api, run, after, no_follow).await.expect("the logs begin");
    within("the end of the logs", stream.map(|c| c.expect("no error")).collect()).await
}

fn lines(chunks: &[pb::LogChunk]) -> Vec<(&str, &str, String)> {
    let line = |c: &'_ pb::LogChunk| String::from_utf8(c.data.clone()).expect("text");
    chunks.iter().map(|c| (c.step.as_str(), c.stream.as_str(), line(c))).collect()
}

fn numbered_without_holes(chunks: &[pb::LogChunk], from: u64) {
    let numbers: Vec<u64> = chunks.iter().map(|c| c.sequence).collect();
    assert_eq!(numbers, (from..from + numbers.len() as u64).collect::<Vec<_>>());
}

async fn two_commands(api: &Api) -> pb::Run {
    api.create_plan("two", vec![step("one", ssh("echo", &["hello"])), step("two", ssh("uptime", &["-p"]))]).await;
    api.carry_out(start_plan("m-1", "two", "r1")).await
}

// stdout and stderr apart and in order; G-9-08, G-18-14
on_both!(a_commands_output_is_kept_in_order_with_its_streams_apart, |api| async move {
    api.sim("m-1", &[]).await;
    let run = two_commands(&api).await;
    let chunks = logs(&api, &run.run_id, 0, false).await;
    assert_eq!(
        lines(&chunks),
        [
            ("one", "stdout", "+ echo hello\n".into()),
            ("one", "stderr", "warning: simulated\n".into()),
            ("one", "stdout", "hello\n".into()),
            ("two", "stdout", "+ uptime -p\n".into()),
            ("two", "stderr", "warning: simulated\n".into()),
            ("two", "stdout", "ok\n".into()),
        ]
    );
    numbered_without_holes(&chunks, 1);
    assert!(chunks.iter().all(|c| c.run_id == run.run_id && c.ts.is_some()));
});

// G-17-13, G-12-07: a finished run replays, as often as one likes
#[tokio::test]
async fn a_finished_run_replays_its_logs_and_ends() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = two_commands(&api).await;
    let first = logs(&api, &run.run_id, 0, false).await;
    api.carry_out(start("m-1", "REBOOT", "another")).await;
    assert_eq!(logs(&api, &run.run_id, 0, false).await, first);
    assert_eq!(logs(&api, &run.run_id, 0, true).await, first);
}

// CONTRACT StreamRunLogsRequest.after_sequence
#[tokio::test]
async fn logs_resume_after_any_sequence() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = two_commands(&api).await;
    let whole = logs(&api, &run.run_id, 0, false).await;
    for after in 0..=whole.len() {
        let rest = logs(&api, &run.run_id, after as u64, false).await;
        assert_eq!(rest, whole[after..], "after {after}");
    }
    for beyond in [whole.len() as u64 + 1, u64::MAX] {
        let refusal = try_logs(&api, &run.run_id, beyond, false).await.map(drop);
        let refusal = refused(refusal, Code::OutOfRange, "SEQUENCE_OUT_OF_RANGE");
        assert_eq!((refusal.details["first"].as_str(), refusal.details["head"].as_str()), ("1", "6"));
    }
}

// G-17-13, G-20-10: a live run replays, then follows, and the stream ends with the run
on_both!(logs_of_a_live_run_are_followed_to_its_end, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang:1")]).await;
    let mut held = step("held", repave("i-1"));
    held.timeout_seconds = Some(1);
    let steps = vec![step("before", ssh("echo", &["a"])), held, step("after", ssh("echo", &["b"]))];
    api.create_plan("p", steps).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    let mut stream = try_logs(&api, &run.run_id, 0, false).await.expect("the logs begin");
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(within("a chunk", stream.message()).await.expect("no error").expect("a chunk"));
    }
    assert_eq!(api.run(&run.run_id).await.phase(), RunPhase::Running, "told while it happens");
    let rest: Vec<pb::LogChunk> = within("the end", stream.map(|c| c.expect("no error")).collect()).await;
    live.extend(rest);
    assert_eq!(api.run(&run.run_id).await.phase(), RunPhase::Succeeded, "and to the end");
    assert_eq!(live.len(), 6);
    assert_eq!(logs(&api, &run.run_id, 0, true).await, live, "what was streamed is what is stored");
});

// CONTRACT StreamRunLogsRequest.no_follow
#[tokio::test]
async fn no_follow_ends_after_what_is_stored() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    api.create_plan("p", vec![step("say", ssh("echo", &["a"])), step("hang", reboot())]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    api.at_step(&run.run_id, "hang").await;
    assert_eq!(logs(&api, &run.run_id, 0, true).await.len(), 3);
    assert_eq!(api.run(&run.run_id).await.phase(), RunPhase::Running);
}

// a run that is canceled ends its followers, too
#[tokio::test]
async fn a_follower_ends_when_the_run_is_canceled() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    let (followed, canceled) = tokio::join!(logs(&api, &run.run_id, 0, false), api.try_cancel(&run.run_id));
    canceled.expect("cancels");
    assert_eq!(followed, vec![], "a reboot prints nothing");
}

// a cap per step, and a marker where it cut
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_cut_at_the_cap_with_a_marker() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.output_bytes", "3000000")]).await;
    let mut steps = vec![step("much", ssh("yes", &[])), step("more", ssh("yes", &[]))];
    steps.iter_mut().for_each(|s| (s.timeout_seconds, s.max_retries) = (Some(30), Some(0)));
    api.create_plan("p", steps).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    let chunks = logs(&api, &run.run_id, 0, false).await;
    assert_eq!(api.ended(&run.run_id).await.phase(), RunPhase::Succeeded);
    numbered_without_holes(&chunks, 1);
    for step in ["much", "more"] {
        let of_step: Vec<&pb::LogChunk> = chunks.iter().filter(|c| c.step == step).collect();
        let (marker, output) = of_step.split_last().expect("output");
        let text = String::from_utf8_lossy(&marker.data).into_owned();
        assert!(marker.stream == "stderr" && text.contains("cut") && text.contains("1048576"), "{text}");
        let kept: Vec<u8> = output.iter().flat_map(|c| c.data.clone()).collect();
        assert_eq!(kept.len(), 1024 * 1024, "the cap is of the step");
        assert!(kept.starts_with(b"warning: simulated\nline 1\nline 2\n"));
    }
}

// every attempt's output is kept, under its step
#[tokio::test]
async fn the_output_of_failed_attempts_is_kept() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.ssh", "fail:1")]).await;
    api.create_plan("p", vec![step("cmd", ssh("work", &[]))]).await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!(run.phase(), RunPhase::Succeeded);
    let chunks = logs(&api, &run.run_id, 0, false).await;
    let text: Vec<String> = lines(&chunks).into_iter().map(|l| l.2).collect();
    assert!(text.contains(&"error: simulated failure of work\n".to_owned()), "{text:?}");
    assert_eq!(text.last().map(String::as_str), Some("ok\n"));
    numbered_without_holes(&chunks, 1);
}

// a server that stops says so, and the client knows where to go on
#[tokio::test]
async fn a_stopping_server_ends_followers_as_unavailable() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    let mut stream = try_logs(&api, &run.run_id, 0, false).await.expect("the logs begin");
    api.server.service.close();
    let status = within("the end of the logs", stream.message()).await.expect_err("the stream ends with an error");
    refused(Err::<(), _>(status), Code::Unavailable, "SHUTTING_DOWN");
}
