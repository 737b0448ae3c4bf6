//! Installing and uninstalling in a scratch root: everything is there, or nothing; and afterwards nothing is.
//! Trees are compared by content, owner and rights, by code that the agent does not have.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod task_scratch;

use agent::install::{self, Options};
use agent::task::run;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{NodeUninstall, NodeValidateClean};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use task_scratch::{Scratch, Tree, differences};

const BUNDLE: &[u8] =
    br#"{"server": "https://127.0.0.1:7701", "token": "canary-token", "node_id": "n", "authority_pem": ""}"#;

fn options(scratch: &Scratch) -> Options {
    let binary = scratch.host.path("/opt/the-binary");
    Options { binary, state: scratch.state.clone(), replace: false, start: true }
}

/// A machine with the binary brought along, as seen before installing.
fn machine() -> (Scratch, Tree) {
    let scratch = Scratch::bare();
    scratch.file("/opt/the-binary", "ELF of a kind", 0);
    let before = scratch.tree();
    (scratch, before)
}

fn mode(scratch: &Scratch, path: &str) -> u32 {
    std::fs::symlink_metadata(scratch.host.path(path)).unwrap_or_else(|error| panic!("{path}: {error}")).mode() & 0o7777
}

#[tokio::test]
async fn an_installed_agent_is_complete_and_only_root_reads_its_state() {
    let (scratch, _) = machine();
    let installed = install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
    assert!(!installed.started, "nothing is started in a scratch root");
    assert!(installed.said.iter().any(|line| line.contains("systemd does not run")), "{:?}", installed.said);
    for (path, rights) in [
        ("/usr/bin/millwright-agent", 0o755),
        ("/etc/systemd/system/millwright-agent.service", 0o644),
        ("/var/lib/millwright-agent", 0o700),
        ("/var/lib/millwright-agent/bundle.json", 0o600),
        ("/var/lib/millwright-agent/baseline.json", 0o600),
        ("/etc/millwright-agent", 0o755),
    ] {
        assert_eq!(mode(&scratch, path), rights, "{path}");
    }
    assert_eq!(std::fs::read(scratch.state.join("bundle.json")).expect("the bundle"), BUNDLE);
    let wanted = scratch.host.path("/etc/systemd/system/multi-user.target.wants/millwright-agent.service");
    assert_eq!(std::fs::read_link(wanted).expect("a link"), PathBuf::from(install::UNIT));
    let unit = std::fs::read_to_string(scratch.host.path(install::UNIT)).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/bin/millwright-agent run --state /var/lib/millwright-agent\n"), "{unit}");
    for fatal in
        ["\nPrivateTmp", "\nProtectSystem", "\nProtectHome", "\nPrivateDevices", "\nReadOnlyPaths", "\nPrivateMounts"]
    {
        assert!(!unit.contains(fatal), "{fatal} would hide the machine from its own agent");
    }
    // its own unit is no leftover
    let (context, _) = scratch.context();
    run(&Kind::NodeValidateClean(NodeValidateClean::default()), &context).await.expect("clean");
}

