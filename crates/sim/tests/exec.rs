//! Commands: their output in order and in pages, one start per key, and their ends.

mod common;

use common::{Yes as _, clock, command, count, fleet, machine, op, pass, the_one};
use domain::plan::RebootMode;
use millwright_sim::SimFleet;
use provider::{Ack, Exec, ExecState, PowerControl, Stream};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn output_comes_in_order_with_the_end() {
    let (fleet, m1, op) = (fleet(), machine(&[]), op("ssh", 1));
    assert_eq!(fleet.poll(&m1, &op, 0).await.unwrap().state, ExecState::NeverStarted);
    let start = Instant::now();
    assert_eq!(fleet.start(&m1, &command("echo", &["hello", "world"]), &op).await, Ok(Ack::Accepted));
    assert_eq!(start.elapsed(), Duration::ZERO);
    let progress = fleet.poll(&m1, &op, 0).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(10), "waited for news");
    let printed: Vec<(Stream, &str)> =
        progress.output.iter().map(|c| (c.stream, std::str::from_utf8(&c.data).unwrap())).collect();
    let expected = [
        (Stream::Stdout, "+ echo hello world\n"),
        (Stream::Stderr, "warning: simulated\n"),
        (Stream::Stdout, "hello world\n"),
    ];
    assert_eq!(printed, expected);
    assert_eq!(progress.state, ExecState::Exited(0));
    let total: usize = expected.iter().map(|(_, text)| text.len()).sum();
    assert_eq!(progress.offset, total as u64);
    let rest = fleet.poll(&m1, &op, 25).await.unwrap();
    assert_eq!(rest.output[0].data, b"g: simulated\n"[..].to_vec());
    assert_eq!(fleet.poll(&m1, &op, progress.offset).await.unwrap().output, vec![]);
}

#[tokio::test(start_paused = true)]
async fn one_key_is_one_command_and_secrets_stay_out_of_the_journal() {
    let (fleet, m1, op) = (fleet(), machine(&[]), op("ssh", 1));
    for _ in 0..3 {
        assert_eq!(fleet.start(&m1, &command("true", &[]), &op).await, Ok(Ack::Accepted));
        pass(10).await;
    }
    assert_eq!((count(&fleet, "exec_started"), count(&fleet, "exec_finished")), (1, 1));
    let started = the_one(&fleet, "exec_started");
    assert_eq!(started.detail["environment"], serde_json::json!(["TOKEN"]));
    assert!(!serde_json::to_string(&started).unwrap().contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn a_poll_waits_200_ms_at_most() {
    let (fleet, m1, op) = (fleet(), machine(&[("sim.latency_ms", "60000")]), op("ssh", 1));
    fleet.start(&m1, &command("true", &[]), &op).await.yes();
    let start = Instant::now();
    let progress = fleet.poll(&m1, &op, 0).await.unwrap();
    assert_eq!((progress.state, progress.output, progress.offset), (ExecState::Running, vec![], 0));
    assert_eq!(start.elapsed(), Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn long_output_comes_in_pages_of_64_kib_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.jsonl");
    let (m1, op) = (machine(&[("sim.output_bytes", "200000")]), op("ssh", 1));
    let mut fleet = SimFleet::open(&path, 1, clock()).unwrap();
    fleet.start(&m1, &command("dmesg", &[]), &op).await.yes();
    pass(10).await;
    let (mut stdout, mut stderr, mut offset, mut pages) = (Vec::new(), Vec::new(), 0, 0);
    let end = loop {
        let progress = fleet.poll(&m1, &op, offset).await.unwrap();
        let size: usize = progress.output.iter().map(|c| c.data.len()).sum();
        assert!(size <= 64 * 1024);
        assert_eq!(progress.offset, offset + size as u64);
        for chunk in progress.output {
            if chunk.stream == Stream::Stdout { stdout.extend(chunk.data) } else { stderr.extend(chunk.data) }
        }
        (offset, pages) = (progress.offset, pages + 1);
        if progress.state != ExecState::Running {
            break progress.state;
        }
        drop(fleet);
        fleet = SimFleet::open(&path, 1, clock()).unwrap();
    };
    assert_eq!((end, pages, stdout.len()), (ExecState::Exited(0), 4, 200_000));
    assert_eq!(stderr, b"warning: simulated\n");
    let expected: String = (1..).map(|i| format!("line {i}\n")).take(30_000).collect();
    assert_eq!(stdout, expected.as_bytes()[..200_000]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_command_exits_137_once() {
    let (fleet, m1, op) = (fleet(), machine(&[("sim.latency_ms", "60000")]), op("ssh", 1));
    fleet.start(&m1, &command("sleep", &["60"]), &op).await.yes();
    assert_eq!(fleet.kill(&m1, &op).await, Ok(Ack::Done));
    assert_eq!(fleet.kill(&m1, &op).await, Ok(Ack::Done));
    let progress = fleet.poll(&m1, &op, 0).await.unwrap();
    assert_eq!(progress.state, ExecState::Exited(137));
    assert_eq!(progress.output[0].data, b"+ sleep 60\n");
    pass(120_000).await;
    assert_eq!((count(&fleet, "exec_killed"), count(&fleet, "exec_finished")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reset_takes_running_commands_with_it() {
    let (fleet, m1, ssh) = (fleet(), machine(&[("sim.latency_ms", "1000")]), op("ssh", 1));
    fleet.start(&m1, &command("sleep", &["1"]), &ssh).await.yes();
    let quick = machine(&[("sim.latency_ms", "1")]);
    fleet.reset(&quick, RebootMode::Bmc, &op("reboot", 1)).await.yes();
    pass(5000).await;
    assert_eq!(fleet.poll(&m1, &ssh, 0).await.unwrap().state, ExecState::Exited(137));
}

#[tokio::test(start_paused = true)]
async fn a_host_runs_so_many_commands_and_no_more() {
    let (fleet, m1) = (fleet(), machine(&[("sim.latency_ms", "60000")]));
    for attempt in 1..=32 {
        fleet.start(&m1, &command("sleep", &["60"]), &op("ssh", attempt)).await.yes();
    }
    assert!(fleet.start(&m1, &command("sleep", &["60"]), &op("ssh", 33)).await.is_err());
}
