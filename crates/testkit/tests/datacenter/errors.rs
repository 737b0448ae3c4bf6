//! Six ways in which a machine cannot be worked with, six reasons, each with what to do next in its words: for
//! Redfish, IPMI and SSH, all through the provider.

use crate::ground::{Ground, PASSWORD, impatient, is_machine, operation, options, refused, target};
use datacenter::Datacenter;
use domain::Reason;
use domain::credential::Credential;
use domain::machine::MachineSpec;
use domain::plan::RebootMode;
use provider::{Exec as _, Inspect as _, Management as _, PowerControl as _, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::Arc;
use testkit::closed_port::ClosedPort;
use testkit::ipmi_sim::{self, IpmiSim};
use testkit::keyring::MemoryKeyring;
use testkit::redfish_responder::{self, Responder, What};
use testkit::sshd::SshHost;
use testkit::tls::Authority;

/// What a person is told to do, by reason.
fn next_action(reason: Reason) -> &'static str {
    match reason {
        Reason::Unreachable => "check its address, its network and that it has power",
        Reason::ConnectionRefused => "check the port, and that the service is enabled there",
        Reason::LoginRefused => "millwright credential set",
        Reason::UntrustedCertificate | Reason::HostKeyChanged => "millwright machine repin",
        Reason::CapabilityMissing => "millwright machine inspect",
        Reason::WrongMachine => "check its endpoints",
        other => panic!("{other:?} is none of them"),
    }
}

fn spec(bmc: &str, ssh: &str) -> MachineSpec {
    MachineSpec {
        bmc_endpoint: bmc.to_owned(),
        ssh_endpoint: ssh.to_owned(),
        credentials_ref: "bmc,ssh".to_owned(),
        ..MachineSpec::default()
    }
}

async fn by_bmc(keyring: MemoryKeyring, target: &Target, reason: Reason, words: &[&str]) -> Reason {
    let dc = Datacenter::new(impatient(), Arc::new(keyring));
    let no = refused(dc.power_off(target, &operation("shutdown", 1)).await, reason, words);
    assert!(no.to_string().contains(next_action(reason)), "{no}");
    // a look comes to the same, where it needs no more than the controller
    if !matches!(reason, Reason::CapabilityMissing | Reason::WrongMachine) {
        refused(dc.inspect(target).await, reason, &[]);
    }
    no.reason()
}

/// Taken and never answered.
fn deaf() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    (listener, at)
}

#[tokio::test]
async fn redfish_has_six() {
    let authority = Authority::default();
    let pair = authority.pair();
    let options = redfish_responder::Options::default;
    let responder = Responder::start_with(options(), Some((&pair, false))).await;
    let keyring = || MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD);
    let at = responder.endpoint(1);
    let insecure = format!("{at}?tls=insecure");
    responder.change(1, |s| s.on = true);
    let mut reasons = BTreeSet::new();

    let (_deaf, nowhere) = deaf();
    let there = target(spec(&format!("https://{nowhere}?tls=insecure"), ""));
    reasons.insert(by_bmc(keyring(), &there, Reason::Unreachable, &[&nowhere]).await.as_str());
    let closed_port = ClosedPort::new();
    let closed = closed_port.at.to_string();
    let there = target(spec(&format!("https://{closed}?tls=insecure"), ""));
    reasons.insert(by_bmc(keyring(), &there, Reason::ConnectionRefused, &[&closed]).await.as_str());
    let wrong = MemoryKeyring::default().with_bmc("bmc", "operator", "wrong");
    let there = target(spec(&insecure, ""));
    reasons.insert(by_bmc(wrong, &there, Reason::LoginRefused, &["\"bmc\""]).await.as_str());
    let pinned = format!("{at}?tls=pin:{}", "ab".repeat(32));
    reasons
        .insert(by_bmc(keyring(), &target(spec(&pinned, "")), Reason::UntrustedCertificate, &["abab"]).await.as_str());
    let mut another = spec(&insecure, "");
    another.serial_number = "SN-EXPECTED".to_owned();
    let both = ["SN-EXPECTED", "SN000001", "another machine"];
    reasons.insert(by_bmc(keyring(), &target(another), Reason::WrongMachine, &both).await.as_str());
    responder.behave(|o| o.reset_types = vec!["On".to_owned()]);
    let there = target(spec(&insecure, ""));
    reasons.insert(by_bmc(keyring(), &there, Reason::CapabilityMissing, &["does not offer"]).await.as_str());
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    let touched = |w: &What| !matches!(w, What::LoggedIn | What::LoginRefused | What::LoggedOut);
    assert!(!responder.journal().iter().any(|e| touched(&e.what)), "nothing was done to it: {:?}", responder.journal());
}

