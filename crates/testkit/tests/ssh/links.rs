//! The way to a host: what is told when it is not there, and the one connection that is kept.

use crate::fixture::*;
use crate::wire::Wire;
use domain::Reason;
use domain::endpoint::HostPort;
use provider::{ProviderError, ProviderResult};
use ssh::{Host, Timeouts, answers, host_key_of};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

/// For what never comes: whether it takes this long or longer is no verdict.
const SHORT: Duration = Duration::from_millis(300);

fn local(port: u16) -> HostPort {
    HostPort { host: "127.0.0.1".into(), port }
}

/// A host of the shared one's names, at another address.
fn at(at: HostPort) -> Host {
    let short = Timeouts { connect: SHORT, call: PATIENCE, idle: PATIENCE };
    Host::new(at, shared().login(), "fleet", shared().fingerprint(), None, short)
}

/// What every way of asking says about this address.
async fn reasons(address: HostPort) -> Vec<Reason> {
    let reason = |e: ProviderError| e.reason();
    vec![
        at(address.clone()).boot_id().await.map_err(reason).expect_err("no host"),
        answers(&address, SHORT).await.map_err(reason).expect_err("no host"),
        host_key_of(&address, None, SHORT).await.map_err(reason).expect_err("no host"),
    ]
}

#[tokio::test]
async fn a_port_where_nobody_listens_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = local(listener.local_addr().expect("an address").port());
    drop(listener);
    assert_eq!(reasons(address).await, [Reason::ConnectionRefused; 3]);
}

#[tokio::test]
async fn where_there_is_no_host_it_is_unreachable() {
    for nowhere in ["240.0.0.1", "host.invalid"] {
        let address = HostPort { host: nowhere.into(), port: 22 };
        assert_eq!(reasons(address).await, [Reason::Unreachable; 3], "{nowhere}");
    }
}

#[tokio::test]
async fn a_host_that_takes_connections_and_says_nothing_is_unreachable() {
    // the kernel takes them; nobody reads
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = local(listener.local_addr().expect("an address").port());
    assert_eq!(reasons(address).await, [Reason::Unreachable; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_falls_silent_after_its_greeting_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = local(listener.local_addr().expect("an address").port());
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"SSH-2.0-Silence\r\n").await.expect("said");
            taken.push(stream);
        }
    });
    assert_eq!(answers(&address, PATIENCE).await, Ok(()), "the greeting is all that this asks for");
    let asked = at(address.clone()).boot_id().await.map_err(|e| e.reason());
    assert_eq!(asked, Err(Reason::Unreachable));
    assert_eq!(host_key_of(&address, None, SHORT).await.map_err(|e| e.reason()), Err(Reason::Unreachable));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_ssh_server_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = local(listener.local_addr().expect("an address").port());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
        }
    });
    assert_eq!(answers(&address, PATIENCE).await.map_err(|e| e.reason()), Err(Reason::BadAnswer));
    let asked: ProviderResult<String> = at(address).boot_id().await;
    assert!(asked.is_err(), "{asked:?}");
}

#[tokio::test]
async fn a_host_answers_and_shows_its_key() {
    let machine = shared();
    assert_eq!(answers(&machine.at(), PATIENCE).await, Ok(()));
    assert_eq!(host_key_of(&machine.at(), None, PATIENCE).await, Ok(machine.fingerprint()));
}

#[tokio::test]
async fn a_changed_host_key_is_refused_with_both() {
    let machine = testkit::sshd::SshHost::start();
    let pinned = machine.fingerprint();
    let host = reach(&machine);
    host.boot_id().await.expect("as pinned");
    machine.change_host_key();
    let shown = machine.fingerprint();
    assert_ne!(pinned, shown);
    let refused = host.boot_id().await.expect_err("another key");
    assert_eq!(refused.reason(), Reason::HostKeyChanged);
    let text = refused.to_string();
    assert!(text.contains(&pinned) && text.contains(&shown), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_share_one_connection_which_is_let_go_when_idle() {
    let machine = shared();
    let wire = Wire::to(machine.at()).await;
    let short = Timeouts { idle: Duration::from_millis(50), ..patient() };
    let host = Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, short);
    let calls = (0..8).map(|_| host.boot_id());
    for id in futures::future::join_all(calls).await {
        assert_eq!(id, Ok(machine.boot_id()));
    }
    assert_eq!(wire.connections().1, 1);
    until("it to be let go", || wire.connections().0 == 0).await;
    host.boot_id().await.expect("a new one is made");
    assert_eq!(wire.connections().1, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_too_long_is_unknown_and_spoils_nothing_else() {
    let machine = testkit::sshd::SshHost::start();
    let wire = Wire::to(machine.at()).await;
    // a deadline that passes while the call waits, however busy this machine is
    let late = Timeouts { call: Duration::from_secs(5), ..patient() };
    let host = Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, late);
    host.boot_id().await.expect("connected");
    // whoever reads its serial number waits for somebody to write it
    let serial = machine.inside("/sys/class/dmi/id/product_serial");
    let before = std::fs::read(&serial).unwrap_or_default();
    drop(std::fs::remove_file(&serial));
    let made = std::process::Command::new("mkfifo").arg(&serial).status().expect("mkfifo runs");
    assert!(made.success());
    let late = host.identity().await;
    assert!(matches!(&late, Err(ProviderError::Unknown { .. })), "{late:?}");
    std::fs::remove_file(&serial).expect("removed");
    std::fs::write(&serial, before).expect("as it was");
    // the call that was given up has ended its connection
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
    assert_eq!(wire.connections().1, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_waits_for_any_more_spoils_nothing() {
    let machine = shared();
    let host = reach(machine);
    host.boot_id().await.expect("connected");
    let key = key();
    for polls in 0..20_u32 {
        // dropped after so many steps, wherever that is
        let mut call = Box::pin(host.poll(&key, 0));
        for _ in 0..polls {
            drop(futures::poll!(&mut call));
            tokio::task::yield_now().await;
        }
        drop(call);
    }
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
}
