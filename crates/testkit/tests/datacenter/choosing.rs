//! Which way to a machine is taken, by what it is known, and who it must be before anything is done to it.

use crate::ground::{Ground, MEDIA_IMAGE, PASSWORD, is_machine, operation, options, refused, target, until};
use async_trait::async_trait;
use datacenter::{Datacenter, Options};
use domain::credential::Credential;
use domain::machine::MachineSpec;
use domain::plan::{BootMode, RebootMode};
use domain::{MachineId, Reason};
use provider::{
    Because, BootControl as _, ImageControl as _, Inspect as _, Keyring, Management as _, Pin, PowerControl as _,
    PowerState, ProviderResult, Swap,
};
use std::sync::{Arc, Mutex};
use testkit::ipmi_sim::IpmiSim;
use testkit::keyring::MemoryKeyring;
use testkit::redfish_responder::{self, Responder, What};
use testkit::sshd::SshHost;
use testkit::sushy::Sushy;
use testkit::tls::Authority;
use testkit::udp_proxy::UdpProxy;

/// A keyring that remembers what had been asked of a controller when its certificate was pinned.
struct Watching {
    inner: MemoryKeyring,
    questions: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    at_pinning: Mutex<Option<Vec<String>>>,
}

#[async_trait]
impl Keyring for Watching {
    async fn credential(&self, name: &str) -> ProviderResult<Credential> {
        self.inner.credential(name).await
    }
    async fn replace(&self, name: &str, read: &Credential, new: &Credential) -> ProviderResult<Swap> {
        self.inner.replace(name, read, new).await
    }
    async fn pinned(&self, machine: &MachineId, pin: Pin, endpoint: &str) -> ProviderResult<Option<String>> {
        self.inner.pinned(machine, pin, endpoint).await
    }
    async fn pin(&self, machine: &MachineId, pin: Pin, endpoint: &str, seen: &str) -> ProviderResult<String> {
        *self.at_pinning.lock().expect("not poisoned") = Some((self.questions)());
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
        self.inner.repin(machine, pin, at, read, value, because).await
    }
    async fn forget(&self, machine: &MachineId, pins: &[Pin], because: Because<'_>) -> ProviderResult<()> {
        self.inner.forget(machine, pins, because).await
    }
}

async fn over_tls() -> Arc<Responder> {
    let pair = Authority::default().pair();
    Arc::new(Responder::start_with(redfish_responder::Options::default(), Some((&pair, false))).await)
}

fn bare(responder: &Responder) -> MachineSpec {
    MachineSpec {
        bmc_endpoint: format!("127.0.0.1:{}", responder.port(1)),
        credentials_ref: "bmc".into(),
        ..MachineSpec::default()
    }
}

#[tokio::test]
async fn a_bare_host_is_redfish_and_is_pinned_before_any_password_is_sent() {
    let responder = over_tls().await;
    let asked = responder.clone();
    let keyring = Arc::new(Watching {
        inner: MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD),
        questions: Box::new(move || asked.take_questions()),
        at_pinning: Mutex::default(),
    });
    let (dc, target) = (Datacenter::new(options(), keyring.clone()), target(bare(&responder)));
    dc.inspect(&target).await.expect("a look");
    let before = keyring.at_pinning.lock().expect("not poisoned").clone().expect("it was pinned");
    assert!(before.iter().all(|q| q.starts_with("GET /redfish/v1") && !q.contains("Session")), "{before:?}");
    let notes = target.notes.take().join("\n");
    let pinned = keyring.inner.pin_of(target.machine_id.as_str(), Pin::BmcCertificate).expect("a pin");
    assert!(notes.contains("first contact") && notes.contains(&pinned), "{notes}");
    assert!(!notes.contains("IPMI"), "{notes}");
    // a second contact says nothing new
    dc.inspect(&target).await.expect("a look");
    assert_eq!(target.notes.take(), [""; 0]);
}

#[tokio::test]
async fn another_certificate_than_the_pinned_is_refused_until_an_admin_says_so() {
    let responder = over_tls().await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let (dc, mut target) = (Datacenter::new(options(), keyring.clone()), target(bare(&responder)));
    target.spec.bmc_endpoint = format!("https://127.0.0.1:{}", responder.port(1));
    let (at, other) = (format!("127.0.0.1:{}", responder.port(1)), "ab".repeat(32));
    keyring.pin(&target.machine_id, Pin::BmcCertificate, &at, &other).await.expect("pinned");
    refused(dc.inspect(&target).await, Reason::UntrustedCertificate, &[&other, "repin"]);
    refused(dc.power_off(&target, &operation("shutdown", 1)).await, Reason::UntrustedCertificate, &[]);
    assert_eq!(responder.questions(), 0, "no word was said to it");
    dc.repin(&target).await.map(drop).expect("by an admin");
    dc.inspect(&target).await.expect("what it shows is pinned now");
    assert_ne!(keyring.pin_of(target.machine_id.as_str(), Pin::BmcCertificate), Some(other));
}