/// There are no certificates in IPMI.
#[tokio::test]
async fn ipmi_has_five() {
    const SHORT: &str = "c0rrect-horse";
    let sim = IpmiSim::start(SHORT).await;
    sim.set_power(true);
    let keyring = || MemoryKeyring::default().with_bmc("bmc", ipmi_sim::USERNAME, SHORT);
    let at = sim.endpoint_text();
    let mut reasons = BTreeSet::new();
    let deaf = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let nowhere = deaf.local_addr().expect("an address");
    let there = target(spec(&ipmi_sim::endpoint_text(nowhere), ""));
    reasons.insert(by_bmc(keyring(), &there, Reason::Unreachable, &[&nowhere.to_string()]).await.as_str());
    let closed = ipmi_sim::free_port();
    let there = target(spec(&ipmi_sim::endpoint_text(closed), ""));
    reasons.insert(by_bmc(keyring(), &there, Reason::ConnectionRefused, &[&closed.to_string()]).await.as_str());

    // what answers is given the time that a busy machine needs
    let asked = |keyring: MemoryKeyring| Datacenter::new(options(), Arc::new(keyring));
    let wrong = MemoryKeyring::default().with_bmc("bmc", ipmi_sim::USERNAME, "wrong");
    let no = refused(asked(wrong).inspect(&target(spec(&at, ""))).await, Reason::LoginRefused, &["\"bmc\""]);
    assert!(no.to_string().contains(next_action(no.reason())), "{no}");
    reasons.insert(no.reason().as_str());
    let mut another = spec(&at, "");
    another.serial_number = "SN-EXPECTED".to_owned();
    let no = asked(keyring()).power_off(&target(another), &operation("shutdown", 1)).await;
    let no = refused(no, Reason::WrongMachine, &["SN-EXPECTED", ipmi_sim::SERIAL]);
    assert!(no.to_string().contains(next_action(no.reason())), "{no}");
    reasons.insert(no.reason().as_str());
    let (dc, there) = (asked(keyring()), target(spec(&at, "")));
    let (bmc, _) = dc.bmc(&there).await.expect("a controller");
    let no = refused(bmc.insert_media("http://127.0.0.1/x.iso").await, Reason::CapabilityMissing, &["virtual media"]);
    assert!(no.to_string().contains(next_action(no.reason())), "{no}");
    reasons.insert(no.reason().as_str());
    assert_eq!(reasons.len(), 5, "{reasons:?}");
    assert_eq!(sim.journal(), [""; 0], "nothing was done to it");
}

fn command(marker: &str) -> provider::Command {
    let args = vec!["-c".to_owned(), format!("echo x >>{marker}")];
    provider::Command { command: "sh".to_owned(), args, environment: BTreeMap::new() }
}

/// The host's key stands in the place of a certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ssh_has_six() {
    let host = SshHost::start();
    is_machine(&host, "SN-HOST", "");
    let keyring = || MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD);
    let right = || keyring().with("ssh", Credential::Ssh(host.login()));
    let at = host.at().to_string();
    let marker = "/var/lib/was-here";
    let run = |keyring: MemoryKeyring, target: Target, patient: bool, reason: Reason, words: Vec<String>| async move {
        let dc = Datacenter::new(if patient { options() } else { impatient() }, Arc::new(keyring));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let no = refused(dc.start(&target, &command(marker), &operation("run", 1)).await, reason, &words);
        assert!(no.to_string().contains(next_action(reason)), "{no}");
        reason.as_str()
    };
    let ssh = |at: &str| target(spec("", at));
    let mut reasons = BTreeSet::new();
    let (_deaf, nowhere) = deaf();
    reasons.insert(run(right(), ssh(&nowhere), false, Reason::Unreachable, vec![nowhere.clone()]).await);
    let closed_port = ClosedPort::new();
    let closed = closed_port.at.to_string();
    reasons.insert(run(right(), ssh(&closed), false, Reason::ConnectionRefused, vec![closed.clone()]).await);
    let nobody = stranger();
    let wrong = keyring().with("ssh", Credential::Ssh(nobody));
    reasons.insert(run(wrong, ssh(&at), true, Reason::LoginRefused, vec!["\"ssh\"".to_owned()]).await);
    let mut another = ssh(&at);
    another.spec.serial_number = "SN-EXPECTED".to_owned();
    let both = vec!["SN-EXPECTED".to_owned(), "SN-HOST".to_owned()];
    reasons.insert(run(right(), another, true, Reason::WrongMachine, both).await);
    assert!(!host.inside(marker).exists(), "nothing ran on it");

    // the same keyring throughout: it has the key that was seen first
    let keyring = Arc::new(right());
    let (dc, there) = (Datacenter::new(options(), keyring.clone()), ssh(&at));
    dc.start(&there, &command("/var/lib/first"), &operation("run", 1)).await.map(drop).expect("it runs");
    let old = host.fingerprint();
    tokio::task::block_in_place(|| host.change_host_key());
    let again = dc.start(&there, &command(marker), &operation("run", 1)).await;
    let no = refused(again, Reason::HostKeyChanged, &[&old, &host.fingerprint()]);
    assert!(no.to_string().contains(next_action(no.reason())), "{no}");
    reasons.insert(no.reason().as_str());
    assert!(!host.inside(marker).exists(), "nothing ran on it");

    let no = dc.start(&ssh(""), &command(marker), &operation("run", 1)).await;
    let no = refused(no, Reason::CapabilityMissing, &["spec.ssh_endpoint"]);
    reasons.insert(no.reason().as_str());
    assert_eq!(reasons.len(), 6, "{reasons:?}");
}

/// A key that no host knows.
fn stranger() -> domain::credential::SshLogin {
    // made by ssh-keygen on a host of its own, which nobody asks
    SshHost::start().login()
}

/// A machine without a BMC lacks one, by name; a machine without identity is not rebooted blindly in its place.
#[tokio::test]
async fn what_the_record_lacks_is_named() {
    let g = Ground::bmc_only(options()).await;
    let mut nothing = g.target.clone();
    nothing.spec.bmc_endpoint = String::new();
    let no = g.dc.reset(&nothing, RebootMode::Bmc, &operation("reboot", 1)).await;
    refused(no, Reason::CapabilityMissing, &["spec.bmc_endpoint"]);
    let mut nobody = g.target.clone();
    nobody.spec.credentials_ref = String::new();
    refused(g.dc.inspect(&nobody).await, Reason::CredentialMissing, &["millwright credential set"]);
    assert_eq!(g.resets(), [""; 0]);
}
