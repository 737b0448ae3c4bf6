//! Backup and restore of the embedded database.

use crate::fixture::{TestStore, open, started, succeeded};
use crate::sqlite_only::with;
use domain::run::RunChange;
use domain::{Reason, RunId};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::execution::{self, Status};
use store::{Feed, LogRow, Options, SCHEMA_VERSION, Store, is_fenced, machine, run, session};
use testkit::ambient::VirtualAmbient;

async fn backup(from: &Path, to: &Path) -> Result<(), domain::Error> {
    let (from, to) = (from.to_owned(), to.to_owned());
    tokio::task::spawn_blocking(move || store::backup(&from, &to)).await.expect("no panic")
}

async fn restore(from: &Path, to: &Path, clock: &Arc<VirtualAmbient>) -> Result<Option<PathBuf>, domain::Error> {
    let (from, to, clock) = (from.to_owned(), to.to_owned(), clock.clone());
    tokio::task::spawn_blocking(move || store::restore(&from, &to, clock.as_ref())).await.expect("no panic")
}

async fn close(store: &Store) {
    let store = store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.expect("closes");
}

async fn open_file(path: &Path) -> Store {
    open(&Options::Sqlite(path.to_owned()), &VirtualAmbient::new(9)).await.expect("opens")
}

/// Machines with finished runs, one after another; counts each when it is acknowledged.
async fn keep_writing(store: &TestStore, writer: usize, acknowledged: &AtomicUsize, stop: &AtomicBool) {
    for n in 0.. {
        let machine = format!("m-{writer}-{n}");
        store.register(&machine).await;
        let id = store.request(&machine, &["a"]).await;
        store.change(&id, vec![RunChange::Started, started("a"), succeeded("a")]).await.expect("changes");
        acknowledged.fetch_add(1, Ordering::SeqCst);
        if stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// The log is whole, every run is what it folds to, and every machine has its row. Answers how many.
async fn check_consistent(store: &Store) -> usize {
    let rows = store.read(|tx| store::log_after(tx, 0, 1_000_000)).await.expect("reads");
    let mut last = 0;
    for row in &rows {
        let leaps = row.entity_kind == "store" && row.sequence > last;
        assert!(leaps || row.sequence == last + 1, "after {last}: {row:?}");
        last = row.sequence;
    }
    assert_eq!(store.read(store::log_range).await.map(|r| r.head), Ok(last));
    let rows: Vec<LogRow> = rows.into_iter().filter(|row| row.entity_kind != "store").collect();
    let counted: Vec<LogRow> =
        rows.iter().cloned().zip(1..).map(|(row, sequence)| LogRow { sequence, ..row }).collect();
    crate::log::check_whole(&counted);
    let registered = rows.iter().filter(|row| row.trigger == "registered").count();
    assert_eq!(store.read(machine::count).await, Ok(registered as u64));
    let runs: Vec<RunId> =
        rows.iter().filter(|r| r.trigger == "requested").map(|r| RunId::from_text(r.entity_id.clone())).collect();
    let mut finished = 0;
    for id in runs {
        let run = id.clone();
        let verdict = store.read(move |tx| run::check_fold(tx, &run)).await.expect("reads");
        assert_eq!(verdict, Ok(()));
        let stored = store.read(move |tx| run::get(tx, &id)).await.expect("reads").expect("is there");
        finished += usize::from(stored.version == 4);
    }
    finished
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_taken_while_others_write_is_of_one_moment() {
    let store = TestStore::sqlite().await;
    let folder = testkit::scratch::folder();
    let (acknowledged, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let writing = futures::future::join_all((0..8).map(|n| keep_writing(&store, n, &acknowledged, &stop)));
    let backing_up = async {
        let mut known = Vec::new();
        for n in 0..3 {
            let before = acknowledged.load(Ordering::SeqCst);
            crate::fixture::until("more to be written", || async {
                (acknowledged.load(Ordering::SeqCst) > before + 20).then_some(())
            })
            .await;
            let before = acknowledged.load(Ordering::SeqCst);
            let target = folder.path().join(format!("backup-{n}.db"));
            backup(&store.file(), &target).await.expect("backs up");
            known.push((target, before));
        }
        stop.store(true, Ordering::SeqCst);
        known
    };
    let (_, known) = tokio::join!(writing, backing_up);
    for (target, before) in known {
        let copy = open_file(&target).await;
        let finished = check_consistent(&copy).await;
        assert!(finished >= before, "{finished} of {before} that were acknowledged before it began");
        close(&copy).await;
    }
    check_consistent(&store).await;
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_never_overwrites() {
    let store = TestStore::sqlite().await;
    store.register("m").await;
    let folder = testkit::scratch::folder();
    let target = folder.path().join("backup.db");
    std::fs::write(&target, "precious").expect("writes");
    let refused = backup(&store.file(), &target).await.expect_err("is refused");
    assert!(refused.message.contains("exists already"), "{refused}");
    assert_eq!(std::fs::read_to_string(&target).expect("reads"), "precious");
    let nothing = backup(&folder.path().join("none.db"), &folder.path().join("x.db")).await.expect_err("is refused");
    assert!(nothing.message.contains("there is no database"), "{nothing}");
    assert!(!folder.path().join("x.db").exists() && !folder.path().join("none.db").exists());
    // a part left by one that was cut short is in nobody's way
    std::fs::write(folder.path().join("y.db.partial"), "half").expect("writes");
    backup(&store.file(), &folder.path().join("y.db")).await.expect("backs up");
    assert!(!folder.path().join("y.db.partial").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_for_its_owner_alone_and_a_failed_one_leaves_nothing() {
    let store = TestStore::sqlite().await;
    store.register("m").await;
    let folder = testkit::scratch::folder();
    let target = folder.path().join("backup.db");
    backup(&store.file(), &target).await.expect("backs up");
    assert_eq!(std::fs::metadata(&target).expect("there").permissions().mode() & 0o777, 0o600);
    let junk = folder.path().join("junk.db");
    std::fs::write(&junk, [7u8; 20_000]).expect("writes");
    backup(&junk, &folder.path().join("x.db")).await.expect_err("is refused");
    backup(&store.file(), &folder.path().join("nowhere/x.db")).await.expect_err("is refused");
    let below = backup(&target.join("millwright.db"), &folder.path().join("x.db")).await.expect_err("is refused");
    assert!(!below.message.contains("there is no database"), "what cannot be looked at may be there: {below}");
    let mut left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["backup.db", "junk.db"]);
}

/// Everything a feed gives after a sequence, and where it says to go on.
async fn followed(feed: &Feed, mut after: u64) -> (Vec<LogRow>, u64) {
    let mut seen = Vec::new();
    loop {
        let (events, next) = feed.after(after).await.expect("reads");
        seen.extend(events.into_iter().map(|e| (*e.row).clone()));
        if next == after {
            return (seen, after);
        }
        after = next;
    }
}

async fn head(store: &Store) -> u64 {
    store.read(store::log_range).await.expect("reads").head
}

async fn register(store: &Store, id: &str) {
    let id = crate::fixture::machine_id(id);
    let write = move |tx: &mut store::Tx<'_>| {
        crate::fixture::register(tx, &id, &domain::machine::MachineSpec::default(), &crate::fixture::labels(&[]))
    };
    store.write(&crate::fixture::tester(), "m", write).await.map(drop).expect("registers");
}

/// Sequences after the backup were given out, and are not given out again.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_followed_before_a_restore_sees_every_new_row_once() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    for i in 0..10 {
        store.register(&format!("kept-{i}")).await;
    }
    let target = folder.path().join("backup.db");
    backup(&file, &target).await.expect("backs up");
    for i in 0..7 {
        store.register(&format!("lost-{i}")).await;
    }
    let (kept, mut given) = (10, head(&store.store).await);
    assert_eq!(given, 17);
    close(&store).await;
    // the second time the same backup: what came after the first restore was given out, too
    for round in 0..2 {
        restore(&target, &file, &store.clock).await.expect("restores");
        let restored = open(&store.options, &store.clock).await.expect("opens");
        let leap = head(&restored).await;
        assert!(leap > given + 500_000_000, "{leap} is far beyond {given}");
        let early = Feed::new(restored.clone()).await.expect("begins");
        tokio::spawn(early.clone().tail());
        let new = [format!("new-{round}-0"), format!("new-{round}-1")];
        for id in &new {
            register(&restored, id).await;
        }
        // the tail tells of rows one batch after the other
        let mut told = early.head();
        let all = async {
            while told.look() < leap + 2 {
                told.grew().await;
            }
        };
        tokio::time::timeout(crate::fixture::PATIENCE, all).await.expect("the feed reaches the head");
        let late = Feed::new(restored.clone()).await.expect("begins");
        for feed in [&early, &late] {
            for cursor in [kept - 1, kept, kept + 1, given, given + 1, leap - 1] {
                let (seen, on) = followed(feed, cursor).await;
                let expected = if cursor < kept { 1 } else { 0 };
                assert_eq!(seen.len(), expected + 3, "after {cursor}: {seen:#?}");
                let leapt = &seen[expected];
                let told = (leapt.sequence, leapt.entity_kind.as_str(), leapt.to_state.as_str(), leapt.version);
                assert_eq!(told, (leap, "store", "restored", round + 2), "the epoch is its version");
                let ids: Vec<&str> = seen[expected + 1..].iter().map(|row| row.entity_id.as_str()).collect();
                assert_eq!(ids, new.iter().map(String::as_str).collect::<Vec<_>>());
                assert_eq!(on, leap + 2);
            }
            let (seen, _) = followed(feed, leap).await;
            assert_eq!(seen.iter().map(|row| row.sequence).collect::<Vec<_>>(), [leap + 1, leap + 2]);
        }
        check_consistent(&restored).await;
        given = head(&restored).await;
        close(&restored).await;
    }
}

/// A hole that no restore made is still a defect.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_missing_is_not_passed_over() {
    let store = TestStore::sqlite().await;
    for id in ["a", "b", "c"] {
        store.register(id).await;
    }
    let feed = Feed::new(store.store.clone()).await.expect("begins");
    let damage = rusqlite::Connection::open(store.file()).expect("opens");
    damage.execute("DELETE FROM transitions WHERE sequence = 2", []).expect("deletes");
    let refused = feed.after(1).await.expect_err("is refused");
    assert_eq!(refused.reason, Reason::Internal, "{refused}");
    assert_eq!(feed.after(2).await.expect("reads").1, 3);
}

/// A backup that an older binary made has fewer columns.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_an_older_schema_is_restored() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    store.register("kept").await;
    let target = folder.path().join("backup.db");
    backup(&file, &target).await.expect("backs up");
    close(&store).await;
    let old = rusqlite::Connection::open(&target).expect("opens");
    old.execute_batch("ALTER TABLE transitions DROP COLUMN customer_id").expect("as it was");
    drop(old);
    let kept = restore(&target, &file, &store.clock).await.expect("restores");
    assert!(kept.is_some());
    let db = rusqlite::Connection::open(&file).expect("opens");
    let found: i64 = db
        .query_row("SELECT COUNT(*) FROM transitions WHERE cause = 'restored'", [], |row| row.get(0))
        .expect("counts");
    assert_eq!(found, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_brings_back_the_data_and_fences_the_past() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    store.register("kept").await;
    let old_session = store.session("a").await;
    let id = store.execution("run_1").await;
    let held = store.claim(&old_session, 1).await.remove(0);
    let target = folder.path().join("backup.db");
    backup(&file, &target).await.expect("backs up");
    store.register("newer").await;
    close(&store).await;

    let kept = restore(&target, &file, &store.clock).await.expect("restores").expect("what was there is kept");
    let before = open_file(&kept).await;
    assert_eq!(before.read(machine::count).await, Ok(2), "with what was written last");
    close(&before).await;

    let restored = open(&store.options, &store.clock).await.expect("opens");
    assert_eq!(restored.read(machine::count).await, Ok(1));
    assert_eq!(restored.read(session::live).await, Ok(vec![]), "nobody from before is alive");
    let row = id.clone();
    let ready = restored.read(move |tx| execution::get(tx, &row)).await.expect("reads").expect("is there");
    assert_eq!((ready.status, &ready.holder), (Status::Ready, &None));

    // whatever the holder from before claims to be, it cannot write
    let caller = crate::fixture::tester();
    let refused = |session: domain::SessionId, e: execution::Execution| {
        let restored = restored.clone();
        let caller = caller.clone();
        async move {
            let write = move |tx: &mut store::Tx<'_>| execution::record(tx, &session, &mut e.clone(), &[]);
            is_fenced(&restored.write(&caller, "x", write).await.expect_err("is refused"))
        }
    };
    assert!(refused(old_session.clone(), held.clone()).await);
    let new_session = domain::SessionId::from_text("ses_new");
    let row = new_session.clone();
    let lease = std::time::Duration::from_secs(10);
    restored.write(&caller, "s", move |tx| session::open(tx, &row, "a", lease, lease)).await.expect("opens");
    let row = new_session.clone();
    let claimed = restored.write(&caller, "s", move |tx| execution::claim(tx, &row, 10)).await.expect("claims");
    assert_eq!(claimed[0].fence.epoch, held.fence.epoch + 1);
    assert!(claimed[0].fence > held.fence);
    assert!(refused(old_session, held.clone()).await);
    let disguised = execution::Execution { entries: claimed[0].entries, ..held };
    assert!(refused(new_session, disguised).await, "an old fence with a new session");
    close(&restored).await;
}

/// Every file of a database, as bytes.
fn bytes(database: &Path) -> Vec<Option<Vec<u8>>> {
    ["", "-wal", "-shm"].iter().map(|suffix| std::fs::read(with(database, suffix)).ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_good_backup_is_refused_and_changes_nothing() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    for i in 0..200 {
        store.register(&format!("m-{i}")).await;
    }
    let good = folder.path().join("good.db");
    backup(&file, &good).await.expect("backs up");
    close(&store).await;
    let whole = std::fs::read(&good).expect("reads");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        path
    };
    let mut damaged = whole.clone();
    damaged[whole.len() / 2..whole.len() / 2 + 6000].fill(0x5a);
    let newer = write("newer.db", &whole);
    let sql = format!("INSERT INTO schema_migrations(version, applied_at) VALUES ({}, 0)", SCHEMA_VERSION + 1);
    rusqlite::Connection::open(&newer).and_then(|db| db.execute(&sql, [])).expect("raises the version");
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).and_then(|db| db.execute_batch("CREATE TABLE x(y)")).expect("makes one");
    let cases = [
        (write("garbage.db", &[7u8; 20_000]), ""),
        (write("empty.db", &[]), "not a backup of millwright"),
        (write("cut.db", &whole[..whole.len() / 2]), ""),
        (write("damaged.db", &damaged), ""),
        (folder.path().join("missing.db"), "no such file"),
        (foreign, "not a backup of millwright"),
        (newer, "run a newer millwright"),
    ];
    let before = bytes(&file);
    for (path, part) in cases {
        let refused = restore(&path, &file, &store.clock).await.expect_err("is refused");
        assert_eq!(refused.reason, Reason::StoreUnavailable, "{}", path.display());
        assert!(refused.message.contains(part), "{}: {refused}", path.display());
        assert!(bytes(&file) == before, "{}: the database was touched", path.display());
    }
    let left: Vec<_> =
        std::fs::read_dir(file.parent().expect("a folder")).expect("lists").flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().contains("restore")), "{left:?}");
    restore(&good, &file, &store.clock).await.expect("the good one is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_left_without_its_database_is_not_mixed_into_the_restored_one() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    store.register("kept").await;
    let target = folder.path().join("backup.db");
    backup(&file, &target).await.expect("backs up");
    for i in 0..50 {
        store.register(&format!("later-{i}")).await;
    }
    // the file was lost, or a restore was cut short after moving it: its log is still there
    let wal = std::fs::read(with(&file, "-wal")).expect("reads");
    close(&store).await;
    std::fs::remove_file(&file).expect("removes");
    std::fs::write(with(&file, "-wal"), wal).expect("writes");
    restore(&target, &file, &store.clock).await.expect("restores");
    let restored = open(&store.options, &store.clock).await.expect("opens");
    assert_eq!(restored.read(machine::count).await, Ok(1));
    check_consistent(&restored).await;
    close(&restored).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_restores_in_one_second_keep_what_each_found() {
    let store = TestStore::sqlite().await;
    let (file, folder) = (store.file(), testkit::scratch::folder());
    let target = folder.path().join("backup.db");
    backup(&file, &target).await.expect("backs up");
    store.register("precious").await;
    close(&store).await;
    struct Still;
    impl store::Ambient for Still {
        fn now(&self) -> domain::Timestamp {
            domain::Timestamp::from_micros(1_767_225_600_000_000)
        }
        fn uuid(&self) -> uuid::Uuid {
            uuid::Uuid::nil()
        }
    }
    let again = || {
        let (target, file) = (target.clone(), file.clone());
        tokio::task::spawn_blocking(move || store::restore(&target, &file, &Still))
    };
    let first = again().await.expect("no panic").expect("restores").expect("kept");
    let second = again().await.expect("no panic").expect("restores").expect("kept");
    assert_ne!(first, second);
    let kept = open_file(&first).await;
    assert_eq!(kept.read(machine::count).await, Ok(1), "the first is still what it was");
    close(&kept).await;
}
