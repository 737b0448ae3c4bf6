//! Backup while runs go on, restore into another folder, and what a restore refuses.

use crate::audit::World;
use crate::fleet::text;
use crate::server::{Home, QUICK};
use std::collections::BTreeSet;

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
