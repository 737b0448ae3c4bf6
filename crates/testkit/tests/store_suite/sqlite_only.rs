//! The embedded database: one file, one writer, a bounded queue in front of it.

use crate::fixture::{Blocker, TestStore, machine_id, open, register};
use domain::Reason;
use domain::machine::{Labels, MachineSpec};
use futures::poll;
use std::path::{Path, PathBuf};
use store::{Caller, Options, machine};
use testkit::ambient::VirtualAmbient;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_in_the_file() {
    let store = TestStore::sqlite().await;
    futures::future::join_all((0..200).map(|i| {
        let store = &store;
        async move { store.register(&format!("m-{i}")).await }
    }))
    .await;
    // as after a power cut: the files as they are, the store still open
    let folder = testkit::scratch::folder();
    let copy = folder.path().join("copy.db");
    for suffix in ["", "-wal"] {
        std::fs::copy(with(&store.file(), suffix), with(&copy, suffix)).expect("copies");
    }
    let after = open(&Options::Sqlite(copy), &VirtualAmbient::new(1)).await.expect("opens");
    let rows = after.read(|tx| store::log_after(tx, 0, 1000)).await.expect("reads");
    crate::log::check_whole(&rows);
    assert_eq!((after.read(machine::count).await, rows.len()), (Ok(200), 200));
    after.close();
    // and after an orderly end
    store.close();
    let again = open(&store.options, &store.clock).await.expect("opens");
    assert_eq!(again.read(machine::count).await, Ok(200));
    again.close();
}

pub fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_cannot_keep_others_out() {
    let store = TestStore::sqlite().await;
    let blocker = Blocker::on(&store, "key").await;
    let (greedy, modest) = (Caller::new("greedy"), Caller::new("modest"));
    let put = |caller: &Caller, id: String| {
        let (store, caller, row) = (store.store.clone(), caller.clone(), machine_id(&id));
        let work = move |tx: &mut store::Tx<'_>| register(tx, &row, &MachineSpec::default(), &Labels::new()).map(drop);
        Box::pin(async move { store.write(&caller, &id, work).await })
    };
    let mut waiting = Vec::new();
    let refused = loop {
        let mut writing = put(&greedy, format!("greedy-{}", waiting.len()));
        match poll!(writing.as_mut()) {
            std::task::Poll::Pending => waiting.push(writing),
            std::task::Poll::Ready(answer) => break answer,
        }
        assert!(waiting.len() <= 100_000, "there must be a bound");
    };
    assert_eq!(refused.map_err(|e| e.reason), Err(Reason::QueueFull));
    let mut others = put(&modest, "modest".to_owned());
    assert!(poll!(others.as_mut()).is_pending(), "another still gets in");
    let again = put(&greedy, "too-much".to_owned()).await;
    assert_eq!(again.map_err(|e| e.reason), Err(Reason::QueueFull), "the greedy one does not");
    blocker.release().await;
    assert_eq!(others.await, Ok(()));
    let done = futures::future::join_all(waiting).await;
    assert!(done.iter().all(Result::is_ok), "what was let in is done");
    put(&greedy, "later".to_owned()).await.expect("room again");
    assert_eq!(store.read(machine::count).await, Ok(done.len() as u64 + 2), "what was refused is not there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_opened_says_why() {
    let folder = testkit::scratch::folder();
    let garbage = folder.path().join("garbage.db");
    std::fs::write(&garbage, vec![7u8; 8192]).expect("writes");
    for path in [folder.path().join("no/such/folder.db"), folder.path().to_path_buf(), garbage] {
        let refused =
            open(&Options::Sqlite(path.clone()), &VirtualAmbient::new(1)).await.map(drop).expect_err("refused");
        assert_eq!(refused.reason, Reason::StoreUnavailable, "{}", path.display());
        assert!(refused.message.starts_with("opening the database: "), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_in_memory_share_nothing() {
    let (one, two) = (TestStore::memory().await, TestStore::memory().await);
    one.register("m").await;
    assert_eq!((one.machine("m").await.is_some(), two.machine("m").await), (true, None));
}
