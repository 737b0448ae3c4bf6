//! Two servers at one machine, each with a keyring of its own over the same rows: whoever comes late loses nothing of
//! what the other has kept since.

use crate::ground::{Ground, PASSWORD, SCRIPT_IMAGE, operation, options, until};
use async_trait::async_trait;
use datacenter::Datacenter;
use domain::MachineId;
use domain::credential::Credential;
use provider::{
    Ack, Because, ImageControl as _, Inspect as _, Keyring, Management as _, Pin, ProviderError, ProviderResult, Swap,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use testkit::keyring::MemoryKeyring;
use tokio::sync::Barrier;

/// One server's keyring.
struct Late {
    inner: Arc<MemoryKeyring>,
    /// All who are about to keep a new password meet here, so that each has read what was there before.
    meeting: Option<Arc<Barrier>>,
    /// What another server makes of the installation just before this one writes to it, once.
    newer: Mutex<Option<String>>,
}

/// Nothing is judged by it: it only ends a meeting to which nobody else comes.
const MEETING: Duration = Duration::from_secs(20);

#[async_trait]
impl Keyring for Late {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        self.inner.credential(name).await
    }
    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap> {
        if let (Some(meeting), Credential::BmcChanging { .. }) = (&self.meeting, new) {
            drop(tokio::time::timeout(MEETING, meeting.wait()).await);
        }
        self.inner.replace(name, read, new).await
    }
    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>> {
        self.inner.pinned(machine, pin, endpoint).await
    }
    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String> {
        self.inner.pin(machine, pin, endpoint, seen).await
    }
    async fn repin(
        &self,
        machine: &MachineId,
        pin: Pin,
        at: &str,
        read: Option<&str>,
        value: &str,
        because: Because<'_>,
    ) -> ProviderResult<Swap> {
        let newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(newer) = newer {
            self.inner.unpin(machine, pin, "closed by another server").await?;
            self.inner.pin(machine, pin, at, &newer).await?;
        }
        self.inner.repin(machine, pin, at, read, value, because).await
    }
    async fn forget(&self, machine: &MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()> {
        self.inner.forget(machine, pins, because).await
    }
}

fn server(g: &Ground, meeting: Option<&Arc<Barrier>>, newer: Option<String>) -> Datacenter {
    let (inner, meeting) = (g.keyring.clone(), meeting.cloned());
    Datacenter::new(options(), Arc::new(Late { inner, meeting, newer: Mutex::new(newer) }))
}

/// Both have read the old password and made a new one before either has kept its own.
#[tokio::test]
async fn that_change_a_password_at_once_end_with_the_one_that_works() {
    let g = Ground::bmc_only(options()).await;
    let meeting = Arc::new(Barrier::new(2));
    let (one, two) = (server(&g, Some(&meeting), None), server(&g, Some(&meeting), None));
    let (first, second) = tokio::join!(one.rotate_password(&g.target), two.rotate_password(&g.target));
    assert!([&first, &second].iter().any(|answer| **answer == Ok(Ack::Done)), "{first:?}, {second:?}");
    // a look settles what is open; the verdict is the controller's own list of accounts
    g.look().await;
    let Some(Credential::Bmc(kept)) = g.keyring.get("bmc") else { panic!("not settled: {:?}", g.keyring.get("bmc")) };
    assert_eq!(g.responder.password_of("operator").as_deref(), Some(kept.password.reveal()));
    assert_ne!(kept.password.reveal(), PASSWORD, "it was changed");
}

/// A look that began before has found the first installation there, and is about to close it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn do_not_close_what_the_other_has_begun_since() {
    let g = Ground::whole(options()).await;
    let first = operation("repave", 1);
    g.dc.install(&g.target, SCRIPT_IMAGE, "", &first).await.map(drop).expect("begun");
    until("the script has run", || g.installs() == 1).await;
    let newer = format!("script {} {SCRIPT_IMAGE} before", operation("repave", 1).key());
    let slow = server(&g, None, Some(newer.clone()));
    let kept = || g.keyring.pin_of(g.target.machine_id.as_str(), Pin::Installation);
    for _ in 0..100 {
        // until the script's mark is on the disk
        let seen = slow.inspect(&g.target).await.expect("a look");
        if seen.installed.is_some() || kept().as_deref() == Some(&*newer) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(kept(), Some(newer), "what was begun since is not closed");
}

/// What is to be begun was read before another server began something: nothing is touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn do_not_begin_over_what_the_other_has_begun_since() {
    let g = Ground::whole(options()).await;
    let newer = format!("media {} another-image before", operation("repave", 1).key());
    let late = server(&g, None, Some(newer.clone()));
    let no = late.install(&g.target, SCRIPT_IMAGE, "", &operation("repave", 1)).await.expect_err("overtaken");
    assert!(matches!(&no, ProviderError::Refused { .. }) && no.to_string().contains("somebody else"), "{no}");
    assert_eq!(g.keyring.pin_of(g.target.machine_id.as_str(), Pin::Installation), Some(newer));
    assert_eq!(g.installs(), 0);
}
