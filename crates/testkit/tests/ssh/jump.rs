//! Hosts behind another: one real server reached through another.

use crate::fixture::*;
use domain::Reason;
use domain::endpoint::HostPort;
use provider::{Ack, ProviderError};
use ssh::{Host, Jump, Places, Timeouts, answers_by_way_of, host_key_of};
use std::time::Duration;
use testkit::sshd::{SshHost, WORKER};

fn by_way_of(machine: &SshHost) -> Jump {
    let (login, host_key) = (machine.login_as(WORKER), machine.fingerprint());
    Jump { at: machine.at(), login, credential_name: "bastion".into(), host_key, places: Places::new(8) }
}

fn behind(jump: Jump) -> Host {
    let machine = shared();
    Host::new(machine.at(), machine.login(), "fleet", machine.fingerprint(), Some(jump), patient())
}

#[tokio::test]
async fn a_host_is_reached_through_another() {
    let (bastion, machine, key) = (SshHost::start(), shared(), key());
    let host = behind(by_way_of(&bastion));
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
    assert_ne!(machine.boot_id(), bastion.boot_id());
    assert_eq!(host.start(&sh("seq 1 50000; exit 3"), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    let expected: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(status, 3);
    assert!(words(&output) == format!("stdout:{expected}"));
    assert!(bastion.console().contains("Accepted publickey for worker"), "it went that way: {}", bastion.console());
    assert_eq!(host_key_of(&machine.at(), Some(&by_way_of(&bastion)), PATIENCE).await, Ok(machine.fingerprint()));
    assert_eq!(answers_by_way_of(&machine.at(), &by_way_of(&bastion), PATIENCE).await, Ok(()));
    // the way breaks and is there again
    bastion.reboot();
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
}

#[tokio::test]
async fn what_fails_on_the_way_names_the_one_that_failed() {
    let bastion = SshHost::start();
    let way = by_way_of(&bastion);
    let told = |e: ProviderError| (e.reason(), e.to_string());
    let jump_named = format!("jump host {}", bastion.at());

    let pinned = Jump { host_key: shared().fingerprint(), ..way.clone() };
    let (reason, text) = behind(pinned).boot_id().await.map_err(told).expect_err("another key");
    assert_eq!(reason, Reason::HostKeyChanged);
    assert!(text.contains(&jump_named) && text.contains(&bastion.fingerprint()), "{text}");

    let stranger = Jump { login: shared().login_as(WORKER), ..way.clone() };
    let (reason, text) = behind(stranger).boot_id().await.map_err(told).expect_err("an unknown key");
    assert_eq!(reason, Reason::LoginRefused);
    assert!(text.contains(&jump_named) && text.contains("bastion"), "{text}");

    let closed = testkit::closed_port::ClosedPort::new();
    let nobody = HostPort { host: "127.0.0.1".into(), port: closed.at.port() };
    let refused = answers_by_way_of(&nobody, &way, PATIENCE).await.map_err(told).expect_err("nobody listens");
    assert_eq!(refused.0, Reason::ConnectionRefused, "{}", refused.1);
    let unknown = HostPort { host: "host.invalid".into(), port: 22 };
    let refused = host_key_of(&unknown, Some(&way), PATIENCE).await.map_err(told).expect_err("nobody there");
    assert_eq!(refused.0, Reason::Unreachable, "{}", refused.1);
    assert!(!refused.1.contains(&jump_named), "the jump host is well: {}", refused.1);

    bastion.configure("AllowTcpForwarding no");
    let refused = behind(way.clone()).boot_id().await.map_err(told).expect_err("not passed on");
    assert_eq!(refused.0, Reason::CapabilityMissing, "{}", refused.1);

    bastion.power_off();
    let (reason, text) = behind(way).boot_id().await.map_err(told).expect_err("the jump host is down");
    assert_eq!(reason, Reason::ConnectionRefused);
    assert!(text.contains(&jump_named), "{text}");
}

/// A jump host has so many connections for us, whoever is behind it, and who gets none is told so: nobody was silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_host_has_so_many_places_and_the_rest_is_told() {
    let bastion = SshHost::start();
    let way = Jump { places: Places::new(1), ..by_way_of(&bastion) };
    let idle = Timeouts { idle: Duration::from_millis(50), ..patient() };
    let machine = shared();
    let to = |timeouts| {
        Host::new(machine.at(), machine.login(), "fleet", machine.fingerprint(), Some(way.clone()), timeouts)
    };
    let first = to(patient());
    first.boot_id().await.expect("in the only place, and kept for a while");
    let short = Duration::from_millis(200);
    let no = to(Timeouts { connect: short, ..patient() }).boot_id().await.expect_err("no place");
    assert_eq!(no.reason(), Reason::EndpointBusy, "{no}");
    assert!(no.to_string().contains("try again") && no.to_string().contains("jump host"), "{no}");
    let no = answers_by_way_of(&machine.at(), &way, short).await.expect_err("no place");
    assert_eq!(no.reason(), Reason::EndpointBusy, "{no}");
    let logins = || bastion.console().matches("Accepted publickey").count();
    assert_eq!(logins(), 1, "nobody else knocked");
    // a place is free again when its connection ends, and not before
    drop(first);
    let second = to(idle);
    second.boot_id().await.expect("in the place that was left");
    // which is let go when it is idle
    to(patient()).boot_id().await.expect("in the place that was let go");
}
