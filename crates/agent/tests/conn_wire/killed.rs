//! The real program, killed in the middle of a task, again and again: each task's outcome is told once, and no task is
//! carried out twice. `MILLWRIGHT_AGENT_KILLS=500` kills as often (ten times otherwise).

use crate::process::{agent, ended, text};
use crate::stand_in::{Seen, StandIn, task};
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::task::Kind;
use proto::agent::v1::to_agent::Message as Word;
use proto::agent::v1::{InventoryWanted, Task};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::time::Duration;
use tokio::process::Child;

/// Counts itself, and stays as long as its folder does: nothing of it outlives the test.
const SCRIPT: &str = "#!/bin/sh\necho x >> \"$1\"\nwhile [ -e \"$1\" ]; do sleep 0.2; done\n";

fn script(id: &str, counter: u64, ledger: &str) -> Task {
    let mut task = task(id, counter, &[ledger]);
    if let Some(Kind::HostExec(exec)) = &mut task.kind {
        exec.script = SCRIPT.as_bytes().to_vec();
        exec.sha256 = digest();
    }
    task
}

fn digest() -> String {
    Sha256::digest(SCRIPT).iter().map(|b| format!("{b:02x}")).collect()
}

/// A machine whose site has allowed the script.
fn machine(root: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(root.join("var/lib")).expect("made");
    // its script runs as root, and is held by the control groups of the machine that the test runs on
    std::fs::create_dir_all(root.join("proc/self")).expect("made");
    for file in ["proc/self/cgroup", "proc/self/mountinfo"] {
        std::fs::write(root.join(file), std::fs::read(format!("/{file}")).expect("a kernel with them"))
            .expect("written");
    }
    let settings = root.join("etc/millwright-agent");
    std::fs::create_dir_all(&settings).expect("made");
    std::fs::set_permissions(&settings, PermissionsExt::from_mode(0o755)).expect("closed");
    let list = settings.join("allowed-scripts");
    std::fs::write(&list, format!("{} root\n", digest())).expect("written");
    std::fs::set_permissions(&list, PermissionsExt::from_mode(0o644)).expect("closed");
}

fn start(state: &Path, root: &Path) -> Child {
    agent(&["run", "--root", root.to_str().expect("a name")], state)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started")
}

#[tokio::test]
async fn each_task_is_told_once_however_often_its_agent_is_killed() {
    let times: u64 = std::env::var("MILLWRIGHT_AGENT_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let mut server = StandIn::start();
    let scratch = tempfile::tempdir().expect("a folder");
    let (state, root) = (scratch.path().join("state"), scratch.path().join("root"));
    machine(&root);
    let ledger = scratch.path().join("ledger").display().to_string();
    let carried_out = || std::fs::read_to_string(&ledger).map(|text| text.lines().count()).unwrap_or_default();
    let bundle = scratch.path().join("bundle");
    std::fs::write(&bundle, server.bundle_json(&server.listen().await)).expect("written");
    let enrolled =
        ended(agent(&["enroll", "--bundle", bundle.to_str().expect("a name")], &state).spawn().expect("started"));
    let enrolled = enrolled.await;
    assert!(enrolled.status.success(), "{}", text(&enrolled));
    let mut interrupted = 0;
    for n in 1..=times {
        let id = format!("t-{n}");
        let had = carried_out();
        let mut child = start(&state, &root);
        server.confirmed().await;
        server.say(Word::Task(script(&id, n, &ledger))).await;
        // each third is killed as soon as it was sent, wherever that finds it
        let patience = tokio::time::Instant::now() + Duration::from_secs(120);
        while n % 3 != 0 && carried_out() == had {
            assert!(tokio::time::Instant::now() < patience, "the task was never begun");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.kill().await.expect("killed");
        // one that was let go before the kill may write its line after it
        let mut child = start(&state, &root);
        let told = words_of(&mut server, &id, &state.join("tasks")).await;
        let begun = carried_out() - had;
        assert!(told == ["INTERRUPTED"] || (told.is_empty() && begun == 0), "{id}: {told:?}, begun {begun} times");
        assert!(begun <= 1, "{id} was begun {begun} times");
        interrupted += told.len();
        child.kill().await.expect("killed");
    }
    assert!(interrupted as u64 >= times - times / 3);
    assert!(carried_out() as u64 <= times);
}

/// The results that an agent tells after its start, until it has forgotten them and says nothing more but that it lives.
async fn words_of(server: &mut StandIn, id: &str, journal: &Path) -> Vec<String> {
    let (mut told, mut beats) = (Vec::new(), 0);
    server.confirmed().await;
    while beats < 2 {
        let said = server.until("a word", |seen| if let Seen::Said(said) = seen { Some(said) } else { None }).await;
        match *said {
            Message::Result(result) => {
                assert_eq!(result.task_id, id);
                told.push(result.code);
                server.stored(&result.task_id).await;
            }
            Message::Heartbeat(_) => {
                beats += u32::from(std::fs::read_dir(journal).expect("listed").next().is_none());
                server.say(Word::InventoryWanted(InventoryWanted {})).await;
            }
            _ => {}
        }
    }
    told
}