/// At 127.0.0.1 and its port, the only one that this test of all may take.
#[tokio::test]
async fn without_redfish_it_is_ipmi_with_a_note_but_never_instead_of_a_known_certificate() {
    let sim = IpmiSim::start("c0rrect-horse").await;
    let proxy = UdpProxy::at("127.0.0.1:623".parse().expect("an address"), sim.address()).await;
    let responder = over_tls().await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let known = target(bare(&responder));
    Datacenter::new(options(), keyring.clone()).inspect(&known).await.expect("by Redfish");
    assert_eq!(proxy.asked().len(), 0, "IPMI is not asked where there is Redfish");
    let never_met = target(known.spec.clone());
    drop(responder);
    // after a restart of ours, with the other way blocked by whomever
    let dc = Datacenter::new(options(), keyring);
    let no = dc.inspect(&known).await.expect_err("it is gone");
    assert!(matches!(no.reason(), Reason::ConnectionRefused | Reason::Unreachable), "{no}");
    assert_eq!(proxy.asked().len(), 0, "its password's hash is not offered by IPMI");
    // the simulator knows no cipher suite but 3, and the default is 17: that it is asked at all is what counts
    let no = dc.inspect(&never_met).await.expect_err("no such cipher suite, or no such user");
    let notes = never_met.notes.take().join("\n");
    assert!(notes.contains("no Redfish") && notes.contains("127.0.0.1:623"), "{notes} ({no})");
    assert!(proxy.asked().len() > 1, "it was spoken to by IPMI");
}

