//! Nodes, jobs and tasks with the program itself, as a person at the command line has them. No agent comes: what one does
//! is another suite's.

use crate::process::until;
use crate::server::Home;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_node_is_made_with_a_bundle_that_nobody_else_can_read() {
    let home = Home::new();
    let server = home.launch("data").start();
    let file = home.path("gpu-1.bundle");
    let path = file.display().to_string();
    let made = server.run(&["node", "create", "gpu-1", "--out", &path]).with(0);
    let id = made.out.trim().to_owned();
    assert!(id.starts_with("nod_"), "{}", made.out);
    made.saying("millwright-agent install --bundle").saying(&path);
    let mode = std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let text = std::fs::read_to_string(&file).expect("a bundle");
    let bundle: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(bundle["node_id"], id.as_str());
    let token = bundle["token"].as_str().expect("a token");
    // what cannot be written is not made
    server.run(&["node", "create", "gpu-2", "--out", &path]).with(2).saying("--out");
    server.run(&["node", "show", "gpu-2"]).with(3).saying("no node");
    server.run(&["node", "create", "gpu-1"]).with(4).saying(&id);
    let dry = server.ok(&["node", "create", "gpu-3", "--dry-run"]);
    assert!(dry.contains("CreateNode"), "{dry}");
    server.run(&["node", "show", "gpu-3"]).with(3);
    // without a file it stands alone on stdout, and the warning beside it
    let shown = server.run(&["node", "create", "gpu-4", "--bundle-for", "2h"]).with(0);
    let alone: Value = serde_json::from_str(&shown.out).expect("the bundle, and nothing else");
    assert_ne!(alone["token"], bundle["token"]);
    shown.saying("warning").saying("--out FILE");
    // it is told nowhere else
    for words in [
        &["node", "show", "gpu-1", "-o", "json"][..],
        &["audit", "-o", "json"],
        &["node", "history", "gpu-1", "-o", "json"],
    ] {
        assert!(!server.ok(words).contains(token), "{words:?}");
    }
    let anew = server.json(&["node", "rebootstrap", "gpu-1"]);
    assert_eq!((anew["done"].as_bool(), anew["node"]["status"].as_str()), (Some(true), Some("bootstrap_issued")));
    assert!(!anew["secret_bundle"].as_str().expect("text").contains(token));
}

#[test]
fn a_node_and_its_job_are_listed_explained_and_led_on() {
    let home = Home::new();
    let server = home.launch("data").start();
    for name in ["gpu-1", "gpu-2"] {
        server.ok(&["node", "create", name, "--out", &home.path(name).display().to_string()]);
    }
    server.run(&["node", "list"]).with(0).saying("there are no nodes");
    let listed = server.ok(&["node", "list", "--view", "in_progress"]);
    assert!(
        listed.contains("gpu-1") && listed.contains("bootstrap_issued") && !listed.contains("wait_for"),
        "{listed}"
    );
    let shown = server.ok(&["node", "show", "gpu-1"]);
    for label in ["Workflow state", "Current stage", "Attempt count", "Failure class", "Last observed", "Next action"] {
        assert!(shown.lines().any(|line| line.starts_with(label)), "{label}: {shown}");
    }
    server.run(&["node", "drain", "gpu-1"]).with(4).saying("allowed").saying("rebootstrap");
    let job = server.json(&["node", "onboard", "gpu-1"])["id"].as_str().expect("an id").to_owned();
    assert_eq!(server.ok(&["job", "list", "-o", "name"]).trim(), job);
    until("its first stage", || (server.json(&["job", "show", &job])["status"] == "running").then_some(()));
    let sheet = server.ok(&["job", "show", &job]);
    for action in domain::job_action::JobAction::ALL {
        assert!(sheet.contains(action.as_str()), "{action}: {sheet}");
    }
    // what `why` offers is taken as it stands
    let why = server.json(&["why", &job]);
    assert_eq!((why["kind"].as_str(), why["state"].as_str()), (Some("job"), Some("running")));
    let offers = why["actions"].as_array().expect("actions");
    let named = |name: &str| {
        offers.iter().find(|a| a["name"] == name).expect("is named")["command"].as_str().expect("a command").to_owned()
    };
    assert_eq!(named("cancel"), format!("millwright job cancel {job}"));
    let preview = server.ok(&["job", "cancel", &job, "--dry-run"]);
    assert!(preview.contains("nothing was done"), "{preview}");
    // both spellings
    for verb in ["retry_stage", "retry-stage"] {
        server.ok(&["job", verb, &job]);
    }
    server.run(&["job", "restart-clean", &job]).with(2).saying("--reason");
    let watch = server.spawn(&["job", "watch", &job, "-o", "json"]);
    server.ok(&["job", "cancel", &job]);
    let ended = watch.end();
    let last: Value = serde_json::from_str(ended.with(1).out.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["status"], "cancelled");
    assert_eq!(server.json(&["node", "show", "gpu-1"])["status"], "quarantined");
    assert!(server.ok(&["why", "gpu-1"]).contains("millwright node drain"));
    let history = server.json(&["node", "history", "gpu-1"]);
    let moves: Vec<&str> = history["data"].as_array().expect("rows").iter().filter_map(|r| r["to"].as_str()).collect();
    assert_eq!(moves.last(), Some(&"bootstrap_issued"), "the newest first: {moves:?}");
    assert!(moves.contains(&"cancelled") && moves.contains(&"quarantined"), "{moves:?}");
}

#[test]
fn a_filter_is_shown_first_and_acted_on_with_a_yes() {
    let home = Home::new();
    let server = home.launch("data").start();
    for name in ["gpu-1", "gpu-2", "gpu-3"] {
        server.ok(&["node", "create", name, "--out", &home.path(name).display().to_string()]);
    }
    let all = ["node", "cordon", "--filter", "status=bootstrap_issued", "--reason", "power work"];
    let shown = server.run(&all).with(4);
    assert_eq!(shown.out.lines().filter(|line| line.contains("ok")).count(), 3, "{}", shown.out);
    shown.saying("nothing was done").saying("--yes");
    assert_eq!(server.json(&["node", "show", "gpu-1"])["cordoned"], false);
    let done = server.json(&[&all[..], &["--yes"]].concat());
    assert!(done["results"].as_array().expect("results").iter().all(|r| r["ok"] == true), "{done}");
    assert_eq!(server.json(&["node", "show", "gpu-1"])["cordon_reason"], "power work");
    // several by name: each has its result, and one that is refused is no success
    let mixed = server.run(&["node", "uncordon", "gpu-1", "nobody"]).with(4);
    assert!(mixed.out.contains("refused") && mixed.out.contains("ok"), "{}", mixed.out);
    // orders go to agents, and none has come
    server.run(&["node", "reboot", "gpu-1"]).with(4).saying("takes no orders");
    let script = home.file("x.sh", "#!/bin/sh\ntrue\n").display().to_string();
    server.run(&["node", "exec", "gpu-1", "--script", &script]).with(4);
    server.run(&["node", "exec", "gpu-1", "--script", "/nowhere"]).with(2).saying("--script");
    server.run(&["task", "list"]).with(0).saying("there are no tasks");
    server.run(&["task", "show", "tsk_nobody"]).with(3);
    server.run(&["node", "decommission", "gpu-1", "--mode", "reimage"]).with(4).saying("MAAS");
}
