//! Secrets arrive where they belong and stand nowhere else: not in errors, `Debug`, what is traced, the host's
//! process list, or its disk.

use crate::fixture::*;
use domain::credential::SshLogin;
use domain::{Reason, Secret};
use provider::Ack;
use ssh::{Host, Jump, host_key_of};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use testkit::canary;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Looks at the process list again and again: all command lines, and the environments.
struct Watcher {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(Vec<u8>, usize)>,
}

impl Watcher {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut looks) = (Vec::new(), 0);
            let own = std::process::id().to_string();
            // the last look begins after it was told to stop: what still runs then is seen, however busy this machine is
            let mut last = false;
            while !last {
                last = looks > 0 && stopped.load(Ordering::SeqCst);
                for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
                    if entry.file_name().to_string_lossy() == own {
                        continue;
                    }
                    let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                    // processes of the host, and what they start
                    if cmdline.windows(4).any(|w| w == b"sha2" || w == b"mill" || w == b"sh\0-") || cmdline.len() < 200
                    {
                        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
                        for text in [cmdline, environ] {
                            if !text.is_empty() && !seen.windows(text.len()).any(|w| w == text.as_slice()) {
                                seen.extend(text);
                            }
                        }
                    }
                }
                looks += 1;
            }
            (seen, looks)
        });
        Self { stop, thread }
    }

    fn seen(self) -> (Vec<u8>, usize) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("watched")
    }
}

#[tokio::test]
async fn secrets_stand_nowhere() {
    let traced = Kept::default();
    let writer = traced.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    // of the whole process: what other tests trace is searched, too
    tracing::subscriber::set_global_default(subscriber.finish()).expect("no other is set");
    let machine = testkit::sshd::SshHost::start();
    let (passphrase, input) = (canary::plant("passphrase"), canary::plant("stdin"));
    let login = machine.login_with("ed25519", &passphrase);
    let mut said = Vec::new();

    let host = Host::new(machine.at(), login.clone(), "fleet", machine.fingerprint(), None, patient());
    let jump = Jump {
        at: machine.at(),
        login: login.clone(),
        credential_name: "way".into(),
        host_key: "SHA256:x".into(),
        places: ssh::Places::new(1),
    };
    said.push(format!("{host:?} {jump:?} {login:?}"));

    // it arrives: the digest is that of the secret, as another program tells it
    let watcher = Watcher::start();
    let key = key();
    let secret = Secret::new(input.clone());
    let script = format!("sha256sum; until [ -e /tmp/{key} ]; do sleep 0.05; done");
    assert_eq!(host.start(&sh(&script), &key, Some(&secret)).await, Ok(Ack::Accepted));
    let (_, output, _) = follow(&host, &key, 0, |_, output| !output.is_empty()).await;
    let digest = digest_of(&input);
    assert!(words(&output).contains(&digest));
    let (seen, looks) = watcher.seen();
    let sees = |word: &str| seen.windows(word.len()).any(|w| w == word.as_bytes());
    assert!(sees("millwright-exec") && looks > 1, "it sees the recorder; {looks} looks");
    said.push(String::from_utf8_lossy(&seen).into_owned());
    std::fs::write(machine.inside(&format!("/tmp/{key}")), "").expect("a sign");
    ended(&host, &key).await;

    // every way to fail
    let another =
        |login: SshLogin, host_key: String| Host::new(machine.at(), login, "fleet", host_key, None, patient());
    let wrong_key = "SHA256:0000000000000000000000000000000000000000000".to_owned();
    let private_key = Secret::new(login.private_key.reveal().replace("AAAA", "AAAB"));
    let broken = SshLogin { private_key, ..login.clone() };
    let mistaken = SshLogin { passphrase: Secret::new(canary::plant("mistaken")), ..login.clone() };
    let stranger = SshLogin { username: "stranger".into(), ..login.clone() };
    for (host, reason) in [
        (another(broken, machine.fingerprint()), Reason::CredentialMissing),
        (another(mistaken, machine.fingerprint()), Reason::CredentialMissing),
        (another(stranger, machine.fingerprint()), Reason::LoginRefused),
        (another(login.clone(), wrong_key), Reason::HostKeyChanged),
    ] {
        let refused = host.start(&sh("cat"), "k", Some(&secret)).await.expect_err("refused");
        assert_eq!(refused.reason(), reason);
        said.push(format!("{refused} {refused:?}"));
    }
    let refused = host_key_of(&machine.at(), Some(&jump), PATIENCE).await.expect_err("refused");
    said.push(format!("{refused} {refused:?}"));
    let mut nul = command("cat", &[]);
    nul.environment.insert("A B".into(), input.clone());
    let refused = host.start(&nul, "k", Some(&Secret::new(format!("{input}\0")))).await.expect_err("refused");
    said.push(format!("{refused} {refused:?}"));
    machine.power_off();
    let refused = host.start(&sh("cat"), "k", Some(&secret)).await.expect_err("off");
    said.push(format!("{refused} {refused:?}"));
    said.push(machine.console());
    said.push(String::from_utf8_lossy(&traced.0.lock().expect("unpoisoned")).into_owned());
    assert!(said.last().is_some_and(|traced| traced.contains("connected by SSH")), "something is traced");

    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("said"), said.join("\n")).expect("written");
    // so that its lines are searched for, too
    std::fs::write(folder.path().join("private.key"), login.private_key.reveal()).expect("written");
    canary::assert_none(folder.path());
    for place in ["/var/lib/millwright", "/tmp/.", "/etc/.", "/run/."] {
        canary::assert_none(&machine.inside(place));
    }
}

fn digest_of(text: &str) -> String {
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sha256sum runs");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("written");
    let out = child.wait_with_output().expect("its output");
    String::from_utf8_lossy(&out.stdout).split(' ').next().expect("a digest").to_owned()
}
