//! Several processes on one PostgreSQL: each is a store of its own here, and the server cannot tell
//! the difference.

use crate::fixture::{
    PATIENCE, TestStore, labels, machine_id, make_steps, on_every_store, open, register, requested, requester,
    set_phase, until,
};
use crate::log::check_whole;
use domain::machine::{Labels, MachineSpec, Phase};
use domain::{Error, ExecutionId, MachineId, Reason, RunId, SessionId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::execution::{self, Status};
use store::session::{self, LiveSession};
use store::{Ambient as _, Options, Tx, TxResult, machine, run};
use testkit::ambient::VirtualAmbient;
use tokio::sync::mpsc::UnboundedSender;

/// Back and forth between two phases, whoever moved it last.
fn toggle(tx: &mut Tx<'_>, id: &MachineId) -> TxResult<()> {
    let phase = machine::get_for_update(tx, id)?.expect("is there").phase;
    let to = if phase == Phase::Ready { Phase::Maintenance } else { Phase::Ready };
    set_phase(tx, id, to).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tailer_misses_nothing_of_what_two_processes_write() {
    const TASKS: usize = 30;
    const MOVES: usize = 50;
    let tailer = TestStore::postgres().await;
    let stores = [tailer.beside().await, tailer.beside().await];
    for i in 0..12 {
        tailer.register(&format!("shared-{i}")).await;
    }
    let writer = |n: usize| {
        let store = &stores[n % 2];
        async move {
            store.register(&format!("own-{n}")).await;
            for i in 0..MOVES {
                // every third on a machine that both processes want
                let id = if i % 3 == 0 { format!("shared-{}", (n + i) % 12) } else { format!("own-{n}") };
                let row = machine_id(&id);
                store.put(&id, move |tx| toggle(tx, &row)).await.expect("moves");
            }
        }
    };
    let total = (12 + 2 * TASKS * (MOVES + 1)) as u64;
    let tailing = async {
        let mut seen = Vec::new();
        let mut last = 0;
        while last < total {
            let rows = tailer.read(move |tx| store::log_after(tx, last, 200)).await.expect("reads");
            for row in &rows {
                assert_eq!(row.sequence, last + 1, "a row that was not there when its successor was read");
                last = row.sequence;
            }
            seen.extend(rows);
            tokio::task::yield_now().await;
        }
        seen
    };
    let both = futures::future::join(futures::future::join_all((0..2 * TASKS).map(writer)), tailing);
    let (_, seen) = tokio::time::timeout(PATIENCE, both).await.expect("the tail reaches the end");
    check_whole(&seen);
    assert_eq!(seen, tailer.log().await, "what was read once never changes");
    assert_eq!(tailer.head().await, total);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_execution_is_given_to_two() {
    const EXECUTIONS: usize = 400;
    let first = TestStore::postgres().await;
    let second = first.beside().await;
    let ids: Vec<ExecutionId> = (0..EXECUTIONS).map(|_| ExecutionId::generate(first.clock.uuid())).collect();
    for part in ids.chunks(100) {
        let part = part.to_vec();
        let insert =
            move |tx: &mut Tx<'_>| part.iter().try_for_each(|id| crate::fixture::insert_execution(tx, id, "run_1"));
        first.put("all", insert).await.expect("inserts");
    }
    let sessions = [first.session("a").await, second.session("b").await];
    let claimer = |n: usize| {
        let (store, session) = if n.is_multiple_of(2) { (&first, &sessions[0]) } else { (&second, &sessions[1]) };
        async move {
            let mut mine = Vec::new();
            loop {
                let claimed = store.claim(session, 7).await;
                assert!(claimed.len() <= 7, "{} claimed", claimed.len());
                assert!(claimed.iter().all(|e| e.holder.as_ref() == Some(session) && e.fence.counter == 1));
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.into_iter().map(|e| e.id));
            }
        }
    };
    let claimed: Vec<ExecutionId> = futures::future::join_all((0..8).map(claimer)).await.concat();
    let distinct: HashSet<&ExecutionId> = claimed.iter().collect();
    assert_eq!(distinct.len(), claimed.len(), "one was given to two");
    // what was locked while another looked is found by the next look
    let rest = first.claim(&sessions[0], EXECUTIONS).await;
    assert_eq!(claimed.len() + rest.len(), EXECUTIONS);
}

/// What StartRun does, in short: look, refuse or insert, and take hold of the machine.
fn start_run(tx: &mut Tx<'_>, machine_key: &MachineId, id: &RunId, lock: bool) -> TxResult<RunId> {
    let found = if lock { machine::get_for_update(tx, machine_key)? } else { machine::get(tx, machine_key)? };
    let m = found.expect("is there");
    if m.active_run.is_some() {
        return Err(Error::new(Reason::ActiveRun, "a run is active").into());
    }
    let change = requested(machine_key.as_str(), id.as_str(), &["a"]);
    run::insert(tx, id, &change, &make_steps(&["a"]), &requester())?;
    machine::set_hold(tx, &m, Some(id), &m.conditions)?;
    Ok(id.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_that_start_a_run_one_wins() {
    let first = TestStore::postgres().await;
    let second = first.beside().await;
    for round in 0..12 {
        let id = format!("m-{round}");
        first.register(&id).await;
        // with the row's lock, and with nothing but the unique index and the compare-and-swap
        let lock = round % 2 == 0;
        let one = |n: usize| {
            let (store, id) = (if n.is_multiple_of(2) { &first } else { &second }, id.clone());
            let (row, run) = (machine_id(&id), RunId::generate(first.clock.uuid()));
            async move { store.put(&id, move |tx| start_run(tx, &row, &run, lock)).await.map_err(|e| e.reason) }
        };
        let answers = futures::future::join_all((0..10).map(one)).await;
        let winners: Vec<&RunId> = answers.iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|a| **a == Err(Reason::ActiveRun)).count(), 9, "{answers:?}");
        let active = second.machine(&id).await.and_then(|m| m.active_run).expect("is held");
        assert_eq!(&active.id, winners[0]);
    }
    let runs = first.read(|tx| run::list(tx, &domain::filter::Filter::Everything, "", 100)).await.expect("lists");
    assert_eq!(runs.len(), 12);
    check_whole(&first.log().await);
}

/// Waits, in the first attempt only, until both have come so far.
struct Meeting(AtomicUsize);

impl Meeting {
    fn wait(&self) {
        if self.0.fetch_add(1, Ordering::SeqCst) >= 2 {
            return;
        }
        let begun = tokio::time::Instant::now();
        while self.0.load(Ordering::SeqCst) < 2 {
            assert!(begun.elapsed() < PATIENCE, "the other never came");
            std::thread::yield_now();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_untangled_and_both_get_through() {
    let first = TestStore::postgres().await;
    let second = first.beside().await;
    for id in ["a", "b"] {
        first.register(id).await;
    }
    const ROUNDS: u64 = 3;
    for _ in 0..ROUNDS {
        let meeting = Arc::new(Meeting(AtomicUsize::new(0)));
        let cross = |store: &TestStore, from: &'static str, to: &'static str| {
            let (store, meeting) = (store.store.clone(), meeting.clone());
            let work = move |tx: &mut Tx<'_>| {
                toggle(tx, &machine_id(from))?;
                meeting.wait();
                toggle(tx, &machine_id(to))
            };
            async move { store.write(&crate::fixture::tester(), from, work).await }
        };
        let (one, two) = tokio::join!(cross(&first, "a", "b"), cross(&second, "b", "a"));
        assert_eq!((one, two), (Ok(()), Ok(())));
    }
    let versions = [first.machine("a").await, first.machine("b").await].map(|m| m.expect("is there").version);
    assert_eq!(versions, [1 + 2 * ROUNDS, 1 + 2 * ROUNDS], "each moved each machine once a round");
    check_whole(&first.log().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_together_keep_to_the_cap() {
    let first = TestStore::postgres().await;
    let second = first.beside().await;
    for rack in 0..15 {
        let rack = format!("r-{rack}");
        let one = |n: usize| {
            let (store, row) = (if n.is_multiple_of(2) { &first } else { &second }, rack.clone());
            let key = rack.clone();
            let work = move |tx: &mut Tx<'_>| {
                execution::count_destructive(tx, &row, 5, &ExecutionId::from_text("exe_1"), "flash")
            };
            async move { store.put(&key, work).await.expect("counts") }
        };
        let answers = futures::future::join_all((0..16).map(one)).await;
        assert_eq!(answers.iter().filter(|a| a.is_none()).count(), 5, "{rack}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_can_start_on_an_empty_database_at_once() {
    let config = tokio::task::spawn_blocking(testkit::postgres::database).await.expect("a database");
    let (options, clock) = (Options::Postgres(Box::new(config)), VirtualAmbient::new(1));
    let opened = futures::future::join_all((0..10).map(|_| open(&options, &clock))).await;
    for store in opened {
        let store = store.expect("opens");
        assert_eq!(store.read(machine::count).await, Ok(0));
        store.close();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_waits_for_a_migration_that_takes_its_time() {
    let store = TestStore::postgres().await;
    let Options::Postgres(config) = &store.options else { panic!("not PostgreSQL") };
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    // as a process that migrates holds it, longer than any lock is otherwise waited for
    client.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7700)").await.expect("locks");
    let opening = tokio::spawn({
        let (o, c) = (store.options.clone(), store.clock.clone());
        async move { open(&o, &c).await }
    });
    until("the other to wait for the lock", || async {
        let sql = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        (!client.query(sql, &[]).await.expect("reads").is_empty()).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    client.batch_execute("COMMIT").await.expect("unlocks");
    opening.await.expect("no panic").expect("opens after all").close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_waits_for_the_log_as_long_as_for_any_statement() {
    let store = TestStore::postgres().await;
    let Options::Postgres(config) = &store.options else { panic!("not PostgreSQL") };
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    // as another process whose commit the disk keeps waiting
    client.batch_execute("BEGIN; UPDATE log_head SET seq = seq").await.expect("locks");
    let writing = async { store.register("m").await };
    let releasing = async {
        until("the writer to wait for the log", || async {
            let sql = "SELECT 1 FROM pg_locks WHERE NOT granted";
            (!client.query(sql, &[]).await.expect("reads").is_empty()).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(1800)).await;
        client.batch_execute("COMMIT").await.expect("unlocks");
    };
    tokio::join!(writing, releasing);
    assert_eq!(store.head().await, 1);
}

/// Does the work in an open transaction, tells so, and goes on only when `done` comes or a while has
/// passed: whoever has to wait for this transaction cannot be waited for.
async fn linger<T: Send + 'static>(
    store: &TestStore,
    told: UnboundedSender<()>,
    done: std::sync::mpsc::Receiver<()>,
    work: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
) -> Result<T, Error> {
    let done = std::sync::Mutex::new(done);
    store
        .put("lingers", move |tx| {
            let result = work(tx)?;
            let _ = told.send(());
            let _ = done.lock().expect("no panic").recv_timeout(Duration::from_millis(100));
            Ok(result)
        })
        .await
}

/// The session as a rival sees it.
async fn seen(store: &TestStore, id: &SessionId) -> LiveSession {
    let live = store.read(session::live).await.expect("reads");
    live.into_iter().find(|s| s.id == *id).expect("is alive")
}

/// One process works under a session in a transaction that is still open while another declares that
/// session dead.
async fn while_declared_dead<T: Send + 'static>(
    work: impl Fn(&mut Tx<'_>, &SessionId, &execution::Execution) -> TxResult<T> + Send + 'static,
) -> (TestStore, ExecutionId, Result<T, Error>) {
    let store = TestStore::postgres().await;
    let rival = store.beside().await;
    let session = store.session("a").await;
    let held = store.execution("run_1").await;
    let mine = store.claim(&session, 1).await.remove(0);
    store.execution("run_2").await;
    let (told, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (done, wait) = std::sync::mpsc::channel();
    let own = session.clone();
    let working = linger(&store, told, wait, move |tx| work(tx, &own, &mine));
    let judging = async {
        begun.recv().await.expect("begins");
        let dead = seen(&rival, &session).await;
        let judge = move |tx: &mut Tx<'_>| session::declare_dead(tx, &dead, "silent");
        let answer = rival.put("sessions", judge).await;
        // the other may have gone on already
        let _ = done.send(());
        answer
    };
    let (worked, judged) = tokio::join!(working, judging);
    assert_eq!(judged, Ok(true), "the rival gets through in the end");
    (store, held, worked)
}

/// Nothing is held by the dead, and every journal is as long as its row says.
async fn check_nothing_is_stuck(store: &TestStore) {
    let all = store.read(|tx| execution::list(tx, &domain::filter::Filter::Everything, "", 10)).await.expect("lists");
    for e in &all {
        assert_ne!(e.status, Status::Running, "held by a session that nobody will declare dead again: {e:?}");
        let id = e.id.clone();
        let lines = store.read(move |tx| execution::journal(tx, &id, 100)).await.expect("reads");
        assert_eq!(lines.len() as u64, e.entries, "{lines:?}");
    }
    let next = store.session("b").await;
    store.clock.skip(Duration::from_secs(3600));
    for e in store.claim(&next, 10).await {
        let (session, entry) = (next.clone(), execution::Entry { entry: "on", detail: serde_json::json!({}) });
        let go_on =
            move |tx: &mut Tx<'_>| execution::record(tx, &session, &mut e.clone(), std::slice::from_ref(&entry));
        store.put("x", go_on).await.expect("the next holder can go on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_meets_the_death_of_its_session_holds_nothing() {
    let (store, _, _) = while_declared_dead(|tx, session, _| execution::claim(tx, session, 10)).await;
    check_nothing_is_stuck(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_meets_the_death_of_its_session_leaves_a_whole_journal() {
    for entries in [vec![], vec![execution::Entry { entry: "works", detail: serde_json::json!({}) }]] {
        let sleep = move |tx: &mut Tx<'_>, session: &SessionId, mine: &execution::Execution| {
            let mut e = mine.clone();
            e.status = Status::Waiting;
            e.holder = None;
            execution::record(tx, session, &mut e, &entries)
        };
        let (store, held, worked) = while_declared_dead(sleep).await;
        let e = store.get_execution(&held).await;
        match worked {
            Ok(()) => assert_eq!(e.status, Status::Waiting, "it slept before its session died"),
            Err(refused) => assert!(store::is_fenced(&refused), "{refused}"),
        }
        check_nothing_is_stuck(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_do_not_lose_each_others_updates() {
    let first = TestStore::postgres().await;
    let second = first.beside().await;
    first.register("m").await;
    let one = |n: usize| {
        let store = if n.is_multiple_of(2) { &first } else { &second };
        // read and swapped with no lock: a lost swap is run again on the fresh row
        let lock = n % 4 < 2;
        async move {
            store
                .put("m", move |tx| {
                    let id = machine_id("m");
                    let found = if lock { machine::get_for_update(tx, &id)? } else { machine::get(tx, &id)? };
                    let m = found.expect("is there");
                    let n: u64 = m.labels.get("n").map_or(0, |n| n.parse().expect("a number"));
                    machine::update_spec(tx, &m, &m.spec, &labels(&[("n", &(n + 1).to_string())]))
                })
                .await
        }
    };
    let answers = futures::future::join_all((0..120).map(one)).await;
    let counted = answers.iter().filter(|a| a.is_ok()).count() as u64;
    assert!(answers.iter().flat_map(|a| a.as_ref().err()).all(|e| e.reason == Reason::Contention), "{answers:?}");
    let m = second.machine("m").await.expect("is there");
    assert_eq!(
        (m.labels.get("n").cloned(), m.version),
        (Some(counted.to_string()), 1 + counted),
        "what was acknowledged"
    );
    assert!(counted >= 60, "those that take the lock first all get through: {counted}");
}

// the identity race: both look, both find it free, the key decides, and the loser learns who won
on_every_store!(of_two_machines_with_one_serial_number_one_is_registered, |store| async move {
    let beside = match store.options {
        Options::Memory => None,
        Options::Sqlite(_) | Options::Postgres(_) => Some(store.beside().await),
    };
    for round in 0..20 {
        let one = |n: usize| {
            let store = if n.is_multiple_of(2) { &store } else { beside.as_ref().unwrap_or(&store) };
            let id = format!("m-{round}-{n}");
            let (row, key) = (machine_id(&id), id.clone());
            let spec = MachineSpec { serial_number: format!("S{round}"), ..MachineSpec::default() };
            async move { store.put(&key, move |tx| register(tx, &row, &spec, &Labels::new())).await.map(|m| m.id) }
        };
        let answers = futures::future::join_all((0..4).map(one)).await;
        let winners: Vec<&MachineId> = answers.iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        for refused in answers.iter().flat_map(|a| a.as_ref().err()) {
            assert_eq!(refused.reason, Reason::IdentityTaken);
            assert_eq!(refused.details.get("machine_id").map(String::as_str), Some(winners[0].as_str()));
        }
    }
});
