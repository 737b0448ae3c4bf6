//! `--dry-run`: what would be sent is told, what would be refused is foretold, and nothing is changed.

use crate::fleet::text;
use crate::server::{Client, Home};
use serde_json::Value;

/// Everything that a change of ours would show in. (Phases and versions move by themselves as well.)
fn state(client: &Client) -> (Vec<Value>, Vec<Value>, String) {
    let facts = |machine: Value| serde_json::json!([machine["machine_id"], machine["labels"], machine["spec"]]);
    let machines = client.machines().into_iter().map(facts).collect();
    (machines, client.runs(), client.ok(&["plan", "list", "-o", "json"]))
}

#[test]
fn a_trial_tells_and_changes_nothing() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "2"]).start();
    let plan =
        home.file("plan.yaml", "plan_id: once\nsteps:\n- {name: reboot, reboot: {mode: bmc}}\n").display().to_string();
    let before = state(&server);
    for words in [
        &["machine", "register", "m-9", "--provider", "sim", "--mac", "02:00:00:00:00:99"][..],
        &["machine", "register", "sim-0001", "--provider", "sim"],
        &["machine", "update", "sim-0001", "--rack", "r9", "--label", "A_b.C-d=1"],
        &["machine", "phase", "sim-0001", "READY"],
        &["plan", "create", "-f", &plan],
        &["run", "start", "sim-0001", "--type", "REPAVE", "--param", "image=x"],
        &["run", "start", "sim-0001", "--plan", "default-reboot"],
        &["run", "cancel", "run_1"],
        &["token", "create", "ci", "--role", "operator", "--ttl", "30d"],
        &["token", "revoke", "tok_1"],
        &["engine", "cancel", "exe_1"],
        &["engine", "terminate", "exe_1", "--reason", "x"],
        &["freeze", "--reason", "x"],
        &["unfreeze"],
    ] {
        let words = [words, &["--dry-run"]].concat();
        let told = server.ok(&words);
        assert!(told.contains("nothing that changes anything was sent") && told.contains("would call"), "{told}");
        let json = server.json(&words);
        assert_eq!(json["dry_run"], true, "{json:#}");
        let yaml: Value = serde_yaml_ng::from_str(&server.ok(&[&words[..], &["-o", "yaml"]].concat())).expect("YAML");
        assert_eq!(yaml["call"], json["call"]);
    }
    assert_eq!(state(&server), before, "nothing was changed");
    let told = server.json(&["token", "create", "ci", "--role", "operator", "--ttl", "30d", "--dry-run"]);
    assert_eq!(told["request"]["role"], "operator", "{told:#}");
}

#[test]
fn a_trial_ends_as_the_real_thing_would() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.repave=slow:60000"]);
    server.register("m-2", &[]);
    let run = server.start("m-1", "REPAVE");
    let taken = home.file("plan.yaml", "plan_id: default-reboot\nsteps:\n- {name: a, reboot: {mode: force}}\n");
    let taken = taken.display().to_string();
    for (words, code, part) in [
        (&["run", "start", "nobody", "--type", "REBOOT"][..], 3, "nobody"),
        (&["run", "start", "m-1", "--type", "REBOOT"], 4, run.as_str()),
        (&["run", "start", "m-2", "--plan", "none"], 3, "none"),
        (&["run", "start", "m-2", "--type", "REBOOT", "--param", "colour=red"], 2, "colour"),
        (&["run", "start", "m-2", "--plan", "default-repave-join"], 4, "cluster"),
        (&["machine", "phase", "m-2", "IN_SERVICE"], 4, "RETIRED"),
        (&["machine", "phase", "m-1", "MAINTENANCE"], 4, run.as_str()),
        (&["machine", "update", "m-2", "--rack", "r", "--if-version", "99"], 4, "version"),
        (&["machine", "update", "nobody", "--rack", "r"], 3, "nobody"),
        (&["machine", "register", "m-3", "--mac", "zz"], 2, "MAC"),
        (&["plan", "create", "-f", &taken], 4, "default-reboot"),
    ] {
        let trial = server.run(&[words, &["--dry-run"]].concat()).with(code);
        assert!(trial.err.contains(part), "{words:?} {part}:\n{}\n{}", trial.out, trial.err);
        // and so it does
        let real = server.run(words).with(code);
        assert!(!real.err.is_empty());
    }
    // the same request again is the same run, and no refusal
    server.ok(&["run", "start", "m-2", "--type", "REBOOT", "--request-id", "r-1"]);
    let again = server.json(&["run", "start", "m-2", "--type", "REBOOT", "--request-id", "r-1", "--dry-run"]);
    assert!(text(&again["found"][0], "what").contains("already"), "{again:#}");
    server.register("m-4", &[]);
    let steps = server.json(&["run", "start", "m-4", "--type", "REPAVE", "--dry-run"]);
    assert!(text(&steps["found"][1], "what").contains("set-netboot → repave → reboot"), "{steps:#}");
}
