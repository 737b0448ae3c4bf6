//! A password is changed on a controller, and whatever goes wrong on the way, the one that is kept is the one that works.

use crate::ground::{Ground, PASSWORD, options, refused};
use domain::credential::{BmcLogin, Credential};
use domain::{Reason, Secret};
use provider::{Ack, Because, Inspect as _, Management as _, Pin, ProviderResult, Swap};
use std::sync::Arc;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::ipmi_sim::{self, IpmiSim};
use testkit::keyring::MemoryKeyring;

const USER: &str = "operator";

fn kept(g: &Ground) -> String {
    match g.keyring.get("bmc") {
        // as long as nobody knows, the old one is used while it works, and the new one is not forgotten
        Some(Credential::Bmc(login) | Credential::BmcChanging { login, .. }) => login.password.reveal().to_owned(),
        other => panic!("not kept: {other:?}"),
    }
}

/// The verdict: by the controller's own account list, and by a look.
async fn the_kept_one_works(g: &Ground, changed: bool) {
    let kept = kept(g);
    assert_eq!(g.responder.password_of(USER).as_deref(), Some(kept.as_str()));
    assert_eq!(kept != PASSWORD, changed);
    g.look().await;
}

async fn rotated_with(fault: Option<Fault>) -> (Ground, ProviderResult<Ack>) {
    let g = Ground::bmc_only(options()).await;
    g.look().await;
    if let Some(fault) = fault {
        g.responder.faults.arm("PATCH", "/Accounts/", fault, 1);
    }
    let answer = g.dc.rotate_password(&g.target).await;
    (g, answer)
}

#[tokio::test]
async fn it_is_changed_and_kept() {
    let (g, answer) = rotated_with(None).await;
    assert_eq!(answer, Ok(Ack::Done));
    the_kept_one_works(&g, true).await;
    let first = kept(&g);
    assert_eq!(g.dc.rotate_password(&g.target).await, Ok(Ack::Done), "and again");
    assert_ne!(kept(&g), first);
    the_kept_one_works(&g, true).await;
}

#[tokio::test]
async fn refused_nothing_changes() {
    let (g, answer) = rotated_with(Some(Fault::Status(403, "{}".into()))).await;
    refused(answer, Reason::ProviderRefused, &[]);
    assert_eq!(g.responder.faults.disarm(), 1);
    the_kept_one_works(&g, false).await;
}

#[tokio::test]
async fn done_and_the_answer_lost_is_found_out() {
    let (g, answer) = rotated_with(Some(Fault::LoseAnswer)).await;
    assert_eq!(answer, Ok(Ack::Done));
    assert_eq!(g.responder.faults.disarm(), 1);
    the_kept_one_works(&g, true).await;
}

#[tokio::test]
async fn not_done_and_the_answer_lost_is_found_out() {
    let (g, answer) = rotated_with(Some(Fault::Reset)).await;
    let no = answer.expect_err("it was not done");
    assert!(no.to_string().contains("both are kept") && !no.to_string().contains("said yes"), "{no}");
    assert_eq!(g.responder.faults.disarm(), 1);
    the_kept_one_works(&g, false).await;
}

/// It says no, or that it failed, and does it a moment later: neither of the two is lost.
#[tokio::test]
async fn done_late_is_found_out_by_the_next_look() {
    for fault in [Fault::Reset, Fault::DoNothing, Fault::Status(500, "{}".into())] {
        let (g, answer) = rotated_with(Some(fault.clone())).await;
        assert!(answer.is_err(), "{fault:?}: not seen yet");
        let Some(Credential::BmcChanging { next, .. }) = g.keyring.get("bmc") else { panic!("{fault:?}: forgotten") };
        g.responder.set_password(USER, next.reveal());
        g.dc.watch(&g.target).await.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(matches!(g.keyring.get("bmc"), Some(Credential::Bmc(_))), "{fault:?}: settled");
        the_kept_one_works(&g, true).await;
    }
}

/// Who waits for the turn changes what is kept by then.
#[tokio::test]
async fn two_changes_at_once_lose_nothing() {
    let g = Ground::bmc_only(options()).await;
    g.look().await;
    let (one, two) = tokio::join!(g.dc.rotate_password(&g.target), g.dc.rotate_password(&g.target));
    assert_eq!((one, two), (Ok(Ack::Done), Ok(Ack::Done)));
    the_kept_one_works(&g, true).await;
}

#[tokio::test]
async fn a_yes_that_did_nothing_is_found_out() {
    let (g, answer) = rotated_with(Some(Fault::DoNothing)).await;
    let no = answer.expect_err("it was not done");
    assert!(no.to_string().contains("it said yes") && no.to_string().contains("both are kept"), "{no}");
    assert_eq!(g.responder.faults.disarm(), 1);
    the_kept_one_works(&g, false).await;
}

/// Whoever was changing it is gone; the next one who comes finds out which of the two it is, be it for a look.
#[tokio::test]
async fn a_change_that_nobody_finished_is_settled_by_the_next_look() {
    for done in [false, true] {
        let g = Ground::bmc_only(options()).await;
        let login = BmcLogin { username: USER.into(), password: Secret::new(PASSWORD) };
        let changing = Credential::BmcChanging { login, next: Secret::new("the new horse") };
        g.keyring.set("bmc", changing);
        if done {
            g.responder.set_password(USER, "the new horse");
        }
        g.dc.watch(&g.target).await.unwrap_or_else(|e| panic!("done: {done}: {e}"));
        the_kept_one_works(&g, done).await;
    }
}

