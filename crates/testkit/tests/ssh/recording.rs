//! A command is started once, whoever asks and however often; what is kept of it is bounded.

use crate::fixture::*;
use crate::wire::{Spoil, Wire};
use provider::{Ack, ExecState, ProviderError, Stream};
use ssh::Host;
use std::process::Command;
use testkit::sshd::SshHost;

/// How often a command was run that appends to a file of this name.
fn count(machine: &SshHost, key: &str) -> usize {
    std::fs::read_to_string(machine.inside(&format!("/tmp/{key}"))).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn what_was_never_started_is_told_apart() {
    let news = reach(shared()).poll(&key(), 0).await.expect("a poll");
    assert_eq!((news.state, news.output.len(), news.offset), (ExecState::NeverStarted, 0, 0));
}

#[tokio::test]
async fn starting_again_is_no_second_start() {
    let (machine, key) = (shared(), key());
    let host = reach(machine);
    let command = sh(&format!("echo x >>/tmp/{key}; until [ -e /tmp/{key}.end ]; do sleep 0.05; done"));
    for _ in 0..2 {
        assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    }
    std::fs::write(machine.inside(&format!("/tmp/{key}.end")), "").expect("a sign");
    assert_eq!(ended(&host, &key).await.0, 0);
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    assert_eq!(ended(&host, &key).await.0, 0);
    assert_eq!(count(machine, &key), 1);
}

#[tokio::test]
async fn of_starts_that_race_one_starts() {
    let (machine, key) = (SshHost::start(), key());
    let command = sh(&format!("echo x >>/tmp/{key}"));
    // all of them have looked, and have found nothing, before the first goes on
    let together = "#!/bin/sh\necho x >>/tmp/come\nuntil [ $(wc -l </tmp/come) -ge 6 ]; do sleep 0.02; done\n\
                    exec /usr/bin/setsid \"$@\"\n";
    machine.program("setsid", together);
    let hosts: Vec<Host> = (0..6).map(|_| reach(&machine)).collect();
    let starts = hosts.iter().map(|host| host.start(&command, &key, None));
    for started in futures::future::join_all(starts).await {
        assert_eq!(started, Ok(Ack::Accepted));
    }
    assert_eq!(count(&machine, "come"), 6);
    assert_eq!(ended(&hosts[0], &key).await.0, 0);
    let folders = || std::fs::read_dir(machine.inside("/var/lib/millwright/exec")).expect("a folder").count();
    assert_eq!(folders(), 2, "the others have left nothing behind");
    assert_eq!(count(&machine, &key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_is_lost_is_found_again() {
    let (machine, key) = (shared(), key());
    let wire = Wire::to(machine.at()).await;
    let host = Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, patient());
    host.boot_id().await.expect("connected");
    let command = sh(&format!("echo x >>/tmp/{key}; exit 3"));
    wire.spoil_after(2048, Spoil::Deafen);
    let started = host.start(&command, &key, None);
    let cut = async {
        until("the start", || machine.inside(&format!("/var/lib/millwright/exec/{key}.lock")).exists()).await;
        assert!(wire.is_spoilt());
        wire.cut();
    };
    let (started, ()) = tokio::join!(started, cut);
    assert!(matches!(&started, Err(ProviderError::Unknown { .. })), "{started:?}");
    assert_eq!(ended(&host, &key).await.0, 3);
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    assert_eq!(count(machine, &key), 1);
}

/// What a host's server passes on to the shell, it passes on by packets of this size.
const PACKET: usize = 32768;

#[tokio::test(flavor = "multi_thread")]
async fn half_a_script_does_nothing() {
    let machine = SshHost::start();
    let wire = Wire::to(machine.at()).await;
    let host = Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, patient());
    let exec = machine.inside("/var/lib/millwright");
    let padded = |pad: usize| {
        let mut command = sh("echo x >>/tmp/ran");
        command.environment.insert("PAD".into(), "x".repeat(pad));
        command
    };
    // how long the script is without the padding, more or less
    let short = key();
    host.boot_id().await.expect("connected");
    let before = wire.sent();
    assert_eq!(host.start(&padded(0), &short, None).await, Ok(Ack::Accepted));
    let length = (wire.sent() - before) as usize;
    assert_eq!(ended(&host, &short).await.0, 0);
    std::fs::remove_dir_all(&exec).expect("removed");
    // the script is cut at so many bytes before its end: from its last lines back into those that only prepare
    for missing in (700..3000).step_by(150) {
        host.boot_id().await.expect("connected");
        wire.spoil_after(PACKET as u64 + 500, Spoil::Cut);
        let started = host.start(&padded(PACKET - length + missing), &key(), None).await;
        assert!(matches!(&started, Err(ProviderError::Unknown { .. })), "{missing}: {started:?}");
        assert!(wire.is_spoilt());
        assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
        assert!(!exec.exists(), "{missing} bytes were missing, and something was done");
    }
    assert_eq!(count(&machine, "ran"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_and_a_new_process_go_on_where_they_were() {
    let (machine, key) = (shared(), key());
    let wire = Wire::to(machine.at()).await;
    let through = || Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, patient());
    let host = through();
    let go = |n: u32| format!("until [ -e /tmp/{key}.{n} ]; do sleep 0.05; done");
    let script = format!("echo one; {}; echo two; {}; echo three; exit 4", go(1), go(2));
    assert_eq!(host.start(&sh(&script), &key, None).await, Ok(Ack::Accepted));
    let (_, output, offset) = follow(&host, &key, 0, |_, output| !output.is_empty()).await;
    assert_eq!(words(&output), "stdout:one\n");
    wire.cut();
    std::fs::write(machine.inside(&format!("/tmp/{key}.1")), "").expect("a sign");
    let (_, output, offset) = follow(&host, &key, offset, |_, output| !output.is_empty()).await;
    assert_eq!(words(&output), "stdout:two\n");
    // nothing of us is left but the offset
    drop(host);
    until("the connection to be gone", || wire.connections().0 == 0).await;
    std::fs::write(machine.inside(&format!("/tmp/{key}.2")), "").expect("a sign");
    let host = through();
    let (state, output, _) = follow(&host, &key, offset, |state, _| *state != ExecState::Running).await;
    assert_eq!((state, words(&output).as_str()), (ExecState::Exited(4), "stdout:three\n"));
}

#[tokio::test]
async fn too_much_output_is_cut_with_a_mark_and_holds_nothing_up() {
    let (machine, key) = (shared(), key());
    let host = reach(machine);
    assert_eq!(
        host.start(&sh("head -c 20000000 /dev/zero; echo end >&2; exit 3"), &key, None).await,
        Ok(Ack::Accepted)
    );
    let (status, output) = ended(&host, &key).await;
    let stdout = of(Stream::Stdout, &output);
    let kept = stdout.iter().take_while(|b| **b == 0).count() as u64;
    assert!((ssh::RECORDED_MAX_BYTES..=ssh::RECORDED_MAX_BYTES + 65536).contains(&kept), "{kept}");
    assert!(String::from_utf8_lossy(&stdout[kept as usize..]).contains("[millwright: the rest of stdout is not kept"));
    assert_eq!((status, of(Stream::Stderr, &output).as_slice()), (3, &b"end\n"[..]));
}

#[tokio::test]
async fn old_recordings_are_removed_and_running_ones_are_not() {
    let machine = SshHost::start();
    let host = reach(&machine);
    let (old, marked, running, new) = (key(), key(), key(), key());
    assert_eq!(host.start(&sh("true"), &old, None).await, Ok(Ack::Accepted));
    ended(&host, &old).await;
    assert_eq!(host.kill(&marked).await, Ok(Ack::Done));
    assert_eq!(host.start(&sh("sleep 86438"), &running, None).await, Ok(Ack::Accepted));
    let folder = machine.inside("/var/lib/millwright/exec");
    let entries = || std::fs::read_dir(&folder).expect("a folder").flatten().map(|e| e.path()).collect::<Vec<_>>();
    assert_eq!(entries().len(), 5, "{:?}", entries());
    // nothing changes in them any more once the command is at it
    until("the command", || !processes_with("sleep 86438").is_empty()).await;
    let aged = Command::new("touch").args(["-d", "8 days ago"]).args(entries()).status();
    assert!(aged.expect("touch runs").success());
    assert_eq!(host.start(&sh("true"), &new, None).await, Ok(Ack::Accepted));
    ended(&host, &new).await;
    let left: Vec<_> = entries();
    assert_eq!(left.len(), 4, "{left:?}");
    assert_eq!(host.poll(&old, 0).await.map(|p| p.state), Ok(ExecState::NeverStarted));
    assert_eq!(host.poll(&running, 0).await.map(|p| p.state), Ok(ExecState::Running));
}
