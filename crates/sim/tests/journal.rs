//! The journal file: what survives, what is cut, what is refused.
#![allow(clippy::unwrap_used, reason = "test code outside test functions")]

mod common;

use common::{Yes as _, clock, machine, op, pass};
use domain::plan::{BootMode, RebootMode};
use millwright_sim::{SimFleet, read_effects};
use provider::{BootControl, ImageControl, Inspect, PowerControl};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

fn journal() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.jsonl");
    (folder, path)
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn effects_are_in_the_file_before_the_call_answers() {
    let (_folder, path) = journal();
    let fleet = SimFleet::open(&path, 1, clock()).unwrap();
    fleet.set_boot(&machine(&[]), BootMode::Http, true, &op("netboot", 2)).await.yes();
    let effects = read_effects(&path).unwrap();
    assert_eq!(effects, fleet.effects().unwrap());
    let netboot = effects.last().unwrap();
    assert_eq!((netboot.number, netboot.machine.as_str(), netboot.kind.as_str()), (3, "m1", "netboot"));
    assert_eq!((&netboot.operation, netboot.fence.as_str()), (&op("netboot", 2).key(), "ses_1:4"));
    assert_eq!(netboot.detail, serde_json::json!({ "mode": "HTTP", "persistent": true }));
}

#[tokio::test(start_paused = true)]
async fn work_under_way_survives_and_ends_once() {
    let (_folder, path) = journal();
    let (clock, m1) = (clock(), machine(&[]));
    let fleet = SimFleet::open(&path, 1, clock.clone()).unwrap();
    fleet.install(&m1, "img", "", &op("repave", 1)).await.yes();
    drop(fleet);
    for _ in 0..3 {
        pass(10).await;
        let fleet = SimFleet::open(&path, 1, clock.clone()).unwrap();
        assert_eq!(fleet.inspect(&m1).await.unwrap().installed.unwrap().image, "img");
    }
    let kinds: Vec<String> = read_effects(&path).unwrap().into_iter().map(|e| e.kind).collect();
    assert_eq!(kinds, ["created", "repave_started", "repaved"]);
}

#[tokio::test(start_paused = true)]
async fn a_torn_last_line_is_cut_off_wherever_it_tore() {
    let (_folder, path) = journal();
    let (clock, m1) = (clock(), machine(&[("sim.latency_ms", "0")]));
    let fleet = SimFleet::open(&path, 1, clock.clone()).unwrap();
    fleet.set_boot(&m1, BootMode::Pxe, true, &op("netboot", 1)).await.yes();
    let kept = std::fs::read(&path).unwrap();
    fleet.reset(&m1, RebootMode::Bmc, &op("reboot", 1)).await.yes();
    drop(fleet);
    let whole = std::fs::read(&path).unwrap();
    for length in kept.len()..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(read_effects(&path).unwrap().len(), 2, "cut at {length}");
        let fleet = SimFleet::open(&path, 1, clock.clone()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), kept, "cut at {length}");
        assert!(fleet.inspect(&m1).await.unwrap().reachable);
        fleet.clear_boot(&m1, &op("netboot", 1)).await.yes();
        assert_eq!(fleet.effects().unwrap().last().unwrap().number, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_malformed_line_is_named() {
    let good = r#"{"number":1,"at_micros":0,"machine":"m1","operation":"","fence":"","kind":"created","detail":{"serial_number":"s","system_uuid":"u"}}"#;
    for (second, problem) in [
        ("not json".to_owned(), "expected"),
        (String::new(), "EOF"),
        (good.to_owned(), "numbered 1"),
        (good.replace(":1,", ":2,").replace("created", "exploded"), "exploded"),
        (good.replace(":1,", ":2,").replace("created", "booted").replace("m1", "m2"), "never created"),
    ] {
        let (_folder, path) = journal();
        std::fs::write(&path, format!("{good}\n{second}\n{good}\n")).unwrap();
        let error = SimFleet::open(&path, 1, clock()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("line 2") && error.contains(problem), "{second}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_spoilt_in_use_refuses_calls() {
    let (_folder, path) = journal();
    let (fleet, m1) = (SimFleet::open(&path, 1, clock()).unwrap(), machine(&[]));
    fleet.inspect(&m1).await.unwrap();
    append(&path, "garbage\n");
    let message = fleet.inspect(&m1).await.unwrap_err().to_string();
    assert!(message.contains("line 2"), "{message}");
}
