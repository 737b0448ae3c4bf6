//! Agents as processes that are killed in the middle of a task, again and again: each task's outcome is told once, and no
//! task is carried out twice. `MILLWRIGHT_AGENT_KILLS=500` kills as often (ten times otherwise).
//!
//! The processes are this program itself, playing the agent with tasks that a test understands: everything but the tasks
//! is the agent's own.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

#[path = "conn_stand_in/mod.rs"]
mod stand_in;

use agent::connection;
use agent::folder::Folder;
use agent::host::Host;
use agent::identity::Identity;
use agent::setting::Setting;
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::to_agent::Message as Word;
use stand_in::{Seen, StandIn, played, task};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};

const PLAY: &str = "MILLWRIGHT_AGENT_PLAYED_IN";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match std::env::var_os(PLAY) {
        Some(state) => runtime.block_on(play(Path::new(&state))),
        None => runtime.block_on(each_task_is_told_once_however_often_its_agent_is_killed()),
    }
}

async fn play(state: &Path) {
    let folder = Arc::new(Folder::open(state).expect("opened"));
    let _lock = folder.lock().expect("free");
    let identity = Identity::load(&folder).expect("it reads").expect("enrolled");
    let mut setting = Setting::new(Host::new(state.join("root")), folder);
    setting.execute = played();
    connection::run(setting, identity, Default::default()).await.expect("it runs");
}

fn start(state: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(PLAY, state).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    command.spawn().expect("started")
}

async fn each_task_is_told_once_however_often_its_agent_is_killed() {
    let times: u64 = std::env::var("MILLWRIGHT_AGENT_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let mut server = StandIn::start();
    let mut bundle = server.bundle();
    bundle.server = agent::bundle::Server::parse(&server.listen().await).expect("an address");
    let scratch = tempfile::tempdir().expect("a folder");
    let ledger = scratch.path().join("ledger").display().to_string();
    let carried_out = || std::fs::read_to_string(&ledger).map(|text| text.lines().count() as u64).unwrap_or_default();
    let state = scratch.path().join("state");
    {
        let folder = Arc::new(Folder::open(&state).expect("opened"));
        let setting = Setting::new(Host::new(state.join("root")), folder);
        agent::enrolment::enrol(&setting, &bundle).await.expect("enrolled");
    }
    for n in 1..=times {
        let id = format!("t-{n}");
        let had = carried_out();
        let mut child = start(&state);
        server.confirmed().await;
        server.say(Word::Task(task(&id, 2 * n, &[&ledger, "hold"]))).await;
        // each third is killed as soon as it was sent, wherever that finds it
        let waits = n % 3 != 0;
        let patience = tokio::time::Instant::now() + Duration::from_secs(120);
        while waits && carried_out() == had {
            assert!(tokio::time::Instant::now() < patience, "the task was never begun");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.kill().await.expect("killed");
        let had_killed = carried_out();
        let mut child = start(&state);
        // it was never received, or it is told as interrupted
        let mut told = Vec::new();
        let mut beats = 0;
        server.confirmed().await;
        while beats < 2 {
            let said = server.until("a word", |seen| if let Seen::Said(said) = seen { Some(said) } else { None }).await;
            match *said {
                Message::Result(result) => {
                    told.push(result.code);
                    server.stored(&result.task_id).await;
                    assert_eq!(result.task_id, id);
                    // the next beats show whether anything else comes, and that this was heard
                    beats = 0;
                    server.say(Word::InventoryWanted(Default::default())).await;
                }
                Message::Heartbeat(_) => {
                    beats += 1;
                    server.say(Word::InventoryWanted(Default::default())).await;
                }
                _ => {}
            }
        }
        let begun = had_killed > had;
        assert!(told == ["INTERRUPTED"] || (told.is_empty() && !begun), "{id}: {told:?}");
        assert_eq!(carried_out(), had_killed, "{id} was carried out again");
        assert_eq!(std::fs::read_dir(state.join("tasks")).expect("listed").count(), 0, "{id} is forgotten");
        child.kill().await.expect("killed");
    }
    println!("{times} kills, {} tasks begun, each told once", carried_out());
}
