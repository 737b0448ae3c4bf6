//! Servers that fail their agents: killed in the middle of a task, restored from a backup, older than what an agent has
//! seen. And servers that want an agent no more.

use crate::agents_site::{Script, Site, eventually, said};
use crate::fleet::{list, text};
use crate::process::until;
use std::process::Command;

fn epoch(machine: &crate::agents_site::Machine) -> u64 {
    machine.identity()["epoch"].as_u64().expect("a number")
}

#[test]
fn a_killed_server_gets_the_result_once_and_a_restored_one_begins_a_new_epoch() {
    let mut site = Site::new();
    let server = site.launch.start_at_a_fixed_address();
    let script = Script::new(&site);
    let (machine, agent) = site.active(&server, "gpu-1");
    machine.allow(&script.file);
    let (data, file) = (site.launch.data.display().to_string(), site.home.path("old.db").display().to_string());
    site.home.run(&["backup", "--data", &data, &file]).with(0);

    // killed in the middle; the task ends while nobody listens
    let task = server.exec("gpu-1", &script.file, &[&script.effects("first"), "wait"]);
    script.wait_for("first", "started");
    server.kill();
    script.go("first");
    script.wait_for("first", "ended");
    let server = site.start();
    let done = server.task_is(&task, "done");
    let moves = server.moves("gpu-1", &task);
    assert_eq!(moves.iter().filter(|to| *to == "done").count(), 1, "{moves:?}");
    assert_eq!(script.count("first", "started"), 1);
    let printed = server.ok(&["task", "output", &task]);
    assert!(printed.contains("hello from"), "{printed}");

    // an old backup: the task is unknown there, and every fence of before is too low
    let before = epoch(&machine);
    server.kill();
    let kept = site.path("before");
    said(Command::new("cp").arg("-a").arg(&data).arg(&kept));
    site.home.run(&["restore", "--data", &data, &file]).with(0);
    let server = site.start();
    eventually("the agent follows", || (epoch(&machine) > before).then_some(()));
    server.run(&["task", "show", &task]).with(3);
    let again = server.exec("gpu-1", &script.file, &[&script.effects("second"), "0"]);
    let second = server.task_is(&again, "done");
    let of = |fence: &str| fence.split_once('.').map(|(epoch, _)| epoch.parse::<u64>().expect("a number"));
    assert!(of(text(&second, "fence")) > of(text(&done, "fence")), "{second:#}");
    assert_eq!(script.count("second", "started"), 1);

    // somebody starts the folder of before again: its epoch is over, and so are its orders
    server.kill();
    said(Command::new("mv").arg(&data).arg(site.path("after")));
    said(Command::new("cp").arg("-a").arg(&kept).arg(&data));
    let old = site.start();
    let late = old.exec("gpu-1", &script.file, &[&script.effects("third"), "0"]);
    agent.kill();
    let agent = machine.run();
    until("the agent is told", || agent.err().contains("it is an old copy").then_some(()));
    let late = old.task(&late);
    assert_eq!((text(&late, "status"), script.count("third", "started")), ("queued", 0), "{late:#}");
    assert_eq!(list(&old.get("findings"), "findings").len(), 0, "it is nobody's copy");
    old.kill();
    // the right one is followed again
    std::fs::remove_dir_all(&data).expect("removed");
    said(Command::new("mv").arg(site.path("after")).arg(&data));
    let server = site.start();
    agent.kill();
    let _agent = machine.run();
    let last = server.exec("gpu-1", &script.file, &[&script.effects("fourth"), "0"]);
    server.task_is(&last, "done");
    assert_eq!((script.count("third", "started"), script.count("fourth", "started")), (0, 1));
}

#[test]
fn a_revoked_agent_is_cut_off_in_the_middle_of_its_task_and_a_new_bundle_brings_it_back() {
    let site = Site::new();
    let server = site.start();
    let script = Script::new(&site);
    let (machine, agent) = site.active(&server, "gpu-1");
    let (_, mut other) = site.active(&server, "gpu-2");
    machine.allow(&script.file);
    let key = text(&machine.identity(), "key_sha256").to_owned();
    let task = server.exec("gpu-1", &script.file, &[&script.effects("t"), "wait"]);
    script.wait_for("t", "started");
    server.ok(&["node", "revoke", "gpu-1", "--reason", "its disk was stolen"]);
    agent.end().with(3).saying("millwright node rebootstrap");
    assert_eq!(script.count("t", "ended"), 0, "what ran has ended with it");
    let node = server.node("gpu-1");
    assert_eq!(text(&node["agent"], "identity"), "revoked", "{node:#}");
    // starting it again does not help, and says what does
    machine.do_(&["run"]).with(3).saying("millwright node rebootstrap");
    assert!(!other.is_over(), "others are not disturbed");
    script.go("t");

    machine.give(&site.bundle(&server, &["node", "rebootstrap", "gpu-1"]));
    let _agent = machine.run();
    let back = eventually("it is back", || Some(server.node("gpu-1")).filter(|n| n["agent"]["identity"] == "good"));
    assert_eq!(back["id"], node["id"], "the node stays");
    assert_ne!(text(&machine.identity(), "key_sha256"), key);
    let ended = eventually("its task has come to an end", || {
        Some(server.task(&task)).filter(|t| ["failed", "expired"].contains(&text(t, "status")))
    });
    assert_eq!(script.count("t", "started"), 1, "{ended:#}");
}
