//! `why`, `events`, `audit` and the watches, as an operator meets them.

use crate::fleet::{list, text};
use crate::process::until;
use crate::server::{Home, QUICK};
use serde_json::Value;

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn why_answers_first_and_then_names_what_can_be_typed() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.repave=slow:60000"]);
    let rest = server.json(&["why", "m-1"]);
    assert_eq!((rest["at_rest"].as_bool(), text(&rest, "kind")), (Some(true), "machine"));
    let run = server.start("m-1", "REPAVE");
    server.ok(&["run", "wait", &run, "--for", "step=repave:RUNNING", "--timeout", "100s"]);

    let told = server.ok(&["why", &run]);
    let first = told.lines().next().expect("an answer");
    assert!(!first.is_empty() && !first.starts_with("Waits"), "{told}");
    assert!(told.contains("You can") && told.contains(&format!("millwright run cancel {run}")), "{told}");
    let machine = server.json(&["why", "m-1"]);
    assert!(text(&machine, "held_by").contains(&run), "{machine:#}");
    // every command that is offered is one
    for explained in [server.json(&["why", &run]), machine] {
        for action in list(&explained, "actions") {
            let command = text(&action, "command");
            if action["allowed"] == true {
                let words: Vec<&str> = command.split_whitespace().collect();
                assert_eq!(words.first(), Some(&"millwright"), "{action:#}");
                let help = home.run(&[&words[1..words.len().min(3)], &["--help"]].concat());
                assert_eq!(help.code, Some(0), "{command}: {}", help.err);
            } else {
                assert!(!text(&action, "why_not").is_empty(), "{action:#}");
            }
        }
    }
    server.run(&["why", "nothing-of-that-name"]).with(3);
}

#[test]
fn events_are_told_in_order_and_can_be_taken_up_again() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "1"]).start();
    let run = server.start("sim-0001", "REBOOT");
    server.ended(&run);
    let all = lines(&server.ok(&["events", "--no-follow", "-o", "json"]));
    let sequence = |event: &Value| text(event, "sequence").parse::<u64>().expect("a number");
    assert!(all.len() > 3 && all.is_sorted_by_key(sequence), "{all:#?}");
    let middle = sequence(&all[all.len() / 2]).to_string();
    let rest = lines(&server.ok(&["events", "--no-follow", "--after", &middle, "-o", "json"]));
    assert_eq!(rest, all[all.len() / 2 + 1..]);
    let ends = lines(&server.ok(&["events", "--no-follow", "--filter", "kind=run AND to=SUCCEEDED", "-o", "json"]));
    assert_eq!(ends.iter().map(|e| text(e, "id")).collect::<Vec<_>>(), [run.as_str()]);
    let table = server.ok(&["events", "--no-follow"]);
    assert!(table.lines().any(|line| line.contains(&run) && line.contains("SUCCEEDED")), "{table}");
    server.run(&["events", "--after", "999999999"]).with(2).saying("--after");
}

#[test]
fn events_are_followed_across_a_restart() {
    let home = Home::new();
    let mut launch = home.launch("data").with(&["--sim", "1"]).config(QUICK);
    let server = launch.start_at_a_fixed_address();
    let follower = server.spawn(&["events", "--after", "0", "-o", "json"]);
    until("the follower hears something", || (!follower.out().is_empty()).then_some(()));
    server.terminate().with(0);
    let server = launch.start();
    server.ok(&["machine", "phase", "sim-0001", "RMA", "--reason", "after the restart"]);
    until("the follower goes on", || follower.out().contains("after the restart").then_some(()));
    let heard = lines(&follower.kill().out);
    let stored = lines(&server.ok(&["events", "--no-follow", "-o", "json"]));
    assert_eq!(heard, stored[..heard.len()], "nothing lost, nothing twice");
}

#[test]
fn a_machine_is_watched_by_its_own_events() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "2"]).start();
    let watch = server.spawn(&["machine", "watch", "sim-0001", "--after", "0", "-o", "json"]);
    server.ok(&["machine", "phase", "sim-0002", "RMA", "--reason", "not ours"]);
    server.ok(&["machine", "phase", "sim-0001", "RMA", "--reason", "ours"]);
    until("the move is told", || watch.out().contains("ours").then_some(()));
    let heard = watch.kill().out;
    assert!(!heard.contains("sim-0002"), "{heard}");
    server.run(&["machine", "watch", "nobody"]).with(3).saying("MACHINE_NOT_FOUND");
    let history = server.ok(&["machine", "watch", "sim-0001", "--no-follow"]);
    assert!(history.lines().any(|line| line.contains("→ RMA")), "{history}");
}

#[test]
fn the_audit_tells_what_was_done_and_what_was_refused() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "1"]).start();
    server.ok(&["machine", "phase", "sim-0001", "RMA", "--reason", "fan"]);
    server.run(&["machine", "phase", "sim-0001", "IN_SERVICE"]).with(4);
    let entries = list(&server.json(&["audit", "--filter", "target=sim-0001 AND actor=admin"]), "entries");
    let outcomes: Vec<&str> = entries.iter().map(|entry| text(entry, "outcome")).collect();
    assert_eq!(outcomes, ["refused", "done"], "newest first: {entries:#?}");
    assert_eq!(text(&entries[0], "reason"), "ILLEGAL_TRANSITION");
    let table = server.ok(&["audit", "--limit", "1"]);
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains("SetPhase") && table.contains("refused"), "{table}");
    // the name that filters want is the one that -o wide shows
    let wide = server.ok(&["audit", "--limit", "1", "-o", "wide"]);
    let call = wide.split_whitespace().find(|word| word.ends_with("/SetPhase")).expect("the full name");
    let found = list(&server.json(&["audit", "--filter", &format!("call=\"{call}\"")]), "entries");
    assert_eq!(found.len(), 2, "{found:#?}");
    server.with_token(&home.file("stranger.token", "mwt_nobody")).run(&["me"]).with(5);
    let strangers = server.ok(&["audit", "--filter", "actor=\"\""]);
    assert!(strangers.contains("(stranger)"), "{strangers}");
    let help = home.run(&["audit", "--help"]).with(0).out;
    assert!(help.contains("baremetal.v1.RunService/StartRun") && help.contains("actor=\"\""), "{help}");
}
