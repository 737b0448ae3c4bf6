//! Backup while runs go on, restore into another folder, and what a restore refuses.

use crate::audit::World;
use crate::fleet::text;
use crate::process::{program, run};
use crate::server::{Client, Home, QUICK};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;

#[test]
fn a_backup_taken_in_the_middle_of_runs_starts_elsewhere() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "0"]).config(QUICK);
    let server = launch.start();
    let path = |name: &str| home.path(name).display().to_string();
    let (data, file, copy) = (path("data"), path("fleet.db"), path("copy"));
    for n in 1..=4 {
        server.register(&format!("m-{n}"), &["sim.latency_ms=0", "sim.fault.repave=slow:1500"]);
    }
    let first = server.start("m-1", "REBOOT");
    assert_eq!(text(&server.ended(&first), "phase"), "SUCCEEDED");
    let mut runs: BTreeSet<String> = (2..=4).map(|n| server.start(&format!("m-{n}"), "REPAVE")).collect();
    runs.insert(first);
    World::of(&launch.data).wait_for("repave_started", 3);

    let told = home.run(&["backup", "--data", &data, &file]).with(0);
    assert!(told.out.contains(&file), "{}", told.out);
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    home.run(&["backup", "--data", &data, &file]).with(1).saying("exists already");
    home.run(&["restore", "--data", &data, &file]).with(1).saying("in use by another millwright");
    assert_eq!(server.runs().len(), 4, "the server goes on");
    let after = server.start("m-1", "REBOOT");
    server.all_succeed();

    home.run(&["restore", "--data", &copy, &file]).with(0);
    // the hardware has gone on meanwhile: it is not in the backup
    std::fs::copy(World::of(&launch.data).0, home.path("copy/sim-world.jsonl")).expect("copied");
    let token_file = server.token_file.clone();
    server.kill();
    let restored = home.launch("copy").with(&["--sim", "0"]).config(QUICK).start();
    let restored = restored.with_token(&token_file);
    let known: BTreeSet<String> = restored.runs().iter().map(|run| text(run, "run_id").to_owned()).collect();
    assert_eq!(known, runs, "all but {after}, which came later");
    assert_eq!(restored.ok(&["machine", "list", "-o", "name"]), "m-1\nm-2\nm-3\nm-4\n");
}

#[test]
fn runs_that_were_under_way_in_the_backup_go_on_after_the_restore() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "0"]).config(QUICK);
    let server = launch.start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.repave=slow:1500"]);
    let run = server.start("m-1", "REPAVE");
    let world = World::of(&launch.data);
    world.wait_for("repave_started", 1);
    let (data, file) = (launch.data.display().to_string(), home.path("fleet.db").display().to_string());
    home.run(&["backup", "--data", &data, &file]).with(0);
    server.kill();

    let told = home.run(&["restore", "--data", &data, &file]).with(0);
    assert!(told.out.contains("what was there is kept as"), "{}", told.out);
    let server = launch.start();
    let ended = server.ended(&run);
    assert_eq!(text(&ended, "phase"), "SUCCEEDED", "{ended:#}");
    world.each_once(&["repave_started", "repaved", "reset"], &server.executions());
}

#[test]
fn a_restore_of_something_else_leaves_everything_as_it_was() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "2"]);
    launch.start().terminate().with(0);
    let data = launch.data.display().to_string();
    let junk = home.file("junk.db", "this is not a database").display().to_string();
    home.run(&["restore", "--data", &data, &junk]).with(1).saying("junk.db");
    home.run(&["restore", "--data", &data, &home.path("none.db").display().to_string()]).with(1).saying("none.db");
    home.run(&["backup", "--data", &home.path("nowhere").display().to_string(), "x.db"]).with(1).saying("nowhere");
    assert_eq!(launch.start().machines().len(), 2);
}

/// Sequence and id of every event after one.
fn events(server: &Client, after: u64) -> Vec<(u64, String)> {
    let out = server.ok(&["events", "--no-follow", "--after", &after.to_string(), "-o", "json"]);
    let read = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("JSON");
        (text(&event, "sequence").parse().expect("a number"), text(&event, "id").to_owned())
    };
    out.lines().map(read).collect()
}

#[test]
fn whoever_goes_on_after_a_restore_misses_nothing_new() {
    let home = Home::new();
    let launch = home.launch("data");
    let server = launch.start();
    let (data, file) = (launch.data.display().to_string(), home.path("fleet.db").display().to_string());
    let register = |server: &Client, id: &str| drop(server.ok(&["machine", "register", id, "--provider", "nowhere"]));
    register(&server, "kept");
    server.ok(&["token", "create", "leaked", "--role", "viewer"]);
    home.run(&["backup", "--data", &data, &file]).with(0);
    let kept = events(&server, 0).last().expect("some").0;
    for n in 0..5 {
        register(&server, &format!("lost-{n}"));
    }
    let leaked = server.ok(&["token", "list", "--filter", "name=leaked", "-o", "name"]);
    server.ok(&["token", "revoke", leaked.trim()]);
    let seen = events(&server, 0).last().expect("some").0;
    assert!(seen > kept + 5);
    server.terminate().with(0);

    let told = home.run(&["restore", "--data", &data, &file]).with(0).out;
    assert!(told.contains("revoked after the backup are good again"), "{told}");
    assert!(told.contains("millwright token list"), "{told}");
    let server = launch.start();
    assert_eq!(text(&server.json(&["token", "show", leaked.trim()]), "state"), "active", "as it was told");
    for n in 0..3 {
        register(&server, &format!("new-{n}"));
    }
    let new = ["store", "new-0", "new-1", "new-2"].map(str::to_owned);
    for after in [kept, kept + 1, seen, seen + 1] {
        let ids: Vec<String> = events(&server, after).into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids, new, "after {after}");
    }
    let all = events(&server, 0);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0), "none twice: {all:?}");
    assert_eq!(all.iter().filter(|(sequence, _)| *sequence > kept).count(), new.len());
    let shown = server.ok(&["events", "--no-follow", "--filter", "kind=store"]);
    assert!(shown.contains("store store  restored") && shown.contains("from a backup"), "{shown}");
}

#[test]
fn a_folder_that_may_not_be_looked_into_is_not_called_empty() {
    /// Somebody who is not the server's user.
    const NOBODY: u32 = 65_534;
    let home = Home::new();
    let launch = home.launch("data");
    launch.start().terminate().with(0);
    let mode = |name: &str, mode: u32| {
        std::fs::set_permissions(home.path(name), std::fs::Permissions::from_mode(mode)).expect("set");
    };
    mode("", 0o755);
    mode("data", 0o000);
    let mut command = program(&home.path(""));
    command.args(["backup", "--data"]).arg(&launch.data).arg(home.path("x.db"));
    // for root no folder is closed
    if std::fs::metadata(home.path("")).expect("ours").uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let refused = run(&mut command).with(1).saying("ermission denied");
    assert!(!refused.err.contains("there is no database"), "{}", refused.err);
    mode("data", 0o700);
}
