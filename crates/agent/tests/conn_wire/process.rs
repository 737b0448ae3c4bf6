//! The real program, over TCP: its commands, what it leaves on disk and in its log, what it takes, and what it exits with.
//! `MILLWRIGHT_AGENT_BINARY` names another build of it, such as a release one.

use crate::stand_in::{NODE, StandIn, TOKEN};
use proto::agent::v1::GoAway;
use proto::agent::v1::to_agent::Message as Word;
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

pub fn agent(arguments: &[&str], state: &Path) -> Command {
    let built =
        std::env::var_os("MILLWRIGHT_AGENT_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_millwright-agent").into());
    let mut command = Command::new(built);
    command.args(arguments).arg("--state").arg(state).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub async fn ended(child: Child) -> Output {
    let patience = std::time::Duration::from_secs(120);
    tokio::time::timeout(patience, child.wait_with_output()).await.expect("it ends").expect("it ran")
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn terminate(child: &Child) {
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32)).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
}

/// Every file below, read.
fn everything(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.push_str(&everything(&path));
        } else {
            all.push_str(&String::from_utf8_lossy(&std::fs::read(&path).expect("read")));
        }
    }
    all
}

#[tokio::test]
async fn enrolled_from_standard_input_it_connects_and_stops_when_told_and_the_token_is_nowhere() {
    let mut server = StandIn::start();
    let address = server.listen().await;
    let scratch = tempfile::tempdir().expect("a folder");
    let state = scratch.path().join("state");
    let mut child = agent(&["enroll", "--bundle", "-"], &state).stdin(Stdio::piped()).spawn().expect("started");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(server.bundle_json(&address).as_bytes()).await.expect("read");
    drop(stdin);
    let enrolled = ended(child).await;
    assert!(enrolled.status.success() && text(&enrolled).contains(NODE), "{}", text(&enrolled));
    let mut child = agent(&["run"], &state).env("MILLWRIGHT_AGENT_LOG", "trace").spawn().expect("started");
    server.confirmed().await;
    server.heartbeat().await;
    terminate(&child);
    let output = {
        child.stdin.take();
        ended(child).await
    };
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let key = std::fs::read_to_string(state.join("identity.json")).expect("there");
    let secret = key.split("BEGIN PRIVATE KEY-----\\n").nth(1).and_then(|k| k.get(..40)).expect("a key");
    for said in [text(&enrolled), text(&output)] {
        assert!(!said.contains(TOKEN) && !said.contains(secret) && !said.contains("PRIVATE KEY"), "{said}");
    }
    assert!(!everything(&state).contains(TOKEN));
    // what it shows is no secret either
    let shown = ended(agent(&["show", "-o", "json"], &state).spawn().expect("started")).await;
    let value: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(value["identity"]["node_id"], NODE);
    assert_eq!(value["identity"]["session"], 101);
    assert!(!text(&shown).contains(secret) && !text(&shown).contains("PRIVATE KEY"));
}

#[tokio::test]
async fn a_bundle_in_the_state_folder_is_used_by_the_first_start_and_removed() {
    let mut server = StandIn::start();
    let address = server.listen().await;
    let scratch = tempfile::tempdir().expect("a folder");
    std::fs::write(scratch.path().join("bundle.json"), server.bundle_json(&address)).expect("written");
    server.set().lost_answers = 1;
    let child = agent(&["run"], scratch.path()).spawn().expect("started");
    server.confirmed().await;
    assert!(!scratch.path().join("bundle.json").exists() && !scratch.path().join("enrolment.json").exists());
    // another one is told who is there, and does not disturb
    let second = ended(agent(&["run"], scratch.path()).spawn().expect("started")).await;
    assert_eq!(second.status.code(), Some(1));
    let pid = child.id().expect("it runs");
    assert!(text(&second).contains(&format!("process {pid}")), "{}", text(&second));
    let session = server.set().session;
    assert_eq!(session, 101, "nobody else has connected");
    server
        .say(Word::GoAway(GoAway {
            reason: "REVOKED".to_owned(),
            message: "by hand".to_owned(),
            retry_after_seconds: 0,
        }))
        .await;
    let output = ended(child).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(
        text(&output).contains("by hand") && text(&output).contains("millwright node rebootstrap node-1"),
        "{}",
        text(&output)
    );
}

#[tokio::test]
async fn a_stranger_and_a_used_token_are_told_with_what_to_do() {
    let (server, stranger) = (StandIn::start(), StandIn::start());
    let (address, elsewhere) = (server.listen().await, stranger.listen().await);
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("bundle");
    std::fs::write(&file, server.bundle_json(&elsewhere)).expect("written");
    let state = scratch.path().join("state");
    let bundle = ["enroll", "--bundle", file.to_str().expect("a name")];
    let refused = ended(agent(&bundle, &state).spawn().expect("started")).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused).contains("is not the server") && text(&refused).contains("nothing was sent"),
        "{}",
        text(&refused)
    );
    assert!(file.exists(), "it may still be of use");
    server.set().tokens.insert(TOKEN.to_owned(), Some("another key".to_owned()));
    std::fs::write(&file, server.bundle_json(&address)).expect("written");
    let refused = ended(agent(&bundle, &state).spawn().expect("started")).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("millwright node rebootstrap node-1"), "{}", text(&refused));
    // a service is not restarted over and over for it
    std::fs::write(state.join("bundle.json"), server.bundle_json(&address)).expect("written");
    let refused = ended(agent(&["run"], &state).spawn().expect("started")).await;
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
}