/// The worst of moments: somebody finds that the old one works just before it is changed, and is about to keep it when
/// the new one is kept.
struct Slow {
    inner: Arc<MemoryKeyring>,
    /// Somebody is about to keep the old one.
    old_found: tokio::sync::Notify,
    new_kept: tokio_util::sync::CancellationToken,
}

/// Nothing is judged by it: it only leaves others the time to come in between.
const WINDOW: Duration = Duration::from_millis(1500);

#[async_trait::async_trait]
impl provider::Keyring for Slow {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        self.inner.credential(name).await
    }
    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap> {
        match new {
            Credential::BmcChanging { .. } => {
                let swap = self.inner.replace(name, read, new).await?;
                drop(tokio::time::timeout(WINDOW, self.old_found.notified()).await);
                Ok(swap)
            }
            Credential::Bmc(login) if login.password.reveal() == PASSWORD => {
                self.old_found.notify_one();
                drop(tokio::time::timeout(WINDOW * 4, self.new_kept.cancelled()).await);
                self.inner.replace(name, read, new).await
            }
            other => {
                let swap = self.inner.replace(name, read, other).await?;
                self.new_kept.cancel();
                Ok(swap)
            }
        }
    }
    async fn pinned(&self, machine: &domain::MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>> {
        self.inner.pinned(machine, pin, endpoint).await
    }
    async fn pin(&self, machine: &domain::MachineId, pin: Pin, at: &str, seen: &str) -> ProviderResult<String> {
        self.inner.pin(machine, pin, at, seen).await
    }
    async fn repin(
        &self,
        machine: &domain::MachineId,
        pin: Pin,
        at: &str,
        read: Option<&str>,
        value: &str,
        because: Because<'_>,
    ) -> ProviderResult<Swap> {
        self.inner.repin(machine, pin, at, read, value, because).await
    }
    async fn forget(&self, machine: &domain::MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()> {
        self.inner.forget(machine, pins, because).await
    }
}

#[tokio::test]
async fn whoever_finds_the_old_one_working_does_not_keep_it_over_the_new() {
    let g = Ground::bmc_only(options()).await;
    let (old_found, new_kept) = (tokio::sync::Notify::new(), tokio_util::sync::CancellationToken::new());
    let slow = Arc::new(Slow { inner: g.keyring.clone(), old_found, new_kept });
    let dc = datacenter::Datacenter::new(options(), slow);
    dc.inspect(&g.target).await.expect("a look");
    let changing = || matches!(g.keyring.get("bmc"), Some(Credential::BmcChanging { .. }));
    let looked = async {
        crate::ground::until("it is being changed", changing).await;
        drop(dc.inspect(&g.target).await);
    };
    let (rotated, ()) = tokio::join!(dc.rotate_password(&g.target), looked);
    assert_eq!(rotated, Ok(Ack::Done));
    the_kept_one_works(&g, true).await;
}

/// It takes a while, and others look at the machine and settle what they find half done.
#[tokio::test]
async fn others_who_come_in_the_middle_do_not_lose_it() {
    for fault in [Fault::Delay(Duration::from_millis(700)), Fault::HoldAnswer] {
        let g = Ground::bmc_only(crate::ground::impatient()).await;
        g.look().await;
        g.responder.faults.arm("PATCH", "/Accounts/", fault.clone(), 1);
        let rotated = async { g.dc.rotate_password(&g.target).await };
        let looked = async {
            crate::ground::until("it is being changed", || g.responder.faults.hits() > 0).await;
            for _ in 0..3 {
                drop(g.dc.inspect(&g.target).await);
                drop(g.dc.watch(&g.target).await);
            }
        };
        let (rotated, ()) = tokio::join!(rotated, looked);
        assert_eq!(rotated, Ok(Ack::Done), "{fault:?}");
        g.responder.faults.disarm();
        the_kept_one_works(&g, true).await;
    }
}

#[tokio::test]
async fn by_ipmi_too() {
    const SHORT: &str = "c0rrect-horse";
    let sim = IpmiSim::start(SHORT).await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", ipmi_sim::USERNAME, SHORT));
    let dc = datacenter::Datacenter::new(options(), keyring.clone());
    let spec = domain::machine::MachineSpec {
        bmc_endpoint: sim.endpoint_text(),
        credentials_ref: "bmc".into(),
        ..Default::default()
    };
    let target = crate::ground::target(spec);
    assert_eq!(dc.rotate_password(&target).await, Ok(Ack::Done));
    let Some(Credential::Bmc(now)) = keyring.get("bmc") else { panic!("not settled") };
    assert_ne!(now.password.reveal(), SHORT);
    dc.inspect(&target).await.expect("the new one works");
    // and somebody who was never told of it is kept out
    let stranger = MemoryKeyring::default().with_bmc("bmc", ipmi_sim::USERNAME, SHORT);
    let stranger = datacenter::Datacenter::new(options(), Arc::new(stranger));
    refused(stranger.inspect(&target).await, Reason::LoginRefused, &[]);
}