#[tokio::test]
async fn what_answers_neither_by_redfish_nor_by_ipmi_is_told_so() {
    let closed = testkit::closed_port::ClosedPort::on(std::net::Ipv4Addr::new(127, 0, 0, 2));
    let at = closed.at.to_string();
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let spec = MachineSpec { bmc_endpoint: at.clone(), credentials_ref: "bmc".into(), ..MachineSpec::default() };
    let dc = Datacenter::new(crate::ground::impatient(), keyring);
    refused(dc.inspect(&target(spec)).await, Reason::ConnectionRefused, &[&at]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_asks_first_who_it_is() {
    let g = Ground::whole(options()).await;
    g.responder.change(1, |s| s.serial = "SN-WRONG".into());
    let (dc, t, op) = (&g.dc, &g.target, operation("any", 1));
    let both = ["SN-WRONG", g.target.spec.serial_number.as_str()];
    let wrong = Reason::WrongMachine;
    refused(dc.reset(t, RebootMode::Bmc, &op).await, wrong, &both);
    refused(dc.reset(t, RebootMode::Force, &op).await, wrong, &both);
    refused(dc.power_off(t, &op).await, wrong, &both);
    refused(dc.set_boot(t, BootMode::Pxe, false, &op).await, wrong, &both);
    refused(dc.clear_boot(t, &op).await, wrong, &both);
    refused(dc.install(t, MEDIA_IMAGE, "", &op).await, wrong, &both);
    refused(dc.install(t, crate::ground::SCRIPT_IMAGE, "", &op).await, wrong, &both);
    refused(dc.rotate_password(t).await, wrong, &both);
    refused(dc.bmc(t).await.map(|(bmc, _)| bmc.name().to_owned()), wrong, &both);
    let own = |w: &What| !matches!(w, What::LoggedIn | What::LoggedOut);
    assert!(!g.responder.journal().iter().any(|e| own(&e.what)), "{:?}", g.responder.journal());
    assert_eq!(g.installs(), 0);
    // either of the two names is enough to tell
    g.responder.change(1, |s| s.serial.clone_from(&g.target.spec.serial_number));
    g.responder.change(1, |s| s.uuid = "4d57ffff-0000-4000-8000-000000000000".into());
    refused(dc.power_off(t, &op).await, wrong, &["4d57ffff", g.target.spec.system_uuid.as_str()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_with_ssh_alone_is_looked_at_by_ssh() {
    let host = Arc::new(tokio::task::spawn_blocking(SshHost::start).await.expect("a host"));
    is_machine(&host, "SN-ALONE", "4d570000-0000-4000-8000-00000000a10e");
    let keyring = Arc::new(MemoryKeyring::default().with("ssh", Credential::Ssh(host.login())));
    let spec = MachineSpec {
        ssh_endpoint: host.at().to_string(),
        credentials_ref: "ssh".into(),
        serial_number: "SN-ALONE".into(),
        ..MachineSpec::default()
    };
    let (dc, target) = (Datacenter::new(options(), keyring), target(spec));
    let seen = dc.inspect(&target).await.expect("a look");
    assert_eq!((seen.serial_number.as_str(), seen.power, seen.reachable), ("SN-ALONE", PowerState::On, true));
    assert_eq!(seen.boot_id, host.boot_id());
    refused(dc.reset(&target, RebootMode::Bmc, &operation("reboot", 1)).await, Reason::CapabilityMissing, &["no BMC"]);
    tokio::task::block_in_place(|| host.power_off());
    refused(dc.inspect(&target).await, Reason::Unreachable, &["no BMC to ask"]);
}

/// A sweep that only wants to know whether a host answers logs in on the way to it, and nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_behind_a_jump_host_logs_in_on_the_way_only() {
    // its own jump host: every login is in one log
    let host = Arc::new(tokio::task::spawn_blocking(SshHost::start).await.expect("a host"));
    is_machine(&host, "SN-BEHIND", "");
    let keyring = Arc::new(MemoryKeyring::default().with("ssh", Credential::Ssh(host.login())));
    let spec = MachineSpec {
        ssh_endpoint: format!("ssh://{at}?jump={at}", at = host.at()),
        credentials_ref: "ssh".into(),
        serial_number: "SN-BEHIND".into(),
        ..MachineSpec::default()
    };
    // one place there is enough for one look after the other
    let (dc, target) = (Datacenter::new(Options { jump_connections: 1, ..options() }, keyring), target(spec));
    let said = |words: &str| host.console().matches(words).count();
    assert!(dc.watch(&target).await.expect("a look").disk_read);
    // on the way to its key, on the way to it, and there
    until("its log tells of all three", || said("Accepted publickey") == 3).await;
    for sweep in 1..=3 {
        let before = (said("Accepted publickey"), said("Starting session"));
        let seen = dc.watch(&target).await.unwrap_or_else(|e| panic!("sweep {sweep}: {e}"));
        assert!(seen.reachable);
        until("its log tells", || said("Accepted publickey") > before.0).await;
        assert_eq!((said("Accepted publickey"), said("Starting session")), (before.0 + 1, before.1), "sweep {sweep}");
    }
}

/// Who has no business on a host, or no key for it, still sees what the BMC says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_that_cannot_be_asked_is_not_said_to_answer() {
    let g = Ground::whole(options()).await;
    let mut no_key = g.target.clone();
    no_key.spec.credentials_ref = "bmc".into();
    let seen = g.dc.inspect(&no_key).await.expect("by the BMC");
    assert_eq!((seen.power, seen.reachable, seen.host_asked), (PowerState::On, false, false));
    assert_eq!(seen.boot_id, "", "the controller's word is not mixed with the system's");
    assert!(no_key.notes.take().join("\n").contains("credential"));
    tokio::task::block_in_place(|| g.host().power_off());
    let down = g.dc.inspect(&g.target).await.expect("by the BMC");
    assert_eq!((down.power, down.reachable, down.host_asked), (PowerState::On, false, true));
}

#[tokio::test]
async fn what_stands_at_an_endpoint_is_discovered_and_pinned() {
    let responder = over_tls().await;
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
    let dc = Datacenter::new(options(), keyring);
    for scheme in ["", "https://"] {
        let mut spec = bare(&responder);
        spec.bmc_endpoint = format!("{scheme}{}", spec.bmc_endpoint);
        let found = dc.discover(&spec).await.expect("discovered");
        assert_eq!((found.spec.serial_number.as_str(), found.spec.system_uuid), ("SN000001", responder.system(1).uuid));
        assert!(!found.spec.mac_addresses.is_empty());
        let (at, pin) = found.spec.bmc_endpoint.split_once("?tls=pin:").expect("a pin");
        assert_eq!((at, pin.len()), (spec.bmc_endpoint.as_str(), 64));
        let again = target(MachineSpec { bmc_endpoint: found.spec.bmc_endpoint.clone(), ..spec.clone() });
        dc.inspect(&again).await.expect("the spec that it made leads there");
    }
}

// sushy-emulator shows one boot device for all boots, whatever it was told: that is for its adapter to know, and a
// step that compares what it asked for with what is set must not wait for it
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_controller_has_no_words_for_is_shown_as_it_was_asked_for() {
    // one of its own: it serves one connection at a time, and we keep ours
    let emulator = tokio::task::spawn_blocking(|| Sushy::start(2, PASSWORD, None)).await.expect("an emulator");
    let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", testkit::sushy::USERNAME, PASSWORD));
    let at = format!("http://localhost:{}/redfish/v1/Systems/{}", emulator.address().port(), Sushy::uuid(1));
    let target = target(MachineSpec { bmc_endpoint: at, credentials_ref: "bmc".into(), ..MachineSpec::default() });
    let dc = Datacenter::new(options(), keyring);
    for (mode, persistent) in [(BootMode::Pxe, false), (BootMode::Pxe, true), (BootMode::Cd, false)] {
        let set = dc.set_boot(&target, mode, persistent, &operation("netboot", 1)).await;
        assert_eq!(set, Ok(provider::Ack::Done), "{mode} {persistent}");
        let shown = dc.inspect(&target).await.expect("a look").boot_override.expect("is set");
        assert_eq!((shown.mode, shown.persistent), (mode, persistent));
    }
    dc.clear_boot(&target, &operation("netboot", 1)).await.map(drop).expect("is cleared");
    assert_eq!(dc.inspect(&target).await.expect("a look").boot_override, None);
}