#[tokio::test]
async fn the_parts_of_a_bundle_do_as_well_and_used_up_tokens_go() {
    let server = StandIn::start();
    let address = server.listen().await;
    let scratch = tempfile::tempdir().expect("a folder");
    let (token, authority) = (scratch.path().join("token"), scratch.path().join("authority.pem"));
    std::fs::write(&token, format!("{TOKEN}\n")).expect("written");
    std::fs::write(&authority, server.authority.pem()).expect("written");
    let mut command = agent(&["enroll", "--server", &address], &scratch.path().join("state"));
    command.arg("--token-file").arg(&token).arg("--authority").arg(&authority);
    let enrolled = ended(command.spawn().expect("started")).await;
    assert!(enrolled.status.success(), "{}", text(&enrolled));
    assert!(!token.exists() && authority.exists());
}

#[tokio::test]
async fn mistakes_on_the_command_line_are_told_apart_from_failures() {
    let scratch = tempfile::tempdir().expect("a folder");
    for arguments in [&["enroll"][..], &["enroll", "--server", "https://x"], &["run", "--token", "x"], &["dance"]] {
        let output = ended(agent(arguments, scratch.path()).spawn().expect("started")).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
    }
    let output = ended(agent(&["run"], scratch.path()).spawn().expect("started")).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("is not enrolled") && text(&output).contains("enroll --bundle"),
        "{}",
        text(&output)
    );
    let absent = scratch.path().join("absent");
    let shown = ended(agent(&["show"], &absent).spawn().expect("started")).await;
    assert!(shown.status.success() && text(&shown).contains("identity: none"), "{}", text(&shown));
    assert!(!absent.exists(), "looking makes nothing");
    let mut help = Command::new(env!("CARGO_BIN_EXE_millwright-agent"));
    let help = help.arg("--help").stdout(Stdio::piped()).spawn().expect("started");
    let help = text(&ended(help).await);
    for word in ["Examples:", "enroll", "run", "install", "uninstall", "show", "Exit codes"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[tokio::test]
async fn an_agent_that_the_server_uninstalls_leaves_nothing_of_its_own() {
    uninstalled(true).await;
}

#[tokio::test]
async fn nor_does_one_that_hears_only_that_its_node_is_gone() {
    uninstalled(false).await;
}

async fn uninstalled(acknowledged: bool) {
    let mut server = StandIn::start();
    let address = server.listen().await;
    let scratch = tempfile::tempdir().expect("a folder");
    let (root, bundle) = (scratch.path().join("root"), scratch.path().join("bundle"));
    for folder in ["etc/systemd/system", "usr/bin", "var/lib", "sys/block"] {
        std::fs::create_dir_all(root.join(folder)).expect("made");
    }
    for (file, content) in [
        ("proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
    ] {
        std::fs::create_dir_all(root.join(file).parent().expect("a folder")).expect("made");
        std::fs::write(root.join(file), content).expect("written");
    }
    let before = names(&root);
    std::fs::write(&bundle, server.bundle_json(&address)).expect("written");
    let state = root.join("var/lib/millwright-agent");
    let root_name = root.to_str().expect("a name");
    let install = ["install", "--root", root_name, "--no-start", "--bundle", bundle.to_str().expect("a name")];
    let installed = ended(agent(&install, &state).spawn().expect("started")).await;
    assert!(installed.status.success(), "{}", text(&installed));
    assert!(names(&root).len() > before.len());
    let child =
        agent(&["run", "--root", root_name], &state).env("MILLWRIGHT_AGENT_UNIT", "1").spawn().expect("started");
    server.confirmed().await;
    let kind = Some(proto::agent::v1::task::Kind::NodeUninstall(Default::default()));
    server.say(Word::Task(proto::agent::v1::Task { kind, ..crate::stand_in::task("t-1", 1, &[]) })).await;
    let result = server.result().await;
    assert!(result.ok, "{result:?}");
    assert!(state.join("identity.json").exists(), "not before the server has the result");
    if acknowledged {
        server.stored("t-1").await;
    } else {
        let gone = GoAway { reason: "DELETED".to_owned(), message: "removed".to_owned(), retry_after_seconds: 0 };
        server.say(Word::GoAway(gone)).await;
    }
    let output = ended(child).await;
    // what the unit does not start again
    assert_eq!(output.status.code(), Some(99), "{}", text(&output));
    assert_eq!(names(&root), before);
}

/// The bound is for a release build, and code is not counted: a build for tests has several times as much of it.
#[tokio::test]
async fn an_idle_agent_takes_little_memory() {
    let mut server = StandIn::start();
    server.set().heartbeat = 1;
    let address = server.listen().await;
    let scratch = tempfile::tempdir().expect("a folder");
    std::fs::write(scratch.path().join("bundle.json"), server.bundle_json(&address)).expect("written");
    let child = agent(&["run"], scratch.path()).stderr(Stdio::null()).spawn().expect("started");
    for _ in 0..8 {
        server.heartbeat().await;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().expect("it runs"))).expect("read");
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("told");
    let kib: u64 = own.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 8 * 1024, "{kib} KiB of its own\n{status}");
}

/// Every file and folder below.
fn names(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(names(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}
