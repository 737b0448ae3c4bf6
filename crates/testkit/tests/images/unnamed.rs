//! Bytes that no name means any more: they stay for a day, whoever shares the folder, and go then. Names are in a real
//! database; what is there is looked at in the folder.

use boot::images::{Digest, Keeper, Store};
use service::{ImageBytes as _, NewImage, Service};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, quick};
use testkit::server::TestServer;

/// Two servers on one folder and one database.
struct Two {
    server: TestServer,
    folder: tempfile::TempDir,
    stores: [Arc<Store>; 2],
    keepers: [Keeper; 2],
}

impl Two {
    async fn new() -> Self {
        let fleet = tokio::task::spawn_blocking(|| Fleet::new(Database::Sqlite, 1)).await.expect("a fleet");
        let server = TestServer::start_with(fleet, quick("test")).await;
        let folder = testkit::scratch::folder();
        let open = || Arc::new(Store::open(folder.path(), 1 << 20).expect("opened"));
        let stores = [open(), open()];
        let keepers = [Keeper::new(stores[0].clone()), Keeper::new(stores[1].clone())];
        Self { server, folder, stores, keepers }
    }

    fn service(&self) -> &Service {
        &self.server.service
    }

    async fn name(&self, name: &str, digest: &Digest) {
        let new = NewImage { name: name.into(), sha256: digest.to_string(), bytes: 3, kind: "raw".into() };
        self.service().name_image(&admin(), new).await.expect("is named");
    }

    async fn forget(&self, name: &str, digest: &Digest) {
        self.service().remove_image(&admin(), name).await.expect("is removed");
        self.keepers[0].unnamed(self.service(), &digest.to_string()).await;
    }

    fn is_there(&self, digest: &Digest) -> bool {
        self.folder.path().join("sha256").join(digest.to_string()).exists()
    }

    /// As if its last name had gone so long ago, by the server's clock.
    fn unnamed_for(&self, digest: &Digest, hours: u64) {
        let mark = self.folder.path().join("sha256").join(format!(".unnamed-{digest}"));
        assert!(mark.exists(), "it is marked");
        let now = u64::try_from(self.service().now().micros()).expect("after 1970");
        let then = Duration::from_micros(now) - Duration::from_secs(hours * 3600);
        set_modified(&mark, std::time::UNIX_EPOCH + then);
    }

    async fn sweep(&self) {
        for keeper in &self.keepers {
            keeper.sweep(self.service()).await.expect("swept");
        }
    }
}

fn set_modified(file: &Path, at: std::time::SystemTime) {
    std::fs::File::options().write(true).open(file).and_then(|file| file.set_modified(at)).expect("set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_stay_for_a_day_after_their_last_name_has_gone() {
    let two = Two::new().await;
    let (digest, _) = two.stores[0].add(&b"abc"[..], None).expect("added");
    for name in ["one", "other"] {
        two.name(name, &digest).await;
    }
    two.forget("one", &digest).await;
    two.sweep().await;
    assert!(two.is_there(&digest) && two.stores[0].unnamed().expect("listed").is_empty(), "another name means them");
    two.forget("other", &digest).await;
    two.unnamed_for(&digest, 23);
    two.sweep().await;
    assert!(two.is_there(&digest), "a machine may be writing them");
    two.unnamed_for(&digest, 25);
    two.sweep().await;
    assert!(!two.is_there(&digest), "and now nobody is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_another_server_is_about_to_name_stay() {
    let two = Two::new().await;
    let (digest, _) = two.stores[0].add(&b"abc"[..], None).expect("added");
    two.name("old", &digest).await;
    two.forget("old", &digest).await;
    two.unnamed_for(&digest, 48);
    // the first adds them again, and has not named them yet
    let naming = two.stores[0].naming().expect("locked");
    two.stores[0].add(&b"abc"[..], None).expect("added");
    two.keepers[1].sweep(two.service()).await.expect("swept");
    assert!(two.is_there(&digest), "somebody has bytes to name");
    two.name("new", &digest).await;
    drop(naming);
    two.sweep().await;
    assert!(two.is_there(&digest), "a name means them");
    assert!(two.stores[0].unnamed().expect("listed").is_empty(), "nor are they marked any more");
}

/// What nobody has ever named here may be another database's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_no_name_of_ours_ever_meant_are_not_ours_to_remove() {
    let two = Two::new().await;
    let (digest, _) = two.stores[0].add(&b"abc"[..], None).expect("added");
    let file = two.folder.path().join("sha256").join(digest.to_string());
    let long_ago =
        std::fs::metadata(&file).and_then(|m| m.modified()).expect("a time") - Duration::from_secs(30 * 86400);
    std::fs::File::open(&file).and_then(|file| file.set_modified(long_ago)).expect("set");
    two.sweep().await;
    assert!(two.is_there(&digest));
}
