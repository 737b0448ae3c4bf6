//! The engine is dropped after every journal entry, once at each; a new one recovers and must converge.
//! The verdict comes from the simulated fleet's effect journal: nothing lost, nothing doubled.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

use domain::run::RunPhase;
use engine::{Engine, JournalObserver};
use service::{NewMachine, RunView, Service};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use testkit::fleet::{Database, Fleet, admin, eventually, machine, quick, start};

/// The engine dies right after its `n`th journal entry (0: never). Counts what it saw.
struct Reaper {
    engine: OnceLock<Engine>,
    after: usize,
    seen: AtomicUsize,
}

impl Reaper {
    fn new(after: usize) -> Arc<Self> {
        Arc::new(Self { engine: OnceLock::new(), after, seen: AtomicUsize::new(0) })
    }

    fn observer(self: &Arc<Self>) -> JournalObserver {
        let reaper = self.clone();
        Arc::new(move |_, _| {
            if reaper.seen.fetch_add(1, Ordering::SeqCst) + 1 == reaper.after {
                reaper.engine.get().expect("an engine").kill();
            }
        })
    }
}

fn subject(run_type: &str) -> NewMachine {
    let mut machine = machine("m-1");
    if run_type != "RMA" {
        "prod".clone_into(&mut machine.spec.target_cluster_ref);
    }
    machine
}

/// What must have happened to the machine, however often the engine died: effect kind to count.
fn expected(run_type: &str) -> BTreeMap<&'static str, usize> {
    match run_type {
        "REPAVE" => {
            BTreeMap::from([("netboot", 1), ("repave_started", 1), ("repaved", 1), ("reset", 1), ("joined", 1)])
        }
        "REBOOT" => BTreeMap::from([("reset", 1)]),
        "RMA" => BTreeMap::from([("power_off", 1), ("return_opened", 1)]),
        "NET_RECONFIG" => BTreeMap::from([("net_applied", 1)]),
        "UPGRADE" => BTreeMap::from([("exec_started", 1), ("reset", 1)]),
        other => panic!("no expectation for {other}"),
    }
}

fn check_effects(fleet: &Fleet, run_type: &str, point: &str) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for effect in fleet.sim.effects().expect("the effect journal reads") {
        *counts.entry(effect.kind).or_default() += 1;
    }
    for (kind, count) in expected(run_type) {
        assert_eq!(counts.get(kind).copied().unwrap_or(0), count, "{point}: {kind} in {counts:?}");
    }
}

async fn begin(service: &Service, run_type: &str) -> RunView {
    let mut request = start("m-1", run_type, "req-1");
    if run_type == "NET_RECONFIG" {
        request.parameters.insert("mtu".into(), "9000".into());
    }
    service.start_run(&admin(), request).await.expect("starts")
}

async fn until_ended(service: &Service, run: &str) -> RunView {
    eventually("the run ends", || async {
        let view = service.get_run(&admin(), run).await.expect("reads");
        view.run.phase.is_terminal().then_some(view)
    })
    .await
}

/// One run with a crash after entry `after`; answers how many entries the first engine wrote.
async fn crash_once(database: Database, run_type: &str, after: usize) -> usize {
    let point = format!("{run_type} on {database:?}, crash after entry {after}");
    let fleet = Fleet::new(database, 7);
    let reaper = Reaper::new(after);
    let first = fleet.engine(quick("one"), Some(reaper.observer()));
    reaper.engine.set(first.clone()).ok().expect("set once");
    let service = fleet.service(&first).await;
    let mut subject = subject(run_type);
    if run_type == "UPGRADE" {
        // outside a cluster the upgrade has no one to ask
        subject.spec.target_cluster_ref.clear();
    }
    service.register_machine(&admin(), subject).await.expect("registers");
    let run = begin(&service, run_type).await.run.id.to_string();
    first.start().await.expect("starts");
    if after > 0 {
        eventually("the crash", || async { (reaper.seen.load(Ordering::SeqCst) >= after).then_some(()) }).await;
        let second = fleet.engine(quick("one"), None);
        second.start().await.expect("starts again");
        finish(&service, &fleet, &run, run_type, &point).await;
        second.stop().await;
    } else {
        finish(&service, &fleet, &run, run_type, &point).await;
        first.stop().await;
    }
    fleet.store.close();
    reaper.seen.load(Ordering::SeqCst)
}

async fn finish(service: &Service, fleet: &Fleet, run: &str, run_type: &str, point: &str) {
    let ended = until_ended(service, run).await;
    assert_eq!(ended.run.phase, RunPhase::Succeeded, "{point}: {:?}", ended.run.error);
    check_effects(fleet, run_type, point);
    let id = ended.run.id.clone();
    let folds = fleet.store.snapshot(move |tx| store::run::check_fold(tx, &id)).await.expect("reads");
    assert_eq!(folds, Ok(()), "{point}");
    let machine = service.get_machine(&admin(), "m-1").await.expect("reads");
    assert_eq!(machine.active_run, None, "{point}: the machine is let go");
}

async fn crash_everywhere(database: Database, run_type: &str) {
    let entries = crash_once(database, run_type, 0).await;
    assert!(entries >= 3, "{run_type} wrote only {entries} entries");
    for after in 1..=entries {
        let seen = crash_once(database, run_type, after).await;
        assert!(seen >= after, "{run_type}: point {after} was never reached");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repave_survives_a_crash_after_every_entry_on_sqlite() {
    crash_everywhere(Database::Sqlite, "REPAVE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repave_survives_a_crash_after_every_entry_on_postgres() {
    crash_everywhere(Database::Postgres, "REPAVE").await;
}

#[tokio::test(start_paused = true)]
async fn every_run_type_survives_a_crash_after_every_entry() {
    for run_type in ["REPAVE", "REBOOT", "RMA", "NET_RECONFIG", "UPGRADE"] {
        crash_everywhere(Database::Memory, run_type).await;
    }
}

/// A crash between the request and its start is healed by the next claim.
#[tokio::test(start_paused = true)]
async fn a_run_requested_and_never_started_is_picked_up() {
    let fleet = Fleet::new(Database::Memory, 7);
    let dead = fleet.engine(quick("one"), None);
    let service = fleet.service(&dead).await;
    service.register_machine(&admin(), subject("REPAVE")).await.expect("registers");
    let view = begin(&service, "REPAVE").await;
    assert_eq!(view.run.phase, RunPhase::Pending);
    let replay = begin(&service, "REPAVE").await;
    assert_eq!(replay.run.id, view.run.id);
    let engine = fleet.engine(quick("one"), None);
    engine.start().await.expect("starts");
    finish(&service, &fleet, view.run.id.as_str(), "REPAVE", "picked up").await;
}