#[tokio::test]
async fn uninstalling_leaves_no_file_unit_user_or_key_behind() {
    let (scratch, before) = machine();
    install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
    // what an agent gathers in its life, and what a package may bring
    std::fs::write(scratch.state.join("key.pem"), "canary-key").expect("a key");
    std::fs::create_dir(scratch.state.join("journal")).expect("a folder");
    std::fs::write(scratch.state.join("journal/1"), "canary-journal").expect("a file");
    scratch.file("/etc/millwright-agent/allowed-scripts", "abc root\n", 0);
    scratch.file("/var/log/millwright-agent/log", "x", 0);
    scratch.file("/var/lib/millwright-agent-exec/1/script", "x", 0);
    for (name, line) in [
        ("passwd", "millwright-agent:x:990:990::/:/usr/sbin/nologin"),
        ("shadow", "millwright-agent:!:19000::::::"),
        ("group", "millwright-agent:x:990:"),
        ("gshadow", "millwright-agent:!::"),
    ] {
        scratch.append(&format!("/etc/{name}"), line);
    }
    let (context, _) = scratch.context();
    let with_it = scratch.tree();
    let done = run(&Kind::NodeUninstall(NodeUninstall {}), &context).await.expect("announced");
    assert_eq!(differences(&with_it, &scratch.tree()), [""; 0], "the result is sent before anything goes");
    let list = done.detail["removes"].as_array().expect("a list");
    for path in [
        "/usr/bin/millwright-agent",
        "/var/lib/millwright-agent",
        install::UNIT,
        "/etc/millwright-agent",
        "/var/log/millwright-agent",
    ] {
        assert!(list.iter().any(|one| one == path), "{path} in {list:?}");
    }
    // another name for a key shows whether it was overwritten before it went
    let key = scratch.state.join("key.pem");
    let held = std::fs::File::open(&key).expect("opened");
    install::remove_everything(&scratch.host, &scratch.state).expect("removed");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
    let content = std::io::read_to_string(held).expect("what its blocks hold now");
    assert!(content.bytes().all(|byte| byte == 0) && content.len() == "canary-key".len(), "{content:?}");
    install::remove_everything(&scratch.host, &scratch.state).expect("a second time is no error");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn folders_that_installing_had_to_make_are_no_leftovers_and_go_too() {
    let (scratch, _) = machine();
    for path in ["/etc/systemd", "/usr", "/var/lib"] {
        std::fs::remove_dir_all(scratch.host.path(path)).expect("removed");
    }
    let before = scratch.tree();
    install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
    let (context, _) = scratch.context();
    run(&Kind::NodeValidateClean(NodeValidateClean::default()), &context).await.expect("clean");
    install::remove_everything(&scratch.host, &scratch.state).expect("removed");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[test]
fn uninstalling_that_is_killed_anywhere_is_finished_by_the_next_start() {
    let mut steps = 0;
    loop {
        let (scratch, before) = machine();
        install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
        std::fs::write(scratch.state.join("key.pem"), "canary-key").expect("a key");
        let (mut left, mut at) = (steps, String::new());
        let finished = install::remove_step_by_step(&scratch.host, &scratch.state, &mut |step| {
            at = step.to_owned();
            left -= 1;
            left >= 0
        });
        let finished = finished.expect("no trouble");
        if !finished {
            // systemd starts it again, as long as there is a binary: does it know what to do?
            let binary_left = scratch.host.path(install::BINARY).exists();
            assert!(!binary_left || install::is_begun(&scratch.host, &scratch.state, true), "before {at}");
            assert!(
                binary_left || differences(&before, &scratch.tree()).is_empty(),
                "before {at}: who would finish it?"
            );
            if at != "secrets" {
                assert!(!scratch.state.join("key.pem").exists(), "keys go first");
            }
            install::remove_everything(&scratch.host, &scratch.state).expect("finished");
        }
        assert_eq!(differences(&before, &scratch.tree()), [""; 0], "killed before {at}");
        if finished {
            break;
        }
        steps += 1;
    }
    assert!(steps > 8, "it was stopped before each step: {steps}");
}

#[test]
fn an_agent_that_is_installed_or_merely_brought_along_does_not_take_itself_for_unfinished() {
    let (scratch, _) = machine();
    scratch.file(install::BINARY, "brought along by hand", 0);
    assert!(!install::is_begun(&scratch.host, &scratch.state, false), "not installed yet");
    install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
    assert!(!install::is_begun(&scratch.host, &scratch.state, true));
    assert!(!install::is_begun(&scratch.host, &scratch.state, false));
}

#[test]
fn an_installation_that_fails_leaves_nothing_behind() {
    type Spoil = fn(&Scratch);
    let cases: [(&str, Spoil); 7] = [
        ("no binary", |s| std::fs::remove_file(s.host.path("/opt/the-binary")).expect("removed")),
        ("a folder for the binary", |s| s.folder_in("/usr/bin/millwright-agent", 0, 0o755)),
        ("a file for the settings", |s| s.file("/etc/millwright-agent", "x", 0)),
        ("a file for the wanted units", |s| {
            std::fs::remove_dir_all(s.host.path("/etc/systemd/system/multi-user.target.wants")).expect("removed");
            s.file("/etc/systemd/system/multi-user.target.wants", "x", 0);
        }),
        ("a file for where programs are", |s| {
            std::fs::remove_dir_all(s.host.path("/usr/bin")).expect("removed");
            s.file("/usr/bin", "x", 0);
        }),
        ("no processes to see", |s| std::fs::remove_dir_all(s.host.path("/proc")).expect("removed")),
        ("no users to see", |s| {
            std::fs::remove_file(s.host.path("/etc/passwd")).expect("removed");
            s.folder_in("/etc/passwd", 0, 0o755);
        }),
    ];
    for (what, spoil) in cases {
        let (scratch, _) = machine();
        spoil(&scratch);
        let before = scratch.tree();
        let error = install::install(&scratch.host, BUNDLE, &options(&scratch)).expect_err(what);
        assert!(error.ends_with("everything was undone"), "{what}: {error}");
        assert_eq!(differences(&before, &scratch.tree()), [""; 0], "{what}");
    }
    let (scratch, before) = machine();
    install::install(&scratch.host, b"not a bundle", &options(&scratch)).expect_err("no bundle");
    let odd = Options { state: scratch.host.path("/var/lib/with blank"), ..options(&scratch) };
    install::install(&scratch.host, BUNDLE, &odd).expect_err("a path that a unit cannot say");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[test]
fn a_second_installation_is_refused_and_a_new_bundle_keeps_the_baseline() {
    let (scratch, before) = machine();
    install::install(&scratch.host, BUNDLE, &options(&scratch)).expect("installed");
    let with_it = scratch.tree();
    install::install(&scratch.host, BUNDLE, &options(&scratch)).expect_err("installed already");
    assert_eq!(differences(&with_it, &scratch.tree()), [""; 0]);
    scratch.file("/etc/cron.d/miner", "* * * * * root /tmp/miner\n", 0);
    let other = String::from_utf8_lossy(BUNDLE).replace("canary-token", "another-token");
    let replace = Options { replace: true, ..options(&scratch) };
    install::install(&scratch.host, other.as_bytes(), &replace).expect("a new bundle");
    std::fs::remove_file(scratch.host.path("/etc/cron.d/miner")).expect("removed");
    let changed = differences(&with_it, &scratch.tree());
    assert!(matches!(changed.as_slice(), [one] if one.contains("bundle.json")), "{changed:?}");
    // and one that fails brings the old one back
    let with_it = scratch.tree();
    let failing = Options { binary: scratch.host.path("/nothing"), ..replace };
    install::install(&scratch.host, BUNDLE, &failing).expect_err("no binary");
    assert_eq!(differences(&with_it, &scratch.tree()), [""; 0]);
    install::remove_everything(&scratch.host, &scratch.state).expect("removed");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}
